//! READ, WRITE, READV, WRITEV, and their variants with registered buffers (_FIXED).
//!
//! A transfer is first tried without blocking (RWF_NOWAIT). If the transfer would block:
//!
//! - A file that can be polled is polled.
//! - On a regular file whose pages are not cached, a worker makes the transfer.
//!
//! On a file with O_DIRECT, preadv2(2) would wait for the disk even with RWF_NOWAIT. So the
//! kernel's AIO makes the transfer (`block_device`).

mod nothing;
mod selected;
mod work;

use self::nothing::{move_nothing, signal_broken_pipe};
use self::selected::{return_buffer, select_buffer};
pub(crate) use self::work::work;
use super::block_device;
use crate::registered::registered_files::RegisteredFile;
use crate::request::Request;
use crate::request::file::FileReference;
use crate::request::operation::read_write::{FILE_POSITION, ReadWrite};
use crate::request::operation::{Operation, vector};
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use alloc::vec::Vec;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, descriptor, epoll, user_memory, width};
use usring_uapi::general as linux;
use usring_uapi::{opcode, sqe_flags};

/// The RWF_* flags that every file accepts: all flags up to RWF_NOAPPEND.
const COMMON_FLAGS: u32 = 0x3f;
/// The bits of `ioprio` with the priority level. A level other than 0 needs a class.
const PRIORITY_LEVEL_MASK: u16 = 7;
/// The bit where the priority class begins in `ioprio`, and the highest class (idle).
const PRIORITY_CLASS_SHIFT: u16 = 13;
const HIGHEST_PRIORITY_CLASS: u16 = 3;

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
        remove_high_priority(request);
    }
    Ok(())
}

