//! `usring bench polled-aio`: AIO contexts that poll for their events, and contexts whose waiters
//! sleep until a notification, on the same devices. One thread reads random blocks of 4 KiB.
//!
//! The rows of a back end in another process have a limit ([`Bar`]). So have the rows of a file,
//! which are compared with the kernel's AIO on that file. The rows of a null device have no limit:
//! its notification comes from a timer of the waiting thread, and they mostly show that cost.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;
use super::stage::Prop;

const DESCRIPTION: &str = "\
    Reads of 4 KiB at random through libaio's calls. Contexts that poll are compared with \
    contexts that do not, on the same devices, and with the kernel's AIO on a file.";

const POLLED: &str = "polled";
const NOT_POLLED: &str = "not polled";
const KERNEL: &str = "kernel";

/// A null device with the latencies of a fast drive. Latencies vary from request to request, so
/// that notifications come one by one.
const NULL: (&str, &str) = ("null device, 10 ± 2 µs", "null:size=1T,latency=normal(10us,2us)");
const BACK_END: (&str, &str) = ("vhost-user", "vhost-user:socket={folder}/socket,zero-copy=on");
const FILE: &str = "file, O_DIRECT";
/// The gain published with the kernel's patches for polled AIO: 845 K instead of 600 K reads per
/// second.
const GAIN: f64 = 1.41;
const FILE_SIZE: usize = 64;

const DEPTHS: [u32; 5] = [1, 4, 16, 32, 128];
/// Queue depths with a limit ([`Bar`]). At greater depths the back end's single thread limits the
/// rate.
const HELD: [u32; 2] = [1, 32];

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "polled-aio",
        description: DESCRIPTION,
        metrics: &[Metric::Rate, Metric::ProcessorTime, Metric::Median, Metric::Tail],
        rounds: 7,
        props: &[Prop::BackEnd { queues: 1 }, Prop::File(FILE_SIZE)],
        rival: NOT_POLLED,
        cases: cases(),
        bars,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for depth in DEPTHS {
        for device in [NULL, BACK_END] {
            cases.extend([POLLED, NOT_POLLED].map(|label| case(device.0, label, Some(device.1), depth)));
        }
        cases.extend([POLLED, NOT_POLLED, KERNEL].map(|label| case(FILE, label, None, depth)));
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
            "--path {{folder}}/{place} --polled {} --latencies 1 --depth {depth} --batch {depth} --wait 1{}",
            u32::from(label == POLLED),
            if workload == BACK_END.0 { " --server {server}" } else { "" }
        ),
        clients: None,
        parameters: vec![("block size", 4096), ("queue depth", depth)],
    }
}

fn bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for depth in HELD {
        let ratio = |workload, labels| results.ratio(Metric::Rate, workload, labels, Some(depth));
        let name = format!("{}, depth {depth}: polled against not polled", BACK_END.0);
        bars.push(Bar::times_at_least(name, ratio(BACK_END.0, [POLLED, NOT_POLLED]), GAIN));
        let name = format!("{FILE}, depth {depth}: not polled against the kernel's AIO");
        bars.push(Bar::times_at_least(name, ratio(FILE, [NOT_POLLED, KERNEL]), 0.97));
    }
    bars
}
