//! MSG_RING: posts a CQE on another ring (the target), or puts one of this ring's registered files
//! into the target's table. REGISTER_SEND_MSG_RING posts a CQE for a caller that has no ring.
//!
//! Two drivers may send to each other at one time. If each waited for the lock of its target, they
//! would wait for ever. So a sender never waits for the target's lock:
//!
//! - If the target's lock is free, the sender delivers the message itself.
//! - Otherwise the sender adds the message to the target's task-work list. The target's driver
//!   checks the list when it releases the lock.
//! - A target with DEFER_TASKRUN gets CQEs only by that list. These CQEs appear when the target's
//!   owner waits.
//! - A message with a file has a result (the slot, or an error). So if the target's lock is taken,
//!   the request itself goes to the target's list and comes back by this ring's list.

use crate::host;
use crate::registered::registered_files::{FileSlot, RegisteredFile};
use crate::request::file::FileReference;
use crate::request::operation::{Message, Operation};
use crate::request::outcome::IssueOutcome;
use crate::request::pool::new_entry;
use crate::request::{Progress, Request, RequestEntry};
use crate::ring::{Exit, LockedRing, Ring};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use usring_sys::queue::{Rest, Urgency};
use usring_sys::{Errno, UserAddress, descriptor, user_memory, width};
use usring_uapi::io_uring as abi;
use usring_uapi::{Cqe, Sqe, opcode};

/// Commands of MSG_RING (`enum io_uring_msg_ring_flags`).
const DATA: u32 = 0;
const SEND_FD: u32 = 1;

const KNOWN: u32 = abi::IORING_MSG_RING_CQE_SKIP | abi::IORING_MSG_RING_FLAGS_PASS;

/// A MSG_RING request with a file carries this value to the target ring.
struct Visit {
    target: Arc<Ring>,
    home: Arc<Ring>,
    file: Arc<RegisteredFile>,
}

/// Returns the rings and the file that the request carries. Other modules see this content only as
/// `Any`.
fn visit_of(visit: &(dyn Any + Send)) -> &Visit {
    visit.downcast_ref().unwrap_or_else(|| unreachable!("only this file makes the value"))
}

impl Message {
    fn read(sqe: &Sqe) -> Result<Message, Errno> {
        if sqe.buf_index != 0 || sqe.personality != 0 || sqe.op_flags & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(Message {
            // The command is the lower half of `addr`. The upper half has no meaning.
            command: width::low(sqe.addr),
            user_data: sqe.off,
            result: sqe.len,
            source: width::low(sqe.addr3),
            index: sqe.file_index,
            flags: sqe.op_flags,
            visit: None,
        })
    }

    /// Returns the CQE that a message without a file posts. Error: `EINVAL` if the message sets a
    /// field that only messages with a file use.
    fn cqe(&self) -> Result<Cqe, Errno> {
        let passes_flags = self.flags & abi::IORING_MSG_RING_FLAGS_PASS != 0;
        if self.source != 0 || self.flags & !abi::IORING_MSG_RING_FLAGS_PASS != 0 || !passes_flags && self.index != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(Cqe { user_data: self.user_data, res: self.result.cast_signed(), flags: self.index })
    }
}

pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    request.operation = Operation::Message(Message::read(&request.sqe)?);
    Ok(())
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::Message(message) = &mut request.operation else { unreachable!("prepare made a message") };
    // The host finds a ring only by the program's own descriptor number. A delayed request has a
    // duplicate of the descriptor, so the program's number is taken from the SQE.
    let is_duplicate = matches!(request.file.reference, FileReference::PrivateDuplicate(_));
    let number = if is_duplicate { request.sqe.fd } else { request.file.number };
    let target = match ring_at(number) {
        Ok(target) => target,
        Err(error) => return IssueOutcome::of(Err(error)),
    };
    match message.command {
        DATA => IssueOutcome::of(message.cqe().and_then(|cqe| post(locked, &target, cqe)).map(|()| 0)),
        SEND_FD => send_file(locked, message, target).unwrap_or_else(|error| IssueOutcome::of(Err(error))),
        _ => IssueOutcome::done(Errno::EINVAL.negative()),
    }
}

/// REGISTER_SEND_MSG_RING: sends the message of an SQE in the program's memory. The caller needs no
/// ring of its own.
pub fn send_without_ring(argument: UserAddress, count: u32) -> Result<u32, Errno> {
    if argument.is_null() || count != 1 {
        return Err(Errno::EINVAL);
    }
    let sqe: Sqe = user_memory::read(argument)?;
    if sqe.flags != 0 || sqe.opcode != opcode::MSG_RING {
        return Err(Errno::EINVAL);
    }
    let message = Message::read(&sqe)?;
    if message.command != DATA {
        return Err(Errno::EINVAL);
    }
    let target = ring_at(sqe.fd)?;
    let cqe = message.cqe()?;
    check_open(&target)?;
    if !defers_messages(&target) && post_at_once(&target, cqe)? {
        return Ok(0);
    }
    leave_message(&target, new_entry(), cqe);
    Ok(0)
}

fn ring_at(number: i32) -> Result<Arc<Ring>, Errno> {
    if let Some(ring) = host::ring_at(number) {
        return Ok(ring);
    }
    descriptor::status_flags(number)?;
    Err(Errno::EBADFD)
}

