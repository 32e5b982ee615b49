//! ACCEPT: accepts one connection, or (multishot) one after another.
//!
//! A failed accept4(2) costs ten times as much as polling the listener, and an accept4 that finds
//! no connection may sleep. So the listener is polled first. A TCP listener reports how many
//! connections wait; listeners of other protocols report only whether one waits.
//!
//! When the request has accepted as many connections as the listener reported, it polls the
//! listener once more, to find out whether the queue is empty. The request has to know this,
//! because an epoll event is certain only for a connection that comes into an empty queue. After an
//! epoll event of the listener, the request makes no such poll: each later connection then makes an
//! event in any case. SOCK_NONEMPTY is set if the reported number or the poll says that more
//! connections wait.

use super::socket::{check_flags, flags_for, install};
use crate::completion::complete;
use crate::registered::registered_files::FileSlot;
use crate::request::operation::{Accept, Operation};
use crate::request::outcome::IssueOutcome;
use crate::request::{Blocking, Progress, Request};
use crate::ring::LockedRing;
use crate::waiting::stuck_calls::Caller;
use crate::waiting::{fast_poll, watchdog};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::epoll::PollDescriptor;
use usring_sys::{Errno, SystemCall, UserAddress, epoll, socket, width};
use usring_uapi::io_uring as abi;

const FLAGS: u16 =
    width::short((abi::IORING_ACCEPT_MULTISHOT | abi::IORING_ACCEPT_DONTWAIT | abi::IORING_ACCEPT_POLL_FIRST) as u64);

/// Knowledge about the connections that wait in the listener's queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Unknown,
    Empty,
    /// At least one connection waits.
    Filled,
    /// This many connections wait. Only a TCP listener reports the number.
    Holds(u32),
}

impl Queue {
    /// Asks the listener how many connections wait. Returns `Unknown` if the listener's protocol
    /// does not report the number.
    fn counted(number: i32) -> Queue {
        match socket::queue_length(number) {
            Some(0) => Queue::Empty,
            Some(count) => Queue::Holds(count),
            None => Queue::Unknown,
        }
    }

    /// Finds out whether a connection waits: from the listener's number of connections, or by
    /// poll(2) if the listener does not report one.
    fn of(number: i32) -> Queue {
        match Queue::counted(number) {
            Queue::Unknown => match epoll::poll_now(number, epoll::IN) {
                Ok(ready) if ready & epoll::IN != 0 => Queue::Filled,
                _ => Queue::Empty,
            },
            counted => counted,
        }
    }

    /// Returns what is known about the listener's queue after one connection was accepted.
    /// `was_ready`: an epoll event reported that this listener is ready. Each later connection then
    /// makes a new event. So if by the reported number the queue is empty, this function does not
    /// poll the listener.
    fn after_accept(self, number: i32, was_ready: bool) -> Queue {
        match self {
            Queue::Holds(count @ 2..) => Queue::Holds(count - 1),
            Queue::Holds(_) if was_ready => Queue::Empty,
            _ => Queue::of(number),
        }
    }

    fn is_filled(self) -> bool {
        matches!(self, Queue::Filled | Queue::Holds(_))
    }
}

fn has(request: &Request, flag: u32) -> bool {
    request.sqe.ioprio & width::short(flag.into()) != 0
}

pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    let slot = FileSlot::from_sqe(sqe.file_index);
    if sqe.len != 0 || sqe.buf_index != 0 || sqe.ioprio & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    check_flags(sqe.op_flags, slot)?;
    // A multishot accepts many connections, but a slot that the SQE names in the table of
    // registered files has room for only one.
    if has(request, abi::IORING_ACCEPT_MULTISHOT) && matches!(slot, FileSlot::Index(_)) {
        return Err(Errno::EINVAL);
    }
    request.multishot = has(request, abi::IORING_ACCEPT_MULTISHOT);
    request.begin_operation(Operation::Accept(Accept::default()));
    Ok(())
}

/// Returns the accept4(2) call of the request.
fn call(request: &Request) -> SystemCall {
    let slot = FileSlot::from_sqe(request.sqe.file_index);
    let (address, length) = (UserAddress(request.sqe.addr), UserAddress(request.sqe.off));
    socket::accept_call(request.file.number, address, length, flags_for(request.sqe.op_flags, slot))
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let slot = FileSlot::from_sqe(request.sqe.file_index);
    if !has(request, abi::IORING_ACCEPT_DONTWAIT) && locked.waiting.stuck_calls.leaves_to_worker() {
        return IssueOutcome::NeedsWorker;
    }
    if has(request, abi::IORING_ACCEPT_POLL_FIRST) && request.ready_for == 0 {
        return match would_block(request) {
            IssueOutcome::WouldBlock => IssueOutcome::PollsFirst,
            outcome => outcome,
        };
    }
    let is_owner = locked.ring.defers_task_work();
    let mut caller = locked.waiting.stuck_calls.caller(is_owner);
    let number = request.file.number;
    let mut queue = if request.ready_for != 0 { Queue::counted(number) } else { Queue::Unknown };
    for _ in 0..fast_poll::SLICE {
        let accepted = match attempt(locked, request, &mut caller, queue) {
            None => return would_block(request),
            Some(Err(error)) => return IssueOutcome::done(error.negative()),
            Some(Ok(accepted)) => accepted,
        };
        let placed = install(locked, slot, accepted);
        queue = queue.after_accept(number, request.ready_for != 0);
        let flags = flags_of(request, queue);
        let result = match placed {
            Err(error) => {
                request.cqe_flags |= flags;
                return IssueOutcome::done(error.negative());
            }
            Ok(result) => result,
        };
        if !request.multishot || !complete::post_more(locked, request, result, flags) {
            request.cqe_flags |= flags;
            return IssueOutcome::done(result);
        }
        if !queue.is_filled() {
            return would_block(request);
        }
    }
    IssueOutcome::Yield
}

