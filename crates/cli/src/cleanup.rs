//! Removes the files of `demo` and `bench` if a signal ends this process ([`signals`]). The
//! children need no cleanup: the kernel kills them when this process ends ([`crate::child`]).

use crate::signals;
use indicatif::ProgressBar;
use nix::libc;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

/// An action that undoes something. It is carried out when this value is dropped, or when a signal
/// ends this process.
#[must_use]
pub struct Registered(u64);

enum Action {
    /// Removes a file, or a folder with its content.
    Remove(PathBuf),
    End(ProgressBar),
}

impl Action {
    fn run(&self) {
        match self {
            Action::Remove(path) if path.is_dir() => drop(std::fs::remove_dir_all(path)),
            Action::Remove(path) => drop(std::fs::remove_file(path)),
            Action::End(bar) => bar.finish_and_clear(),
        }
    }
}

/// The registered actions with their numbers, and the next number.
static ACTIONS: Mutex<(Vec<(u64, Action)>, u64)> = Mutex::new((Vec::new(), 0));

/// Removes the file or folder at `path` when the returned value is dropped, or earlier if a signal
/// ends this process.
pub fn remove(path: &Path) -> Registered {
    register(Action::Remove(path.into()))
}

/// Clears the progress bar when the returned value is dropped, or earlier if a signal ends this
/// process.
pub fn end_bar(bar: &ProgressBar) -> Registered {
    register(Action::End(bar.clone()))
}

fn register(action: Action) -> Registered {
    watch();
    let mut actions = ACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let number = actions.1;
    actions.1 += 1;
    actions.0.push((number, action));
    Registered(number)
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut actions = ACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = actions.0.iter().position(|(number, _)| *number == self.0) {
            actions.0.remove(at).1.run();
        }
    }
}

/// Starts the thread that waits for signals, once.
fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        signals::watch(|signal, watched| {
            let actions = ACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
            // Runs the actions in the reverse order of their registration. So a progress bar is
            // cleared before the files that were registered earlier are removed.
            actions.0.iter().rev().for_each(|(_, action)| action.run());
            // Raises the signal once more, now with its default action. The shell then sees that a
            // signal ended this process.
            let _ = watched.thread_unblock();
            let _ = nix::sys::signal::raise(signal);
            std::process::exit(128 + signal as libc::c_int);
        });
    });
}
