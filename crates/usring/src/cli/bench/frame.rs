//! Runs the cases of a benchmark in turn, round by round, so that whatever
//! else the machine does hits all of them alike, and takes medians.

use super::child::{self, System};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One program on one system with one set of parameters: a row of the table.
#[derive(Clone, Debug)]
pub struct Case {
    /// The workload in words.
    pub workload: &'static str,
    /// Who answers, in words.
    pub label: &'static str,
    pub system: System,
    /// The program beside our executable.
    pub program: &'static str,
    pub arguments: &'static [&'static str],
    /// What the row says about itself: block size, queue depth.
    pub parameters: &'static [(&'static str, u32)],
}

/// How much is measured.
pub struct Effort {
    rounds: usize,
    milliseconds: u64,
}

impl Effort {
    pub const FULL: Effort = Effort { rounds: 11, milliseconds: 200 };
    /// Just to see that it runs.
    const PROOF: Effort = Effort { rounds: 1, milliseconds: 1 };
    pub const QUICK: Effort = Effort { rounds: 3, milliseconds: 60 };
}

/// What a workload prints.
#[derive(Deserialize)]
struct Sample {
    operations: u64,
    nanoseconds: u64,
}

/// Nanoseconds per operation of a case over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub median: f64,
    /// First and third.
    pub quartiles: [f64; 2],
}

/// A case with its figure, or with the reason why it has none.
pub struct Row {
    pub case: Case,
    pub figure: Result<Figure, String>,
}

/// All rows of a benchmark.
pub struct Results(pub Vec<Row>);

/// A promise that a figure is held to.
#[derive(Debug)]
pub struct Bar {
    pub name: &'static str,
    /// `None` if it could not be measured here.
    pub value: Option<f64>,
    /// The most that is allowed.
    pub target: f64,
    pub unit: &'static str,
    pub holds: Option<bool>,
}

impl Bar {
    /// Holds while `value` is at most `target`.
    pub fn at_most(name: &'static str, value: Option<f64>, target: f64, unit: &'static str) -> Bar {
        Bar { name, value, target, unit, holds: value.map(|value| value <= target) }
    }
}

impl Results {
    /// The median of the case with this workload and label.
    pub fn median(&self, workload: &str, label: &str) -> Option<f64> {
        let row = self.0.iter().find(|row| row.case.workload == workload && row.case.label == label)?;
        row.figure.as_ref().ok().map(|figure| figure.median)
    }

    /// How many times as long the first takes as the second.
    pub fn ratio(&self, workload: &str, label: &str, rival: &str) -> Option<f64> {
        Some(self.median(workload, label)? / self.median(workload, rival)?)
    }
}

/// Runs all cases. A rival that does not run here is left out with its
/// reason; usring itself has to run.
pub fn measure(cases: &[Case], effort: &Effort) -> Result<Results, String> {
    let folder = child::ourselves()?.parent().map(PathBuf::from).unwrap_or_default();
    prove(cases, &folder)?;
    let mut samples: Vec<Result<Vec<f64>, String>> = vec![Ok(Vec::new()); cases.len()];
    let progress = ProgressBar::new((effort.rounds * cases.len()) as u64).with_style(style());
    for round in 0..effort.rounds {
        for position in 0..cases.len() {
            // Every other round backwards: nobody always runs after the same.
            let index = if round % 2 == 0 { position } else { cases.len() - 1 - position };
            let case = &cases[index];
            progress.set_message(format!("{}, {}", case.workload, case.label));
            if let Ok(values) = &mut samples[index] {
                match sample(case, &folder, effort) {
                    Ok(value) => values.push(value),
                    Err(why) if matches!(case.system, System::Usring(_)) => {
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
    let row =
        |(case, values): (&Case, Result<Vec<f64>, String>)| Row { case: case.clone(), figure: values.map(figure) };
    Ok(Results(cases.iter().zip(samples).map(row).collect()))
}

/// Runs every case of usring's once with the kernel's io_uring denied: what is
/// measured as usring must not be the kernel.
fn prove(cases: &[Case], folder: &Path) -> Result<(), String> {
    for case in cases.iter().filter(|case| matches!(case.system, System::Usring(_))) {
        let denied = Case { system: System::Usring(&["--deny-kernel"]), ..case.clone() };
        let failed = |why| format!("{} is not served by usring: {why}", case.workload);
        sample(&denied, folder, &Effort::PROOF).map_err(failed)?;
    }
    Ok(())
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}").unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn sample(case: &Case, folder: &Path, effort: &Effort) -> Result<f64, String> {
    let program = folder.join(case.program);
    if !program.is_file() {
        return Err(format!("{} is not there; build it with `cargo xtask build --release`", program.display()));
    }
    let milliseconds = effort.milliseconds.to_string();
    let mut command = child::command_on(case.system, &program)?;
    command.args(case.arguments).args(["--milliseconds", &milliseconds]);
    let output = child::output_within(&mut command, Duration::from_secs(30))?;
    if !output.status.success() {
        return Err(child::complaint(&output));
    }
    let sample: Sample = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{} printed something that is no sample ({error})", case.program))?;
    Ok(sample.nanoseconds as f64 / sample.operations.max(1) as f64)
}

/// Median and quartiles; between two values their weighted mean.
fn figure(mut values: Vec<f64>) -> Figure {
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
        assert_eq!(figure(vec![5.0, 1.0, 3.0, 2.0, 4.0]), Figure { median: 3.0, quartiles: [2.0, 4.0] });
        assert_eq!(figure(vec![2.0, 1.0]), Figure { median: 1.5, quartiles: [1.25, 1.75] });
        assert_eq!(figure(vec![7.0]), Figure { median: 7.0, quartiles: [7.0, 7.0] });
    }

    #[test]
    fn a_bar_that_cannot_be_measured_neither_holds_nor_fails() {
        assert_eq!(Bar::at_most("x", Some(60.0), 60.0, "ns").holds, Some(true));
        assert_eq!(Bar::at_most("x", Some(60.1), 60.0, "ns").holds, Some(false));
        assert_eq!(Bar::at_most("x", None, 60.0, "ns").holds, None);
    }
}
