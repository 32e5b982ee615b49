//! The metrics: figures computed from a workload's sample.

use serde::Deserialize;

/// Bytes of a block. All workloads with blocks use this size.
const BLOCK: f64 = 4096.0;

/// The figures that a workload prints.
#[derive(Clone, Debug, Deserialize)]
pub struct Sample {
    operations: u64,
    /// Elapsed time in nanoseconds.
    nanoseconds: u64,
    /// Processor time of the measured process and of its back end, in nanoseconds.
    processor: Option<u64>,
    /// Processor time of the thread that submits, in nanoseconds.
    thread: Option<u64>,
    /// Latencies in nanoseconds: the 50th, 95th and 99th percentile.
    p50: Option<u64>,
    p95: Option<u64>,
    p99: Option<u64>,
    /// The fractions of latencies up to 200, 300 and 400 µs.
    within: Option<[f64; 3]>,
    /// How many times a thread of the measured process slept and had to be woken.
    wakes: Option<u64>,
    completions: Option<u64>,
}

/// A figure that a table shows in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    Time,
    /// Processor time per operation, over all threads of the measured process and of its back end.
    ProcessorTime,
    Rate,
    Bandwidth,
    Median,
    /// The latency's 95th percentile.
    Most,
    Tail,
    /// Processor time in percent of the elapsed time. Above 100 % if several threads run.
    Processor,
    /// The submitting thread's processor time in percent of the elapsed time.
    Thread,
    /// Percentages of latencies up to 200, 300 and 400 µs.
    Within200,
    Within300,
    Within400,
    Wakes,
}

impl Metric {
    const ALL: [Metric; 13] = [
        Metric::Time,
        Metric::ProcessorTime,
        Metric::Rate,
        Metric::Bandwidth,
        Metric::Median,
        Metric::Most,
        Metric::Tail,
        Metric::Processor,
        Metric::Thread,
        Metric::Within200,
        Metric::Within300,
        Metric::Within400,
        Metric::Wakes,
    ];

