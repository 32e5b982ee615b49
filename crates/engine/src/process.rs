//! The mark of one process. A forked child gets a mark of its own. A child by vfork(2) counts as
//! its parent.

use usring_sys::per_process::PerProcess;

/// One process, as its rings know it. (It has a size, so that each has an address of its own.)
#[derive(Default)]
pub(crate) struct Process(#[expect(dead_code, reason = "gives the value a size")] u8);

static PROCESS: PerProcess<Process> = PerProcess::new();

/// Returns this process's mark; makes it on first use.
pub(crate) fn this() -> &'static Process {
    PROCESS.get_or_make(Process::default)
}

/// Returns whether `made` is this process's mark, and not inherited from a parent.
#[inline]
pub(crate) fn is_current(made: &'static Process) -> bool {
    PROCESS.get().is_some_and(|current| core::ptr::eq(current, made))
}
