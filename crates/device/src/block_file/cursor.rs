//! A position in the memory of a transfer, which is a list of segments.

use crate::geometry::Geometry;
use alloc::vec::Vec;
use usring_sys::UserAddress;
use usring_sys::plain::IoVector;
use usring_sys::{mapping, pinned_memory, user_memory, width};

/// The point in a transfer's memory up to which the transfer has used the memory.
#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    segments: &'a [IoVector],
    /// Number of bytes of the first segment in `segments` that the transfer has already used.
    within: u64,
}

impl<'a> Cursor<'a> {
    pub fn new(segments: &'a [IoVector]) -> Self {
        Cursor { segments, within: 0 }
    }

    /// Returns the unused part of the cursor's current segment; `None` at the end of the transfer's
    /// memory.
    fn rest(&mut self) -> Option<IoVector> {
        while let Some(first) = self.segments.first() {
            if first.length > self.within {
                return Some(IoVector { base: first.base + self.within, length: first.length - self.within });
            }
            self.segments = &self.segments[1..];
            self.within = 0;
        }
        None
    }

    pub fn skip(&mut self, mut bytes: u64) {
        while bytes > 0 {
            let Some(rest) = self.rest() else { return };
            let step = bytes.min(rest.length);
            self.within += step;
            bytes -= step;
        }
    }

    /// Collects the next segments in `list` and advances the cursor past them. Stops after `room`
    /// segments or `most` bytes, or at memory that a device with the limits in `geometry` must not
    /// access. Returns the number of bytes in `list`.
    pub fn gather(&mut self, list: &mut Vec<IoVector>, room: usize, most: u64, geometry: &Geometry) -> u64 {
        let (alignment, lends) = (u64::from(geometry.alignment), geometry.features.kernel_holds_memory);
        let mut bytes = 0;
        list.clear();
        while bytes < most && list.len() < room {
            let Some(rest) = self.rest() else { break };
            let length = rest.length.min(most - bytes);
            if (rest.base | length) & (alignment - 1) != 0 {
                break;
            }
            let piece = IoVector { base: rest.base, length };
            if lends && pinned_memory::is_evictable(piece) {
                break;
            }
            list.push(piece);
            self.within += length;
            bytes += length;
        }
        bytes
    }

    /// Copies `from` to the program's memory at the cursor. Stops at the first fault, or at the end
    /// of `from` or of that memory. Advances the cursor. Returns the bytes copied.
    pub fn copy_out(&mut self, from: &[u8]) -> usize {
        self.copy(from.len(), |at, range| user_memory::copy_out(at, &from[range]).is_ok())
    }

    /// Copies the program's memory at the cursor to `to`. Stops at the first fault, or at the end
    /// of `to` or of that memory. Advances the cursor. Returns the bytes copied.
    pub fn copy_in(&mut self, to: &mut [u8]) -> usize {
        self.copy(to.len(), |at, range| user_memory::copy_in(&mut to[range], at).is_ok())
    }

    /// Copies page by page, because a failed copy does not report how far it got.
    fn copy(&mut self, length: usize, mut copy: impl FnMut(UserAddress, core::ops::Range<usize>) -> bool) -> usize {
        let mut done = 0;
        while done < length {
            let Some(rest) = self.rest() else { break };
            let to_page_end = mapping::PAGE - width::size(rest.base) % mapping::PAGE;
            let step = to_page_end.min(length - done).min(width::size(rest.length));
            if !copy(UserAddress(rest.base), done..done + step) {
                break;
            }
            self.within += step as u64;
            done += step;
        }
        done
    }
}
