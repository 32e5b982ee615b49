//! How long something takes per operation.

use std::fmt;
use std::time::{Duration, Instant};

/// Runs `step`, which does some operations and says how many, for about
/// `span` after a warm-up, and prints the result as a line of JSON.
pub fn print(span: Duration, step: impl FnMut() -> Result<u64, String>) -> Result<(), String> {
    println!("{{{}}}", measure(span, step)?);
    Ok(())
}

/// What was done, and how long it took.
pub struct Sample {
    pub operations: u64,
    pub time: Duration,
    /// What this thread alone has used of a processor.
    pub processor: Duration,
}

impl fmt::Display for Sample {
    /// As members of a JSON object.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sample { operations, time, processor } = self;
        let (time, processor) = (time.as_nanos(), processor.as_nanos());
        write!(f, "\"operations\": {operations}, \"nanoseconds\": {time}, \"processor\": {processor}")
    }
}

/// See [`print()`].
pub fn measure(span: Duration, mut step: impl FnMut() -> Result<u64, String>) -> Result<Sample, String> {
    // The clock is read once per so many steps, so that it weighs nothing.
    const STEPS: u32 = 16;
    let mut repeat = |span: Duration| {
        let (start, processor, mut operations) = (Instant::now(), processor_time(), 0);
        loop {
            for _ in 0..STEPS {
                operations += step()?;
            }
            let time = start.elapsed();
            // On a busy machine nothing may have been done yet, which is no measure.
            if time >= span && operations > 0 {
                return Ok(Sample { operations, time, processor: processor_time() - processor });
            }
        }
    };
    repeat(span / 5)?;
    repeat(span)
}

fn processor_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// What all threads of this process have used of processors.
pub fn process_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(which: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`, which `time` is.
    unsafe { libc::clock_gettime(which, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Keeps this process on one processor, so that no figure depends on where the
/// scheduler puts it.
pub fn pin() {
    // SAFETY: 1. An all-zero `cpu_set_t` is the empty set. 2. Both calls get
    // the set and its true size. A refusal only makes the figures less steady.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let processor = libc::sched_getcpu();
        if processor >= 0 {
            libc::CPU_SET(processor as usize, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
}
