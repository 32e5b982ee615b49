//! How completions are waited for, per device, changeable while it runs (the
//! words are blk-mq's `io_poll_delay`: −1 classic, 0 adaptive, else µs).

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;

/// What a waiter does until a completion is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollPolicy {
    /// Sleeps until the device tells; the device does not poll.
    Interrupt,
    /// Spins.
    #[default]
    Classic,
    /// Sleeps for half of what the wait is expected to take, then spins.
    HybridAdaptive,
    /// Sleeps this long, then spins.
    HybridFixed(Nanoseconds),
}

impl PollPolicy {
    /// Reads `interrupt`, `classic`, `hybrid` or `hybrid:SPAN`; `None` if it is none.
    pub fn parse(text: &str) -> Option<PollPolicy> {
        match text {
            "interrupt" => Some(PollPolicy::Interrupt),
            "classic" => Some(PollPolicy::Classic),
            "hybrid" => Some(PollPolicy::HybridAdaptive),
            _ => match crate::span::parse(text.strip_prefix("hybrid:")?)? {
                0 => None,
                span => Some(PollPolicy::HybridFixed(span)),
            },
        }
    }

    /// As a [`PolicyWord`] holds it.
    pub const fn to_word(self) -> u64 {
        match self {
            PollPolicy::Interrupt => INTERRUPT,
            PollPolicy::Classic => CLASSIC,
            PollPolicy::HybridAdaptive => 0,
            PollPolicy::HybridFixed(span) => span,
        }
    }

    pub const fn from_word(word: u64) -> PollPolicy {
        match word {
            INTERRUPT => PollPolicy::Interrupt,
            CLASSIC => PollPolicy::Classic,
            0 => PollPolicy::HybridAdaptive,
            span => PollPolicy::HybridFixed(span),
        }
    }

    pub fn polls(self) -> bool {
        self != PollPolicy::Interrupt
    }
}

impl fmt::Display for PollPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PollPolicy::Interrupt => f.write_str("interrupt"),
            PollPolicy::Classic => f.write_str("classic"),
            PollPolicy::HybridAdaptive => f.write_str("hybrid"),
            PollPolicy::HybridFixed(span) if span % 1000 == 0 => write!(f, "hybrid:{}us", span / 1000),
            PollPolicy::HybridFixed(span) => write!(f, "hybrid:{span}ns"),
        }
    }
}

/// A device's policy, where `usring ctl` changes it and every waiter reads it:
/// a word of memory that all its processes share. Alone, so relaxed.
#[derive(Debug)]
#[repr(transparent)]
pub struct PolicyWord(AtomicU64);

const INTERRUPT: u64 = u64::MAX;
const CLASSIC: u64 = u64::MAX - 1;

impl PolicyWord {
    pub const fn new(policy: PollPolicy) -> Self {
        PolicyWord(AtomicU64::new(policy.to_word()))
    }

    /// One in memory that the processes of a run share.
    pub fn in_shared_memory(word: &'static AtomicU64) -> &'static PolicyWord {
        // SAFETY: a `PolicyWord` is that word and nothing else
        // (`repr(transparent)`), and any value of it is a policy.
        unsafe { &*core::ptr::from_ref(word).cast::<PolicyWord>() }
    }

    #[inline]
    pub fn get(&self) -> PollPolicy {
        PollPolicy::from_word(self.0.load(Ordering::Relaxed))
    }

    /// Whether it is one of the two hybrid ones.
    #[inline]
    pub fn is_hybrid(&self) -> bool {
        self.0.load(Ordering::Relaxed) < CLASSIC
    }

    pub fn set(&self, policy: PollPolicy) {
        self.0.store(policy.to_word(), Ordering::Relaxed);
    }
}
