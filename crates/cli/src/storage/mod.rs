//! The storage daemon that serves a device: `usring run --device PATH=nbd:…`, `qcow2:…` and
//! `qemu:…`. The launcher starts QEMU's daemon, which serves the device as a vhost-user-blk back
//! end on a private socket. The launcher then connects to it as to any back end.
//!
//! - [`command`] makes the daemon's command line, and [`nbd_uri`] parses addresses of NBD servers.
//! - [`folder`] makes the private folder.
//! - [`process`] is one process of the daemon.
//! - This file has the thread that starts the process, watches it, and ends it with the run.
//!
//! Invariants:
//! - The thread lives longer than each process that it starts: the kernel kills a process when the
//!   thread ends, and so when the launcher is killed.
//! - A process is started only after the one before has been reaped. So two daemons never have one
//!   image open.

mod command;
mod folder;
mod nbd_uri;
mod process;

pub use folder::remove_left;
pub use nbd_uri::{NbdUri, parse as parse_nbd_uri};

use crate::Failure;
use crate::system_error::words;
use command::Plan;
use folder::Folder;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;
use process::{End, PROGRAM, Process, Unready, without_prefix};
use std::fmt;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use usring_device::driver::vhost_user;
use usring_device::spec::Layer;

/// If the daemon's process has lived at least this long, the launcher starts it again at once.
const LONG_LIFE: Duration = Duration::from_secs(5);
/// First and longest pause before the launcher restarts a daemon that has lived for less than
/// [`LONG_LIFE`]. The pause doubles with each further restart of this kind.
const FIRST_PAUSE_MS: u16 = 100;
const LONGEST_PAUSE_MS: u16 = 2000;

/// The state of a daemon, for `usring ctl`.
#[derive(Clone, Copy, Default)]
pub struct State {
    /// Process id of the daemon, while it runs.
    pub process: Option<u32>,
    /// Whether the daemon runs, and has become ready since its last start.
    pub is_alive: bool,
    /// How often the daemon was started again.
    pub restarts: u64,
}

/// The state of a daemon. Its thread writes it.
#[derive(Default)]
pub struct Health(Mutex<State>);

impl Health {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn state(&self) -> State {
        *self.lock()
    }
}

/// The daemons of a run. Dropping this value ends all daemons in parallel, because each may take
/// some time to end. The connections to the daemons are dropped before this value.
#[derive(Default)]
pub struct Daemons(Vec<Storage>);

impl Daemons {
    /// Adds a daemon. Returns it.
    pub fn add(&mut self, storage: Storage) -> &Storage {
        self.0.push(storage);
        &self.0[self.0.len() - 1]
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        self.0.iter().for_each(Storage::ask_to_end);
    }
}

/// A daemon that serves one device. Dropping it ends the daemon, and removes its folder.
pub struct Storage {
    socket: String,
    queues: u32,
    health: Arc<Health>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    /// The daemon's private folder. It is removed after the daemon has ended.
    _folder: Folder,
}

/// Checks the options that the daemon gets. The error is one sentence for the user.
pub fn check(layer: &Layer) -> Result<(), String> {
    Plan::of(layer).map(drop)
}

impl Storage {
    /// Starts the daemon for a device, and waits until it serves the device. Messages to the user
    /// begin with `name`.
    pub fn start(layer: &Layer, name: String) -> Result<Storage, Failure> {
        let plan = Plan::of(layer).map_err(Failure::new)?;
        let folder = Folder::create()?;
        let (socket, ready) = (folder.file("socket")?, folder.file("ready")?);
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot start a thread for {PROGRAM} ({error})", error = words(&error)))
        };
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).map_err(|error| failed(error.into()))?;
        let queues = plan.queues;
        let (stop, health) = (Arc::new(stop), Arc::<Health>::default());
        let keeper = Keeper { plan, name, socket: socket.clone(), ready, health: health.clone(), stop: stop.clone() };
        let (sender, receiver) = sync_channel(1);
        let started = std::thread::Builder::new().name("usring-storage".into()).spawn(move || keeper.run(&sender));
        let thread = Some(started.map_err(failed)?);
        let storage = Storage { socket, queues, health, stop, thread, _folder: folder };
        match receiver.recv() {
            Ok(Ok(())) => Ok(storage),
            Ok(Err(why)) => Err(Failure::new(why)),
            Err(_) => Err(Failure::new(format!("the thread for {PROGRAM} has ended"))),
        }
    }

    /// Returns the options by which to connect to the daemon, which serves the device `layer`.
    pub fn options(&self, layer: &Layer) -> vhost_user::Options<'_> {
        vhost_user::Options {
            socket: &self.socket,
            reconnect: layer.switch("reconnect") == Some(true),
            queues: Some(self.queues),
            more_queues: "choose more by queues=",
        }
    }

    pub fn health(&self) -> Arc<Health> {
        self.health.clone()
    }
}

