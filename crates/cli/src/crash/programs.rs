//! Runs the user's commands: setup, the recorded command, and the check.

use super::STATUS_NOT_RUN;
use super::folder::Scratch;
use super::workplace::{Group, Workplace, end_orphans, is_stopped};
use crate::system_error::words;
use crate::{Failure, child, signals};
use nix::sys::stat::fstat;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use usring_record::format::{self, Page};

/// Environment variable of the setup, the recorded command and the check. It has the path of the
/// folder on which they work.
const STATE: &str = "USRING_CRASH_STATE";
/// Variable by which the check finds the file with everything that the recorded command had printed
/// before the power loss.
const OUTPUT: &str = "USRING_CRASH_OUTPUT";

/// How a command ended.
#[derive(Debug)]
pub enum Ended {
    Status(ExitStatus),
    TimedOut,
    /// A signal asked this process to end.
    Stopped,
}

impl Ended {
    pub fn is_success(&self) -> bool {
        matches!(self, Ended::Status(status) if status.success())
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // A shell exits with status 127 if it does not find the program.
            Ended::Status(status) if status.code() == Some(127) => {
                write!(f, "{status} (commands run in a copy of the folder, so name programs by their whole paths)")
            }
            Ended::Status(status) => write!(f, "{status}"),
            Ended::TimedOut => write!(f, "it did not end within its time limit"),
            Ended::Stopped => write!(f, "it was interrupted"),
        }
    }
}

/// Interval at which a waiting thread checks whether a signal has asked this process to end.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Starts a command in a process group of its own, and waits for its end.
fn run_within(command: &mut Command, limit: Duration) -> io::Result<Ended> {
    let mut child = signals::unblock_in_child(command.process_group(0)).spawn()?;
    let group = Group::of(&child);
    let (sender, receiver) = channel();
    let waiter = std::thread::spawn(move || sender.send(child.wait()));
    let end = Instant::now() + limit;
    let ended = loop {
        let left = end.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(left.min(STOP_CHECK_INTERVAL)) {
            Ok(status) => break Ended::Status(status?),
            Err(RecvTimeoutError::Disconnected) => break Ended::TimedOut,
            Err(RecvTimeoutError::Timeout) if is_stopped() => break Ended::Stopped,
            Err(RecvTimeoutError::Timeout) if left.is_zero() => break Ended::TimedOut,
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    drop(group);
    let _ = waiter.join();
    Ok(if is_stopped() { Ended::Stopped } else { ended })
}

fn shell(text: &str, folder: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(text).current_dir(folder).env(STATE, folder).stdin(Stdio::null());
    command
}

fn not_run(what: &str, error: &io::Error) -> Failure {
    Failure::with_status(STATUS_NOT_RUN, format!("cannot run {what} ({error})", error = words(&error)))
}

/// Runs the setup command in a folder.
pub fn set_up(text: &str, folder: &Path, limit: Duration) -> Result<(), Failure> {
    let mut command = shell(text, folder);
    let ended =
        run_within(command.stdout(io::stderr()), limit).map_err(|error| not_run("the setup command", &error))?;
    if ended.is_success() {
        return Ok(());
    }
    Err(Failure::with_status(STATUS_NOT_RUN, format!("the setup command failed: {ended}")))
}

/// Options of the recorded command.
pub struct Recorded<'a> {
    pub text: &'a str,
    /// Values of `--inject`, for `usring run`.
    pub inject: &'a [String],
    pub seed: u64,
    pub limit: Duration,
}

/// A recording's log, and how the command ended.
pub struct Log {
    pub bytes: Vec<u8>,
    pub ended: Ended,
}

/// Longest log, in bytes.
const MOST_LOG: u64 = 2 << 30;

/// Runs the command under usring, which records all changes below the folder.
pub fn record(options: &Recorded<'_>, folder: &Path, workplace: &Workplace) -> Result<Log, Failure> {
    let failed = |error| not_run("the command", &error);
    let path = workplace.path("log");
    let (mut reader, writer) = io::pipe().map_err(failed)?;
    let pipe = fstat(&writer).map_err(|error| failed(error.into()))?;
    write_page(&path, [pipe.st_dev, pipe.st_ino], folder).map_err(failed)?;
    let launcher = child::ourselves().map_err(|sentence| Failure::with_status(STATUS_NOT_RUN, sentence))?;
    let mut command = Command::new(launcher);
    command.arg("run").arg("--record").arg(&path);
    for rule in options.inject {
        command.arg("--inject").arg(rule);
    }
    if !options.inject.is_empty() {
        command.arg("--seed").arg(options.seed.to_string());
    }
    command.args(["--", "/bin/sh", "-c", options.text]).current_dir(folder).env(STATE, folder);
    command.stdin(Stdio::null()).stdout(writer);
    let _ = nix::sys::prctl::set_child_subreaper(true);
    let drain = std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        while matches!(reader.read(&mut buffer), Ok(count) if count != 0) {}
    });
    let ended = run_within(&mut command, options.limit).map_err(failed)?;
    end_orphans();
    // `command` holds this process's copy of the pipe's writing end. While a copy is open, the
    // thread `drain` never sees the end of the pipe.
    drop(command);
    let _ = drain.join();
    if std::fs::metadata(&path).map_err(failed)?.len() > MOST_LOG {
        return Err(Failure::with_status(
            STATUS_NOT_RUN,
            "the command changed more than 2 GiB; record one that changes less",
        ));
    }
    Ok(Log { bytes: std::fs::read(&path).map_err(failed)?, ended })
}

