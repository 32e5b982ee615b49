//! The requests that a device serves, and their completions.

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

/// A request of whole blocks within the device (see [`crate::Geometry`]). `block_file` splits or
/// copies all other reads and writes into requests of this form.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRequest<'a> {
    /// Number that the completion returns. Below [`crate::QueueOptions::depth`], because queue
    /// pairs and channels index arrays by it.
    pub token: u32,
    pub operation: Operation,
    /// For a write: whether the data must be durable when the request completes (FUA).
    pub durable: bool,
    /// Whether the program addresses memory that it has registered. The driver then uses the memory
    /// that [`crate::Driver::share_memory`] shared, even if the program has mapped other memory at
    /// the address since then. Without this flag, a driver never uses shared memory for an address.
    pub registered: bool,
    /// Offset on the device, in bytes.
    pub offset: u64,
    /// Length in bytes; for a read or write, the sum of the segments' lengths.
    pub length: u64,
    /// The program's memory for the transfer; empty for operations without data. The addresses must
    /// stay valid until the completion. The slice itself must stay valid only during the call.
    pub segments: &'a [IoVector],
    /// The file to transfer from or to. Only [`crate::driver::file::KernelFiles`], the device that
    /// stands for all files that the kernel serves, uses this field.
    pub file: NamedFile,
}

/// A file that a request names, and that the kernel serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedFile {
    pub number: i32,
    /// `RWF_*` flags of the transfer.
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

/// The completions that one poll of a queue pair has found. The list is reused for the next poll.
/// It allocates its memory with the first completion.
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

    /// Returns whether another completion fits. If not, a queue pair keeps its completions for the
    /// next poll.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.list.len() < MOST
    }

    /// Appends a completion.
    ///
    /// # Panics
    /// If there is no room.
    #[inline]
    pub fn push(&mut self, completion: Completion) {
        assert!(self.has_room(), "a queue pair checks for room first");
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
}
