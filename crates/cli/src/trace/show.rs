//! `usring trace FILE`: prints a trace.

use super::file::{self, Loaded};
use super::perfetto;
use super::print::Printer;
use super::requests::{self, Request, Requests};
use super::select::Filters;
use super::summary;
use crate::system_error::words;
use crate::{Failure, Outcome, cannot_print};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  usring run --trace out.trace -- my-server
  usring trace out.trace
      Prints a line for each request, as strace does for each system call.
  usring trace out.trace --opcode read,readv --slower 1ms --steps
      Prints each step of the reads that took longer than a millisecond.
  usring trace out.trace -c
      Prints calls, errors and latencies per opcode.
  usring trace out.trace --perfetto out.pftrace
      Writes a file that https://ui.perfetto.dev opens.

A line has the seconds since the start of the run, the request, its result, the time from submission
to completion, and the steps of the request:
  0.001204417 read(3</srv/db>, 4096 bytes, offset 0, user_data 0x1) = 4096 <4.1 µs> inline
The steps are:
  inline           the thread that submitted the request carried it out
  chain, drain     the request waited for other requests
  poll             the request waited for its file
  timer            the request waited for a time or a number of completions
  queue            the request waited for a worker
  worker N         the thread N of usring carried out the request
  task work        the result waited for a thread that posts the CQE
  device N         the queue N of a device of usring carried out the request
  other ring       the request was passed to another ring (MSG_RING)
  fault            --inject or --order delayed the request
  other processes  the request waited for processes that share its ring
A multishot request has `~` before the result of each CQE but the last.

Exit status: 0, 1 if FILE is cut short, 125 if it cannot be read or is not a trace.";

/// Print the requests that `usring run --trace FILE` has recorded.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The file that `usring run --trace` has written.
    file: PathBuf,

    /// Print a table of calls, errors and latencies per opcode instead.
    #[arg(short = 'c', long, conflicts_with = "steps")]
    summary: bool,

    /// Print each step of a request on a line of its own.
    #[arg(long)]
    steps: bool,

    /// Print nothing, and write the requests to the file OUT for <https://ui.perfetto.dev>.
    #[arg(long, value_name = "OUT", conflicts_with_all = ["steps", "summary"])]
    perfetto: Option<PathBuf>,

    #[command(flatten)]
    filters: Filters,
}

/// Runs the subcommand.
pub fn run(options: &Options) -> Outcome {
    let trace = Loaded::read(&options.file)?;
    let requests = requests::join(&trace);
    let selected = requests.all.iter().enumerate().filter(|(_, request)| {
        let name = trace.name(request.first.name);
        options.filters.meets(request, &requests.processes[request.process], name.as_deref())
    });
    if let Some(path) = &options.perfetto {
        let failed = |error: io::Error| {
            Failure::new(format!("cannot write {} ({error})", path.display(), error = words(&error)))
        };
        let mut output = BufWriter::new(file::create_other(path)?);
        perfetto::write(&mut output, &trace, &requests, selected).and_then(|()| output.flush()).map_err(failed)?;
        return end(options, &trace);
    }
    let selected = selected.map(|(_, request)| request);
    let written = if options.summary {
        write_all(|output| write!(output, "{}", summary::table(selected)))
    } else {
        print(&trace, &requests, options.steps, selected)
    };
    match written {
        // The reader of the output, such as head(1), has ended, because it needs no more.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Ok(cannot_print(&error)),
        Ok(()) => end(options, &trace),
    }
}

/// Says what is missing in the trace, and returns the exit status.
fn end(options: &Options, trace: &Loaded) -> Outcome {
    notes(trace).iter().for_each(|note| eprintln!("usring trace: {note}"));
    if trace.missing == 0 {
        return Ok(0);
    }
    let sentence = format!(
        "{} is cut short: {} of its {} events are missing",
        options.file.display(),
        trace.missing,
        trace.header.records
    );
    Err(Failure::with_status(1, sentence))
}

fn print<'a>(
    trace: &Loaded,
    requests: &Requests,
    steps: bool,
    selected: impl Iterator<Item = &'a Request>,
) -> io::Result<()> {
    let printer = Printer { trace, requests, steps };
    write_all(|output| {
        let mut text = String::new();
        for request in selected {
            text.clear();
            printer.write(&mut text, request);
            output.write_all(text.as_bytes())?;
        }
        Ok(())
    })
}

fn write_all(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    write(&mut output)?;
    output.flush()
}

/// Returns what the user has to know about the trace's completeness.
fn notes(trace: &Loaded) -> Vec<String> {
    let header = &trace.header;
    let mut notes = Vec::new();
    if header.lost != 0 {
        let which = if header.keeps_last != 0 { "earlier" } else { "later" };
        notes.push(format!("{} {which} events are not in the trace", header.lost));
    }
    if header.ring != 0 {
        notes.push(format!("the trace has only ring {} of each process", header.ring));
    }
    notes
}
