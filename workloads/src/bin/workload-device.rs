//! Benchmark: 4 KiB reads or writes of a file or block device through a ring, as fio's t/io_uring
//! makes them. The program submits and reaps requests in batches, with registered buffers and
//! files. It does as little else as possible, so that the measurement shows the ring and the
//! device.
//!
//! `workload-device --path FILE [--depth N] [--batch N] [--wait N] [--polled 0|1] [--sq-thread 0|1]
//! [--registered 0|1] [--order random|sequential] [--latencies 0|1] [--direct 0|1] [--writes 0|1]
//! [--best 0|1] [--pinned 0|1] [--fill 0|1] [--by ring|copy] [--size BYTES] [--server PID]
//! [--milliseconds N]`
//!
//! - `--by copy --size BYTES` uses no ring: it copies blocks from random places of memory. The
//!   result is a lower bound for the cost of a block on a device in memory.
//! - `--fill 1` first writes the whole file.
//! - `--best 1` makes the ring with the setup flags that are fastest on the kernel.
//! - `--pinned 0` does not bind the process to one processor.
//! - `--server` names the process of the device's back end. The back end's processor time is added
//!   to the program's.

use fastrand::Rng;
use io_uring::{IoUring, opcode, squeue, types};
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use workloads::latencies::Latencies;
use workloads::options::{self, Declared, Options, option};
use workloads::site::{Entrance, GETEVENTS, SQ_WAKEUP, Site};
use workloads::stopwatch;

const BLOCK: usize = 4096;

