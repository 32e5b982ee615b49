//! READ, WRITE, READV, WRITEV, each also on registered buffers (_FIXED).
//!
//! A transfer is first tried without blocking (RWF_NOWAIT). A file that is not ready is polled. A
//! regular file whose pages are not cached goes to a worker. A file that is open with O_DIRECT goes
//! to the kernel's AIO (`block_device`), because preadv2(2) would wait for the disk whatever the
//! flag says.

mod nothing;
mod selected;
mod work;

use self::nothing::move_nothing;
use self::selected::{return_buffer, select_buffer};
pub(crate) use self::work::work;
use super::Operation;
use super::block_device;
use super::vector;
use crate::device_file;
use crate::process::process;
use crate::registered::registered_files::RegisteredFile;
use crate::request::{Hold, Request};
use crate::ring::LockedRing;
use crate::submission::issue::{Answer, IssueOutcome};
use alloc::vec::Vec;
use usring_device::{DeviceRequest, NamedFile, OpenDevice, OpenMode, Operation as DeviceOperation, Transfer};
use usring_sys::plain::IoVector;
use usring_sys::syscall::PASS_MARK_ABOVE_FLAGS;
use usring_sys::{Errno, SystemCall, UserAddress, descriptor, epoll, file, signals, user_memory};
use usring_uapi::general as linux;
use usring_uapi::{opcode, sqe_flags};

/// The offset by which a program asks for the file's position.
const FILE_POSITION: u64 = u64::MAX;
/// Least alignment of direct I/O; a transfer with less is refused by the kernel.
const DIRECT_ALIGNMENT: u64 = 512;

/// RWF_* of Linux 6.18.
const KNOWN_FLAGS: u32 = 0x1ff;
/// RWF_* that any file takes: up to RWF_NOAPPEND.
const COMMON_FLAGS: u32 = 0x3f;
/// RWF_NOSIGNAL: no SIGPIPE, only EPIPE. From Linux 6.18 on.
const NO_SIGNAL: u32 = 0x100;
/// The level's bits in `ioprio`; there is no level without a class.
const PRIORITY_LEVEL_MASK: u16 = 7;
/// The class's place in `ioprio`, and the highest class (idle).
const PRIORITY_CLASS_SHIFT: u16 = 13;
const HIGHEST_PRIORITY_CLASS: u16 = 3;

/// A transfer under way.
pub(crate) struct ReadWrite {
    writes: bool,
    /// [`NO_SIGNAL`] was not asked for but added: see [`raise_nothing`].
    is_silenced: bool,
    /// Direct I/O on a file of the kernel's.
    is_direct: bool,
    /// Byte offset, or [`FILE_POSITION`].
    offset: u64,
    flags: u32,
    first: IoVector,
    /// All members, where there is not exactly one.
    vector: Option<Vec<IoVector>>,
    /// Bytes transferred so far.
    done: u64,
    /// Bytes asked for.
    total: u64,
    /// Bytes asked for, before a provided buffer set a bound.
    wanted: u64,
}

#[inline]
pub(crate) fn prepare(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = &request.sqe;
    let (class, level) = (sqe.ioprio >> PRIORITY_CLASS_SHIFT, sqe.ioprio & PRIORITY_LEVEL_MASK);
    if class > HIGHEST_PRIORITY_CLASS || class == 0 && level != 0 {
        return Err(Errno::EINVAL);
    }
    let is_vector = matches!(sqe.opcode, opcode::READV | opcode::WRITEV | opcode::READV_FIXED | opcode::WRITEV_FIXED);
    if is_vector {
        prepare_vector(request)?;
    } else {
        let first = IoVector { base: sqe.addr, length: u64::from(sqe.len).min(vector::TRANSFER_LIMIT) };
        begin(request, first, None, first.length);
    }
    if request.sqe.op_flags & linux::RWF_HIPRI != 0 && locked.ring.is_polled() {
        may_poll(request);
    }
    Ok(())
}

/// Removes RWF_HIPRI on a ring where everything polls: the flag has no meaning there.
#[cold]
fn may_poll(request: &mut Request) {
    if let Operation::ReadWrite(transfer) = &mut request.operation {
        transfer.flags &= !linux::RWF_HIPRI;
    }
}

