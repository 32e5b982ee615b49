//! Runs the cases of a benchmark and takes medians. Each round runs every case once, so that other
//! activity of the machine affects all cases alike. [`paired`] compares two cases round by round.

use super::child::{self, System};
use super::metric::{Metric, Sample};
use super::paired::{self, Figure, Ratio};
use super::priority::Priority;
use super::server;
use super::stage::Stage;
use crate::cleanup;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A measured program on one system with one set of parameters: a row of the benchmark's table.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the workload in the table.
    pub workload: String,
    /// Name of the system in the table.
    pub label: &'static str,
    pub system: System,
    /// SPEC of the block device on which the case runs, if any. `usring run --device` makes the
    /// device at `{folder}/device`, where `{folder}` is the benchmark's own folder.
    pub device: Option<String>,
    pub environment: &'static [(&'static str, &'static str)],
    /// Name of the measured program, whose file is in this executable's folder.
    pub program: &'static str,
    /// Arguments of the program, separated by spaces.
    pub arguments: String,
    /// If the measured program is a server: the program of its clients, and the clients' arguments.
    /// The clients drive the server and print the sample (the measured values).
    pub clients: Option<(&'static str, String)>,
    /// Parameters that the benchmark's table shows: block size, queue depth and so on.
    pub parameters: Vec<(&'static str, u32)>,
}

/// How long a benchmark measures.
pub struct Effort {
    /// Number of rounds in which every case runs. 0 means the number that the benchmark itself
    /// sets.
    rounds: usize,
    milliseconds: u64,
}

impl Effort {
    pub const FULL: Effort = Effort { rounds: 0, milliseconds: 200 };
    /// One very short round, by which `prove` checks that a case runs.
    const PROOF: Effort = Effort { rounds: 1, milliseconds: 1 };
    pub const QUICK: Effort = Effort { rounds: 3, milliseconds: 20 };
}

/// A case with a sample of each round, or with the reason why the case has no samples. A sample
/// consists of the values that were measured in one round.
pub struct Row {
    pub case: Case,
    pub samples: Result<Vec<Sample>, String>,
}

impl Row {
    /// Returns a metric's median and quartiles over all rounds. `None` if a sample lacks the
    /// metric.
    pub fn figure(&self, metric: Metric) -> Option<Figure> {
        paired::middle(self.values(metric)?)
    }

    /// Returns a metric's value in each round. `None` if a sample lacks the metric.
    pub fn values(&self, metric: Metric) -> Option<Vec<f64>> {
        self.samples.as_ref().ok()?.iter().map(|sample| metric.of(sample)).collect()
    }

    /// Returns the ratio of this row to `other`, compared round by round. `None` if a sample lacks
    /// the metric.
    pub fn against(&self, other: &Row, metric: Metric) -> Option<Ratio> {
        paired::ratio(&self.values(metric)?, &other.values(metric)?)
    }
}

/// All rows of a benchmark.
pub struct Results {
    pub metrics: &'static [Metric],
    pub rows: Vec<Row>,
    /// The priority at which the cases ran, as a phrase for the table.
    pub priority: &'static str,
}

/// A limit that a figure of the benchmark must keep.
#[derive(Debug)]
pub struct Bar {
    pub name: String,
    /// The figure. `None` if it could not be measured on this machine.
    pub value: Option<f64>,
    /// Confidence interval of the value, if one is known.
    pub interval: Option<[f64; 2]>,
    pub comparison: Comparison,
    pub target: f64,
    pub unit: &'static str,
    pub holds: Option<bool>,
}

/// Whether the target of a [`Bar`] is an upper or a lower limit.
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
    /// Makes a [`Bar`] that holds if `value` is at most `target`.
    pub fn at_most(name: impl Into<String>, value: Option<f64>, target: f64, unit: &'static str) -> Bar {
        let holds = value.map(|value| value <= target);
        Bar { name: name.into(), value, interval: None, comparison: Comparison::AtMost, target, unit, holds }
    }

    /// Makes a [`Bar`] that holds if `value` is at least `target`.
    pub fn at_least(name: impl Into<String>, value: Option<f64>, target: f64, unit: &'static str) -> Bar {
        let holds = value.map(|value| value >= target);
        Bar { name: name.into(), value, interval: None, comparison: Comparison::AtLeast, target, unit, holds }
    }

    /// Makes a [`Bar`] that holds if `ratio` is at most `target`.
    pub fn times_at_most(name: impl Into<String>, ratio: Option<Ratio>, target: f64) -> Bar {
        let bar = Bar::at_most(name, ratio.map(|ratio| ratio.median), target, "times");
        Bar { interval: ratio.map(|ratio| ratio.interval), ..bar }
    }

    /// Makes a [`Bar`] that holds if `ratio` is at least `target`.
    pub fn times_at_least(name: impl Into<String>, ratio: Option<Ratio>, target: f64) -> Bar {
        let bar = Bar::at_least(name, ratio.map(|ratio| ratio.median), target, "times");
        Bar { interval: ratio.map(|ratio| ratio.interval), ..bar }
    }
}

