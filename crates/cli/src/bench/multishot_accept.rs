//! `usring bench multishot-accept`: 10,000 clients, 1,000 at a time. Each client connects, sends
//! 128 bytes and gets them back. Then the server closes the connection, and then the client. The
//! figure is the server's processor time per connection, with one accept request for all
//! connections and with one for each.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;

const DESCRIPTION: &str = "\
    10,000 connections, 1,000 at a time. Each sends 128 bytes, gets them back, and is closed. \
    They are accepted by one request for all, or by one request each. The rival is the \
    kernel's ring.";

const KERNEL: &str = "kernel";
const USRING: &str = "usring";
const KERNEL_SINGLESHOT: &str = "kernel, singleshot";
const USRING_SINGLESHOT: &str = "usring, singleshot";
const EPOLL: &str = "epoll";
const WORKLOAD: &str = "short connections";

/// Least saving of processor time by the multishot accept request, in percent.
const GAIN: f64 = 1.65;

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "multishot-accept",
        description: DESCRIPTION,
        metrics: &[Metric::ProcessorTime, Metric::Rate, Metric::Processor],
        rounds: 20,
        props: &[],
        rival: KERNEL,
        cases: cases(),
        bars,
    }
}

fn cases() -> Vec<Case> {
    // In both cases, the server makes a new receive request for each receive. Multishot receives
    // would save nothing: each connection here needs only one receive.
    const SINGLE_ACCEPTS: &str = "--singleshot both";
    const MULTISHOT_ACCEPT: &str = "--singleshot receive";
    let case = |label, system, program, arguments: &str| Case {
        workload: WORKLOAD.into(),
        label,
        system,
        device: None,
        environment: &[],
        program,
        arguments: format!("--close-after 128 {arguments}").trim().into(),
        clients: Some(("workload-storm", "--closes server --connections 10000 --at-once 1000".into())),
        parameters: vec![("block size", 128), ("connections", 10_000)],
    };
    vec![
        case(KERNEL, System::Kernel, "echo_server", MULTISHOT_ACCEPT),
        case(KERNEL_SINGLESHOT, System::Kernel, "echo_server", SINGLE_ACCEPTS),
        case(USRING, System::Usring(&[]), "echo_server", MULTISHOT_ACCEPT),
        case(USRING_SINGLESHOT, System::Usring(&[]), "echo_server", SINGLE_ACCEPTS),
        case(EPOLL, System::Kernel, "workload-epoll", ""),
    ]
}

fn bars(results: &Results) -> Vec<Bar> {
    let ratio = |labels| results.ratio(Metric::ProcessorTime, WORKLOAD, labels, None);
    let saved = |labels| Some((1.0 - ratio(labels)?.median) * 100.0);
    vec![
        Bar::times_at_most("processor time, usring against kernel", ratio([USRING, KERNEL]), 1.10),
        Bar::at_least("processor time saved by multishot", saved([USRING, USRING_SINGLESHOT]), GAIN, "%"),
    ]
}
