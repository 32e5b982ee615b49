//! `usring bench engine`: the cost of a read that no device slows down.
//!
//! The program that makes the reads does little more than the io_uring calls themselves, and is
//! modelled on fio's t/io_uring. It reads random blocks of 4 KiB from a registered file into
//! registered buffers. It keeps 128 reads in flight, and submits and reaps them 32 at a time.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;
use super::stage::Prop;

const DESCRIPTION: &str = "\
    Reads of 4 KiB at random, 128 in flight, submitted and reaped 32 at a time. The rows read \
    a device that does nothing, memory, and a file. The limit is a copy of 4 KiB from random \
    places of memory.";

const FLOOR: &str = "floor";
const KERNEL: &str = "kernel";
const USRING: &str = "usring";
const CALL: &str = "bare system call";
const COPY: &str = "memcpy from random places of 256 MiB";
const NULL: &str = "null device, polled";
const RAM: &str = "ram device of 256 MiB, polled";
const CACHE: &str = "file in the page cache";
const DIRECT: &str = "file with O_DIRECT";
const FILE_DEVICE: &str = "file device, polled";

const SHAPE: &str = "--depth 128 --batch 32 --wait 32";

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "engine",
        description: DESCRIPTION,
        metrics: &[Metric::ProcessorTime, Metric::Time, Metric::Rate],
        rounds: 7,
        props: &[Prop::File(64)],
        rival: KERNEL,
        cases: cases(),
        bars,
    }
}

fn cases() -> Vec<Case> {
    let case = |workload: &str, label, device: Option<&str>, arguments: &str| Case {
        workload: workload.into(),
        label,
        system: if label == USRING { System::Usring(&[]) } else { System::Kernel },
        device: device.map(Into::into),
        environment: &[],
        program: "workload-device",
        arguments: match device {
            Some(_) => format!("--path {{folder}}/device {SHAPE} {arguments}"),
            None => format!("{arguments} {SHAPE}"),
        },
        clients: None,
        parameters: vec![("block size", 4096), ("queue depth", 128)],
    };
    let floor = |workload: &str, program, arguments: &str, parameters| Case {
        program,
        arguments: arguments.into(),
        parameters,
        ..case(workload, FLOOR, None, "")
    };
    const CACHED: &str = "--path {folder}/file --polled 0 --direct 0";
    /// Argument that makes the measured program set up its ring with the flags that are fastest on
    /// the kernel.
    const BEST: &str = "--best 1";
    const UNCACHED: &str = "--path {folder}/file --polled 0";
    vec![
        floor(CALL, "workload-floor", "--of system-call", Vec::new()),
        floor(COPY, "workload-device", "--by copy --size 268435456", vec![("block size", 4096)]),
        case(NULL, USRING, Some("null:size=1T"), ""),
        case(RAM, USRING, Some("ram:size=256M"), "--fill 1"),
        case(CACHE, KERNEL, None, &format!("{CACHED} {BEST}")),
        case(CACHE, USRING, None, CACHED),
        case(DIRECT, KERNEL, None, &format!("{UNCACHED} {BEST}")),
        case(DIRECT, USRING, None, UNCACHED),
        case(FILE_DEVICE, USRING, Some("file:path={folder}/file"), ""),
    ]
}

fn bars(results: &Results) -> Vec<Bar> {
    let median = |workload, label| results.median(Metric::ProcessorTime, workload, label, None);
    let of_floor = median(COPY, FLOOR).zip(median(RAM, USRING)).map(|(floor, ram)| floor / ram);
    vec![
        Bar::at_most("processor time of a read of the null device", median(NULL, USRING), 70.0, "ns"),
        Bar::at_least("rate of the ram device against memcpy", of_floor, 0.95, "times"),
    ]
}
