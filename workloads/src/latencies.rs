//! A histogram of durations, each step 1.6 % above the one before. It needs no list of all samples.

use std::time::Duration;

/// Number of steps from a duration to twice that duration.
const STEPS: u64 = 64;
const STEP_BITS: u32 = STEPS.ilog2();

/// Counts of operations by duration.
pub struct Latencies {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { counts: vec![0; (STEPS * 64) as usize], total: 0 }
    }
}

impl Latencies {
    #[inline]
    pub fn add(&mut self, latency: Duration) {
        self.counts[place(latency.as_nanos() as u64)] += 1;
        self.total += 1;
    }

    /// Adds the counts of another histogram.
    pub fn add_all(&mut self, other: &Latencies) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(ours, theirs)| *ours += theirs);
        self.total += other.total;
    }

    /// Returns the share of operations that took at most `limit`, within the histogram's precision.
    pub fn share_within(&self, limit: Duration) -> f64 {
        let within: u64 = self.counts[..=place(limit.as_nanos() as u64)].iter().sum();
        within as f64 / self.total.max(1) as f64
    }

    pub fn clear(&mut self) {
        *self = Latencies::default();
    }

    /// Returns the duration in nanoseconds that the fraction `share` of the operations did not
    /// exceed. `None` if there are no samples.
    pub fn within(&self, share: f64) -> Option<u64> {
        let wanted = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let reaches = |count: &u64| {
            seen += count;
            seen >= wanted
        };
        self.counts.iter().position(reaches).map(value)
    }
}

fn place(nanoseconds: u64) -> usize {
    let doubling = nanoseconds.max(STEPS).ilog2() - STEP_BITS;
    (u64::from(doubling) * STEPS + (nanoseconds >> doubling)) as usize
}

/// Returns the least duration of a step.
fn value(place: usize) -> u64 {
    let place = place as u64;
    if place < 2 * STEPS {
        return place;
    }
    let doubling = place / STEPS - 1;
    (place - doubling * STEPS) << doubling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_recorded_to_within_two_percent() {
        for nanoseconds in [0, 1, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 99_999, 1 << 40] {
            let kept = value(place(nanoseconds));
            assert!(kept <= nanoseconds && nanoseconds - kept <= nanoseconds / 60, "{nanoseconds} became {kept}");
        }
    }

    #[test]
    fn percentiles_are_counted_from_the_shortest_latency() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.within(0.5), None);
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
}
