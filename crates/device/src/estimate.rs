//! Estimates of a request's latency, from the latencies of completed requests.
//!
//! There are three estimates:
//!
//! | estimate | origin | learns | sleep | used by |
//! |---|---|---|---|---|
//! | [`HalfMean`] | blk-mq's adaptive hybrid polling (until Linux 6.3) | mean of each 100 ms, by direction and size | half the mean | blocking calls, which wait for one request |
//! | [`RingEstimate`] | io_uring's `HYBRID_IOPOLL` (from 6.13) | minimum since setup | half the minimum | rings that were set up with it |
//! | [`Expectations`] | usring | mean and spread of the last requests, by direction and size | remaining time, minus the spread and the timer's overshoot | rings on a device whose policy is `hybrid` |
//!
//! - blk-mq sleeps once per request. With 32 requests in flight this gave 167 requests per second.
//!   So [`Expectations`] sleeps once per *wait*, for the oldest request.
//! - io_uring's estimate can only fall. After one completion that is found early, the ring polls
//!   without sleep for good. [`Expectations`] can rise again.

use crate::request::Operation;
use usring_sys::clock::Nanoseconds;
use usring_sys::ticks::Ticks;

/// A class of requests whose latencies are about equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket(u8);

/// Number of size classes per direction: 512 bytes, 1 KiB, …, 64 KiB and more.
const SIZES: u32 = 8;
/// Number of buckets (classes by direction and size) of reads and writes, as in blk-mq.
const DATA: u8 = 16;
const _: () = assert!(DATA as u32 == 2 * SIZES);
/// Number of all buckets: those of reads and writes, and one for each operation without data.
const BUCKETS: usize = DATA as usize + 3;

