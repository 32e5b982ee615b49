//! Ends the process with the last thread of the program.
//!
//! libc ends the process when the last of its threads ends. exit(2) ends a single thread. The
//! kernel keeps the process for as long as it has a thread, and usring has some. So the ring
//! watcher keeps an eye on one thread of the program at a time:
//!
//! 1. It looks at the first thread of the process once a second: no event marks its end.
//! 2. Once that has ended, it opens the descriptor of another thread of the program (Linux 6.9).
//!    The descriptor becomes readable when that thread has ended, and the next one is watched.
//! 3. If the program has no thread left, the ring watcher ends the process, with the status of the
//!    thread that was watched last.
//!
//! The kernel gives a process the status of the thread that ends last. If several end between two
//! looks, the process may get the status of another one of them.

use usring_sys::epoll::{self, Epoll};
use usring_sys::program_threads::{self, ThreadDescriptor};
use usring_sys::{Errno, SystemCall, credentials, thread};
use usring_uapi::general as linux;

/// The thread of the program that is watched. Only the ring watcher has one of these.
pub(super) enum LastThread {
    First,
    Other(ThreadDescriptor),
    /// libc knows the threads of the engine, or the kernel has no descriptors of threads.
    Nobody,
}

impl LastThread {
    pub fn new() -> LastThread {
        if thread::are_bare() { LastThread::First } else { LastThread::Nobody }
    }

    /// Returns whether [`LastThread::look`] has to be called now and then.
    pub fn needs_looks(&self) -> bool {
        matches!(self, LastThread::First)
    }

    /// Checks whether the first thread has ended. `event`: data for the next thread's descriptor in
    /// the set.
    pub fn look(&mut self, set: &Epoll, event: u64) {
        if self.needs_looks()
            && let Some(status) = program_threads::status_of_ended(program_threads::first())
        {
            self.go_on(set, event, status);
        }
    }

    /// Goes on to the next thread, because the watched thread's descriptor is readable.
    pub fn has_ended(&mut self, set: &Epoll, event: u64) {
        if let LastThread::Other(ended) = self {
            let status = ended.exit_code().unwrap_or(0);
            self.go_on(set, event, status);
        }
    }

    /// Finds the next thread to watch; ends the process if there is none. The watched thread has
    /// ended, and so has the first thread, which was watched before it.
    fn go_on(&mut self, set: &Epoll, event: u64, status: u8) {
        *self = LastThread::Nobody;
        let first = program_threads::first();
        let mut looks = 0;
        // A thread that ends while the list is read may hide another thread. So only two looks in a
        // row that find no thread prove that there is none.
        while looks < 2 {
            let found = program_threads::find(|thread| thread != first && !credentials::is_ours(thread));
            match found.map(|thread| thread.map(ThreadDescriptor::open)) {
                Ok(Some(Ok(next))) => {
                    if set.add(next.number(), epoll::IN, event).is_ok() {
                        *self = LastThread::Other(next);
                    }
                    return;
                }
                // The thread has ended by now.
                Ok(Some(Err(Errno::ESRCH))) => looks = 0,
                Ok(None) => looks += 1,
                Ok(Some(Err(_))) | Err(_) => return,
            }
        }
        let _ = SystemCall::new(linux::__NR_exit_group, [u64::from(status), 0, 0, 0, 0]).run_once();
    }
}
