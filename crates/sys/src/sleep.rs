//! The sleep word of a ring: waiters announce in it that they sleep, and threads with work for the
//! ring read it. All threads that wait for a ring sleep by the functions of this file. So a lost
//! wake-up has its cause here.
//!
//! # The rule
//! ```text
//! sleeper                                waker
//!   announce(kind, needed)                 publish the work
//!   (full barrier, inside announce)        (full barrier, inside wake_target)
//!   check for work                         wake_target(queued)
//!     there is enough: do not sleep          Futex: futex::wake_shared(word.futex(), u32::MAX)
//!     else: sleep in the kernel              Epoll: write the leader's eventfd
//!   retract(ticket)                          NoSleeper: no thread was asleep
//!   check for work again
//! ```
//! Each side stores its own word, executes a full barrier, and then reads the other side's word. So
//! at least one side sees the other's store ([`Edge::Sleep`]).
//!
//! # State
//! One 64-bit word, changed only by compare-and-swap. (A second word, the futex word, is the word
//! on which the futex sleepers sleep; see below.)
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0 | `asleep` | the leader has announced a sleep that no waker has claimed |
//! | 1 | `led` | a thread owns the ring's epoll set |
//! | 2–19 | `sleepers` | number of announced futex sleepers that no waker has claimed |
//! | 20–35 | `needed` | least number of queued entries that any sleeper waits for |
//! | 36–63 | `claims` | number of times that wakers have claimed the futex sleepers |
//!
//! A ring has at most one **leader**, which sleeps in epoll because it also watches files and
//! timers. It has any number of **futex sleepers**. A waker claims one of two groups: the leader,
//! or all futex sleepers at once. (Waking all of them is cheap, because several threads rarely wait
//! on one ring.) To claim a group means to remove its announcements, in the compare-and-swap that
//! decides to wake. Hence there is *one wake-up per announcement*: of two wakers, only one makes a
//! system call.
//!
//! `retract` removes an announcement that no waker has claimed:
//! - the leader's, if `asleep` is still set (a ring has one leader);
//! - a futex sleeper's, if `claims` is unchanged (a waker claims the whole group).
//!
//! If a waker has claimed the announcement, the waker leaves the work to this thread. The thread
//! must then check for work, even if a timeout or a signal ended its sleep.
//!
//! A waker may write the leader's eventfd late, after the leader woke for another reason. The late
//! write causes one needless wake-up. The leader never drains the eventfd between its announcement
//! and its sleep: it could drain the write that answers this announcement, and would sleep on.
//!
//! A waker that has claimed the futex sleepers increments the futex word before it wakes them. A
//! futex sleeper reads this word before it announces itself, and sleeps only while the word is
//! unchanged. So at the wake-up the sleeper either sleeps in the kernel or will find another value.
//!
//! The word of a ring lies in memory that forked processes share. Only threads of the process that
//! made the ring ever become leader, and only until another process uses the ring. A waker in the
//! other process could not write the leader's eventfd.
//!
//! If a process dies asleep, its announcements remain, and cause one needless wake-up. If a process
//! dies between claiming sleepers and waking them, another process wakes them by
//! [`SleepWord::wake_all_futex`].

use crate::clock::Nanoseconds;
use crate::ordering::{Edge, Side};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{Errno, futex, width};

/// How a waiter sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleeper {
    /// In futex(2), on the word [`SleepWord::futex`].
    Futex,
    /// The thread sleeps in the ring's epoll set, as the ring's leader. The ring's eventfd wakes
    /// the thread.
    Epoll,
}

/// The sleeping threads that a waker has claimed. The waker now has to wake them, and only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a claimed thread sleeps until it is woken"]
pub enum Wake {
    /// No thread sleeps, or all sleepers wait for more entries.
    NoSleeper,
    /// All futex sleepers. The waker calls [`SleepWord::wake_futex`].
    Futex,
    /// The leader. The waker writes the eventfd that is in the ring's epoll set.
    Epoll,
}

/// An announced sleep. The announcing thread passes it to [`SleepWord::retract`] after the sleep.
#[derive(Debug)]
#[must_use = "an announcement is taken back with `retract`"]
pub struct Ticket {
    kind: Sleeper,
    claims: u32,
    futex: u32,
    led: bool,
}

impl Ticket {
    /// Returns the value that [`SleepWord::futex`] had before the announcement. The thread sleeps
    /// only while the futex word has this value.
    pub fn futex_value(&self) -> u32 {
        self.futex
    }

