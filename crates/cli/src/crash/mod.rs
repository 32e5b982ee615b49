//! `usring crash`: searches for a state of a folder on which the user's check fails, among the
//! states in which a power loss can leave that folder.
//!
//! 1. `programs` runs the setup and then the command, whose changes the library records.
//! 2. `usring_crash` turns the recording into a history of changes, and plans power losses.
//! 3. `search` makes the states and runs the check on each.
//! 4. `report` says what was found; `case` keeps the failing state.
//!
//! `folder` reads and writes folders, and `workplace` has the temporary folder and the signals.

mod case;
mod folder;
mod programs;
mod report;
mod search;
mod workplace;

use super::{Failure, Outcome};
use crate::system_error::words;
use case::Case;
use folder::{Scratch, Snapshot};
use programs::{Check, Recorded, gaps};
use search::{Search, Worker};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use usring_crash::durability::{Durability, Model};
use usring_crash::reader::{self, Recording};
use usring_crash::{Tree, minimise};
use workplace::{Workplace, is_stopped};

/// Exit status if a state was found in which the check fails.
const STATUS_FOUND: u8 = 1;
/// Exit status if the recorded history is incomplete, so that the search cannot give a verdict.
const STATUS_UNKNOWN: u8 = 2;
/// Exit status if usring could not do its work.
pub const STATUS_NOT_RUN: u8 = 3;

/// Maximum number of states that the search checks in order to make a found power loss smaller. The
/// check must still fail after the smaller power loss.
const MOST_TRIES: usize = 200;

const EXAMPLES: &str = "\
/bin/sh runs each command in a copy of the folder, so name your programs by their whole paths. The
copies are in the folder for temporary files (TMPDIR). The commands get these variables:
  USRING_CRASH_STATE    for all commands: the path of the copy.
  USRING_CRASH_OUTPUT   for the check: a file with what the command had printed on standard output
                        before the power loss. A line there is a promise, such as \"stored 7\".
                        The check compares the state with the promises.

Examples:
  usring crash --state empty --run \"$PWD/writer\" --check \"$PWD/verify\"
  usring crash --state /srv/db --budget 1h --model ext4-ordered \\
      --run \"$PWD/load\" --check \"$PWD/verify\"
  usring crash --state empty --inject 'fsync:error=EIO:when=2' \\
      --run \"$PWD/load\" --check \"$PWD/verify\"
  usring crash --replay usring-crash-7.case

Exit status: 0 if usring found no state on which the check fails, 1 if it found one, 2 if it cannot
tell, 3 if the command line is wrong or usring could not run. With status 2 a message says why:
usring could not record a change, or the check failed on a state and then passed on the same state.";

/// Find power losses after which your check of a folder fails.
///
/// usring runs a command and records what its processes do to the files below a folder, by rings,
/// by libaio and by plain system calls. From this record, usring makes the states in which a power
/// loss could have left the folder, and runs a check on each.
///
/// A power loss can come after every call. Changes that are not synced by then may be lost, kept,
/// or torn, in any combination that the model allows. usring tries the simplest losses first, and
/// then random ones until the budget is used up. If the check fails on a state, usring searches for
/// the smallest loss with which it fails. Then usring prints which calls were lost, and why.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The folder with whose content the recorded command starts. It may be empty. usring works on
    /// copies of it.
    #[arg(long, value_name = "DIR", required_unless_present = "replay")]
    pub state: Option<PathBuf>,

    /// The command whose changes are recorded.
    #[arg(long, value_name = "CMD", required_unless_present = "replay")]
    pub run: Option<String>,

    /// The command that checks a state: its exit status is 0 if the state is good.
    ///
    /// The check may change the state. First usring tries the check on three states. It must pass
    /// on the folder as the command leaves it, and on the folder before the command, with nothing
    /// printed. It must fail on an empty folder with everything printed, because otherwise it could
    /// not find a loss.
    #[arg(long, value_name = "CMD", required_unless_present = "replay")]
    pub check: Option<String>,

    /// A command that prepares the folder. usring does not record it: all that it does is durable.
    #[arg(long, value_name = "CMD")]
    pub setup: Option<String>,

    /// The promises of the file system: posix, ext4-ordered or device.
    ///
    /// With posix, a new name is durable after fsync of its folder, and changes can reach the disk
    /// in any order. With ext4-ordered, changes of names keep their order, and fsync of any file
    /// makes all earlier ones durable. A file never has its size before its bytes. With device,
    /// names and sizes are durable at once, and only bytes can be lost.
    #[arg(long, value_name = "MODEL", default_value = "posix", value_parser = parse_model)]
    pub model: Model,

    /// How long usring checks states, as in 30s, 5m or 1h.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_time)]
    pub budget: Duration,

    /// Time limit of one check. A check that takes longer counts as failed.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    pub check_limit: Duration,

    /// Time limit of the setup, and of the recorded command.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    pub run_limit: Duration,

    /// Make random losses and random faults with this seed, so that another run repeats them.
    /// Without this option, usring chooses a seed and prints it.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Files whose bytes mean nothing after a power loss, as in '*-shm'. The option may be
    /// repeated.
    ///
    /// The command may write such a file by a shared mapping, which usring does not see.
    #[arg(long, value_name = "GLOB")]
    pub scratch: Vec<String>,

    /// Inject faults into the recorded command, as `usring run --inject` does.
    #[arg(long, value_name = "SET:ACTION[:WHEN]")]
    pub inject: Vec<String>,

    /// Write the failing state to FILE instead of usring-crash-SEED.case.
    #[arg(long, value_name = "FILE")]
    pub case: Option<PathBuf>,

    /// Repeat the check that a case file contains, on the state in that file.
    #[arg(long, value_name = "CASE", conflicts_with_all = ["state", "run", "check", "setup"])]
    pub replay: Option<PathBuf>,
}

