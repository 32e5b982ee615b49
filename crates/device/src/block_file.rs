//! A device as a file, for calls that block until their transfer is done: a program's read(2) and
//! the like, and requests that a ring passes to a worker.
//!
//! This file supports what a device does not: partial blocks (read, modified, written back), memory
//! that the device must not access, and transfers longer than one request. The results are those of
//! a Linux block device (measured on a loop device, Linux 6.18). [`Transfer`] lists the refused
//! transfers.
//!
//! # Waiting
//! A call waits according to the device's policy: it sleeps on the interrupt, polls, or first
//! sleeps for a time and then polls. The policy fixes this time, or it is half of the mean latency
//! (as in blk-mq). No signal interrupts the wait, as in Linux's wait for a disk. A signal handler
//! of the program runs after the call. A signal without a handler still ends the process, even if
//! the device never answers.
//!
//! # Concurrency
//! - Each call uses a queue pair alone. A process has at most sixteen such queue pairs on a device.
//! - A lock serializes writes to *parts* of one block, so that no write overwrites the bytes of
//!   another write. Calls share no other lock.
//! - Writes of whole blocks do not take that lock, and other processes have locks of their own. So
//!   one of two concurrent writes may be lost in two cases. First, one writes part of a block, and
//!   the other writes the whole block. Second, two processes write to parts of one block, even to
//!   parts that do not overlap.

mod caller;
mod callers;
mod cursor;

pub(crate) use callers::Callers;

use crate::device::Device;
use crate::request::Operation;
use crate::transfer::Transfer;
use caller::{Caller, Whole};
use cursor::Cursor;
use usring_sys::Errno;
use usring_sys::plain::IoVector;
use usring_sys::width;

/// A device as a file, for calls that block until their transfer is done.
#[derive(Clone, Copy)]
pub struct BlockFile<'a> {
    device: &'a Device,
}

impl<'a> BlockFile<'a> {
    pub(crate) fn new(device: &'a Device) -> Self {
        BlockFile { device }
    }

    /// Reads into the segments; see [`BlockFile::transfer`].
    pub fn read(&self, offset: u64, segments: &[IoVector], direct: bool) -> Result<u64, Errno> {
        self.transfer(&Transfer {
            operation: Operation::Read,
            durable: false,
            registered: false,
            direct,
            offset,
            segments,
        })
    }

    /// Writes the content of the segments to the device; see [`BlockFile::transfer`]. `direct`: the
    /// file is open with O_DIRECT. `durable`: the data must be durable when the call returns.
    pub fn write(&self, offset: u64, segments: &[IoVector], direct: bool, durable: bool) -> Result<u64, Errno> {
        self.transfer(&Transfer { operation: Operation::Write, durable, registered: false, direct, offset, segments })
    }