/// Writes the first page of the log.
fn write_page(path: &Path, [device, inode]: [u64; 2], folder: &Path) -> io::Result<()> {
    let name = folder.as_os_str().as_encoded_bytes();
    if name.len() > format::MOST_FOLDER {
        return Err(io::Error::other("the path of the folder is too long; set TMPDIR to a shorter one"));
    }
    let file = File::create_new(path)?;
    file.set_len(format::PAGE as u64)?;
    let put = |word: Page, bytes: &[u8]| file.write_all_at(bytes, 8 * word as u64);
    put(Page::OutputDevice, &device.to_ne_bytes())?;
    put(Page::OutputInode, &inode.to_ne_bytes())?;
    put(Page::FolderLength, &(name.len() as u64).to_ne_bytes())?;
    put(Page::Folder, name)
}

/// The check, as one worker runs it.
pub struct Check {
    pub text: String,
    pub limit: Duration,
    /// Paths of this worker's files: the state to check, the output of the recorded command, and
    /// the text that the check prints.
    pub state: PathBuf,
    pub output: PathBuf,
    pub said: PathBuf,
}

/// The verdict of a check on one state.
pub struct Verdict {
    pub ended: Ended,
    /// The text that the check printed.
    pub said: String,
}

impl Check {
    pub fn new(text: &str, limit: Duration, workplace: &Workplace, worker: usize) -> Check {
        Check {
            text: text.to_owned(),
            limit,
            state: workplace.path(&format!("state-{worker}")),
            output: workplace.path(&format!("output-{worker}")),
            said: workplace.path(&format!("said-{worker}")),
        }
    }

    /// Runs the check on the state in the worker's folder.
    pub fn run(&self, printed: &[u8]) -> Result<Verdict, Failure> {
        let failed = |error| not_run("the check", &error);
        std::fs::write(&self.output, printed).map_err(failed)?;
        let said = File::create(&self.said).map_err(failed)?;
        let mut command = shell(&self.text, &self.state);
        command.env(OUTPUT, &self.output);
        command.stdout(said.try_clone().map_err(failed)?).stderr(said);
        let ended = run_within(&mut command, self.limit).map_err(failed)?;
        let said = String::from_utf8_lossy(&std::fs::read(&self.said).map_err(failed)?).into_owned();
        Ok(Verdict { ended, said })
    }
}

/// Returns in sentences why a recording is incomplete. Leaves out reasons that concern scratch
/// files, whose bytes do not matter.
pub fn gaps(gaps: &[(String, String)], scratch: &Scratch) -> Vec<String> {
    let matters = |(_, path): &&(String, String)| path.is_empty() || !scratch.has(path);
    let sentence = |(reason, path): &(String, String)| match path.as_str() {
        "" => reason.clone(),
        path => format!("{reason}: \"{path}\""),
    };
    gaps.iter().filter(matters).map(sentence).collect()
}
