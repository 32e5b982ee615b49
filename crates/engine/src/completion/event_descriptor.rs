//! A program's eventfd, which notifies the program of completions beside the ring's own descriptor
//! (`readiness`).

use core::sync::atomic::{AtomicBool, Ordering};
use usring_ring::Memory;
use usring_sys::{Errno, descriptor, epoll, eventfd};
use usring_uapi::general::O_NONBLOCK;

/// An eventfd of the program, kept open by usring's duplicate: the one of REGISTER_EVENTFD, or one
/// that a request names.
pub struct EventDescriptor {
    pub(crate) descriptor: usring_sys::descriptor::OwnedDescriptor,
    /// The program's number for the eventfd when it was registered.
    pub(crate) number: i32,
    /// Only completions that did not happen inline signal the eventfd (EVENTFD_ASYNC).
    pub(crate) only_async: bool,
    /// A write to the eventfd may wait, because the program has not made it non-blocking.
    pub(crate) blocks: bool,
    /// A request of the ring that the eventfd is registered with has waited for the eventfd, so its
    /// own signal may wake the ring.
    pub(crate) is_awaited: AtomicBool,
}

impl EventDescriptor {
    /// Opens the eventfd behind the program's descriptor `number`, by a duplicate.
    ///
    /// Errors: `EBADF`; `EINVAL` if it is no eventfd.
    pub fn new(number: i32, only_async: bool) -> Result<EventDescriptor, Errno> {
        let descriptor = descriptor::duplicate_eventfd(number)?;
        let blocks = descriptor::status_flags(descriptor.number())? & O_NONBLOCK == 0;
        Ok(EventDescriptor { descriptor, number, only_async, blocks, is_awaited: AtomicBool::new(false) })
    }

    /// Returns whether the program's descriptor with this number is the same eventfd. `false`, too,
    /// if that cannot be found out.
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

    /// Called for a request of the ring that is about to wait for the file `number`. Notes it if
    /// that file is this eventfd. `asked`: the number in the request's SQE.
    pub(crate) fn note_wait(&self, asked: i32, number: i32) {
        if self.number == asked || descriptor::is_same_file(self.descriptor.number(), number) {
            self.is_awaited.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the eventfd itself has probably caused the event for which the ring was
    /// called: a request has waited for the eventfd, and it is readable.
    pub(crate) fn is_cause(&self) -> bool {
        let is_ready = || epoll::poll_now(self.descriptor.number(), epoll::IN).is_ok_and(|ready| ready != 0);
        self.is_awaited.load(Ordering::Relaxed) && is_ready()
    }

    /// Adds to the eventfd's counter, up to its maximum. Never waits, because the caller may hold a
    /// ring's lock. The kernel never waits here either.
    pub(crate) fn add(&self, count: u64) {
        let number = self.descriptor.number();
        if !self.blocks && eventfd::add(number, count).is_ok() {
            return;
        }
        // A blocking eventfd needs two calls per event:
        // - No write(2) to an eventfd takes RWF_NOWAIT.
        // - An eventfd cannot be opened a second time, by /proc.
        // - O_NONBLOCK would apply to the program's descriptor, too.
        // - Other threads write to the counter, so only the kernel knows how full it is.
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
