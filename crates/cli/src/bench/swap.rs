//! `usring bench swap`: writes at random places of 256 MiB, of which 64 MiB are resident, by one
//! thread and by several.
//!
//! - usring's regions wait by interrupts, by polling and by hybrid polling. Their backings are
//!   memory, a device with the latency of a fast drive, a back end in another process, and a file.
//! - The rivals are the kernel's swap on the same file and in compressed memory (zram), a mapping
//!   of the file, and a pager built like LLNL's UMap.
//! - The targets are the gains published for polled swap-in in the kernel.

use super::Benchmark;
use super::child::System;
use super::frame::{Bar, Case, Results};
use super::metric::Metric;
use super::stage::Prop;
use crate::swap_probe::region_in_memory;
use usring_swap::{Mechanism, SwapRegion};

const DESCRIPTION: &str = "\
    Writes at random places of 256 MiB of memory, of which 64 MiB are resident. Latencies are \
    those of writes that took longer than a microsecond. The rivals are the kernel's swap \
    without readahead, a mapped file, and a pager like LLNL's UMap.";

const INTERRUPT: &str = "interrupt";
const CLASSIC: &str = "classic";
const HYBRID: &str = "hybrid";
const MODES: [&str; 3] = [INTERRUPT, CLASSIC, HYBRID];

const USERFAULT: &str = "userfault";
const GUARD: &str = "guard";
const KERNEL: &str = "kernel";
const UMAP: &str = "umap";
const MAPPED: &str = "mapped file";
const FLOOR: &str = "floor";

const FAULT: &str = "one fault";
const MEMORY: &str = "memory";
const DRIVE: &str = "10 µs";
const BACK_END: &str = "vhost-user";
const FILE: &str = "file";

/// Size of the backing file in MiB. It is larger than the swapped region, so that evictions find
/// consecutive free slots in the file.
const FILE_SIZE: usize = 512;
/// Queues of the back end: enough for the evictor, the reader, and every thread of the workload.
const QUEUES: u32 = 16;

const ON_FILE: &str = "--path {folder}/file";

pub fn benchmark() -> Benchmark {
    Benchmark {
        name: "swap",
        description: DESCRIPTION,
        metrics: &[Metric::Rate, Metric::Median, Metric::Tail, Metric::ProcessorTime],
        rounds: 5,
        props: &[Prop::BackEnd { queues: QUEUES }, Prop::File(FILE_SIZE)],
        rival: KERNEL,
        cases: cases(),
        bars,
    }
}

/// Returns the name of a workload with this many threads.
fn with(threads: u32, store: &str) -> String {
    format!("{store}, {threads} {}", if threads == 1 { "thread" } else { "threads" })
}

fn case(workload: impl Into<String>, label: &'static str, arguments: impl Into<String>) -> Case {
    let ours = match label {
        USERFAULT => works(Mechanism::UserFault),
        GUARD => works(Mechanism::Guard),
        _ => MODES.contains(&label),
    };
    Case {
        workload: workload.into(),
        label,
        system: if ours { System::Linked } else { System::Kernel },
        device: None,
        environment: &[],
        program: "workload-swap",
        arguments: arguments.into(),
        clients: None,
        parameters: vec![("block size", 4096)],
    }
}

/// Returns whether a mechanism works on this machine. A mechanism that does not work is missing in
/// the kernel, or a sandbox forbids it. The benchmark must not fail for that reason.
fn works(mechanism: Mechanism) -> bool {
    const SIZE: usize = 1 << 20;
    let builder = SwapRegion::builder().size(SIZE).limit(SIZE).mechanism(mechanism);
    region_in_memory(builder, "ram:size=1M").is_ok()
}

fn on(store: &str, threads: u32, label: &'static str, arguments: &str) -> Case {
    case(with(threads, store), label, format!("--threads {threads} {arguments}"))
}

/// Returns a case for each of these polling modes, on a region whose pages go to `device`.
fn regions(store: &'static str, device: &str, threads: u32, modes: &[&'static str]) -> Vec<Case> {
    // The back end stores nothing, so its content cannot be verified.
    let verify = u32::from(store != BACK_END);
    let region = |mode: &&'static str| {
        on(store, threads, mode, &format!("--by region --verify {verify} --backing {device},poll={mode}"))
    };
    modes.iter().map(region).collect()
}