fn parse_model(text: &str) -> Result<Model, String> {
    let known = Model::NAMES.iter().find(|(name, _)| *name == text).map(|(_, model)| *model);
    known.ok_or_else(|| "a model is posix, ext4-ordered or device".into())
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let split = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let seconds = match &text[split..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => 0,
    };
    let number: Option<u64> = text[..split].parse().ok().filter(|_| seconds != 0);
    let span = number.and_then(|number| number.checked_mul(seconds)).filter(|span| *span < 1 << 32);
    span.map(Duration::from_secs).ok_or_else(|| "a time is a number with s, m or h, as in 5m".into())
}

fn not_run(sentence: impl Into<String>) -> Failure {
    Failure::with_status(STATUS_NOT_RUN, sentence)
}

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    let outcome = match (&options.replay, &options.state, &options.run, &options.check) {
        (Some(case), ..) => replay(case, options.check_limit),
        (None, Some(state), Some(command), Some(check)) => {
            Session::begin(options, state, check).and_then(|session| session.run(command))
        }
        _ => Err(not_run("give --state, --run and --check, or --replay")),
    };
    // A failure of a module that `usring run` uses, too, carries the exit status of `usring run`.
    // `usring crash` has one status for all of them: STATUS_NOT_RUN.
    outcome.map_err(|failure| Failure { status: STATUS_NOT_RUN, ..failure })
}

/// Runs the check of a case file on the state in that file.
fn replay(path: &Path, limit: Duration) -> Outcome {
    let case = Case::read(path)
        .map_err(|error| not_run(format!("cannot read {} ({error})", path.display(), error = words(&error))))?;
    let workplace = Workplace::begin()?;
    let check = Check::new(&case.check, limit, &workplace, 0);
    folder::write(&case.state, &check.state, None)
        .map_err(|error| not_run(format!("cannot write the state of the case ({error})", error = words(&error))))?;
    tell!("{}", case.explanation.trim_end());
    let verdict = check.run(&case.output)?;
    if is_stopped() {
        return Err(not_run("interrupted"));
    }
    report::said(&verdict);
    if verdict.ended.is_success() {
        tell!("the check passes on this state");
        return Ok(0);
    }
    tell!("the check fails on this state: {}", verdict.ended);
    Ok(STATUS_FOUND)
}

/// One search with its folders.
struct Session<'a> {
    options: &'a Options,
    check: &'a str,
    seed: u64,
    scratch: Scratch,
    workplace: Workplace,
    /// The folder in which the command runs.
    folder: PathBuf,
    /// A copy of the user's folder as it was before the recorded command.
    base: PathBuf,
    initial: Snapshot,
}

