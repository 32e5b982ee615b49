//! `usring bench`: measures ordinary programs on usring and on its rivals. Their turns alternate
//! within one run.
//!
//! - Each benchmark has a file, which lists its cases and its bars: the limits for its figures.
//! - [`frame`] runs the cases in the surroundings that [`stage`] sets up. It computes [`metric`]s
//!   and takes their medians. [`paired`] has the statistics.
//! - [`server`] runs a case that consists of a server and clients. [`priority`] raises the priority
//!   of the measured processes.
//! - [`report`] prints the tables. [`document`] has the JSON. From the JSON, [`page`] makes a page
//!   of HTML, and [`compare`] compares two results.
//! - [`all`] runs every benchmark.

mod all;
mod call;
mod compare;
mod document;
mod echo;
mod engine;
mod file;
mod frame;
mod metric;
mod multishot_accept;
mod nop;
mod page;
mod paired;
mod polled_aio;
mod polling;
mod postgres;
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
use crate::system_error::words;
use clap::ValueEnum;
use frame::{Bar, Case, Effort, Results};
use metric::Metric;
use serde_json::Value;
use stage::Prop;
use std::path::{Path, PathBuf};

/// Exit status if a bar does not hold.
const STATUS_BAR: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  usring bench nop
  usring bench engine --quick --json engine.json
  usring bench all --json all.json --report all.html
      Runs every benchmark that can run here. The page has tables and plots.
  usring bench compare before.json after.json

The measured programs are not in usring's packages. In a source tree, `cargo xtask bench` builds
them and takes the same arguments.

A bar is the target of a figure. Exit status: 0 if every bar holds or with --quick, 3 if a bar does
not hold, 125 if a benchmark could not run.";

/// Measure usring, and in turn with it the kernel's io_uring or another rival.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Options {
    /// The benchmark to run.
    #[arg(value_enum, required = true)]
    name: Option<Name>,

    #[command(subcommand)]
    command: Option<Command>,

    /// Run three short rounds per case. The figures are too rough to be quoted, and no bar counts.
    #[arg(long)]
    quick: bool,

    /// Folder with the programs of PostgreSQL 18 or newer, which the benchmark `postgres` needs.
    #[arg(long, value_name = "FOLDER")]
    postgres: Option<PathBuf>,

    /// Write the result to FILE as JSON, in addition to the printed table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the result to FILE as one page of HTML with tables and plots.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum Command {
    Compare(compare::Options),
}

/// The benchmarks.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Every benchmark that can run here
    All,
    /// Cost of a request that does nothing, and of page-cache reads, compared with the kernel's
    /// ring
    Nop,
    /// Cost of system calls that have nothing to do with rings
    Call,
    /// Time to a program's first ring and first poll, and to 1,000 rings
    Start,
    /// Cost of a polled 4 KiB read: of a device that does nothing, of memory, of a file
    Engine,
    /// Files open with O_DIRECT, compared with the kernel's ring at its best
    File,
    /// IOPOLL with SQPOLL: an io_uring_enter that waits on the CQ, compared with one that also
    /// polls
    SqpollIopoll,
    /// Interrupts, classic polling and hybrid polling, by queue depth and latency
    Polling,
    /// AIO contexts that poll and AIO contexts that wait for interrupts, compared with the kernel's
    PolledAio,
    /// Memory of which only a part is resident, with polling and interrupts; the kernel's swap
    Swap,
    /// A vhost-user-blk back end, compared with the `blkio` library
    VhostUser,
    /// Messages between threads with a ring each; also with a signal per message, with and without
    /// a lock
    TaskWork,
    /// PostgreSQL 18 on the kernel's rings, on usring's, and without rings; needs --postgres
    Postgres,
    /// An echo server with 50 connections, compared with the kernel's ring and epoll
    Echo,
    /// 10,000 short connections: one accept request for all of them, or one for each
    MultishotAccept,
}

/// A benchmark: its cases, and the limits ([`Bar`]) that its figures must keep.
struct Benchmark {
    name: &'static str,
    /// Sentences for the HTML page: the systems that the benchmark compares, and its workloads.
    description: &'static str,
    /// The columns of the benchmark's table. The first column is shown with quartiles, and its
    /// figures are compared with the rival's figures.
    metrics: &'static [Metric],
    rounds: usize,
    /// Files, and back ends of devices, that the cases use. They are in `{folder}`, the benchmark's
    /// own folder.
    props: &'static [Prop],
    /// Label of the rival's rows. The table compares the other rows with these rows.
    rival: &'static str,
    cases: Vec<Case>,
    bars: fn(&Results) -> Vec<Bar>,
}

impl Name {
    /// Returns the benchmark. `postgres` is the folder of PostgreSQL's programs. Error: a program
    /// or file that the benchmark needs is missing.
    fn benchmark(self, postgres: Option<&Path>) -> Result<Benchmark, String> {
        Ok(match self {
            Name::All => return Err("`all` is no benchmark of its own".into()),
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
            Name::Postgres => return postgres::benchmark(postgres),
            Name::Echo => echo::benchmark(),
            Name::MultishotAccept => multishot_accept::benchmark(),
        })
    }
}

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    match (&options.command, options.name) {
        (Some(Command::Compare(options)), _) => compare::run(options),
        (None, Some(Name::All)) => all::run(options),
        (None, Some(name)) => single(options, name),
        (None, None) => Err(Failure::new("name a benchmark; `usring bench --help` lists them")),
    }
}

fn single(options: &Options, name: Name) -> Outcome {
    check_outputs(options)?;
    let benchmark = name.benchmark(options.postgres.as_deref()).map_err(Failure::new)?;
    let (document, status) = measure(&benchmark, options.quick).map_err(Failure::new)?;
    write(options, &document)?;
    Ok(status)
}

/// Runs a benchmark and prints its tables. Returns its JSON and its exit status.
fn measure(benchmark: &Benchmark, is_quick: bool) -> Result<(Value, u8), String> {
    let effort = if is_quick { Effort::QUICK } else { Effort::FULL };
    let results = frame::measure(benchmark, &effort)?;
    let bars = (benchmark.bars)(&results);
    let document = document::of(benchmark, &results, &bars, is_quick);
    super::print(format_args!(
        "{}",
        report::Table { benchmark, results: &results, bars: &bars, document: &document, is_quick }
    ));
    let fails = !is_quick && bars.iter().any(|bar| bar.holds == Some(false));
    Ok((document, if fails { STATUS_BAR } else { 0 }))
}

/// Checks the paths of the result files that the options name, before the benchmarks run. Fails if
/// a file cannot be written at its path. So a long run does not end with that error.
fn check_outputs(options: &Options) -> Result<(), Failure> {
    for path in options.json.iter().chain(&options.report) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() || path.is_dir() {
            let why = if path.is_dir() { "it is a folder" } else { "its folder does not exist" };
            return Err(Failure::new(format!("cannot write {} ({why})", path.display())));
        }
    }
    Ok(())
}

/// Writes the files that the options name.
fn write(options: &Options, document: &Value) -> Result<(), Failure> {
    let write = |path: &Path, text: String| {
        let failed = |error| Failure::new(format!("cannot write {} ({error})", path.display(), error = words(&error)));
        std::fs::write(path, text).map_err(failed)
    };
    if let Some(path) = &options.json {
        write(path, format!("{document:#}\n"))?;
    }
    if let Some(path) = &options.report {
        write(path, page::html(document))?;
    }
    Ok(())
}
