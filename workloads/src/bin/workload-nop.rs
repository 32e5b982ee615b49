//! Benchmark: NOPs, submitted and reaped in batches. The result is the cost of a request that does
//! nothing.
//!
//! `workload-nop [--batch N] [--site inline|bare|libc] [--best 0|1] [--milliseconds N]`
//!
//! `--best 1` makes the ring with the setup flags that are fastest on the kernel.

use io_uring::opcode;
use std::process::ExitCode;
use workloads::options::{self, Declared, Options, option};
use workloads::site::{self, GETEVENTS};
use workloads::stopwatch;

const OPTIONS: &[Declared] = &[
    option("batch", "1", "NOPs per enter"),
    option("site", "inline", "Call site: inline, bare or libc"),
    option("best", "0", "1: set the ring up in the kernel's fastest way"),
];

fn main() -> ExitCode {
    options::run(OPTIONS, workload)
}

fn workload(options: &Options) -> Result<(), String> {
    let batch: u32 = options.value("batch")?;
    let site = options.value("site")?;
    let span = options.span()?;
    stopwatch::pin();
    let (mut ring, entrance) = site::ring(batch, options.flag("best")?)?;
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