/// Checks that a ring is enabled (else `EBADFD`), and that the program has not closed it (else
/// `EBADF`).
fn check_open(target: &Ring) -> Result<(), Errno> {
    if target.is_disabled() {
        return Err(Errno::EBADFD);
    }
    if target.task_work.is_sealed() { Err(Errno::EBADF) } else { Ok(()) }
}

/// Returns whether CQEs from other rings appear only when the ring's owner waits (DEFER_TASKRUN).
/// (A ring with IOPOLL has no such delay, because its owner polls.)
fn defers_messages(target: &Ring) -> bool {
    target.defers_task_work() && !target.is_polled()
}

/// Posts a CQE on the target, which may be the ring that this thread drives. If another thread
/// holds the target's lock, the CQE goes onto the target's task-work list.
fn post(locked: &mut LockedRing, target: &Arc<Ring>, cqe: Cqe) -> Result<(), Errno> {
    check_open(target)?;
    if !defers_messages(target) {
        if Arc::ptr_eq(target, locked.ring) {
            locked.post(cqe);
            return Ok(());
        }
        if post_at_once(target, cqe)? {
            return Ok(());
        }
    }
    leave_message(target, locked.queues.pool.take().ok_or(Errno::ENOMEM)?, cqe);
    Ok(())
}

/// Posts a CQE on a ring if the ring's lock is free. The messages on the ring's task-work list are
/// delivered first. Returns `false` and posts nothing if the CQE has to go onto that list.
///
/// Error: `EBADF` if the ring is closed.
fn post_at_once(target: &Arc<Ring>, cqe: Cqe) -> Result<bool, Errno> {
    let Ok(mut other) = target.try_lock() else { return Ok(false) };
    if other.closed {
        return Err(Errno::EBADF);
    }
    let is_next = deliver_queued(&mut other);
    if is_next {
        other.post(cqe);
    }
    other.release(Exit::LeaveInside);
    Ok(is_next)
}

/// Delivers the messages on a ring's task-work list, so that the next message may be delivered
/// directly. Returns `false` if entries stay on the list: the ring defers task work, or another
/// thread is just adding an entry. An earlier message of this thread may stay on the list, too. So
/// the next message has to go onto the list, or it would overtake the earlier one.
fn deliver_queued(other: &mut LockedRing) -> bool {
    if !other.ring.defers_task_work() {
        other.run_task_work();
    }
    other.queues.consumer.stop() == Rest::Nothing
}

fn leave_message(target: &Arc<Ring>, mut entry: RequestEntry, cqe: Cqe) {
    entry.progress = Progress::Message;
    entry.sqe.user_data = cqe.user_data;
    entry.result = cqe.res;
    entry.cqe_flags = cqe.flags;
    let urgency = if defers_messages(target) { Urgency::Lazy } else { Urgency::Urgent };
    target.add_task_work(entry, urgency, false);
}

fn send_file(locked: &mut LockedRing, message: &mut Message, target: Arc<Ring>) -> Result<IssueOutcome, Errno> {
    if message.result != 0 || Arc::ptr_eq(&target, locked.ring) {
        return Err(Errno::EINVAL);
    }
    check_open(&target)?;
    let file = locked.registered.files.get(message.source).ok_or(Errno::EBADF)?.for_another()?;
    if let Ok(mut other) = target.try_lock() {
        // As in the kernel, the file is delivered even if the target has DEFER_TASKRUN. The
        // target's deferred completions stay on the target's list.
        let received = (defers_messages(&target) || deliver_queued(&mut other))
            .then(|| receive(&mut other, message, file.clone()));
        other.release(Exit::LeaveInside);
        if let Some(received) = received {
            return received.map(IssueOutcome::done);
        }
    }
    let home = locked.ring.clone();
    message.visit = Some(Box::new(Visit { target, home, file }));
    Ok(IssueOutcome::Visits)
}

/// Puts a file that another ring sends into the table of the ring that this thread drives.
fn receive(locked: &mut LockedRing, message: &Message, file: Arc<RegisteredFile>) -> Result<i32, Errno> {
    if locked.closed {
        return Err(Errno::EBADF);
    }
    let result = locked.registered.files.receive(FileSlot::from_sqe(message.index), file)?;
    if message.flags & abi::IORING_MSG_RING_CQE_SKIP == 0 {
        locked.post(Cqe { user_data: message.user_data, res: result, flags: 0 });
    }
    Ok(result)
}

/// Sends the request itself to the ring that its message is for.
pub(crate) fn send_to_target(mut request: RequestEntry) {
    let Operation::Message(Message { visit: Some(visit), .. }) = &request.operation else {
        unreachable!("a visiting request names its ring")
    };
    let target = visit_of(&**visit).target.clone();
    request.progress = Progress::Visiting;
    target.add_task_work(request, Urgency::Urgent, false);
}

/// Carries out a request that has come from another ring, and sends it back with its result.
pub(crate) fn run_visit(locked: &mut LockedRing, mut request: RequestEntry) {
    let Operation::Message(message) = &mut request.operation else { unreachable!("only a message visits a ring") };
    let Some(visit) = message.visit.take().and_then(|visit| visit.downcast::<Visit>().ok()) else {
        unreachable!("a visiting request names its ring")
    };
    let Visit { home, file, .. } = *visit;
    request.result = receive(locked, message, file).unwrap_or_else(Errno::negative);
    request.progress = Progress::Returned;
    home.add_task_work(request, Urgency::Urgent, false);
}
