//! Benchmark: NOPs, submitted and reaped in batches. It shows the cost of a request without work.
//!
//! `workload-nop [--batch N] [--site inline|bare|libc] [--best 0|1] [--milliseconds N]`
//!
//! `--best 1` sets the ring up in the kernel's fastest way.

use io_uring::opcode;
use std::process::ExitCode;
use std::time::Duration;
use workloads::options::{self, Options};
use workloads::site::{self, GETEVENTS, Site};
use workloads::stopwatch;

fn main() -> ExitCode {
    options::run(workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let batch: u32 = options.value("batch", 1)?;
    let site = options.value("site", Site::Inline)?;
    let span = Duration::from_millis(options.value("milliseconds", 200)?);
    stopwatch::pin();
    let (mut ring, entrance) = site::ring(batch, options.value("best", 0)? != 0)?;
    let (_, mut submission, mut completion) = ring.split();
    let nop = opcode::Nop::new().build().user_data(1);
    stopwatch::print(span, || {
        for _ in 0..batch {
            // SAFETY: a NOP names no memory.
            unsafe { submission.push(&nop) }.map_err(|_| "the SQ is full")?;
        }
        submission.sync();
        let submitted = entrance.enter(site, batch, batch, GETEVENTS);
        completion.sync();
        let completed = completion.by_ref().filter(|entry| entry.user_data() == 1 && entry.result() == 0).count();
        submission.sync();
        if submitted == i64::from(batch) && completed == batch as usize {
            Ok(u64::from(batch))
        } else {
            Err(format!("of {batch} NOPs {submitted} were submitted and {completed} completed well"))
        }
    })
}
