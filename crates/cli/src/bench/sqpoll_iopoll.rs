//! `usring bench sqpoll-iopoll`: IOPOLL with SQPOLL. It compares an io_uring_enter that waits on
//! the CQ ("after") with one that polls beside the SQ thread ("before"), as kernels before 5.7 did.
//! An option of the library, made only for this benchmark, makes io_uring_enter poll.
//!
//! The workload reads 4 KiB blocks in sequence, as fio does: as soon as requests have completed, it
//! submits as many new ones. The targets are the gains published with the kernel's change, measured
//! on an NVMe drive.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;
use super::stage::Prop;
use crate::environment::POLLING_ENTER;

const DESCRIPTION: &str = "\
    Sequential reads of 4 KiB with IOPOLL and SQPOLL. An io_uring_enter(2) that waits on the \
    completion queue is compared with one that polls beside the SQ thread, as kernels before \
    5.7 did.";

const BEFORE: &str = "enter polls";
const AFTER: &str = "enter waits";

/// Each row: a queue depth, and two results of the kernel's change in percent. They are the gain in
/// bandwidth, and the share of a processor that the program still used.
const TABLE: [(u32, f64, f64); 5] =
    [(4, 5.5, 63.8), (8, 13.2, 74.4), (16, 12.3, 81.1), (32, 9.8, 83.7), (64, 11.5, 82.4)];

/// A null device with a fast drive's latency. At depth 4 its bandwidth is about that of the drive
/// on which `TABLE` was measured.
const NULL: (&str, &str) = ("null device, 14 µs", "null:size=1T,latency=14us");
const BACK_END: (&str, &str) = ("vhost-user", "vhost-user:socket={folder}/socket,zero-copy=on");

/// Argument by which the workload adds the back end's processor time to the sample.
const COUNTED: &str = " --server {server}";

/// Number of threads that poll in a case with a back end: the back end, the SQ thread and the
/// program. With fewer processors the comparison means nothing: an enter that polls then wins only
/// because it keeps the SQ thread off the ring.
const POLLERS: usize = 3;

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "sqpoll-iopoll",
        description: DESCRIPTION,
        metrics: &[Metric::Bandwidth, Metric::Thread, Metric::Processor, Metric::Median, Metric::Tail],
        rounds: 7,
        props: &[Prop::BackEnd { queues: 1 }],
        rival: BEFORE,
        cases: cases(),
        bars,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (workload, spec) in [NULL, BACK_END] {
        for (depth, ..) in TABLE {
            for label in [BEFORE, AFTER] {
                cases.push(Case {
                    workload: workload.into(),
                    label,
                    system: System::Usring(&[]),
                    device: Some(spec.into()),
                    environment: if label == BEFORE { &[(POLLING_ENTER, "1")] } else { &[] },
                    program: "workload-device",
                    arguments: format!(
                        "--path {{folder}}/device --sq-thread 1 --order sequential --latencies 1 \
                         --depth {depth} --batch {depth} --wait 1{}",
                        if spec == BACK_END.1 { COUNTED } else { "" }
                    ),
                    clients: None,
                    parameters: vec![("block size", 4096), ("queue depth", depth)],
                });
            }
        }
    }
    cases
}

fn bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (workload, _) in [NULL, BACK_END] {
        let measurable = workload == NULL.0 || processors() >= POLLERS;
        let median = |metric, label, depth| results.median(metric, workload, label, Some(depth)).filter(|_| measurable);
        for (depth, gain, processor) in TABLE {
            let bandwidth = |label| median(Metric::Bandwidth, label, depth);
            let gained = bandwidth(AFTER).zip(bandwidth(BEFORE)).map(|(after, before)| (after / before - 1.0) * 100.0);
            let used = median(Metric::Thread, AFTER, depth);
            bars.push(Bar::at_least(format!("{workload}, depth {depth}: bandwidth gained"), gained, gain, "%"));
            bars.push(Bar::at_most(
                format!("{workload}, depth {depth}: processor use of the program"),
                used,
                processor,
                "%",
            ));
        }
    }
    bars
}
