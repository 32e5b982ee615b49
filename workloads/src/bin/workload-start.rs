//! Benchmark: the time to make the first rings of a program, and to complete the first request that
//! waits for a file.
//!
//! `workload-start [--rings N] [--threads N]`
//!
//! Makes `N` rings (default: 1), submits a POLL_ADD for a pipe to the first ring, makes the pipe
//! readable, and waits for the completion. `--threads` starts that many idle threads first. The
//! program measures only once, because a process starts only once.

use io_uring::{IoUring, opcode, types};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Instant;
use workloads::options::{self, Declared, Options, option};
use workloads::stopwatch::{self, Sample};

/// Entries in each ring's SQ.
const ENTRIES: u32 = 8;

const OPTIONS: &[Declared] =
    &[option("rings", "1", "Rings to make"), option("threads", "0", "Idle threads to start before")];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let count: usize = options.value("rings")?;
    for _ in 0..options.value("threads")? {
        std::thread::spawn(std::thread::park);
    }
    let (reader, mut writer) = std::io::pipe().map_err(|error| error.to_string())?;
    let (start, processor) = (Instant::now(), stopwatch::process_time());

    let ring = || IoUring::new(ENTRIES).map_err(|error| format!("no ring: {error}"));
    let mut rings = (0..count.max(1)).map(|_| ring()).collect::<Result<Vec<_>, _>>()?;
    let first = &mut rings[0];
    let poll = opcode::PollAdd::new(types::Fd(reader.as_raw_fd()), libc::POLLIN as u32).build();
    // SAFETY: a POLL_ADD names no memory, and `reader` is open until its completion.
    unsafe { first.submission().push(&poll) }.map_err(|_| "the SQ is full")?;
    first.submit().map_err(|error| error.to_string())?;
    writer.write_all(b"x").map_err(|error| error.to_string())?;
    first.submit_and_wait(1).map_err(|error| error.to_string())?;
    let result = first.completion().next().map(|entry| entry.result());

    let (time, processor) = (start.elapsed(), stopwatch::process_time() - processor);
    if result.is_none_or(|events| events & i32::from(libc::POLLIN) == 0) {
        return Err(format!("the poll answered {result:?}"));
    }
    println!("{{{}}}", Sample { operations: 1, time, processor, thread: None });
    Ok(())
}