#[inline(never)]
fn prepare_vector(request: &mut Request) -> Result<(), Errno> {
    let (mut first, mut members) = if is_vector_of_registered(&request.sqe) {
        (IoVector::default(), Some(vector::of_registered(&request.sqe)?))
    } else {
        read_vector(&request.sqe, request.has_flag(sqe_flags::BUFFER_SELECT))?
    };
    let total = vector::bound(members.as_deref_mut().unwrap_or(core::slice::from_mut(&mut first)));
    begin(request, first, members, total);
    Ok(())
}

#[inline(always)]
fn begin(request: &mut Request, first: IoVector, vector: Option<Vec<IoVector>>, total: u64) {
    let sqe = &request.sqe;
    let writes = matches!(sqe.opcode, opcode::WRITE | opcode::WRITEV | opcode::WRITE_FIXED | opcode::WRITEV_FIXED);
    let (offset, flags) = (sqe.off, sqe.op_flags);
    request.begin_operation(Operation::ReadWrite(ReadWrite {
        writes,
        is_silenced: false,
        is_direct: false,
        offset,
        flags,
        first,
        vector,
        done: 0,
        total,
        wanted: total,
    }));
}

type Vector = (IoVector, Option<Vec<IoVector>>);

fn is_vector_of_registered(sqe: &usring_uapi::Sqe) -> bool {
    matches!(sqe.opcode, opcode::READV_FIXED | opcode::WRITEV_FIXED)
}

/// Reads the program's vector, once: the program may reuse it when the call returns.
fn read_vector(sqe: &usring_uapi::Sqe, selects: bool) -> Result<Vector, Errno> {
    let address = UserAddress(sqe.addr);
    if selects && sqe.len != 1 || sqe.len > vector::LIMIT {
        return Err(Errno::EINVAL);
    }
    if sqe.len == 1 {
        let first: IoVector = user_memory::read(address)?;
        if first.length > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        // The length of a single member is bounded before its end is checked.
        return Ok((first, None));
    }
    let members = user_memory::read_array::<IoVector>(address, sqe.len as usize)?;
    vector::check(&members)?;
    Ok((IoVector::default(), Some(members)))
}

impl ReadWrite {
    /// Returns whether the transfer has a vector of its own.
    #[inline(always)]
    pub fn owns_memory(&self) -> bool {
        self.vector.is_some()
    }

    #[inline]
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// Begins again, for another result of a multishot.
    pub fn begin_again(&mut self) {
        self.done = 0;
    }

    /// Returns whether the program has asked for `EAGAIN` instead of a wait (RWF_NOWAIT).
    pub fn never_waits(&self) -> bool {
        self.flags & linux::RWF_NOWAIT != 0
    }

    /// Sets the offset to the file's position if the transfer is to begin there. The position does
    /// not move, as in the kernel: an asynchronous transfer has not ended when the call returns.
    #[inline]
    pub fn settle_position(&mut self, number: i32) -> Result<(), Errno> {
        if self.is_at_position() {
            self.offset = file::position(number)?;
        }
        Ok(())
    }

