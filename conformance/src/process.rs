//! Child processes of cases: forked ones, and this program started again.

use std::process::ExitCode;

/// Runs `work` in a forked child and says how it ended: `exit 0`, `signal 9`.
/// The child ends by `_exit`, without unwinding into its parent's code.
pub fn forked(work: impl FnOnce() -> i32) -> String {
    let child = start(work);
    ending(child)
}

/// Starts `work` in a forked child; its process number.
pub fn start(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: cases that fork have one thread, so the child finds no lock held.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let status = work();
        // SAFETY: ends the child here.
        unsafe { libc::_exit(status) };
    }
    child
}

/// Waits for a child that we started.
pub fn ending(child: i32) -> String {
    let mut status = 0;
    loop {
        // SAFETY: `status` is ours to write.
        let answer = unsafe { libc::waitpid(child, &mut status, 0) };
        if answer == child {
            break;
        }
        if crate::door::errno() != libc::EINTR {
            return "not a child".into();
        }
    }
    if libc::WIFEXITED(status) {
        format!("exit {}", libc::WEXITSTATUS(status))
    } else {
        format!("signal {}", libc::WTERMSIG(status))
    }
}

/// The part of `conformance child NAME …` that cases call for.
pub fn child(name: &str, arguments: &[&str]) -> ExitCode {
    match crate::cases::child(name, arguments) {
        Some(status) => ExitCode::from(status),
        None => ExitCode::from(2),
    }
}
