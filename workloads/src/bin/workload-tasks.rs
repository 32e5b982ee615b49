//! Benchmark: threads that exchange requests and answers. Each thread has a ring. A request or
//! answer is a message (MSG_RING) to another thread's ring, and that thread must be notified.
//!
//! `workload-tasks [--threads N] [--depth N] [--notified own|signal|shared] [--milliseconds N]`
//!
//! Each thread keeps `depth` unanswered requests to the next thread. `--notified` selects how a
//! receiver is notified:
//! - `own`: by its ring. The receiver sleeps in io_uring_enter(2).
//! - `shared`: by a signal, as in kernels before 5.11. The sender takes a lock that all threads
//!   share, and sends the signal unless one is pending. The receiver sleeps in sigwaitinfo(2),
//!   which needs no handler. It asks its ring for events without waiting, so the message itself
//!   wakes no thread.
//! - `signal`: as `shared`, but without the lock. The difference between `shared` and `signal` is
//!   the cost of the lock. The difference between `signal` and `own` is the cost of the signal, and
//!   of the system calls that send it and wait for it.

use io_uring::{IoUring, opcode, squeue, types::Fd};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};
use workloads::latencies::Latencies;
use workloads::options::{self, Declared, Options, option};
use workloads::site::Site;

/// The upper half of a message's user_data has the message's kind. The lower half has the sender
/// and the request's number.
const REQUEST: u64 = 1 << 32;
const ANSWER: u64 = 2 << 32;
const END: u64 = 3 << 32;
/// The kind of a CQE for a message that could not be sent.
const NOT_SENT: u64 = 4 << 32;

const SIGNAL: i32 = libc::SIGUSR1;

/// Limits in microseconds. The output has, for each limit, the share of latencies below it.
const LATENCY_LIMITS_US: [u64; 3] = [200, 300, 400];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notified {
    Own,
    Signal,
    Shared,
}

impl FromStr for Notified {
    type Err = ();

    fn from_str(name: &str) -> Result<Notified, ()> {
        match name {
            "own" => Ok(Notified::Own),
            "signal" => Ok(Notified::Signal),
            "shared" => Ok(Notified::Shared),
            _ => Err(()),
        }
    }
}

const OPTIONS: &[Declared] = &[
    option("threads", "2", "Number of threads, each with a ring"),
    option("notified", "own", "How a thread is notified: own, signal or shared"),
    option("depth", "8", "Requests in flight per thread"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

/// State that all threads share.
struct Common {
    notified: Notified,
    depth: usize,
    /// Descriptors of the rings.
    rings: Vec<AtomicI32>,
    /// Thread ids, for tgkill(2). `signalled` says for each thread whether a signal is pending.
    threads: Vec<AtomicI32>,
    signalled: Vec<AtomicBool>,
    lock: Mutex<()>,
    begin: Barrier,
    stop: AtomicBool,
    /// Number of threads whose requests have all been answered.
    finished: AtomicUsize,
}

/// The results of one thread.
#[derive(Default)]
struct Tally {
    answered: u64,
    completions: u64,
    /// Number of times the thread slept.
    sleeps: u64,
    latencies: Latencies,
}

fn workload(options: &Options) -> Result<(), String> {
    let threads: usize = options.value("threads")?;
    let span = options.span()?;
    let common = Common {
        notified: options.value("notified")?,
        depth: options.value("depth")?,
        rings: (0..threads).map(|_| AtomicI32::new(-1)).collect(),
        threads: (0..threads).map(|_| AtomicI32::new(0)).collect(),
        signalled: (0..threads).map(|_| AtomicBool::new(false)).collect(),
        lock: Mutex::new(()),
        begin: Barrier::new(threads + 1),
        stop: AtomicBool::new(false),
        finished: AtomicUsize::new(0),
    };
    let common = &common;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|index| scope.spawn(move || Party::run(common, index))).collect();
        common.begin.wait();
        let (start, processor) = (Instant::now(), processor_time());
        std::thread::sleep(span);
        common.stop.store(true, Ordering::Relaxed);
        let mut total = Tally::default();
        for thread in running {
            let tally = thread.join().map_err(|_| "a thread has died")??;
            total.answered += tally.answered;
            total.completions += tally.completions;
            total.sleeps += tally.sleeps;
            total.latencies.add_all(&tally.latencies);
        }
        let (time, processor) = (start.elapsed().as_nanos(), (processor_time() - processor).as_nanos());
        let within = LATENCY_LIMITS_US.map(|limit| total.latencies.share_within(Duration::from_micros(limit)));
        let Tally { answered, completions, sleeps, latencies } = total;
        let median = latencies.within(0.5).unwrap_or_default();
        println!(
            "{{\"operations\": {answered}, \"nanoseconds\": {time}, \"processor\": {processor}, \"p50\": {median}, \
             \"within\": {within:?}, \"wakes\": {sleeps}, \"completions\": {completions}}}"
        );
        Ok(())
    })
}

