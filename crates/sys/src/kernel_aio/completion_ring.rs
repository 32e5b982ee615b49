//! Reads the completions of an AIO context where the kernel writes them: in a ring in this
//! process's memory. The ring's address is the context's id (`aio_context_t`). A poll costs one
//! load and no system call.
//!
//! The kernel writes the ring's tail, and usring writes its head. io_getevents(2) would write the
//! head, too, so no thread may make that call on the context. [`Edge::AioTail`] and
//! [`Edge::AioHead`] describe the kernel's side of the orderings.

use crate::ordering::Edge;
use crate::shared::SharedMemory;
use crate::sync::Arc;
use core::mem::{offset_of, size_of};
use usring_uapi::aio::{AIO_RING_INCOMPAT_FEATURES, AIO_RING_MAGIC, AioRing, IoEvent};

/// The reading end of an AIO context's completion ring.
pub struct CompletionRing {
    memory: Arc<SharedMemory>,
    entries: u32,
    first_event: usize,
    /// Index of the next entry to read; `publish_head` stores it to the ring's head in memory.
    head: u32,
    /// The ring's tail as last read from memory.
    tail: u32,
}

impl CompletionRing {
    /// Checks the ring's header. Returns `None` if its layout differs from that of all Linux
    /// versions since 2.6.
    pub fn new(memory: Arc<SharedMemory>) -> Option<Self> {
        let header = memory.read::<AioRing>(0);
        let known = header.magic == AIO_RING_MAGIC && header.incompat_features == AIO_RING_INCOMPAT_FEATURES;
        if !known || header.nr == 0 || header.head >= header.nr {
            return None;
        }
        let first_event = header.header_length as usize;
        let length = first_event + header.nr as usize * size_of::<IoEvent>();
        if length > memory.length() || !first_event.is_multiple_of(8) {
            return None;
        }
        Some(CompletionRing { memory, entries: header.nr, first_event, head: header.head, tail: header.head })
    }

    /// Returns whether there is no event to read. Loads the ring's tail from memory only if all
    /// events before the tail that was loaded last were read.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        if self.head == self.tail {
            self.tail = self.memory.word(offset_of!(AioRing, tail)).load(Edge::AioTail.acquire());
        }
        self.head == self.tail
    }

    /// Reads and removes the next event. [`Self::publish_head`] gives its slot back to the kernel.
    #[inline]
    pub fn take(&mut self) -> Option<IoEvent> {
        if self.is_empty() {
            return None;
        }
        let event = self.memory.read(self.first_event + self.head as usize * size_of::<IoEvent>());
        self.head = if self.head + 1 == self.entries { 0 } else { self.head + 1 };
        Some(event)
    }

    /// Frees the slots of all events that were read, so that the kernel can use them again.
    #[inline]
    pub fn publish_head(&mut self) {
        self.memory.word(offset_of!(AioRing, head)).store(self.head, Edge::AioHead.release());
    }
}
