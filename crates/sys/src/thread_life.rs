//! Whether a thread still lives, although Linux gives its id to another thread later.

use crate::descriptor::OwnedDescriptor;
use crate::signals::{is_alive, thread_id};
use crate::{SystemCall, epoll};
use linux_raw_sys::general as linux;

/// pidfd_open(2)'s flag for a thread that leads no process; Linux 6.9.
const PIDFD_THREAD: u64 = linux::O_EXCL as u64;

/// A thread's life. Linux before 6.9 names no thread by a descriptor: there a thread passes for a
/// dead one whose id it has.
#[derive(Debug)]
pub struct ThreadLife {
    thread: u32,
    descriptor: Option<OwnedDescriptor>,
}

impl ThreadLife {
    /// The calling thread's.
    pub fn of_this_thread() -> ThreadLife {
        let thread = thread_id();
        let opened = SystemCall::new(linux::__NR_pidfd_open, [u64::from(thread), PIDFD_THREAD, 0, 0, 0]).run();
        let descriptor = opened.ok().and_then(|number| OwnedDescriptor::from_raw(number as i32).into_private().ok());
        ThreadLife { thread, descriptor }
    }

    /// Whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        match &self.descriptor {
            Some(descriptor) => epoll::poll_now(descriptor.number(), epoll::IN).is_ok_and(|ready| ready != 0),
            None => !is_alive(self.thread),
        }
    }
}
