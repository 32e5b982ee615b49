//! A database cluster (a data folder) on a test's stage, and its server.

use super::client::finished;
use super::{Client, Postgres, Settings};
use crate::harness::{Finished, Run, Stage, Started, World, on_kernel};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit for a start, a shutdown or a recovery of the server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(180);
/// Pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(5);
/// File with the counters of a server that runs without the launcher.
const COUNTS: &str = "counts";

/// How the server gets its rings. The server runs as the user `nobody` under Docker's seccomp
/// rules. These deny the kernel's io_uring, except with `Kernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// usring, by `usring run --deny-kernel`.
    Launcher,
    /// usring, by LD_PRELOAD in the environment.
    Preload,
    /// The kernel's io_uring, without usring.
    Kernel,
}

/// A data folder and the settings of its server.
pub struct Cluster<'stage> {
    stage: &'stage Stage,
    postgres: Postgres,
    entry: Entry,
    settings: Settings,
}

impl<'stage> Cluster<'stage> {
    /// Makes the data folder by initdb, which runs as the same user and under the same rules as the
    /// server.
    pub fn new(
        stage: &'stage Stage,
        postgres: &Postgres,
        entry: Entry,
        settings: Settings,
    ) -> Result<Cluster<'stage>, String> {
        let entry = if on_kernel() { Entry::Kernel } else { entry };
        let cluster = Cluster { stage, postgres: postgres.clone(), entry, settings };
        let run = cluster.program("initdb").args(Postgres::initdb_arguments(&cluster.data()));
        let made = run.arg("--set").arg(format!("io_method={}", settings.method.name())).finish();
        if made.status.success() { Ok(cluster) } else { Err(made.report()) }
    }

    /// Prepares a program of the PostgreSQL installation. The program runs as the server's user,
    /// under the rules that the server has.
    fn program(&self, name: &str) -> Run {
        let program = self.postgres.program(name);
        let run = match self.entry {
            Entry::Launcher => self.stage.program_with(World::Confined, &["--deny-kernel".into()], program),
            Entry::Kernel => self.stage.program_on_kernel(program),
            Entry::Preload => {
                let run = self.stage.program(World::ConfinedBare, "/usr/bin/env");
                let variable = |name, file| format!("{name}={}", self.stage.path(file).display());
                run.arg(variable("LD_PRELOAD", "tools/libusring.so")).arg(variable("USRING_STATS", COUNTS)).arg(program)
            }
        };
        run.limit(SERVER_TIMEOUT)
    }

    fn data(&self) -> std::path::PathBuf {
        self.stage.path("data")
    }

    pub fn client(&self) -> Client {
        Client::new(&self.postgres, &self.stage.path(""))
    }

    /// Starts the server and waits until it answers. After a kill of the postmaster the first
    /// attempts may fail, because the server does not start while an old backend still runs.
    pub fn start(&'stage self) -> Result<Server<'stage>, String> {
        let begin = Instant::now();
        loop {
            let run = self.program("postgres").args(self.settings.arguments(&self.data(), &self.stage.path("")));
            let mut process = run.start();
            let Err(why) = self.client().wait(SERVER_TIMEOUT, || process.has_ended()) else {
                return Ok(Server { cluster: self, process });
            };
            let said = process.stderr_so_far();
            let is_early = said.contains("is still in use") || said.contains("lock file \"postmaster.pid\"");
            if !is_early || begin.elapsed() > SERVER_TIMEOUT {
                return Err(format!("{why}\n{said}"));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Verifies the checksums of all pages. The server must have ended.
    pub fn verify_checksums(&self) -> Result<(), String> {
        let mut command = Command::new(self.postgres.program("pg_checksums"));
        let output = finished(command.arg("--check").arg(self.data()).env("LC_ALL", "C").output())?;
        let said = String::from_utf8_lossy(&output.stdout);
        if said.contains("Bad checksums:  0\n") { Ok(()) } else { Err(said.into_owned()) }
    }

    /// Returns how many reads usring has completed for a server that has ended. `None` if the
    /// server used the kernel's io_uring, which has no such counter.
    pub fn reads(&self, ended: &Finished) -> Result<Option<u64>, String> {
        const READS: [&str; 2] = ["read", "readv"];
        match self.entry {
            Entry::Kernel => Ok(None),
            Entry::Launcher => {
                let counts = ended.statistics.as_ref().ok_or_else(|| ended.report())?;
                Ok(Some(counts.sum("completed", &READS)))
            }
            Entry::Preload => {
                let usring = self.stage.path("tools/usring");
                let output = finished(Command::new(usring).arg("stats").arg(self.stage.path(COUNTS)).output())?;
                let table = String::from_utf8_lossy(&output.stdout).into_owned();
                let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
                let reads = rows.filter(|row| row.len() > 2 && READS.contains(&row[0]));
                Ok(Some(reads.filter_map(|row| row[2].parse::<u64>().ok()).sum()))
            }
        }
    }
}

/// A running server.
pub struct Server<'cluster> {
    cluster: &'cluster Cluster<'cluster>,
    process: Started,
}

impl Server<'_> {
    pub fn client(&self) -> Client {
        self.cluster.client()
    }

    /// Returns the postmaster's process id.
    pub fn postmaster(&self) -> Result<i32, String> {
        let content = fs::read_to_string(self.cluster.data().join("postmaster.pid")).unwrap_or_default();
        content.lines().next().and_then(|line| line.parse().ok()).ok_or_else(|| "there is no postmaster".to_owned())
    }

    /// Returns the last lines that the server has logged.
    pub fn log_tail(&self) -> String {
        tail(&self.process.stderr_so_far())
    }

    /// Kills the postmaster by SIGKILL and waits until it and its children are gone.
    pub fn kill_postmaster(self) -> Result<Finished, String> {
        let postmaster = self.postmaster()?;
        let children = children_of(postmaster);
        send(postmaster, Signal::SIGKILL)?;
        let ended = self.process.finish();
        let begin = Instant::now();
        while let Some(left) = children.iter().find(|child| is_alive(**child)) {
            if begin.elapsed() > SERVER_TIMEOUT {
                return Err(format!("process {left} ({}) outlives its postmaster", command_line(*left)));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(ended)
    }

    /// Kills a child of the postmaster by SIGKILL and waits until the server has recovered.
    /// `choose` gets the command lines of all children and returns the index of one, or `None` to
    /// kill none.
    pub fn kill_child(&mut self, choose: impl Fn(&[String]) -> Option<usize>) -> Result<String, String> {
        let postmaster = self.postmaster()?;
        let crashes = self.crashes();
        let begin = Instant::now();
        let (child, name) = loop {
            let children = children_of(postmaster);
            let names: Vec<_> = children.iter().map(|child| command_line(*child)).collect();
            if let Some(chosen) = choose(&names) {
                break (children[chosen], names[chosen].clone());
            }
            if begin.elapsed() > SERVER_TIMEOUT {
                return Err(format!("no child of the server's is one to kill: {names:?}"));
            }
            std::thread::sleep(PAUSE);
        };
        // The child ended before the kill, so the server has not crashed. Tries again with another
        // child.
        if kill(Pid::from_raw(child), Signal::SIGKILL).is_err() {
            return self.kill_child(choose);
        }
        while self.crashes() == crashes {
            if begin.elapsed() > SERVER_TIMEOUT {
                return Err(format!("the postmaster has not noticed that {name} was killed:\n{}", self.log_tail()));
            }
            std::thread::sleep(PAUSE);
        }
        let client = self.client();
        client
            .wait(SERVER_TIMEOUT, || self.process.has_ended())
            .map_err(|why| format!("{why}\n{}", self.log_tail()))?;
        Ok(name)
    }

    /// Returns how many times the postmaster has restarted all its children after a crash.
    pub fn crashes(&self) -> usize {
        self.process.stderr_so_far().matches("all server processes terminated; reinitializing").count()
    }

    /// Stops the server as an operator does, and returns its log and counters. The server
    /// disconnects its clients.
    pub fn stop(self) -> Result<Finished, String> {
        send(self.postmaster()?, Signal::SIGINT)?;
        let ended = self.process.finish();
        if ended.status.success() { Ok(ended) } else { Err(ended.report()) }
    }
}

/// Returns the processes whose parent is `parent`.
pub fn children_of(parent: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    processes.filter(|process| parent_of(*process) == Some(parent)).collect()
}

fn parent_of(process: i32) -> Option<i32> {
    let stat = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat")).ok()?;
    // The process's name, in parentheses, may contain any character.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn command_line(process: i32) -> String {
    let content = fs::read(Path::new("/proc").join(process.to_string()).join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&content).replace('\0', " ").trim().to_owned()
}

/// Returns whether a process exists and is not a zombie.
fn is_alive(process: i32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}

fn send(process: i32, signal: Signal) -> Result<(), String> {
    kill(Pid::from_raw(process), signal).map_err(|error| format!("cannot send {signal} to {process} ({error})"))
}

/// Returns the last lines of a log, without the messages about clients that connect during a
/// recovery.
fn tail(log: &str) -> String {
    const LINES: usize = 40;
    const EARLY: [&str; 4] = ["in recovery mode", "not yet accepting", "Consistent recovery state", "starting up"];
    let lines: Vec<_> = log.lines().filter(|line| !EARLY.iter().any(|early| line.contains(early))).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
