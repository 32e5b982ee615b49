//! Buffer rings (REGISTER_PBUF_RING) that a case fills.

use std::sync::atomic::{AtomicU16, Ordering};

use usring_uapi::io_uring as u;

use crate::cases::reg;
use crate::memory::{Pages, zeroed};
use crate::ring::Ring;

/// Bytes of a buffer, unless a case chooses another length.
pub const SIZE: u32 = 16;

/// A buffer ring in the caller's memory, and the pages in which its buffers lie.
pub struct Group {
    entries: *mut u8,
    mask: u16,
    tail: u16,
    pub buffers: Pages,
}

impl Group {
    /// Returns a group over the `count` ring entries at `entries`. It has no buffer yet.
    pub fn new(entries: *mut u8, count: u16) -> Group {
        Group { entries, mask: count - 1, tail: 0, buffers: Pages::new(1) }
    }

    /// Appends a buffer of `length` bytes with the id `identifier`. The buffer begins at slot
    /// `slot` of this group's pages, whose slots have [`SIZE`] bytes each.
    pub fn add(&mut self, slot: u16, length: u32, identifier: u16) {
        let address = self.buffers.at(usize::from(slot) * SIZE as usize);
        self.add_at(address, length, identifier);
    }

    /// Returns the number of buffers appended so far.
    pub fn added(&self) -> u16 {
        self.tail
    }

    pub fn add_at(&mut self, address: u64, length: u32, identifier: u16) {
        let index = usize::from(self.tail & self.mask);
        // SAFETY: the index is masked, so the entry is in the ring. The write leaves out the
        // entry's last two bytes: in the first entry of the ring, they are the ring's tail.
        unsafe {
            let entry = self.entries.add(index * 16);
            entry.cast::<u64>().write_volatile(address);
            entry.add(8).cast::<u32>().write_volatile(length);
            entry.add(12).cast::<u16>().write_volatile(identifier);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is in the first entry, at this offset, and is aligned.
        unsafe { &*self.entries.add(14).cast::<AtomicU16>() }.store(self.tail, Ordering::Release);
    }

    /// Appends a buffer of [`SIZE`] bytes for each number in `slots`. The buffer is the slot with
    /// that number in this group's pages, and the number is also the buffer's id.
    pub fn add_slots(&mut self, slots: std::ops::Range<u16>) {
        for slot in slots {
            self.add(slot, SIZE, slot);
        }
    }

    pub fn text(&mut self, slot: usize) -> String {
        let start = slot * SIZE as usize;
        String::from_utf8_lossy(&self.buffers.bytes()[start..start + SIZE as usize]).replace('\0', ".")
    }

    /// Describes the entry `slot` of the buffer ring: how far the entry's address is behind the
    /// beginning of its buffer, and how many bytes are left in the buffer.
    pub fn state(&self, slot: u16) -> String {
        // SAFETY: `slot` is the index of an entry of the ring.
        let (address, length) = unsafe {
            let entry = self.entries.add(usize::from(slot) * 16);
            (entry.cast::<u64>().read_volatile(), entry.add(8).cast::<u32>().read_volatile())
        };
        // The subtraction fails for an entry to which no buffer was added: the entry's address is
        // below this group's pages.
        match address.checked_sub(self.buffers.at(usize::from(slot) * SIZE as usize)) {
            Some(distance) => format!("at {distance} left {length}"),
            None => format!("elsewhere left {length}"),
        }
    }
}

pub fn registration(address: u64, entries: u32, group: u16, flags: u16) -> u::io_uring_buf_reg {
    let mut registration: u::io_uring_buf_reg = zeroed();
    registration.ring_addr = address;
    registration.ring_entries = entries;
    registration.bgid = group;
    registration.flags = flags;
    registration
}

pub fn register(ring: &Ring, registration: &u::io_uring_buf_reg) -> i32 {
    ring.register(reg::PBUF_RING, &raw const *registration, 1)
}

/// Registers a buffer ring with `entries` entries in `memory`, under the group id `group`.
pub fn group_of(ring: &Ring, memory: &Pages, entries: u32, group: u16) -> Group {
    assert_eq!(register(ring, &registration(memory.at(0), entries, group, 0)), 0);
    Group::new(memory.address, entries as u16)
}

/// Registers a buffer ring in `memory` under the group id `group`, with the flag IOU_PBUF_RING_INC:
/// a receive consumes only those bytes of a buffer that it fills.
pub fn incremental_group_of(ring: &Ring, memory: &Pages, entries: u32, group: u16) -> Group {
    assert_eq!(register(ring, &registration(memory.at(0), entries, group, 2)), 0);
    Group::new(memory.address, entries as u16)
}
