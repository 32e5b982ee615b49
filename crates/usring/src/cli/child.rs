//! Starting ourselves, or a workload beside us, as a child and waiting for it,
//! but not for ever.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Who answers a program's io_uring calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The kernel itself, if it can.
    Kernel,
    /// usring, to which the program is linked.
    Linked,
    /// Nobody: the calls are denied, and usring is not there.
    Denied,
    /// usring, with these options of `usring run`.
    Usring(&'static [&'static str]),
}

/// This executable.
pub fn ourselves() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("cannot tell where this executable lies ({error})"))
}

/// A command that runs `program` where `system` answers; if that is usring, with
/// further options.
pub fn command_on(system: System, more: &[String], program: &Path) -> Result<Command, String> {
    if matches!(system, System::Kernel | System::Linked) {
        return Ok(Command::new(program));
    }
    let mut command = Command::new(ourselves()?);
    match system {
        System::Usring(options) => command.arg("run").args(options).args(more),
        _ => command.arg("denied"),
    };
    command.arg("--").arg(program);
    Ok(command)
}

/// Runs a command to its end and answers what it printed. One that takes
/// longer than `limit` is killed.
pub fn output_within(command: &mut Command, limit: Duration) -> Result<Output, String> {
    wait_within(start(command)?, limit)
}

/// A child that reads nothing, and what it prints is ours.
pub fn start(command: &mut Command) -> Result<Child, String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    child.map_err(|error| format!("cannot start a child ({error})"))
}

/// As [`output_within`], for a child that runs already.
pub fn wait_within(child: Child, limit: Duration) -> Result<Output, String> {
    let process = child.id();
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(limit) {
        Ok(output) => output.map_err(|error| format!("cannot wait for a child ({error})")),
        Err(RecvTimeoutError::Timeout) => {
            let process = nix::unistd::Pid::from_raw(process as i32);
            let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL);
            // The thread reaps it now.
            let _ = receiver.recv();
            Err(format!("it did not end within {} s and was killed", limit.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => Err("the thread that waited for a child is gone".into()),
    }
}

/// As [`output_within`], and shows each line that the child prints as it comes;
/// `limit` is for each line.
pub fn follow(command: &mut Command, limit: Duration, mut show: impl FnMut(&str)) -> Result<Output, String> {
    let mut child = start(command)?;
    let (sender, receiver) = channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
    }
    // At the end of the output, or if it stops coming, it is the child's end
    // that is waited for.
    while let Ok(line) = receiver.recv_timeout(limit) {
        show(&line);
    }
    wait_within(child, limit)
}

/// What a child that failed said last, or how it ended if it said nothing.
/// The statistics that `--stats` adds are not its own words.
pub fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let own = said.lines().take_while(|line| !line.starts_with("usring: "));
    match own.filter(|line| !line.trim().is_empty()).last() {
        Some(line) => line.trim().trim_start_matches("usring run: ").to_owned(),
        None => format!("it ended with {}", output.status),
    }
}