    /// Returns whether the ring had a leader at the announcement. If not, no thread watches the
    /// ring's files and timers. This thread should then try [`SleepWord::try_lead`] instead of
    /// sleeping.
    pub fn is_led(&self) -> bool {
        self.led
    }
}

#[derive(Clone, Copy, Default)]
struct State {
    asleep: bool,
    led: bool,
    sleepers: u32,
    needed: u32,
    claims: u32,
}

const SLEEPERS_MAX: u32 = (1 << 18) - 1;
const CLAIMS_MASK: u32 = (1 << 28) - 1;
/// Largest number of queued entries that a sleeper can wait for. If a thread needs more, it is
/// woken at this number.
const NEEDED_MAX: u32 = 0xffff;

impl State {
    #[inline(always)]
    fn unpack(word: u64) -> State {
        State {
            asleep: word & 1 != 0,
            led: word & 2 != 0,
            sleepers: width::low(word >> 2) & SLEEPERS_MAX,
            needed: width::low(word >> 20) & NEEDED_MAX,
            claims: (word >> 36) as u32,
        }
    }

    #[inline(always)]
    fn pack(self) -> u64 {
        u64::from(self.asleep)
            | u64::from(self.led) << 1
            | u64::from(self.sleepers) << 2
            | u64::from(self.needed) << 20
            | u64::from(self.claims) << 36
    }

    fn has_no_sleeper(self) -> bool {
        !self.asleep && self.sleepers == 0
    }

    fn claim_futex(&mut self) -> Wake {
        self.sleepers = 0;
        self.claims = (self.claims + 1) & CLAIMS_MASK;
        Wake::Futex
    }
}

/// The sleep word of a ring; see the head of this file.
#[derive(Debug)]
#[repr(C)]
pub struct SleepWord {
    state: AtomicU64,
    futex: AtomicU32,
}

