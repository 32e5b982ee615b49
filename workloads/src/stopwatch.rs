//! Measures the time that an operation takes.

use crate::options::Options;
use crate::sockets;
use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Repeats `step` for about `span`, after a warm-up. `step` does some operations and returns their
/// number. Prints the total number of operations and the times after the warm-up, as a line of
/// JSON.
pub fn print(span: Duration, step: impl FnMut() -> Result<u64, String>) -> Result<(), String> {
    println!("{{{}}}", measure(span, step)?);
    Ok(())
}

/// The counts and times of a measurement.
pub struct Sample {
    pub operations: u64,
    pub time: Duration,
    /// Processor time of all threads of this process. If the process has a server
    /// ([`count_server`]), the server's processor time is added.
    pub processor: Duration,
    /// Processor time of the submitting thread, if it is measured separately.
    pub thread: Option<Duration>,
}

impl fmt::Display for Sample {
    /// Writes the fields as members of a JSON object, without braces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sample { operations, time, processor, thread } = self;
        let (time, processor) = (time.as_nanos(), processor.as_nanos());
        write!(f, "\"operations\": {operations}, \"nanoseconds\": {time}, \"processor\": {processor}")?;
        thread.map_or(Ok(()), |thread| write!(f, ", \"thread\": {}", thread.as_nanos()))
    }
}

/// Repeats `step` for about `span`, after a warm-up. `step` does some operations and returns their
/// number. Returns the total number of operations and the times after the warm-up.
pub fn measure(span: Duration, mut step: impl FnMut() -> Result<u64, String>) -> Result<Sample, String> {
    // Number of steps between two readings of the clock, so that the readings cost little.
    const STEPS: u32 = 16;
    let mut repeat = |span: Duration| {
        let (start, processor, thread, mut operations) = (Instant::now(), all_time(), thread_time(), 0);
        loop {
            for _ in 0..STEPS {
                operations += step()?;
            }
            let time = start.elapsed();
            // On a busy machine the time may be over before the first operation. The measurement
            // then continues until there is at least one operation.
            if time >= span && operations > 0 {
                let (processor, thread) = (all_time() - processor, Some(thread_time() - thread));
                return Ok(Sample { operations, time, processor, thread });
            }
        }
    };
    repeat(span / 5)?;
    repeat(span)
}

/// Process id of the server, such as a device's back end; 0 if there is none.
static SERVER: AtomicI32 = AtomicI32::new(0);

/// Makes every later measurement include the processor time of the process that `--server` names.
pub fn count_server(options: &Options) -> Result<(), String> {
    SERVER.store(options.value("server")?, Ordering::Relaxed);
    Ok(())
}

/// Returns the processor time of this process and of its server.
fn all_time() -> Duration {
    let server = match SERVER.load(Ordering::Relaxed) {
        0 => Duration::ZERO,
        process => sockets::processor_time(process).unwrap_or_default(),
    };
    process_time() + server
}

fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the processor time of all threads of this process.
pub fn process_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(which: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`, which `time` is.
    unsafe { libc::clock_gettime(which, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Binds this process to one processor, so that the scheduler does not affect the results.
pub fn pin() {
    // SAFETY: 1. An all-zero `cpu_set_t` is the empty set. 2. Both calls get the set and its true
    // size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let processor = libc::sched_getcpu();
        if processor >= 0 {
            libc::CPU_SET(processor as usize, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
}
