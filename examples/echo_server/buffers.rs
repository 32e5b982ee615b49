//! Provided buffers: a receive takes one of them when it has data.

use io_uring::{IoUring, types};
use std::sync::atomic::{AtomicU16, Ordering};
use std::{io, ptr};

/// The id of the only buffer group.
pub const GROUP: u16 = 0;

/// The provided buffers, and the buffer ring in shared memory that offers them. Both live as long
/// as the process.
pub struct Buffers {
    ring: *mut types::BufRingEntry,
    memory: *mut u8,
    count: u16,
    size: usize,
    tail: u16,
}

impl Buffers {
    pub fn new(ring: &IoUring, count: u16, size: usize) -> io::Result<Buffers> {
        let entries = map(usize::from(count) * size_of::<types::BufRingEntry>())?.cast();
        let mut buffers = Buffers { ring: entries, memory: map(usize::from(count) * size)?, count, size, tail: 0 };
        // SAFETY: the mapping has room for all entries, and is never unmapped.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries as u64, count, GROUP, 0)? };
        (0..count).for_each(|id| buffers.give(id));
        Ok(buffers)
    }

    /// Returns the data that was received into this buffer.
    pub fn received(&self, id: u16, length: usize) -> &[u8] {
        debug_assert!(id < self.count && length <= self.size);
        // SAFETY: the buffer lies in the mapping. The engine does not write to it until the server
        // offers it again.
        unsafe { std::slice::from_raw_parts(self.memory.add(usize::from(id) * self.size), length) }
    }

    pub fn give(&mut self, id: u16) {
        let place = self.tail & (self.count - 1);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: 1. The entry lies in the ring, and the engine reads it only after the tail has
        // passed it. 2. The tail is a word of the ring that both sides access as an atomic.
        unsafe {
            let entry = &mut *self.ring.add(usize::from(place));
            entry.set_addr(self.memory.add(usize::from(id) * self.size) as u64);
            entry.set_len(self.size as u32);
            entry.set_bid(id);
            let tail = types::BufRingEntry::tail(self.ring).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }
}

fn map(size: usize) -> io::Result<*mut u8> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which replaces no other.
    let address = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address.cast()) }
}
