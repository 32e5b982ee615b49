//! Runs the cases of a benchmark in turn, round by round, so that whatever
//! else the machine does hits all of them alike, and takes medians.

use super::child::{self, System};
use super::metric::{Metric, Sample};
use super::stage::Stage;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One program on one system with one set of parameters: a row of the table.
#[derive(Clone, Debug)]
pub struct Case {
    /// The workload in words.
    pub workload: String,
    /// Who answers, in words.
    pub label: &'static str,
    pub system: System,
    /// Of a block device that it is run on, which it finds at `{folder}/device`:
    /// what `usring run --device` makes. `{folder}` is the benchmark's own.
    pub device: Option<String>,
    pub environment: &'static [(&'static str, &'static str)],
    /// The program beside our executable.
    pub program: &'static str,
    /// Separated by spaces.
    pub arguments: String,
    /// What the row says about itself: block size, queue depth.
    pub parameters: Vec<(&'static str, u32)>,
}

/// How much is measured.
pub struct Effort {
    /// 0: as many as the benchmark says.
    rounds: usize,
    milliseconds: u64,
}

impl Effort {
    pub const FULL: Effort = Effort { rounds: 0, milliseconds: 200 };
    /// Just to see that it runs.
    const PROOF: Effort = Effort { rounds: 1, milliseconds: 1 };
    pub const QUICK: Effort = Effort { rounds: 1, milliseconds: 40 };
}

/// One metric of a case over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub median: f64,
    /// First and third.
    pub quartiles: [f64; 2],
}

/// A case with its figures in the order of the benchmark's metrics, or with the
/// reason why it has none.
pub struct Row {
    pub case: Case,
    pub figures: Result<Vec<Option<Figure>>, String>,
}

/// All rows of a benchmark.
pub struct Results {
    pub metrics: &'static [Metric],
    pub rows: Vec<Row>,
}

/// A promise that a figure is held to.
#[derive(Debug)]
pub struct Bar {
    pub name: String,
    /// `None` if it could not be measured here.
    pub value: Option<f64>,
    pub comparison: Comparison,
    pub target: f64,
    pub unit: &'static str,
    pub holds: Option<bool>,
}

/// What a bar's value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    AtMost,
    AtLeast,
}

impl Comparison {
    pub fn words(self) -> &'static str {
        match self {
            Comparison::AtMost => "at most",
            Comparison::AtLeast => "at least",
        }
    }
}

impl Bar {
    /// Holds while `value` is at most `target`.
    pub fn at_most(name: impl Into<String>, value: Option<f64>, target: f64, unit: &'static str) -> Bar {
        let holds = value.map(|value| value <= target);
        Bar { name: name.into(), value, comparison: Comparison::AtMost, target, unit, holds }
    }

    /// Holds while `value` is at least `target`.
    pub fn at_least(name: impl Into<String>, value: Option<f64>, target: f64, unit: &'static str) -> Bar {
        let holds = value.map(|value| value >= target);
        Bar { name: name.into(), value, comparison: Comparison::AtLeast, target, unit, holds }
    }
}

impl Results {
    /// The median of the case with this workload and label, of that depth if
    /// one is named.
    pub fn median(&self, metric: Metric, workload: &str, label: &str, depth: Option<u32>) -> Option<f64> {
        let has_depth = |case: &Case| depth.is_none_or(|depth| case.parameters.contains(&("queue depth", depth)));
        let wanted = |case: &Case| case.workload == workload && case.label == label && has_depth(case);
        self.figure(self.rows.iter().find(|row| wanted(&row.case))?, metric)
    }

    /// A row's median.
    pub fn figure(&self, row: &Row, metric: Metric) -> Option<f64> {
        let index = self.metrics.iter().position(|known| *known == metric)?;
        Some(row.figures.as_ref().ok()?[index]?.median)
    }
}

