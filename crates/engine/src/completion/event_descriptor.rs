//! A program's eventfd, which notifies the program of completions beside the ring's own descriptor
//! (`readiness`).

use core::sync::atomic::{AtomicBool, Ordering};
use usring_ring::Memory;
use usring_sys::{Errno, descriptor, epoll, eventfd};
use usring_uapi::general::O_NONBLOCK;

/// An eventfd of the program, kept open by usring: REGISTER_EVENTFD's, or a request's own.
pub struct EventDescriptor {
    pub(crate) descriptor: usring_sys::descriptor::OwnedDescriptor,
    /// The program's own number for it when it was registered.
    pub(crate) number: i32,
    /// Only completions that did not happen inline signal it (EVENTFD_ASYNC).
    pub(crate) only_async: bool,
    /// A write to it may wait, because the program has not made it non-blocking.
    pub(crate) blocks: bool,
    /// A request of the ring with which it is registered has waited for it.
    pub(crate) is_awaited: AtomicBool,
}

impl EventDescriptor {
    /// Makes one from the program's descriptor with this number.
    ///
    /// Errors: `EBADF`; `EINVAL` if it is no eventfd.
    pub fn new(number: i32, only_async: bool) -> Result<EventDescriptor, Errno> {
        let descriptor = descriptor::duplicate_eventfd(number)?;
        let blocks = descriptor::status_flags(descriptor.number())? & O_NONBLOCK == 0;
        Ok(EventDescriptor { descriptor, number, only_async, blocks, is_awaited: AtomicBool::new(false) })
    }

    /// Returns whether the program's descriptor with this number is known to be the same eventfd.
    pub fn is(&self, number: i32) -> bool {
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

    /// Notes that a request of its ring is going to wait for the file behind `number`.
    pub(crate) fn note_wait(&self, asked: i32, number: i32) {
        if self.number == asked || descriptor::is_same_file(self.descriptor.number(), number) {
            self.is_awaited.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the ring was probably called because of the eventfd itself.
    pub(crate) fn is_cause(&self) -> bool {
        let is_ready = || epoll::poll_now(self.descriptor.number(), epoll::IN).is_ok_and(|ready| ready != 0);
        self.is_awaited.load(Ordering::Relaxed) && is_ready()
    }

    /// Adds to the eventfd's counter, up to its maximum. Never waits, as the kernel never does: a
    /// ring's lock may be held.
    pub(crate) fn add(&self, count: u64) {
        let number = self.descriptor.number();
        if !self.blocks && eventfd::add(number, count).is_ok() {
            return;
        }
        // Two calls per event are needed here:
        // - No write(2) to an eventfd takes RWF_NOWAIT.
        // - /proc opens none anew.
        // - O_NONBLOCK would apply to the program's descriptor, too.
        // - Only the kernel knows how full the counter is, which other threads write to.
        //
        // poll(2) guarantees room for 1, so the counter is raised by 1 at a time. (A counter that
        // another thread fills at this very moment holds 2⁶⁴ unread events.)
        for _ in 0..count {
            if !epoll::poll_now(number, epoll::OUT).is_ok_and(|ready| ready & epoll::OUT != 0) {
                return;
            }
            let _ = eventfd::add(number, 1);
        }
    }
}