    /// Returns the metric with this name.
    pub fn named(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Returns whether the smaller of two values is the better one.
    pub fn less_is_better(self) -> bool {
        self.is_time() || matches!(self, Metric::Processor | Metric::Thread | Metric::Wakes)
    }

    pub fn name(self) -> &'static str {
        match self {
            Metric::Time => "time per operation",
            Metric::ProcessorTime => "processor time per operation",
            Metric::Rate => "operations per second",
            Metric::Bandwidth => "bandwidth",
            Metric::Median => "latency, median",
            Metric::Most => "latency, p95",
            Metric::Tail => "latency, p99",
            Metric::Processor => "processor",
            Metric::Thread => "submitting thread",
            Metric::Within200 => "up to 0.2 ms",
            Metric::Within300 => "up to 0.3 ms",
            Metric::Within400 => "up to 0.4 ms",
            Metric::Wakes => "wakes per completion",
        }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Metric::Time | Metric::ProcessorTime | Metric::Median | Metric::Most | Metric::Tail => "ns",
            Metric::Rate => "1/s",
            Metric::Bandwidth => "MB/s",
            Metric::Processor | Metric::Thread | Metric::Within200 | Metric::Within300 | Metric::Within400 => "%",
            Metric::Wakes => "1",
        }
    }

    /// Returns whether the metric is a time, so that less is better.
    pub fn is_time(self) -> bool {
        self.unit() == "ns"
    }

    pub fn of(self, sample: &Sample) -> Option<f64> {
        let operations = sample.operations.max(1) as f64;
        let nanoseconds = sample.nanoseconds.max(1) as f64;
        let processor = || sample.processor.map(|time| time as f64);
        let within = |limit: usize| sample.within.map(|shares| shares[limit] * 100.0);
        match self {
            Metric::Time => Some(nanoseconds / operations),
            Metric::ProcessorTime => processor().map(|time| time / operations),
            Metric::Rate => Some(operations / nanoseconds * 1e9),
            Metric::Bandwidth => Some(operations * BLOCK / nanoseconds * 1e3),
            Metric::Median => sample.p50.map(|latency| latency as f64),
            Metric::Most => sample.p95.map(|latency| latency as f64),
            Metric::Tail => sample.p99.map(|latency| latency as f64),
            Metric::Thread => Some(sample.thread? as f64 / nanoseconds * 100.0),
            Metric::Processor => processor().map(|time| time / nanoseconds * 100.0),
            Metric::Within200 => within(0),
            Metric::Within300 => within(1),
            Metric::Within400 => within(2),
            Metric::Wakes => Some(sample.wakes? as f64 / sample.completions?.max(1) as f64),
        }
    }

    /// Returns the value as text with its unit, as a table shows it.
    pub fn show(self, value: f64) -> String {
        match self {
            _ if self.is_time() && value >= 10_000.0 => format!("{:.1} µs", value / 1000.0),
            _ if self.is_time() => format!("{value:.1} ns"),
            Metric::Rate => format!("{:.1} k/s", value / 1000.0),
            Metric::Wakes => format!("{value:.3}"),
            Metric::Within200 | Metric::Within300 | Metric::Within400 => format!("{value:.2} %"),
            _ => format!("{value:.1} {}", self.unit()),
        }
    }

    /// Returns two values as a range. Names the unit once if both values are shown in one unit.
    pub fn range(self, low: f64, high: f64) -> String {
        let (low, high) = (self.show(low), self.show(high));
        match (low.rsplit_once(' '), high.rsplit_once(' ')) {
            (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} – {high}"),
            _ => format!("{low} – {high}"),
        }
    }

    /// Returns the quartiles of a median as a range. The table shows the median, with its unit,
    /// beside the range. So the range has no unit if all three values have one unit.
    pub fn quartiles(self, median: f64, [low, high]: [f64; 2]) -> String {
        let [unit, of_low, of_high] = [median, low, high].map(|value| {
            let shown = self.show(value);
            shown.rsplit_once(' ').map_or(String::new(), |(_, unit)| unit.to_owned())
        });
        let range = self.range(low, high);
        match range.strip_suffix(&format!(" {unit}")) {
            Some(bare) if of_low == unit && of_high == unit => bare.to_owned(),
            _ => range,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_computed_from_the_sample() {
        let text =
            r#"{"operations": 2000, "nanoseconds": 4000000, "processor": 1000000, "thread": 400000, "p50": 1500}"#;
        let sample: Sample = serde_json::from_str(text).unwrap();
        assert_eq!(Metric::Time.of(&sample), Some(2000.0));
        assert_eq!(Metric::ProcessorTime.of(&sample), Some(500.0));
        assert_eq!(Metric::Rate.of(&sample), Some(500_000.0));
        assert_eq!(Metric::Bandwidth.of(&sample), Some(2048.0));
        assert_eq!(Metric::Processor.of(&sample), Some(25.0));
        assert_eq!(Metric::Thread.of(&sample), Some(10.0));
        assert_eq!(Metric::Median.of(&sample), Some(1500.0));
        assert_eq!(Metric::Tail.of(&sample), None);
        let text = r#"{"operations": 1, "nanoseconds": 1, "within": [0.5, 0.75, 1.0], "wakes": 3, "completions": 12}"#;
        let sample: Sample = serde_json::from_str(text).unwrap();
        assert_eq!(Metric::Within300.of(&sample), Some(75.0));
        assert_eq!(Metric::Wakes.of(&sample), Some(0.25));
    }

    #[test]
    fn a_range_has_the_unit_once_unless_the_units_differ() {
        assert_eq!(Metric::Time.range(10.0, 20.5), "10.0 – 20.5 ns");
        assert_eq!(Metric::Time.range(9_999.0, 10_000.0), "9999.0 ns – 10.0 µs");
        assert_eq!(Metric::Wakes.range(0.25, 0.5), "0.250 – 0.500");
        assert_eq!(Metric::Time.quartiles(15.0, [10.0, 20.5]), "10.0 – 20.5");
        assert_eq!(Metric::Time.quartiles(9_999.0, [10.0, 10_000.0]), "10.0 ns – 10.0 µs");
        assert_eq!(Metric::Time.quartiles(9_999.0, [10_000.0, 20_000.0]), "10.0 – 20.0 µs");
        assert_eq!(Metric::Wakes.quartiles(0.3, [0.25, 0.5]), "0.250 – 0.500");
    }

    #[test]
    fn every_metric_is_found_by_its_name() {
        assert!(Metric::ALL.iter().all(|metric| Metric::named(metric.name()) == Some(*metric)));
        assert_eq!(Metric::named("another"), None);
    }
}
