//! The back end's record of what it has in flight (INFLIGHT_SHMFD): its own
//! notes, in memory that we keep for the back end that comes after it. We
//! write into it for one reason: a queue that changes hands begins with nothing.

use std::fs::File;
use usring_device::driver::vhost_user::arena::QUEUE_SIZE;
use usring_sys::Errno;
use usring_sys::descriptor::duplicate_private;
use usring_sys::mapping::Mapping;
use usring_sys::shared::SharedMemory;
use vhost::vhost_user::message::VhostUserInflight;

pub struct Record {
    pub description: VhostUserInflight,
    pub file: File,
    memory: SharedMemory,
}

/// Header of a queue's region, and where in it the last used index stands.
const HEADER: usize = 16;
const USED_INDEX: usize = 14;
/// A descriptor's state; its first byte says whether it is in flight.
const STATE: usize = 16;

impl Record {
    pub fn new(description: VhostUserInflight, file: File) -> Result<Record, Errno> {
        use std::os::fd::AsRawFd;
        let length = description.mmap_offset.checked_add(description.mmap_size).ok_or(Errno::EINVAL)? as usize;
        let queue = description.mmap_size as usize / usize::from(description.num_queues.max(1));
        let there = file.metadata().map_or(0, |metadata| metadata.len()) as usize;
        if queue < HEADER + STATE * usize::from(QUEUE_SIZE) || there < length {
            return Err(Errno::EINVAL);
        }
        let mapping = Mapping::of_file(duplicate_private(file.as_raw_fd())?, length)?;
        Ok(Record { description, file, memory: SharedMemory::new(mapping) })
    }

    /// Nothing of this queue is in flight. Only while no back end works on it.
    pub fn clear(&self, queue: u32) {
        let size = self.description.mmap_size as usize / usize::from(self.description.num_queues.max(1));
        let base = self.description.mmap_offset as usize + queue as usize * size;
        self.memory.write(base + USED_INDEX, 0u16);
        (0..usize::from(QUEUE_SIZE)).for_each(|index| self.memory.write(base + HEADER + STATE * index, 0u8));
    }
}
