//! Benchmark: writes at random positions in memory, of which only a part is resident, by any number
//! of threads. It reports writes per second, and the latency of the writes that fault.
//!
//! `workload-swap --by region|umap|kernel-file|kernel-zram|mapped-file|first-touch [--threads N]
//! [--size MIB] [--limit MIB] [--visits many|once] [--verify 0|1] [--milliseconds N]`. A region
//! also takes `--backing SPEC [--mechanism NAME]`; the kinds that use a file take `--path FILE`.
//!
//! Each page belongs to one thread. A write adds to a word of the page and checks the old value, so
//! a page that is paged in with wrong content ends the run. With `--visits once` the program evicts
//! all pages, raises the limit, and touches each page once in random order. That measures faults
//! without evictions.
//!
//! | `--by` | pages managed by |
//! |---|---|
//! | `region` | a swap region of usring |
//! | `umap` | a pager built like LLNL's UMap ([`umap`]) |
//! | `kernel-file`, `kernel-zram` | the kernel's swap, in a memory cgroup ([`kernel`]) |
//! | `mapped-file` | the kernel: a mapped file, in a memory cgroup |
//! | `first-touch` | the kernel: each fault is the first touch of a page, so it costs least |

mod kernel;
mod memory;
mod umap;

use fastrand::Rng;
use memory::{Memory, PAGE};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use workloads::latencies::Latencies;
use workloads::options::{self, Declared, Options, option};
use workloads::stopwatch;

/// A write that takes longer than this counts as a fault. On the measured machines, a write to a
/// resident page takes a fifth of this time, and a fault takes more than twice this time.
const LEAST_FAULT_TIME: Duration = Duration::from_micros(1);

/// A measurement ends only after each thread has made this many faults or, if faults are rare, this
/// many writes. Otherwise a thread that the busy machine did not run would have no result.
const FEWEST_FAULTS: u64 = 20;
const MOST_WRITES: u64 = 100_000;
/// Longest time of a measurement.
const MEASUREMENT_LIMIT: Duration = Duration::from_secs(30);

/// Short runs use less memory, because filling the memory takes time, too. Each row has a duration
/// and a divisor. The first row whose duration is longer than `--milliseconds` gives the divisor of
/// the memory's size.
const MEMORY_DIVISORS: [(Duration, usize); 2] = [(Duration::from_millis(10), 16), (Duration::from_millis(100), 4)];

const OPTIONS: &[Declared] = &[
    option("by", "region", "region, umap, kernel-file, kernel-zram, mapped-file or first-touch"),
    option("path", "", "The file"),
    option("threads", "1", "Number of threads"),
    option("size", "256", "MiB of memory"),
    option("limit", "64", "MiB that may be resident"),
    option("visits", "many", "many, or once: touch each page once"),
    option("verify", "1", "0: do not check the old values"),
    option("backing", "", "SPEC of a region's backing"),
    option("mechanism", "", "Mechanism of a region; empty: the best"),
    option("group", "", "The memory cgroup that this process enters (used internally)"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

/// The options of a run.
struct Shape {
    threads: usize,
    /// Bytes of memory.
    size: usize,
    limit: usize,
    once: bool,
    verify: bool,
    span: Duration,
}

impl Shape {
    fn from(options: &Options) -> Result<Shape, String> {
        let span = options.span()?;
        let part = MEMORY_DIVISORS.into_iter().find_map(|(limit, part)| (span < limit).then_some(part)).unwrap_or(1);
        let mebibytes = |name: &str| options.value::<usize>(name).map(|count| (count << 20) / part);
        Ok(Shape {
            threads: options.value("threads")?,
            size: mebibytes("size")?,
            limit: mebibytes("limit")?,
            once: options.value::<String>("visits")? == "once",
            verify: options.flag("verify")?,
            span,
        })
    }
}

fn workload(options: &Options) -> Result<(), String> {
    let shape = Shape::from(options)?;
    if kernel::starts_another(options, &shape)? {
        return Ok(());
    }
    let memory = memory::make(options, &shape)?;
    let tally = if shape.once { visit_once(&shape, memory)? } else { visit_often(&shape, memory)? };
    let Tally { operations, time, processor, faults } = tally;
    let (time, processor) = (time.as_nanos(), processor.as_nanos());
    print!("{{\"operations\": {operations}, \"nanoseconds\": {time}, \"processor\": {processor}");
    for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
        if let Some(latency) = faults.within(share) {
            print!(", \"{name}\": {latency}");
        }
    }
    println!("}}");
    Ok(())
}

/// The results of a run.
#[derive(Default)]
struct Tally {
    operations: u64,
    time: Duration,
    /// Processor time of the whole process.
    processor: Duration,
    faults: Latencies,
}

/// The pages of one thread, and how many times the thread has written to each page.
struct Share<'a> {
    memory: &'a dyn Memory,
    first: usize,
    step: usize,
    visits: Vec<u64>,
    verify: bool,
}

