//! How long something takes per operation.

use std::time::{Duration, Instant};

/// Runs `step`, which does some operations and says how many, for about
/// `span` after a warm-up, and prints the result as a line of JSON.
pub fn print(span: Duration, step: impl FnMut() -> Result<u64, String>) -> Result<(), String> {
    let (operations, time) = measure(span, step)?;
    println!("{{\"operations\": {operations}, \"nanoseconds\": {}}}", time.as_nanos());
    Ok(())
}

/// Operations done and the time they took.
pub fn measure(span: Duration, mut step: impl FnMut() -> Result<u64, String>) -> Result<(u64, Duration), String> {
    // The clock is read once per so many steps, so that it weighs nothing.
    const STEPS: u32 = 64;
    let mut repeat = |span: Duration| {
        let (start, mut operations) = (Instant::now(), 0);
        loop {
            for _ in 0..STEPS {
                operations += step()?;
            }
            let time = start.elapsed();
            if time >= span {
                return Ok((operations, time));
            }
        }
    };
    repeat(span / 5)?;
    repeat(span)
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
