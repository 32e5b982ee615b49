//! Runs one program under test: starts it, waits for its end, and kills it at its time limit.

use super::{Statistics, World, on_kernel};
use crate::control_group::ControlGroup;
use nix::sys::signal::{self, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time limit of a program that sets none.
const DEFAULT_LIMIT: Duration = Duration::from_secs(180);
/// A report shows at most this many bytes of a failed program's output, from its end.
const TAIL: usize = 6000;

/// A program that is ready to be started.
pub struct Run {
    command: Command,
    limit: Duration,
    world: World,
}

impl Run {
    /// Prepares the program. `options` are additional options of `usring run`.
    pub(super) fn new(stage: &Path, world: World, options: &[String], program: &Path) -> Run {
        // env(1) resets the signals that the test process ignores. Otherwise the program would
        // ignore them, too.
        let mut words: Vec<OsString> = vec!["/usr/bin/env".into(), "--default-signal".into()];
        if world.is_confined() {
            words.push(stage.join("tools/confine").into_os_string());
            if on_kernel() && world == World::Confined {
                words.push("--allow-io-uring".into());
            }
        }
        if world.has_usring() {
            words.push(stage.join("tools/usring").into());
            words.push("run".into());
            words.extend(world.options().iter().map(Into::into));
            words.extend(options.iter().map(Into::into));
            words.push("--".into());
        }
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(stage).stdin(Stdio::null());
        command.env("LC_ALL", "C").env("HOME", stage).env("TMPDIR", stage).env("XDG_RUNTIME_DIR", stage);
        // The program gets its own process group, so that the harness can kill all of its processes
        // by one id.
        command.process_group(0);
        Run { command, limit: DEFAULT_LIMIT, world }
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Run {
        self.command.arg(argument);
        self
    }

    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Run {
        self.command.args(arguments);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.command.env(name, value);
        self
    }

    pub fn current_dir(mut self, folder: &Path) -> Run {
        self.command.current_dir(folder);
        self
    }

    pub fn stdin(mut self, file: File) -> Run {
        self.command.stdin(file);
        self
    }

    /// Makes the program run in a control group.
    pub fn within(mut self, group: &ControlGroup) -> Run {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]).arg(group.members());
        command.arg(self.command.get_program()).args(self.command.get_args()).stdin(Stdio::null()).process_group(0);
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(self.command.get_current_dir().expect("the stage"));
        self.command = command;
        self
    }

    /// Sets the time after which the harness kills the program's process group and fails the test.
    pub fn limit(mut self, limit: Duration) -> Run {
        self.limit = limit;
        self
    }

    pub fn start(mut self) -> Started {
        // The output goes to files, because pipes would need threads that read them.
        let output = || tempfile::tempfile().expect("a temporary file");
        let (stdout, stderr) = (output(), output());
        self.command.stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
        let begin = Instant::now();
        let child = self.command.spawn().unwrap_or_else(|error| panic!("cannot start {:?}: {error}", self.command));
        Started { child, stdout, stderr, begin, run: self, ended: false }
    }

    /// Starts the program and waits for its end.
    pub fn finish(self) -> Finished {
        self.start().finish()
    }
}

/// A running program. Dropping it kills the program.
pub struct Started {
    child: Child,
    stdout: File,
    stderr: File,
    begin: Instant,
    run: Run,
    ended: bool,
}

