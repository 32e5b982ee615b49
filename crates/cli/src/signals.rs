//! The signals by which a user or a system ends a command: ^C, SIGTERM and SIGHUP.
//!
//! One thread waits for these signals, and all other threads block them. Children start with an
//! empty signal mask ([`unblock_in_child`]), so ^C on the terminal ends them directly.

use nix::sys::signal::{SigSet, Signal};
use std::os::unix::process::CommandExt;
use std::process::Command;

const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Starts a thread that calls `act` for each of these signals, with the signal and the set of all
/// signals for which the thread waits. A signal that this process ignores stays ignored, such as
/// SIGHUP under nohup(1). Must be called before any other thread is made, so that every thread
/// blocks the signals. If the thread cannot be started, the signals keep their default actions.
pub fn watch(mut act: impl FnMut(Signal, &SigSet) + Send + 'static) {
    let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    let signals: SigSet = ENDING.into_iter().filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0).collect();
    if signals == SigSet::empty() || signals.thread_block().is_err() {
        return;
    }
    let wait = move || {
        while let Ok(signal) = signals.wait() {
            act(signal, &signals);
        }
    };
    if std::thread::Builder::new().name("usring-signals".into()).spawn(wait).is_err() {
        let _ = signals.thread_unblock();
    }
}

/// Lets a child start with an empty signal mask. Otherwise it inherits the mask of the calling
/// thread.
pub fn unblock_in_child(command: &mut Command) -> &mut Command {
    let unblock = || SigSet::empty().thread_set_mask().map_err(Into::into);
    // SAFETY: between fork and exec, `unblock` makes one system call, and takes no lock.
    unsafe { command.pre_exec(unblock) }
}

/// Returns the signals that the text of /proc/PID/status lists as ignored, as a mask in which bit 0
/// is signal 1. Returns 0 if the text has no such list.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_starts_with_an_empty_mask() {
        let blocked = SigSet::from(Signal::SIGUSR2);
        blocked.thread_block().unwrap();
        let output = unblock_in_child(Command::new("grep").args(["SigBlk", "/proc/self/status"])).output();
        blocked.thread_unblock().unwrap();
        assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), "SigBlk:\t0000000000000000\n");
    }

    #[test]
    fn the_ignored_signals_are_those_of_the_status() {
        assert_eq!(ignored("SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
