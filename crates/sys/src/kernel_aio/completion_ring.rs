//! A context's completions, read where the kernel writes them: in a ring that
//! is mapped into the process at the context's own address. A look costs one
//! load and no system call.
//!
//! The tail is the kernel's, the head is ours for as long as nobody calls
//! io_getevents(2) on the context. Only the kernel's own ring can say how it
//! orders its side; the names of both edges tell ([`Edge::AioTail`],
//! [`Edge::AioHead`]).

use crate::ordering::Edge;
use crate::shared::SharedMemory;
use crate::sync::Arc;
use core::mem::{offset_of, size_of};
use usring_uapi::aio::{AIO_RING_INCOMPAT_FEATURES, AIO_RING_MAGIC, AioRing, IoEvent};

/// The reader's half of the ring.
pub struct CompletionRing {
    memory: Arc<SharedMemory>,
    entries: u32,
    first_event: usize,
    /// Where we read next; the ring's own head follows in `publish_head`.
    head: u32,
    /// The tail as we last saw it.
    tail: u32,
}

impl CompletionRing {
    /// `None` unless this is the ring that every Linux since 2.6 has made.
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

    /// Whether there is nothing to read. A look at the kernel's tail.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        if self.head == self.tail {
            self.tail = self.memory.word(offset_of!(AioRing, tail)).load(Edge::AioTail.acquire());
        }
        self.head == self.tail
    }

    /// The next event.
    #[inline]
    pub fn take(&mut self) -> Option<IoEvent> {
        if self.is_empty() {
            return None;
        }
        let event = self.memory.read(self.first_event + self.head as usize * size_of::<IoEvent>());
        self.head = if self.head + 1 == self.entries { 0 } else { self.head + 1 };
        Some(event)
    }

    /// Gives the slots of all events that were read back to the kernel.
    #[inline]
    pub fn publish_head(&mut self) {
        self.memory.word(offset_of!(AioRing, head)).store(self.head, Edge::AioHead.release());
    }
}