impl Results {
    /// Returns a metric's median for the case with this workload and label. With `depth`, only a
    /// case with that queue depth is taken. `None` if there is no such case, or a sample lacks the
    /// metric.
    pub fn median(&self, metric: Metric, workload: &str, label: &str, depth: Option<u32>) -> Option<f64> {
        Some(self.row(workload, label, depth)?.figure(metric)?.median)
    }

    /// Returns the ratio of the case with the first label to the case with the second label,
    /// compared round by round. `None` if a case is missing, or a sample lacks the metric.
    pub fn ratio(&self, metric: Metric, workload: &str, labels: [&str; 2], depth: Option<u32>) -> Option<Ratio> {
        let [this, that] = labels.map(|label| self.row(workload, label, depth));
        this?.against(that?, metric)
    }

    /// Returns the ratio of the first case to the second, compared round by round. A case is named
    /// by its workload and label. `None` if a case is missing, or a sample lacks the metric.
    pub fn ratio_of(&self, metric: Metric, [this, that]: [(&str, &str); 2]) -> Option<Ratio> {
        let row = |(workload, label)| self.row(workload, label, None);
        row(this)?.against(row(that)?, metric)
    }

    /// Returns the ratio of the row `row` to the rival's row, in the first metric and round by
    /// round. The rival's row has the workload and the parameters of `row`. `None` if there is no
    /// such row, or if `row` is itself the rival's.
    pub fn against(&self, row: &Row, rival: &str) -> Option<Ratio> {
        let same = |other: &Case| other.workload == row.case.workload && other.parameters == row.case.parameters;
        let rival = self.rows.iter().find(|other| other.case.label == rival && same(&other.case))?;
        let is_rival = rival.case.label == row.case.label;
        row.against(rival, *self.metrics.first()?).filter(|_| !is_rival)
    }

    fn row(&self, workload: &str, label: &str, depth: Option<u32>) -> Option<&Row> {
        let has_depth = |case: &Case| depth.is_none_or(|depth| case.parameters.contains(&("queue depth", depth)));
        let wanted = |case: &Case| case.workload == workload && case.label == label && has_depth(case);
        self.rows.iter().find(|row| wanted(&row.case))
    }
}

