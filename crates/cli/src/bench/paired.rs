//! Statistics of paired rounds. In each round all cases are measured one after the other, so a fast
//! or slow phase of the machine affects all of them alike. Two cases are therefore compared round
//! by round.

use fastrand::Rng;

/// A median with its quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub median: f64,
    /// The first and the third quartile.
    pub quartiles: [f64; 2],
}

/// The ratio of one case's figure to another's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Median of the rounds' ratios.
    pub median: f64,
    /// The interval in which the median lies with 95 % confidence.
    pub interval: [f64; 2],
}

/// Returns the median and the quartiles of `values`, or `None` if there are none. A quartile that
/// lies between two values is their weighted mean.
pub fn middle(mut values: Vec<f64>) -> Option<Figure> {
    values.sort_by(f64::total_cmp);
    let at = |share| share_of(&values, share);
    Some(Figure { median: at(0.5)?, quartiles: [at(0.25)?, at(0.75)?] })
}

/// Returns the value at the quantile `share` (0 to 1) of the sorted values. `None` if there are
/// none.
fn share_of(sorted: &[f64], share: f64) -> Option<f64> {
    let position = share * sorted.len().checked_sub(1)? as f64;
    let part = position.fract();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the whole part is an index of `sorted`"
    )]
    let low = position.floor() as usize;
    let high = (low + 1).min(sorted.len() - 1);
    Some(sorted[low] * (1.0 - part) + sorted[high] * part)
}

/// Draws for an interval.
const DRAWS: usize = 2000;

/// Returns the ratio of `these` to `those`, taken round by round, with its confidence interval.
/// `None` if there are no rounds. The interval is computed by bootstrapping:
///
/// 1. Draw as many rounds as were measured, at random and with repetition. Take the median of the
///    ratios of the drawn rounds.
/// 2. Repeat this 2,000 times.
/// 3. The middle 95 % of the medians span the interval.
pub fn ratio(these: &[f64], those: &[f64]) -> Option<Ratio> {
    let ratios: Vec<f64> = these.iter().zip(those).map(|(this, that)| this / that).collect();
    let median = middle(ratios.clone())?.median;
    let mut random = Rng::with_seed(1);
    Some(Ratio { median, interval: interval(|| median_of_draw(&ratios, &mut random))? })
}

/// Returns the 95 % confidence interval of the ratio of the medians of `these` and `those`, which
/// were measured in different runs. `None` if one of them has no rounds. The interval is computed
/// by bootstrapping, as in [`ratio`], but the rounds of `these` and of `those` are drawn
/// separately.
pub fn unpaired_interval(these: &[f64], those: &[f64]) -> Option<[f64; 2]> {
    let mut random = Rng::with_seed(1);
    interval(|| Some(median_of_draw(these, &mut random)? / median_of_draw(those, &mut random)?))
}

/// Draws as many values as `values` has, at random and with repetition. Returns the median of the
/// drawn values.
fn median_of_draw(values: &[f64], random: &mut Rng) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    middle(values.iter().map(|_| values[random.usize(..values.len())]).collect()).map(|figure| figure.median)
}

/// Calls `draw` [`DRAWS`] times, and returns the range of the middle 95 % of the results.
fn interval(mut draw: impl FnMut() -> Option<f64>) -> Option<[f64; 2]> {
    let mut medians = (0..DRAWS).map(|_| draw()).collect::<Option<Vec<f64>>>()?;
    medians.sort_by(f64::total_cmp);
    Some([share_of(&medians, 0.025)?, share_of(&medians, 0.975)?])
}

/// Returns the numbers below `count` in random order. The cases of a round run in this order, so
/// the predecessor of a case varies from round to round.
pub fn any_order(count: usize, random: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    random.shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles_ignore_the_order() {
        let figure = |median, quartiles| Some(Figure { median, quartiles });
        assert_eq!(middle(vec![5.0, 1.0, 3.0, 2.0, 4.0]), figure(3.0, [2.0, 4.0]));
        assert_eq!(middle(vec![2.0, 1.0]), figure(1.5, [1.25, 1.75]));
        assert_eq!(middle(vec![7.0]), figure(7.0, [7.0, 7.0]));
        assert_eq!(middle(Vec::new()), None);
    }

    #[test]
    fn a_ratio_is_the_median_of_the_ratios_of_the_rounds() {
        // Each round is twice as slow as the one before. In every round, `these` take twice as long
        // as `those`.
        let those: Vec<f64> = (0..12).map(|round| f64::from(1 << round)).collect();
        let these: Vec<f64> = those.iter().map(|value| value * 2.0).collect();
        assert_eq!(ratio(&these, &those), Some(Ratio { median: 2.0, interval: [2.0, 2.0] }));
        assert_eq!(ratio(&[], &[]), None);
    }

    #[test]
    fn a_confidence_interval_holds_the_median_and_reflects_the_spread() {
        let ones = [1.0; 21];
        let these: Vec<f64> = (0..21).map(|round| 0.9 + 0.01 * f64::from(round)).collect();
        let Ratio { median, interval: [low, high] } = ratio(&these, &ones).unwrap();
        assert!((median - 1.0).abs() < 1e-9 && low < median && median < high, "{low} {median} {high}");
        assert!(low > 0.91 && high < 1.09, "{low} {high}");
    }

    #[test]
    fn runs_differ_if_their_spreads_do_not_explain_it() {
        let around = |middle: f64| [-2.0, -1.0, 0.0, 1.0, 2.0].map(|off| middle + off);
        let [low, high] = unpaired_interval(&around(50.0), &around(100.0)).unwrap();
        assert!(0.45 < low && low < 0.5 && 0.5 < high && high < 0.55, "{low} {high}");
        let [low, high] = unpaired_interval(&around(100.5), &around(100.0)).unwrap();
        assert!(low < 1.0 && high > 1.0, "{low} {high}");
        assert_eq!(unpaired_interval(&[], &[1.0]), None);
    }

    #[test]
    fn every_case_is_equally_often_the_first_of_a_round() {
        let mut random = Rng::with_seed(1);
        let mut first = [0; 4];
        for _ in 0..400 {
            let mut order = any_order(4, &mut random);
            first[order[0]] += 1;
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3]);
        }
        assert!(first.iter().all(|count| (60..140).contains(count)), "{first:?}");
    }
}