impl<'a> Session<'a> {
    /// Copies the user's folder and runs the setup.
    fn begin(options: &'a Options, state: &Path, check: &'a str) -> Result<Session<'a>, Failure> {
        if !state.is_dir() {
            return Err(not_run(format!(
                "--state {} is not a folder; name an existing one, which may be empty",
                state.display()
            )));
        }
        let workplace = Workplace::begin()?;
        let (folder, base) = (workplace.path("state"), workplace.path("base"));
        let failed = |error| not_run(format!("cannot copy {} ({error})", state.display(), error = words(&error)));
        folder::copy(state, &folder).map_err(failed)?;
        eprintln!("usring crash: works on copies in {}, and removes them at the end", workplace.folder().display());
        if let Some(setup) = &options.setup {
            programs::set_up(setup, &folder, options.run_limit)?;
        }
        let initial = folder::read(&folder).map_err(failed)?;
        folder::copy(&folder, &base).map_err(failed)?;
        let seed = options.seed.unwrap_or_else(|| fastrand::u32(..).into());
        let scratch = Scratch(options.scratch.clone());
        Ok(Session { options, check, seed, scratch, workplace, folder, base, initial })
    }

    fn run(self, command: &str) -> Outcome {
        let recording = self.record(command)?;
        let history = &recording.history;
        let processes: BTreeSet<u32> = history.operations.iter().map(|it| it.origin.process).collect();
        tell!(
            "seed {}, model {}; recorded {} of {}, {} and {} of output",
            self.seed,
            self.options.model.name(),
            report::count(history.operations.len(), "change"),
            report::count(processes.len(), "process"),
            report::count(history.syncs.len(), "sync"),
            report::count(history.outputs.iter().map(|output| output.data.len()).sum(), "byte"),
        );
        let unknown = self.unknown(&recording)?;
        if !unknown.is_empty() {
            unknown.iter().for_each(|reason| tell!("unknown: {reason}"));
            return Ok(STATUS_UNKNOWN);
        }
        if history.operations.is_empty() {
            return Err(not_run(
                "the command changed nothing in its folder; it has to use the folder in $USRING_CRASH_STATE",
            ));
        }
        let durability = Durability::of(history, self.options.model);
        let search = Search {
            history,
            durability: &durability,
            check: self.check,
            limit: self.options.check_limit,
            budget: self.options.budget,
            seed: self.seed,
            workplace: &self.workplace,
            base: &self.base,
        };
        try_check(&search)?;
        self.search(&search)
    }

    fn record(&self, command: &str) -> Result<Recording, Failure> {
        let Options { inject, run_limit, .. } = self.options;
        let recorded = Recorded { text: command, inject, seed: self.seed, limit: *run_limit };
        let log = programs::record(&recorded, &self.folder, &self.workplace)?;
        if is_stopped() {
            return Err(not_run("interrupted"));
        }
        if !log.ended.is_success() {
            eprintln!("usring crash: the recorded command failed: {}", log.ended);
        }
        Ok(reader::read(self.initial.tree.clone(), &self.initial.nodes, &log.bytes))
    }

    /// Returns the reasons for which the history is incomplete. There are two kinds: gaps that the
    /// recorder noted itself, and a difference between the folder on disk and the folder that the
    /// recorded changes produce.
    fn unknown(&self, recording: &Recording) -> Result<Vec<String>, Failure> {
        let mut reasons = gaps(&recording.gaps, &self.scratch);
        let found = folder::read(&self.folder)
            .map_err(|error| not_run(format!("cannot read the folder ({error})", error = words(&error))))?;
        reasons.extend(folder::difference(&recording.history.last_tree(), &found.tree, &self.scratch));
        Ok(reasons)
    }

    fn search(&self, search: &Search<'_>) -> Outcome {
        let mut found = search::search(search)?;
        if is_stopped() {
            return Err(not_run(format!("interrupted after {}", report::states(&found))));
        }
        let Some(failing) = found.failing.take() else {
            tell!("{}", report::nothing_found(&found));
            return Ok(if found.is_unstable || found.states == 0 { STATUS_UNKNOWN } else { 0 });
        };
        tell!("found after {}: the check fails: {}", report::states(&found), failing.verdict.ended);
        let mut worker = Worker::new(search, 0);
        let mut last = failing.verdict;
        let plan = minimise::minimise(search.history, search.durability, failing.plan, MOST_TRIES, |plan| match worker
            .check_plan(plan)
        {
            Ok(verdict) if !verdict.ended.is_success() && !is_stopped() => {
                last = verdict;
                true
            }
            _ => false,
        });
        let explanation = report::explanation(search.history, search.durability, &plan);
        tell!("{explanation}");
        report::said(&last);
        let case = Case {
            check: self.check.to_owned(),
            explanation,
            output: search.history.output_before(plan.cut),
            state: plan.tree(search.history, search.durability),
        };
        let path = self.options.case.clone().unwrap_or_else(|| format!("usring-crash-{}.case", self.seed).into());
        case.write(&path)
            .map_err(|error| not_run(format!("cannot write {} ({error})", path.display(), error = words(&error))))?;
        tell!("repeat it with: usring crash --replay {}", path.display());
        Ok(STATUS_FOUND)
    }
}

/// Checks that the user's check passes on the two states where it must pass, and fails on the state
/// where it must fail.
fn try_check(search: &Search<'_>) -> Result<(), Failure> {
    let worker = Worker::new(search, 0);
    let printed = search.history.output_before(search.history.length);
    let tries = [
        (search.history.last_tree(), &printed[..], true, "fails on the folder as the command left it"),
        (
            Tree::default(),
            &printed[..],
            false,
            "passes on an emptied folder, so it cannot find a loss; it has to fail there",
        ),
        (
            search.history.initial.clone(),
            b"",
            true,
            "fails on the folder before the command, when nothing was printed; a power loss can leave that. Prepare \
             the folder with --setup, or let the check pass while $USRING_CRASH_OUTPUT is empty",
        ),
    ];
    for (tree, printed, passes, sentence) in tries {
        let verdict = worker.check(&tree, printed)?;
        if is_stopped() {
            return Err(not_run("interrupted"));
        }
        if verdict.ended.is_success() != passes {
            report::said(&verdict);
            return Err(not_run(format!("the check {sentence} ({})", verdict.ended)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_a_unit() {
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_time("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["5", "m", "", "1d", "-1s", "99999999999999999999h"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
