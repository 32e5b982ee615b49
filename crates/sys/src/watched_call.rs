//! System calls that are not expected to sleep but may, and the thread that
//! watches them, which breaks off one that does.
//!
//! Two words. [`WatchedCalls`] is one caller's: it counts its calls and says
//! whether it is inside of one. The watcher that finds it inside of the same call
//! twice announces a signal, sends it, and says that it has; a caller that has
//! been announced one waits for that before it leaves, so the signal never meets
//! another call of the thread's. [`Watcher`] is what the watcher does: where
//! nobody calls it sleeps, and a caller that finds it asleep wakes it.

use crate::ordering::{Edge, Side};
use crate::sync::{AtomicU32, Ordering, relax};

/// What a caller is doing: the low bits of its word, above which its calls are
/// counted.
mod phase {
    pub const MASK: u32 = 3;
    pub const OUTSIDE: u32 = 0;
    pub const INSIDE: u32 = 1;
    /// The watcher is about to send its signal: the caller may not leave, or
    /// that would break off something else.
    pub const BEING_BROKEN_OFF: u32 = 2;
    /// The signal has been sent.
    pub const BROKEN_OFF: u32 = 3;
    /// One more call.
    pub const CALL: u32 = 4;
}

/// One caller, as its watcher sees it. One thread calls at a time.
#[derive(Default)]
pub struct WatchedCalls {
    state: AtomicU32,
    thread: AtomicU32,
    cancelled: AtomicU32,
}

/// A call that has begun.
pub struct Begun(u32);

/// What the watcher has seen of a caller.
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
    /// Begins a call by this thread. From here on the caller sees a watcher
    /// asleep, or the watcher sees it call.
    #[inline]
    pub fn begin(&self, thread: u32) -> Begun {
        self.thread.store(thread, Ordering::Relaxed);
        let inside = (self.state.load(Ordering::Relaxed) & !phase::MASK).wrapping_add(phase::CALL) | phase::INSIDE;
        self.state.swap(inside, Edge::BreakOff.both());
        // Partner: `Watcher::lie_down`.
        Edge::Watch.barrier_beside_rmw(Side::Waker);
        Begun(inside)
    }

    /// Set when the call is to be broken off, before the signal is sent.
    #[inline]
    pub fn cancelled(&self) -> &AtomicU32 {
        &self.cancelled
    }

    /// Ends it.
    #[inline]
    pub fn end(&self, call: Begun) {
        let outside = call.0 & !phase::MASK;
        // Partner: the watcher's, before it sends its signal.
        if self.state.compare_exchange(call.0, outside, Edge::BreakOff.both(), Ordering::Relaxed).is_err() {
            self.come_out(outside);
        }
    }

    /// The way out of a call that is broken off.
    #[cold]
    fn come_out(&self, outside: u32) {
        // Partner: the watcher's, after it has sent its signal.
        while self.state.load(Edge::BreakOff.acquire()) & phase::MASK != phase::BROKEN_OFF {
            give_way();
        }
        // The signal is this thread's by now: at the latest it is delivered at
        // the end of its next system call.
        give_way();
        self.cancelled.store(0, Ordering::Relaxed);
        self.state.store(outside, Edge::BreakOff.release());
    }

    /// The watcher's look.
    pub fn look(&self) -> Seen {
        Seen(self.state.load(Edge::BreakOff.acquire()))
    }

    /// Breaks off the call that has been seen, if it goes on still; `send` sends
    /// its thread the signal.
    #[cold]
    pub fn break_off(&self, seen: Seen, send: impl FnOnce(u32)) {
        let thread = self.thread.load(Ordering::Relaxed);
        let call = seen.0 & !phase::MASK;
        let announced = call | phase::BEING_BROKEN_OFF;
        if self.state.compare_exchange(seen.0, announced, Edge::BreakOff.both(), Ordering::Relaxed).is_err() {
            return;
        }
        // Who is signalled looks at it in its handler, or before it sleeps.
        self.cancelled.store(1, Ordering::Release);
        send(thread);
        self.state.store(call | phase::BROKEN_OFF, Edge::BreakOff.release());
    }
}

fn give_way() {
    #[cfg(not(loom))]
    crate::processor::give_way();
    relax();
}

/// What the watcher's thread is doing.
mod doing {
    /// There is no thread.
    pub const NOTHING: u32 = 0;
    /// Somebody is about to start it.
    pub const STARTING: u32 = 1;
    pub const SLEEPING: u32 = 2;
    pub const LOOKING: u32 = 3;
}

/// The watcher's own word, a futex.
#[derive(Default)]
pub struct Watcher {
    state: AtomicU32,
}

/// What a caller has to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rouse {
    /// It looks, or will.
    Nothing,
    /// Wake who sleeps on the word.
    Wake,
    /// Start the thread. `first`: nobody else is about to.
    Start { first: bool },
}

impl Watcher {
    /// A caller's, behind [`WatchedCalls::begin`].
    #[inline]
    pub fn is_looking(&self) -> bool {
        self.state.load(Ordering::Relaxed) == doing::LOOKING
    }

    /// What to do about one that does not look.
    #[cold]
    pub fn rouse(&self) -> Rouse {
        if self.change(doing::SLEEPING, doing::LOOKING) {
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

    /// It could not be started: the next caller tries again.
    pub fn is_stillborn(&self) {
        self.state.store(doing::NOTHING, Ordering::Relaxed);
    }

    /// The thread's beginning; `false` if there is another one.
    pub fn begin(&self) -> bool {
        self.change(doing::STARTING, doing::LOOKING)
    }

    /// Goes to sleep unless a last look finds somebody calling.
    pub fn lie_down(&self, look: impl FnOnce() -> bool) {
        self.state.store(doing::SLEEPING, Ordering::Relaxed);
        // Partner: `WatchedCalls::begin`.
        Edge::Watch.barrier(Side::Sleeper);
        if look() {
            self.state.store(doing::LOOKING, Ordering::Relaxed);
        }
    }

    /// The word to sleep on, while that is its value.
    pub fn asleep(&self) -> Option<(&AtomicU32, u32)> {
        (self.state.load(Ordering::Relaxed) == doing::SLEEPING).then_some((&self.state, doing::SLEEPING))
    }

    /// The word that a sleeper sleeps on.
    pub fn word(&self) -> &AtomicU32 {
        &self.state
    }

    /// Ends for good; `false` if somebody has just woken it.
    pub fn retire(&self) -> bool {
        self.change(doing::SLEEPING, doing::NOTHING)
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
