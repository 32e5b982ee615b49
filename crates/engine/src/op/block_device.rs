//! READ, WRITE and their variants on a block device of usring's. The program uses the SQEs that it
//! would use for any other file, but a queue pair of the device carries the transfers out.
//!
//! Transfers of whole blocks within the device go to the ring's channel to the device (a queue
//! pair). All others (parts of blocks, transfers at the file position) go to a worker, which may
//! block.
//!
//! One more device stands for all ordinary files. It uses the kernel's AIO. A ring gives this
//! device the transfers on files that are open with O_DIRECT. An AIO context also gives it all
//! writes.

use super::named_files::NamedFiles;
use crate::registered::registered_files::RegisteredFiles;
use crate::request::Request;
use crate::request::file::{FileReference, FileUse};
use crate::request::operation::Operation;
use crate::request::outcome::{ChannelIndex, IssueOutcome};
use crate::ring::{Devices, LockedRing, Registered, RingState};
use crate::{devices, host};
use alloc::sync::Arc;
use usring_device::{OpenDevice, Route};
use usring_sys::unusual::{self, Unusual};
use usring_sys::{Errno, descriptor, pinned_memory};
use usring_uapi::general::O_DIRECT;
use usring_uapi::{Sqe, general as linux, sqe_flags};

/// Returns whether [`issue`] may handle a transfer of this ring: the run has a device, or the ring
/// has IOPOLL or uses kernel AIO. Called for every READ and WRITE.
#[inline(always)]
pub(crate) fn is_possible(locked: &LockedRing) -> bool {
    devices::are_any() || locked.ring.is_polled() || locked.ring.uses_kernel_aio()
}

/// Returns whether the request is a transfer that [`issue`] carries out or refuses: its file is a
/// device, or the ring has IOPOLL.
pub(crate) fn concerns(locked: &mut LockedRing, request: &Request) -> bool {
    let ring = locked.ring;
    let RingState { registered: Registered { files, .. }, devices: Devices { named, .. }, .. } = &mut **locked;
    let is_transfer = matches!(request.operation, Operation::ReadWrite(_));
    is_transfer && (ring.is_polled() || find(files, named, &request.file, &request.sqe).is_some())
}

/// Returns the device of usring's that a request's file stands for, if any.
#[inline]
fn find<'a>(
    files: &'a RegisteredFiles,
    named: &'a mut NamedFiles,
    file: &'a FileUse,
    sqe: &Sqe,
) -> Option<&'a Arc<OpenDevice>> {
    match &file.reference {
        _ if file.device.is_some() => file.device.as_ref(),
        FileReference::Registered(file) => file.device(),
        _ if sqe.flags & sqe_flags::FIXED_FILE != 0 => files.get(sqe.fd.cast_unsigned())?.device(),
        _ => named.device(file.number, host::device_of),
    }
}

/// Issues a transfer if its file is a device of usring's, or if it is an AIO context's transfer
/// that the kernel's AIO can make. On a ring with IOPOLL, refuses a transfer on any other file.
/// `None`: the caller has to issue the transfer.
#[inline(always)]
pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    let ring = locked.ring;
    let RingState { registered: Registered { files, .. }, devices: Devices { named, queues: devices, .. }, .. } =
        &mut **locked;
    let number = request.file.number;
    let file = find(files, named, &request.file, &request.sqe);
    let Operation::ReadWrite(transfer) = &mut request.operation else { return None };
    let Some(file) = file else {
        let writes = transfer.writes();
        return match channel_to_kernel_file(locked, number, writes) {
            Ok(index) => Some(IssueOutcome::OnDevice(index)),
            Err(_) => ring.is_polled().then(|| refuse_on_polled_ring(number, writes)),
        };
    };
    let mode = file.mode();
    let allowed = if transfer.writes() { mode.may_write() } else { mode.may_read() };
    if !allowed {
        return Some(IssueOutcome::done(Errno::EBADF.negative()));
    }
    if ring.is_polled() {
        let polled = if mode.is_direct() { file.device().check_polled() } else { Err(Errno::EOPNOTSUPP) };
        if let Err(error) = polled {
            return Some(IssueOutcome::done(error.negative()));
        }
    }
    let way = match transfer.is_at_position() {
        true => Route::BlockFile,
        false => transfer.on_device(mode, request.fixed_buffer.is_any()).route(file.device().geometry()),
    };
    let outcome = match way {
        Route::QueuePair { .. } => match devices.channel(ring, file.device()) {
            Ok(index) => {
                if mode.is_durable() {
                    transfer.make_durable();
                }
                IssueOutcome::OnDevice(index)
            }
            Err(error) => IssueOutcome::done(error.negative()),
        },
        Route::Nothing => IssueOutcome::done(0),
        Route::Refused(error) => IssueOutcome::done(error.negative()),
        Route::BlockFile => {
            request.file.device = Some(file.clone());
            IssueOutcome::NeedsWorker
        }
    };
    Some(outcome)
}

