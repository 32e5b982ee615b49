//! Determines whether a thread still lives, although Linux reuses thread ids.

use crate::descriptor::OwnedDescriptor;
use crate::signals::{is_alive, thread_id};
use crate::{SystemCall, epoll, width};
use linux_raw_sys::general as linux;

/// Flag of pidfd_open(2) for a thread that is not the first of its process (Linux 6.9).
const PIDFD_THREAD: u64 = linux::O_EXCL as u64;

/// A handle to one thread, by a pidfd. Before Linux 6.9 only the first thread of a process can have
/// a pidfd. The handle of another thread then has only the thread's id. If that thread has ended
/// and a new thread has its id, the new thread is mistaken for the old one.
#[derive(Debug)]
pub struct ThreadLife {
    thread: u32,
    descriptor: Option<OwnedDescriptor>,
}

impl ThreadLife {
    /// Makes a [`ThreadLife`] for the calling thread.
    pub fn of_this_thread() -> ThreadLife {
        let thread = thread_id();
        let opened = SystemCall::new(linux::__NR_pidfd_open, [u64::from(thread), PIDFD_THREAD, 0, 0, 0]).run();
        let descriptor =
            opened.ok().and_then(|number| OwnedDescriptor::from_raw(width::int(number)).into_private().ok());
        ThreadLife { thread, descriptor }
    }

    /// Returns whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        match &self.descriptor {
            Some(descriptor) => epoll::poll_now(descriptor.number(), epoll::IN).is_ok_and(|ready| ready != 0),
            None => !is_alive(self.thread),
        }
    }
}
