//! `usring bench call`: what a system call costs that has nothing to do with rings.
//!
//! The kernel keeps a bitmap of the calls that a filter allows whatever their arguments, and runs the
//! filter for no other: `getppid` and `read` stand for those. At `close`, `fcntl` and `sigprocmask`
//! usring's filter looks at the arguments; the last goes by way of a rewritten call site.
//!
//! Beside the bare call stands one under a filter that allows everything: the kernel enters a process
//! with any filter by a slower way. usring cannot cost less.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;

const BARE: &str = "kernel";
const EMPTY: &str = "kernel, empty filter";
const USRING: &str = "usring";

/// What the filter allows whatever the arguments, and what it looks at.
const ALLOWED: [&str; 2] = ["getppid", "read"];
const LOOKED_AT: [&str; 3] = ["close", "fcntl", "sigprocmask"];

const BAR: f64 = 1.35;

/// The rows and the bars.
pub fn benchmark() -> Benchmark {
    let metrics = &[Metric::ProcessorTime];
    Benchmark { name: "call", metrics, rounds: 11, props: &[], rival: BARE, cases: cases(), bars }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for call in ALLOWED.into_iter().chain(LOOKED_AT) {
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
    let looked_at = LOOKED_AT.into_iter().map(|call| bar(call, EMPTY, "the call under an empty filter"));
    allowed.chain(looked_at).collect()
}
