//! `usring bench task-work`: threads with a ring each that answer each other's
//! requests. What comes for a thread is queued on its ring, and the thread is
//! told: as usring does it, where the threads share nothing, or as kernels before
//! 5.11 did, with a lock that all share and a signal. That baseline lives in the
//! workload; what is queued, and how, is the same for both.
//!
//! The bar is the gain by which the kernel's change is known, with 16 threads on
//! as many processors. On fewer the threads take turns, and what notification
//! costs shows in the processor time that a request takes.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;

const OWN: &str = "per thread";
const SHARED: &str = "shared lock";
const KERNEL: &str = "kernel";

const THREADS: [u32; 5] = [1, 2, 4, 8, 16];
/// The row that is held to the bar.
const MOST: u32 = 16;
/// Requests that each thread has open.
const DEPTH: u32 = 8;

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "task-work",
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
        rival: SHARED,
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
        for (label, system, told) in [
            (SHARED, System::Usring(&[]), "shared"),
            (OWN, System::Usring(&[]), "own"),
            (KERNEL, System::Kernel, "own"),
        ] {
            let arguments = format!("--threads {threads} --depth {DEPTH} --told {told}");
            cases.push(case(workload(threads), label, system, "workload-tasks", arguments));
        }
    }
    cases
}

fn bars(results: &Results) -> Vec<Bar> {
    let most = workload(MOST);
    let gain = if std::thread::available_parallelism().is_ok_and(|processors| processors.get() >= MOST as usize) {
        let ratio = results.ratio(Metric::Rate, &most, [OWN, SHARED], None);
        Bar::times_at_least(format!("{most}: requests per second against a shared lock's"), ratio, 1.21)
    } else {
        let ratio = results.ratio(Metric::ProcessorTime, &most, [SHARED, OWN], None);
        Bar::times_at_least(format!("{most}: a shared lock's processor time per request against ours"), ratio, 1.21)
    };
    let wakes = |threads| results.median(Metric::Wakes, &workload(threads), OWN, None);
    let worst = THREADS.into_iter().filter_map(wakes).reduce(f64::max);
    vec![gain, Bar::at_most("wakes per completion, the most of all rows", worst, 0.25, "wakes")]
}
