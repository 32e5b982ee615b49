//! Starts a child process (this executable, or a workload beside it) and waits for its end within a
//! time limit.

use crate::signals;
use crate::supervise::die_with;
use crate::system_error::words;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The implementation that answers a program's io_uring calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The kernel's io_uring, if it works here.
    Kernel,
    /// usring's Rust API, to which the program is linked.
    Linked,
    /// No implementation: the kernel's io_uring calls are denied, and usring is not loaded.
    Denied,
    /// usring, loaded by `usring run` with these options.
    Usring(&'static [&'static str]),
}

/// Returns the path of this executable.
pub fn ourselves() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| {
        format!("cannot find the path of this executable ({error}); is /proc mounted?", error = words(&error))
    })
}

/// Returns a command that runs `program` on `system`. If `system` is [`System::Usring`], `more` are
/// further options of `usring run`.
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

/// Runs a command to its end and returns its output. Kills the child if it takes longer than
/// `limit`.
pub fn output_within(command: &mut Command, limit: Duration) -> Result<Output, String> {
    wait_within(start(command)?, limit)
}

/// Starts a child whose standard input is empty and whose output goes to pipes that this process
/// reads.
pub fn start(command: &mut Command) -> Result<Child, String> {
    let child = spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    child.map_err(|error| format!("cannot start a child process ({error})", error = words(&error)))
}

/// Starts a child that the kernel kills when this process ends. Must be called by the main thread:
/// the child also dies when the calling thread ends.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let parent = nix::unistd::getpid();
    let prepare = move || match die_with(parent) {
        true => Ok(()),
        false => Err(std::io::Error::from_raw_os_error(nix::libc::ESRCH)),
    };
    // SAFETY: between fork and exec, `prepare` makes two system calls, and takes no lock.
    unsafe { signals::unblock_in_child(command).pre_exec(prepare) }.spawn()
}

/// Waits for a running child and returns its output. Kills the child if it takes longer than
/// `limit`.
pub fn wait_within(child: Child, limit: Duration) -> Result<Output, String> {
    let process = child.id();
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(limit) {
        Ok(output) => {
            output.map_err(|error| format!("cannot wait for a child process ({error})", error = words(&error)))
        }
        Err(RecvTimeoutError::Timeout) => {
            let process = nix::unistd::Pid::from_raw(process.cast_signed());
            let _ = nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL);
            // Waits until the thread has reaped the child.
            let _ = receiver.recv();
            Err(format!("the child process did not end within {} s and was killed", limit.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => Err("the thread that waited for a child process has ended".into()),
    }
}

/// Runs a command to its end. Passes each line of its standard output to `show` as soon as it is
/// written, and returns the rest of the output. If no line comes for `limit`, the child gets
/// another `limit` to end, and is then killed.
pub fn follow(command: &mut Command, limit: Duration, mut show: impl FnMut(&str)) -> Result<Output, String> {
    let mut child = start(command)?;
    let (sender, receiver) = channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
    }
    // The loop ends at the end of the output, or if no line comes for `limit`. In both cases the
    // child must still be reaped.
    while let Ok(line) = receiver.recv_timeout(limit) {
        show(&line);
    }
    wait_within(child, limit)
}

/// Returns the last line that a failed child wrote to standard error before the table of `--stats`.
/// If it wrote no line, returns its exit status in words.
pub fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let own = said.lines().take_while(|line| !line.starts_with("usring: "));
    match own.filter(|line| !line.trim().is_empty()).last() {
        Some(line) => line.trim().trim_start_matches("usring run: ").to_owned(),
        None => format!("the child process ended with {}", output.status),
    }
}
