//! The conformance suite: an ordinary io_uring program that says, behaviour by
//! behaviour, how the system calls under it answer. Run on the kernel and on
//! usring, its transcripts must agree.
//!
//! ```text
//! conformance list [--intended]        every case (or those that differ on purpose, and why)
//! conformance run [--inline] [CASE…]   their transcripts; a room's name stands for its cases
//! conformance repeat N [CASE…]         run each N times, name those that are not deterministic
//! conformance record DIRECTORY         write every case's transcript to DIRECTORY/CASE.txt
//! conformance random SEED [PATIENCE]   a random program (`random`)
//! conformance compare USRING FIRST N   N of them on the kernel and on usring: a search for cases
//! conformance seeds [--kernel] USRING  the fixed seeds on usring (and the kernel), against `random-seeds.txt`
//! conformance record-seeds N           print that file's lines for the seeds 1 to N
//! conformance kernel                   whether this machine's kernel answers io_uring, and its release
//! ```
//!
//! With one case `run` stays in this process; with more, each gets its own and
//! a minute. `--inline` makes the ring's calls by an instruction in this
//! program instead of libc's `syscall()`.

mod aio;
mod buffers;
mod case;
mod cases;
mod door;
mod files;
mod memory;
mod names;
mod net;
mod process;
mod random;
mod ring;
mod runner;
mod sqe;
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
            door::use_inline();
            run(names)
        }
        ["run", names @ ..] => run(names),
        ["repeat", times, names @ ..] => repeat(times, names),
        ["record", directory] => record(directory),
        ["kernel"] => kernel(),
        ["random", seed] => random(seed, "1"),
        ["random", seed, patience] => random(seed, patience),
        ["compare", usring, first, count] => match (first.parse(), count.parse()) {
            (Ok(first), Ok(count)) => random::compare(usring, first, count),
            _ => ExitCode::from(2),
        },
        ["seeds", usring] => random::check(usring, false),
        ["seeds", "--kernel", usring] => random::check(usring, true),
        ["record-seeds", count] => count.parse().map_or(ExitCode::from(2), random::record),
        // What some cases start this program again as.
        ["child", name, rest @ ..] => process::child(name, rest),
        _ => {
            eprintln!(
                "usage: conformance list | run | repeat | record | random | compare | seeds | record-seeds | kernel (see the head of main.rs)"
            );
            ExitCode::from(2)
        }
    }
}

fn all() -> impl Iterator<Item = &'static Case> {
    cases::ROOMS.iter().flat_map(|room| room.iter())
}

fn list(intended: bool) -> ExitCode {
    for case in all() {
        match (intended, case.intended) {
            (false, _) => println!("{}", case.name),
            (true, Some(reason)) => println!("{}: {reason}", case.name),
            (true, None) => (),
        }
    }
    ExitCode::SUCCESS
}

/// The cases of these names (all of them for no name); `None` for a name that
/// is neither a case's nor a room's.
fn chosen(names: &[&str]) -> Option<Vec<Case>> {
    if names.is_empty() {
        return Some(all().copied().collect());
    }
    let mut cases = Vec::new();
    for name in names {
        let room = format!("{name}.");
        let before = cases.len();
        cases.extend(all().filter(|case| case.name == *name || case.name.starts_with(&room)));
        if cases.len() == before {
            eprintln!("no case or room is named {name}; see `conformance list`");
            return None;
        }
    }
    Some(cases)
}

fn run(names: &[&str]) -> ExitCode {
    let Some(cases) = chosen(names) else {
        return ExitCode::from(2);
    };
    if let ([case], [_]) = (cases.as_slice(), names) {
        // Whoever started us may have another; modes are recorded with this one.
        // SAFETY: our own process's mask.
        unsafe { libc::umask(0o022) };
        (case.run)(&mut Transcript::new(case.name));
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

fn random(seed: &str, patience: &str) -> ExitCode {
    let (Ok(seed), Ok(patience)) = (seed.parse(), patience.parse()) else {
        return ExitCode::from(2);
    };
    random::run(seed, patience);
    ExitCode::SUCCESS
}

fn record(directory: &str) -> ExitCode {
    for case in all() {
        let path = format!("{directory}/{}.txt", case.name);
        if let Err(error) = std::fs::write(&path, runner::transcript(case)) {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Prints the kernel's release and whether it lets this process make a ring.
fn kernel() -> ExitCode {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut params = memory::zeroed();
    let fd = door::setup(1, &mut params);
    let answer = if fd < 0 {
        names::result(fd)
    } else {
        door::close(fd);
        format!("features {:#x}", params.features)
    };
    println!("{} {answer}", release.trim());
    ExitCode::SUCCESS
}
