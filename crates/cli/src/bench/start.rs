//! `usring bench start`: the time from a program's first io_uring_setup(2) to the completion of its
//! first request that waits for a file, with one ring and with 1,000 rings. Each sample runs a new
//! process. Two more workloads measure fork(2) in a process that has 1,000 rings.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;

const DESCRIPTION: &str = "\
    The time from a program's first io_uring_setup(2) to the completion of its first poll, in \
    a new process each time. fork(2) in a process with 1,000 rings. The rival is the kernel's \
    ring.";

const KERNEL: &str = "kernel";
const USRING: &str = "usring";

const ONE: &str = "first ring and poll";
const ONE_THREADED: &str = "first ring and poll, 4 threads";
const MANY: &str = "1,000 rings and a poll";

const FORK: &str = "fork with 1,000 rings";
const FORK_OWN: &str = "fork with 1,000 rings in own memory";

/// Limit of the time of fork(2) in a process with usring's rings. The unit is the time of fork(2)
/// in a process with the kernel's rings.
const MOST_FORK: f64 = 1.05;
const MILLISECOND: f64 = 1e6;

pub fn benchmark() -> Benchmark {
    let metrics = &[Metric::Time, Metric::ProcessorTime];
    Benchmark {
        name: "start",
        description: DESCRIPTION,
        metrics,
        rounds: 21,
        props: &[],
        rival: KERNEL,
        cases: cases(),
        bars,
    }
}

fn cases() -> Vec<Case> {
    const START: &str = "workload-start";
    const FORKS: &str = "workload-fork";
    let mut cases = Vec::new();
    for (workload, program, arguments) in [
        (ONE, START, ""),
        (ONE_THREADED, START, "--threads 4"),
        (MANY, START, "--rings 1000"),
        (FORK, FORKS, "--rings 1000"),
        (FORK_OWN, FORKS, "--rings 1000 --memory own"),
    ] {
        for (label, system) in [(KERNEL, System::Kernel), (USRING, System::Usring(&[]))] {
            cases.push(Case {
                workload: workload.into(),
                label,
                system,
                device: None,
                environment: &[],
                program,
                arguments: arguments.into(),
                clients: None,
                parameters: vec![],
            });
        }
    }
    cases
}

fn bars(results: &Results) -> Vec<Bar> {
    let milliseconds = |(workload, most)| {
        let median = results.median(Metric::Time, workload, USRING, None);
        Bar::at_most(workload, median.map(|time| time / MILLISECOND), most, "ms")
    };
    let against_kernel = |workload| {
        let ratio = results.ratio(Metric::Time, workload, [USRING, KERNEL], None);
        Bar::times_at_most(format!("{workload}, against the kernel's"), ratio, MOST_FORK)
    };
    let starts = [(ONE, 1.0), (ONE_THREADED, 1.0), (MANY, 100.0)].map(milliseconds);
    starts.into_iter().chain([FORK, FORK_OWN].map(against_kernel)).collect()
}
