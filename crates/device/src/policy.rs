//! How threads wait for a device's completions. The user can change the policy while the program
//! runs. The policies that poll are the modes of blk-mq's `io_poll_delay` (−1: classic, 0: adaptive
//! hybrid, else the microseconds of a fixed hybrid).

use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::clock::Nanoseconds;

/// How a thread waits until a completion arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollPolicy {
    /// Sleeps until the device interrupts. The device is not polled.
    Interrupt,
    /// Polls without a pause.
    #[default]
    Classic,
    /// Sleeps for a part of the expected latency of a request, then polls.
    HybridAdaptive,
    /// Sleeps until this time has passed since the submission of the oldest request in flight, then
    /// polls.
    HybridFixed(Nanoseconds),
}

impl PollPolicy {
    /// Parses `interrupt`, `classic`, `hybrid` or `hybrid:SPAN`. `None` for any other text.
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

    /// Returns the value that a [`PolicyWord`] stores.
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

/// A device's policy: a word that exists as long as the process. It may lie in memory that all
/// processes of a `usring run` share. `usring ctl` changes the word, and every waiting thread reads
/// it. No other data depends on the word, so relaxed ordering suffices.
#[derive(Clone, Copy, Debug)]
pub struct PolicyWord(&'static AtomicU64);

const INTERRUPT: u64 = u64::MAX;
const CLASSIC: u64 = u64::MAX - 1;

impl PolicyWord {
    /// Uses `word` as the word of a policy. Every value of the word is a policy.
    pub const fn at(word: &'static AtomicU64) -> Self {
        PolicyWord(word)
    }

    /// Makes a policy in memory that is never freed.
    pub fn leaked(policy: PollPolicy) -> Self {
        PolicyWord(Box::leak(Box::new(AtomicU64::new(policy.to_word()))))
    }

    #[inline]
    pub fn get(self) -> PollPolicy {
        PollPolicy::from_word(self.0.load(Ordering::Relaxed))
    }

    /// Returns whether the policy is one of the two hybrid policies.
    #[inline]
    pub fn is_hybrid(self) -> bool {
        self.0.load(Ordering::Relaxed) < CLASSIC
    }

    pub fn set(self, policy: PollPolicy) {
        self.0.store(policy.to_word(), Ordering::Relaxed);
    }
}
