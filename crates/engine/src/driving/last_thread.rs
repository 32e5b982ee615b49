//! Ends the process with the last thread of the program.
//!
//! libc calls exit(2) in the last thread that it knows, and expects that this ends the process. But
//! exit(2) ends only the calling thread. The kernel keeps the process while it has any thread, and
//! usring's threads are still there. So the ring watcher watches one thread of the program at a
//! time:
//!
//! 1. The ring watcher first checks the first thread of the process, once a second, because no
//!    event marks that thread's end.
//! 2. When the first thread has ended, the ring watcher opens a descriptor of another thread of the
//!    program (Linux 6.9). The descriptor becomes readable when that thread ends; then the ring
//!    watcher watches the next thread. On older kernels, the ring watcher searches for threads of
//!    the program once a second.
//! 3. If the program has no thread left, the ring watcher ends the process, with the status of the
//!    thread that was watched last.
//!
//! The kernel gives a process the status of the thread that ends last. If several threads end
//! between two checks, the process may get the status of the wrong thread. In two cases the status
//! is not known:
//! - Before Linux 6.15 the kernel reports the status of the first thread only.
//! - A thread ended after the ring watcher had found it, and before it was watched.
//!
//! The process then ends with [`UNKNOWN_STATUS`], so that an unknown status does not look like a
//! success.

use core::cell::Cell;
use usring_sys::clock::Nanoseconds;
use usring_sys::epoll::{self, Epoll};
use usring_sys::own_threads::{self, Owner};
use usring_sys::program_threads::{self, ThreadDescriptor};
use usring_sys::{Errno, SystemCall, thread, wait};
use usring_uapi::general as linux;

/// Exit status (EXIT_FAILURE) of a process whose last thread has ended with an unknown status.
const UNKNOWN_STATUS: u8 = 1;

/// Nanoseconds until the next check of a thread that is just starting or ending.
const PAUSE: Nanoseconds = 1_000_000;
/// Maximum number of reads of the process's list of threads, in one search for a thread to watch.
const MOST_READS: u32 = 20;

/// The thread of the program that the ring watcher watches, to notice when the program's last
/// thread ends. Only the ring watcher has a value of this type.
pub(super) enum LastThread {
    First,
    Other(ThreadDescriptor),
    /// The watched thread has ended with this status; `None`: the status is not known. No other
    /// thread is watched now, although the program may still have threads.
    Ended(Option<u8>),
    /// No thread is watched: libc knows usring's threads in this process, so libc itself ends the
    /// process.
    Unwatched,
}

impl LastThread {
    pub fn new() -> LastThread {
        if thread::are_bare() { LastThread::First } else { LastThread::Unwatched }
    }

    /// Returns whether [`LastThread::check`] has to be called at intervals.
    pub fn needs_checks(&self) -> bool {
        matches!(self, LastThread::First | LastThread::Ended(_))
    }

    /// Called at intervals. If the first thread of the process has ended, finds the next thread to
    /// watch, or ends the process if there is none. `set`: the ring watcher's epoll set. `event`:
    /// the event data in that set for the descriptor of the thread found.
    pub fn check(&mut self, set: &Epoll, event: u64) {
        match *self {
            LastThread::First => {
                if let Some(status) = program_threads::status_of_ended(program_threads::first()) {
                    self.watch_next(set, event, Some(status));
                }
            }
            LastThread::Ended(status) => self.watch_next(set, event, status),
            LastThread::Other(_) | LastThread::Unwatched => {}
        }
    }

    /// Handles the end of the watched thread, whose descriptor is readable, and watches the next
    /// one.
    pub fn has_ended(&mut self, set: &Epoll, event: u64) {
        if let LastThread::Other(ended) = self {
            match ended.exit_code() {
                Ok(status) => self.watch_next(set, event, status),
                // The status cannot be read yet. The descriptor stays readable, so the ring watcher
                // calls this function again.
                Err(_) => drop(wait::nanosleep(PAUSE)),
            }
        }
    }

    /// Finds the next thread to watch; ends the process if there is none. Precondition: the watched
    /// thread has ended, and so has the first thread.
    fn watch_next(&mut self, set: &Epoll, event: u64, mut status: Option<u8>) {
        *self = LastThread::Ended(status);
        let mut empty_reads = 0;
        for _ in 0..MOST_READS {
            match find_other() {
                Ok(Some(other)) => match watch(other, set, event) {
                    Ok(watched) => return *self = LastThread::Other(watched),
                    // The found thread has ended before a descriptor of it could be opened. So its
                    // status is lost.
                    Err(Errno::ESRCH) => {
                        empty_reads = 0;
                        status = None;
                        *self = LastThread::Ended(None);
                    }
                    Err(_) => return *self = LastThread::Ended(None),
                },
                Ok(None) => empty_reads += 1,
                Err(Errno::EAGAIN) => {
                    empty_reads = 0;
                    let _ = wait::nanosleep(PAUSE);
                }
                Err(_) => return,
            }
            // A thread that ends during a read of the list may hide another thread from that read.
            // So only two consecutive reads without a thread prove that the program has none.
            if empty_reads == 2 {
                let status = u64::from(status.unwrap_or(UNKNOWN_STATUS));
                let _ = SystemCall::new(linux::__NR_exit_group, [status, 0, 0, 0, 0]).run_once();
            }
        }
    }
}

fn watch(thread: u32, set: &Epoll, event: u64) -> Result<ThreadDescriptor, Errno> {
    let thread = ThreadDescriptor::open(thread)?;
    set.add(thread.number(), epoll::IN, event)?;
    Ok(thread)
}

/// Returns a thread of the program other than the first, if there is one.
///
/// Errors: `EAGAIN` if a thread's owner (the program or usring) is not known yet; the errors of
/// reading the process's list of threads.
fn find_other() -> Result<Option<u32>, Errno> {
    let first = program_threads::first();
    let is_certain = Cell::new(true);
    let found = program_threads::find(|thread| {
        let owner = if thread == first { Owner::Usring } else { own_threads::owner_of(thread) };
        is_certain.set(is_certain.get() && owner != Owner::Unknown);
        owner == Owner::Program
    })?;
    if found.is_some() || is_certain.get() { Ok(found) } else { Err(Errno::EAGAIN) }
}