    /// Returns whether the transfer is direct I/O, which a worker makes because the kernel's AIO
    /// cannot.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    pub fn note_direct(&mut self) {
        self.is_direct = true;
    }

    /// Returns whether the transfer is at the file's position instead of an offset.
    #[inline]
    pub fn is_at_position(&self) -> bool {
        self.offset == FILE_POSITION
    }

    /// Returns the program's memory.
    #[inline]
    fn members(&self) -> &[IoVector] {
        self.vector.as_deref().unwrap_or(core::slice::from_ref(&self.first))
    }

    /// Returns the transfer as a device takes it.
    #[inline]
    pub fn on_device(&self, manner: OpenMode, registered: bool) -> Transfer<'_> {
        let operation = if self.writes { DeviceOperation::Write } else { DeviceOperation::Read };
        let durable = self.is_durable() || manner.is_durable();
        let direct = manner.is_direct();
        Transfer { operation, durable, registered, direct, offset: self.offset, segments: self.members() }
    }

    /// Returns whether a write has to be durable when it is done.
    #[inline]
    fn is_durable(&self) -> bool {
        self.flags & (linux::RWF_DSYNC | linux::RWF_SYNC) != 0
    }

    /// Makes the write durable by its own flag, whatever its file does.
    #[inline]
    pub fn make_durable(&mut self) {
        self.flags |= linux::RWF_DSYNC;
    }

    /// Returns the transfer as a queue pair takes it. `number`: descriptor of its file; `flags`:
    /// `RWF_*` beside its own.
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

    /// Returns the flags that the program asks for.
    fn asked_flags(&self) -> u32 {
        if self.is_silenced { self.flags & !NO_SIGNAL } else { self.flags }
    }

    /// Raises SIGPIPE for a write to a pipe without readers. The kernel has raised it in the thread
    /// that made the call, but usring's threads block it. So the process gets the signal, as it
    /// would from the thread that submitted the write.
    #[cold]
    fn signal_broken_pipe(&self) {
        if self.flags & NO_SIGNAL == 0 && process().attendant.is_current() {
            signals::send_to_process(linux::SIGPIPE);
        }
    }

    /// Ignores the offset on a stream, for which preadv2(2) refuses one. The offset is checked all
    /// the same, and a socket takes only 0.
    #[cold]
    fn forget_offset(&mut self, number: i32) -> Result<(), Errno> {
        if self.total != 0 && (self.offset as i64).checked_add(self.total as i64).is_none() {
            return Err(Errno::EINVAL);
        }
        if self.offset != 0 && descriptor::identity(number)?.is_socket() {
            return Err(Errno::ESPIPE);
        }
        self.offset = FILE_POSITION;
        Ok(())
    }

    /// Returns whether a result breaks a link: an error, or less than asked for.
    pub fn is_short(&self, result: i32) -> bool {
        result < 0 || (result as u64) < self.total
    }

    #[inline]
    fn answer(&self, result: i32) -> IssueOutcome {
        IssueOutcome::Done(Answer { result, failed: self.is_short(result) })
    }

    /// Makes the transfer on a device, and may block.
    fn on_block_file(&self, file: &OpenDevice, number: i32) -> i32 {
        let flags = self.flags & !linux::RWF_NOWAIT;
        let done = device_file::ring_transfer(file, number, self.writes, self.members(), self.offset, flags);
        done.map_or_else(Errno::negative, |bytes| bytes as i32)
    }

    /// Removes transferred bytes from the vector.
    fn advance(&mut self, bytes: u64) {
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

    /// Returns the preadv2(2) or pwritev2(2) for the rest.
    #[inline]
    fn call(&self, number: i32, extra_flags: u32) -> SystemCall {
        let members = self.members();
        let system_call = if self.writes { linux::__NR_pwritev2 } else { linux::__NR_preadv2 };
        // The kernel reads 32 bits of flags; the mark is above them.
        let flags = u64::from(self.flags | extra_flags) | PASS_MARK_ABOVE_FLAGS;
        // The offset is passed as two halves; on 64 bits the low one is all.
        let arguments = [number as u64, members.as_ptr() as u64, members.len() as u64, self.offset, 0, flags];
        SystemCall::with_six(system_call, arguments)
    }

    /// Returns the errno of a transfer with RWF_HIPRI on a ring that does not poll. The kernel
    /// checks the file and the other flags first.
    #[cold]
    #[inline(never)]
    fn refuse_to_poll(&self, number: i32) -> Errno {
        let forbidden = if self.writes { linux::O_RDONLY } else { linux::O_WRONLY };
        match descriptor::status_flags(number) {
            Err(error) => error,
            Ok(flags) if flags & linux::O_ACCMODE == forbidden => Errno::EBADF,
            Ok(_) if self.flags & !KNOWN_FLAGS != 0 => Errno::EOPNOTSUPP,
            Ok(_) => Errno::EINVAL,
        }
    }

    /// Returns the result if the next step ends with `error`.
    fn result(&self, error: Errno) -> i32 {
        if self.done > 0 { self.done as i32 } else { error.negative() }
    }
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    if request.has_flag(sqe_flags::BUFFER_SELECT) {
        return issue_selecting(locked, request);
    }
    if request.row.takes_of_ring
        && let Err(error) = hold_registered_buffer(locked, request)
    {
        return IssueOutcome::done(after_file(request, error).negative());
    }
    transfer(locked, request)
}

