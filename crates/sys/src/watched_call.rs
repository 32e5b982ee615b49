//! Watches system calls that hardly ever sleep, but can. A thread of usring, the watchdog,
//! interrupts a call that sleeps.
//!
//! - [`WatchedCalls`] is the state of one caller. It counts the caller's calls and shows whether
//!   the caller is inside a call.
//! - [`Watcher`] is the state of the watchdog. The watchdog sleeps while no thread is inside a
//!   watched call. A caller that finds the watchdog asleep wakes it.
//!
//! The watchdog interrupts a call when two checks find the caller inside this call:
//! 1. The watchdog announces a signal in the caller's state.
//! 2. The watchdog sends the signal.
//! 3. The watchdog records in the caller's state that the signal was sent.
//!
//! A caller that finds an announced signal after its call waits for step 3. So the signal never
//! interrupts a later call of the thread.

use crate::ordering::{Edge, Side};
use crate::sync::{AtomicU32, Ordering, relax};

/// Values of the two low bits of a caller's state. The bits above count the caller's calls.
mod phase {
    pub const MASK: u32 = 3;
    pub const OUTSIDE: u32 = 0;
    pub const INSIDE: u32 = 1;
    /// The watchdog is about to send its signal. A caller that ends its call must wait for the
    /// signal, which would otherwise interrupt a later call.
    pub const INTERRUPTING: u32 = 2;
    /// The signal has been sent.
    pub const INTERRUPTED: u32 = 3;
    /// Added to the state at the beginning of each call.
    pub const CALL: u32 = 4;
}

/// The state of one caller, which the watchdog reads. One thread at a time uses it for calls.
#[derive(Default)]
pub struct WatchedCalls {
    state: AtomicU32,
    thread: AtomicU32,
    cancelled: AtomicU32,
}

/// A watched call that has begun: the caller's state at its beginning.
pub struct Begun(u32);

/// A caller's state, as the watchdog has read it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen(u32);

impl Seen {
    pub fn is_inside(self) -> bool {
        self.0 & phase::MASK == phase::INSIDE
    }

    pub fn is_outside(self) -> bool {
        self.0 & phase::MASK == phase::OUTSIDE
    }
}

impl WatchedCalls {
    /// Begins a call by the thread with id `thread`. After this function, the caller checks whether
    /// the watchdog sleeps. Either it sees that the watchdog sleeps, or the watchdog sees the call.
    #[inline]
    pub fn begin(&self, thread: u32) -> Begun {
        self.thread.store(thread, Ordering::Relaxed);
        let inside = (self.state.load(Ordering::Relaxed) & !phase::MASK).wrapping_add(phase::CALL) | phase::INSIDE;
        self.state.swap(inside, Edge::Interrupt.both());
        // The other end of this edge is in `Watcher::prepare_sleep`.
        Edge::Watch.barrier_beside_rmw(Side::Waker);
        Begun(inside)
    }

    /// Returns the word that the watchdog sets before it sends the signal. The caller passes it as
    /// `cancelled` to [`crate::wait::call_briefly`].
    #[inline]
    pub fn cancelled(&self) -> &AtomicU32 {
        &self.cancelled
    }

    /// Ends a call. If the watchdog is interrupting the call, waits until the signal was sent.
    #[inline]
    pub fn end(&self, call: Begun) {
        let outside = call.0 & !phase::MASK;
        // The exchange fails if the watchdog has announced a signal for this call (`interrupt`).
        if self.state.compare_exchange(call.0, outside, Edge::Interrupt.both(), Ordering::Relaxed).is_err() {
            self.end_after_interrupt(outside);
        }
    }

    /// Waits until the watchdog has sent its signal, and then ends the call.
    #[cold]
    fn end_after_interrupt(&self, outside: u32) {
        // The watchdog stores `INTERRUPTED` after it has sent its signal.
        while self.state.load(Edge::Interrupt.acquire()) & phase::MASK != phase::INTERRUPTED {
            relax_and_yield();
        }
        // The signal is pending for this thread by now. The kernel delivers it no later than at the
        // end of the thread's next system call, which `relax_and_yield` makes.
        relax_and_yield();
        self.cancelled.store(0, Ordering::Relaxed);
        self.state.store(outside, Edge::Interrupt.release());
    }

    /// Reads the caller's state, for the watchdog.
    pub fn observe(&self) -> Seen {
        Seen(self.state.load(Edge::Interrupt.acquire()))
    }

