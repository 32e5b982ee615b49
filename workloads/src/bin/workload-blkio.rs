//! Benchmark: the reads of `workload-device`, made by the `blkio` library on a vhost-user-blk back
//! end. The result is the baseline for a ring of usring on the same back end.
//!
//! `workload-blkio --path SOCKET [--depth N] [--batch N] [--wait N] [--latencies 0|1]
//! [--milliseconds N]`

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use fastrand::Rng;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::time::Instant;
use workloads::latencies::Latencies;
use workloads::options::{self, Declared, Options, option};
use workloads::stopwatch;

const BLOCK: usize = 4096;

const OPTIONS: &[Declared] = &[
    option("path", "", "The back end's socket"),
    option("depth", "32", "Requests in flight"),
    option("batch", "", "Most requests per submission; empty: the depth"),
    option("wait", "1", "Completions to wait for"),
    option("latencies", "0", "1: measure latencies"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let path: String = options.value("path")?;
    let depth: usize = options.value("depth")?;
    let span = options.span()?;
    stopwatch::pin();
    stopwatch::count_server(options)?;
    let mut device = connect(&path).map_err(|error| error.message().to_owned())?;
    let mut reader = Reader::new(&mut device, depth).map_err(|error| error.message().to_owned())?;
    reader.batch = match options.value::<String>("batch")?.as_str() {
        "" => depth,
        _ => options.value::<usize>("batch")?.clamp(1, depth),
    };
    reader.wait = options.value::<usize>("wait")?.clamp(1, depth);
    reader.measured = options.flag("latencies")?;
    stopwatch::measure(span / 5, || reader.round())?;
    reader.latencies.clear();
    let sample = stopwatch::measure(span, || reader.round())?;
    print!("{{{sample}");
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        if let Some(latency) = reader.latencies.within(share) {
            print!(", \"{name}\": {latency}");
        }
    }
    println!("}}");
    Ok(())
}

fn connect(path: &str) -> blkio::Result<Blkio> {
    let mut device = Blkio::new("virtio-blk-vhost-user")?;
    device.set_str("path", path)?;
    device.connect()?;
    device.set_i32("num-queues", 0)?;
    device.set_i32("num-poll-queues", 1)?;
    Ok(device)
}

struct Reader {
    queue: Blkioq,
    memory: MemoryRegion,
    blocks: u64,
    random: Rng,
    free: Vec<usize>,
    submitted: Vec<Instant>,
    completions: Vec<MaybeUninit<Completion>>,
    batch: usize,
    wait: usize,
    measured: bool,
    latencies: Latencies,
}

impl Reader {
    fn new(device: &mut Blkio, depth: usize) -> blkio::Result<Reader> {
        let blocks = device.get_u64("capacity")? / BLOCK as u64;
        let mut started = device.start()?;
        let memory = device.alloc_mem_region(depth * BLOCK)?;
        device.map_mem_region(&memory)?;
        let missing = || blkio::Error::new(blkio::Errno::INVAL, "there is no queue that is polled");
        Ok(Reader {
            queue: started.poll_queues.pop().ok_or_else(missing)?,
            memory,
            blocks,
            random: Rng::with_seed(1),
            free: (0..depth).collect(),
            submitted: vec![Instant::now(); depth],
            completions: (0..depth).map(|_| MaybeUninit::uninit()).collect(),
            batch: depth,
            wait: 1,
            measured: false,
            latencies: Latencies::default(),
        })
    }

    /// Submits a batch. Then, if `depth` requests are in flight, collects completions. Returns the
    /// number of collected completions.
    fn round(&mut self) -> Result<u64, String> {
        let now = if self.measured { Some(Instant::now()) } else { None };
        for _ in 0..self.batch.min(self.free.len()) {
            let Some(index) = self.free.pop() else { break };
            if let Some(now) = now {
                self.submitted[index] = now;
            }
            let start = self.random.u64(..self.blocks) * BLOCK as u64;
            let buffer = (self.memory.addr + index * BLOCK) as *mut u8;
            self.queue.read(start, buffer, BLOCK, index, ReqFlags::empty());
        }
        let wanted = if self.free.is_empty() { self.wait } else { 0 };
        let done = self.queue.do_io(&mut self.completions, wanted, None, None);
        let done = done.map_err(|error| error.message().to_owned())?;
        let now = if self.measured { Some(Instant::now()) } else { None };
        for completion in &self.completions[..done] {
            // SAFETY: `do_io` returned the number of completions that it has written.
            let completion = unsafe { completion.assume_init_ref() };
            if completion.ret != 0 {
                return Err(format!("a read answered {}", completion.ret));
            }
            if let Some(now) = now {
                self.latencies.add(now - self.submitted[completion.user_data]);
            }
            self.free.push(completion.user_data);
        }
        Ok(done as u64)
    }
}
