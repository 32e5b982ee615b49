//! Completions in an order that a seed chooses (`usring run --order`). The seed decides about each
//! request that a worker or a device of the kernel could carry out. Until the seed chooses such a
//! request, the request waits in the ring's list of timers. Some requests wait before they are
//! carried out. Others are carried out first, and wait with their answer. Whenever a thread submits
//! or waits, `driving::order` lets the seed choose.
//!
//! # Invariants
//! - The program sees every order that the kernel promises. A request that is not chosen yet has
//!   not completed, so a link or drain waits for it. Changes of one regular file keep their order.
//! - The seed does not delay a request that the kernel completes in the submitting thread, or when
//!   the request's file is ready.
//! - If no thread submits or waits for a time limit ([`LIMIT_NS`] or [`LIMIT_OF_WATCHED_NS`]), the
//!   seed chooses one request, as if a thread waited.

use crate::completion::faults;
use crate::request::conditions::RequestId;
use crate::request::fault::{FaultStage, FileKey, PendingFault};
use crate::request::outcome::Answer;
use crate::request::{Request, RequestEntry};
use crate::ring::LockedRing;
use crate::waiting::order::{Candidate, LIMIT_PARTS, Order, number_of_event};
use alloc::boxed::Box;
use alloc::vec::Vec;
use usring_inject::page::OrderEvent;
use usring_inject::{Fault, armed};
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::epoll::Event;
use usring_sys::{descriptor, message};
use usring_uapi::general::O_DIRECT;
use usring_uapi::io_uring::IORING_SETUP_SQPOLL;
use usring_uapi::{opcode, sqe_flags};

/// Longest time, in nanoseconds, for which the seed of `usring run --order` holds a request back
/// while no thread submits or waits.
const LIMIT_NS: Nanoseconds = 100_000_000;
/// Replaces [`LIMIT_NS`] on a ring whose program may wait without io_uring_enter(2). Such a ring
/// has an eventfd or an SQ thread, or the program polls the ring's descriptor.
const LIMIT_OF_WATCHED_NS: Nanoseconds = 1_000_000;

/// The seed of `usring run --order` decides when requests complete. One of this many requests is
/// carried out only when the seed chooses it. The other requests are carried out at once, and only
/// their answers wait until the seed chooses the requests.
const LATE: u64 = 3;

/// With `--order seed=N,overflow=on`, the CQ has no room for one of this many completions.
const OVERFLOWS: u64 = 4;

/// Returns the length, in nanoseconds, of one of the [`LIMIT_PARTS`] parts of the time limit. For
/// that time limit at most, the seed of `usring run --order` holds a request back.
fn limit_part(locked: &LockedRing) -> Nanoseconds {
    let is_watched = locked.notify.event_descriptor.is_some() || locked.ring.readiness.is_polled();
    let is_watched = is_watched || locked.ring.has(IORING_SETUP_SQPOLL);
    let limit = if is_watched { LIMIT_OF_WATCHED_NS } else { LIMIT_NS };
    limit / u64::from(LIMIT_PARTS)
}

/// Returns this ring's state of `usring run --order`, which keeps the seed's choices; makes the
/// state on first use. Returns `None` if the seed does not order the ring's completions. This is so
/// for a polled ring, a ring of several processes, the ring of an AIO context, and a ring that is
/// being closed.
pub(crate) fn of<'a>(locked: &'a mut LockedRing<'_>) -> Option<&'a mut Order> {
    let ring = locked.ring;
    if !ring.has_free_order() || locked.closed || locked.retired {
        return None;
    }
    if locked.waiting.order.is_none() {
        locked.waiting.order = Some(Box::new(Order::new(armed::order_of_ring(ring.number)?, armed::order_overflows())));
        if ring.has(IORING_SETUP_SQPOLL) {
            armed::note_unsure_order();
        }
    }
    locked.waiting.order.as_deref_mut()
}

/// Leaves the completion of a new request to the seed of `usring run --order`, if the kernel
/// promises no order for that completion. With `overflow=on`, the seed also chooses whether the
/// request's CQE finds no room in the CQ. Returns `true` if the request is to wait before it is
/// carried out.
pub(crate) fn begin(locked: &mut LockedRing, request: &mut Request) -> bool {
    if request.poll_slot != 0 {
        return false;
    }
    let is_free = may_use_worker(request);
    let key = if is_free { key_of(request) } else { None };
    let may_block = matches!(request.sqe.opcode, opcode::OPENAT | opcode::OPENAT2);
    let Some(order) = of(locked) else { return false };
    let fault = Fault { overflow: order.overflows && order.happens(OVERFLOWS), ..Fault::NOTHING };
    if !is_free && !fault.overflow {
        return false;
    }
    let mut waits = false;
    if is_free {
        waits = order.happens(LATE) || order.is_changing(key);
        order.add(Candidate { id: request.id, key, may_block });
        armed::count_order(OrderEvent::Ordered);
    }
    let stage = if waits { FaultStage::Entering } else { FaultStage::Begun };
    if waits {
        armed::count_order(OrderEvent::RanLate);
    }
    let pending = PendingFault { fault, stage, whole: None, memory: Vec::new(), is_ordered: true };
    request.fault = Some(Box::new(pending));
    waits
}

