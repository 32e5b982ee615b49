//! The temporary folder of `usring crash`, its removal, and the signals that end the command early.
//!
//! Invariant: the folder is removed whatever ends this process, except SIGKILL.

use super::STATUS_NOT_RUN;
use super::folder;
use crate::system_error::words;
use crate::{Failure, signals};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether a signal asked this process to end.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// Process groups that this process started and that have not ended.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Returns whether a signal asked this process to end.
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// A process group. Dropping this value kills the group's processes.
pub struct Group(i32);

impl Group {
    /// Returns the process group that a child leads. Kills the group if a signal has asked this
    /// process to end.
    pub fn of(child: &std::process::Child) -> Group {
        let group = i32::try_from(child.id()).unwrap_or(0);
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).insert(group);
        if is_stopped() {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        Group(group)
    }

    /// Ends all processes of the group.
    pub fn kill(&self) {
        let _ = killpg(Pid::from_raw(self.0), Signal::SIGKILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// The folder, which is removed with this value.
pub struct Workplace {
    path: PathBuf,
}

impl Workplace {
    /// Makes the folder, and lets signals end the running commands. Must be called before any
    /// thread is made, so that every thread has these signals blocked.
    pub fn begin() -> Result<Workplace, Failure> {
        let name = format!("usring-crash-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let path = std::env::temp_dir().join(name);
        let made = std::fs::create_dir(&path).and_then(|()| path.canonicalize());
        let path = made.map_err(|error| {
            let sentence = format!(
                "cannot make the folder {} ({error}); set TMPDIR to a folder that you can write to",
                path.display(),
                error = words(&error)
            );
            Failure::with_status(STATUS_NOT_RUN, sentence)
        })?;
        let folder = path.clone();
        signals::watch(move |_, _| stop(&folder));
        Ok(Workplace { path })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn folder(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        folder::remove(&self.path);
    }
}

/// Acts on a signal. At the first signal, ends all commands, so that the main thread cleans up. At
/// the second signal, removes the temporary folder and ends this process.
fn stop(folder: &Path) {
    if STOPPED.swap(true, Ordering::Relaxed) {
        folder::remove(folder);
        std::process::exit(STATUS_NOT_RUN.into());
    }
    for group in &*GROUPS.lock().unwrap_or_else(PoisonError::into_inner) {
        let _ = killpg(Pid::from_raw(*group), Signal::SIGKILL);
    }
}

/// Kills the processes that the command has left behind. This process is their subreaper, so they
/// are its children by now. When one of them dies, its own children become children of this
/// process, so the loop searches again until none is left.
pub fn end_orphans() {
    for _ in 0..1000 {
        let task = format!("/proc/self/task/{}/children", std::process::id());
        let children = std::fs::read_to_string(task).unwrap_or_default();
        let ids: Vec<i32> = children.split_whitespace().filter_map(|id| id.parse().ok()).collect();
        if ids.is_empty() {
            return;
        }
        for id in ids {
            let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
            let _ = nix::sys::wait::waitpid(Pid::from_raw(id), None);
        }
    }
}
