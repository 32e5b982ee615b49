//! One process of the storage daemon, from its start to its end. Its standard error is a pipe,
//! which ends with the process.

use super::command::Plan;
use crate::supervise::die_with;
use crate::system_error::words;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpid, setsid};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// The daemon's program, which is looked up in PATH.
pub const PROGRAM: &str = "qemu-storage-daemon";
/// How long the daemon may take until it serves the device.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Interval between two checks whether the daemon serves the device or has ended, in milliseconds.
const CHECK_MS: u16 = 10;
/// A daemon that closes its standard error before it is ready must end within this time.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Longest line of the daemon's output that is kept in one piece, in bytes.
const LONGEST_LINE: usize = 4096;
/// The message about a failed start has at most this many of the last lines of the daemon's output.
const MOST_LINES: usize = 4;
/// Maximum number of reads from the pipe of the daemon's standard error after the daemon has ended.
/// The pipe then holds at most 64 KiB, unless a process that the daemon started still writes to it.
const MOST_LAST_READS: usize = 64;
/// Signals that the daemon blocks. A service manager sends them to each process of a service, but
/// the program's last writes still need the daemon.
const BLOCKED: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
/// The commands (QMP) that end the daemon.
pub const QUIT: &[u8] = b"{\"execute\": \"qmp_capabilities\"}\n{\"execute\": \"quit\"}\n";

pub struct Process {
    child: Child,
    commands: ChildStdin,
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
    /// Whether the daemon has to end, because its device was dropped.
    pub is_stopped: bool,
}

/// How a process has ended.
pub struct End {
    /// Lines that the daemon has written to standard error since the last [`Process::wait`].
    pub lines: Vec<String>,
    /// Its exit status or signal, in words.
    pub status: String,
    pub is_success: bool,
    /// Whether it was killed at the time limit.
    pub is_killed: bool,
}

/// Why a process does not serve its device.
pub enum Unready {
    /// The daemon has to end, because its device was dropped.
    Stopped,
    /// The daemon has ended before it served the device, or was killed at the time limit. The text
    /// is a sentence for the user.
    Failed(String),
}

impl Process {
    /// Starts the daemon. The calling thread must live as long as the process, because the kernel
    /// kills the process when that thread ends. The error is a sentence for the user.
    pub fn start(plan: &Plan, socket: &str, ready: &str) -> Result<Process, String> {
        let _ = std::fs::remove_file(ready);
        let mut command = Command::new(PROGRAM);
        command.args(plan.arguments(socket, ready));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let launcher = getpid();
        let prepare = move || {
            // A terminal's ^C is for the program, which may survive it. The daemon gets a session
            // of its own, so the terminal does not send it the signal.
            setsid()?;
            close_inherited()?;
            // QEMU inherits this signal mask. It adds signals to the mask, and removes none of
            // [`BLOCKED`].
            SigSet::from_iter(BLOCKED).thread_set_mask()?;
            if die_with(launcher) { Ok(()) } else { Err(Errno::ESRCH.into()) }
        };
        // SAFETY: between fork and exec, `prepare` makes five system calls, and takes no lock.
        let spawned = unsafe { command.pre_exec(prepare) }.spawn();
        let mut child = spawned.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                format!("{PROGRAM} is not in PATH; install it (Debian: apt-get install qemu-system-common)")
            }
            _ => format!("cannot start {PROGRAM} ({error})", error = words(&error)),
        })?;
        match (child.stdin.take(), child.stderr.take()) {
            (Some(commands), Some(errors)) => {
                Ok(Process { child, commands, errors, unfinished: Vec::new(), started: Instant::now() })
            }
            _ => Err(format!("{PROGRAM} has no standard input or error")),
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
                let status = self.end(END_LIMIT).status;
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

    /// Waits until the daemon writes to standard error or closes it, the device is dropped (`stop`
    /// is then readable), or `timeout` passes.
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

    /// Reads what the daemon has written to standard error. Returns the finished lines, and whether
    /// the daemon has closed its standard error. An overlong line is returned in pieces.
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

    /// Waits until the daemon's process has ended. Kills it if that takes longer than `limit`.
    pub fn end(&mut self, limit: Duration) -> End {
        let start = Instant::now();
        let (mut lines, mut has_closed) = (Vec::new(), false);
        while start.elapsed() < limit {
            let (status, is_success) = match self.child.try_wait() {
                Ok(Some(status)) => (status.to_string(), status.success()),
                // If SIGCHLD is ignored, the kernel keeps no status.
                Err(_) => ("an unknown status".into(), true),
                Ok(None) => {
                    let mut found = self.said(CHECK_MS, has_closed);
                    lines.append(&mut found.lines);
                    has_closed = found.has_ended;
                    continue;
                }
            };
            lines.extend(self.last_lines(has_closed));
            return End { lines, status, is_success, is_killed: false };
        }
        self.kill();
        lines.extend(self.last_lines(has_closed));
        End { lines, status: "SIGKILL".into(), is_success: false, is_killed: true }
    }

    /// Waits up to `limit_ms` milliseconds for the process to write to standard error. A process
    /// that has closed the pipe is about to end, so the pipe is not polled any more.
    fn said(&mut self, limit_ms: u16, has_closed: bool) -> Found {
        let mut watched = [PollFd::new(self.errors.as_fd(), PollFlags::POLLIN)];
        let ready = poll(if has_closed { &mut [] } else { &mut watched }, PollTimeout::from(limit_ms));
        let (lines, has_ended) = if ready == Ok(1) { self.read() } else { (Vec::new(), has_closed) };
        Found { lines, has_ended, is_stopped: false }
    }

    /// Returns the lines that are still in the pipe of a process that has ended.
    fn last_lines(&mut self, mut has_closed: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for _ in 0..MOST_LAST_READS {
            if has_closed {
                break;
            }
            let mut found = self.said(0, false);
            lines.append(&mut found.lines);
            has_closed = found.has_ended;
        }
        lines
    }

    /// Asks the process to write its data to the storage and to end. Kills it if that takes longer
    /// than `limit`.
    pub fn stop(&mut self, limit: Duration) -> End {
        // An error is ignored: a process that has already ended cannot read QUIT, and `end` finds
        // its status.
        let _ = self.commands.write_all(QUIT);
        self.end(limit)
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
        // Linux before 5.11 lacks close_range(2) or its flag CLOSE_RANGE_CLOEXEC.
        Ok(_) | Err(Errno::ENOSYS | Errno::EINVAL) => Ok(()),
        // A container's seccomp filter may refuse close_range(2), if it does not know this call.
        Err(Errno::EPERM) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns why a daemon has ended at its start, according to the lines that it has written.
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

/// Returns the last of the daemon's lines as one text, each shortened by [`without_prefix`].
fn joined(plan: &Plan, lines: &[String]) -> String {
    let last = &lines[lines.len().saturating_sub(MOST_LINES)..];
    last.iter().map(|line| without_prefix(plan, line)).collect::<Vec<_>>().join("; ")
}

/// Returns a line of the daemon's output, without the daemon's name and without the option that the
/// line is about.
pub fn without_prefix<'a>(plan: &Plan, line: &'a str) -> &'a str {
    let without_name = |line: &'a str| Some(line.strip_prefix(PROGRAM)?.strip_prefix(": "));
    let line = without_name(line).flatten().unwrap_or(line);
    let without = |(option, value): (&str, &str)| {
        line.strip_prefix(option)?.strip_prefix(' ')?.strip_prefix(value)?.strip_prefix(": ")
    };
    plan.options().find_map(without).unwrap_or(line)
}