/// Records the device of usring's, if any, that the file of a request stands for, before the
/// request goes to a worker.
pub(crate) fn note(locked: &mut LockedRing, request: &mut Request) {
    let RingState { registered: Registered { files, .. }, devices: Devices { named, .. }, .. } = &mut **locked;
    if devices::are_any() && request.file.device.is_none() {
        request.file.device = find(files, named, &request.file, &request.sqe).cloned();
    }
}

/// Issues a transfer on an ordinary file with O_DIRECT: by the kernel's AIO if it is available,
/// else by a worker. `file_system`: the file's `st_dev` (fstat(2)).
#[inline]
pub(crate) fn issue_direct(locked: &mut LockedRing, request: &mut Request, file_system: u64) -> IssueOutcome {
    let ring = locked.ring;
    if let Operation::ReadWrite(transfer) = &mut request.operation {
        transfer.note_direct();
    }
    if fix_position(request).is_err()
        || locked.devices.named.lacks_nowait(file_system)
        || pinned_memory::has_pin_hook()
        || unusual::has(Unusual::Recording)
    {
        return IssueOutcome::NeedsWorker;
    }
    let Ok(index) = locked.devices.queues.channel_to_kernel_files(ring) else {
        return IssueOutcome::NeedsWorker;
    };
    match keep_for_deferred_submit(locked, request) {
        Ok(()) => IssueOutcome::OnDevice(index),
        Err(error) => IssueOutcome::done(error.negative()),
    }
}

/// Called before a request with IOSQE_ASYNC goes to a worker. If the request is a direct transfer
/// at the file position, reads that position now and makes it the transfer's offset.
pub(crate) fn fix_position_if_direct(locked: &mut LockedRing, request: &mut Request) {
    let is_at_position = matches!(&request.operation, Operation::ReadWrite(transfer) if transfer.is_at_position());
    if is_at_position && request.may_be_direct() && direct_on(locked, request).is_some() {
        let _ = fix_position(request);
    }
}

fn fix_position(request: &mut Request) -> Result<(), Errno> {
    let number = request.file.number;
    match &mut request.operation {
        Operation::ReadWrite(transfer) => transfer.fix_position(number),
        _ => Ok(()),
    }
}

/// Notes that the file system of this request's file refuses RWF_NOWAIT. Later direct transfers on
/// that file system go to a worker at once.
#[cold]
pub(crate) fn note_without_nowait(locked: &mut LockedRing, request: &Request) {
    // If the program set no flags, the kernel can only have refused RWF_NOWAIT, which usring added.
    if request.sqe.op_flags == 0
        && let Ok(identity) = descriptor::identity(request.file.number)
    {
        locked.devices.named.note_without_nowait(identity.device);
    }
}

/// Keeps the transfer's file open until the transfer completes. The kernel's AIO may report late
/// that the transfer would block, and a worker then makes the transfer. By then, the program may
/// have closed the file, or may use the file's descriptor number for another file.
#[inline]
fn keep_for_deferred_submit(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    if !matches!(request.file.reference, FileReference::Submitter) {
        return Ok(());
    }
    if request.has_flag(sqe_flags::FIXED_FILE) {
        let file = locked.registered.files.share(request.sqe.fd.cast_unsigned()).ok_or(Errno::EBADF)?;
        request.file.reference = FileReference::Registered(file);
        return Ok(());
    }
    locked.devices.named.keep(&mut request.file)
}

