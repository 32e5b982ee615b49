//! `usring bench nop`: the cost of a request without work, through each entry point, and the cost
//! of page-cache reads. For these reads, copying the data costs more than the ring does.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;

const DESCRIPTION: &str = "\
    NOPs through a patched call site, one by one and 32 together, and through a site that \
    cannot be patched. Reads of 4 KiB from the page cache. The rival is the kernel's ring in \
    its fastest setup. pread(2) and preadv2(2) show what a read costs without a ring.";

const FLOOR_CALL: &str = "bare system call";
const FLOOR_COPY: &str = "memcpy";
const ONE: &str = "NOP, one by one";
const BATCH: &str = "NOP, in batches";
const READ: &str = "page-cache read";
pub const KERNEL: &str = "kernel";
const USRING: &str = "usring";
const TRAP: &str = "usring, site not patchable";
const CALL: &str = "pread(2)";
/// Label of the row that measures preadv2(2) alone. usring makes this call for each read, so no row
/// of usring's can be faster.
const CALL_WITHOUT_WAITING: &str = "preadv2(2), RWF_NOWAIT";

/// Returns the benchmark's cases and limits ([`Bar`]).
pub fn benchmark() -> Benchmark {
    let metrics = &[Metric::Time];
    Benchmark {
        name: "nop",
        description: DESCRIPTION,
        metrics,
        rounds: 11,
        props: &[],
        rival: KERNEL,
        cases: cases(),
        bars,
    }
}

const USRING_RUN: System = System::Usring(&[]);

fn case(
    workload: &str,
    label: &'static str,
    system: System,
    program: &'static str,
    arguments: &str,
    parameters: &[(&'static str, u32)],
) -> Case {
    let (workload, arguments, parameters) = (workload.into(), arguments.into(), parameters.to_vec());
    Case { workload, label, system, device: None, environment: &[], program, arguments, clients: None, parameters }
}

fn cases() -> Vec<Case> {
    const NOP: &str = "workload-nop";
    const NOP_ONE: &str = "--batch 1 --site inline";
    /// The fastest setup of the kernel's ring.
    const NOP_ONE_BEST: &str = "--batch 1 --site inline --best 1";
    const NOP_BATCH_BEST: &str = "--batch 32 --site inline --best 1";
    const RING_BEST: &str = "--by ring --batch 32 --best 1";
    const NOP_BARE: &str = "--batch 1 --site bare";
    const NOP_BATCH: &str = "--batch 32 --site inline";
    const RING: &str = "--by ring --batch 32";
    const DEPTH_1: &[(&str, u32)] = &[("queue depth", 1)];
    const DEPTH_32: &[(&str, u32)] = &[("queue depth", 32)];
    const BLOCK: &[(&str, u32)] = &[("block size", 4096)];
    const BLOCK_1: &[(&str, u32)] = &[("block size", 4096), ("queue depth", 1)];
    const BLOCK_32: &[(&str, u32)] = &[("block size", 4096), ("queue depth", 32)];
    vec![
        case(FLOOR_CALL, "floor", System::Kernel, "workload-floor", "--of system-call", &[]),
        case(FLOOR_COPY, "floor", System::Kernel, "workload-floor", "--of copy", BLOCK),
        case(ONE, KERNEL, System::Kernel, NOP, NOP_ONE_BEST, DEPTH_1),
        case(ONE, USRING, USRING_RUN, NOP, NOP_ONE, DEPTH_1),
        case(ONE, TRAP, USRING_RUN, NOP, NOP_BARE, DEPTH_1),
        case(BATCH, KERNEL, System::Kernel, NOP, NOP_BATCH_BEST, DEPTH_32),
        case(BATCH, USRING, USRING_RUN, NOP, NOP_BATCH, DEPTH_32),
        case(READ, KERNEL, System::Kernel, "workload-read", RING_BEST, BLOCK_32),
        case(READ, USRING, USRING_RUN, "workload-read", RING, BLOCK_32),
        case(READ, CALL, System::Kernel, "workload-read", "--by pread", BLOCK_1),
        case(READ, CALL_WITHOUT_WAITING, System::Kernel, "workload-read", "--by preadv2", BLOCK_1),
    ]
}

fn bars(results: &Results) -> Vec<Bar> {
    let median = |workload, label| results.median(Metric::Time, workload, label, None);
    let reads = results.ratio(Metric::Time, READ, [USRING, KERNEL], None);
    vec![
        Bar::at_most("NOP one by one, patched", median(ONE, USRING), 60.0, "ns"),
        Bar::at_most("NOP in batches of 32, patched", median(BATCH, USRING), 25.0, "ns"),
        Bar::times_at_most("page-cache reads against the kernel's ring", reads, 1.0),
        Bar::at_most("NOP through a site that cannot be patched", median(ONE, TRAP), 3000.0, "ns"),
    ]
}
