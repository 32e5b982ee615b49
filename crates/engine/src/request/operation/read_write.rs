//! The transfer of a READ, WRITE or one of their variants: its memory and its progress.
//! `op::read_write` carries it out.

use crate::device_file;
use crate::request::outcome::{Answer, IssueOutcome};
use alloc::vec::Vec;
use usring_device::{DeviceRequest, NamedFile, OpenDevice, OpenMode, Operation as DeviceOperation, Transfer};
use usring_sys::plain::IoVector;
use usring_sys::syscall::PASS_MARK_ABOVE_FLAGS;
use usring_sys::{Errno, SystemCall, descriptor, file, width};
use usring_uapi::general as linux;

/// The RWF_* flags that Linux 6.18 knows.
pub(crate) const KNOWN_FLAGS: u32 = 0x1ff;
/// RWF_NOSIGNAL (from Linux 6.18 on): a write to a closed pipe or socket fails with EPIPE but
/// raises no SIGPIPE.
pub(crate) const NO_SIGNAL: u32 = 0x100;
/// Value of the SQE's `off` that means the file position.
pub(crate) const FILE_POSITION: u64 = u64::MAX;

/// Least alignment of direct I/O, in bytes. The kernel refuses a transfer that is aligned less.
const DIRECT_ALIGNMENT: u64 = 512;

/// The state of a READ, WRITE or variant.
pub(crate) struct ReadWrite {
    pub writes: bool,
    /// usring, and not the program, set [`NO_SIGNAL`]: see [`ReadWrite::suppress_sigpipe`].
    pub suppresses_sigpipe: bool,
    /// The transfer is direct I/O on an ordinary file.
    pub is_direct: bool,
    /// Byte offset of the bytes still to be transferred, or [`FILE_POSITION`].
    pub offset: u64,
    pub flags: u32,
    pub first: IoVector,
    /// All members of the vector; `None` if the vector has one member, which is `first`.
    pub vector: Option<Vec<IoVector>>,
    /// Bytes transferred so far.
    pub done: u64,
    /// Bytes of the whole transfer.
    pub total: u64,
    /// Limit of a buffer selection, in bytes: the length that the SQE asks for, or the length of a
    /// buffer that the request has selected before.
    pub wanted: u64,
}

impl ReadWrite {
    /// Returns whether the transfer owns a vector on the heap.
    #[inline(always)]
    pub fn owns_memory(&self) -> bool {
        self.vector.is_some()
    }

    #[inline]
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// Resets the progress, for the next result of a multishot.
    pub fn begin_again(&mut self) {
        self.done = 0;
    }

    /// Returns whether the program wants `EAGAIN` instead of a wait (RWF_NOWAIT).
    pub fn never_waits(&self) -> bool {
        self.flags & linux::RWF_NOWAIT != 0
    }

    /// If the transfer is at the file position, sets `offset` to that position. The file position
    /// itself does not move. The kernel moves the file position only for a transfer that completes
    /// before the program's call returns, and this transfer is asynchronous.
    #[inline]
    pub fn fix_position(&mut self, number: i32) -> Result<(), Errno> {
        if self.is_at_position() {
            self.offset = file::position(number)?;
        }
        Ok(())
    }

