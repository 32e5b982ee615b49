//! Benchmark: random 4 KiB reads of a file or block device through kernel AIO, as fio's t/io_uring
//! makes them with `-a`. The program keeps a fixed number of reads in flight. It submits reads and
//! collects their events in batches. With `--polled 1` the program makes a polled context by
//! `io_setup2`, a function that only usring's library has.
//!
//! `workload-aio --path FILE [--depth N] [--batch N] [--wait N] [--polled 0|1] [--latencies 0|1]
//! [--milliseconds N]`

use fastrand::Rng;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use usring_uapi::aio::{IOCB_CMD_PREAD, IOCB_FLAG_HIPRI, IOCTX_FLAG_IOPOLL, IoEvent, Iocb};
use workloads::latencies::Latencies;
use workloads::options::{self, Declared, Options, option};
use workloads::stopwatch;

const BLOCK: usize = 4096;

const OPTIONS: &[Declared] = &[
    option("path", "", "The file or block device"),
    option("depth", "128", "Reads in flight"),
    option("batch", "32", "Reads per submission"),
    option("wait", "32", "Events to wait for"),
    option("polled", "0", "1: a polled context (io_setup2)"),
    option("latencies", "0", "1: measure latencies"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let span = options.span()?;
    let depth: usize = options.value("depth")?;
    let path: PathBuf = options.value("path")?;
    let polled = options.flag("polled")?;
    stopwatch::pin();
    stopwatch::count_server(options)?;
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    let file = opened.map_err(|error| format!("{}: {error}", path.display()))?;
    let blocks = file.metadata().map_err(|error| error.to_string())?.len() / BLOCK as u64;
    if blocks == 0 {
        return Err("the file has no whole block".into());
    }
    let mut generator = Generator {
        context: Context::new(depth as u32, polled)?,
        blocks,
        batch: options.value::<usize>("batch")?.clamp(1, depth),
        wait: options.value::<usize>("wait")?.clamp(1, depth),
        measures: options.flag("latencies")?,
        iocbs: vec![Iocb::default(); depth],
        buffers: vec![Buffer([1; BLOCK]); depth],
        submitted: vec![Instant::now(); depth],
        free: (0..depth).collect(),
        list: Vec::with_capacity(depth),
        events: vec![IoEvent::default(); depth],
        random: Rng::with_seed(1),
        latencies: Latencies::default(),
    };
    generator.prepare(&file, polled);
    generator.run(span)
}

/// A block of memory, aligned for direct I/O.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Buffer([u8; BLOCK]);

struct Context(u64);

/// The type of `io_setup2`, which usring's library exports.
type Setup2 = unsafe extern "C" fn(u32, u32, *mut libc::c_void, *mut libc::c_void, *mut u64) -> i32;

impl Context {
    fn new(requests: u32, polled: bool) -> Result<Context, String> {
        let mut context = 0;
        if !polled {
            // SAFETY: the call writes to `context`.
            let answer = unsafe { libc::syscall(libc::SYS_io_setup, requests, &raw mut context) };
            return Context(context).unless(answer != 0, "io_setup");
        }
        // SAFETY: the name ends with NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"io_setup2".as_ptr()) };
        if found.is_null() {
            return Err("no library here has io_setup2".into());
        }
        // SAFETY: usring.h declares the function with this type.
        let setup2 = unsafe { std::mem::transmute::<*mut libc::c_void, Setup2>(found) };
        let none = std::ptr::null_mut();
        // SAFETY: the function writes only to `context`.
        let answer = unsafe { setup2(requests, IOCTX_FLAG_IOPOLL, none, none, &raw mut context) };
        Context(context).unless(answer != 0, "io_setup2")
    }

    fn unless(self, failed: bool, call: &str) -> Result<Context, String> {
        if failed { Err(format!("{call}: {}", std::io::Error::last_os_error())) } else { Ok(self) }
    }

    #[inline]
    fn submit(&self, list: &[*mut Iocb]) -> i64 {
        // SAFETY: the iocbs and their buffers live until their events have been collected.
        unsafe { libc::syscall(libc::SYS_io_submit, self.0, list.len(), list.as_ptr()) }
    }

    #[inline]
    fn take(&self, least: usize, events: &mut [IoEvent]) -> i64 {
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: the events belong to this call, and the kernel writes at most `events.len()` of
        // them.
        unsafe { libc::syscall(libc::SYS_io_getevents, self.0, least, events.len(), events.as_mut_ptr(), none) }
    }
}

struct Generator {
    context: Context,
    blocks: u64,
    /// Requests per io_submit(2).
    batch: usize,
    /// Completions to wait for in each io_getevents(2).
    wait: usize,
    measures: bool,
    iocbs: Vec<Iocb>,
    buffers: Vec<Buffer>,
    submitted: Vec<Instant>,
    free: Vec<usize>,
    list: Vec<*mut Iocb>,
    events: Vec<IoEvent>,
    random: Rng,
    latencies: Latencies,
}

impl Generator {
    fn prepare(&mut self, file: &File, polled: bool) {
        for (index, (iocb, buffer)) in self.iocbs.iter_mut().zip(&mut self.buffers).enumerate() {
            *iocb = Iocb {
                aio_data: index as u64,
                aio_lio_opcode: IOCB_CMD_PREAD,
                aio_fildes: file.as_raw_fd() as u32,
                aio_buf: buffer.0.as_mut_ptr() as u64,
                aio_nbytes: BLOCK as u64,
                aio_flags: if polled { IOCB_FLAG_HIPRI } else { 0 },
                ..Iocb::default()
            };
        }
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

    /// Submits a batch. Then, if `depth` requests are in flight, collects completions. Returns the
    /// number of collected completions.
    fn round(&mut self) -> Result<u64, String> {
        let now = self.measures.then(Instant::now);
        self.list.clear();
        while self.list.len() < self.batch
            && let Some(index) = self.free.pop()
        {
            let iocb = &mut self.iocbs[index];
            iocb.aio_offset = (self.random.u64(..self.blocks) * BLOCK as u64) as i64;
            self.list.push(iocb);
            if let Some(now) = now {
                self.submitted[index] = now;
            }
        }
        let mut rest = &self.list[..];
        while !rest.is_empty() {
            match self.context.submit(rest) {
                // A polled context takes at most 127 requests per call, so a larger batch needs
                // several calls.
                taken if taken > 0 => rest = &rest[taken as usize..],
                _ => return Err(format!("io_submit: {}", std::io::Error::last_os_error())),
            }
        }
        if self.free.is_empty() { self.take() } else { Ok(0) }
    }

    fn take(&mut self) -> Result<u64, String> {
        let taken = self.context.take(self.wait, &mut self.events);
        if taken < self.wait as i64 {
            return Err(format!("io_getevents answered {taken}: {}", std::io::Error::last_os_error()));
        }
        let now = self.measures.then(Instant::now);
        for event in &self.events[..taken as usize] {
            if event.res != BLOCK as i64 {
                return Err(format!("a read answered {}", event.res));
            }
            let index = event.data as usize;
            if let Some(now) = now {
                self.latencies.add(now - self.submitted[index]);
            }
            self.free.push(index);
        }
        Ok(taken as u64)
    }
}
