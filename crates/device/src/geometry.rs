//! Properties of a device: its size, its block, its limits, and the operations that it supports
//! besides read and write.

/// Value of [`Geometry::queues`]: no limit.
pub const ANY_NUMBER: u32 = u32::MAX;

/// Properties of a device, constant for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the device in bytes; a multiple of `block`.
    pub size: u64,
    /// Logical block in bytes: a power of two, at least 512. Offsets and lengths of requests are
    /// multiples of it.
    pub block: u32,
    /// Required alignment of a program's buffer in bytes; 1 for none. For a buffer that is not
    /// aligned, a driver refuses the request with `EINVAL`.
    pub alignment: u32,
    /// Maximum number of bytes of a request. Below 2 GiB, because a result is a signed 32-bit
    /// number.
    pub transfer: u32,
    /// Maximum number of segments of a request.
    pub segments: u32,
    /// Maximum number of queue pairs that all users together may have open; [`ANY_NUMBER`] for no
    /// limit.
    pub queues: u32,
    pub features: Features,
}

/// Features of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Completions can be found without an interrupt, as in all drivers of this crate. But under
    /// the policy `interrupt` the device is not polled, and a polled ring gets `EOPNOTSUPP`.
    pub polls: bool,
    /// A write is durable only after a flush.
    pub flush: bool,
    /// The device can discard blocks. A discarded block reads as zeroes, or as before the discard.
    pub discard: bool,
    /// The device can write zeroes without a buffer.
    pub write_zeroes: bool,
    pub read_only: bool,
    /// The device does not store what is written to it.
    pub forgets: bool,
    /// The kernel accesses a request's memory until the completion. Swapped memory, whose pages are
    /// evicted and paged in ([`usring_sys::pinned_memory`]), must not be passed to such a device.
    pub kernel_holds_memory: bool,
}

impl Geometry {
    /// Returns whether a transfer starts and ends on block boundaries.
    #[inline]
    pub fn is_aligned(&self, offset: u64, length: u64) -> bool {
        (offset | length) & u64::from(self.block - 1) == 0
    }

    /// Returns the bytes of a transfer that lie within the device.
    #[inline]
    pub fn within(&self, offset: u64, length: u64) -> u64 {
        length.min(self.size.saturating_sub(offset))
    }
}
