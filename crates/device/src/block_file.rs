//! A device as a file, for calls that wait for their answer: a program's plain
//! system calls, and what a ring leaves to a worker.
//!
//! What a device cannot do is done here: partial blocks (read, changed, written
//! back), memory that it cannot reach, transfers longer than one request. The
//! answers are those of a Linux block device (measured on a loop device, Linux
//! 6.18; [`Transfer`] has what is refused).
//!
//! # Waiting
//! A call waits as the device's policy says: it sleeps on the interrupt, spins,
//! or sleeps for blk-mq's half of the mean and spins then. As Linux's waits for a
//! disk, it cannot be interrupted: a handler of the program runs when the call is
//! done. A signal without a handler ends the process as ever, so a device that
//! never answers cannot keep it alive.
//!
//! # Concurrency
//! Each call has a queue pair to itself while it lasts, of at most sixteen; no
//! lock is held that a call on another queue pair needs, but one: two writes of
//! *parts* of one block take turns, so neither undoes the other. Not among them
//! are whole blocks, which go to the device without a look aside, and other
//! processes. So where a part of a block is written at the same time as the
//! whole, or from two processes, one of the two may be lost, also where they do
//! not overlap.

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

/// A view of a device; see the head of this file.
#[derive(Clone, Copy)]
pub struct BlockFile<'a> {
    device: &'a Device,
}

impl<'a> BlockFile<'a> {
    pub(crate) fn new(device: &'a Device) -> Self {
        BlockFile { device }
    }

    /// Reads; see [`BlockFile::transfer`].
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

    /// Writes; see [`BlockFile::transfer`].
    pub fn write(&self, offset: u64, segments: &[IoVector], direct: bool, durable: bool) -> Result<u64, Errno> {
        self.transfer(&Transfer { operation: Operation::Write, durable, registered: false, direct, offset, segments })
    }

    /// Reads or writes, and answers how many bytes; fewer than asked for at the
    /// device's end, behind 2 GiB, or before an error.
    ///
    /// Errors: what [`Transfer::route`] refuses; `EFAULT`; what the device
    /// answers (`EIO` and others).
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

    /// Some of what is left of a transfer: a part of a block, or as many whole
    /// blocks as go in one manner. Never answers 0.
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
            return self.part(caller, transfer, cursor, offset, left.min(block - within));
        }
        let whole =
            Whole { operation: transfer.operation, durable: transfer.durable, offset, length: left - left % block };
        match caller.straight(self.device, whole, transfer.registered, cursor) {
            // Some of the memory may be good: the bounce buffer's way finds out
            // how much.
            Ok(0) | Err(Errno::EFAULT) => self.bounced(caller, transfer, cursor, whole),
            other => other,
        }
    }

    /// Whole blocks, through memory of ours.
    fn bounced(
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
            return some(cursor.copy_out(&caller.bounce_memory()[..read as usize]));
        }
        let block = u64::from(self.device.geometry().block);
        let mut ahead = *cursor;
        let good = ahead.copy_in(&mut caller.bounce_memory()[..length as usize]) as u64;
        match good - good % block {
            0 if good == 0 || transfer.direct => Err(Errno::EFAULT),
            0 => self.part(caller, transfer, cursor, whole.offset, good),
            good => {
                let written = caller.bounce(self.device, Whole { length: good, ..whole })?;
                cursor.skip(written);
                Ok(written)
            }
        }
    }

    /// `length` bytes within one block.
    fn part(
        &self,
        caller: &mut Caller,
        transfer: &Transfer,
        cursor: &mut Cursor,
        offset: u64,
        length: u64,
    ) -> Result<u64, Errno> {
        let block = u64::from(self.device.geometry().block);
        let within = (offset % block) as usize;
        let part = within..within + length as usize;
        let read = Whole { operation: Operation::Read, durable: false, offset: offset - within as u64, length: block };
        let writes = transfer.operation == Operation::Write;
        let _turn = writes.then(|| self.device.callers().turn(offset / block));
        if caller.bounce(self.device, read)? < block {
            return Err(Errno::EIO);
        }
        let memory = &mut caller.bounce_memory()[part];
        if !writes {
            return some(cursor.copy_out(memory));
        }
        let changed = some(cursor.copy_in(memory))?;
        let write = Whole { operation: Operation::Write, durable: transfer.durable, ..read };
        if caller.bounce(self.device, write)? < block { Err(Errno::EIO) } else { Ok(changed) }
    }

    /// Makes durable what has been written.
    pub fn flush(&self) -> Result<(), Errno> {
        // What needs no flush is durable already.
        if self.device.geometry().features.flush { self.command(Operation::Flush, 0, 0) } else { Ok(()) }
    }

    /// The blocks' contents are no longer wanted (BLKDISCARD, and
    /// fallocate(2)'s punched hole where reading zeroes does not matter).
    ///
    /// Errors: `EOPNOTSUPP`, `EPERM`; `EINVAL` where it is empty, not on blocks,
    /// or not within the device.
    pub fn discard(&self, offset: u64, length: u64) -> Result<(), Errno> {
        if !self.device.geometry().features.discard {
            return Err(Errno::EOPNOTSUPP);
        }
        self.check_range(offset, length)?;
        self.command(Operation::Discard, offset, length)
    }

    /// The blocks read as zeroes from now on (BLKZEROOUT). A device that has no
    /// such request is written zeroes to, if `or_write` allows it.
    ///
    /// Errors: as [`BlockFile::discard`].
    pub fn write_zeroes(&self, offset: u64, length: u64, or_write: bool) -> Result<(), Errno> {
        let supported = self.device.geometry().features.write_zeroes;
        if !supported && !or_write {
            return Err(Errno::EOPNOTSUPP);
        }
        self.check_range(offset, length)?;
        if supported { self.command(Operation::WriteZeroes, offset, length) } else { self.write_zeros(offset, length) }
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
        caller.one(self.device, Whole { operation, durable: false, offset, length }, &[]).map(drop)
    }

    fn write_zeros(&self, offset: u64, length: u64) -> Result<(), Errno> {
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

/// What was copied from or to the program's memory.
fn some(copied: usize) -> Result<u64, Errno> {
    if copied == 0 { Err(Errno::EFAULT) } else { Ok(copied as u64) }
}
