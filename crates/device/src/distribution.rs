//! Distributions of time spans: constant or random.

use crate::random::Random;
use crate::span;
use core::fmt;
use usring_sys::clock::Nanoseconds;
use usring_sys::ticks::Ticks;

/// A distribution of time spans. The parameters are nanoseconds as parsed, and ticks after
/// [`Distribution::in_ticks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    Constant(u64),
    /// Spans from `from` to `to`, both included.
    Uniform {
        from: u64,
        to: u64,
    },
    Exponential {
        mean: u64,
    },
    /// A negative span becomes 0.
    Normal {
        mean: u64,
        deviation: u64,
    },
}

impl Distribution {
    pub const NOTHING: Distribution = Distribution::Constant(0);

    /// Parses `10us`, `uniform(5us,20us)`, `exponential(10us)` or `normal(10us,2us)`. `None` for
    /// any other text.
    pub fn parse(text: &str) -> Option<Distribution> {
        let Some((name, parameters)) = text.split_once('(') else {
            return span::parse(text).map(Distribution::Constant);
        };
        let parameters = parameters.strip_suffix(')')?;
        let pair = || {
            let (one, other) = parameters.split_once(',')?;
            Some((span::parse(one)?, span::parse(other)?))
        };
        match name {
            "uniform" => pair().filter(|(from, to)| from <= to).map(|(from, to)| Distribution::Uniform { from, to }),
            "exponential" => span::parse(parameters).map(|mean| Distribution::Exponential { mean }),
            "normal" => pair().map(|(mean, deviation)| Distribution::Normal { mean, deviation }),
            _ => None,
        }
    }

    /// Converts the parameters from nanoseconds to ticks, so that drawing a time span needs no
    /// conversion. The caller has called [`usring_sys::ticks::calibrate`] before.
    pub fn in_ticks(self) -> Distribution {
        let ticks = |span: Nanoseconds| Ticks(0).after(span).0;
        match self {
            Distribution::Constant(span) => Distribution::Constant(ticks(span)),
            Distribution::Uniform { from, to } => Distribution::Uniform { from: ticks(from), to: ticks(to) },
            Distribution::Exponential { mean } => Distribution::Exponential { mean: ticks(mean) },
            Distribution::Normal { mean, deviation } => {
                Distribution::Normal { mean: ticks(mean), deviation: ticks(deviation) }
            }
        }
    }

    /// Draws a random span, in the unit of the parameters.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float becomes the nearest span: 0 for a negative one, the longest for a longer one"
    )]
    pub fn draw(self, random: &mut Random) -> u64 {
        match self {
            Distribution::Constant(span) => span,
            Distribution::Uniform { from, to } => from + random.below((to - from).saturating_add(1)),
            Distribution::Exponential { mean } => (mean as f64 * minus_logarithm(random.draw())) as u64,
            Distribution::Normal { mean, deviation } => {
                (mean as f64 + deviation as f64 * standard_normal(random)) as u64
            }
        }
    }
}

/// Returns −ln(x / 2⁶⁴). For a uniform `x` the result is exponentially distributed with mean 1. The
/// lowest bit of `x` counts as set, because 0 has no logarithm.
///
/// The core library has no logarithm. So the function splits the number into a power of two, which
/// it counts from the leading zeros, and a factor from 1 to 2. A series for the inverse hyperbolic
/// tangent gives the factor's logarithm. The first omitted term of the series is below 10⁻⁶.
fn minus_logarithm(x: u64) -> f64 {
    let x = x | 1;
    let zeros = x.leading_zeros();
    // Lies in the range 1 to 2.
    let mantissa = (x << zeros) as f64 / (1u64 << 63) as f64;
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = 1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0 + square / 9.0)));
    let rest = core::f64::consts::LN_2 * f64::from(zeros + 1) - 2.0 * s * series;
    if rest > 0.0 { rest } else { 0.0 }
}