/// Runs all cases. If a rival does not run on this machine, its row has the reason instead of
/// samples. If a case of usring's fails, the benchmark fails. There is one exception: if a file or
/// back end of the benchmark is missing on this machine, the case's row has the reason, too.
pub fn measure(benchmark: &super::Benchmark, effort: &Effort) -> Result<Results, String> {
    let folder = child::ourselves()?.parent().map(PathBuf::from).unwrap_or_default();
    let cases = &benchmark.cases;
    // The priority is raised before the back end is started, because children inherit it.
    let priority = Priority::raise();
    let stage = Stage::set(benchmark.props)?;
    prove(cases, &folder, &stage)?;
    let rounds = if effort.rounds == 0 { benchmark.rounds } else { effort.rounds };
    let mut samples: Vec<Result<Vec<Sample>, String>> = vec![Ok(Vec::new()); cases.len()];
    let progress = ProgressBar::new((rounds * cases.len()) as u64).with_style(style());
    let _end = cleanup::end_bar(&progress);
    let mut random = fastrand::Rng::new();
    for _ in 0..rounds {
        for index in paired::any_order(cases.len(), &mut random) {
            let case = &cases[index];
            progress.set_message(format!("{}, {}", case.workload, case.label));
            if let Ok(values) = &mut samples[index] {
                match sample(case, &folder, &stage, effort) {
                    Ok(value) => values.push(value),
                    Err(why) if is_ours(case) && stage.is_complete() => {
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
    let row = |(case, samples): (&Case, _)| Row { case: case.clone(), samples };
    let rows = cases.iter().zip(samples).map(row).collect();
    Ok(Results { metrics: benchmark.metrics, rows, priority: priority.words() })
}

/// Returns whether a case runs on usring, and not on a rival such as the kernel.
pub fn is_ours(case: &Case) -> bool {
    matches!(case.system, System::Usring(_) | System::Linked)
}

/// Runs each of usring's cases once with the kernel's io_uring denied. A case that succeeds is
/// served by usring and not by the kernel.
fn prove(cases: &[Case], folder: &Path, stage: &Stage) -> Result<(), String> {
    if !stage.is_complete() {
        return Ok(());
    }
    for case in cases.iter().filter(|case| is_ours(case)) {
        let system = if case.system == System::Linked { System::Denied } else { System::Usring(&["--deny-kernel"]) };
        let denied = Case { system, ..case.clone() };
        let failed = |why| format!("{} is not served by usring: {why}", case.workload);
        sample(&denied, folder, stage, &Effort::PROOF).map_err(failed)?;
    }
    Ok(())
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}").unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn sample(case: &Case, folder: &Path, stage: &Stage, effort: &Effort) -> Result<Sample, String> {
    let milliseconds = ["--milliseconds".to_owned(), effort.milliseconds.to_string()];
    let devices =
        case.device.iter().map(|spec| format!("--device={}", stage.fill_in(&format!("{{folder}}/device={spec}"))));
    let program = beside_us(folder, case.program)?;
    let mut command = child::command_on(case.system, &devices.collect::<Vec<_>>(), &program)?;
    command.args(case.arguments.split_whitespace().map(|word| stage.fill_in(word)));
    command.envs(case.environment.iter().copied());
    let output = match &case.clients {
        None => child::output_within(command.args(milliseconds), Duration::from_secs(30))?,
        Some((program, arguments)) => {
            let mut clients = Command::new(beside_us(folder, program)?);
            clients.args(arguments.split_whitespace()).args(milliseconds);
            server::drive(command, clients)?
        }
    };
    if !output.status.success() {
        return Err(child::complaint(&output));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{} did not print a sample ({error})", case.program))
}

/// Returns the path of a measured program. Fails if it is not beside this executable.
pub fn beside_us(folder: &Path, program: &str) -> Result<PathBuf, String> {
    let path = folder.join(program);
    if !path.is_file() {
        let version = env!("CARGO_PKG_VERSION");
        return Err(format!(
            "the measured program {} does not exist. Packages of usring do not contain the measured programs. Run \
             `cargo xtask bench` in a source tree of usring {version}: it builds them, and takes the same arguments",
            path.display()
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_that_cannot_be_measured_neither_holds_nor_fails() {
        assert_eq!(Bar::at_most("x", Some(60.0), 60.0, "ns").holds, Some(true));
        assert_eq!(Bar::at_most("x", Some(60.1), 60.0, "ns").holds, Some(false));
        assert_eq!(Bar::at_most("x", None, 60.0, "ns").holds, None);
        assert_eq!(Bar::at_least("x", Some(60.1), 60.0, "ns").holds, Some(true));
        assert_eq!(Bar::at_least("x", Some(59.9), 60.0, "ns").holds, Some(false));
    }
}
