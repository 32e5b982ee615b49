//! Every ordering that usring relies on between threads, or between itself and
//! the program, by name. A call site says which edge it is an end of; the
//! other end is in the table below. The loom models take the strength out of
//! one end at a time (`weaken`) and see the promise broken.
//!
//! Two shapes occur:
//! * *publication*: one side writes data, then a word with release; the other
//!   reads the word with acquire, then the data;
//! * *store, barrier, look* on both sides: each stores what the other has to
//!   know, passes a full barrier, and looks at what the other stored. At least
//!   one of the two then sees the other, which is why nobody sleeps through
//!   work and no work is left behind a lock.

use crate::perturbation::perturb;
use crate::sync::Ordering;

/// One pair of sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// SQ tail: the application publishes SQEs to the engine.
    SqTail,
    /// SQ head: the engine gives SQE slots back to the application.
    SqHead,
    /// CQ tail: the engine publishes CQEs to the application.
    CqTail,
    /// CQ head: the application gives CQE slots back to the engine.
    CqHead,
    /// Tail of the kernel's AIO ring: the kernel publishes events to us. Its end is
    /// `smp_wmb` between the event and the tail (`fs/aio.c`).
    AioTail,
    /// Head of the kernel's AIO ring: we give events' slots back to the kernel. Its
    /// end is the head's value, on which it depends whether it writes.
    AioHead,
    /// SQ thread sets NEED_WAKEUP, looks at the SQ tail; the application
    /// stores the SQ tail, looks at NEED_WAKEUP.
    NeedWakeup,
    /// Index of a virtqueue's available ring: the driver publishes descriptors to
    /// the back end.
    AvailableIndex,
    /// Index of a virtqueue's used ring: the back end publishes completions, and
    /// what it has read into memory, to the driver.
    UsedIndex,
    /// The back end says from which available index on it wants to be told, looks
    /// at the index; the driver stores the index, looks whether to tell.
    AvailableEvent,
    /// The driver says from which used index on it wants to be told, looks at the
    /// index; the back end stores the index, looks whether to tell.
    UsedEvent,
    /// The control plane tells a queue that another back end has come, and the
    /// queue's memory is the queue's alone.
    Generation,
    /// A queue has put its rings in order for that back end and gives them away.
    Settled,
    /// Sleeper announces itself, looks at the work; waker publishes work,
    /// looks at the announcement.
    Sleep,
    /// Task-work list: who pushes publishes an entry to who takes, and its
    /// place behind the newest to who pushes next.
    Queue,
    /// A lock's word: who unlocks publishes the data to the next holder.
    Lock,
    /// A page's word: who had the page gives it back, with the slot that it
    /// wrote down, to who takes it next.
    Page,
    /// A cluster's gate: who was inside lets who shuts it, and the other way round.
    Gate,
    /// Who unlocks looks at the work afterwards; who publishes work tries the
    /// lock afterwards.
    HandOver,
    /// The state of a call that is watched: the signal that breaks it off is sent
    /// before the caller leaves.
    BreakOff,
    /// A change of credentials: the thread that changes publishes the counts of changes and the
    /// order to follow. A service thread publishes its answer.
    Change,
    /// The watcher says that it sleeps, looks at the calls; a caller says that it
    /// calls, looks whether the watcher sleeps.
    Watch,
}

/// Which end of an edge a call site is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Writes the word of a publication.
    Release,
    /// Reads the word of a publication.
    Acquire,
    /// Is about to turn away (sleep, unlock), and looks once more.
    Sleeper,
    /// Has made work, and looks whether somebody turned away.
    Waker,
}

impl Edge {
    /// The ordering with which the word of this publication is written.
    #[inline(always)]
    pub fn release(self) -> Ordering {
        perturb();
        if self.is_weak(Side::Release) { Ordering::Relaxed } else { Ordering::Release }
    }

    /// The ordering with which the word of this publication is read.
    #[inline(always)]
    pub fn acquire(self) -> Ordering {
        perturb();
        if self.is_weak(Side::Acquire) { Ordering::Relaxed } else { Ordering::Acquire }
    }

    /// Both, for a read-modify-write that is an end of this publication and of
    /// the one before it.
    #[inline(always)]
    pub fn both(self) -> Ordering {
        perturb();
        match (self.is_weak(Side::Release), self.is_weak(Side::Acquire)) {
            (true, true) => Ordering::Relaxed,
            (true, false) => Ordering::Acquire,
            (false, true) => Ordering::Release,
            (false, false) => Ordering::AcqRel,
        }
    }

    /// The full barrier between this side's store and its look.
    #[inline(always)]
    pub fn barrier(self, side: Side) {
        perturb();
        if !self.is_weak(side) {
            crate::sync::full_barrier();
        }
    }

    /// The same, where a read-modify-write stands right before it (or is the
    /// look itself). On x86-64 that instruction is locked and is the full
    /// barrier already, so only the compiler is told; a model gets the real
    /// thing.
    #[inline(always)]
    pub fn barrier_beside_rmw(self, side: Side) {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        {
            let _ = side;
            perturb();
            core::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        self.barrier(side);
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn is_weak(self, _: Side) -> bool {
        false
    }

    #[cfg(loom)]
    fn is_weak(self, side: Side) -> bool {
        WEAK.with(|weak| weak.get() == Some((self, side)))
    }
}

#[cfg(loom)]
std::thread_local! {
    static WEAK: core::cell::Cell<Option<(Edge, Side)>> = const { core::cell::Cell::new(None) };
}

/// For models: runs `model` with one side of one edge made relaxed, so that it
/// shows what the strength is for. (loom runs all threads of a model in the
/// thread that asked for it.)
#[cfg(loom)]
pub fn weaken<R>(edge: Edge, side: Side, model: impl FnOnce() -> R) -> R {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            WEAK.with(|weak| weak.set(None));
        }
    }
    WEAK.with(|weak| weak.set(Some((edge, side))));
    let _restore = Restore;
    model()
}