/// Accepts a connection. `None`: no connection waits, or another process has accepted it.
fn attempt(
    locked: &mut LockedRing,
    request: &Request,
    caller: &mut Caller,
    mut queue: Queue,
) -> Option<Result<OwnedDescriptor, Errno>> {
    let number = request.file.number;
    let call = call(request);
    let (mut ready, mut failed) = (0, false);
    loop {
        if !queue.is_filled() {
            ready = match epoll::poll_now(number, epoll::IN | epoll::PEER_HANG_UP) {
                Ok(0) if failed => {
                    locked.waiting.stuck_calls.has_been_stuck();
                    return None;
                }
                Ok(0) if request.ready_for != 0 || socket::is_listener(number) => return None,
                Ok(ready) => ready,
                Err(error) => return Some(Err(error)),
            };
        }
        match watchdog::make(&mut locked.waiting.stuck_calls, caller, &call) {
            None => (queue, failed) = (Queue::Unknown, true),
            // A non-blocking Unix listener that was shut down always returns EAGAIN. The kernel
            // tries 128 times before it returns EAGAIN to the program. A multishot would try for
            // ever here, so it completes with EINVAL.
            Some(Err(Errno::EAGAIN)) if ready & epoll::PEER_HANG_UP != 0 => {
                return Some(Err(if request.multishot { Errno::EINVAL } else { Errno::EAGAIN }));
            }
            Some(Err(Errno::EAGAIN)) => return None,
            Some(answer) => return Some(answer.map(|number| OwnedDescriptor::from_raw(width::int(number)))),
        }
    }
}

/// Returns SOCK_NONEMPTY if more connections wait, else 0. Only internet listeners report
/// SOCK_NONEMPTY, as in the kernel.
fn flags_of(request: &mut Request, queue: Queue) -> u32 {
    let number = request.file.number;
    let Operation::Accept(accept) = &mut request.operation else { return 0 };
    let is_internet = || matches!(socket::domain(number), Ok(socket::AF_INET | socket::AF_INET6));
    let more = match queue {
        Queue::Holds(_) => true,
        Queue::Filled => *accept.internet.get_or_insert_with(is_internet),
        Queue::Unknown | Queue::Empty => false,
    };
    if more { abi::IORING_CQE_F_SOCK_NONEMPTY } else { 0 }
}

fn would_block(request: &Request) -> IssueOutcome {
    if has(request, abi::IORING_ACCEPT_DONTWAIT) {
        return IssueOutcome::done(Errno::EAGAIN.negative());
    }
    IssueOutcome::WouldBlock
}

/// Accepts in a worker, and may block. Used after a call on the ring got stuck (`stuck_calls`), and
/// for a file that cannot be polled.
pub(crate) fn work(request: &mut Request, blocking: &Blocking) -> i32 {
    let call = call(request);
    let number = request.file.number;
    let answer = loop {
        match blocking.run(&call) {
            Err(Errno::EAGAIN) => {}
            answer => break answer,
        }
        // The listener is non-blocking. So the worker waits by poll(2) until the listener is ready,
        // and then tries again.
        let mut listener = PollDescriptor::new(number, epoll::IN);
        if let Err(error) = blocking.run(&listener.call(-1)) {
            break Err(error);
        }
    };
    match (answer, &mut request.operation) {
        (Ok(number), Operation::Accept(accept)) => {
            accept.accepted = Some(OwnedDescriptor::from_raw(width::int(number)));
            0
        }
        // A cancellation has interrupted the call. The request gets the result of a cancelled poll.
        (Err(Errno::EINTR), _) => Errno::ECANCELED.negative(),
        (Err(error), _) => error.negative(),
        (Ok(_), _) => Errno::EINVAL.negative(),
    }
}

/// Gives the program the connection that a worker has accepted. Returns the CQE's result.
pub(crate) fn finish(locked: &mut LockedRing, request: &mut Request, result: i32) -> i32 {
    let Operation::Accept(accept) = &mut request.operation else { return result };
    let Some(accepted) = accept.accepted.take() else { return result };
    let result = match install(locked, FileSlot::from_sqe(request.sqe.file_index), accepted) {
        Err(error) => return error.negative(),
        Ok(result) => result,
    };
    let queue = Queue::of(request.file.number);
    let flags = flags_of(request, queue);
    if request.multishot && complete::post_more(locked, request, result, flags) {
        request.progress = Progress::New;
    } else {
        request.cqe_flags |= flags;
    }
    result
}
