//! The conformance suite: an ordinary io_uring program whose cases each print the results of system
//! calls. The output on the kernel and the output on usring must agree.
//!
//! [`HELP`] lists the subcommands.

mod aio;
mod buffers;
#[macro_use]
mod case;
mod cases;
mod files;
mod memory;
mod names;
mod net;
mod process;
mod random;
mod record;
mod ring;
mod runner;
mod shared;
mod sqe;
mod syscalls;
mod time;
mod transcript;

use std::process::ExitCode;

use case::Case;
use transcript::Transcript;

/// The text that `conformance --help` prints.
const HELP: &str = "\
Prints what io_uring system calls answer, one behaviour (case) at a time.

Usage: conformance COMMAND

Commands:
  list [--intended]           List all cases, or those that differ on usring on purpose, and why
  run [--inline] [CASE…]      Run cases, and print their transcripts
  repeat N [CASE…]            Run each case N times, and name the cases that are not deterministic
  show [--usring] [CASE…]     Print the transcripts that are expected of the kernel, or of usring
  record [--usring] [CASE…]   Run cases, and write their transcripts into the source
  random SEED [WAIT_FACTOR]   Run a random program, with its waits WAIT_FACTOR times as long
  compare USRING FIRST N      Run N random programs, from seed FIRST on, on the kernel and on usring
  seeds [--kernel] USRING     Run the programs of random-seeds.txt on usring, and on the kernel
  record-seeds N              Print lines of random-seeds.txt for the seeds 1 to N
  kernel                      Print the kernel's release, and whether it has io_uring

CASE is a case such as poll.remove, or a module such as poll, which stands for all of its cases.
Without CASE the command takes all cases. USRING is the path of the executable usring.

A single case runs in this process. Of several cases, each runs in a process of its own, for at
most a minute. With --inline, instructions `syscall` in this program make the calls of rings,
instead of libc's syscall().

Examples:
  conformance run timeout
  usring run -- conformance run timeout

Exit status: 0, 1 if programs or transcripts differ, 2 if the command line is wrong.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => list(false),
        ["list", "--intended"] => list(true),
        ["run", "--inline", names @ ..] => {
            syscalls::use_inline();
            run(names)
        }
        ["run", names @ ..] => run(names),
        ["repeat", times, names @ ..] => repeat(times, names),
        ["show", "--usring", names @ ..] => show(names, true),
        ["show", names @ ..] => show(names, false),
        ["record", "--usring", names @ ..] => record(names, true),
        ["record", names @ ..] => record(names, false),
        ["kernel"] => kernel(),
        ["random", seed] => random(seed, "1"),
        ["random", seed, wait_factor] => random(seed, wait_factor),
        ["compare", usring, first, count] => match (first.parse(), count.parse()) {
            (Ok(first), Ok(count)) => random::compare(usring, first, count),
            _ => ExitCode::from(2),
        },
        ["seeds", usring] => random::check(usring, false),
        ["seeds", "--kernel", usring] => random::check(usring, true),
        ["record-seeds", count] => count.parse().map_or(ExitCode::from(2), random::record),
        // Some cases execute this program again, with these arguments.
        ["child", name, rest @ ..] => process::child(name, rest),
        ["--help" | "-h"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{HELP}");
            ExitCode::from(2)
        }
    }
}

fn list(intended: bool) -> ExitCode {
    for case in Case::all() {
        match (intended, &case.difference) {
            (false, _) => println!("{}", case.name()),
            (true, Some(difference)) => println!("{}: {}", case.name(), difference.reason),
            (true, None) => (),
        }
    }
    ExitCode::SUCCESS
}

/// Returns the cases that `names` select, or all cases if `names` is empty. A name is the name of
/// one case or of a group of cases. Returns `None` if a name is neither, or if two cases have it.
/// Each case runs in a process that gets the case's name, so that name must be unique.
fn chosen(names: &[&str]) -> Option<Vec<&'static Case>> {
    if names.is_empty() {
        return Some(Case::all());
    }
    let mut cases = Vec::new();
    for name in names {
        let named: Vec<&Case> = Case::all_named(name);
        if named.is_empty() {
            eprintln!("no case or module is named {name}; `conformance list` lists the cases");
            return None;
        }
        if name.contains('.') && named.len() > 1 {
            eprintln!("two cases are named {name}");
            return None;
        }
        cases.extend(named);
    }
    Some(cases)
}

fn run(names: &[&str]) -> ExitCode {
    let Some(cases) = chosen(names) else {
        return ExitCode::from(2);
    };
    if let ([case], [_]) = (cases.as_slice(), names) {
        // The recorded transcripts assume this umask. So it replaces the umask that this process
        // has inherited.
        // SAFETY: the call changes only this process's umask.
        unsafe { libc::umask(0o022) };
        (case.run)(&mut Transcript::new(case.name()));
        return ExitCode::SUCCESS;
    }
    for case in &cases {
        print!("{}", runner::transcript(case));
    }
    ExitCode::SUCCESS
}

fn repeat(times: &str, names: &[&str]) -> ExitCode {
    let (Ok(times), Some(cases)) = (times.parse(), chosen(names)) else {
        return ExitCode::from(2);
    };
    if runner::repeat(&cases, times) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn random(seed: &str, wait_factor: &str) -> ExitCode {
    let (Ok(seed), Ok(wait_factor)) = (seed.parse(), wait_factor.parse()) else {
        return ExitCode::from(2);
    };
    random::run(seed, wait_factor);
    ExitCode::SUCCESS
}

fn show(names: &[&str], usring: bool) -> ExitCode {
    let Some(cases) = chosen(names) else {
        return ExitCode::from(2);
    };
    for case in cases {
        print!("{}", case.transcript(usring));
    }
    ExitCode::SUCCESS
}

fn record(names: &[&str], usring: bool) -> ExitCode {
    let Some(cases) = chosen(names) else {
        return ExitCode::from(2);
    };
    for case in cases.into_iter().filter(|case| !usring || case.difference.is_some()) {
        let output = runner::transcript(case);
        if output == case.transcript(usring) {
            continue;
        }
        if let Err(error) = record::record(case, usring, &output) {
            eprintln!("{}: {error}", case.name());
            return ExitCode::FAILURE;
        }
        println!("{}: recorded in {}", case.name(), case.file);
    }
    ExitCode::SUCCESS
}

/// Prints the kernel's release. Also prints the features of a ring, or the errno if this process
/// cannot make a ring.
fn kernel() -> ExitCode {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut params = memory::zeroed();
    let fd = syscalls::setup(1, &mut params);
    let answer = if fd < 0 {
        names::result(fd)
    } else {
        syscalls::close(fd);
        format!("features {:#x}", params.features)
    };
    println!("{} {answer}", release.trim());
    ExitCode::SUCCESS
}
