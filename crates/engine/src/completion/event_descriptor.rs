//! An eventfd of the program by which usring notifies the program of completions. The ring's own
//! descriptor is another way (`readiness`).

use core::sync::atomic::{AtomicBool, Ordering};
use usring_ring::Memory;
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::{Errno, epoll, eventfd};
use usring_uapi::general::O_NONBLOCK;

/// An eventfd of the program, kept open by usring's duplicate. REGISTER_EVENTFD has registered it,
/// or a request has named it.
pub struct EventDescriptor {
    pub(crate) descriptor: OwnedDescriptor,
    /// The program's descriptor number for the eventfd at its registration; −1 if another process
    /// has registered the eventfd.
    pub(crate) number: i32,
    /// Set by EVENTFD_ASYNC: the eventfd is signalled only for completions of requests that workers
    /// have run.
    pub(crate) only_async: bool,
    /// Set if the program has not set O_NONBLOCK on the eventfd, so that a write to the eventfd may
    /// sleep.
    pub(crate) blocks: bool,
    /// Whether a request of the ring has waited for this eventfd to become readable. If so, the
    /// ring's own signal to the eventfd may wake that request.
    pub(crate) is_awaited: AtomicBool,
}

impl EventDescriptor {
    /// Duplicates the eventfd that the program's descriptor `number` refers to.
    ///
    /// Errors: `EBADF`; `EINVAL` if the descriptor is no eventfd.
    pub fn new(number: i32, only_async: bool) -> Result<EventDescriptor, Errno> {
        let descriptor = descriptor::duplicate_eventfd(number)?;
        let blocks = descriptor::status_flags(descriptor.number())? & O_NONBLOCK == 0;
        Ok(EventDescriptor { descriptor, number, only_async, blocks, is_awaited: AtomicBool::new(false) })
    }

    /// Makes this process's `EventDescriptor` for an eventfd that another process of the ring has
    /// registered. `descriptor`: this process's duplicate of the eventfd.
    pub(crate) fn of_other_process(descriptor: OwnedDescriptor, only_async: bool) -> EventDescriptor {
        let blocks = descriptor::status_flags(descriptor.number()).is_ok_and(|flags| flags & O_NONBLOCK == 0);
        EventDescriptor { descriptor, number: -1, only_async, blocks, is_awaited: AtomicBool::new(false) }
    }

    /// Returns whether the program's descriptor `number` names this eventfd. `false` also means
    /// that the kernel could not compare the two.
    pub fn is_named_by(&self, number: i32) -> bool {
        descriptor::same_file(number, self.descriptor.number()) == Some(true)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn signal(&self, memory: &Memory, by_worker: bool) {
        if !by_worker && self.only_async || memory.is_eventfd_disabled() {
            return;
        }
        self.add(1);
    }

    /// Called for each request of the ring that is about to wait for a file. If that file is this
    /// eventfd, sets `is_awaited`. `number`: the descriptor number by which usring waits for the
    /// file; `asked`: the number in the request's SQE.
    pub(crate) fn note_wait(&self, asked: i32, number: i32) {
        if self.number == asked || descriptor::is_same_file(self.descriptor.number(), number) {
            self.is_awaited.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Returns whether this eventfd probably caused the event that the ring's epoll set reports: a
    /// request of the ring has waited for the eventfd, and the eventfd is readable.
    pub(crate) fn is_cause(&self) -> bool {
        let is_ready = || epoll::poll_now(self.descriptor.number(), epoll::IN).is_ok_and(|ready| ready != 0);
        self.is_awaited() && is_ready()
    }

    /// Adds `count` to the eventfd's counter, up to the counter's maximum. As in the kernel, the
    /// call does not sleep, because the caller may hold a ring's lock.
    pub(crate) fn add(&self, count: u64) {
        let number = self.descriptor.number();
        if !self.blocks && eventfd::add(number, count).is_ok() {
            return;
        }
        // A blocking eventfd needs two system calls per event, because there is no non-blocking
        // write to it:
        // - write(2) to an eventfd does not support RWF_NOWAIT.
        // - An eventfd cannot be opened a second time through /proc.
        // - O_NONBLOCK would apply to the program's descriptor, too.
        // - Other threads write to the counter, so only the kernel knows how full it is.
        //
        // poll(2) guarantees room for 1, so the counter is raised by 1 at a time. (Another thread
        // may write between the two calls. The second call then sleeps only if the counter has
        // reached its maximum, 2⁶⁴ − 2 unread events.)
        for _ in 0..count {
            if !epoll::poll_now(number, epoll::OUT).is_ok_and(|ready| ready & epoll::OUT != 0) {
                return;
            }
            let _ = eventfd::add(number, 1);
        }
    }
}
