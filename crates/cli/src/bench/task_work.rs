//! `usring bench task-work`: threads with a ring each, which answer each other's requests. The
//! sender of a message queues it on the receiver's ring, and notifies the receiver. The limits
//! ([`Bar`]) compare usring with the kernel's ring.
//!
//! Two more rows add a signal to each message, on usring's rings. In one row the sender takes no
//! lock. In the other row the sender holds a lock that all threads share, as in kernels before
//! 5.11. In both rows, usring still sends its own notification, so a single row means little. The
//! difference of the two rows is the cost of the lock.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;

const DESCRIPTION: &str = "\
    Threads with a ring each answer each other's requests, 8 in flight per thread. Two rows \
    add a signal to each message, without and with a lock that all threads share. The rival is \
    the kernel's ring.";

const OWN: &str = "per thread";
const SIGNAL: &str = "signal";
const SHARED: &str = "signal, shared lock";
const KERNEL: &str = "kernel";

const THREADS: [u32; 5] = [1, 2, 4, 8, 16];
/// Largest number of threads. The limits ([`Bar`]) of the rate and of the processor time hold for
/// the rows with this number.
const MOST: u32 = 16;
/// Requests in flight per thread.
const DEPTH: u32 = 8;

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "task-work",
        description: DESCRIPTION,
        metrics: &[
            Metric::Rate,
            Metric::ProcessorTime,
            Metric::Within200,
            Metric::Within300,
            Metric::Within400,
            Metric::Median,
            Metric::Wakes,
        ],
        rounds: 11,
        props: &[],
        rival: KERNEL,
        cases: cases(),
        bars,
    }
}

fn workload(threads: u32) -> String {
    format!("{threads} {}", if threads == 1 { "thread" } else { "threads" })
}

fn case(workload: String, label: &'static str, system: System, program: &'static str, arguments: String) -> Case {
    let parameters = if label == "floor" { vec![] } else { vec![("queue depth", DEPTH)] };
    Case { workload, label, system, device: None, environment: &[], program, arguments, clients: None, parameters }
}

fn cases() -> Vec<Case> {
    let floor = |workload: &str, of: &str| {
        case(workload.into(), "floor", System::Kernel, "workload-floor", format!("--of {of}"))
    };
    let mut cases = vec![floor("bare system call", "system-call"), floor("waking a thread by futex", "hand-over")];
    for threads in THREADS {
        for (label, system, notified) in [
            (SHARED, System::Usring(&[]), "shared"),
            (SIGNAL, System::Usring(&[]), "signal"),
            (OWN, System::Usring(&[]), "own"),
            (KERNEL, System::Kernel, "own"),
        ] {
            let arguments = format!("--threads {threads} --depth {DEPTH} --notified {notified}");
            cases.push(case(workload(threads), label, system, "workload-tasks", arguments));
        }
    }
    cases
}

fn bars(results: &Results) -> Vec<Bar> {
    let most = workload(MOST);
    let ratio = |metric| results.ratio(metric, &most, [OWN, KERNEL], None);
    let rate = Bar::times_at_least(format!("{most}: requests, against the kernel's ring"), ratio(Metric::Rate), 1.0);
    let used = ratio(Metric::ProcessorTime);
    let used = Bar::times_at_most(format!("{most}: processor time per request, against the kernel's ring"), used, 1.0);
    let wakes = |threads| results.median(Metric::Wakes, &workload(threads), OWN, None);
    let worst = THREADS.into_iter().filter_map(wakes).reduce(f64::max);
    vec![rate, used, Bar::at_most("wakes per completion, maximum of all rows", worst, 0.25, "wakes")]
}
