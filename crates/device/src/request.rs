//! What a device is asked, and what it answers.

use alloc::vec::Vec;
use usring_sys::Errno;
use usring_sys::plain::IoVector;

/// NVMe's and virtio's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    /// All completed writes become durable.
    Flush,
    /// The blocks' contents are no longer wanted.
    Discard,
    /// The blocks read as zeroes from now on.
    WriteZeroes,
}

/// One request, within the device and on its blocks (see
/// [`crate::Geometry`]; `block_file` is for everything else).
#[derive(Clone, Copy, Debug)]
pub struct DeviceRequest<'a> {
    /// Comes back with the completion; small numbers, because queue pairs
    /// and channels keep arrays by it (below [`crate::QueueOptions::depth`]).
    pub token: u32,
    pub operation: Operation,
    /// Of a write: durable when it completes (FUA).
    pub durable: bool,
    /// The program says, by this request, that the segments lie in memory that it
    /// registered: what [`crate::Driver::share_memory`] replaced is meant, even
    /// if other memory lies at the address by now. Without this a driver never
    /// takes an address for shared memory.
    pub registered: bool,
    /// Bytes from the start of the device.
    pub offset: u64,
    /// Bytes; the sum of the segments of a read or write.
    pub length: u64,
    /// Memory of the program, from or to which is transferred; none for the
    /// operations without data. The addresses stay good until the completion,
    /// the slice itself only during the call.
    pub segments: &'a [IoVector],
    /// Which file is meant, for the device that stands for all of the kernel's
    /// ([`crate::driver::file::KernelFiles`]); to any other it means nothing.
    pub file: NamedFile,
}

/// A file of the kernel's, as a request names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedFile {
    pub number: i32,
    /// `RWF_*` of the transfer.
    pub flags: u32,
}

/// The answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub token: u32,
    /// Bytes transferred (0 for the operations without data), or a negative errno.
    pub result: i32,
}

impl Completion {
    pub fn failed(token: u32, error: Errno) -> Self {
        Completion { token, result: error.negative() }
    }
}

/// Completions of one look at a queue pair, used again for the next. Its
/// memory comes with the first.
#[derive(Default)]
pub struct Completions {
    list: Vec<Completion>,
}

/// One look brings at most this many.
const MOST: usize = 256;

impl Completions {
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes all memory that it will ever need: for a user that may not allocate later.
    pub fn reserve(&mut self) {
        self.list.reserve_exact(MOST);
    }

    /// Whether more fit; a queue pair keeps the rest for the next look.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.list.len() < MOST
    }

    /// # Panics
    /// If there is no room.
    #[inline]
    pub fn push(&mut self, completion: Completion) {
        assert!(self.has_room(), "a queue pair looks for room first");
        self.list.push(completion);
    }

    /// Appends as many as there is room for, and says how many those are.
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

    /// For wrappers, which change what their device answers.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Completion] {
        &mut self.list
    }

    /// Keeps the completions for which `keep` says so (a wrapper holds the
    /// others back).
    pub fn retain(&mut self, keep: impl FnMut(&Completion) -> bool) {
        self.list.retain(keep);
    }
}
