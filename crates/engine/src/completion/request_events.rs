//! The eventfds that single requests name (IOCB_FLAG_RESFD). usring signals such an eventfd after
//! it has published the request's event, and never before.

use crate::completion::event_descriptor::EventDescriptor;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Pending eventfd signals of a ring's requests. Only the thread that holds the ring's lock uses
/// this value.
#[derive(Default)]
pub(crate) struct RequestEvents {
    /// Number of requests that name an eventfd and have not completed.
    under_way: u32,
    /// The eventfds of completions that are not published yet, one entry per completion.
    done: Vec<Arc<EventDescriptor>>,
}

impl RequestEvents {
    /// Counts a request that is being submitted, if it names an eventfd.
    #[inline]
    pub fn begin(&mut self, event: &Option<Arc<EventDescriptor>>) {
        self.under_way += u32::from(event.is_some());
    }

    /// Queues the signal for a completed request, if the request names an eventfd.
    #[inline]
    pub fn end(&mut self, event: Option<Arc<EventDescriptor>>) {
        if let Some(event) = event {
            self.under_way -= 1;
            self.done.push(event);
        }
    }

    /// Returns whether a request that names an eventfd (IOCB_FLAG_RESFD) is still in flight on the
    /// ring.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.under_way > 0
    }

    #[inline]
    pub fn is_due(&self) -> bool {
        !self.done.is_empty()
    }

    /// Signals the eventfds that requests named, after the requests' events were published. Adds 1
    /// to an eventfd's counter per event, because programs may count events in this way.
    #[cold]
    #[inline(never)]
    pub fn signal(&mut self) {
        let done = core::mem::take(&mut self.done);
        for same in done.chunk_by(Arc::ptr_eq) {
            same[0].add(same.len() as u64);
        }
    }

    /// Drops all pending signals, because the ring is closed.
    pub fn forget(&mut self) {
        self.done = Vec::new();
    }
}
