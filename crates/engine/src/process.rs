//! What all rings of one process share: the workers and their groups, the attendant, the carriers, the guard. A
//! forked child starts without them and makes its own on first use.

use crate::attendant::Attendant;
use crate::device_queues::Carriers;
use crate::rights::Groups;
use crate::stuck_calls::Guard;
use crate::workers::WorkerPool;
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

/// This process's.
#[inline]
pub(crate) fn process() -> &'static Process {
    PROCESS.get_or_make(Process::default)
}

/// This process's, if there is one: makes nothing.
pub(crate) fn existing() -> Option<&'static Process> {
    PROCESS.get()
}

/// Whether `made` is this process's, and not one inherited from a parent.
#[inline]
pub(crate) fn is_current(made: &'static Process) -> bool {
    PROCESS.get().is_some_and(|current| core::ptr::eq(current, made))
}
