//! The eventfds that requests of their own have named (IOCB_FLAG_RESFD): each is
//! told of its request once the event is published, and never before.

use crate::event_descriptor::EventDescriptor;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Belongs to whoever holds the ring's lock.
#[derive(Default)]
pub(crate) struct Told {
    /// Requests under way that have one.
    under_way: u32,
    /// One for each completion that is not published yet.
    done: Vec<Arc<EventDescriptor>>,
}

impl Told {
    /// A request begins.
    #[inline]
    pub fn begin(&mut self, event: &Option<Arc<EventDescriptor>>) {
        self.under_way += u32::from(event.is_some());
    }

    /// It is done.
    #[inline]
    pub fn end(&mut self, event: Option<Arc<EventDescriptor>>) {
        if let Some(event) = event {
            self.under_way -= 1;
            self.done.push(event);
        }
    }

    /// Whether somebody counts on being told of a request that is under way.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.under_way > 0
    }

    #[inline]
    pub fn is_due(&self) -> bool {
        !self.done.is_empty()
    }

    /// The events are published: each eventfd counts how many of them are its
    /// own, for a program may go by the number.
    #[cold]
    #[inline(never)]
    pub fn tell(&mut self) {
        let done = core::mem::take(&mut self.done);
        for same in done.chunk_by(Arc::ptr_eq) {
            same[0].add(same.len() as u64);
        }
    }

    /// The ring goes away.
    pub fn forget(&mut self) {
        self.done = Vec::new();
    }
}
