//! `usring bench vhost-user`: reads from a back end in another process, through a ring of usring's
//! and through the `blkio` library. Both use the same socket, one after the other, and both poll.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;
use super::stage::Prop;

const DESCRIPTION: &str = "\
    Reads of 4 KiB from a null device of qemu-storage-daemon, through a ring of usring's and \
    through the library blkio. Both poll.";

const WORKLOAD: &str = "qemu-storage-daemon";
const USRING: &str = "usring";
const LIBRARY: &str = "blkio";
const DEPTHS: [u32; 2] = [1, 32];

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "vhost-user",
        description: DESCRIPTION,
        metrics: &[Metric::Rate, Metric::Median, Metric::Tail, Metric::ProcessorTime],
        rounds: 9,
        props: &[Prop::BackEnd { queues: 1 }],
        rival: LIBRARY,
        cases: DEPTHS.iter().flat_map(|depth| [USRING, LIBRARY].map(|label| case(label, *depth))).collect(),
        bars,
    }
}

fn case(label: &'static str, depth: u32) -> Case {
    let ours = label == USRING;
    let shape = format!("--depth {depth} --batch {depth} --wait 1 --latencies 1 --server {{server}}");
    Case {
        workload: WORKLOAD.into(),
        label,
        system: if ours { System::Usring(&[]) } else { System::Kernel },
        device: ours.then(|| "vhost-user:socket={folder}/socket,zero-copy=on".into()),
        environment: &[],
        program: if ours { "workload-device" } else { "workload-blkio" },
        arguments: format!("--path {{folder}}/{} {shape}", if ours { "device" } else { "socket" }),
        clients: None,
        parameters: vec![("block size", 4096), ("queue depth", depth)],
    }
}

fn bars(results: &Results) -> Vec<Bar> {
    let bar = |depth| {
        let ratio = results.ratio(Metric::Rate, WORKLOAD, [USRING, LIBRARY], Some(depth));
        Bar::times_at_least(format!("against blkio, depth {depth}"), ratio, 1.0)
    };
    DEPTHS.map(bar).into()
}
