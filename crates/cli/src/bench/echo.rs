//! `usring bench echo`: the example server under 50 connections. Each connection sends PINGs, 1 or
//! 16 at a time, and waits for the answers.
//!
//! - The example server runs on the kernel's ring and on usring, in two modes on each. One mode
//!   suits the kernel best (multishot requests, DEFER_TASKRUN), and the other uses no flags. A
//!   plain server on epoll(7) is measured for comparison.
//! - Server and clients have a processor each. The clients are one thread, which is busy all the
//!   time. So the rate says less about the server than the server's processor time per request
//!   does.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;

const DESCRIPTION: &str = "\
    The example server answers PINGs on 50 connections, one and 16 at a time on each. Server \
    and clients have a processor each. One executable runs on the kernel's ring and on usring, \
    and a plain server uses epoll(7).";

const KERNEL: &str = "kernel";
const USRING: &str = "usring";
const KERNEL_PLAIN: &str = "kernel, no flags";
const USRING_PLAIN: &str = "usring, no flags";
const EPOLL: &str = "epoll";

const CONNECTIONS: u32 = 50;
/// A workload, and the number of PINGs that a connection sends at a time.
const WORKLOADS: [(&str, u32); 2] = [("PING, one at a time", 1), ("PING, pipelined", 16)];

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "echo",
        description: DESCRIPTION,
        metrics: &[Metric::ProcessorTime, Metric::Rate, Metric::Median, Metric::Most, Metric::Tail, Metric::Processor],
        rounds: 21,
        props: &[],
        rival: KERNEL,
        cases: cases(),
        bars,
    }
}

fn cases() -> Vec<Case> {
    const SERVER: &str = "echo_server";
    let case = |(workload, pipeline): (&str, u32), label, system, program, arguments: &str| Case {
        workload: workload.into(),
        label,
        system,
        device: None,
        environment: &[],
        program,
        arguments: arguments.into(),
        clients: Some(("workload-echo", format!("--connections {CONNECTIONS} --pipeline {pipeline}"))),
        parameters: vec![("connections", CONNECTIONS), ("queue depth", pipeline)],
    };
    let cases = |workload| {
        [
            case(workload, KERNEL, System::Kernel, SERVER, "--mode defer"),
            case(workload, USRING, System::Usring(&[]), SERVER, "--mode defer"),
            case(workload, KERNEL_PLAIN, System::Kernel, SERVER, "--mode default"),
            case(workload, USRING_PLAIN, System::Usring(&[]), SERVER, "--mode default"),
            case(workload, EPOLL, System::Kernel, "workload-epoll", ""),
        ]
    };
    WORKLOADS.into_iter().flat_map(cases).collect()
}

fn bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (workload, _) in WORKLOADS {
        for (labels, rate, processor) in [([USRING, KERNEL], 0.95, 1.05), ([USRING_PLAIN, KERNEL_PLAIN], 0.97, 1.05)] {
            let name = |what| format!("{workload}: {what}, {} against {}", labels[0], labels[1]);
            let ratio = |metric| results.ratio(metric, workload, labels, None);
            bars.push(Bar::times_at_least(name("requests"), ratio(Metric::Rate), rate));
            bars.push(Bar::times_at_most(name("processor time"), ratio(Metric::ProcessorTime), processor));
        }
    }
    bars
}