/// Returns a nearly normal number with mean 0 and variance 1: the sum of twelve uniform numbers,
/// minus its mean of 6 (Irwin and Hall). This needs neither a logarithm nor a root. The result
/// never exceeds six deviations, which suffices for a device's latency.
fn standard_normal(random: &mut Random) -> f64 {
    let mut sum = 0u64;
    for _ in 0..3 {
        let four = random.draw();
        sum += (four & 0xffff) + (four >> 16 & 0xffff) + (four >> 32 & 0xffff) + (four >> 48);
    }
    // The twelve numbers are integers below 65,536, whose mean is half a unit too small. So half a
    // unit is added for each number, 6 in all.
    (sum as f64 + 6.0) / 65_536.0 - 6.0
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Span(Nanoseconds);
        impl fmt::Display for Span {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                span::write(f, self.0)
            }
        }
        match *self {
            Distribution::Constant(span) => write!(f, "{}", Span(span)),
            Distribution::Uniform { from, to } => write!(f, "uniform({},{})", Span(from), Span(to)),
            Distribution::Exponential { mean } => write!(f, "exponential({})", Span(mean)),
            Distribution::Normal { mean, deviation } => write!(f, "normal({},{})", Span(mean), Span(deviation)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 100_000;

    fn draws(text: &str) -> Vec<u64> {
        let distribution = Distribution::parse(text).unwrap();
        let mut random = Random::new(42);
        (0..DRAWS).map(|_| distribution.draw(&mut random)).collect()
    }

    fn mean(spans: &[u64]) -> f64 {
        spans.iter().sum::<u64>() as f64 / spans.len() as f64
    }

    fn deviation(spans: &[u64]) -> f64 {
        let middle = mean(spans);
        (spans.iter().map(|span| (*span as f64 - middle).powi(2)).sum::<f64>() / spans.len() as f64).sqrt()
    }

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found}, not {expected}");
    }

    #[test]
    fn a_constant_distribution_always_draws_its_value() {
        assert!(draws("10us").iter().all(|span| *span == 10_000));
    }

    #[test]
    fn uniform_spans_fill_their_range_evenly() {
        let spans = draws("uniform(5us,20us)");
        assert!(spans.iter().all(|span| (5_000..=20_000).contains(span)));
        close(mean(&spans), 12_500.0);
        close(deviation(&spans), 15_000.0 / 12f64.sqrt());
        let edges = draws("uniform(3ns,4ns)");
        assert!(edges.contains(&3) && edges.contains(&4), "both ends are included");
    }

    #[test]
    fn exponential_spans_have_the_expected_mean_deviation_and_quantiles() {
        let mut spans = draws("exponential(10us)");
        close(mean(&spans), 10_000.0);
        close(deviation(&spans), 10_000.0);
        spans.sort_unstable();
        close(spans[DRAWS / 2] as f64, 10_000.0 * 2f64.ln());
        close(spans[DRAWS * 99 / 100] as f64, 10_000.0 * 100f64.ln());
    }

    #[test]
    fn normal_spans_have_their_mean_and_deviation() {
        let spans = draws("normal(10us,2us)");
        close(mean(&spans), 10_000.0);
        close(deviation(&spans), 2_000.0);
        let within = spans.iter().filter(|span| span.abs_diff(10_000) <= 2_000).count();
        close(within as f64 / DRAWS as f64, 0.6827);
        assert!(draws("normal(1us,10us)").contains(&0), "a negative span becomes 0");
    }

    #[test]
    fn the_logarithm_is_accurate_over_its_whole_range() {
        for shift in 0..64 {
            for x in [1u64 << shift, (1u64 << shift) | (1u64 << shift >> 1), u64::MAX >> shift] {
                let expected = -((x | 1) as f64 / 2f64.powi(64)).ln();
                assert!((minus_logarithm(x) - expected).abs() < 2e-5, "{x}: {expected}");
            }
        }
        assert!(minus_logarithm(0) < 45.0, "every span is finite");
    }
}