/// Returns the ring's channel for ordinary files (the kernel's AIO), if this channel is to carry
/// out an AIO context's transfer. The channel carries out transfers with O_DIRECT, because they are
/// asynchronous. The channel also carries out all writes: a write that io_submit(2) has accepted is
/// then made even if the program ends. (In the kernel, a write without O_DIRECT is made during
/// io_submit.)
///
/// Errors: `EBADF`; `EOPNOTSUPP` for all other transfers.
pub(crate) fn channel_to_kernel_file(
    locked: &mut LockedRing,
    number: i32,
    writes: bool,
) -> Result<ChannelIndex, Errno> {
    let ring = locked.ring;
    // The kernel's AIO is not used in two cases. Swapped memory is pinned only while the program's
    // call runs, and a transfer by the kernel's AIO may take longer. The second case is `usring
    // crash`: its recorder sees only transfers that are system calls.
    if !ring.uses_kernel_aio() || pinned_memory::has_pin_hook() || unusual::has(Unusual::Recording) {
        return Err(Errno::EOPNOTSUPP);
    }
    let direct = locked.devices.named.status_flags(number)? & linux::O_DIRECT != 0;
    // On a pipe, O_DIRECT has another meaning (packet mode). So only regular files and block
    // devices are considered here.
    if !(direct || writes && !ring.is_polled()) || !locked.devices.named.identity(number)?.is_stored() {
        return Err(Errno::EOPNOTSUPP);
    }
    // The machine or a sandbox may allow no kernel AIO context. Then no transfer on a file can be
    // polled for, and workers make the writes.
    locked.devices.queues.channel_to_kernel_files(ring).map_err(|_| Errno::EOPNOTSUPP)
}

/// Returns whether an AIO context's request may start before the deferred submits to ordinary files
/// are made. This is so if the request joins these submits, or goes to a device of usring's. Any
/// other request waits for them: as in the kernel, the earlier writes of its batch come first.
pub(crate) fn joins_deferred_submit(locked: &mut LockedRing, request: &Request) -> bool {
    let Operation::ReadWrite(transfer) = &request.operation else { return false };
    let (number, writes) = (request.file.number, transfer.writes());
    if devices::are_any() && locked.devices.named.device(number, host::device_of).is_some() {
        return true;
    }
    channel_to_kernel_file(locked, number, writes).is_ok()
}

/// Returns the outcome of a transfer on a ring with IOPOLL, if completions on the file cannot be
/// polled for. The error is `EBADF` if the file is not open for this kind of transfer, else
/// `EOPNOTSUPP`.
#[cold]
fn refuse_on_polled_ring(number: i32, writes: bool) -> IssueOutcome {
    let other_way = if writes { linux::O_RDONLY } else { linux::O_WRONLY };
    let error = match descriptor::status_flags(number) {
        Ok(flags) if flags & linux::O_ACCMODE == other_way => Errno::EBADF,
        Ok(_) => Errno::EOPNOTSUPP,
        Err(error) => error,
    };
    IssueOutcome::done(error.negative())
}

/// Returns the file system of the request's file (fstat(2)'s `st_dev`). `None`: the file is not
/// open with O_DIRECT, or is neither a regular file nor a block device.
#[inline]
pub(super) fn direct_on(locked: &mut LockedRing, request: &Request) -> Option<u64> {
    if request.has_flag(sqe_flags::FIXED_FILE) {
        return match &request.file.reference {
            FileReference::Registered(file) => file.direct_on(),
            _ => locked.registered.files.get(request.sqe.fd.cast_unsigned())?.direct_on(),
        };
    }
    let number = request.file.number;
    if locked.devices.named.status_flags(number).ok()? & O_DIRECT == 0 {
        return None;
    }
    let identity = locked.devices.named.identity(number).ok()?;
    identity.is_stored().then_some(identity.device)
}