    /// Reads or writes, and returns the number of bytes. The number is smaller than requested if
    /// the transfer crosses the device's end, is longer than 2 GiB, or meets an error after its
    /// first byte.
    ///
    /// Errors: those of [`Transfer::route`]; `EFAULT`; the device's errors (`EIO` and others).
    pub fn transfer(&self, transfer: &Transfer) -> Result<u64, Errno> {
        let length = transfer.check(self.device.geometry())?;
        if length == 0 {
            return Ok(0);
        }
        let mut caller = self.device.callers().take(self.device)?;
        let mut cursor = Cursor::new(transfer.segments);
        let mut done = 0;
        while done < length {
            match self.step(&mut caller, transfer, &mut cursor, transfer.offset + done, length - done) {
                Ok(bytes) => done += bytes,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Transfers some of the transfer's remaining bytes: a part of one block, or whole blocks.
    /// Returns the number of bytes transferred, at least 1.
    fn step(
        &self,
        caller: &mut Caller,
        transfer: &Transfer,
        cursor: &mut Cursor,
        offset: u64,
        left: u64,
    ) -> Result<u64, Errno> {
        let block = u64::from(self.device.geometry().block);
        let within = offset % block;
        if within != 0 || left < block {
            return self.transfer_within_block(caller, transfer, cursor, offset, left.min(block - within));
        }
        let whole =
            Whole { operation: transfer.operation, durable: transfer.durable, offset, length: left - left % block };
        match caller.transfer_directly(self.device, whole, transfer.registered, cursor) {
            // Nothing was transferred, for one of two reasons: the device must not access this part
            // of the program's memory, or some addresses are invalid. The bounce buffer then
            // transfers the bytes before the first invalid address.
            Ok(0) | Err(Errno::EFAULT) => self.transfer_by_bounce(caller, transfer, cursor, whole),
            other => other,
        }
    }

    /// Transfers whole blocks through the bounce buffer.
    fn transfer_by_bounce(
        &self,
        caller: &mut Caller,
        transfer: &Transfer,
        cursor: &mut Cursor,
        whole: Whole,
    ) -> Result<u64, Errno> {
        let length = whole.length.min(caller.bounce_length(self.device));
        let whole = Whole { length, ..whole };
        if whole.operation == Operation::Read {
            let read = caller.bounce(self.device, whole)?;
            return copied_or_fault(cursor.copy_out(&caller.bounce_memory()[..width::size(read)]));
        }
        let block = u64::from(self.device.geometry().block);
        let mut ahead = *cursor;
        let good = ahead.copy_in(&mut caller.bounce_memory()[..width::size(length)]) as u64;
        match good - good % block {
            0 if good == 0 || transfer.direct => Err(Errno::EFAULT),
            0 => self.transfer_within_block(caller, transfer, cursor, whole.offset, good),
            good => {
                let written = caller.bounce(self.device, Whole { length: good, ..whole })?;
                cursor.skip(written);
                Ok(written)
            }
        }
    }

    /// Transfers `length` bytes within one block.
    fn transfer_within_block(
        &self,
        caller: &mut Caller,
        transfer: &Transfer,
        cursor: &mut Cursor,
        offset: u64,
        length: u64,
    ) -> Result<u64, Errno> {
        let block = u64::from(self.device.geometry().block);
        let within = width::size(offset % block);
        let part = within..within + width::size(length);
        let read = Whole { operation: Operation::Read, durable: false, offset: offset - within as u64, length: block };
        let writes = transfer.operation == Operation::Write;
        let _turn = writes.then(|| self.device.callers().lock_block(offset / block));
        if caller.bounce(self.device, read)? < block {
            return Err(Errno::EIO);
        }
        let memory = &mut caller.bounce_memory()[part];
        if !writes {
            return copied_or_fault(cursor.copy_out(memory));
        }
        let changed = copied_or_fault(cursor.copy_in(memory))?;
        let write = Whole { operation: Operation::Write, durable: transfer.durable, ..read };
        if caller.bounce(self.device, write)? < block { Err(Errno::EIO) } else { Ok(changed) }
    }

    /// Makes all written data durable.
    pub fn flush(&self) -> Result<(), Errno> {
        // Without a volatile cache, written data is durable already.
        if self.device.geometry().features.flush { self.command(Operation::Flush, 0, 0) } else { Ok(()) }
    }

    /// Discards the contents of blocks (BLKDISCARD; also fallocate(2) with FALLOC_FL_PUNCH_HOLE, if
    /// the blocks need not read as zeroes).
    ///
    /// Errors: `EOPNOTSUPP` if the device cannot discard; `EPERM` if it is read-only; `EINVAL` if
    /// the range is empty, not aligned to blocks, or not within the device.
    pub fn discard(&self, offset: u64, length: u64) -> Result<(), Errno> {
        if !self.device.geometry().features.discard {
            return Err(Errno::EOPNOTSUPP);
        }
        self.check_range(offset, length)?;
        self.command(Operation::Discard, offset, length)
    }

    /// Makes blocks read as zeroes (BLKZEROOUT). If the device has no such operation, the function
    /// writes zeroes, provided that `or_write` is set.
    ///
    /// Errors: `EOPNOTSUPP` without the operation and without `or_write`; `EPERM` if the device is
    /// read-only; `EINVAL` if the range is empty, not aligned to blocks, or not within the device.
    pub fn write_zeroes(&self, offset: u64, length: u64, or_write: bool) -> Result<(), Errno> {
        let supported = self.device.geometry().features.write_zeroes;
        if !supported && !or_write {
            return Err(Errno::EOPNOTSUPP);
        }
        self.check_range(offset, length)?;
        if supported {
            self.command(Operation::WriteZeroes, offset, length)
        } else {
            self.write_zero_bytes(offset, length)
        }
    }

    fn check_range(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let geometry = self.device.geometry();
        if geometry.features.read_only {
            return Err(Errno::EPERM);
        }
        let within = length != 0 && offset.checked_add(length).is_some_and(|end| end <= geometry.size);
        if within && geometry.is_aligned(offset, length) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn command(&self, operation: Operation, offset: u64, length: u64) -> Result<(), Errno> {
        let mut caller = self.device.callers().take(self.device)?;
        caller.run_request(self.device, Whole { operation, durable: false, offset, length }, &[]).map(drop)
    }

    fn write_zero_bytes(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let mut caller = self.device.callers().take(self.device)?;
        let most = caller.bounce_length(self.device);
        caller.bounce_memory().fill(0);
        let mut done = 0;
        while done < length {
            let length = most.min(length - done);
            let whole = Whole { operation: Operation::Write, durable: false, offset: offset + done, length };
            done += caller.bounce(self.device, whole)?;
        }
        Ok(())
    }
}

/// Returns `copied`, the number of bytes that a step has copied from or to the program's memory.
/// Error: `EFAULT` if the step has copied no byte.
fn copied_or_fault(copied: usize) -> Result<u64, Errno> {
    if copied == 0 { Err(Errno::EFAULT) } else { Ok(copied as u64) }
}
