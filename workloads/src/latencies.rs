//! A histogram of durations, with a precision of three digits. It does not store the samples.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Longest duration that the histogram distinguishes, in nanoseconds. A longer duration counts as
/// this one.
const MOST_LATENCY_NS: u64 = 100_000_000_000;

/// Counts of operations by duration.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(
            Histogram::new_with_bounds(1, MOST_LATENCY_NS, 3)
                .expect("1 is at most half of MOST_LATENCY_NS, and 3 at most 5"),
        )
    }
}

impl Latencies {
    #[inline]
    pub fn add(&mut self, latency: Duration) {
        self.0.saturating_record(latency.as_nanos() as u64);
    }

    /// Adds the counts of another histogram.
    pub fn add_all(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// Returns the share of operations that took at most `limit`, within the histogram's precision.
    pub fn share_within(&self, limit: Duration) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.quantile_below(limit.as_nanos() as u64) }
    }

    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Returns the duration in nanoseconds that is the quantile `share`: this share of the
    /// operations took at most that long. `None` if there are no samples.
    pub fn within(&self, share: f64) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_counted_from_the_shortest_latency() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.within(0.5), None);
        assert_eq!(latencies.share_within(Duration::from_secs(1)), 0.0);
        for nanoseconds in 1..=100 {
            latencies.add(Duration::from_nanos(nanoseconds));
        }
        assert_eq!(latencies.within(0.5), Some(50));
        assert_eq!(latencies.within(0.99), Some(99));
        assert_eq!(latencies.within(1.0), Some(100));
        assert_eq!(latencies.share_within(Duration::from_nanos(30)), 0.3);
        let mut both = Latencies::default();
        both.add(Duration::from_nanos(1000));
        both.add_all(&latencies);
        assert_eq!(both.share_within(Duration::from_nanos(100)), 100.0 / 101.0);
    }

    #[test]
    fn a_latency_beyond_the_bounds_counts_as_the_longest() {
        let mut latencies = Latencies::default();
        latencies.add(Duration::from_secs(1000));
        assert!(latencies.within(0.5).is_some_and(|value| value >= MOST_LATENCY_NS / 1000 * 999));
    }
}