impl Bucket {
    #[inline]
    pub fn of(operation: Operation, length: u64) -> Bucket {
        let size = (length | 512).ilog2().saturating_sub(9).min(SIZES - 1) as u8;
        Bucket(match operation {
            Operation::Read => 2 * size,
            Operation::Write => 2 * size + 1,
            Operation::Flush => DATA,
            Operation::Discard => DATA + 1,
            Operation::WriteZeroes => DATA + 2,
        })
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// blk-mq's estimate: half of a bucket's mean latency. A bucket contains the requests of one
/// direction and about one size.
#[derive(Debug, Default)]
pub struct HalfMean {
    /// The mean latency of each bucket (direction and size). It is measured in windows of 100 ms.
    /// It stays until the end of the next window in which a request of the bucket completes. 0
    /// before the first such window has ended.
    means: [Nanoseconds; DATA as usize],
    sums: [(u32, Nanoseconds); DATA as usize],
    window_end: Option<Ticks>,
}

impl HalfMean {
    const WINDOW: Nanoseconds = 100_000_000;

    /// Records a completed request; `latency` is the time since its submission.
    pub fn record(&mut self, bucket: Bucket, latency: Nanoseconds, now: Ticks) {
        let end = *self.window_end.get_or_insert_with(|| now.after(Self::WINDOW));
        if now >= end {
            self.publish();
            self.window_end = Some(now.after(Self::WINDOW));
        }
        if let Some((count, sum)) = self.sums.get_mut(bucket.index()) {
            *count += 1;
            *sum += latency;
        }
    }

    fn publish(&mut self) {
        for (mean, sum) in self.means.iter_mut().zip(&mut self.sums) {
            let (count, total) = core::mem::take(sum);
            if count != 0 {
                *mean = total / Nanoseconds::from(count);
            }
        }
    }

    /// Returns how long to sleep for a request that has just been submitted, in nanoseconds; 0 for
    /// no sleep.
    pub fn sleep(&self, bucket: Bucket) -> Nanoseconds {
        self.means.get(bucket.index()).map_or(0, |mean| mean.div_ceil(2))
    }
}

/// io_uring's estimate, with `IORING_SETUP_HYBRID_IOPOLL`: the lowest latency of a ring's requests
/// so far. The ring sleeps once for each request, before its first poll.
#[derive(Debug)]
pub struct RingEstimate(Nanoseconds);

/// Value of [`RingEstimate`] before a request has completed.
const UNKNOWN: Nanoseconds = i64::MAX as u64;

impl RingEstimate {
    pub const fn new() -> Self {
        RingEstimate(UNKNOWN)
    }

    /// Returns how long to sleep before a request's first poll, in nanoseconds; 0 for no sleep.
    pub fn sleep(&self) -> Nanoseconds {
        if self.0 == UNKNOWN { 0 } else { self.0 / 2 }
    }

    /// Records a completed request. `since_issue`: time since its issue. `slept`: how much of that
    /// time the ring slept for the request. The estimate never rises.
    pub fn record(&mut self, since_issue: Nanoseconds, slept: Nanoseconds) {
        self.0 = self.0.min(since_issue.saturating_sub(slept));
    }
}

impl Default for RingEstimate {
    fn default() -> Self {
        Self::new()
    }
}

/// usring's estimate, for each bucket.
#[derive(Debug, Default)]
pub struct Expectations {
    of: [Expectation; BUCKETS],
    /// One bit for each bucket (a class of requests), set if the current poll has found a
    /// completion of that bucket.
    found: u32,
}

/// Mean latency and mean deviation of a bucket. New latencies enter by a filter in which about the
/// last eight requests have the most weight (RFC 6298 filters round-trip times in this way).
#[derive(Clone, Copy, Debug, Default)]
struct Expectation {
    /// Mean latency; 0 if no request of the bucket has completed yet.
    mean: Nanoseconds,
    spread: Nanoseconds,
    /// Limit of the latencies that the current poll records. A longer latency counts as this value.
    most: Nanoseconds,
}

impl Expectations {
    /// Begins a poll. The completions of one poll may all be late for one reason, such as a busy
    /// machine. So each latency counts at most as four times the mean before the poll, and one poll
    /// raises the mean to at most four times its value.
    #[inline]
    pub fn begin_poll(&mut self) {
        self.found = 0;
    }

    /// Records a request that completed `latency` after its submission. During the last `asleep` of
    /// this time the channel was not polled, so the request completed at an unknown moment of that
    /// sleep. So half of `asleep` is subtracted. After a sleep that was too long, the estimate then
    /// falls, and the next sleep is shorter.
    #[inline]
    pub fn record(&mut self, bucket: Bucket, latency: Nanoseconds, asleep: Nanoseconds) {
        let bit = 1 << bucket.0;
        let is_first = self.found & bit == 0;
        self.found |= bit;
        self.of[bucket.index()].record(latency.saturating_sub(asleep / 2).max(1), is_first);
    }

    /// Returns how long to sleep for a request of this age, in nanoseconds; 0 for no sleep.
    /// `alone`: no other request is in flight. `overshoot`: how much longer than requested a sleep
    /// takes. A sleep also costs about that much, so a sleep shorter than `overshoot` does not pay.
    #[inline]
    pub fn sleep(&self, bucket: Bucket, age: Nanoseconds, alone: bool, overshoot: Nanoseconds) -> Nanoseconds {
        let sleep = self.of[bucket.index()].earliest(alone).saturating_sub(age).saturating_sub(overshoot);
        if sleep > overshoot { sleep } else { 0 }
    }
}

impl Expectation {
    fn record(&mut self, latency: Nanoseconds, is_first: bool) {
        if self.mean == 0 {
            *self = Expectation { mean: latency, spread: latency / 2, most: 4 * latency };
            return;
        }
        if is_first {
            self.most = 4 * self.mean;
        }
        let latency = latency.min(self.most);
        let deviation = latency.abs_diff(self.mean);
        self.spread = (3 * self.spread + deviation).div_ceil(4);
        self.mean = (7 * self.mean + latency).div_ceil(8);
    }

    /// Returns the age of the oldest request at which to start polling: the mean minus twice the
    /// spread. If polling starts late, completed requests wait, and meanwhile the device has fewer
    /// requests in flight. If one request is in flight alone, only this request is delayed. The
    /// result is then at least half of the mean, as in blk-mq.
    fn earliest(&self, alone: bool) -> Nanoseconds {
        let certain = self.mean.saturating_sub(2 * self.spread);
        if alone { certain.max(self.mean / 2) } else { certain }
    }
}