/// Issues a transfer with a buffer of the request's group.
#[inline(never)]
pub(super) fn issue_selecting(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    if request.buffer.is_none()
        && let Err(error) = select_buffer(locked, request)
    {
        return IssueOutcome::done(after_file(request, error).negative());
    }
    let outcome = transfer(locked, request);
    if request.buffer.is_some() {
        return_buffer(locked, request, &outcome);
    }
    if let Some(buffer) = &mut request.buffer {
        match &outcome {
            IssueOutcome::Done(answer) => locked.groups.used(buffer, answer.result.max(0) as u32),
            _ => locked.groups.used(buffer, buffer.length),
        }
    }
    outcome
}

#[inline(always)]
fn transfer(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    if block_device::is_possible(locked)
        && let Some(outcome) = block_device::issue(locked, request)
    {
        return outcome;
    }
    if may_be_direct(request)
        && let Some(file_system) = locked.direct_on(request)
    {
        return block_device::issue_direct(locked, request, file_system);
    }
    let number = request.file.number;
    let Operation::ReadWrite(transfer) = &mut request.operation else {
        return IssueOutcome::done(Errno::EINVAL.negative());
    };
    if transfer.flags & linux::RWF_HIPRI != 0 {
        return IssueOutcome::done(transfer.refuse_to_poll(number).negative());
    }
    match attempt(transfer, number, request.multishot) {
        IssueOutcome::WouldBlock => not_ready(locked, request),
        outcome => outcome,
    }
}

/// Returns the errno for a fault other than the file's: the kernel checks the file first.
#[cold]
pub(super) fn after_file(request: &Request, error: Errno) -> Errno {
    descriptor::status_flags(request.file.number).err().unwrap_or(error)
}

/// Has the transfer keep its registered buffer. If the buffer is taken out meanwhile, its tag is
/// posted only when the transfer is done.
fn hold_registered_buffer(locked: &LockedRing, request: &mut Request) -> Result<(), Errno> {
    if !request.fixed_buffer.is_any() {
        let sqe = &request.sqe;
        request.fixed_buffer = match &request.operation {
            Operation::ReadWrite(ReadWrite { vector: Some(members), .. }) => {
                locked.buffers.share_all(sqe.buf_index, members)?
            }
            _ => locked.buffers.share(sqe.buf_index, sqe.addr, u64::from(sqe.len))?,
        };
    }
    Ok(())
}

/// Returns whether a transfer would be direct I/O if its file is open with O_DIRECT: the submitting
/// thread would wait for the disk. The kernel refuses an unaligned one at once.
#[inline]
pub(crate) fn may_be_direct(request: &Request) -> bool {
    let Operation::ReadWrite(transfer) = &request.operation else { return false };
    let aligned = |value: u64| value.is_multiple_of(DIRECT_ALIGNMENT);
    let first = transfer.first;
    let has_place = transfer.is_at_position() || aligned(transfer.offset);
    transfer.flags & linux::RWF_HIPRI == 0
        && transfer.total != 0
        && (transfer.vector.is_some() || aligned(first.base) && aligned(first.length) && has_place)
}

#[inline(always)]
fn attempt(transfer: &mut ReadWrite, number: i32, multishot: bool) -> IssueOutcome {
    if transfer.total == 0 {
        return move_nothing(transfer, number);
    }
    let first = transfer.call(number, linux::RWF_NOWAIT).run();
    match first {
        Ok(bytes) if transfer.done + bytes == transfer.total => IssueOutcome::done(transfer.total as i32),
        _ => go_on(transfer, number, multishot, first),
    }
}