/// The state of one thread.
struct Party<'a> {
    common: &'a Common,
    index: usize,
    ring: IoUring,
    /// Times at which the unanswered requests were sent. The index is the request's number.
    sent: Vec<Instant>,
    open: usize,
    tally: Tally,
    ended: bool,
}

impl Party<'_> {
    fn run(common: &Common, index: usize) -> Result<Tally, String> {
        // Blocks the signal before any thread can send it. A signal then stays pending until
        // sigwaitinfo(2).
        only_wait_for_signal();
        // SAFETY: gettid(2) takes no arguments.
        common.threads[index].store(unsafe { libc::gettid() }, Ordering::Relaxed);
        let entries = (4 * common.depth.max(8)).next_power_of_two() as u32;
        let made = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
        let ring = made.map_err(|error| format!("no ring: {error}"));
        common.rings[index].store(ring.as_ref().map_or(-1, AsRawFd::as_raw_fd), Ordering::Relaxed);
        common.begin.wait();
        let sent = vec![Instant::now(); common.depth];
        let mut party = Party { common, index, ring: ring?, sent, open: 0, tally: Tally::default(), ended: false };
        let slept = sleeps();
        if let Err(why) = party.exchange() {
            // The other threads wait for answers of this thread and would never end, so the whole
            // process exits.
            eprintln!("{why}");
            std::process::exit(1);
        }
        party.tally.sleeps = sleeps() - slept;
        Ok(party.tally)
    }

    fn exchange(&mut self) -> Result<(), String> {
        let mut to_notify = vec![];
        for number in 0..self.common.depth {
            to_notify = vec![self.ask(number, Instant::now())?];
        }
        while !self.ended {
            let submission = self.ring.submission();
            let to_submit = submission.len() as u32;
            drop(submission);
            match self.common.notified {
                Notified::Own => enter(self.ring.as_raw_fd(), to_submit, 1)?,
                Notified::Signal | Notified::Shared => {
                    self.common.signalled[self.index].store(false, Ordering::SeqCst);
                    enter(self.ring.as_raw_fd(), to_submit, 0)?;
                    to_notify.drain(..).for_each(|other| self.signal_thread(other));
                }
            }
            if self.take(&mut to_notify)? == 0 && self.common.notified != Notified::Own {
                wait_for_signal();
            }
        }
        // Submits the messages that were pushed since the last submission.
        let to_submit = self.ring.submission().len() as u32;
        enter(self.ring.as_raw_fd(), to_submit, 0)?;
        if self.common.notified != Notified::Own {
            to_notify.drain(..).for_each(|other| self.signal_thread(other));
        }
        Ok(())
    }

    /// Handles the messages that have arrived, and returns their number. Adds to `to_notify` each
    /// thread to which this thread sends a message.
    fn take(&mut self, to_notify: &mut Vec<usize>) -> Result<u64, String> {
        let now = Instant::now();
        let mut taken = 0;
        let mut batch = [0u64; 64];
        loop {
            let mut count = 0;
            for entry in self.ring.completion().take(batch.len()) {
                batch[count] = entry.user_data();
                count += 1;
            }
            if count == 0 {
                break;
            }
            taken += count as u64;
            for message in &batch[..count] {
                let (sender, number) = ((message >> 16) as u16 as usize, *message as u16 as usize);
                let other = match *message >> 32 << 32 {
                    REQUEST => {
                        self.send(sender, ANSWER | number as u64)?;
                        Some(sender)
                    }
                    ANSWER => self.answered(number, now)?,
                    END => {
                        self.ended = true;
                        None
                    }
                    _ => return Err("a message could not be sent".into()),
                };
                to_notify.extend(other.filter(|other| !to_notify.contains(other)));
            }
        }
        if self.common.stop.load(Ordering::Relaxed) && self.open == 0 && self.finish()? {
            to_notify.clear();
            to_notify.extend(0..self.common.rings.len());
        }
        self.tally.completions += taken;
        Ok(taken)
    }

    fn ask(&mut self, number: usize, now: Instant) -> Result<usize, String> {
        let next = (self.index + 1) % self.common.rings.len();
        self.sent[number] = now;
        self.open += 1;
        self.send(next, REQUEST | (self.index as u64) << 16 | number as u64)?;
        Ok(next)
    }

    fn answered(&mut self, number: usize, now: Instant) -> Result<Option<usize>, String> {
        self.tally.answered += 1;
        self.tally.latencies.add(now - self.sent[number]);
        self.open -= 1;
        if self.common.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.ask(number, now).map(Some)
    }

    /// Notes that all requests of this thread are answered. The last thread that calls this
    /// function sends `END` to every thread, which ends when it receives `END`. Returns whether
    /// this thread was the last.
    fn finish(&mut self) -> Result<bool, String> {
        // This value never falls to 0 again. So this thread calls `finish` only once, and is
        // counted once.
        self.open = usize::MAX;
        let last = self.common.finished.fetch_add(1, Ordering::Relaxed) + 1 == self.common.rings.len();
        if last {
            for other in 0..self.common.rings.len() {
                self.send(other, END)?;
            }
        }
        Ok(last)
    }

    fn send(&mut self, to: usize, message: u64) -> Result<(), String> {
        let ring = Fd(self.common.rings[to].load(Ordering::Relaxed));
        let entry = opcode::MsgRingData::new(ring, 0, message, None).build();
        let entry = entry.user_data(NOT_SENT).flags(squeue::Flags::SKIP_SUCCESS);
        // SAFETY: a message names no memory.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            let full = self.ring.submission().len() as u32;
            enter(self.ring.as_raw_fd(), full, 0)?;
        }
        Ok(())
    }

    /// Sends a signal to a thread, unless one is pending. In `shared` mode this happens under the
    /// lock that all threads share.
    fn signal_thread(&self, other: usize) {
        let signalled = &self.common.signalled[other];
        if signalled.load(Ordering::SeqCst) {
            return;
        }
        let _shared = (self.common.notified == Notified::Shared).then(|| self.common.lock.lock());
        if !signalled.swap(true, Ordering::SeqCst) {
            let thread = self.common.threads[other].load(Ordering::Relaxed);
            // SAFETY: the signal goes to a thread of this process, which has blocked it.
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, SIGNAL) };
        }
    }
}

