//! `usring bench call`: the cost of system calls that have nothing to do with rings.
//!
//! - usring's filter allows `getppid` and `read` with any arguments. The kernel keeps a bitmap of
//!   such calls, and does not run the filter for them.
//! - For `close`, `fcntl` and `sigprocmask` the filter examines the arguments. usring rewrites the
//!   call site of `sigprocmask`.
//!
//! Each call is also measured without any filter, and under a filter that allows everything. With
//! any filter the kernel enters system calls by a slower path. So a call under usring cannot cost
//! less than a call under the filter that allows everything.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;

const DESCRIPTION: &str = "\
    System calls that have nothing to do with rings: bare, under a seccomp filter that allows \
    everything, and under usring. With any filter the kernel enters system calls by a slower \
    path.";

const BARE: &str = "kernel";
const EMPTY: &str = "kernel, empty filter";
const USRING: &str = "usring";

/// Calls that the filter allows whatever their arguments are.
const ALLOWED: [&str; 2] = ["getppid", "read"];
/// Calls of which the filter examines arguments.
const EXAMINED: [&str; 3] = ["close", "fcntl", "sigprocmask"];

const BAR: f64 = 1.35;

/// Returns the benchmark's cases and limits ([`Bar`]).
pub fn benchmark() -> Benchmark {
    let metrics = &[Metric::ProcessorTime];
    Benchmark {
        name: "call",
        description: DESCRIPTION,
        metrics,
        rounds: 11,
        props: &[],
        rival: BARE,
        cases: cases(),
        bars,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for call in ALLOWED.into_iter().chain(EXAMINED) {
        for (label, system, filter) in
            [(BARE, System::Kernel, "none"), (EMPTY, System::Kernel, "empty"), (USRING, System::Usring(&[]), "none")]
        {
            cases.push(Case {
                workload: call.into(),
                label,
                system,
                device: None,
                environment: &[],
                program: "workload-call",
                arguments: format!("--call {call} --filter {filter}"),
                clients: None,
                parameters: vec![],
            });
        }
    }
    cases
}

fn bars(results: &Results) -> Vec<Bar> {
    let bar = |call: &str, rival: &str, name: &str| {
        let ratio = results.ratio(Metric::ProcessorTime, call, [USRING, rival], None);
        Bar::times_at_most(format!("{call} against {name}"), ratio, BAR)
    };
    let allowed = ALLOWED.into_iter().map(|call| bar(call, BARE, "the bare call"));
    let examined = EXAMINED.into_iter().map(|call| bar(call, EMPTY, "the call under an empty filter"));
    allowed.chain(examined).collect()
}
