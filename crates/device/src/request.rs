//! The requests that a device takes, and its completions.

use alloc::vec::Vec;
use usring_sys::Errno;
use usring_sys::plain::IoVector;

/// Operation of a request, with the names of NVMe and virtio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    /// Makes all completed writes durable.
    Flush,
    /// Discards the contents of the blocks.
    Discard,
    /// Makes the blocks read as zeroes.
    WriteZeroes,
}

/// A request of whole blocks within the device (see [`crate::Geometry`]). `block_file` serves all
/// other reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRequest<'a> {
    /// Returned with the completion. Below [`crate::QueueOptions::depth`], because queue pairs and
    /// channels keep arrays that it indexes.
    pub token: u32,
    pub operation: Operation,
    /// For a write: the data is durable when the request completes (FUA).
    pub durable: bool,
    /// The program says, by this request, that the segments lie in memory that it registered. Then
    /// the memory shared by [`crate::Driver::share_memory`] is used, even if other memory lies at
    /// the address by now. Without this flag a driver never uses shared memory for an address.
    pub registered: bool,
    /// Bytes from the start of the device.
    pub offset: u64,
    /// Bytes; for a read or write, the sum of the segments.
    pub length: u64,
    /// Memory of the program to transfer from or to; empty for operations without data. The
    /// addresses stay valid until the completion, the slice only during the call.
    pub segments: &'a [IoVector],
    /// The file to transfer from or to. Only [`crate::driver::file::KernelFiles`] uses it, the
    /// device that stands for all files of the kernel.
    pub file: NamedFile,
}

/// A file of the kernel, named in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedFile {
    pub number: i32,
    /// `RWF_*` of the transfer.
    pub flags: u32,
}

/// The completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub token: u32,
    /// Bytes transferred (0 for operations without data), or a negative errno.
    pub result: i32,
}

impl Completion {
    pub fn failed(token: u32, error: Errno) -> Self {
        Completion { token, result: error.negative() }
    }
}

/// Completions found by one poll of a queue pair. The list is used again for the next poll, and
/// allocates its memory with the first completion.
#[derive(Default)]
pub struct Completions {
    list: Vec<Completion>,
}

/// Maximum number of completions per poll.
const MOST: usize = 256;

impl Completions {
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates all memory that the list will ever need, for a user that must not allocate later.
    pub fn reserve(&mut self) {
        self.list.reserve_exact(MOST);
    }

    /// Returns whether more completions fit. A queue pair keeps the rest for the next poll.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.list.len() < MOST
    }

    /// # Panics
    /// If there is no room.
    #[inline]
    pub fn push(&mut self, completion: Completion) {
        assert!(self.has_room(), "a queue pair checks for space first");
        self.list.push(completion);
    }

    /// Appends as many completions as fit and returns their number.
    #[inline]
    pub fn take_from(&mut self, completions: &[Completion]) -> usize {
        let taken = completions.len().min(MOST - self.list.len());
        self.list.extend_from_slice(&completions[..taken]);
        taken
    }

    #[inline]
    pub fn clear(&mut self) {
        self.list.clear();
    }

    #[inline]
    pub fn as_slice(&self) -> &[Completion] {
        &self.list
    }

    /// Returns the completions for a wrapper to change.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Completion] {
        &mut self.list
    }

    /// Keeps the completions for which `keep` returns `true`. A wrapper holds the others back.
    pub fn retain(&mut self, keep: impl FnMut(&Completion) -> bool) {
        self.list.retain(keep);
    }
}
