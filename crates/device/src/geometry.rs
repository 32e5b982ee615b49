//! What a device is like: its size, its block, and what it can do beside
//! reading and writing.

/// Of queue pairs.
pub const ANY_NUMBER: u32 = u32::MAX;

/// Fixed for the life of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// In bytes, a multiple of `block`.
    pub size: u64,
    /// The logical block in bytes, a power of two of 512 at least: offsets and
    /// lengths of requests are multiples of it.
    pub block: u32,
    /// A program's buffer has to start at a multiple of this many bytes, or the
    /// driver answers `EINVAL` for it; 1 where any address will do.
    pub alignment: u32,
    /// Most bytes of one request, below 2 GiB: what is answered is signed.
    pub transfer: u32,
    /// Most segments of one request.
    pub segments: u32,
    /// Most queue pairs that are open at the same time, whosoever they are; [`ANY_NUMBER`] where nothing
    /// counts them.
    pub queues: u32,
    pub features: Features,
}

/// What a device offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Completions can be found without an interrupt. Every driver of ours can;
    /// a device whose policy is `interrupt` says no (storage: `EOPNOTSUPP` on a
    /// polled ring).
    pub polls: bool,
    /// A write is not durable before a flush: FLUSH means something.
    pub flush: bool,
    /// DISCARD frees the blocks; they read as zeroes or as before.
    pub discard: bool,
    /// WRITE ZEROES without a buffer.
    pub write_zeroes: bool,
    pub read_only: bool,
    /// What is written is thrown away.
    pub forgets: bool,
    /// The kernel has a request's memory until it has answered: memory that comes and goes
    /// ([`usring_sys::kept_memory`]) is not for this device.
    pub lends_memory: bool,
}

impl Geometry {
    /// Whether a transfer starts and ends on blocks.
    #[inline]
    pub fn is_aligned(&self, offset: u64, length: u64) -> bool {
        (offset | length) & u64::from(self.block - 1) == 0
    }

    /// Bytes of a transfer that lie within the device.
    #[inline]
    pub fn within(&self, offset: u64, length: u64) -> u64 {
        length.min(self.size.saturating_sub(offset))
    }
}
