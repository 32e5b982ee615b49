//! Tests of `usring run --inject`. A small program (`programs/faulty.c`) makes calls by rings, by
//! plain system calls and by libaio, and prints which faults they got.
//!
//! - `table`: every action on every kind of call.
//! - `every_call`: every plain system call.
//! - `every_opcode`: every opcode with the actions that all requests have.
//! - `conditions`: which calls a rule selects.
//! - `own_rules`: rules that a program gives itself.
//! - `control`: `usring ctl inject`, while the program runs.
//! - `rings`: faults that only requests have, and damaged data.
//! - `strace`: the same rules under Debian's strace.
//! - `order`: `--order`.
//! - `messages`: wrong rules, the report, the log and its replay.
//! - `planted`: programs with bugs that faults bring to light.

mod conditions;
mod control;
mod every_call;
mod every_opcode;
mod messages;
mod order;
mod own_rules;
mod planted;
mod rings;
mod strace;
mod table;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use workloads::harness::{Finished, Run, Stage, World};

/// Returns the path of the program `faulty`, compiled at the first call. The program's folder is
/// never removed, because Rust drops no static.
fn faulty() -> &'static PathBuf {
    static PROGRAM: OnceLock<(Stage, PathBuf)> = OnceLock::new();
    &PROGRAM
        .get_or_init(|| {
            let stage = Stage::new();
            let program = stage.compile("faulty.c", &["-luring"]);
            (stage, program)
        })
        .1
}

/// Time limit that ends a program that hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// Prepares the program with these options of `usring run`. `calls`: kind, name and number of the
/// calls, such as `ring read 3`.
fn prepare(stage: &Stage, options: &[&str], calls: &str) -> Run {
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    stage.program_with(World::Transparent, &options, faulty()).args(calls.split(' ')).limit(LIMIT)
}

/// Runs the program with one rule, and returns what it printed, in one line.
fn run(rule: &str, calls: &str) -> String {
    said(&with_rule(rule, calls))
}

fn with_rule(rule: &str, calls: &str) -> Finished {
    prepare(&Stage::new(), &[&format!("--inject={rule}")], calls).finish().succeeded()
}

/// Returns what the program printed, in one line. Leaves out the word `late`, because on a busy
/// machine a call may be late without a fault.
fn said(finished: &Finished) -> String {
    said_with_times(finished).replace(" late", "")
}

fn said_with_times(finished: &Finished) -> String {
    finished.stdout.trim().replace('\n', "; ")
}
