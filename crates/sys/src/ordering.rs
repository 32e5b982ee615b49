//! Names every memory ordering that usring relies on between threads, or between itself and the
//! program. Each ordering is an *edge* with two ends. A call site names the edge and its end of the
//! edge. [`Edge`] describes both ends. The loom models weaken one end at a time (`weaken`), and
//! check that the guarantee breaks.
//!
//! There are two shapes:
//! * *Publication*: one side writes data, then a word with release. The other side reads the word
//!   with acquire, then the data.
//! * *Store, barrier, load*, on both sides: each side stores its word, executes a full barrier, and
//!   reads the other's word. Then at least one of the two sees the other's store. So no thread
//!   sleeps while it has work, and no work stays undone because a lock was held.

use crate::perturbation::perturb;
use crate::sync::Ordering;

/// A pair of memory accesses, by two threads, that relies on an ordering.
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
    /// Tail of the kernel's AIO ring: the kernel publishes events to usring. The kernel's
    /// barrier is the `smp_wmb` between its stores of the event and of the tail (`fs/aio.c`).
    AioTail,
    /// Head of the kernel's AIO ring: usring returns the events' slots to the kernel. The kernel
    /// executes no barrier here. It reads the head, and this value decides whether it writes an
    /// event (a control dependency).
    AioHead,
    /// The SQ thread sets NEED_WAKEUP, then reads the SQ tail. The application stores the SQ tail,
    /// then reads NEED_WAKEUP.
    NeedWakeup,
    /// Index of a virtqueue's available ring: the driver publishes descriptors to the back end.
    AvailableIndex,
    /// Index of a virtqueue's used ring: the back end publishes completions to the driver. It also
    /// publishes the data that it has written to the driver's memory.
    UsedIndex,
    /// The back end stores the available index at which it wants a notification, then reads the
    /// available index. The driver stores the available index, then reads the index at which it has
    /// to notify.
    AvailableEvent,
    /// The driver stores the used index at which it wants a notification, then reads the used
    /// index. The back end stores the used index, then reads the index at which it has to notify.
    UsedEvent,
    /// The control plane of a vhost-user device announces a new back end of the device to the user
    /// of each queue. By then the old back end no longer uses the queue's memory.
    Generation,
    /// The user of a vhost-user queue announces that it has laid out the queue's rings for the new
    /// back end. From then on that back end may use the rings.
    QueueReady,
    /// A thread announces that it will sleep, then reads whether there is work. A waker publishes
    /// work, then reads the announcement.
    Sleep,
    /// A process that begins to use an inherited ring marks the ring as shared, then reads the
    /// announcements below. A thread that makes one of these announcements reads the mark
    /// afterwards:
    /// - the thread becomes the leader (the waiter that sleeps in the ring's epoll set);
    /// - the thread's process polls the ring's descriptor;
    /// - the thread's process makes registrations that other processes do not see yet.
    Share,
    /// Task-work list: a pusher publishes its entry to the thread that takes entries. It also
    /// publishes the entry as the newest one to the next pusher.
    Queue,
    /// A lock's word: the thread that unlocks publishes the protected data to the next holder.
    Lock,
    /// The state word of a page of swapped memory. A thread owns the page while the word is in the
    /// state `Busy`. The owner gives up the page by a release store. So it publishes the page's
    /// slot number (its position in the swap store) to the next owner.
    Page,
    /// The gate of a cluster (swapped pages that are evicted together). A thread is inside the gate
    /// while it changes the mapping of one of these pages. A thread that leaves publishes its
    /// changes to the evictor that shuts the gate. The evictor publishes its changes to the next
    /// thread that enters.
    Gate,
    /// A thread unlocks, then reads whether there is work. Another thread publishes work, then
    /// tries the lock.
    HandOver,
    /// The state of a call that the stuck-call watchdog watches. The watchdog publishes that it has
    /// sent the signal that interrupts the call. The thread in the call waits for this publication
    /// before it leaves the call.
    Interrupt,
    /// A change of credentials. The changing thread publishes the change and the counts of changes.
    /// A service thread (a thread of usring that makes the change, too) publishes its answer.
    Change,
    /// A user stores an object's address in its hazard pointer, then checks whether the object is
    /// still in its table. A remover takes the object out of the table, then reads all hazard
    /// pointers. The remover's barrier is membarrier(2).
    Hazard,
    /// The stuck-call watchdog announces that it sleeps, then reads the list of watched calls. A
    /// caller announces its call, then reads whether the watchdog sleeps.
    Watch,
}

/// The end of an [`Edge`] that a call site implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Writes the word of a publication.
    Release,
    /// Reads the word of a publication.
    Acquire,
    /// For the shape "store, barrier, load": the side that has announced its sleep or released a
    /// lock, and then reads whether there is work.
    Sleeper,
    /// For the shape "store, barrier, load": the side that has published work, and then reads
    /// whether the other side sleeps or holds the lock.
    Waker,
}

impl Edge {
    /// Returns the ordering for a store to the edge's word: release (relaxed if a model weakens
    /// it).
    #[inline(always)]
    pub fn release(self) -> Ordering {
        perturb();
        if self.is_weak(Side::Release) { Ordering::Relaxed } else { Ordering::Release }
    }

    /// Returns the ordering for a load of the edge's word: acquire (relaxed if a model weakens it).
    #[inline(always)]
    pub fn acquire(self) -> Ordering {
        perturb();
        if self.is_weak(Side::Acquire) { Ordering::Relaxed } else { Ordering::Acquire }
    }

    /// Returns the ordering for a read-modify-write that is both ends at once: acquire and release.
    /// It reads the data that the other side has published, and publishes to the next reader.
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

    /// Executes the full barrier between this side's store and its read of the other side's word.
    #[inline(always)]
    pub fn barrier(self, side: Side) {
        perturb();
        if !self.is_weak(side) {
            crate::sync::full_barrier();
        }
    }

    /// Executes the full barrier beside a read-modify-write. The read-modify-write is this side's
    /// store, or its read of the other side's word. On x86-64 it is a full barrier already, so this
    /// function executes only a compiler fence. A loom model gets a real fence.
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

    /// Executes a compiler fence, for the side that runs often. This is enough because the other
    /// side calls membarrier(2) ([`Edge::barrier_everywhere`]). A loom model gets a real fence.
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

    /// Executes a full barrier in all threads of the process by membarrier(2). Returns whether the
    /// kernel did so. A loom model gets a fence in this thread, and another in
    /// [`Edge::light_barrier`].
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

/// Runs a loom model with one side of one edge made relaxed. The test then expects the model to
/// fail, which shows that the model needs that side. (loom runs all threads of a model in the
/// thread that started the model.)
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
