//! `usring ctl inject`: shows and changes the rules of a run while it goes on.

use super::{add_rule, counts_of, table};
use crate::devices::socket;
use crate::{Failure, Outcome};
use std::path::Path;
use usring_device::control::QuestionKind;
use usring_inject::Rule;
use usring_inject::calls::CALLS;
use usring_inject::page::Page;
use usring_inject::set::{Kind, name_of};
use usring_sys::Errno;
use usring_uapi::opcode;

const EXAMPLES: &str = "\
Examples:
  usring run --inject none -- my-server &
      Starts a run without rules, to which any rule can be added.
  usring ctl inject add 'write:error=ENOSPC:path=*.wal'
      Makes every write to a file *.wal fail from now on.
  usring ctl inject list
  usring ctl inject remove 1

Exit status: 0, 1 if there is no such run or rule or the run cannot obey the rule, 125 otherwise.";

/// Show and change the rules of a run that was started with --inject.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Process id of the `usring run` that is meant, if several of your runs have --inject.
    #[arg(long, value_name = "PID", global = true)]
    run: Option<u32>,

    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Add a rule. It acts from each process's next call on.
    Add {
        /// The rule, as for `usring run --inject`.
        #[arg(value_parser = parse)]
        rule: Box<Rule>,
    },
    /// List the rules, how many calls each has matched, and how many faults it has injected.
    List,
    /// Remove a rule.
    Remove {
        /// The number of the rule, as `usring ctl inject list` prints it.
        number: u16,
    },
    /// List all names that a rule's SET may have.
    Names,
}

fn parse(text: &str) -> Result<Box<Rule>, String> {
    usring_inject::parse(text).map(Box::new).map_err(|error| format!("{error}\n"))
}

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    if matches!(options.command, Command::Names) {
        list_names();
        return Ok(0);
    }
    let (run, page) = find(options.run)?;
    match &options.command {
        Command::Add { rule } => {
            check_traps(&page, rule)?;
            let index = add_rule(&page, rule)?;
            tell!("run {run}: rule {} added", u32::from(index) + 1);
        }
        Command::List => list(&run, &page),
        Command::Remove { number } => {
            let removed = number.checked_sub(1).is_some_and(|index| page.remove(index));
            if !removed {
                return Err(Failure::with_status(1, format!("run {run} has no active rule {number}")));
            }
            tell!("run {run}: rule {number} removed");
        }
        Command::Names => {}
    }
    Ok(0)
}

fn list(run: &str, page: &Page) {
    let rules = page.rules();
    let active: Vec<_> = rules.iter().filter(|entry| entry.is_active).collect();
    let noun = if active.len() == 1 { "rule" } else { "rules" };
    tell!("run {run}, seed {}: {} active {noun}", page.seed(), active.len());
    active.iter().for_each(|entry| tell!("  {} {}", u32::from(entry.index) + 1, entry.text));
    let counts = counts_of(page);
    if !counts.is_empty() {
        tell!("");
        crate::print(format_args!("{}", table(&counts, &rules)));
    }
}

/// Fails if the rule names plain system calls that the run's processes do not trap: no fault can
/// reach such a call.
fn check_traps(page: &Page, rule: &Rule) -> Result<(), Failure> {
    let traps = page.traps();
    let is_trapped = |number: &u16| traps[usize::from(*number / 64)] & 1 << (number % 64) != 0;
    match rule.set.members(Kind::Call).find(|number| !is_trapped(number)) {
        None => Ok(()),
        Some(number) => {
            let name = name_of(Kind::Call, number);
            Err(Failure::with_status(
                1,
                format!(
                    "the run does not trap the system call {name}; start it with `--inject none`, and any rule can be \
                     added (a rule for rings or libaio alone begins with ring: or aio:)"
                ),
            ))
        }
    }
}

/// Finds a run with rules. `wanted`: the process id of its launcher. Without `wanted`, this user
/// must have exactly one such run. Returns the launcher's process id and the page of the rules.
fn find(wanted: Option<u32>) -> Result<(String, Page), Failure> {
    let mut found = Vec::new();
    for path in socket::all() {
        let run = socket::run_of(&path);
        if wanted.is_some_and(|wanted| run != wanted.to_string()) {
            continue;
        }
        match page_of(&path) {
            Ok(page) => found.push((run, page)),
            // This run has no page of rules, or SIGKILL ended its launcher, or the run belongs to
            // another build of usring.
            Err(Errno::ENODEV | Errno::ECONNREFUSED | Errno::EINVAL) => {}
            Err(error) => socket::say_unanswered(&path, error),
        }
    }
    if found.len() > 1 {
        let runs: Vec<&str> = found.iter().map(|(run, _)| run.as_str()).collect();
        let text = format!("several of your runs have --inject: {}; choose one by --run PID", runs.join(", "));
        return Err(Failure::with_status(1, text));
    }
    if let (Some(wanted), true) = (wanted, found.is_empty()) {
        let runs: Vec<_> =
            socket::all().iter().filter(|path| page_of(path).is_ok()).map(|path| socket::run_of(path)).collect();
        let there =
            if runs.is_empty() { "no run has --inject".into() } else { format!("these have it: {}", runs.join(", ")) };
        return Err(Failure::with_status(1, format!("no run {wanted} of yours has --inject; {there}")));
    }
    found.pop().ok_or_else(|| {
        Failure::with_status(1, "none of your runs has --inject; start one with `usring run --inject none -- PROGRAM`")
    })
}

fn page_of(socket: &Path) -> Result<Page, Errno> {
    let answered = socket::control(socket).ask(QuestionKind::Faults, 0, [0; 4], None)?;
    Page::open(&answered.descriptors.into_iter().next().ok_or(Errno::EINVAL)?)
}

fn list_names() {
    let lines = |title: &str, names: &[&str]| {
        tell!("{title}");
        for line in names.chunks(8) {
            tell!("  {}", line.join(" "));
        }
    };
    lines("Opcodes of rings (ring:)", &opcode::NAMES);
    lines("Plain system calls (call:)", &CALLS.iter().map(|call| call.name).collect::<Vec<_>>());
    let commands = ["read", "pread", "write", "pwrite", "readv", "preadv", "writev", "pwritev", "fsync", "fdsync"];
    lines("Commands of libaio (aio:)", &[&commands[..], &["poll_add"]].concat());
    lines("Classes", &["%file", "%desc", "%net", "%sync", "%rw", "all", "none"]);
}
