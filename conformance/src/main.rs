//! The conformance suite: an ordinary io_uring program that prints the results of system calls, one
//! behaviour at a time. Its output on the kernel and on usring must agree.
//!
//! ```text
//! conformance list [--intended]        every case (or those that differ on purpose, and why)
//! conformance run [--inline] [CASE…]   runs cases; a module's name stands for all of its cases
//! conformance repeat N [CASE…]         runs each N times, names those that are not deterministic
//! conformance show [--usring] [CASE…]  the transcripts expected of the kernel (or of usring)
//! conformance record [--usring] [CASE…]  runs cases, writes their transcripts into the source
//! conformance random SEED [WAIT_FACTOR]   runs a random program (`random`)
//! conformance compare USRING FIRST N   runs N random programs on the kernel and on usring
//! conformance seeds [--kernel] USRING  runs the fixed seeds on usring (and the kernel)
//! conformance record-seeds N           prints lines of `random-seeds.txt` for the seeds 1 to N
//! conformance kernel                   whether this machine's kernel has io_uring, and its release
//! ```
//!
//! `run` with a single case runs it in this process. With several cases each runs in a process of
//! its own, for at most a minute. `--inline` makes the system calls of rings by an instruction in
//! this program instead of libc's `syscall()`.

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
        // Some cases start this executable again with these arguments.
        ["child", name, rest @ ..] => process::child(name, rest),
        _ => {
            eprintln!(
                "usage: conformance list | run | repeat | show | record | random | compare | seeds | record-seeds | kernel (see the head of main.rs)"
            );
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

/// Returns the cases that the names select, or all cases if there are no names. A name is that of a
/// case or of a module of cases. Returns `None` if a name is neither, or if two cases have it. The
/// process of a case is started with the case's name alone, so that name must select one case.
fn chosen(names: &[&str]) -> Option<Vec<&'static Case>> {
    if names.is_empty() {
        return Some(Case::all());
    }
    let mut cases = Vec::new();
    for name in names {
        let named: Vec<&Case> = Case::all_named(name);
        if named.is_empty() {
            eprintln!("no case or group is named {name}; see `conformance list`");
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
        // The recorded transcripts assume this umask, so it replaces the umask of the caller.
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

/// Prints the kernel's release and whether the kernel lets this process make a ring.
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
