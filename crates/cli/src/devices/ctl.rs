//! `usring ctl`: shows the devices of running programs, and changes how threads wait for a device
//! while its run goes on.

use super::policies::Policies;
use super::socket;
use crate::storage::{self, State};
use crate::system_error::words;
use crate::{Failure, Outcome, inject, trace, watch};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use usring_device::PollPolicy;
use usring_device::control::{Control, QuestionKind};
use usring_sys::Errno;
use usring_sys::width;

const EXAMPLES: &str = "\
Examples:
  usring ctl                          shows the devices of all your runs
  usring ctl /tmp/disk                shows one device
  usring ctl /tmp/disk poll=classic   makes threads poll that device from now on
  usring ctl inject list              lists the rules of a run with --inject
  usring ctl metrics                  prints the counts as OpenMetrics
  usring ctl requests                 lists the requests in flight (--trace)
  usring ctl trace now.trace          writes the trace of a run so far

Policies:
  interrupt    sleep until the device interrupts; the device refuses polled rings (EOPNOTSUPP),
               unless the run was started with --iopoll-fallback
  classic      poll without a pause (the default)
  hybrid       sleep for a part of the expected time, then poll
  hybrid:5us   sleep for 5 µs, then poll

Exit status: 0, 1 if none of your runs has the device PATH, 125 if the command failed.";

/// Show the devices, faults, requests and counts of running programs, and change some of them.
///
/// Without a subcommand, this command shows devices, or changes how threads wait for a device's
/// completions.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The device: PATH of `usring run --device PATH=SPEC`. Without PATH, the command shows all
    /// devices of your runs.
    path: Option<PathBuf>,

    /// The new policy: poll=interrupt, poll=classic, poll=hybrid or poll=hybrid:SPAN (5us, 1ms). It
    /// takes effect with each thread's next wait.
    #[arg(requires = "path", value_parser = parse_change, value_name = "poll=POLICY")]
    change: Option<PollPolicy>,
}

/// Subcommands that do not concern devices.
#[derive(clap::Subcommand)]
pub enum Command {
    Inject(inject::control::Options),
    Metrics(watch::metrics::Options),
    Requests(trace::live::RequestsOptions),
    Trace(trace::live::TraceOptions),
}

fn parse_change(text: &str) -> Result<PollPolicy, String> {
    let policy = text.strip_prefix("poll=").and_then(PollPolicy::parse);
    policy.ok_or_else(|| "expected poll=interrupt, poll=classic, poll=hybrid or poll=hybrid:SPAN (5us, 1ms)".into())
}

/// A device of a run, as the run's launcher describes it.
struct Found {
    path: PathBuf,
    spec: String,
    size: u64,
    policies: Policies,
    index: usize,
    /// The state of the storage daemon that serves the device, if the run has started one.
    storage: Option<State>,
    /// Process id of the launcher, from the socket's name.
    run: String,
}

pub fn run(options: &Options) -> Outcome {
    let mut found = Vec::new();
    let folders = socket::private_folders();
    folders.iter().for_each(|folder| storage::remove_left(folder));
    for path in socket::all_in(&folders) {
        match devices_of(&path) {
            Ok(devices) => found.extend(devices),
            // No process listens on the socket: SIGKILL ended the run's launcher, which could not
            // remove the socket.
            Err(Errno::ECONNREFUSED) => drop(std::fs::remove_file(&path)),
            Err(error) => socket::say_unanswered(&path, error),
        }
    }
    if let Some(path) = &options.path {
        let wanted = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let there = names(&found);
        found.retain(|device| device.path == wanted);
        if found.is_empty() {
            let sentence = format!("none of your runs has a device {}; {there}", wanted.display());
            return Err(Failure::with_status(1, sentence));
        }
    }
    for device in &found {
        if let Some(policy) = options.change {
            let set = device.policies.set(device.index, policy);
            set.map_err(|error| {
                Failure::new(format!("cannot change {} ({error})", device.path.display(), error = words(&error)))
            })?;
        }
        show(device)?;
    }
    if found.is_empty() {
        tell!("no devices: none of your runs was started with `usring run --device`");
    }
    Ok(0)
}

/// Returns in words which devices there are.
fn names(found: &[Found]) -> String {
    let paths: Vec<_> = found.iter().map(|device| device.path.display().to_string()).collect();
    if paths.is_empty() {
        "start one with `usring run --device PATH=SPEC -- PROGRAM`".into()
    } else {
        format!("they have {}", paths.join(", "))
    }
}

fn show(device: &Found) -> Result<(), Failure> {
    let policy = device.policies.get(device.index);
    let policy = policy.map_err(|error| {
        Failure::new(format!("cannot read the policies of the run's devices ({error})", error = words(&error)))
    })?;
    tell!("{}", device.path.display());
    tell!("  device  {}", device.spec);
    tell!("  size    {} bytes", device.size);
    tell!("  poll    {policy}");
    tell!("  run     {}", device.run);
    if let Some(State { process, is_alive, restarts }) = device.storage {
        let process = process.map_or("no process".to_owned(), |process| format!("process {process}"));
        let condition = if is_alive { "alive" } else { "not alive" };
        tell!("  daemon  {process}, {condition}, restarts: {restarts}");
    }
    Ok(())
}

/// Asks for the state of the storage daemon that serves a device. `None` if the run has started no
/// daemon for it.
fn ask_for_storage(control: &Control, device: u32) -> Result<Option<State>, Errno> {
    match control.ask(QuestionKind::Health, device, [0; 4], None) {
        Ok(answered) => {
            let [process, is_alive, restarts, _] = answered.values;
            let process = Some(width::low(process)).filter(|process| *process != 0);
            Ok(Some(State { process, is_alive: is_alive != 0, restarts }))
        }
        Err(Errno::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

fn devices_of(socket: &Path) -> Result<Vec<Found>, Errno> {
    let (control, run) = (socket::control(socket), socket::run_of(socket));
    let list = control.ask(QuestionKind::List, 0, [0; 4], None)?;
    let mut found = Vec::new();
    for index in 0..width::size(list.values[0]) {
        // Asks once per device for the page with the run's poll policies, because each `Found` owns
        // a descriptor of that page.
        let page =
            control.ask(QuestionKind::List, 0, [0; 4], None)?.descriptors.into_iter().next().ok_or(Errno::EINVAL)?;
        // SAFETY: the descriptor came with the answer, and `into_raw` has just given up its
        // ownership.
        let policies = Policies::from_file(unsafe { File::from_raw_fd(page.into_raw()) });
        let described = control.ask(QuestionKind::Describe, width::count(index), [0; 4], None)?;
        let split = described.text.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
        let spec = String::from_utf8_lossy(&described.text[..split]).into_owned();
        let path = PathBuf::from(OsString::from_vec(described.text[split + 1..].to_vec()));
        let storage = ask_for_storage(&control, width::count(index))?;
        found.push(Found { path, spec, size: described.values[3], policies, index, storage, run: run.clone() });
    }
    Ok(found)
}
