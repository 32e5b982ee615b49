//! `usring ctl trace` and `usring ctl requests`: read the trace of a run while the run goes on.
//!
//! The launcher of a run holds the memory of the trace as a descriptor. The user who started the
//! run can open this descriptor through /proc. So the run itself does nothing for these commands.

use super::file::{self, Loaded};
use super::print::{Printer, Span, step_of};
use super::requests::{self, Process, Request, Requests};
use crate::check::STACKS_FILE;
use crate::check::stacks::{Symbols, write_callers};
use crate::system_error::words;
use crate::table::Table;
use crate::watch::processes;
use crate::{Failure, Outcome};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::getuid;
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use usring_check::stacks::{self, Shared};
use usring_sys::Errno;
use usring_sys::descriptor::OwnedDescriptor;
use usring_trace::format::{EventKind, is_aio};
use usring_trace::page::Page;

/// The name that /proc/PID/fd shows for the launcher's memory of the trace.
const LAUNCHER_FILE: &str = "/memfd:usring-trace (deleted)";

/// The run that is meant.
#[derive(clap::Args)]
struct Which {
    /// Process id of the `usring run` that is meant, if several of your runs have --trace.
    #[arg(long, value_name = "PID")]
    run: Option<u32>,
}

/// Write the trace of a run so far to FILE, which `usring trace FILE` prints.
#[derive(clap::Args)]
pub struct TraceOptions {
    /// The file, which usring makes. usring overwrites an earlier trace, and refuses any other
    /// file.
    file: PathBuf,

    #[command(flatten)]
    which: Which,
}

const REQUESTS_EXAMPLES: &str = "\
Example:
  usring run --trace /tmp/last.trace,last=64M -- my-server &
  usring ctl requests
      Lists the requests that have not completed, the oldest first: their age, process and ring,
      what was submitted, and what they wait for.
  usring run --check --trace /tmp/last.trace,last=64M -- my-server &
  usring ctl requests $(pidof my-server)
      Also shows the stack that submitted each request, with file and line.

Exit status: 0, 1 if no such run has --trace, 125 if the command failed.";

/// List the requests in flight of a run that was started with --trace.
#[derive(clap::Args)]
#[command(after_help = REQUESTS_EXAMPLES)]
pub struct RequestsOptions {
    /// List only the requests of this process.
    #[arg(value_name = "PID")]
    process: Option<u32>,

    #[command(flatten)]
    which: Which,
}

/// Runs `usring ctl trace`.
pub fn write(options: &TraceOptions) -> Outcome {
    let (run, page) = find(options.which.run)?;
    let output = file::open_output(&options.file)?;
    let written = file::write(&page, &output).map_err(|error| {
        Failure::new(format!("cannot write the trace {} ({})", options.file.display(), words(&error)))
    })?;
    tell!("run {run}: {}", written.sentence(&options.file, page.size()));
    Ok(0)
}

/// Runs `usring ctl requests`.
pub fn list(options: &RequestsOptions) -> Outcome {
    let of_process = options.process.and_then(run_of);
    let (run, page) = find(options.which.run.or(of_process))?;
    // The stacks are read before the trace. A request that the trace then shows in flight had not
    // ended when its stack was read.
    let stacks = shared_stacks(run);
    let trace = snapshot(&page)?;
    let requests = requests::join(&trace);
    let now = trace.header.nanoseconds(trace.header.end[0]);
    let mut in_flight = in_flight(&trace, &requests);
    let is_meant = |request: &&Request| options.process.is_none_or(|id| requests.processes[request.process].id == id);
    in_flight.retain(is_meant);
    in_flight.sort_by_key(|request| request.from);
    match in_flight.len() {
        0 => tell!("run {run}: no request is in flight"),
        1 => tell!("run {run}: 1 request is in flight"),
        count => tell!("run {run}: {count} requests are in flight"),
    }
    if !in_flight.is_empty() {
        let printer = Printer { trace: &trace, requests: &requests, steps: false };
        crate::print(format_args!("{}", table(&printer, &in_flight, now)));
        crate::print(format_args!("{}", submissions(&printer, &in_flight, &stacks)));
    }
    if trace.header.lost != 0 && trace.header.keeps_last != 0 {
        eprintln!("usring ctl: the trace has only the last events, so requests with none of these are not listed");
    } else if trace.header.lost != 0 {
        eprintln!("usring ctl: the trace is full, so later events are missing; start the run with FILE,last=SIZE");
    }
    Ok(0)
}

/// Returns the process's nearest ancestor that is the launcher of a run with a trace.
fn run_of(process: u32) -> Option<u32> {
    processes::ancestors(process).find(|ancestor| memory_of(*ancestor, LAUNCHER_FILE).is_some())
}

/// Reads the stacks that the processes of a run share. Returns none if the run has no --check.
fn shared_stacks(run: u32) -> Vec<Shared> {
    let memory = memory_of(run, STACKS_FILE).and_then(|path| fs::read(path).ok());
    memory.map_or_else(Vec::new, |memory| stacks::read(&memory))
}

/// Returns, as text, the stack from which the program submitted each of the requests.
fn submissions(printer: &Printer, in_flight: &[&Request], stacks: &[Shared]) -> String {
    let mut symbols = Symbols::default();
    let mut text = String::new();
    for request in in_flight {
        let process = printer.requests.processes[request.process].id;
        let (ring, number) = (request.first.ring, request.first.request);
        let is_of = |stack: &&Shared| (stack.process, stack.ring, stack.request) == (process, ring, number);
        let Some(stack) = stacks.iter().find(is_of) else { continue };
        let callers = symbols.callers(&stack.stack, &code_maps(process));
        text.push('\n');
        // Writing to a string does not fail.
        let _ = printer.write_call(&mut text, request);
        text.push_str(" was submitted at\n");
        write_callers(&mut text, &callers);
    }
    text
}

