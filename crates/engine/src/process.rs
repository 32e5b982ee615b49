//! Distinguishes a process from its forked children. Each process has a [`Process`] value, and a
//! forked child gets one of its own. A vfork(2) child uses its parent's value.

use usring_sys::per_process::PerProcess;

/// A value whose address stands for one process. (The value has a size, so that no two values have
/// one address.)
#[derive(Default)]
pub(crate) struct Process(#[expect(dead_code, reason = "gives the value a size")] u8);

static PROCESS: PerProcess<Process> = PerProcess::new();

/// Returns the value that stands for this process; makes it on first use.
pub(crate) fn this() -> &'static Process {
    PROCESS.get_or_make(Process::default)
}

/// Returns whether `made` stands for this process. `false`: an ancestor made it, before a fork(2).
#[inline]
pub(crate) fn is_current(made: &'static Process) -> bool {
    PROCESS.get().is_some_and(|current| core::ptr::eq(current, made))
}
