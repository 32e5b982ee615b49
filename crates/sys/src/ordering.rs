//! Names every ordering that usring relies on between threads, or between itself and the program. A
//! call site names the edge and its end of it; [`Edge`] describes both ends. The loom models weaken
//! one end at a time (`weaken`) and observe that the guarantee breaks.
//!
//! There are two shapes:
//! * *Publication*: one side writes data, then a word with release. The other side reads the word
//!   with acquire, then the data.
//! * *Store, barrier, look*, on both sides: each side stores its word, passes a full barrier, and
//!   reads the other's word. At least one of the two then sees the other's store. So no thread
//!   sleeps through work, and no work stays behind a lock.

use crate::perturbation::perturb;
use crate::sync::Ordering;

/// A pair of accesses that rely on an ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// SQ tail: the application publishes SQEs to the engine.
    SqTail,
    /// SQ head: the engine returns SQE slots to the application.
    SqHead,
    /// CQ tail: the engine publishes CQEs to the application.
    CqTail,
    /// CQ head: the application returns CQE slots to the engine.
    CqHead,
    /// Tail of the kernel's AIO ring: the kernel publishes events to usring. The kernel's end is
    /// `smp_wmb` between the event and the tail (`fs/aio.c`).
    AioTail,
    /// Head of the kernel's AIO ring: usring returns the events' slots to the kernel. The kernel's
    /// end is a dependency: the value of the head decides whether it writes.
    AioHead,
    /// The SQ thread sets NEED_WAKEUP, then reads the SQ tail. The application stores the SQ tail,
    /// then reads NEED_WAKEUP.
    NeedWakeup,
    /// Index of a virtqueue's available ring: the driver publishes descriptors to
    /// the back end.
    AvailableIndex,
    /// Index of a virtqueue's used ring: the back end publishes to the driver its completions, and
    /// the data that it has read into memory.
    UsedIndex,
    /// The back end stores the available index from which on it wants a notification, then reads
    /// the index. The driver stores the index, then reads whether to notify.
    AvailableEvent,
    /// The driver stores the used index from which on it wants a notification, then reads the
    /// index. The back end stores the index, then reads whether to notify.
    UsedEvent,
    /// The control plane publishes to a queue that its back end was replaced. The queue's memory
    /// then belongs to the queue alone.
    Generation,
    /// A queue publishes that its rings are laid out for the new back end, which may use them now.
    Settled,
    /// The sleeper announces itself, then reads the work. The waker publishes work, then reads the
    /// announcement.
    Sleep,
    /// A process that begins to use a ring marks it as shared, then reads whether a waiter leads. A
    /// waiter announces that it leads, then reads the mark.
    Share,
    /// Task-work list: the pusher publishes an entry to the taker, and the entry as the new tail to
    /// the next pusher.
    Queue,
    /// A lock's word: the thread that unlocks publishes the data to the next holder.
    Lock,
    /// A page's word: the thread that releases the page publishes it, with its slot number, to the
    /// next thread that takes it.
    Page,
    /// A cluster's gate: each visitor publishes to the thread that shuts the gate, and the reverse.
    Gate,
    /// The unlocking thread reads the work after the unlock. The thread that publishes work tries
    /// the lock after the publication.
    HandOver,
    /// The state of a watched call: the watchdog's signal that interrupts the call is sent before
    /// the caller leaves.
    BreakOff,
    /// A change of credentials: the changing thread publishes the counts of changes and the change
    /// to follow. A service thread publishes its answer.
    Change,
    /// A user announces an object in its hazard pointer, then looks whether the object can be
    /// found. A remover takes the object out of its table, then reads the pointers. The remover's
    /// barrier is membarrier(2).
    Hazard,
    /// The watchdog announces that it sleeps, then reads the calls. A caller announces its call,
    /// then reads whether the watchdog sleeps.
    Watch,
}

/// Which end of an edge a call site is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Writes the word of a publication.
    Release,
    /// Reads the word of a publication.
    Acquire,
    /// Has announced its sleep or released a lock, and reads next whether there is work.
    Sleeper,
    /// Has published work, and reads whether the other side sleeps or holds the lock.
    Waker,
}

impl Edge {
    /// Returns the ordering for writing the word of this publication.
    #[inline(always)]
    pub fn release(self) -> Ordering {
        perturb();
        if self.is_weak(Side::Release) { Ordering::Relaxed } else { Ordering::Release }
    }

    /// Returns the ordering for reading the word of this publication.
    #[inline(always)]
    pub fn acquire(self) -> Ordering {
        perturb();
        if self.is_weak(Side::Acquire) { Ordering::Relaxed } else { Ordering::Acquire }
    }

    /// Returns the ordering for a read-modify-write that ends the previous publication and begins
    /// this one: acquire and release.
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

    /// Passes the full barrier between this side's store and its read of the other's word.
    #[inline(always)]
    pub fn barrier(self, side: Side) {
        perturb();
        if !self.is_weak(side) {
            crate::sync::full_barrier();
        }
    }

    /// Passes the full barrier beside a read-modify-write: after it, or before it if it is the read
    /// of the other's word. On x86-64 such an instruction is locked, and a full barrier already, so
    /// this is a compiler fence only. A model gets a real fence.
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

    /// Passes the barrier of the side that runs often, where the other side makes membarrier(2)
    /// ([`Edge::barrier_everywhere`]): it orders only the compiler. A model gets a real fence.
    #[inline(always)]
    pub fn light_barrier(self, side: Side) {
        #[cfg(not(loom))]
        {
            let _ = side;
            perturb();
            core::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        #[cfg(loom)]
        self.barrier(side);
    }

    /// Passes a barrier in all threads of the process. Returns whether it reached them all. A model
    /// gets a fence in this thread: its other side has one, too.
    pub fn barrier_everywhere(self, side: Side) -> bool {
        #[cfg(not(loom))]
        {
            let _ = side;
            perturb();
            crate::membarrier::everywhere()
        }
        #[cfg(loom)]
        {
            self.barrier(side);
            true
        }
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

/// For models: runs `model` with one side of one edge made relaxed, to show what that side is
/// needed for. (loom runs all threads of a model in the thread that started the model.)
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
