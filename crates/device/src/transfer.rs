//! A read or write as a program asks for it, and the way it has to take: the
//! one rule that rings and plain system calls share.

use crate::geometry::Geometry;
use crate::request::Operation;
use usring_sys::Errno;
use usring_sys::plain::IoVector;
use usring_sys::{kept_memory, user_memory};

/// Most bytes of one read or write (Linux's MAX_RW_COUNT); more are not an
/// error, the answer is short.
pub const MAX_TRANSFER: u64 = 0x7fff_f000;

/// A file's offsets are signed.
const MAX_OFFSET: u64 = i64::MAX as u64;

/// Any offset, any length, any memory.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// `Read` or `Write`.
    pub operation: Operation,
    /// Of a write: durable when it is answered (`RWF_DSYNC`, `O_DSYNC`).
    pub durable: bool,
    /// See [`crate::DeviceRequest::registered`].
    pub registered: bool,
    /// The file is open with `O_DIRECT`.
    pub direct: bool,
    pub offset: u64,
    pub segments: &'a [IoVector],
}

/// The way of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One request as it stands, of this many bytes: to a queue pair.
    QueuePair { length: u64 },
    /// Partial blocks, too long, cut at the device's end, or memory that is not
    /// for the device: a [`crate::BlockFile`] does it, in a thread that may block.
    BlockFile,
    /// The answer is 0: nothing was asked for, or it is at the end.
    Nothing,
    /// The answer is this error.
    Refused(Errno),
}

impl Transfer<'_> {
    #[inline]
    pub fn route(&self, geometry: &Geometry) -> Route {
        match self.whole_request(geometry) {
            Some(length) => Route::QueuePair { length },
            None => self.other_route(geometry),
        }
    }

    /// Its length, if it is one request as it stands.
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
        (fits && blocks && within && allowed && self.stays(geometry)).then_some(length)
    }

    /// Whether the memory is there for as long as the device has it.
    #[inline]
    fn stays(&self, geometry: &Geometry) -> bool {
        !geometry.features.lends_memory || !self.segments.iter().any(|segment| kept_memory::comes_and_goes(*segment))
    }

    #[cold]
    fn other_route(&self, geometry: &Geometry) -> Route {
        match self.check(geometry) {
            Ok(0) => Route::Nothing,
            Ok(_) => Route::BlockFile,
            Err(error) => Route::Refused(error),
        }
    }

    /// How many bytes are to be transferred, checked in the order in which
    /// Linux checks (a transfer that starts past the end is not looked at
    /// further; one that crosses it is cut first).
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<u64, Errno> {
        let length = total(self.segments)?;
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

/// The bytes of all segments, as import_iovec() counts and checks them.
fn total(segments: &[IoVector]) -> Result<u64, Errno> {
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