/// Returns whether a worker of the kernel's, or a device, may carry out the request. The kernel
/// then promises no order for the request's completion. `false` for multishots, and for requests
/// that select a buffer.
fn may_use_worker(request: &Request) -> bool {
    if request.multishot || request.has_flag(sqe_flags::BUFFER_SELECT) {
        return false;
    }
    match request.sqe.opcode {
        opcode::NOP => request.has_flag(sqe_flags::ASYNC),
        opcode::READV
        | opcode::WRITEV
        | opcode::READ
        | opcode::WRITE
        | opcode::READ_FIXED
        | opcode::WRITE_FIXED
        | opcode::READV_FIXED
        | opcode::WRITEV_FIXED
        | opcode::FSYNC
        | opcode::SYNC_FILE_RANGE
        | opcode::FALLOCATE
        | opcode::FTRUNCATE
        | opcode::FGETXATTR
        | opcode::FSETXATTR => descriptor::identity(request.file.number).is_ok_and(|identity| !identity.can_wait()),
        opcode::OPENAT
        | opcode::OPENAT2
        | opcode::STATX
        | opcode::MADVISE
        | opcode::RENAMEAT
        | opcode::UNLINKAT
        | opcode::MKDIRAT
        | opcode::SYMLINKAT
        | opcode::LINKAT
        | opcode::GETXATTR
        | opcode::SETXATTR => true,
        _ => false,
    }
}

/// Returns the key of a request that makes a buffered change of a regular file; `None` for any
/// other request. The kernel's workers make such changes of one file one after the other. So
/// requests with one key keep their order.
fn key_of(request: &Request) -> Option<FileKey> {
    if !request.properties.hashes_regular_file {
        return None;
    }
    let identity = descriptor::identity(request.file.number).ok()?;
    let is_direct = descriptor::status_flags(request.file.number).is_ok_and(|flags| flags & O_DIRECT != 0);
    (identity.is_regular() && !is_direct).then_some((identity.device, identity.inode))
}

/// Notes that the seed of `usring run --order` no longer decides when a request completes.
pub(crate) fn forget(locked: &mut LockedRing, request: &Request) {
    if let Some(order) = &mut locked.waiting.order {
        order.forget(request.id);
    }
}

/// Ends a request whose completion is left to the seed of `usring run --order`. If the seed has not
/// chosen the request yet, holds the request's answer back until the seed chooses the request. With
/// `is_over`, posts the answer now in any case: the request was cancelled or not begun, or its
/// answer has already waited.
pub(crate) fn end(
    locked: &mut LockedRing,
    mut request: RequestEntry,
    mut pending: Box<PendingFault>,
    answer: Answer,
    is_over: bool,
) {
    if is_over || !of(locked).is_some_and(|order| order.has(request.id)) {
        forget(locked, &request);
        return post(locked, request, answer, pending.fault.overflow);
    }
    pending.stage = FaultStage::Leaving(answer);
    request.fault = Some(pending);
    hold(locked, request);
}

/// Completes a request. With `overflows`, the CQ counts as full if the program has not consumed all
/// of its CQEs. So the CQ behaves as one that has fewer entries. An empty CQ never counts as full,
/// because a program that waits for its eventfd would wait for ever.
fn post(locked: &mut LockedRing, request: RequestEntry, answer: Answer, overflows: bool) {
    let had_backlog = locked.queues.cq.has_overflow();
    let overflows = overflows && locked.queues.cq.has_unread();
    faults::post(locked, request, answer, overflows);
    if !had_backlog && locked.queues.cq.has_overflow() {
        armed::count_order(OrderEvent::Overflowed);
    }
}

/// Makes a request wait in the ring's list of timers until the seed of `usring run --order` chooses
/// it.
pub(crate) fn hold(locked: &mut LockedRing, request: RequestEntry) {
    let part = limit_part(locked);
    faults::hold(locked, request, part);
}

/// Called when one of the [`LIMIT_PARTS`] parts of the time limit is over, for a request that
/// `usring run --order` holds back. If no thread has submitted or waited during the whole limit,
/// the seed chooses a request, and the chosen request continues. If the seed chose another request,
/// `request` waits on.
pub(crate) fn expire(locked: &mut LockedRing, request: RequestEntry) {
    let part = limit_part(locked);
    let Some(order) = of(locked) else { return faults::resume(locked, request) };
    let now = Clock::Monotonic.now();
    if !order.is_unattended(now, part) {
        return hold(locked, request);
    }
    match order.choose(now) {
        Some(id) if id == request.id => faults::resume(locked, request),
        None if !order.has(request.id) => faults::resume(locked, request),
        chosen => {
            if let Some(id) = chosen {
                let_continue(locked, id);
            }
            hold(locked, request);
        }
    }
}

/// Continues the request `id`, which the seed of `usring run --order` has chosen. Takes the request
/// from the ring's list of timers. If the request is not in the list, a worker or a device still
/// has it, and nothing happens.
pub(crate) fn let_continue(locked: &mut LockedRing, id: RequestId) {
    if let Some(request) = locked.waiting.timeouts.take(id) {
        faults::resume(locked, request);
    }
}

/// Returns the events of the epoll set, with the events of IPv4 and IPv6 sockets in an order that
/// the seed of `usring run --order` chooses. In the kernel, the order of these events depends on
/// when packets arrive. Events of other files keep their places, because the program may have
/// caused them itself, one after the other.
#[cold]
#[inline(never)]
pub(crate) fn shuffle(locked: &mut LockedRing, events: &[Event]) -> Vec<Event> {
    let mut shuffled = events.to_vec();
    let mut sockets = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let number = number_of_event(&mut locked.waiting.polls, event.data);
        if number.is_some_and(message::is_internet_socket) {
            sockets.push(index);
        }
    }
    if sockets.len() < 2 {
        return shuffled;
    }
    let Some(order) = of(locked) else { return shuffled };
    for last in (1..sockets.len()).rev() {
        shuffled.swap(sockets[last], sockets[order.below(last + 1)]);
    }
    armed::count_order(OrderEvent::Shuffled);
    shuffled
}