fn cases() -> Vec<Case> {
    let once = |label, arguments: &str| case(FAULT, label, format!("--visits once --size 64 {arguments}"));
    let floor = Case {
        program: "workload-floor",
        parameters: Vec::new(),
        ..case("bare system call", FLOOR, "--of system-call")
    };
    let mut cases = vec![
        floor,
        Case { workload: "a page's first touch".into(), ..once(FLOOR, "--by first-touch") },
        once(USERFAULT, "--by region --mechanism userfault --backing ram:size=128M"),
        once(GUARD, "--by region --mechanism guard --backing ram:size=128M"),
        once(UMAP, "--by umap"),
        once(KERNEL, "--by kernel-zram"),
    ];
    const IN_MEMORY: &str = "--by region --mechanism userfault --backing ram:size=512M";
    cases.extend([1, 2, 4, 8].map(|threads| on(MEMORY, threads, USERFAULT, IN_MEMORY)));
    for threads in [1, 2, 8] {
        cases.push(on(MEMORY, threads, KERNEL, "--by kernel-zram"));
        cases.push(on(MEMORY, threads, UMAP, "--by umap"));
    }
    for threads in [1, 8] {
        cases.extend(regions(DRIVE, "delay(ram:size=512M,read=10us,write=10us)", threads, &MODES));
        cases.extend(regions(BACK_END, "vhost-user:socket={folder}/socket", threads, &MODES));
    }
    for threads in [1, 2, 8] {
        let modes = if threads == 2 { &MODES[..2] } else { &MODES };
        cases.extend(regions(FILE, "file:path={folder}/file,overwrite=on", threads, modes));
        cases.push(on(FILE, threads, KERNEL, &format!("--by kernel-file {ON_FILE}")));
    }
    for threads in [1, 2] {
        cases.push(on(FILE, threads, MAPPED, &format!("--by mapped-file {ON_FILE}")));
        cases.push(on(FILE, threads, UMAP, &format!("--by umap {ON_FILE}")));
    }
    cases
}

fn bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (label, most) in [(USERFAULT, 7.0), (GUARD, 9.0)] {
        let median = results.median(Metric::Median, FAULT, label, None).map(|median| median / 1000.0);
        bars.push(Bar::at_most(format!("{FAULT}, pages in memory: {label}"), median, most, "µs"));
    }
    let ratio = |metric, store, threads, labels| results.ratio(metric, &with(threads, store), labels, None);
    let enough = std::thread::available_parallelism().is_ok_and(|count| count.get() > 8);
    for (threads, gain) in [(1, 1.27), (8, 1.20)] {
        // The limit is measured on the back end in another process. A device in this process has a
        // timer in place of an interrupt, and the timer's cost would distort the ratio. With
        // several threads, the limit counts only if the polling threads and the back end have a
        // processor each.
        let gained = ratio(Metric::Rate, BACK_END, threads, [CLASSIC, INTERRUPT]).filter(|_| threads == 1 || enough);
        bars.push(Bar::times_at_least(format!("{}: polled against interrupt", with(threads, BACK_END)), gained, gain));
    }
    for (threads, gain) in [(1, 1.4), (2, 1.5)] {
        let name = with(threads, FILE);
        let gained = ratio(Metric::Rate, FILE, threads, [CLASSIC, KERNEL]);
        bars.push(Bar::times_at_least(format!("{name}: polled against the kernel's swap"), gained, gain));
        let tail = ratio(Metric::Tail, FILE, threads, [CLASSIC, KERNEL]);
        bars.push(Bar::times_at_most(format!("{name}: 99 of 100 faults against the kernel's"), tail, 1.0));
    }
    let shared =
        results.ratio_of(Metric::ProcessorTime, [(&with(8, MEMORY), USERFAULT), (&with(1, MEMORY), USERFAULT)]);
    bars.push(Bar::times_at_most(format!("{MEMORY}: processor time of a write by 8 threads against 1"), shared, 1.25));
    for store in [DRIVE, FILE] {
        // The limit for hybrid polling counts only if hybrid polling gains noticeably and in fact
        // sleeps. If the timer is too coarse for the device, hybrid polling never sleeps and equals
        // classic polling.
        let median = |metric, labels| ratio(metric, store, 1, labels).map(|ratio| ratio.median);
        let gains = median(Metric::Rate, [HYBRID, INTERRUPT]).is_some_and(|gain| gain > 1.1);
        let sleeps = median(Metric::ProcessorTime, [HYBRID, CLASSIC]).is_some_and(|part| part < 0.95);
        let used = ratio(Metric::ProcessorTime, store, 1, [HYBRID, INTERRUPT]).filter(|_| gains && sleeps);
        bars.push(Bar::times_at_most(
            format!("{}: processor time of hybrid against interrupt", with(1, store)),
            used,
            1.5,
        ));
    }
    bars
}
