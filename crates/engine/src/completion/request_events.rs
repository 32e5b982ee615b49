//! The eventfds that requests name for themselves (IOCB_FLAG_RESFD). Each is signalled after its
//! request's event is published, never before.

use crate::completion::event_descriptor::EventDescriptor;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Pending signals; the holder of the ring's lock owns them.
#[derive(Default)]
pub(crate) struct RequestEvents {
    /// Requests under way (not completed) that name an eventfd.
    under_way: u32,
    /// The eventfd of each completion that is not published yet.
    done: Vec<Arc<EventDescriptor>>,
}

impl RequestEvents {
    /// Counts a request that begins, if it names an eventfd.
    #[inline]
    pub fn begin(&mut self, event: &Option<Arc<EventDescriptor>>) {
        self.under_way += u32::from(event.is_some());
    }

    /// Queues the signal of a completed request.
    #[inline]
    pub fn end(&mut self, event: Option<Arc<EventDescriptor>>) {
        if let Some(event) = event {
            self.under_way -= 1;
            self.done.push(event);
        }
    }

    /// Returns whether a request under way names an eventfd.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.under_way > 0
    }

    #[inline]
    pub fn is_due(&self) -> bool {
        !self.done.is_empty()
    }

    /// Signals the eventfds of published events. Each eventfd's counter grows by the number of
    /// events that name it, because a program may rely on that number.
    #[cold]
    #[inline(never)]
    pub fn signal(&mut self) {
        let done = core::mem::take(&mut self.done);
        for same in done.chunk_by(Arc::ptr_eq) {
            same[0].add(same.len() as u64);
        }
    }

    /// Drops all pending signals, for a ring that goes away.
    pub fn forget(&mut self) {
        self.done = Vec::new();
    }
}