const OPTIONS: &[Declared] = &[
    option("path", "", "The file or block device"),
    option("by", "ring", "ring, or copy: copy blocks of memory instead"),
    option("size", "268435456", "Bytes of memory for --by copy"),
    option("depth", "128", "Requests in flight"),
    option("batch", "32", "Requests per submission"),
    option("wait", "32", "Completions to wait for in each enter"),
    option("polled", "1", "1: IOPOLL"),
    option("sq-thread", "0", "1: SQPOLL"),
    option("registered", "1", "1: registered file and buffers"),
    option("order", "random", "random or sequential"),
    option("latencies", "0", "1: measure latencies"),
    option("direct", "1", "1: O_DIRECT"),
    option("writes", "0", "1: write instead of reading"),
    option("best", "0", "1: set the ring up in the kernel's fastest way"),
    option("pinned", "", "0: leave the process to the scheduler; default: 1 without an SQ thread"),
    option("fill", "0", "1: write all of the file first"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let span = options.span()?;
    if options.value::<String>("by")? == "copy" {
        stopwatch::pin();
        return copies(options.value("size")?, span);
    }
    let shape = Shape::from(options)?;
    stopwatch::count_server(options)?;
    if shape.pinned {
        stopwatch::pin();
    }
    let file = shape.open()?;
    let blocks = file.metadata().map_err(|error| error.to_string())?.len() / BLOCK as u64;
    if blocks == 0 {
        return Err("the file has no whole block".into());
    }
    if options.flag("fill")? {
        fill(&file, blocks)?;
    }
    Generator::new(&shape, file, blocks)?.run(span)
}

/// The options that determine the load.
struct Shape {
    path: PathBuf,
    depth: u32,
    /// Requests per io_uring_enter(2).
    batch: u32,
    /// Completions to wait for in each enter.
    wait: u32,
    polled: bool,
    sq_thread: bool,
    registered: bool,
    random: bool,
    latencies: bool,
    direct: bool,
    writes: bool,
    best: bool,
    pinned: bool,
}

impl Shape {
    fn from(options: &Options) -> Result<Shape, String> {
        let depth: u32 = options.value("depth")?;
        let path: PathBuf = options.value("path")?;
        let sq_thread = options.flag("sq-thread")?;
        let order: String = options.value("order")?;
        Ok(Shape {
            path,
            depth,
            batch: options.value::<u32>("batch")?.clamp(1, depth),
            wait: options.value::<u32>("wait")?.clamp(1, depth),
            polled: options.flag("polled")?,
            sq_thread,
            registered: options.flag("registered")?,
            random: order == "random",
            latencies: options.flag("latencies")?,
            direct: options.flag("direct")?,
            writes: options.flag("writes")?,
            best: options.flag("best")?,
            pinned: match options.value::<String>("pinned")?.as_str() {
                "" => !sq_thread,
                _ => options.flag("pinned")?,
            },
        })
    }

    fn open(&self) -> Result<File, String> {
        let flags = if self.direct { libc::O_DIRECT } else { 0 };
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path);
        opened.map_err(|error| format!("{}: {error}", self.path.display()))
    }

    fn ring(&self) -> Result<(IoUring, Entrance), String> {
        let mut builder = IoUring::builder();
        if self.polled {
            builder.setup_iopoll();
        }
        if self.sq_thread {
            builder.setup_sqpoll(1000);
        }
        if self.best {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        let ring = builder.build(self.depth).map_err(|error| format!("no ring: {error}"))?;
        let entrance = if self.best { Entrance::registered(&ring)? } else { Entrance::plain(&ring) };
        Ok((ring, entrance))
    }
}

/// A block of memory, aligned for direct I/O.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Buffer([u8; BLOCK]);

/// Writes the whole file, so that reads find no hole.
fn fill(file: &File, blocks: u64) -> Result<(), String> {
    const TOGETHER: u64 = 64;
    let mut bytes = vec![Buffer([1; BLOCK]); TOGETHER as usize];
    for block in (0..blocks).step_by(TOGETHER as usize) {
        let count = (blocks - block).min(TOGETHER);
        for (at, buffer) in bytes.iter_mut().enumerate() {
            buffer.0[..8].copy_from_slice(&(block + at as u64).to_le_bytes());
        }
        // SAFETY: the buffers are contiguous and consist of bytes.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), count as usize * BLOCK) };
        file.write_all_at(bytes, block * BLOCK as u64).map_err(|error| format!("block {block}: {error}"))?;
    }
    file.sync_all().map_err(|error| error.to_string())
}

/// A request that can be in flight: its buffer, and when it was last submitted.
struct Slot {
    buffer: *mut u8,
    submitted: Instant,
}

/// The file that the requests read or write, and the choice of the next block.
struct Source {
    file: File,
    registered: bool,
    writes: bool,
    blocks: u64,
    /// The next block in sequential order; `None` for random order.
    next: Option<u64>,
    random: Rng,
}

impl Source {
    #[inline]
    fn entry(&mut self, slot: &Slot, index: u32) -> squeue::Entry {
        let block = match &mut self.next {
            Some(next) => {
                *next = (*next + 1) % self.blocks;
                *next
            }
            None => self.random.u64(..self.blocks),
        };
        let (length, offset) = (BLOCK as u32, block * BLOCK as u64);
        let (file, first) = (types::Fd(self.file.as_raw_fd()), types::Fixed(0));
        let entry = match (self.registered, self.writes) {
            (true, false) => opcode::ReadFixed::new(first, slot.buffer, length, index as u16).offset(offset).build(),
            (true, true) => opcode::WriteFixed::new(first, slot.buffer, length, index as u16).offset(offset).build(),
            (false, false) => opcode::Read::new(file, slot.buffer, length).offset(offset).build(),
            (false, true) => opcode::Write::new(file, slot.buffer, length).offset(offset).build(),
        };
        entry.user_data(u64::from(index))
    }
}

struct Generator<'a> {
    shape: &'a Shape,
    ring: IoUring,
    entrance: Entrance,
    source: Source,
    slots: Vec<Slot>,
    /// Memory of the slots' buffers. The slots have pointers into this memory.
    _buffers: Vec<Buffer>,
    free: Vec<u32>,
    latencies: Latencies,
}

