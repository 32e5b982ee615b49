//! How long a request will take, judged by those before it.
//!
//! Three estimates, of three parents:
//!
//! | | whose | learns | sleep | who uses it |
//! |---|---|---|---|---|
//! | [`HalfMean`] | blk-mq's adaptive hybrid polling (until Linux 6.3) | mean of each 100 ms, by direction and size | half the mean | calls that wait for one request |
//! | [`RingEstimate`] | io_uring's `HYBRID_IOPOLL` (from 6.13) | the least time ever | half of it | rings that were set up with it |
//! | [`Expectations`] | ours | mean and spread of the last requests, by direction and size | what is left, without the spread and the timer's overshoot | rings on a device whose policy is `hybrid` |
//!
//! blk-mq's sleeps once for each request: with 32 of them in flight it came down
//! to 167 requests a second, which is why ours sleeps once for each *wait*, on the
//! oldest request. io_uring's can only fall: one completion found early, and it
//! polls classically for good; ours rises again.

use crate::request::Operation;
use usring_sys::clock::Nanoseconds;
use usring_sys::ticks::Ticks;

/// Requests that are expected to take equally long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket(u8);

/// Of each direction: 512 bytes, 1 KiB, …, 64 KiB and more.
const SIZES: u32 = 8;
/// Those of reads and writes, as blk-mq has them.
const DATA: usize = 2 * SIZES as usize;
/// And one for each operation without data.
const BUCKETS: usize = DATA + 3;

impl Bucket {
    #[inline]
    pub fn of(operation: Operation, length: u64) -> Bucket {
        let size = (length | 512).ilog2().saturating_sub(9).min(SIZES - 1) as u8;
        Bucket(match operation {
            Operation::Read => 2 * size,
            Operation::Write => 2 * size + 1,
            Operation::Flush => DATA as u8,
            Operation::Discard => DATA as u8 + 1,
            Operation::WriteZeroes => DATA as u8 + 2,
        })
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// blk-mq's estimate.
#[derive(Debug, Default)]
pub struct HalfMean {
    /// Means of the window before this one; 0 where nothing was completed yet.
    means: [Nanoseconds; DATA],
    sums: [(u32, Nanoseconds); DATA],
    window_end: Option<Ticks>,
}

impl HalfMean {
    const WINDOW: Nanoseconds = 100_000_000;

    /// A request has been found completed, this long after its submission.
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

    /// How long to sleep for a request that has just been submitted; 0: not at all.
    pub fn sleep(&self, bucket: Bucket) -> Nanoseconds {
        self.means.get(bucket.index()).map_or(0, |mean| mean.div_ceil(2))
    }
}

/// A ring's one estimate, as `IORING_SETUP_HYBRID_IOPOLL` has it: each request
/// is slept for once, when it is polled for the first time.
#[derive(Debug)]
pub struct RingEstimate(Nanoseconds);

/// Nothing has been completed yet.
const UNKNOWN: Nanoseconds = i64::MAX as u64;

impl RingEstimate {
    pub const fn new() -> Self {
        RingEstimate(UNKNOWN)
    }

    /// How long to sleep before a request's first poll; 0: not at all.
    pub fn sleep(&self) -> Nanoseconds {
        if self.0 == UNKNOWN { 0 } else { self.0 / 2 }
    }

    /// A request has been polled, this long after its issue, of which `slept`
    /// was slept here. The estimate never rises.
    pub fn record(&mut self, since_issue: Nanoseconds, slept: Nanoseconds) {
        self.0 = self.0.min(since_issue.saturating_sub(slept));
    }
}

impl Default for RingEstimate {
    fn default() -> Self {
        Self::new()
    }
}

/// Ours.
#[derive(Debug, Default)]
pub struct Expectations {
    of: [Expectation; BUCKETS],
    /// In which this look has found something, a bit each.
    found: u32,
}

/// Mean and mean deviation, the latest eight or so requests weighing most
/// (RFC 6298 has the same filter for round trips).
#[derive(Clone, Copy, Debug, Default)]
struct Expectation {
    /// 0: nothing was completed yet.
    mean: Nanoseconds,
    spread: Nanoseconds,
    /// More than this is taken for this, in this look.
    most: Nanoseconds,
}

impl Expectations {
    /// Somebody looks. What one look finds late it finds late for one reason: if that
    /// was a busy machine, it says as little of 32 requests as of one.
    #[inline]
    pub fn begin_look(&mut self) {
        self.found = 0;
    }

    /// A request has been found completed, `latency` after its submission. Of
    /// that, the last `asleep` nobody looked: it was completed at some time
    /// during it, and half of it is taken off. A sleep that was too long so
    /// makes the next one shorter, instead of proving itself right.
    #[inline]
    pub fn record(&mut self, bucket: Bucket, latency: Nanoseconds, asleep: Nanoseconds) {
        let bit = 1 << bucket.0;
        let is_first = self.found & bit == 0;
        self.found |= bit;
        self.of[bucket.index()].record(latency.saturating_sub(asleep / 2).max(1), is_first);
    }

    /// How long to sleep for a request of this age; 0: not at all. `alone`:
    /// no other is in flight. `overshoot`: the timer's, which is also about
    /// what a sleep costs; shorter sleeps do not pay.
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

    /// The age at which a completion is worth looking for. With more than one
    /// request in flight every moment too late is one in which the device has
    /// less to do. A single one costs itself alone, so where nothing is certain
    /// blk-mq's half is taken.
    fn earliest(&self, alone: bool) -> Nanoseconds {
        let certain = self.mean.saturating_sub(2 * self.spread);
        if alone { certain.max(self.mean / 2) } else { certain }
    }
}
