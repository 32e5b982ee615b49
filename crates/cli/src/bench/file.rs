//! `usring bench file`: 4 KiB transfers of an ordinary file open with O_DIRECT, by the kernel's
//! ring and by usring's ring. usring's ring passes the transfers to the kernel's AIO.
//!
//! The kernel's ring has its fastest setup: SINGLE_ISSUER with DEFER_TASKRUN, registered ring, file
//! and buffers. The process is not bound to one processor: with a single processor, usring's
//! waiters would not spin.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;
use super::stage::Prop;

const DESCRIPTION: &str = "\
    Transfers of 4 KiB of a file with O_DIRECT. A quarter of the depth is submitted and waited \
    for together. The rival is the kernel's ring in its fastest setup, with registered file \
    and buffers.";

const KERNEL: &str = "kernel";
const USRING: &str = "usring";
/// Label of the rows in which a waiter polls for up to 200 µs before it sleeps.
const SPINNING: &str = "usring, --spin 200us";

const READS: &str = "reads";
const WRITES: &str = "writes";
const DEPTHS: [u32; 3] = [1, 32, 128];
const FILE_SIZE: usize = 256;

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "file",
        description: DESCRIPTION,
        metrics: &[Metric::Rate, Metric::ProcessorTime],
        rounds: 9,
        props: &[Prop::File(FILE_SIZE)],
        rival: KERNEL,
        cases: cases(),
        bars,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for workload in [READS, WRITES] {
        for depth in DEPTHS {
            cases.extend([KERNEL, USRING].map(|label| case(workload, label, depth)));
        }
        cases.push(case(workload, SPINNING, 1));
    }
    cases
}

fn case(workload: &str, label: &'static str, depth: u32) -> Case {
    let system = match label {
        KERNEL => System::Kernel,
        SPINNING => System::Usring(&["--spin=200us"]),
        _ => System::Usring(&[]),
    };
    let together = depth.div_ceil(4);
    Case {
        workload: workload.into(),
        label,
        system,
        device: None,
        environment: &[],
        program: "workload-device",
        arguments: format!(
            "--path {{folder}}/file --polled 0 --best 1 --pinned 0 --writes {} --depth {depth} --batch {together} --wait {together}",
            u32::from(workload == WRITES)
        ),
        clients: None,
        parameters: vec![("block size", 4096), ("queue depth", depth)],
    }
}

fn bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for workload in [READS, WRITES] {
        for depth in DEPTHS {
            let ratio = |metric| results.ratio(metric, workload, [USRING, KERNEL], Some(depth));
            let name = |what| format!("{workload}, depth {depth}: {what} against the kernel's ring");
            bars.push(Bar::times_at_least(name("rate"), ratio(Metric::Rate), 0.97));
            bars.push(Bar::times_at_most(name("processor time"), ratio(Metric::ProcessorTime), 1.15));
        }
        let ratio = results.ratio(Metric::Rate, workload, [SPINNING, KERNEL], Some(1));
        bars.push(Bar::times_at_least(format!("{workload}, depth 1: rate, spinning"), ratio, 1.15));
    }
    bars
}
