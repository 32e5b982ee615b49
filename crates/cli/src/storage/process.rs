//! One process of the storage daemon, from its start to its end. Its standard error is a pipe,
//! which ends with the process.

use super::command::Plan;
use crate::signals;
use crate::supervise::die_with;
use crate::system_error::words;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, setsid};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

/// The daemon's program, which is looked up in PATH.
pub const PROGRAM: &str = "qemu-storage-daemon";
/// How long the daemon may take until it serves the device.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Interval between two checks whether the daemon serves the device or has ended, in milliseconds.
const CHECK_MS: u16 = 10;
/// How long a process may take to end after it has closed its standard error.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Longest line of the daemon's that is kept in one piece, in bytes.
const LONGEST_LINE: usize = 4096;
/// Most lines of a daemon that does not start, of which a message has the last.
const MOST_LINES: usize = 4;

pub struct Process {
    child: Child,
    errors: ChildStderr,
    /// The beginning of a line whose end was not read yet.
    unfinished: Vec<u8>,
    pub started: Instant,
}

/// Results of [`Process::wait`].
#[derive(Default)]
pub struct Found {
    /// Lines that the process has written to standard error.
    pub lines: Vec<String>,
    pub has_ended: bool,
    /// Whether the owner of the device wants the process to end.
    pub is_stopped: bool,
}

/// Why a process does not serve its device.
pub enum Unready {
    /// The owner of the device wants the process to end.
    Stopped,
    /// The process has ended, or was killed at the time limit: a sentence.
    Failed(String),
}

