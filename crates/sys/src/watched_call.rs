//! Watches system calls that should not sleep but may. A thread, the watchdog, interrupts a call
//! that sleeps.
//!
//! - [`WatchedCalls`] is the word of one caller. It counts the caller's calls and says whether the
//!   caller is inside one.
//! - [`Watcher`] is the state of the watchdog's thread. It sleeps while no thread calls, and a
//!   caller that finds it asleep wakes it.
//!
//! The watchdog interrupts a call when two checks find the caller inside it:
//! 1. It announces a signal in the caller's word.
//! 2. It sends the signal.
//! 3. It notes in the word that the signal was sent.
//!
//! A caller with an announced signal waits for step 3 before it leaves. So the signal never
//! interrupts another call of the thread.

use crate::ordering::{Edge, Side};
use crate::sync::{AtomicU32, Ordering, relax};

/// The caller's state: the low bits of its word. The bits above count its calls.
mod phase {
    pub const MASK: u32 = 3;
    pub const OUTSIDE: u32 = 0;
    pub const INSIDE: u32 = 1;
    /// The watchdog is about to send its signal. The caller may not leave, or the signal would
    /// interrupt another call.
    pub const BEING_BROKEN_OFF: u32 = 2;
    /// The signal has been sent.
    pub const BROKEN_OFF: u32 = 3;
    /// Added for each call.
    pub const CALL: u32 = 4;
}

/// One caller, as the watchdog sees it. One thread calls at a time.
#[derive(Default)]
pub struct WatchedCalls {
    state: AtomicU32,
    thread: AtomicU32,
    cancelled: AtomicU32,
}

/// A call that has begun.
pub struct Begun(u32);

/// A caller's word, as the watchdog has read it.
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
    /// Begins a call by this thread. From here on either the caller sees that the watchdog sleeps,
    /// or the watchdog sees the call.
    #[inline]
    pub fn begin(&self, thread: u32) -> Begun {
        self.thread.store(thread, Ordering::Relaxed);
        let inside = (self.state.load(Ordering::Relaxed) & !phase::MASK).wrapping_add(phase::CALL) | phase::INSIDE;
        self.state.swap(inside, Edge::BreakOff.both());
        // Partner: `Watcher::prepare_sleep`.
        Edge::Watch.barrier_beside_rmw(Side::Waker);
        Begun(inside)
    }

    /// Returns the word that is set before the signal is sent that interrupts the call.
    #[inline]
    pub fn cancelled(&self) -> &AtomicU32 {
        &self.cancelled
    }

    /// Ends the call.
    #[inline]
    pub fn end(&self, call: Begun) {
        let outside = call.0 & !phase::MASK;
        // Partner: the watchdog's announcement, before it sends its signal.
        if self.state.compare_exchange(call.0, outside, Edge::BreakOff.both(), Ordering::Relaxed).is_err() {
            self.come_out(outside);
        }
    }

    /// Leaves a call that is being interrupted.
    #[cold]
    fn come_out(&self, outside: u32) {
        // Partner: the watchdog's note, after it has sent its signal.
        while self.state.load(Edge::BreakOff.acquire()) & phase::MASK != phase::BROKEN_OFF {
            relax_and_yield();
        }
        // The signal is pending for this thread by now. It is delivered at the end of the thread's
        // next system call at the latest.
        relax_and_yield();
        self.cancelled.store(0, Ordering::Relaxed);
        self.state.store(outside, Edge::BreakOff.release());
    }

    /// Reads the caller's word, for the watchdog.
    pub fn observe(&self) -> Seen {
        Seen(self.state.load(Edge::BreakOff.acquire()))
    }

    /// Interrupts the call that was seen, unless the caller has left it. `send` sends the signal to
    /// the given thread.
    #[cold]
    pub fn break_off(&self, seen: Seen, send: impl FnOnce(u32)) {
        let thread = self.thread.load(Ordering::Relaxed);
        let call = seen.0 & !phase::MASK;
        let announced = call | phase::BEING_BROKEN_OFF;
        if self.state.compare_exchange(seen.0, announced, Edge::BreakOff.both(), Ordering::Relaxed).is_err() {
            return;
        }
        // The signalled thread reads this in its handler, or before it sleeps.
        self.cancelled.store(1, Ordering::Release);
        send(thread);
        self.state.store(call | phase::BROKEN_OFF, Edge::BreakOff.release());
    }
}

fn relax_and_yield() {
    #[cfg(not(loom))]
    crate::processor::yield_now();
    relax();
}

/// The state of the watchdog's thread.
mod doing {
    /// There is no thread.
    pub const NOTHING: u32 = 0;
    /// A caller is about to start the thread.
    pub const STARTING: u32 = 1;
    pub const SLEEPING: u32 = 2;
    pub const CHECKING: u32 = 3;
}

/// The watchdog's own word, a futex.
#[derive(Default)]
pub struct Watcher {
    state: AtomicU32,
}

/// A caller's next step with regard to the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rouse {
    /// Nothing: the watchdog checks, or will.
    Nothing,
    /// Wake the thread that sleeps on the word.
    Wake,
    /// Start the thread. `first`: no other caller is about to start it.
    Start { first: bool },
}

impl Watcher {
    /// Returns whether the watchdog checks. Asked by a caller after [`WatchedCalls::begin`].
    #[inline]
    pub fn is_checking(&self) -> bool {
        self.state.load(Ordering::Relaxed) == doing::CHECKING
    }

    /// Decides what the caller does about a watchdog that does not check.
    #[cold]
    pub fn rouse(&self) -> Rouse {
        if self.change(doing::SLEEPING, doing::CHECKING) {
            return Rouse::Wake;
        }
        if self.change(doing::NOTHING, doing::STARTING) {
            return Rouse::Start { first: true };
        }
        match self.state.load(Ordering::Relaxed) {
            doing::STARTING => Rouse::Start { first: false },
            _ => Rouse::Nothing,
        }
    }

    /// Notes that the thread could not be started: the next caller tries again.
    pub fn spawn_failed(&self) {
        self.state.store(doing::NOTHING, Ordering::Relaxed);
    }

    /// Begins the watchdog's thread; `false` if there is another one.
    pub fn begin(&self) -> bool {
        self.change(doing::STARTING, doing::CHECKING)
    }

    /// Prepares to sleep, unless a last check finds a caller inside a call.
    pub fn prepare_sleep(&self, check: impl FnOnce() -> bool) {
        self.state.store(doing::SLEEPING, Ordering::Relaxed);
        // Partner: `WatchedCalls::begin`.
        Edge::Watch.barrier(Side::Sleeper);
        if check() {
            self.state.store(doing::CHECKING, Ordering::Relaxed);
        }
    }

    /// Returns the word to sleep on and its value, if the watchdog is to sleep.
    pub fn asleep(&self) -> Option<(&AtomicU32, u32)> {
        (self.state.load(Ordering::Relaxed) == doing::SLEEPING).then_some((&self.state, doing::SLEEPING))
    }

    /// Returns the word that the watchdog sleeps on.
    pub fn word(&self) -> &AtomicU32 {
        &self.state
    }

    /// Ends the watchdog for good; `false` if a caller has just woken it.
    pub fn retire(&self) -> bool {
        self.change(doing::SLEEPING, doing::NOTHING)
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
