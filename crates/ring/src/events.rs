//! The ring of an AIO context, which takes the place of a CQ. It is mapped at the context's
//! address, where the program reads it. Its layout is that of all Linux kernels since 2.6
//! (`uapi::aio`).
//!
//! The words of the header have the same owners as in the kernel's ring:
//!
//! | word | written by | how the engine reads it |
//! |---|---|---|
//! | tail | [`CompletionQueue`](crate::CompletionQueue), under the ring's lock | bounded; the queue itself uses its private copy |
//! | head | the program, or one caller of [`Memory::take_events`] at a time | bounded; an invalid head only loses events |
//! | all other words | once, before the program learns the address | never |
//!
//! "Bounded": any value that the program may have written is converted to a valid slot number. Head
//! and tail are slot numbers. Equal numbers mean an empty ring, so one slot always stays empty.

use crate::layout::{self, EVENT, EVENTS, Layout};
use crate::memory::{self, Memory};
use usring_sys::mapping::Mapping;
use usring_sys::ordering::Edge;
use usring_sys::shared::SharedMemory;
use usring_sys::sync::Arc;
use usring_sys::{Errno, UserAddress, width};
use usring_uapi::Cqe;
use usring_uapi::aio::{AIO_RING_COMPAT_FEATURES, AIO_RING_INCOMPAT_FEATURES, AIO_RING_MAGIC, AioRing, IoEvent};

/// Returns the byte offset of the event in slot `slot`.
#[inline]
pub(crate) fn place(slot: u32) -> usize {
    EVENTS + slot as usize * EVENT
}

/// Returns the number of the slot that follows `slot`.
#[inline]
pub(crate) fn after(slot: u32, slots: u32) -> u32 {
    if slot + 1 >= slots { 0 } else { slot + 1 }
}

/// Converts a CQE to an event. The CQE's `user_data` is the address of the request's iocb.
#[inline]
pub(crate) fn event(cqe: Cqe, extension: [u64; 2]) -> IoEvent {
    IoEvent { data: extension[0], obj: cqe.user_data, res: i64::from(cqe.res), res2: 0 }
}

impl Memory {
    /// Allocates the memory of a ring whose CQ is an AIO context's ring. `id`: the context's number
    /// in the caller's table. `readable`: the program may read events from the ring instead of
    /// calling io_getevents(2). The magic number in the ring tells the program whether this is
    /// allowed.
    pub fn for_events(layout: Layout, id: u32, readable: bool) -> Result<Memory, Errno> {
        let (rings, sqes) = memory::allocate_parts(&layout)?;
        let events = SharedMemory::new(Mapping::shared(layout.events_length())?);
        Ok(Memory::with_events(rings, sqes, events, layout, (id, readable)))
    }

    /// Makes the memory of a ring whose CQ is an AIO context's ring, in shared memory of any kind.
    /// `id` and `readable`: see [`Memory::for_events`].
    pub fn with_events(
        rings: SharedMemory,
        sqes: SharedMemory,
        events: SharedMemory,
        layout: Layout,
        (id, readable): (u32, bool),
    ) -> Memory {
        assert!(layout.has_events() && events.length() >= layout.events_length());
        let header = AioRing {
            id,
            nr: layout.event_slots,
            head: 0,
            tail: 0,
            magic: if readable { AIO_RING_MAGIC } else { 0 },
            compat_features: AIO_RING_COMPAT_FEATURES,
            incompat_features: AIO_RING_INCOMPAT_FEATURES,
            header_length: width::count(EVENTS),
        };
        let words = [
            header.id,
            header.nr,
            header.head,
            header.tail,
            header.magic,
            header.compat_features,
            header.incompat_features,
            header.header_length,
        ];
        let events = Arc::new(events);
        for (index, word) in words.into_iter().enumerate() {
            events.word(4 * index).store(word, usring_sys::sync::Ordering::Relaxed);
        }
        Memory::with_completions(Arc::new(rings), sqes, events, layout)
    }

    /// Returns the shared memory of the AIO context's ring.
    pub fn events(&self) -> &SharedMemory {
        &self.completions
    }

    /// Returns the number of events from slot `head` to slot `tail`. `head` comes from the program
    /// and can have any value.
    #[inline]
    pub(crate) fn events_before(&self, tail: u32, head: u32) -> u32 {
        let slots = self.layout.event_slots;
        let head = bounded(head, slots);
        if tail >= head { tail - head } else { tail + slots - head }
    }

    /// Returns the number of events that were published and not consumed, from the shared words.
    #[inline]
    pub(crate) fn ready_events(&self) -> u32 {
        let tail = self.completions.header_word(layout::CQ_TAIL).load(Edge::CqTail.acquire());
        let head = self.completions.header_word(layout::CQ_HEAD).load(Edge::CqHead.acquire());
        self.events_before(bounded(tail, self.layout.event_slots), head)
    }

    /// Copies up to `most` events to the program, oldest first, and releases their slots. Returns
    /// the number of events. Only one thread at a time may call this function.
    ///
    /// Error: `EFAULT`; no event is consumed.
    pub fn take_events(&self, to: UserAddress, most: u32) -> Result<u32, Errno> {
        self.take(most, |memory, at, before, count| {
            memory.copy_out(at, count as usize * EVENT, to.offset(u64::from(before) * EVENT as u64))
        })
    }

    /// Removes and returns the oldest event.
    pub fn next_event(&self) -> Option<IoEvent> {
        let mut event = None;
        let taken = self.take(1, |memory, at, _, _| {
            event = Some(memory.read(at));
            Ok(())
        });
        taken.ok().and(event)
    }

    fn take(
        &self,
        most: u32,
        mut copy: impl FnMut(&SharedMemory, usize, u32, u32) -> Result<(), Errno>,
    ) -> Result<u32, Errno> {
        let slots = self.layout.event_slots;
        let words = &self.completions;
        let tail = bounded(words.header_word(layout::CQ_TAIL).load(Edge::CqTail.acquire()), slots);
        let mut head = bounded(words.header_word(layout::CQ_HEAD).load(Edge::CqHead.acquire()), slots);
        let mut taken = 0;
        // The loop runs twice if the events to copy wrap around the end of the ring.
        while taken < most && head != tail {
            let end = if tail > head { tail } else { slots };
            let count = (end - head).min(most - taken);
            copy(words, place(head), taken, count)?;
            taken += count;
            head = if head + count == slots { 0 } else { head + count };
        }
        if taken > 0 {
            words.header_word(layout::CQ_HEAD).store(head, Edge::CqHead.release());
        }
        Ok(taken)
    }
}

/// Converts any value that the program may have written to a valid slot number.
#[inline]
fn bounded(slot: u32, slots: u32) -> u32 {
    if slot < slots { slot } else { slot % slots }
}
