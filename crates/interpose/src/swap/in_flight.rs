//! In-flight calls: keeps the memory of the program's calls pinned until they return.
//!
//! Some calls never return: a signal's handler leaves by siglongjmp(3), a vfork child executes a
//! program or is killed, or a thread ends inside the call. The entry point stores the
//! [`Call`](crate::call::Call) of each system call on the stack of the calling thread. When a later
//! `Call` on that stack overlaps the earlier one, the earlier call cannot return any more. Then the
//! pinned memory of the earlier call is released.

use crate::call::CALL_SIZE;
use alloc::vec::Vec;
use usring_call_memory::PinnedCall;
use usring_sys::mapping::PAGE;
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::per_process::PerProcess;
use usring_sys::spread;
use usring_sys::thread::{self, ThreadId};

/// An in-flight call: the address of its `Call` on the thread's stack, the thread, and the pinned
/// memory.
struct InFlight {
    address: usize,
    thread: ThreadId,
    pinned: PinnedCall,
}

const ROWS: usize = 256;

/// The in-flight calls. A hash of the stack page on which a call is stored selects the call's row.
/// Two threads hardly ever store calls on one page, so they seldom wait for each other's rows.
static TABLE: PerProcess<[Mutex<Vec<InFlight>>; ROWS]> = PerProcess::new();

fn row(address: usize) -> &'static Mutex<Vec<InFlight>> {
    let row = spread::row(address / PAGE, ROWS);
    &TABLE.get_or_make(|| [const { Mutex::new(Vec::new()) }; ROWS])[row]
}

/// Keeps memory pinned until the call that is stored at `address`, on a stack, returns.
pub fn keep(address: usize, pinned: PinnedCall) {
    let mut row = row(address).lock();
    row.retain(|other| other.address.abs_diff(address) >= CALL_SIZE);
    row.push(InFlight { address, thread: thread::current(), pinned });
}

/// Removes and returns the pinned memory of a call that has returned. `None` if no memory was
/// pinned for the call.
pub fn take(address: usize) -> Option<PinnedCall> {
    let mut row = row(address).lock();
    let index = row.iter().position(|other| other.address == address)?;
    Some(row.swap_remove(index).pinned)
}

/// The locked rows of the table that contain in-flight calls of the calling thread. The thread has
/// in-flight calls if it forks in a signal handler that interrupted a call.
pub struct OfThread {
    thread: ThreadId,
    rows: Vec<Guard<'static, Vec<InFlight>>>,
}

/// Locks the rows with in-flight calls of this thread, until the value is dropped.
pub fn hold() -> OfThread {
    let thread = thread::current();
    let is_ours = |row: &Guard<Vec<InFlight>>| row.iter().any(|other| other.thread == thread);
    let rows = TABLE.get().into_iter().flatten().map(Mutex::lock).filter(is_ours).collect();
    OfThread { thread, rows }
}

impl OfThread {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Removes the calls of the forking thread from the child's copy of its parent's table, and
    /// returns them, each with its address. (The child's own table is empty.) The other calls in
    /// the copy stay there, because they belong to threads that the child does not have.
    pub fn into_calls(self) -> Vec<(usize, PinnedCall)> {
        let mut calls = Vec::new();
        for mut row in self.rows {
            while let Some(index) = row.iter().position(|other| other.thread == self.thread) {
                let InFlight { address, pinned, .. } = row.swap_remove(index);
                calls.push((address, pinned));
            }
        }
        calls
    }
}
