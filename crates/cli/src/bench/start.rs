//! `usring bench start`: the time from a program's first io_uring_setup(2) to the completion of its
//! first request that waits for a file, with one ring and with 1,000 rings. Each sample runs a new
//! process.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;

const KERNEL: &str = "kernel";
const USRING: &str = "usring";

const ONE: &str = "first ring and poll";
const ONE_THREADED: &str = "first ring and poll, 4 threads";
const MANY: &str = "1,000 rings and a poll";

const MILLISECOND: f64 = 1e6;

pub fn benchmark() -> Benchmark {
    let metrics = &[Metric::Time, Metric::ProcessorTime];
    Benchmark { name: "start", metrics, rounds: 21, props: &[], rival: KERNEL, cases: cases(), bars }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (workload, arguments) in [(ONE, ""), (ONE_THREADED, "--threads 4"), (MANY, "--rings 1000")] {
        for (label, system) in [(KERNEL, System::Kernel), (USRING, System::Usring(&[]))] {
            cases.push(Case {
                workload: workload.into(),
                label,
                system,
                device: None,
                environment: &[],
                program: "workload-start",
                arguments: arguments.into(),
                clients: None,
                parameters: vec![],
            });
        }
    }
    cases
}

fn bars(results: &Results) -> Vec<Bar> {
    let median = |workload| results.median(Metric::Time, workload, USRING, None);
    [(ONE, 1.0), (ONE_THREADED, 1.0), (MANY, 100.0)]
        .map(|(workload, most)| Bar::at_most(workload, median(workload).map(|time| time / MILLISECOND), most, "ms"))
        .into()
}
