//! The back end's record of requests in flight (INFLIGHT_SHMFD). The back end writes the record,
//! and usring keeps the record's memory for the next back end. When a process returns a queue,
//! usring clears the queue's part of the record. So the next process that uses the queue begins
//! without requests in flight.

use std::fs::File;
use usring_device::driver::vhost_user::arena::QUEUE_SIZE;
use usring_sys::Errno;
use usring_sys::descriptor::duplicate_private;
use usring_sys::mapping::Mapping;
use usring_sys::shared::SharedMemory;
use usring_sys::width;
use vhost::vhost_user::message::VhostUserInflight;

pub struct Record {
    pub description: VhostUserInflight,
    pub file: File,
    memory: SharedMemory,
}

/// Layout of a queue's part of the record, in bytes: the length of its header, and the offset of
/// the last used index within the header.
const HEADER: usize = 16;
const USED_INDEX: usize = 14;
/// Bytes of a descriptor's entry. The entries of a queue's descriptors follow the header. An
/// entry's first byte is 1 while the descriptor is in flight.
const STATE: usize = 16;

impl Record {
    pub fn new(description: VhostUserInflight, file: File) -> Result<Record, Errno> {
        use std::os::fd::AsRawFd;
        let length = width::size(description.mmap_offset.checked_add(description.mmap_size).ok_or(Errno::EINVAL)?);
        let queue = width::size(description.mmap_size) / usize::from(description.num_queues.max(1));
        let there = width::size(file.metadata().map_or(0, |metadata| metadata.len()));
        if queue < HEADER + STATE * usize::from(QUEUE_SIZE) || there < length {
            return Err(Errno::EINVAL);
        }
        let mapping = Mapping::of_file(duplicate_private(file.as_raw_fd())?, length)?;
        Ok(Record { description, file, memory: SharedMemory::new(mapping) })
    }

    /// Records that a queue has no request in flight. Called only while no back end serves the
    /// queue.
    pub fn clear(&self, queue: u32) {
        let size = width::size(self.description.mmap_size) / usize::from(self.description.num_queues.max(1));
        let base = width::size(self.description.mmap_offset) + queue as usize * size;
        self.memory.write(base + USED_INDEX, 0u16);
        (0..usize::from(QUEUE_SIZE)).for_each(|index| self.memory.write(base + HEADER + STATE * index, 0u8));
    }
}
