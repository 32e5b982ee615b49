//! What is kept for calls of the program that have not come back yet.
//!
//! Some never do: a signal's handler leaves by siglongjmp(3), a vfork child executes a program or is killed, a
//! thread ends inside. The door keeps each call on the stack on which it was made; once another
//! call has its place there, wholly or in part, the first cannot come back any more, and what was kept for it goes.

use crate::doors::door::CALL_SIZE;
use crate::swapped::guarded::Guarded;
use alloc::vec::Vec;
use usring_sys::mapping::PAGE;
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::per_process::PerProcess;
use usring_sys::thread::{self, ThreadId};

/// A call's place on its stack, whose it is, and what is kept for it.
struct Outstanding {
    place: usize,
    thread: ThreadId,
    guarded: Guarded,
}

const ROWS: usize = 256;

/// By the page that a call begins on: threads hardly ever share one.
static TABLE: PerProcess<[Mutex<Vec<Outstanding>>; ROWS]> = PerProcess::new();

fn row(place: usize) -> &'static Mutex<Vec<Outstanding>> {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let row = ((place / PAGE) as u64).wrapping_mul(GOLDEN) >> (64 - ROWS.trailing_zeros());
    &TABLE.get_or_make(|| [const { Mutex::new(Vec::new()) }; ROWS])[row as usize]
}

/// Keeps something until the call at this place of a stack is back.
pub fn keep(place: usize, guarded: Guarded) {
    let mut row = row(place).lock();
    row.retain(|other| other.place.abs_diff(place) >= CALL_SIZE);
    row.push(Outstanding { place, thread: thread::current(), guarded });
}

/// The call is back.
pub fn take(place: usize) -> Option<Guarded> {
    let mut row = row(place).lock();
    let index = row.iter().position(|other| other.place == place)?;
    Some(row.swap_remove(index).guarded)
}

/// The rows that have calls of the calling thread: it forks, in a handler that met one.
pub struct OfThread {
    thread: ThreadId,
    rows: Vec<Guard<'static, Vec<Outstanding>>>,
}

/// Nobody changes what is kept for this thread until that is dropped.
pub fn hold() -> OfThread {
    let thread = thread::current();
    let is_ours = |row: &Guard<Vec<Outstanding>>| row.iter().any(|other| other.thread == thread);
    let rows = TABLE.get().into_iter().flatten().map(Mutex::lock).filter(is_ours).collect();
    OfThread { thread, rows }
}

impl OfThread {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// In the child, whose table is empty: what is its own of its copy of these rows, each with its place. The rest is
    /// other threads', which it does not have, and is left as it is.
    pub fn into_calls(self) -> Vec<(usize, Guarded)> {
        let mut calls = Vec::new();
        for mut row in self.rows {
            while let Some(index) = row.iter().position(|other| other.thread == self.thread) {
                let Outstanding { place, guarded, .. } = row.swap_remove(index);
                calls.push((place, guarded));
            }
        }
        calls
    }
}
