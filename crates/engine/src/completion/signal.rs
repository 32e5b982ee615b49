//! The eventfd of a ring's descriptor, and two facts about it: whether the eventfd is readable, and
//! whether the program polls the descriptor. `readiness` decides when these change.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::eventfd;
use usring_sys::mutex::Mutex;

/// Number of rings whose descriptors this process polls. While it is 0, no ring's descriptor has to
/// be made unreadable before a poll call of the program sleeps
/// (`readiness::clear_emptied_readiness`).
pub static POLLED: AtomicU32 = AtomicU32::new(0);

/// The state of the eventfd of one ring's descriptor.
#[derive(Default)]
pub(crate) struct Readiness {
    /// The eventfd; `None` before it is attached and after the ring is closed. Threads write to the
    /// eventfd without the ring's lock. They hold this mutex during the write, because the number
    /// of a closed eventfd may name any file.
    pub descriptor: Mutex<Option<Arc<OwnedDescriptor>>>,
    /// Whether drivers have to make the ring's descriptor readable, because some process polls it.
    pub watched: AtomicBool,
    /// This process polls the descriptor.
    polled: AtomicBool,
    /// The descriptor number by which the program last polled the ring.
    pub polled_as: AtomicI32,
    /// A driver of this process has made the ring's descriptor readable. Only changed while the
    /// mutex `descriptor` is locked.
    pub signalled: AtomicBool,
    /// Set when the owner of a ring that defers task work is notified of ready files or expired
    /// timers, which are not on the task-work list. Cleared when the owner checks for work.
    pub announced: AtomicBool,
}

impl Readiness {
    /// Notes that this process polls the ring's descriptor. Returns whether it has polled the
    /// descriptor before.
    pub fn begin_polling(&self) -> bool {
        let did = self.polled.swap(true, Ordering::SeqCst);
        if !did {
            POLLED.fetch_add(1, Ordering::SeqCst);
        }
        self.watched.store(true, Ordering::SeqCst);
        did
    }

    pub fn is_polled(&self) -> bool {
        self.polled.load(Ordering::SeqCst)
    }

    /// Makes drivers of this process signal the ring's descriptor, because another process polls
    /// the descriptor.
    pub fn watch_for_others(&self) {
        self.watched.store(true, Ordering::Release);
    }

    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Makes the ring's descriptor readable if the program polls it. Each call causes a new edge,
    /// so an edge-triggered poller sees each batch of completions.
    #[inline]
    pub fn signal(&self) {
        if self.is_watched() {
            let _ = self.signal_watched();
        }
    }

    /// Makes the ring's descriptor readable, even if the CQ is empty, until the ring's owner has
    /// checked for work.
    pub fn announce(&self) {
        self.announced.store(true, Ordering::SeqCst);
        self.signal();
    }

    /// Clears the announcement of work, because the ring's owner is about to check for work.
    #[inline]
    pub fn clear_announcement(&self) {
        if self.announced.load(Ordering::Relaxed) {
            self.announced.store(false, Ordering::SeqCst);
        }
    }

    /// Makes the ring's descriptor readable. Returns `false` if this process does not have the
    /// eventfd that stands for the descriptor.
    #[cold]
    #[inline(never)]
    pub fn signal_watched(&self) -> bool {
        let descriptor = self.descriptor.lock();
        let Some(event) = &*descriptor else { return false };
        self.signalled.store(true, Ordering::SeqCst);
        eventfd::signal(event.number());
        true
    }

    /// Makes the ring's descriptor unreadable. `is_shared`: reads the eventfd even if this process
    /// has not signalled it, because drivers of other processes may have done so.
    pub fn unsignal(&self, is_shared: bool) {
        let descriptor = self.descriptor.lock();
        let was_signalled = self.signalled.swap(false, Ordering::SeqCst);
        if let Some(event) = descriptor.as_ref().filter(|_| was_signalled || is_shared) {
            eventfd::drain(event.number());
        }
    }

    /// Drops the eventfd, because the ring's descriptor is closed.
    pub fn forget(&self) {
        self.watched.store(false, Ordering::Release);
        *self.descriptor.lock() = None;
        self.signalled.store(false, Ordering::SeqCst);
        if self.polled.swap(false, Ordering::SeqCst) {
            POLLED.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
