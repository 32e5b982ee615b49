//! `usring bench polling`: polling policies of a ring, by queue depth and by the device's latency.
//! The workload waits for one completion, reaps all completions that are posted, and submits as
//! many new requests.
//!
//! The limit ([`Bar`]) for the gain of polling over interrupts is measured on qemu-storage-daemon,
//! whose interrupt comes from another process. The null device is not suited for this limit: its
//! interrupt is a timer of the waiting thread itself.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;
use super::stage::Prop;

const DESCRIPTION: &str = "\
    Reads of 4 KiB at random on devices with different latencies. A ring that waits for \
    interrupts is compared with classic and hybrid polling.";

const INTERRUPT: &str = "interrupt";
const CLASSIC: &str = "classic";
const HYBRID: &str = "hybrid";
const FIXED: &str = "hybrid, half the latency";
const MODES: [&str; 4] = [INTERRUPT, CLASSIC, HYBRID, FIXED];

const DEPTHS: [u32; 3] = [1, 8, 32];
const LATENCIES: [u32; 3] = [5, 20, 100];
/// Label of the rows whose device another process serves.
const BACK_END: &str = "qemu-storage-daemon";

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "polling",
        description: DESCRIPTION,
        metrics: &[Metric::Rate, Metric::Median, Metric::Most, Metric::Tail, Metric::Processor],
        rounds: 5,
        props: &[Prop::BackEnd { queues: 1 }],
        rival: INTERRUPT,
        cases: cases(),
        bars,
    }
}

fn workload(latency: u32) -> String {
    format!("null device, {latency} µs")
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for latency in LATENCIES {
        for depth in DEPTHS {
            cases.extend(MODES.map(|mode| case(mode, latency, depth)));
        }
    }
    for depth in DEPTHS {
        cases.extend([INTERRUPT, CLASSIC].map(|mode| back_end_case(mode, depth)));
    }
    cases
}

/// Returns a case on a device that another process serves without an artificial latency.
fn back_end_case(mode: &'static str, depth: u32) -> Case {
    let case = case(mode, 0, depth);
    Case {
        workload: BACK_END.into(),
        arguments: format!("{} --server {{server}}", case.arguments),
        device: Some(format!("vhost-user:socket={{folder}}/socket,poll={mode}")),
        parameters: vec![("block size", 4096), ("queue depth", depth)],
        ..case
    }
}

/// Returns a case on the null device. In the mode `interrupt` the ring has no IOPOLL, because a
/// ring with IOPOLL gets no interrupts.
fn case(mode: &'static str, latency: u32, depth: u32) -> Case {
    let policy = match mode {
        INTERRUPT => "interrupt".to_owned(),
        CLASSIC => "classic".to_owned(),
        HYBRID => "hybrid".to_owned(),
        _ => format!("hybrid:{}ns", latency * 500),
    };
    let polled = u32::from(mode != INTERRUPT);
    Case {
        workload: workload(latency),
        label: mode,
        system: System::Usring(&[]),
        device: Some(format!("null:size=1T,latency={latency}us,poll={policy}")),
        environment: &[],
        program: "workload-device",
        arguments: format!(
            "--path {{folder}}/device --polled {polled} --latencies 1 --depth {depth} --batch {depth} --wait 1"
        ),
        clients: None,
        parameters: vec![("block size", 4096), ("queue depth", depth), ("latency", latency)],
    }
}

fn bars(results: &Results) -> Vec<Bar> {
    let ratio =
        |metric, latency, depth, one, other| results.ratio(metric, &workload(latency), [one, other], Some(depth));
    let polled = results.ratio(Metric::Rate, BACK_END, [CLASSIC, INTERRUPT], Some(1));
    let mut bars = vec![Bar::times_at_least(format!("{BACK_END}, depth 1: polled against interrupt"), polled, 1.6)];
    for latency in LATENCIES {
        let kept = ratio(Metric::Rate, latency, 32, HYBRID, CLASSIC);
        bars.push(Bar::times_at_least(format!("hybrid against classic, depth 32, {latency} µs"), kept, 0.9));
    }
    for depth in DEPTHS {
        let used = ratio(Metric::Processor, 100, depth, HYBRID, CLASSIC);
        let name = format!("processor use of hybrid against classic, depth {depth}, 100 µs");
        bars.push(Bar::times_at_most(name, used, 0.5));
    }
    bars
}