impl SleepWord {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        SleepWord { state: AtomicU64::new(0), futex: AtomicU32::new(0) }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        SleepWord { state: AtomicU64::new(0), futex: AtomicU32::new(0) }
    }

    /// Announces that this thread will sleep until `needed` entries are queued (values over 65535
    /// count as 65535). Then executes a full barrier. After this call, the caller reads the number
    /// of queued entries, and sleeps only if that number is less than `needed`.
    #[inline]
    pub fn announce(&self, kind: Sleeper, needed: u32) -> Ticket {
        let futex = self.futex.load(Ordering::Relaxed);
        let needed = needed.min(NEEDED_MAX);
        let before = self.change(|state| {
            state.needed = if state.has_no_sleeper() { needed } else { needed.min(state.needed) };
            match kind {
                Sleeper::Epoll => {
                    assert!(!state.asleep, "a ring has one leader");
                    state.asleep = true;
                }
                Sleeper::Futex => {
                    assert!(state.sleepers < SLEEPERS_MAX, "too many threads wait on one ring");
                    state.sleepers += 1;
                }
            }
        });
        Edge::Sleep.barrier_beside_rmw(Side::Sleeper);
        Ticket { kind, claims: before.claims, futex, led: before.led }
    }

    /// Removes this thread's announcement of a sleep. Returns `true` if a waker has claimed the
    /// announcement: then this thread must check for work, even if the waker did not end its sleep.
    #[inline]
    pub fn retract(&self, ticket: Ticket) -> bool {
        let stands = |state: &State| match ticket.kind {
            Sleeper::Epoll => state.asleep,
            Sleeper::Futex => state.claims == ticket.claims,
        };
        let before = self.change(|state| {
            if stands(state) {
                match ticket.kind {
                    Sleeper::Epoll => state.asleep = false,
                    Sleeper::Futex => state.sleepers -= 1,
                }
            }
        });
        !stands(&before)
    }

    /// Claims threads that have announced a sleep, so that the caller wakes them for work that it
    /// has just published. `queued` is the number of queued entries. With `u32::MAX`, sleepers are
    /// woken whatever number of entries they wait for.
    ///
    /// Claims the futex sleepers if there are any, and otherwise the leader, which also watches
    /// files. Sometimes every sleeper has to see the work, because each waits for a number of CQEs
    /// of its own. Then the caller repeats this call until it returns [`Wake::NoSleeper`].
    #[inline]
    pub fn wake_target(&self, queued: u32) -> Wake {
        Edge::Sleep.barrier(Side::Waker);
        self.claim(queued)
    }

    /// Claims the threads to wake, as [`Self::wake_target`] does, but executes no barrier on
    /// x86-64. So after the caller has published the work and before this call, it must execute a
    /// read-modify-write on any word (a push, an unlock).
    #[inline]
    pub fn wake_target_after_rmw(&self, queued: u32) -> Wake {
        Edge::Sleep.barrier_beside_rmw(Side::Waker);
        self.claim(queued)
    }

    #[inline(always)]
    fn claim(&self, queued: u32) -> Wake {
        let state = State::unpack(self.state.load(Ordering::Relaxed));
        if state.has_no_sleeper() || queued < state.needed {
            return Wake::NoSleeper;
        }
        self.claim_sleeper(queued)
    }

    #[cold]
    fn claim_sleeper(&self, queued: u32) -> Wake {
        let mut wake = Wake::NoSleeper;
        self.change(|state| {
            wake = if state.has_no_sleeper() || queued < state.needed {
                Wake::NoSleeper
            } else if state.sleepers > 0 {
                state.claim_futex()
            } else {
                state.asleep = false;
                Wake::Epoll
            }
        });
        self.release_futex(wake)
    }

    /// Increments the futex word if futex sleepers were claimed. A claimed sleeper that is not
    /// asleep yet then finds that the word has changed, and does not fall asleep.
    fn release_futex(&self, wake: Wake) -> Wake {
        if wake == Wake::Futex {
            self.futex.fetch_add(1, Ordering::Release);
        }
        wake
    }

    /// Returns whether a thread has announced a sleep that no waker has claimed.
    pub fn has_sleeper(&self) -> bool {
        !State::unpack(self.state.load(Ordering::Relaxed)).has_no_sleeper()
    }

    /// Tries to make the caller the leader: the one thread that owns the ring's epoll set, whether
    /// it sleeps or not. Returns `false` if another thread is the leader.
    pub fn try_lead(&self) -> bool {
        !self.change(|state| state.led = true).led
    }

    /// Returns whether some thread is the leader. The answer stays valid while the caller holds the
    /// lock under which a ring's leader changes.
    pub fn is_led(&self) -> bool {
        State::unpack(self.state.load(Ordering::Relaxed)).led
    }

    /// Ends the caller's time as leader. The caller has called `retract` before. If the result is
    /// [`Wake::Futex`], the caller wakes the futex sleepers, and one of them becomes leader.
    pub fn resign(&self) -> Wake {
        let mut wake = Wake::NoSleeper;
        self.change(|state| {
            assert!(state.led && !state.asleep, "only a leader that is awake resigns");
            state.led = false;
            wake = if state.sleepers > 0 { state.claim_futex() } else { Wake::NoSleeper };
        });
        self.release_futex(wake)
    }

    /// Returns the futex word. A futex sleeper sleeps on it while it has the value
    /// [`Ticket::futex_value`].
    pub fn futex(&self) -> &AtomicU32 {
        &self.futex
    }

    /// Sleeps as a futex sleeper. For usring's own threads, which no signal interrupts.
    pub fn sleep(&self, ticket: &Ticket, timeout: Option<Nanoseconds>) -> Result<(), Errno> {
        futex::wait_shared(&self.futex, ticket.futex, timeout)
    }

    /// Wakes all futex sleepers that [`Wake::Futex`] has claimed.
    pub fn wake_futex(&self) {
        futex::wake_shared(&self.futex, u32::MAX);
    }

    /// Wakes all futex sleepers. Also wakes sleepers that a process has claimed and, because it
    /// died, has not woken.
    pub fn wake_all_futex(&self) {
        if self.wake_target(u32::MAX) == Wake::NoSleeper {
            self.futex.fetch_add(1, Ordering::Release);
        }
        self.wake_futex();
    }

    /// Applies a change and returns the previous state.
    #[inline]
    fn change(&self, mut change: impl FnMut(&mut State)) -> State {
        let mut word = self.state.load(Ordering::Relaxed);
        loop {
            let before = State::unpack(word);
            let mut after = before;
            change(&mut after);
            // Every change is an acquire and a release. So a thread whose announcement was claimed
            // sees the work that the waker published before.
            match self.state.compare_exchange_weak(word, after.pack(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return before,
                Err(now) => word = now,
            }
        }
    }
}

impl Default for SleepWord {
    fn default() -> Self {
        SleepWord::new()
    }
}