/// Moves a transfer on after an attempt that did not transfer all of it.
#[inline(never)]
fn go_on(transfer: &mut ReadWrite, number: i32, multishot: bool, mut attempted: Result<u64, Errno>) -> IssueOutcome {
    loop {
        match attempted {
            Ok(bytes) => {
                let whole = transfer.done + bytes >= transfer.total;
                if bytes == 0 || whole {
                    return transfer.answer((transfer.done + bytes) as i32);
                }
                transfer.advance(bytes);
                // A short read of a regular file may only mean that the rest is not cached. For any
                // other file it is the result.
                if !descriptor::identity(number).is_ok_and(|identity| identity.is_regular()) {
                    return transfer.answer(transfer.done as i32);
                }
            }
            Err(Errno::EAGAIN) if transfer.flags & linux::RWF_NOWAIT != 0 => {
                return transfer.answer(transfer.result(Errno::EAGAIN));
            }
            Err(Errno::EAGAIN) => return IssueOutcome::WouldBlock,
            // RWF_NOWAIT is not the cause, which would be a reason to wait.
            Err(Errno::EOPNOTSUPP) if is_refused_for_flags(transfer.asked_flags(), number) => {
                return transfer.answer(transfer.result(Errno::EOPNOTSUPP));
            }
            Err(Errno::EOPNOTSUPP) if transfer.flags & linux::RWF_NOWAIT == 0 => {
                return match without_nowait(transfer, number) {
                    // The file is ready, and no worker reads for a multishot.
                    IssueOutcome::NeedsWorker if multishot => {
                        IssueOutcome::of(transfer.call(number, 0).run().map(|bytes| bytes as i32))
                    }
                    outcome => outcome,
                };
            }
            Err(Errno::ESPIPE) if transfer.offset != FILE_POSITION => {
                if let Err(error) = transfer.forget_offset(number) {
                    return transfer.answer(error.negative());
                }
            }
            Err(error) => {
                if error == Errno::EPIPE {
                    transfer.signal_broken_pipe();
                }
                return transfer.answer(transfer.result(error));
            }
        }
        attempted = transfer.call(number, linux::RWF_NOWAIT).run();
    }
}

/// Returns whether flags are refused by every file that can be waited for: those of some file
/// systems, and unknown ones.
fn is_refused_for_flags(flags: u32, number: i32) -> bool {
    flags & !COMMON_FLAGS != 0 && descriptor::identity(number).is_ok_and(|identity| identity.can_wait())
}

/// Handles a file that is not ready. A worker waits for pages that are not cached; any other file
/// is polled. The kind of a file for which a request waits, or has waited, is known and need not be
/// looked up.
#[cold]
fn not_ready(locked: &LockedRing, request: &Request) -> IssueOutcome {
    if request.ready_for & epoll::PEER_HANG_UP != 0 {
        // A datagram socket that was shut down never reports more than that.
        return IssueOutcome::done(0);
    }
    let registered = || locked.files.get(request.sqe.fd as u32).is_some_and(RegisteredFile::has_been_waited_for);
    let known = match &request.file.hold {
        Hold::Shared(_) => true,
        Hold::Registered(file) => file.has_been_waited_for(),
        Hold::Submitter if request.has_flag(sqe_flags::FIXED_FILE) => registered(),
        _ => locked.polls.knows(request.file.number),
    };
    if known {
        return IssueOutcome::WouldBlock;
    }
    match descriptor::identity(request.file.number) {
        Ok(identity) if identity.is_stored() => IssueOutcome::NeedsWorker,
        _ => IssueOutcome::WouldBlock,
    }
}

/// Handles a file without RWF_NOWAIT. If it can be polled, it is polled first; only a thread that
/// may block touches it.
#[cold]
fn without_nowait(transfer: &ReadWrite, number: i32) -> IssueOutcome {
    let events = if transfer.writes { epoll::OUT } else { epoll::IN };
    match descriptor::identity(number) {
        Ok(identity) if identity.is_stored() => IssueOutcome::NeedsWorker,
        _ => match epoll::poll_now(number, events) {
            Ok(0) => IssueOutcome::WouldBlock,
            _ => IssueOutcome::NeedsWorker,
        },
    }
}

/// Has a write raise no SIGPIPE from now on: in the kernel a worker makes it, which takes no
/// signals. Where the kernel does not know the flag a worker of usring's makes the write.
#[cold]
pub(crate) fn raise_nothing(request: &mut Request) {
    if let Operation::ReadWrite(transfer) = &mut request.operation
        && transfer.writes
        && transfer.flags & NO_SIGNAL == 0
    {
        transfer.flags |= NO_SIGNAL;
        transfer.is_silenced = true;
    }
}