impl Share<'_> {
    fn new(shape: &Shape, memory: &'static dyn Memory, index: usize) -> Share<'static> {
        let pages = shape.size / PAGE;
        let count = (pages - index).div_ceil(shape.threads);
        Share { memory, first: index, step: shape.threads, visits: vec![0; count], verify: shape.verify }
    }

    /// Fills the pages with nonzero content that is hard to compress.
    fn fill(&self) {
        let mut random = Rng::with_seed(1);
        let content: Vec<u64> = (0..PAGE / 16).map(|_| random.u64(..)).collect();
        for index in 0..self.visits.len() {
            let page = self.page(index);
            // SAFETY: the range is half a page that only this thread uses.
            unsafe { page.add(8).cast::<u64>().copy_from_nonoverlapping(content.as_ptr(), content.len()) };
        }
    }

    fn page(&self, index: usize) -> *mut u8 {
        // SAFETY: the page lies within the memory.
        unsafe { self.memory.start().add((self.first + index * self.step) * PAGE) }
    }

    /// Writes to a page and checks the old value. Returns how long the write took.
    #[inline]
    fn visit(&mut self, index: usize) -> Result<Duration, String> {
        // SAFETY: the page lies within the memory and is aligned, and no reference to it exists.
        let word = unsafe { &*self.page(index).cast::<std::sync::atomic::AtomicU64>() };
        let start = Instant::now();
        let before = word.fetch_add(1, Ordering::Relaxed);
        let time = start.elapsed();
        if self.verify && before != self.visits[index] {
            let wanted = self.visits[index];
            return Err(format!("page {index} came back with {before} instead of {wanted}"));
        }
        self.visits[index] += 1;
        Ok(time)
    }
}

/// The current phase of a measurement: warm-up, measurement or end.
struct Phase {
    now: AtomicU32,
    /// Number of threads that have made enough faults or writes for a valid measurement.
    satisfied: AtomicUsize,
}

impl Phase {
    fn new() -> Self {
        Phase { now: AtomicU32::new(WARM_UP), satisfied: AtomicUsize::new(0) }
    }
}

const WARM_UP: u32 = 0;
const MEASURED: u32 = 1;
const OVER: u32 = 2;

/// Measures writes to random pages, many per page.
fn visit_often(shape: &Shape, memory: &'static dyn Memory) -> Result<Tally, String> {
    let (phase, begin) = (&Phase::new(), &Barrier::new(shape.threads + 1));
    std::thread::scope(|scope| {
        let run = |index| move || measure_thread(Share::new(shape, memory, index), index, phase, begin);
        let running: Vec<_> = (0..shape.threads).map(|index| scope.spawn(run(index))).collect();
        begin.wait();
        std::thread::sleep(shape.span / 2);
        let (start, processor) = (Instant::now(), stopwatch::process_time());
        phase.now.store(MEASURED, Ordering::Relaxed);
        std::thread::sleep(shape.span);
        while phase.satisfied.load(Ordering::Relaxed) < shape.threads && start.elapsed() < MEASUREMENT_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        phase.now.store(OVER, Ordering::Relaxed);
        let (time, processor) = (start.elapsed(), stopwatch::process_time() - processor);
        let mut total = Tally { time, processor, ..Tally::default() };
        for thread in running {
            let tally = thread.join().map_err(|_| "a thread has died")??;
            total.operations += tally.operations;
            total.faults.add_all(&tally.faults);
        }
        Ok(total)
    })
}

/// The work of one thread: writes until the measurement ends.
fn measure_thread(mut share: Share, index: usize, phase: &Phase, begin: &Barrier) -> Result<Tally, String> {
    share.fill();
    let mut random = Rng::with_seed(index as u64 + 1);
    begin.wait();
    let (mut tally, mut faults, mut is_satisfied) = (Tally::default(), 0, false);
    loop {
        let time = share.visit(random.u64(..share.visits.len() as u64) as usize)?;
        match phase.now.load(Ordering::Relaxed) {
            OVER => return Ok(tally),
            MEASURED => {
                tally.operations += 1;
                if time > LEAST_FAULT_TIME {
                    tally.faults.add(time);
                    faults += 1;
                }
                if !is_satisfied && (faults == FEWEST_FAULTS || tally.operations == MOST_WRITES) {
                    is_satisfied = true;
                    phase.satisfied.fetch_add(1, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }
}

/// Measures rounds in which each page is evicted and read back once.
fn visit_once(shape: &Shape, memory: &'static dyn Memory) -> Result<Tally, String> {
    let mut share = Share::new(shape, memory, 0);
    share.fill();
    let mut random = Rng::with_seed(1);
    let mut order: Vec<usize> = (0..share.visits.len()).collect();
    let mut total = Tally::default();
    let begin = Instant::now();
    while total.operations == 0 || begin.elapsed() < shape.span {
        memory.evict_all()?;
        random.shuffle(&mut order);
        let (start, processor) = (Instant::now(), stopwatch::process_time());
        for index in &order {
            let time = share.visit(*index)?;
            if time > LEAST_FAULT_TIME {
                total.faults.add(time);
            }
        }
        total.time += start.elapsed();
        total.processor += stopwatch::process_time() - processor;
        total.operations += order.len() as u64;
        if shape.verify && !memory.keeps_content() {
            share.visits.fill(0);
        }
    }
    Ok(total)
}