impl Started {
    /// Returns the id of the process that the harness started. If the launcher stays as the
    /// program's parent, this is the launcher's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the program has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the first line on the program's standard output and returns it.
    pub fn wait_for_line(&mut self, limit: Duration) -> String {
        let begin = Instant::now();
        loop {
            let said = contents(&self.stdout);
            if let Some((line, _)) = said.split_once('\n') {
                return line.to_owned();
            }
            let waited = begin.elapsed();
            assert!(!self.has_ended() && waited < limit, "no line after {waited:?}: {}", contents(&self.stderr));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops all threads of the program while the function `examine` runs, and passes the program's
    /// process id to `examine`. Works only if the launcher has executed the program in place of
    /// itself.
    pub fn stopped<T>(&self, examine: impl FnOnce(u32) -> T) -> T {
        let process = Pid::from_raw(self.child.id().cast_signed());
        signal::kill(process, Signal::SIGSTOP).expect("a process of ours");
        let state = waitid(Id::Pid(process), WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        assert!(matches!(state, Ok(WaitStatus::Stopped(..))), "{state:?}: {}", self.stderr_so_far());
        let examined = examine(self.child.id());
        signal::kill(process, Signal::SIGCONT).expect("a process of ours");
        examined
    }

    /// Sends SIGTERM to the process that was started.
    pub fn terminate(&self) {
        signal::kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).expect("a process of ours");
    }

    /// Returns what the program has written to standard error so far.
    pub fn stderr_so_far(&self) -> String {
        contents(&self.stderr)
    }

    pub fn finish(mut self) -> Finished {
        let process = Pid::from_raw(self.child.id().cast_signed());
        let (ended, when_ended) = mpsc::channel();
        // With WNOWAIT the process stays a zombie. So its id cannot be reused before the call below
        // that reaps it.
        std::thread::spawn(move || {
            let _ = waitid(Id::Pid(process), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            let _ = ended.send(());
        });
        let in_time = when_ended.recv_timeout(self.run.limit).is_ok();
        let elapsed = self.begin.elapsed();
        if !in_time {
            let _ = killpg(process, Signal::SIGKILL);
        }
        let status = self.child.wait().unwrap();
        self.ended = true;
        let (statistics, stderr) = Statistics::split(&contents(&self.stderr));
        let finished = Finished {
            status,
            stdout: contents(&self.stdout),
            stderr,
            statistics,
            elapsed,
            world: self.run.world,
            line: format!("{:?}", self.run.command),
        };
        assert!(in_time, "still running after {:?}: {}", self.run.limit, finished.report());
        finished
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !self.ended {
            let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// Returns the whole content of a file. Reads at explicit offsets: the program writes through the
/// same open file description, whose position must not change.
fn contents(file: &File) -> String {
    let length = file.metadata().unwrap().len();
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The status and the output of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    /// Standard error, without the table of `--stats`.
    pub stderr: String,
    pub statistics: Option<Statistics>,
    pub elapsed: Duration,
    world: World,
    line: String,
}

impl Finished {
    /// Fails the test unless the program exited with status 0.
    #[track_caller]
    pub fn succeeded(self) -> Finished {
        assert!(self.status.success(), "{}", self.report());
        self
    }

    /// Fails the test unless the engine completed at least `at_least` requests of these opcodes (of
    /// all opcodes if the list is empty).
    #[track_caller]
    pub fn served(self, opcodes: &[&str], at_least: u64) -> Finished {
        if self.world.has_usring() {
            let completed = self.statistics.as_ref().map(|statistics| statistics.sum("completed", opcodes));
            assert!(
                completed.is_some_and(|completed| completed >= at_least),
                "served {completed:?} requests of {opcodes:?}, not {at_least}: {}",
                self.report()
            );
        }
        self
    }

    /// Fails the test if the engine completed a request of these opcodes with an error.
    #[track_caller]
    pub fn without_errors(self, opcodes: &[&str]) -> Finished {
        let errors = self.statistics.as_ref().map_or(0, |statistics| statistics.sum("errors", opcodes));
        assert_eq!(errors, 0, "errors among {opcodes:?}: {}", self.report());
        self
    }

    /// Fails the test if a submitting thread finished a request of these opcodes at its first try.
    #[track_caller]
    pub fn none_inline(self, opcodes: &[&str]) -> Finished {
        self.none_in("inline", opcodes)
    }

    /// Fails the test if a worker carried out a request of these opcodes.
    #[track_caller]
    pub fn none_by_worker(self, opcodes: &[&str]) -> Finished {
        self.none_in("by worker", opcodes)
    }

    #[track_caller]
    fn none_in(self, column: &'static str, opcodes: &[&str]) -> Finished {
        let count = self.statistics.as_ref().map_or(0, |statistics| statistics.sum(column, opcodes));
        assert_eq!(count, 0, "{column} among {opcodes:?}: {}", self.report());
        self
    }

    /// Returns everything that helps to explain a failure.
    pub fn report(&self) -> String {
        let ended = match self.status.signal() {
            Some(signal) => format!("killed by signal {signal}"),
            None => self.status.to_string(),
        };
        format!(
            "{}\n{ended} after {:?}\n--- stdout\n{}\n--- stderr\n{}\n--- statistics\n{:#?}",
            self.line,
            self.elapsed,
            tail(&self.stdout),
            tail(&self.stderr),
            self.statistics,
        )
    }
}

/// Kills a process with SIGKILL, so that it cannot clean up.
pub fn kill(process: i32) {
    signal::kill(Pid::from_raw(process), Signal::SIGKILL).expect("a process of ours");
}

fn tail(text: &str) -> &str {
    let begin = text.len().saturating_sub(TAIL);
    let begin = (begin..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[begin..]
}
