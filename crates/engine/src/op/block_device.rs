//! READ and WRITE of all kinds on a block device of ours: the same SQEs as for
//! the kernel's files, carried out by a queue pair.
//!
//! Whole blocks within the device go to the ring's channel; everything else
//! (a part of a block, the file position) to a worker, which may block.
//!
//! The kernel's own files are a device, too, by way of the kernel's AIO. A ring's transfers
//! take it if the file is open with O_DIRECT; an AIO context's also if they write.

use super::Operation;
use crate::device_queues::ChannelIndex;
use crate::host;
use crate::issue::IssueOutcome;
use crate::registered_files::RegisteredFiles;
use crate::request::{FileUse, Hold, Request};
use crate::ring::{LockedRing, RingState};
use alloc::sync::Arc;
use usring_device::{OpenDevice, Route};
use usring_sys::{Errno, descriptor, kept_memory};
use usring_uapi::{Sqe, general as linux, sqe_flags};

/// Whether a transfer may concern devices at all: asked of every READ and
/// WRITE, so one load.
#[inline(always)]
pub(crate) fn is_possible(locked: &LockedRing) -> bool {
    host::has_devices() || locked.ring.is_polled() || locked.ring.has_events()
}

/// Whether a request is a transfer that [`issue`] decides on.
pub(crate) fn concerns(locked: &mut LockedRing, request: &Request) -> bool {
    let ring = locked.ring;
    let RingState { files, opened, .. } = &mut **locked;
    let is_transfer = matches!(request.operation, Operation::ReadWrite(_));
    is_transfer && (ring.is_polled() || find(files, opened, &request.file, &request.sqe).is_some())
}

/// The device that a request's file is.
#[inline]
fn find<'a>(
    files: &'a RegisteredFiles,
    opened: &'a mut OpenedDevices,
    file: &'a FileUse,
    sqe: &Sqe,
) -> Option<&'a Arc<OpenDevice>> {
    match &file.hold {
        _ if file.device.is_some() => file.device.as_ref(),
        Hold::Registered(file) => file.device(),
        _ if sqe.flags & sqe_flags::FIXED_FILE != 0 => files.get(sqe.fd as u32)?.device(),
        _ => opened.look_up(file.number),
    }
}

