//! Runs commands, shows their output at once, and counts the tests that they report.

use crate::{Outcome, skipped};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Numbers of tests, from the result line that `cargo test` prints for each test file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub ignored: usize,
    /// Tests that were skipped because something that they need was missing: each test's name, and
    /// what was missing. The harness counts them as passed, too.
    pub skipped: Vec<String>,
}

impl Tally {
    /// Adds the numbers of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`, or a
    /// report of a skipped test. Ignores other lines.
    fn add_line(&mut self, line: &str) {
        self.skipped.extend(skipped::read(line).map(str::to_owned));
        let Some((_, counts)) = line.split_once("test result: ").and_then(|(_, rest)| rest.split_once(". ")) else {
            return;
        };
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.skipped.extend(other.skipped);
    }
}

/// Returns a command that runs `cargo` in the workspace's root. The cargo that started this program
/// is used.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    // cargo has set this variable for this program, and the build of another package must not see
    // it.
    command.env_remove("CARGO_MANIFEST_DIR");
    command
}

/// Returns the workspace's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace")
}

/// Returns the text of a file of the workspace.
pub fn text(file: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Runs a command to its end. Fails if its exit status is not 0.
pub fn run(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", describe(command))) }
}

/// Runs a command that runs tests. Shows its output at once, and counts its tests.
pub fn run_tests(command: &mut Command) -> (Tally, Outcome) {
    let mut tally = Tally::default();
    let outcome = follow(command, &mut tally);
    (tally, outcome)
}

fn follow(command: &mut Command, tally: &mut Tally) -> Outcome {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| cannot_start(command, &error))?;
    let output = child.stdout.take().ok_or("the output is not piped")?;
    let mut terminal = std::io::stdout();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|error| error.to_string())?;
        // If standard output is closed, the tests still continue.
        let _ = terminal.write_all(&[&line[..], b"\n"].concat());
        tally.add_line(&String::from_utf8_lossy(&line));
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", describe(command))) }
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start {} ({error})", command.get_program().display())
}

fn describe(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    format!("`{} {}`", program.display(), words.join(" "))
}

/// The steps of a check that have run, with their results.
pub struct Report {
    steps: usize,
    lines: Vec<(&'static str, Duration, Outcome)>,
    pub tally: Tally,
}

impl Report {
    pub fn of(steps: usize) -> Report {
        Report { steps, lines: Vec::new(), tally: Tally::default() }
    }

    /// Runs a step and prints its result. Returns whether it succeeded.
    pub fn step(&mut self, name: &'static str, run: impl FnOnce(&mut Tally) -> Outcome) -> bool {
        println!("\n== [{}/{}] {name}", self.lines.len() + 1, self.steps);
        let start = Instant::now();
        let outcome = run(&mut self.tally);
        if let Err(why) = &outcome {
            println!("== {name}: {why}");
        }
        let went_well = outcome.is_ok();
        self.lines.push((name, start.elapsed(), outcome));
        went_well
    }

    /// Prints a table of all steps, and a last line that counts the tests and steps. Returns
    /// whether all succeeded.
    pub fn finish(self) -> bool {
        println!("\n== summary");
        let width = self.lines.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
        let total: Duration = self.lines.iter().map(|(_, time, _)| *time).sum();
        for (name, time, outcome) in &self.lines {
            let word = if outcome.is_ok() { "ok" } else { "FAILED" };
            println!("{name:width$}  {:>7.1} s  {word}", time.as_secs_f64());
        }
        println!("{:width$}  {:>7.1} s", "total", total.as_secs_f64());
        self.tally.skipped.iter().for_each(|what| println!("skipped: {what}"));
        if self.tally.ignored != 0 {
            println!("skipped: {} tests that take minutes (`cargo xtask soak`)", self.tally.ignored);
        }
        let failed_steps = self.lines.iter().filter(|(.., outcome)| outcome.is_err()).count();
        let not_run = self.steps - self.lines.len();
        if not_run != 0 {
            println!("{not_run} steps were not run");
        }
        // The harness counts a skipped test as passed.
        let skipped = self.tally.skipped.len().min(self.tally.passed);
        let passed = self.tally.passed - skipped + self.lines.len() - failed_steps;
        // A failed test also fails its step. The sum of the two numbers would count such a failure
        // twice.
        let failed = self.tally.failed.max(failed_steps);
        println!("{passed} passed, {failed} failed, {} skipped", skipped + self.tally.ignored);
        failed == 0 && not_run == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_of_several_files_are_counted_together() {
        let mut tally = Tally::default();
        tally.add_line("test result: ok. 9 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s");
        tally.add_line("test nothing ... ok");
        tally.add_line("test another ... skipped test another: no loop device may be made here");
        tally.add_line("test result: FAILED. 29 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        let skipped = vec!["another: no loop device may be made here".to_owned()];
        assert_eq!(tally, Tally { passed: 38, failed: 2, ignored: 1, skipped });
    }
}
