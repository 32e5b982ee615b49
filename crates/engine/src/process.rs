//! State that all rings of one process share: the workers and their groups, the ring watcher, the
//! submit helpers, the stuck-call watchdog. A forked child starts without them and makes its own on
//! first use.

use crate::waiting::attendant::Attendant;
use crate::waiting::device_queues::Carriers;
use crate::waiting::rights::Groups;
use crate::waiting::stuck_calls::Guard;
use crate::waiting::workers::WorkerPool;
use usring_sys::per_process::PerProcess;

/// The engine's threads, seen from any ring.
#[derive(Default)]
pub(crate) struct Process {
    pub workers: WorkerPool,
    pub groups: Groups,
    pub attendant: Attendant,
    pub carriers: Carriers,
    pub guard: Guard,
}

static PROCESS: PerProcess<Process> = PerProcess::new();

/// Returns this process's state; makes it on first use.
#[inline]
pub(crate) fn process() -> &'static Process {
    PROCESS.get_or_make(Process::default)
}

/// Returns this process's state, if there is one.
pub(crate) fn existing() -> Option<&'static Process> {
    PROCESS.get()
}

/// Returns whether `made` is this process's state, and not inherited from a parent.
#[inline]
pub(crate) fn is_current(made: &'static Process) -> bool {
    PROCESS.get().is_some_and(|current| core::ptr::eq(current, made))
}