/// What becomes of a transfer, if its file is a device or has to be one.
#[inline(always)]
pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> Option<IssueOutcome> {
    let ring = locked.ring;
    let RingState { files, opened, devices, .. } = &mut **locked;
    let number = request.file.number;
    let file = find(files, opened, &request.file, &request.sqe);
    let Operation::ReadWrite(transfer) = &mut request.operation else { return None };
    let Some(file) = file else {
        let writes = transfer.writes();
        return match channel_to_kernel_file(locked, number, writes) {
            Ok(index) => Some(IssueOutcome::OnDevice(index)),
            Err(_) => ring.is_polled().then(|| refuse_on_polled_ring(number, writes)),
        };
    };
    let manner = file.manner();
    let allowed = if transfer.writes() { manner.may_write() } else { manner.may_read() };
    if !allowed {
        return Some(IssueOutcome::done(Errno::EBADF.negative()));
    }
    if ring.is_polled() {
        let polled = if manner.is_direct() { file.device().check_polled() } else { Err(Errno::EOPNOTSUPP) };
        if let Err(error) = polled {
            return Some(IssueOutcome::done(error.negative()));
        }
    }
    let way = match transfer.is_at_position() {
        true => Route::BlockFile,
        false => transfer.on_device(manner, request.fixed_buffer.is_any()).route(file.device().geometry()),
    };
    let outcome = match way {
        Route::QueuePair { .. } => match devices.channel(ring, file.device()) {
            Ok(index) => {
                if manner.is_durable() {
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

/// Notes the device of a request that goes to a worker, if its file is one.
pub(crate) fn note(locked: &mut LockedRing, request: &mut Request) {
    let RingState { files, opened, .. } = &mut **locked;
    if host::has_devices() && request.file.device.is_none() {
        request.file.device = find(files, opened, &request.file, &request.sqe).cloned();
    }
}

/// A direct transfer of one of the kernel's files, on a ring: for the kernel's AIO, if
/// there is any, else for a worker.
#[inline]
pub(crate) fn issue_direct(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let ring = locked.ring;
    let number = request.file.number;
    let Operation::ReadWrite(transfer) = &mut request.operation else { return IssueOutcome::NeedsWorker };
    if kept_memory::has_keeper() || transfer.settle_position(number).is_err() {
        return IssueOutcome::NeedsWorker;
    }
    let Ok(index) = locked.devices.channel_to_kernel_files(ring) else {
        return IssueOutcome::NeedsWorker;
    };
    match keep_for_delivery(locked, request) {
        Ok(()) => IssueOutcome::OnDevice(index),
        Err(error) => IssueOutcome::done(error.negative()),
    }
}

/// Keeps the file of a transfer until the transfer has ended. The kernel may answer late that
/// it would have to wait, and a worker then needs the file once more. By then the program may
/// have closed its own number and used it for another file.
#[inline]
fn keep_for_delivery(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    if !matches!(request.file.hold, Hold::Submitter) {
        return Ok(());
    }
    if request.has_flag(sqe_flags::FIXED_FILE) {
        let file = locked.files.share(request.sqe.fd as u32).ok_or(Errno::EBADF)?;
        request.file.hold = Hold::Registered(file);
        return Ok(());
    }
    locked.devices.keep_file(&mut request.file)
}

/// The channel to the kernel's own files, if a transfer of an AIO context's takes it:
/// one with O_DIRECT, which is asynchronous there, and every write, for what
/// io_submit(2) has taken is written, whatever becomes of the program. (Without
/// O_DIRECT the kernel writes within the call.)
///
/// Errors: `EBADF`; `EOPNOTSUPP` for any other.
pub(crate) fn channel_to_kernel_file(
    locked: &mut LockedRing,
    number: i32,
    writes: bool,
) -> Result<ChannelIndex, Errno> {
    let ring = locked.ring;
    // Memory that is swapped is kept for a call, and not beyond it.
    if !ring.has_events() || kept_memory::has_keeper() {
        return Err(Errno::EOPNOTSUPP);
    }
    let direct = locked.status_flags(number)? & linux::O_DIRECT != 0;
    // A pipe with that flag is something else.
    if !(direct || writes && !ring.is_polled()) || !locked.is_stored(number)? {
        return Err(Errno::EOPNOTSUPP);
    }
    // A machine or a sandbox may give no context: then nothing polls, and workers write.
    locked.devices.channel_to_kernel_files(ring).map_err(|_| Errno::EOPNOTSUPP)
}

/// Whether a request of an AIO context may be begun before what is owed to the
/// kernel's files is delivered: it joins that, or it is a device's. Any other comes
/// behind it: what was written before it in its batch, is; as in the kernel.
pub(crate) fn joins_delivery(locked: &mut LockedRing, request: &Request) -> bool {
    let Operation::ReadWrite(transfer) = &request.operation else { return false };
    let (number, writes) = (request.file.number, transfer.writes());
    if host::has_devices() && locked.opened.look_up(number).is_some() {
        return true;
    }
    channel_to_kernel_file(locked, number, writes).is_ok()
}

/// A file that does not poll, if it is one and open for this.
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

/// Which devices the program's numbers stand for, remembered within one
/// submission. What is issued later asks anew: the program may have closed and
/// opened anything.
#[derive(Default)]
pub(crate) struct OpenedDevices {
    remembers: bool,
    last: Option<(i32, Option<Arc<OpenDevice>>)>,
}

impl OpenedDevices {
    #[inline]
    pub fn begin_submission(&mut self) {
        self.forget();
        self.remembers = true;
    }

    #[inline]
    pub fn end_submission(&mut self) {
        self.forget();
        self.remembers = false;
    }

    /// A number has been closed.
    #[inline]
    pub fn forget(&mut self) {
        if self.last.is_some() {
            self.last = None;
        }
    }

    #[inline]
    pub fn look_up(&mut self, number: i32) -> Option<&Arc<OpenDevice>> {
        if !self.remembers || self.last.as_ref().is_none_or(|(known, _)| *known != number) {
            self.last = Some((number, host::device_of(number)));
        }
        self.last.as_ref().and_then(|(_, file)| file.as_ref())
    }
}
