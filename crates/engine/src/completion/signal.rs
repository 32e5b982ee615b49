//! The eventfd behind a ring's descriptor, and whether the program has to see it readable.
//! `readiness` decides when.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::eventfd;
use usring_sys::mutex::Mutex;

/// Number of rings whose descriptors are readable now. While it is 0, a poll call has nothing to
/// drain.
pub static SIGNALLED: AtomicU32 = AtomicU32::new(0);

/// The state of one ring's descriptor.
#[derive(Default)]
pub(crate) struct Readiness {
    /// The eventfd; `None` before it is attached and after the ring is closed. Threads signal it
    /// without the ring's lock. They hold this lock during the write, because the number of a
    /// closed eventfd may be any file's.
    pub descriptor: Mutex<Option<Arc<OwnedDescriptor>>>,
    pub watched: AtomicBool,
    /// The number by which the program last polled the descriptor.
    pub polled_as: AtomicI32,
    /// Another process may make the descriptor readable, so this process treats it as readable from
    /// now on. Only changed while `descriptor` is locked.
    pub shared: AtomicBool,
    /// The descriptor is readable. Only changed while `descriptor` is locked.
    pub signalled: AtomicBool,
    /// The ring defers task work, and its owner has been notified of work that is not on the
    /// task-work list (files, timers). The owner has not looked for that work yet.
    pub announced: AtomicBool,
}

impl Readiness {
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Makes the descriptor readable if the program polls it. Each call makes a new edge, so an
    /// edge-triggered poller sees each batch of completions.
    #[inline]
    pub fn signal(&self) {
        if self.is_watched() {
            self.signal_watched();
        }
    }

    /// Makes the descriptor readable until the owner has looked for work, even if the CQ is empty.
    pub fn announce(&self) {
        self.announced.store(true, Ordering::SeqCst);
        self.signal();
    }

    /// Clears the announcement: the ring's owner is about to look for work.
    #[inline]
    pub fn hear(&self) {
        if self.announced.load(Ordering::Relaxed) {
            self.announced.store(false, Ordering::SeqCst);
        }
    }

    #[cold]
    #[inline(never)]
    fn signal_watched(&self) {
        let descriptor = self.descriptor.lock();
        let Some(event) = &*descriptor else { return };
        if !self.signalled.swap(true, Ordering::SeqCst) {
            SIGNALLED.fetch_add(1, Ordering::SeqCst);
        }
        eventfd::signal(event.number());
    }

    pub fn unsignal(&self) {
        let descriptor = self.descriptor.lock();
        let was_signalled = self.signalled.swap(false, Ordering::SeqCst);
        if was_signalled {
            SIGNALLED.fetch_sub(1, Ordering::SeqCst);
        }
        if let Some(event) = descriptor.as_ref().filter(|_| was_signalled || self.shared.load(Ordering::Relaxed)) {
            eventfd::drain(event.number());
        }
    }

    /// Notes that another process uses the ring. If the program polls the descriptor, each poll
    /// call checks it from now on.
    #[cold]
    pub fn share(&self) {
        if !self.is_watched() || self.shared.load(Ordering::Relaxed) {
            return;
        }
        let _descriptor = self.descriptor.lock();
        if !self.shared.swap(true, Ordering::SeqCst) {
            SIGNALLED.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns whether the descriptor may be readable.
    pub fn may_be_readable(&self) -> bool {
        self.signalled.load(Ordering::SeqCst) || self.shared.load(Ordering::SeqCst)
    }

    /// Drops the eventfd, because the ring's descriptor is closed.
    pub fn forget(&self) {
        self.watched.store(false, Ordering::Release);
        let mut descriptor = self.descriptor.lock();
        *descriptor = None;
        for counted in [&self.signalled, &self.shared] {
            if counted.swap(false, Ordering::SeqCst) {
                SIGNALLED.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}
