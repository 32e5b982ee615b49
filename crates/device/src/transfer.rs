//! A read or write as the program requests it, and its route to the device. These rules hold for
//! the requests of rings and for plain system calls.

use crate::geometry::Geometry;
use crate::request::Operation;
use usring_sys::Errno;
use usring_sys::plain::IoVector;
use usring_sys::{pinned_memory, user_memory};

/// Maximum number of bytes of a read or write (Linux's MAX_RW_COUNT). A longer transfer is
/// shortened without an error.
pub const MAX_TRANSFER: u64 = 0x7fff_f000;

/// Largest file offset. Offsets are signed.
const MAX_OFFSET: u64 = i64::MAX as u64;

/// A read or write at any offset, of any length, with any memory.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// `Read` or `Write`.
    pub operation: Operation,
    /// For a write: whether the data must be durable when the call returns (`RWF_DSYNC`,
    /// `O_DSYNC`).
    pub durable: bool,
    /// Whether the segments lie in registered memory; see [`crate::DeviceRequest::registered`].
    pub registered: bool,
    /// Whether the file is open with `O_DIRECT`.
    pub direct: bool,
    pub offset: u64,
    pub segments: &'a [IoVector],
}

/// How a transfer reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The transfer goes to a queue pair, as one request of `length` bytes.
    QueuePair { length: u64 },
    /// The transfer goes through a [`crate::BlockFile`], in a thread that may block. Chosen if the
    /// transfer has partial blocks, is too long for one request, crosses the device's end, or uses
    /// memory that must not be passed to the device.
    BlockFile,
    /// The transfer ends at once with 0 bytes: it is empty, or it is a read that begins at or
    /// beyond the device's end.
    Nothing,
    /// The transfer fails with this error.
    Refused(Errno),
}

impl Transfer<'_> {
    /// Selects the route of the transfer on a device of this geometry.
    #[inline]
    pub fn route(&self, geometry: &Geometry) -> Route {
        match self.whole_request(geometry) {
            Some(length) => Route::QueuePair { length },
            None => self.other_route(geometry),
        }
    }

    /// Returns the length of the transfer if one request can make the whole transfer; otherwise
    /// `None`.
    #[inline]
    fn whole_request(&self, geometry: &Geometry) -> Option<u64> {
        let alignment = u64::from(geometry.alignment - 1);
        let mut length = 0u64;
        for segment in self.segments {
            if segment.base & alignment != 0 || segment.length == 0 {
                return None;
            }
            length = length.checked_add(segment.length)?;
        }
        let fits = self.segments.len() <= geometry.segments as usize && length <= u64::from(geometry.transfer);
        let blocks = length != 0 && geometry.is_aligned(self.offset, length);
        let within = self.offset < geometry.size && length <= geometry.size - self.offset;
        let allowed = self.operation == Operation::Read || !geometry.features.read_only;
        (fits && blocks && within && allowed && self.memory_stays(geometry)).then_some(length)
    }

    /// Returns whether the memory stays in place as long as the device uses it. Swapped memory does
    /// not stay in place during a request for which the kernel accesses the memory
    /// (`kernel_holds_memory`).
    #[inline]
    fn memory_stays(&self, geometry: &Geometry) -> bool {
        !geometry.features.kernel_holds_memory
            || !self.segments.iter().any(|segment| pinned_memory::is_evictable(*segment))
    }

    #[cold]
    fn other_route(&self, geometry: &Geometry) -> Route {
        match self.check(geometry) {
            Ok(0) => Route::Nothing,
            Ok(_) => Route::BlockFile,
            Err(error) => Route::Refused(error),
        }
    }

    /// Returns the number of bytes to transfer. The checks have Linux's order. So alignment is not
    /// checked if the transfer starts beyond the device's end. A transfer that crosses the end is
    /// shortened before the alignment check.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<u64, Errno> {
        let length = checked_length(self.segments)?;
        if self.offset > MAX_OFFSET - length {
            return Err(Errno::EINVAL);
        }
        let writes = self.operation == Operation::Write;
        if writes && geometry.features.read_only {
            return Err(Errno::EPERM);
        }
        if length == 0 {
            return Ok(0);
        }
        if self.offset >= geometry.size {
            return if writes { Err(Errno::ENOSPC) } else { Ok(0) };
        }
        let length = geometry.within(self.offset, length);
        let alignment = u64::from(geometry.alignment - 1);
        let aligned = |segment: &IoVector| segment.length == 0 || (segment.base | segment.length) & alignment == 0;
        if self.direct && !(geometry.is_aligned(self.offset, length) && self.segments.iter().all(aligned)) {
            return Err(Errno::EINVAL);
        }
        Ok(length)
    }
}

/// Returns the total length of the segments, with the checks and the limit of Linux's
/// import_iovec().
fn checked_length(segments: &[IoVector]) -> Result<u64, Errno> {
    let mut total = 0;
    for segment in segments {
        if segment.length > MAX_OFFSET {
            return Err(Errno::EINVAL);
        }
        if segment.length > user_memory::END || segment.base > user_memory::END - segment.length {
            return Err(Errno::EFAULT);
        }
        total = MAX_TRANSFER.min(total + segment.length);
    }
    Ok(total)
}