impl Storage {
    /// Has the daemon's thread end the daemon.
    fn ask_to_end(&self) {
        let _ = self.stop.write(1);
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.ask_to_end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of the thread that starts a daemon and watches it.
struct Keeper {
    plan: Plan,
    name: String,
    socket: String,
    ready: String,
    health: Arc<Health>,
    /// An eventfd that becomes readable when the daemon has to end.
    stop: Arc<EventFd>,
}

impl Keeper {
    fn say(&self, what: fmt::Arguments<'_>) {
        let _ = writeln!(std::io::stderr(), "usring: {}: {what}", self.name);
    }

    /// Starts the daemon, and sends the outcome to `started`. Then watches the daemon until the
    /// device is dropped. If the daemon ends earlier and the SPEC has `reconnect=on`, starts it
    /// again.
    fn run(&self, started: &SyncSender<Result<(), String>>) {
        // The launcher receives its signals by a signalfd, so this thread must block them all.
        let _ = SigSet::all().thread_block();
        let first = self.start();
        let outcome = match &first {
            Err(Unready::Failed(why)) => Err(why.clone()),
            _ => Ok(()),
        };
        let _ = started.send(outcome);
        let (Ok(mut process), mut pause) = (first, 0) else { return };
        while let Some(status) = self.watch(&mut process) {
            let consequence = if self.plan.reconnects { "; usring starts it again" } else { "" };
            self.say(format_args!("{PROGRAM} ended with {status}{consequence}"));
            pause = if process.started.elapsed() >= LONG_LIFE { 0 } else { next_pause(pause) };
            match self.plan.reconnects.then(|| self.start_again(&mut pause)).flatten() {
                Some(next) => process = next,
                None => return,
            }
        }
    }

    /// Starts a daemon process, and waits until it serves the device.
    fn start(&self) -> Result<Process, Unready> {
        let mut process = Process::start(&self.plan, &self.socket, &self.ready).map_err(Unready::Failed)?;
        self.health.lock().process = Some(process.id());
        let ready = process.wait_until_ready(&self.plan, &self.ready, &self.stop);
        let mut state = self.health.lock();
        match ready {
            Ok(lines) => {
                state.is_alive = true;
                drop(state);
                lines.iter().for_each(|line| self.repeat(line));
                Ok(process)
            }
            Err(unready) => {
                state.process = None;
                Err(unready)
            }
        }
    }

    /// Starts daemon processes until one serves the device. Before each attempt, pauses for `pause`
    /// milliseconds, and lengthens the pause after a failure. `None` if the device was dropped.
    fn start_again(&self, pause: &mut u16) -> Option<Process> {
        let mut last = String::new();
        loop {
            let mut watched = [PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
            if poll(&mut watched, PollTimeout::from(*pause)).is_ok_and(|count| count > 0) {
                return None;
            }
            match self.start() {
                Ok(process) => {
                    self.health.lock().restarts += 1;
                    return Some(process);
                }
                Err(Unready::Stopped) => return None,
                Err(Unready::Failed(why)) => {
                    if why != last {
                        self.say(format_args!("{why}; usring keeps trying to start it"));
                    }
                    last = why;
                }
            }
            *pause = next_pause(*pause);
        }
    }

    /// Prints the lines that the daemon writes to standard error until the daemon has ended, and
    /// returns how it ended. If the device is dropped, ends the daemon and returns `None`.
    fn watch(&self, process: &mut Process) -> Option<String> {
        let mut last = String::new();
        loop {
            let found = process.wait(&self.stop, PollTimeout::NONE);
            for line in found.lines {
                if line != last {
                    self.repeat(&line);
                }
                last = line;
            }
            if !found.has_ended && !found.is_stopped {
                continue;
            }
            let limit = self.plan.stop_limit;
            let end = if found.is_stopped { process.stop(limit) } else { process.end(limit) };
            end.lines.iter().for_each(|line| self.repeat(line));
            let mut state = self.health.lock();
            (state.process, state.is_alive) = (None, false);
            drop(state);
            if found.is_stopped {
                self.say_if_lossy(&end);
                return None;
            }
            return Some(end.status);
        }
    }

    /// Warns the user if the daemon did not end cleanly at the end of the run.
    fn say_if_lossy(&self, end: &End) {
        let limit = self.plan.stop_limit.as_secs();
        let consequence = "writes that were not flushed may be lost";
        if end.is_killed {
            self.say(format_args!("{PROGRAM} did not end within {limit} s and was killed; {consequence}"));
        } else if !end.is_success {
            self.say(format_args!("{PROGRAM} ended with {}; {consequence}", end.status));
        }
    }

    /// Passes a line of the daemon on to the user.
    fn repeat(&self, line: &str) {
        self.say(format_args!("{PROGRAM}: {}", without_prefix(&self.plan, line)));
    }
}

fn next_pause(pause: u16) -> u16 {
    (pause * 2).clamp(FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
}
