//! `usring bench`: ordinary programs on usring and on its rivals, in turn, in
//! one run.
//!
//! [`frame`] runs a benchmark's cases on their [`stage`] and takes medians of
//! its [`metric`]s; a file per benchmark says which cases there are and which bars
//! they are held to; [`report`] prints the table and writes the JSON.

mod call;
mod echo;
mod engine;
mod file;
mod frame;
mod metric;
mod multishot_accept;
mod nop;
mod paired;
mod polled_aio;
mod polling;
mod priority;
mod report;
mod server;
mod sqpoll_iopoll;
mod stage;
mod start;
mod swap;
mod task_work;
mod vhost_user;

use super::child;
use super::{Failure, Outcome};
use clap::ValueEnum;
use frame::{Bar, Case, Effort, Results};
use metric::Metric;
use stage::Prop;
use std::path::PathBuf;

/// Exit status if a bar does not hold.
const STATUS_BAR: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  usring bench nop
  usring bench engine --quick --json engine.json

Exit status: 0 if every bar holds, 3 if one does not, 125 if the benchmark could not run.";

/// Measure usring and what it is compared with, alternating in one run.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// What to measure.
    #[arg(value_enum)]
    name: Name,

    /// Few and short rounds: a look, not a figure to quote.
    #[arg(long)]
    quick: bool,

    /// Write the result to this file, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The benchmarks there are.
#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// What a request costs that does nothing, and page-cache reads beside the kernel's ring
    Nop,
    /// What a system call costs that has nothing to do with rings
    Call,
    /// A program's first ring and first poll, and 1,000 rings
    Start,
    /// What a polled 4 KiB read costs: of a device that does nothing, of memory, of a file
    Engine,
    /// Files open with O_DIRECT, beside the kernel's ring at its best
    File,
    /// IOPOLL with SQPOLL: an enter that waits on the CQ against one that polls, too
    SqpollIopoll,
    /// Interrupts, classic polling and the hybrids, by queue depth and latency
    Polling,
    /// AIO contexts that are polled for, and ones that are told, beside the kernel's AIO
    PolledAio,
    /// Memory larger than what of it may be resident: polled and told, beside the kernel's swap
    Swap,
    /// A vhost-user-blk back end, beside the `blkio` library
    VhostUser,
    /// Telling threads of task work: each by itself, and with a lock that all share
    TaskWork,
    /// An echo server under 50 connections, beside the kernel's ring and epoll
    Echo,
    /// 10,000 short connections, accepted by one request or by one each
    MultishotAccept,
}

/// A benchmark: what is run, and what must come out.
struct Benchmark {
    name: &'static str,
    /// The columns; the first has quartiles and is compared.
    metrics: &'static [Metric],
    rounds: usize,
    /// What the cases find in `{folder}`.
    props: &'static [Prop],
    /// The label of the rows that others are compared with.
    rival: &'static str,
    cases: Vec<Case>,
    bars: fn(&Results) -> Vec<Bar>,
}

impl Name {
    fn benchmark(self) -> Benchmark {
        match self {
            Name::Nop => nop::benchmark(),
            Name::Call => call::benchmark(),
            Name::Start => start::benchmark(),
            Name::Engine => engine::benchmark(),
            Name::File => file::benchmark(),
            Name::SqpollIopoll => sqpoll_iopoll::benchmark(),
            Name::Polling => polling::benchmark(),
            Name::PolledAio => polled_aio::benchmark(),
            Name::Swap => swap::benchmark(),
            Name::VhostUser => vhost_user::benchmark(),
            Name::TaskWork => task_work::benchmark(),
            Name::Echo => echo::benchmark(),
            Name::MultishotAccept => multishot_accept::benchmark(),
        }
    }
}

/// The subcommand.
pub fn run(options: &Options) -> Outcome {
    let benchmark = options.name.benchmark();
    let effort = if options.quick { Effort::QUICK } else { Effort::FULL };
    let results = frame::measure(&benchmark, &effort).map_err(Failure::new)?;
    let bars = (benchmark.bars)(&results);
    super::print(format_args!("{}", report::Table { benchmark: &benchmark, results: &results, bars: &bars }));
    if let Some(path) = &options.json {
        let json = report::json(&benchmark, &results, &bars);
        let write = |error| Failure::new(format!("cannot write {} ({error})", path.display()));
        std::fs::write(path, json).map_err(write)?;
    }
    Ok(if bars.iter().any(|bar| bar.holds == Some(false)) { STATUS_BAR } else { 0 })
}