/// Runs all cases. A rival that does not run here is left out with its
/// reason; usring itself has to run.
pub fn measure(benchmark: &super::Benchmark, effort: &Effort) -> Result<Results, String> {
    let folder = child::ourselves()?.parent().map(PathBuf::from).unwrap_or_default();
    let cases = &benchmark.cases;
    let stage = Stage::set(benchmark.props)?;
    prove(cases, &folder, &stage)?;
    let rounds = if effort.rounds == 0 { benchmark.rounds } else { effort.rounds };
    let mut samples: Vec<Result<Vec<Sample>, String>> = vec![Ok(Vec::new()); cases.len()];
    let progress = ProgressBar::new((rounds * cases.len()) as u64).with_style(style());
    for round in 0..rounds {
        for position in 0..cases.len() {
            // Every other round backwards: nobody always runs after the same.
            let index = if round % 2 == 0 { position } else { cases.len() - 1 - position };
            let case = &cases[index];
            progress.set_message(format!("{}, {}", case.workload, case.label));
            if let Ok(values) = &mut samples[index] {
                match sample(case, &folder, &stage, effort) {
                    Ok(value) => values.push(value),
                    Err(why) if is_ours(case) && stage.is_whole() => {
                        progress.finish_and_clear();
                        return Err(format!("{} on {} failed: {why}", case.workload, case.label));
                    }
                    Err(why) => samples[index] = Err(why),
                }
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let metrics = benchmark.metrics;
    let row = |(case, samples): (&Case, Result<Vec<Sample>, String>)| {
        let figures = samples.map(|samples| metrics.iter().map(|metric| figure(*metric, &samples)).collect());
        Row { case: case.clone(), figures }
    };
    Ok(Results { metrics, rows: cases.iter().zip(samples).map(row).collect() })
}

fn is_ours(case: &Case) -> bool {
    matches!(case.system, System::Usring(_))
}

/// Runs every case of usring's once with the kernel's io_uring denied: what is
/// measured as usring must not be the kernel.
fn prove(cases: &[Case], folder: &Path, stage: &Stage) -> Result<(), String> {
    if !stage.is_whole() {
        return Ok(());
    }
    for case in cases.iter().filter(|case| is_ours(case)) {
        let denied = Case { system: System::Usring(&["--deny-kernel"]), ..case.clone() };
        let failed = |why| format!("{} is not served by usring: {why}", case.workload);
        sample(&denied, folder, stage, &Effort::PROOF).map_err(failed)?;
    }
    Ok(())
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}").unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn sample(case: &Case, folder: &Path, stage: &Stage, effort: &Effort) -> Result<Sample, String> {
    let program = folder.join(case.program);
    if !program.is_file() {
        return Err(format!("{} is not there; build it with `cargo xtask build --release`", program.display()));
    }
    let milliseconds = effort.milliseconds.to_string();
    let devices =
        case.device.iter().map(|spec| format!("--device={}", stage.fill_in(&format!("{{folder}}/device={spec}"))));
    let mut command = child::command_on(case.system, &devices.collect::<Vec<_>>(), &program)?;
    command.args(case.arguments.split_whitespace().map(|word| stage.fill_in(word)));
    command.args(["--milliseconds", &milliseconds]).envs(case.environment.iter().copied());
    let output = child::output_within(&mut command, Duration::from_secs(30))?;
    if !output.status.success() {
        return Err(child::complaint(&output));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{} printed something that is no sample ({error})", case.program))
}

/// Median and quartiles of what the samples say of this; nothing if they do not.
fn figure(metric: Metric, samples: &[Sample]) -> Option<Figure> {
    let values: Option<Vec<f64>> = samples.iter().map(|sample| metric.of(sample)).collect();
    values.filter(|values| !values.is_empty()).map(middle)
}

/// Median and quartiles; between two values their weighted mean.
fn middle(mut values: Vec<f64>) -> Figure {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let position = share * (values.len() - 1) as f64;
        let (low, part) = (position.floor() as usize, position.fract());
        let high = (low + 1).min(values.len() - 1);
        values[low] * (1.0 - part) + values[high] * part
    };
    Figure { median: at(0.5), quartiles: [at(0.25), at(0.75)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles_ignore_the_order() {
        assert_eq!(middle(vec![5.0, 1.0, 3.0, 2.0, 4.0]), Figure { median: 3.0, quartiles: [2.0, 4.0] });
        assert_eq!(middle(vec![2.0, 1.0]), Figure { median: 1.5, quartiles: [1.25, 1.75] });
        assert_eq!(middle(vec![7.0]), Figure { median: 7.0, quartiles: [7.0, 7.0] });
    }

    #[test]
    fn a_bar_that_cannot_be_measured_neither_holds_nor_fails() {
        assert_eq!(Bar::at_most("x", Some(60.0), 60.0, "ns").holds, Some(true));
        assert_eq!(Bar::at_most("x", Some(60.1), 60.0, "ns").holds, Some(false));
        assert_eq!(Bar::at_most("x", None, 60.0, "ns").holds, None);
        assert_eq!(Bar::at_least("x", Some(60.1), 60.0, "ns").holds, Some(true));
        assert_eq!(Bar::at_least("x", Some(59.9), 60.0, "ns").holds, Some(false));
    }
}
