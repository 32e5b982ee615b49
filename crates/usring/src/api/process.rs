//! Prepares a process for its first ring. The process needs fault handlers, a function that starts
//! threads known to libc, and the table of the rings' descriptors.

use super::descriptor;
use std::sync::Once;
use usring_sys::wait;

/// Installs everything that rings need, once per process.
pub(super) fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        usring_std_threads::prepare();
        // The SIGSYS handler is not installed if the program has one of its own. A cancel then
        // cannot interrupt a worker's system call, and waits until that call returns.
        let _ = wait::catch_worker_interrupts();
        descriptor::become_host();
    });
}