    /// Interrupts the call that the watchdog has seen, unless the call has ended. `send` sends the
    /// signal to the thread whose id it gets.
    #[cold]
    pub fn interrupt(&self, seen: Seen, send: impl FnOnce(u32)) {
        let thread = self.thread.load(Ordering::Relaxed);
        let call = seen.0 & !phase::MASK;
        let announced = call | phase::INTERRUPTING;
        if self.state.compare_exchange(seen.0, announced, Edge::Interrupt.both(), Ordering::Relaxed).is_err() {
            return;
        }
        // The thread in the call reads this word at two moments: before it would sleep, and after
        // its call was interrupted.
        self.cancelled.store(1, Ordering::Release);
        send(thread);
        self.state.store(call | phase::INTERRUPTED, Edge::Interrupt.release());
    }
}

fn relax_and_yield() {
    #[cfg(not(loom))]
    crate::processor::yield_now();
    relax();
}

/// Values of the watchdog's state.
mod watcher_state {
    /// The watchdog's thread does not exist.
    pub const NOTHING: u32 = 0;
    /// A caller is about to start the watchdog's thread.
    pub const STARTING: u32 = 1;
    pub const SLEEPING: u32 = 2;
    pub const CHECKING: u32 = 3;
}

/// The state of the watchdog: a futex word on which it sleeps.
#[derive(Default)]
pub struct Watcher {
    state: AtomicU32,
}

/// The step by which a caller makes the watchdog check calls. Returned by
/// [`Watcher::ensure_checking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogStep {
    /// Nothing: the watchdog is checking calls.
    Nothing,
    /// Wake the watchdog, which sleeps on [`Watcher::word`].
    Wake,
    /// Start the watchdog's thread. If `first` is `false`, another caller is already about to start
    /// it.
    Start { first: bool },
}

impl Watcher {
    /// Returns whether the watchdog is checking calls. Called after [`WatchedCalls::begin`].
    #[inline]
    pub fn is_checking(&self) -> bool {
        self.state.load(Ordering::Relaxed) == watcher_state::CHECKING
    }

    /// Decides what a caller has to do about a watchdog that is not checking calls.
    #[cold]
    pub fn ensure_checking(&self) -> WatchdogStep {
        if self.change(watcher_state::SLEEPING, watcher_state::CHECKING) {
            return WatchdogStep::Wake;
        }
        if self.change(watcher_state::NOTHING, watcher_state::STARTING) {
            return WatchdogStep::Start { first: true };
        }
        match self.state.load(Ordering::Relaxed) {
            watcher_state::STARTING => WatchdogStep::Start { first: false },
            _ => WatchdogStep::Nothing,
        }
    }

    /// Records that the watchdog's thread could not be started. The next caller tries again.
    pub fn spawn_failed(&self) {
        self.state.store(watcher_state::NOTHING, Ordering::Relaxed);
    }

    /// Called by a new watchdog thread. Returns `false` if another thread is the watchdog already.
    pub fn begin(&self) -> bool {
        self.change(watcher_state::STARTING, watcher_state::CHECKING)
    }

    /// Announces that the watchdog is about to sleep, and then calls `check`. If `check` returns
    /// `true`, a thread is inside a watched call, and the announcement is withdrawn.
    pub fn prepare_sleep(&self, check: impl FnOnce() -> bool) {
        self.state.store(watcher_state::SLEEPING, Ordering::Relaxed);
        // The other end of this edge is in `WatchedCalls::begin`.
        Edge::Watch.barrier(Side::Sleeper);
        if check() {
            self.state.store(watcher_state::CHECKING, Ordering::Relaxed);
        }
    }

    /// Returns the futex word on which the watchdog sleeps, and the value that the word must have
    /// for the sleep. `None` if the watchdog must not sleep.
    pub fn sleep_word(&self) -> Option<(&AtomicU32, u32)> {
        (self.state.load(Ordering::Relaxed) == watcher_state::SLEEPING)
            .then_some((&self.state, watcher_state::SLEEPING))
    }

    /// Returns the word that the watchdog sleeps on.
    pub fn word(&self) -> &AtomicU32 {
        &self.state
    }

    /// Records that the watchdog's thread ends. Returns `false` if a caller has just woken the
    /// thread, which then must not end.
    pub fn retire(&self) -> bool {
        self.change(watcher_state::SLEEPING, watcher_state::NOTHING)
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