    /// Returns whether the transfer is direct I/O on an ordinary file.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    pub fn note_direct(&mut self) {
        self.is_direct = true;
    }

    /// Returns whether the transfer is at the file position, not at an offset.
    #[inline]
    pub fn is_at_position(&self) -> bool {
        self.offset == FILE_POSITION
    }

    /// Returns the program's memory that is still to be transferred.
    #[inline]
    pub fn members(&self) -> &[IoVector] {
        self.vector.as_deref().unwrap_or(core::slice::from_ref(&self.first))
    }

    /// Returns the transfer in the form that a device takes. `mode`: how the device's file was
    /// opened. `registered`: the memory is registered.
    #[inline]
    pub fn on_device(&self, mode: OpenMode, registered: bool) -> Transfer<'_> {
        let operation = if self.writes { DeviceOperation::Write } else { DeviceOperation::Read };
        let durable = self.is_durable() || mode.is_durable();
        let direct = mode.is_direct();
        Transfer { operation, durable, registered, direct, offset: self.offset, segments: self.members() }
    }

    /// Returns whether the flags of a write request demand that the data is durable when the
    /// request completes.
    #[inline]
    pub fn is_durable(&self) -> bool {
        self.flags & (linux::RWF_DSYNC | linux::RWF_SYNC) != 0
    }

    /// Adds RWF_DSYNC, so that the write is durable even if its file is not open with O_DSYNC.
    #[inline]
    pub fn make_durable(&mut self) {
        self.flags |= linux::RWF_DSYNC;
    }

    /// Returns the transfer as a queue pair takes it. `token` identifies the request in the
    /// device's completion. `registered`: the memory is registered. `number`: descriptor number of
    /// the file. `flags`: `RWF_*` flags to add.
    #[inline]
    pub fn as_device_request(&self, token: u32, registered: bool, number: i32, flags: u32) -> DeviceRequest<'_> {
        DeviceRequest {
            token,
            operation: if self.writes { DeviceOperation::Write } else { DeviceOperation::Read },
            durable: self.is_durable(),
            registered,
            offset: self.offset,
            length: self.total,
            segments: self.members(),
            file: NamedFile { number, flags: self.flags | flags },
        }
    }

    /// Returns the `RWF_*` flags that the program set, without those that usring has added.
    pub fn asked_flags(&self) -> u32 {
        if self.suppresses_sigpipe { self.flags & !NO_SIGNAL } else { self.flags }
    }

    /// Replaces the offset of a transfer on a stream by the file position, because preadv2(2)
    /// refuses any other offset on a stream. Errors are the kernel's: `EINVAL` if offset plus
    /// length overflows; `ESPIPE` for a socket if the offset is not 0.
    #[cold]
    pub fn forget_offset(&mut self, number: i32) -> Result<(), Errno> {
        if self.total != 0 && self.offset.cast_signed().checked_add(self.total.cast_signed()).is_none() {
            return Err(Errno::EINVAL);
        }
        if self.offset != 0 && descriptor::identity(number)?.is_socket() {
            return Err(Errno::ESPIPE);
        }
        self.offset = FILE_POSITION;
        Ok(())
    }

    /// Returns whether a result breaks a link: it is an error, or fewer bytes than `total`.
    pub fn is_short(&self, result: i32) -> bool {
        result < 0 || width::word(result) < self.total
    }

    #[inline]
    pub fn answer(&self, result: i32) -> IssueOutcome {
        IssueOutcome::Done(Answer { result, failed: self.is_short(result) })
    }

    /// Carries out the transfer on a device of usring's, outside the queue pairs. May block.
    pub fn on_block_file(&self, file: &OpenDevice, number: i32) -> i32 {
        let flags = self.flags & !linux::RWF_NOWAIT;
        let done = device_file::ring_transfer(file, number, self.writes, self.members(), self.offset, flags);
        done.map_or_else(Errno::negative, width::int)
    }

    /// Advances the transfer by `bytes` bytes: the offset, and the front of the vector.
    pub fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        if self.offset != FILE_POSITION {
            self.offset += bytes;
        }
        let mut left = bytes;
        let members = self.vector.as_deref_mut().unwrap_or(core::slice::from_mut(&mut self.first));
        for member in members {
            let step = member.length.min(left);
            member.base += step;
            member.length -= step;
            left -= step;
        }
    }

    /// Returns the preadv2(2) or pwritev2(2) call for the bytes that are still to be transferred.
    #[inline]
    pub fn call(&self, number: i32, extra_flags: u32) -> SystemCall {
        let members = self.members();
        let system_call = if self.writes { linux::__NR_pwritev2 } else { linux::__NR_preadv2 };
        // The kernel reads only the lower 32 bits of the flags. The bits above them carry the mark
        // by which usring's seccomp filter lets the call pass.
        let flags = u64::from(self.flags | extra_flags) | PASS_MARK_ABOVE_FLAGS;
        // The kernel takes the offset in two halves. On a 64-bit machine, the low half is the whole
        // offset.
        let arguments = [width::word(number), members.as_ptr() as u64, members.len() as u64, self.offset, 0, flags];
        SystemCall::with_six(system_call, arguments)
    }

    /// Returns the errno of a transfer with RWF_HIPRI on a ring without IOPOLL. The kernel checks
    /// the file and the other flags before it refuses RWF_HIPRI.
    #[cold]
    #[inline(never)]
    pub fn refuse_to_poll(&self, number: i32) -> Errno {
        let forbidden = if self.writes { linux::O_RDONLY } else { linux::O_WRONLY };
        match descriptor::status_flags(number) {
            Err(error) => error,
            Ok(flags) if flags & linux::O_ACCMODE == forbidden => Errno::EBADF,
            Ok(_) if self.flags & !KNOWN_FLAGS != 0 => Errno::EOPNOTSUPP,
            Ok(_) => Errno::EINVAL,
        }
    }

    /// Returns the result of a request that now fails with `error`: the bytes transferred so far,
    /// or the error if there are none.
    pub fn result(&self, error: Errno) -> i32 {
        if self.done > 0 { width::int(self.done) } else { error.negative() }
    }

    /// Makes the writes of this request raise no SIGPIPE. Does nothing for a read.
    pub fn suppress_sigpipe(&mut self) {
        if self.writes && self.flags & NO_SIGNAL == 0 {
            self.flags |= NO_SIGNAL;
            self.suppresses_sigpipe = true;
        }
    }

    /// Returns whether the transfer would be direct I/O on a file with O_DIRECT. The thread that
    /// makes such a transfer waits for the disk. An unaligned transfer from or to one buffer does
    /// not count: the kernel refuses it at once.
    #[inline]
    pub fn may_be_direct(&self) -> bool {
        let aligned = |value: u64| value.is_multiple_of(DIRECT_ALIGNMENT);
        let first = self.first;
        let has_place = self.is_at_position() || aligned(self.offset);
        self.flags & linux::RWF_HIPRI == 0
            && self.total != 0
            && (self.vector.is_some() || aligned(first.base) && aligned(first.length) && has_place)
    }
}