impl Generator<'_> {
    fn new(shape: &Shape, file: File, blocks: u64) -> Result<Generator<'_>, String> {
        let (ring, entrance) = shape.ring()?;
        let mut buffers = vec![Buffer([1; BLOCK]); shape.depth as usize];
        let submitted = Instant::now();
        let slots: Vec<_> =
            buffers.iter_mut().map(|buffer| Slot { buffer: buffer.0.as_mut_ptr(), submitted }).collect();
        if shape.registered {
            let vector = |slot: &Slot| libc::iovec { iov_base: slot.buffer.cast(), iov_len: BLOCK };
            let vectors: Vec<_> = slots.iter().map(vector).collect();
            // SAFETY: the buffers live as long as the ring, which is dropped before them.
            let done = unsafe { ring.submitter().register_buffers(&vectors) };
            done.map_err(|error| format!("buffers are not registered: {error}"))?;
            let done = ring.submitter().register_files(&[file.as_raw_fd()]);
            done.map_err(|error| format!("the file is not registered: {error}"))?;
        }
        Ok(Generator {
            shape,
            ring,
            entrance,
            source: Source {
                file,
                registered: shape.registered,
                writes: shape.writes,
                blocks,
                next: (!shape.random).then_some(0),
                random: Rng::with_seed(1),
            },
            slots,
            _buffers: buffers,
            free: (0..shape.depth).collect(),
            latencies: Latencies::default(),
        })
    }

    /// Measures for about `span` after a warm-up, and prints one line of JSON.
    fn run(&mut self, span: Duration) -> Result<(), String> {
        stopwatch::measure(span / 5, || self.round())?;
        self.latencies.clear();
        let sample = stopwatch::measure(span, || self.round())?;
        print!("{{{sample}");
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            if let Some(latency) = self.latencies.within(share) {
                print!(", \"{name}\": {latency}");
            }
        }
        println!("}}");
        Ok(())
    }

    /// Submits a batch. Then, if `depth` requests are in flight, reaps completions. Returns the
    /// number of reaped completions.
    fn round(&mut self) -> Result<u64, String> {
        let batch = self.shape.batch.min(self.free.len() as u32);
        let now = if self.shape.latencies { Some(Instant::now()) } else { None };
        let (_, mut submission, _) = self.ring.split();
        for _ in 0..batch {
            let Some(index) = self.free.pop() else { break };
            let slot = &mut self.slots[index as usize];
            if let Some(now) = now {
                slot.submitted = now;
            }
            let entry = self.source.entry(slot, index);
            // SAFETY: the buffer lives as long as the ring, and its content is never read.
            unsafe { submission.push(&entry) }.map_err(|_| "the SQ is full")?;
        }
        // Publishes all entries by one store of the SQ tail.
        drop(submission);
        let wanted = if self.free.is_empty() { self.shape.wait } else { 0 };
        self.enter(batch, wanted)?;
        if wanted == 0 { Ok(0) } else { self.reap() }
    }

    /// Calls io_uring_enter(2) if needed. A ring with an SQ thread needs the call only to wake that
    /// thread or to wait for completions.
    fn enter(&mut self, submitted: u32, wanted: u32) -> Result<(), String> {
        let mut flags = if wanted > 0 { GETEVENTS } else { 0 };
        if self.shape.sq_thread {
            if self.ring.submission().need_wakeup() {
                flags |= SQ_WAKEUP;
            }
            if flags == 0 || flags == GETEVENTS && self.ring.completion().len() >= wanted as usize {
                return Ok(());
            }
        }
        match self.entrance.enter(Site::Inline, submitted, wanted, flags) {
            answer if answer == i64::from(submitted) => Ok(()),
            answer => Err(format!("of {submitted} reads {answer} were submitted")),
        }
    }

    fn reap(&mut self) -> Result<u64, String> {
        let mut now = None;
        let mut reaped = 0;
        for entry in self.ring.completion() {
            if entry.result() != BLOCK as i32 {
                return Err(format!("a read answered {}", entry.result()));
            }
            let index = entry.user_data() as u32;
            if self.shape.latencies {
                let now = *now.get_or_insert_with(Instant::now);
                self.latencies.add(now - self.slots[index as usize].submitted);
            }
            self.free.push(index);
            reaped += 1;
        }
        Ok(reaped)
    }
}

/// Maps memory as usring's `ram` device does: shared, with every page written once.
fn shared_memory(size: usize) -> Result<&'static mut [u8], String> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which replaces no other and is never unmapped.
    let memory = unsafe {
        let address = libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0);
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().to_string());
        }
        std::slice::from_raw_parts_mut(address.cast::<u8>(), size)
    };
    memory.fill(1);
    Ok(memory)
}

fn copies(size: usize, span: Duration) -> Result<(), String> {
    let source = shared_memory(size)?;
    let mut targets = vec![Buffer([0; BLOCK]); 128];
    let (mut random, mut turn) = (Rng::with_seed(1), 0);
    let blocks = (size / BLOCK) as u64;
    stopwatch::print(span, || {
        let start = random.u64(..blocks) as usize * BLOCK;
        turn = (turn + 1) % targets.len();
        targets[turn].0.copy_from_slice(black_box(&source[start..start + BLOCK]));
        black_box(&targets[turn]);
        Ok(1)
    })
}
