//! Axes of plots: round numbers for the marks of an axis, and their text.

use super::super::metric::Metric;

/// Returns a distance between the marks of an axis from 0 to `most`, so that the axis has about
/// four marks. The distance is 1, 2 or 5 times a power of ten.
pub fn step(most: f64) -> f64 {
    let rough = (most / 4.0).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digit| digit * power >= rough * 0.999);
    digit.unwrap_or(10.0) * power
}

/// Returns a value with three digits and its unit, as an axis shows it.
pub fn short(metric: Metric, value: f64) -> String {
    let units: &[&str] = match metric.unit() {
        "ns" => &["ns", "µs", "ms", "s"],
        "1/s" => &["/s", "k/s", "M/s", "G/s"],
        "1" => &[""],
        "MB/s" => &["MB/s", "GB/s"],
        _ => &["%"],
    };
    let (mut value, mut unit) = (value, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    let number = format!("{value:.digits$}");
    let number = if digits > 0 { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number} {}", units[unit]).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers() {
        assert!((step(100.0) - 50.0).abs() < 1e-9);
        assert!((step(76.0) - 20.0).abs() < 1e-9);
        assert!((step(4.0) - 1.0).abs() < 1e-9);
        assert!((step(0.9) - 0.5).abs() < 1e-9);
        assert!(step(0.0) > 0.0);
    }

    #[test]
    fn values_have_three_digits_and_a_unit() {
        assert_eq!(short(Metric::Time, 0.0), "0 ns");
        assert_eq!(short(Metric::Time, 12_340.0), "12.3 µs");
        assert_eq!(short(Metric::Rate, 2_000_000.0), "2 M/s");
        assert_eq!(short(Metric::Rate, 150.0), "150 /s");
        assert_eq!(short(Metric::Wakes, 0.25), "0.25");
        assert_eq!(short(Metric::Processor, 150.0), "150 %");
    }
}