/// Removes RWF_HIPRI, which has no effect on a ring with IOPOLL.
#[cold]
fn remove_high_priority(request: &mut Request) {
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
    let total = vector::limit_total(members.as_deref_mut().unwrap_or(core::slice::from_mut(&mut first)));
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
        suppresses_sigpipe: false,
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

/// Reads the program's vector now, because the program may reuse the vector's memory when its call
/// returns. A vector of one member is returned as that member. `selects`: the request has
/// BUFFER_SELECT, so the vector must have one member, which gives the length.
fn read_vector(sqe: &usring_uapi::Sqe, selects: bool) -> Result<Vector, Errno> {
    let address = UserAddress(sqe.addr);
    if selects && sqe.len != 1 || sqe.len > linux::UIO_MAXIOV {
        return Err(Errno::EINVAL);
    }
    if sqe.len == 1 {
        let first: IoVector = user_memory::read(address)?;
        if first.length > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        // The caller shortens a single member before its end is checked.
        return Ok((first, None));
    }
    let members = user_memory::read_array::<IoVector>(address, sqe.len as usize)?;
    vector::check(&members)?;
    Ok((IoVector::default(), Some(members)))
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    if request.has_flag(sqe_flags::BUFFER_SELECT) {
        return issue_selecting(locked, request);
    }
    if request.properties.needs_ring_at_issue
        && let Err(error) = hold_registered_buffer(locked, request)
    {
        return IssueOutcome::done(after_file(request, error).negative());
    }
    transfer(locked, request)
}

/// Issues a transfer that uses a provided buffer, and takes the buffer first.
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
            IssueOutcome::Done(answer) => {
                locked.registered.buffer_groups.used(buffer, answer.result.max(0).cast_unsigned())
            }
            _ => locked.registered.buffer_groups.used(buffer, buffer.length),
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
    if request.may_be_direct()
        && let Some(file_system) = block_device::direct_on(locked, request)
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

/// Returns `EBADF` if the request's file is not open, else `error`: the kernel checks the file
/// first.
#[cold]
pub(super) fn after_file(request: &Request, error: Errno) -> Errno {
    descriptor::status_flags(request.file.number).err().unwrap_or(error)
}

/// Makes the request hold its registered buffer until the transfer completes. If the program
/// unregisters the buffer before that, the CQE with the buffer's tag waits for the transfer.
pub(crate) fn hold_registered_buffer(locked: &LockedRing, request: &mut Request) -> Result<(), Errno> {
    if !request.fixed_buffer.is_any() {
        let sqe = &request.sqe;
        request.fixed_buffer = match &request.operation {
            Operation::ReadWrite(ReadWrite { vector: Some(members), .. }) => {
                locked.registered.buffers.share_all(sqe.buf_index, members)?
            }
            _ => locked.registered.buffers.share(sqe.buf_index, sqe.addr, u64::from(sqe.len))?,
        };
    }
    Ok(())
}

#[inline(always)]
fn attempt(transfer: &mut ReadWrite, number: i32, multishot: bool) -> IssueOutcome {
    if transfer.total == 0 {
        return move_nothing(transfer, number);
    }
    let first = transfer.call(number, linux::RWF_NOWAIT).run();
    match first {
        Ok(bytes) if transfer.done + bytes == transfer.total => IssueOutcome::done(width::int(transfer.total)),
        _ => continue_transfer(transfer, number, multishot, first),
    }
}

/// Continues a transfer after a call that returned `attempted`: an error, or fewer bytes than
/// wanted.
#[inline(never)]
fn continue_transfer(
    transfer: &mut ReadWrite,
    number: i32,
    multishot: bool,
    mut attempted: Result<u64, Errno>,
) -> IssueOutcome {
    loop {
        match attempted {
            Ok(bytes) => {
                let whole = transfer.done + bytes >= transfer.total;
                if bytes == 0 || whole {
                    return transfer.answer(width::int(transfer.done + bytes));
                }
                transfer.advance(bytes);
                // A short read of a regular file may only mean that the next pages are not cached.
                // For any other file, the short length is the result.
                if !descriptor::identity(number).is_ok_and(|identity| identity.is_regular()) {
                    return transfer.answer(width::int(transfer.done));
                }
            }
            Err(Errno::EAGAIN) if transfer.flags & linux::RWF_NOWAIT != 0 => {
                return transfer.answer(transfer.result(Errno::EAGAIN));
            }
            Err(Errno::EAGAIN) => return IssueOutcome::WouldBlock,
            // The file refuses a flag that the program set. If the file refuses only RWF_NOWAIT,
            // which usring added, the next branch makes the transfer without that flag.
            Err(Errno::EOPNOTSUPP) if is_refused_for_flags(transfer.asked_flags(), number) => {
                return transfer.answer(transfer.result(Errno::EOPNOTSUPP));
            }
            Err(Errno::EOPNOTSUPP) if transfer.flags & linux::RWF_NOWAIT == 0 => {
                return match without_nowait(transfer, number) {
                    // The file is ready. Workers do not read for multishots, so this thread reads,
                    // without RWF_NOWAIT.
                    IssueOutcome::NeedsWorker if multishot => {
                        IssueOutcome::of(transfer.call(number, 0).run().map(width::int))
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
                    signal_broken_pipe(transfer);
                }
                return transfer.answer(transfer.result(error));
            }
        }
        attempted = transfer.call(number, linux::RWF_NOWAIT).run();
    }
}

/// Called after EOPNOTSUPP. Returns whether the file has refused one of the program's `flags`, and
/// not only RWF_NOWAIT. A file that can be polled refuses each flag that is not in
/// [`COMMON_FLAGS`].
fn is_refused_for_flags(flags: u32, number: i32) -> bool {
    flags & !COMMON_FLAGS != 0 && descriptor::identity(number).is_ok_and(|identity| identity.can_wait())
}

/// Returns the outcome of a transfer whose file is not ready. On a regular file, a worker waits for
/// the pages. Any other file is polled. If a request has polled the file before, the kind of the
/// file need not be looked up.
#[cold]
fn not_ready(locked: &LockedRing, request: &Request) -> IssueOutcome {
    if request.ready_for & epoll::PEER_HANG_UP != 0 {
        // A datagram socket that was shut down reports the end of data only to a read that may
        // wait. This read may not wait, so it completes with 0 here.
        return IssueOutcome::done(0);
    }
    let registered =
        || locked.registered.files.get(request.sqe.fd.cast_unsigned()).is_some_and(RegisteredFile::has_been_waited_for);
    let known = match &request.file.reference {
        FileReference::WaitDuplicate(_) => true,
        FileReference::Registered(file) => file.has_been_waited_for(),
        FileReference::Submitter if request.has_flag(sqe_flags::FIXED_FILE) => registered(),
        _ => locked.waiting.polls.knows(request.file.number),
    };
    if known {
        return IssueOutcome::WouldBlock;
    }
    match descriptor::identity(request.file.number) {
        Ok(identity) if identity.is_stored() => IssueOutcome::NeedsWorker,
        _ => IssueOutcome::WouldBlock,
    }
}

/// Returns the outcome of a transfer on a file that does not support RWF_NOWAIT. If the file is
/// ready, a worker makes the transfer, which may block. Otherwise the file is polled first.
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