/// Returns the lines of /proc/PID/maps for mappings that hold code.
fn code_maps(process: u32) -> Vec<u8> {
    let text = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    let is_code = |line: &&[u8]| line.windows(6).any(|part| part == b" r-xp ");
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').filter(is_code).collect();
    lines.join(&b'\n')
}

fn table(printer: &Printer, in_flight: &[&Request], now: u64) -> Table {
    let mut table = Table::new(["age", "pid", "ring", "request", "state"], 5);
    for request in in_flight {
        let wait = request.waits.last().filter(|wait| wait.until.is_none());
        let ring = request.first.ring;
        let mut call = String::new();
        // Writing to a string does not fail.
        let _ = printer.write_call(&mut call, request);
        table.add([
            Span(now.saturating_sub(request.from)).to_string(),
            printer.requests.processes[request.process].id.to_string(),
            if is_aio(ring) { "aio".into() } else { ring.to_string() },
            call,
            wait.map_or("is being issued".into(), |wait| step_of(wait.cause)),
        ]);
    }
    table
}

/// Returns the requests that have not completed, and whose process and ring still exist.
fn in_flight<'a>(trace: &Loaded, requests: &'a Requests) -> Vec<&'a Request> {
    let closed: HashSet<(u32, u32, u32)> = trace
        .events
        .iter()
        .filter(|event| event.record.kind == EventKind::Closed)
        .map(|event| (event.record.process, event.record.turn, event.record.ring))
        .collect();
    let exists = |request: &Request| {
        let Process { id, turn, .. } = requests.processes[request.process];
        // A later program of the run can have the same process id. The request does not belong to
        // that program's rings.
        let is_last = !requests.processes[request.process + 1..].iter().any(|later| later.id == id);
        is_last && !closed.contains(&(id, turn, request.first.ring)) && Path::new(&format!("/proc/{id}")).exists()
    };
    requests.all.iter().filter(|request| request.completed.is_none() && exists(request)).collect()
}

/// Reads the events so far.
fn snapshot(page: &Page) -> Result<Loaded, Failure> {
    let failed = |error: io::Error| Failure::new(format!("cannot copy the trace ({})", words(&error)));
    let memory = memfd_create(c"usring-snapshot", MFdFlags::MFD_CLOEXEC).map_err(|error| failed(error.into()))?;
    let copy = File::from(memory);
    file::write(page, &copy).map_err(failed)?;
    Loaded::read(Path::new(&format!("/proc/self/fd/{}", copy.as_raw_fd())))
}

/// Finds a run with --trace. `wanted`: the process id of its launcher. Without `wanted`, this user
/// must have exactly one such run. Returns the launcher's process id and the memory of the trace.
fn find(wanted: Option<u32>) -> Result<(u32, Page), Failure> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_meant = |id: &u32| wanted.map_or_else(|| is_own(*id), |wanted| wanted == *id);
    let mut found: Vec<(u32, PathBuf)> =
        ids.filter(is_meant).filter_map(|id| Some((id, memory_of(id, LAUNCHER_FILE)?))).collect();
    if found.len() > 1 {
        let runs: Vec<String> = found.iter().map(|(run, _)| run.to_string()).collect();
        let text = format!("several of your runs have --trace: {}; choose one by --run PID", runs.join(", "));
        return Err(Failure::with_status(1, text));
    }
    let (run, path) = found.pop().ok_or_else(|| {
        let text = match wanted {
            Some(wanted) => format!("no run {wanted} of yours has --trace; `usring ps` lists your runs"),
            None => "none of your runs has --trace; start one with `usring run --trace FILE,last=64M`".into(),
        };
        Failure::with_status(1, text)
    })?;
    let page = open(&path).map_err(|error| {
        let text = match error {
            Errno::EINVAL => format!("run {run} is of another build of usring; use the usring that started it"),
            error => format!("cannot read the trace of run {run} ({})", words(&error)),
        };
        Failure::with_status(1, text)
    })?;
    Ok((run, page))
}

/// Returns whether a process belongs to this user.
fn is_own(process: u32) -> bool {
    fs::metadata(format!("/proc/{process}")).is_ok_and(|process| process.uid() == getuid().as_raw())
}

/// Returns the path of the descriptor by which a process holds the memory file with this name.
fn memory_of(process: u32, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| fs::read_link(path).is_ok_and(|target| target == Path::new(name)))
}

/// Opens the memory of a trace. Refuses anything but a memory file whose length is sealed: any
/// other file could become shorter while it is mapped.
fn open(path: &Path) -> Result<Page, Errno> {
    let failed = |error: io::Error| Errno::new(error.raw_os_error().unwrap_or_default().cast_unsigned());
    let named = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path).map_err(failed)?;
    if !named.metadata().map_err(failed)?.is_file() {
        return Err(Errno::EINVAL);
    }
    let examined = format!("/proc/self/fd/{}", named.as_raw_fd());
    let file = OpenOptions::new().read(true).write(true).open(examined).map_err(failed)?;
    let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map_or(0, |seals| seals);
    if !SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK) {
        return Err(Errno::EINVAL);
    }
    Page::open(&OwnedDescriptor::from_raw(file.into_raw_fd()))
}
