//! Records when a request of a ring or of libaio was submitted and completed.
//!
//! A sync covers only the changes that had completed before the sync was submitted. The kernel
//! would run the requests of one batch side by side, but usring makes their system calls one after
//! the other. So the log says to which batch and request each system call belongs.

use crate::format::{Kind, Record};
use crate::log::append;
use core::sync::atomic::{AtomicU64, Ordering};

/// The last number that this process gave to a batch or a request. A process gives each number only
/// once.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed) + 1
}

/// Records that a batch is submitted. Returns its number.
pub fn submit_batch() -> u64 {
    let id = number();
    append(&Record { id, ..Record::new(Kind::Batch) }, &[]);
    id
}

/// Returns a number for a request.
pub fn new_request() -> u64 {
    number()
}

/// Makes the system calls of a request, between records of their beginning and end. `batch`: the
/// batch with which the request was submitted; 0 if a link or a drain held the request back.
pub fn during<T>(request: u64, batch: u64, work: impl FnOnce() -> T) -> T {
    append(&Record { id: request, size: batch, ..Record::new(Kind::Request) }, &[]);
    let result = work();
    append(&Record::new(Kind::RequestLeft), &[]);
    result
}

/// Records that a request is completed. Called before the program can see the completion.
pub fn complete(request: u64) {
    append(&Record { id: request, ..Record::new(Kind::Completed) }, &[]);
}
