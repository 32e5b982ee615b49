//! `usring bench polled-aio`: AIO contexts whose events are polled for, and ones
//! that are told of them, on the same devices; beside them the kernel's AIO on a
//! file. One thread on one processor, 4 KiB at random. The figures to be met are
//! those by which the kernel's patches were known: 845 K reads per second
//! polled, the drive's limit, against 600 K.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;
use super::stage::Prop;

const POLLED: &str = "polled";
const TOLD: &str = "not polled";
const KERNEL: &str = "kernel";

/// The latencies are those of a fast drive, each request its own: what is told of
/// comes one by one.
const NULL: (&str, &str) = ("null device, 10 ± 2 µs", "null:size=1T,latency=normal(10us,2us)");
const BACK_END: (&str, &str) = ("vhost-user", "vhost-user:socket={folder}/socket,zero-copy=on");
const FILE: &str = "file, O_DIRECT";
const FILE_SIZE: usize = 64;

const DEPTHS: [u32; 5] = [1, 4, 16, 32, 128];
/// As deep as the patches' own figures were taken.
const DEEP: u32 = 128;
/// Deeper, the one thread of a back end is the limit, however it is waited for.
const DEEP_FOR_BACK_END: u32 = 32;

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "polled-aio",
        metrics: &[Metric::Rate, Metric::ProcessorTime, Metric::Median, Metric::Tail],
        rounds: 7,
        props: &[Prop::BackEnd { queues: 1 }, Prop::File(FILE_SIZE)],
        rival: TOLD,
        cases: cases(),
        bars,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for depth in DEPTHS {
        for device in [NULL, BACK_END] {
            cases.extend([POLLED, TOLD].map(|label| case(device.0, label, Some(device.1), depth)));
        }
        cases.push(case(FILE, KERNEL, None, depth));
    }
    cases
}

fn case(workload: &'static str, label: &'static str, device: Option<&str>, depth: u32) -> Case {
    let place = if device.is_some() { "device" } else { "file" };
    Case {
        workload: workload.into(),
        label,
        system: if label == KERNEL { System::Kernel } else { System::Usring(&[]) },
        device: device.map(Into::into),
        environment: &[],
        program: "workload-aio",
        arguments: format!(
            "--path {{folder}}/{place} --polled {} --latencies 1 --depth {depth} --batch {depth} --wait 1",
            u32::from(label == POLLED)
        ),
        clients: None,
        parameters: vec![("block size", 4096), ("queue depth", depth)],
    }
}

fn bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for ((workload, _), depth) in [(NULL, DEEP), (BACK_END, DEEP_FOR_BACK_END)] {
        let ratio = results.ratio(Metric::Rate, workload, [POLLED, TOLD], Some(depth));
        bars.push(Bar::times_at_least(format!("{workload}, depth {depth}: polled against not polled"), ratio, 1.41));
    }
    let rate = results.median(Metric::Rate, NULL.0, POLLED, Some(DEEP)).map(|rate| rate / 1000.0);
    bars.push(Bar::at_least(format!("{}, depth {DEEP}: polled", NULL.0), rate, 845.0, "k/s"));
    bars
}