fn enter(ring: i32, to_submit: u32, wanted: u32) -> Result<(), String> {
    match Site::Inline.enter(ring, to_submit, wanted) {
        answer if answer >= 0 || answer == -i64::from(libc::EINTR) => Ok(()),
        error => Err(format!("enter: {}", std::io::Error::from_raw_os_error(-error as i32))),
    }
}

fn signal_set() -> libc::sigset_t {
    // SAFETY: 1. An all-zero set is valid. 2. The calls write only to it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, SIGNAL);
        set
    }
}

fn only_wait_for_signal() {
    // SAFETY: the set is a temporary value that lives through the call.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signal_set(), std::ptr::null_mut()) };
}

fn wait_for_signal() {
    // SAFETY: the set is a temporary value that lives through the call. The null pointer asks for
    // no information.
    unsafe { libc::sigwaitinfo(&signal_set(), std::ptr::null_mut()) };
}

fn usage(of: i32) -> libc::rusage {
    // SAFETY: 1. An all-zero `rusage` is valid. 2. The call fills it.
    unsafe {
        let mut usage = std::mem::zeroed();
        libc::getrusage(of, &mut usage);
        usage
    }
}

/// Returns the number of voluntary context switches of this thread.
fn sleeps() -> u64 {
    usage(libc::RUSAGE_THREAD).ru_nvcsw as u64
}

/// Returns the processor time of all threads.
fn processor_time() -> Duration {
    let usage = usage(libc::RUSAGE_SELF);
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