impl Process {
    /// Starts the daemon. The calling thread must live as long as the process, because the kernel
    /// kills the process when that thread ends. Error: a sentence.
    pub fn start(plan: &Plan, socket: &str, ready: &str) -> Result<Process, String> {
        let _ = std::fs::remove_file(ready);
        let mut command = Command::new(PROGRAM);
        command.args(plan.arguments(socket, ready));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let launcher = getpid();
        let prepare = move || {
            // A terminal's ^C is for the program, which may go on. It must not end the daemon.
            setsid()?;
            close_inherited()?;
            if die_with(launcher) { Ok(()) } else { Err(Errno::ESRCH.into()) }
        };
        // The calling thread blocks all signals, and SIGTERM has to end the daemon.
        signals::unblock_in_child(&mut command);
        // SAFETY: between fork and exec, `prepare` makes four system calls, and takes no lock.
        let spawned = unsafe { command.pre_exec(prepare) }.spawn();
        let mut child = spawned.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                format!("{PROGRAM} is not in PATH; install it (Debian: apt-get install qemu-system-common)")
            }
            _ => format!("cannot start {PROGRAM} ({error})", error = words(&error)),
        })?;
        match child.stderr.take() {
            Some(errors) => Ok(Process { child, errors, unfinished: Vec::new(), started: Instant::now() }),
            None => Err(format!("{PROGRAM} has no standard error")),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the daemon has made the file `ready`. Returns the lines that it has written to
    /// standard error. If it does not serve the device within [`START_LIMIT`], kills it.
    pub fn wait_until_ready(&mut self, plan: &Plan, ready: &str, stop: &EventFd) -> Result<Vec<String>, Unready> {
        let mut lines = Vec::new();
        while self.started.elapsed() < START_LIMIT {
            if Path::new(ready).exists() {
                return Ok(lines);
            }
            let found = self.wait(stop, PollTimeout::from(CHECK_MS));
            lines.extend(found.lines);
            if found.has_ended {
                let status = self.end(END_LIMIT).1;
                return Err(Unready::Failed(complaint(plan, &lines, &status)));
            }
            if found.is_stopped {
                self.kill();
                return Err(Unready::Stopped);
            }
        }
        self.kill();
        let said = if lines.is_empty() { String::new() } else { format!("; it said: {}", joined(plan, &lines)) };
        let limit = START_LIMIT.as_secs();
        Err(Unready::Failed(format!(
            "{PROGRAM} was not ready within {limit} s, perhaps because the storage does not answer{said}"
        )))
    }

    /// Waits for a line of the process, its end, or the wish that it ends, at most for `timeout`.
    pub fn wait(&mut self, stop: &EventFd, timeout: PollTimeout) -> Found {
        let mut watched =
            [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(self.errors.as_fd(), PollFlags::POLLIN)];
        if poll(&mut watched, timeout).is_err() {
            return Found::default();
        }
        let [is_stopped, has_said] = watched.map(|one| one.any().unwrap_or(true));
        let mut found = Found { is_stopped, ..Found::default() };
        if has_said {
            (found.lines, found.has_ended) = self.read();
        }
        found
    }

    /// Reads what the process has written. Returns the finished lines, and whether the process has
    /// closed its standard error.
    fn read(&mut self) -> (Vec<String>, bool) {
        let mut buffer = [0; LONGEST_LINE];
        let length = match self.errors.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => return (Vec::new(), false),
            Err(_) => 0,
        };
        self.unfinished.extend_from_slice(&buffer[..length]);
        let is_over = length == 0;
        let whole = match self.unfinished.iter().rposition(|byte| *byte == b'\n') {
            _ if is_over || self.unfinished.len() > LONGEST_LINE => self.unfinished.len(),
            end => end.map_or(0, |at| at + 1),
        };
        let text: Vec<u8> = self.unfinished.drain(..whole).collect();
        let lines = String::from_utf8_lossy(&text).lines().map(str::trim).map(str::to_owned).collect::<Vec<_>>();
        (lines.into_iter().filter(|line| !line.is_empty()).collect(), is_over)
    }

    /// Waits at most for `limit` until the process has ended, and then kills it. Returns whether it
    /// ended by itself, and how it ended, in words.
    pub fn end(&mut self, limit: Duration) -> (bool, String) {
        let start = Instant::now();
        let mut has_closed = false;
        while start.elapsed() < limit {
            match self.child.try_wait() {
                Ok(Some(status)) => return (true, status.to_string()),
                // If SIGCHLD is ignored, the kernel keeps no status.
                Err(_) => return (true, "an unknown status".into()),
                Ok(None) => {}
            }
            // The end of the pipe says that the end is near, so the pipe is not watched any more.
            let mut watched = [PollFd::new(self.errors.as_fd(), PollFlags::POLLIN)];
            let _ = poll(if has_closed { &mut [] } else { &mut watched }, PollTimeout::from(CHECK_MS));
            if !has_closed && watched[0].any().unwrap_or(true) {
                has_closed = self.read().1;
            }
        }
        self.kill();
        (false, "SIGKILL".into())
    }

    /// Asks the process to end, and kills it after `limit`. Returns whether it ended by itself.
    pub fn stop(&mut self, limit: Duration) -> bool {
        // The process was not reaped, so its id cannot belong to another process.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        self.end(limit).0
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has exec close every descriptor but the standard ones, so that the daemon keeps open no pipe or
/// file that the launcher has inherited.
fn close_inherited() -> nix::Result<()> {
    // SAFETY: close_range(2) with this flag closes nothing now, and accesses no memory.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    match Errno::result(done) {
        // Linux before 5.11 does not have the call or the flag.
        Ok(_) | Err(Errno::ENOSYS | Errno::EINVAL) => Ok(()),
        // A sandbox of containers may refuse calls that it does not know.
        Err(Errno::EPERM) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns why a daemon has ended at its start, by what it said.
fn complaint(plan: &Plan, lines: &[String], status: &str) -> String {
    let driver = lines.iter().find_map(|line| line.split_once("Unknown driver '")?.1.strip_suffix('\''));
    match driver {
        Some(driver) => {
            format!("{PROGRAM} has no driver '{driver}'; install it (Debian: apt-get install qemu-block-extra)")
        }
        None if lines.is_empty() => format!("{PROGRAM} ended with {status} and without a message"),
        None => format!("{PROGRAM}: {}", joined(plan, lines)),
    }
}

/// Returns the last lines of the daemon as one text, without the options that it repeats.
fn joined(plan: &Plan, lines: &[String]) -> String {
    let last = &lines[lines.len().saturating_sub(MOST_LINES)..];
    last.iter().map(|line| bare(plan, line)).collect::<Vec<_>>().join("; ")
}

/// Returns a line of the daemon's without its name and the option that it repeats.
pub fn bare<'a>(plan: &Plan, line: &'a str) -> &'a str {
    let without_name = |line: &'a str| Some(line.strip_prefix(PROGRAM)?.strip_prefix(": "));
    let line = without_name(line).flatten().unwrap_or(line);
    let without = |(option, value): (&str, &str)| {
        line.strip_prefix(option)?.strip_prefix(' ')?.strip_prefix(value)?.strip_prefix(": ")
    };
    plan.options().find_map(without).unwrap_or(line)
}
