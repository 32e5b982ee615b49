//! TIMEOUT, TIMEOUT_REMOVE, LINK_TIMEOUT.

use crate::request::conditions::Deadline;
use crate::request::operation::{Operation, TimeoutUpdate};
use crate::request::outcome::{Answer, IssueOutcome};
use crate::request::{Progress, Request};
use crate::ring::LockedRing;
use crate::waiting::ask_processes;
use crate::waiting::timeout::absolute_time;
use usring_sys::clock::{self, Clock, Nanoseconds};
use usring_sys::{Errno, UserAddress, user_memory, width};
use usring_uapi::io_uring as abi;
use usring_uapi::{Timespec, opcode, sqe_flags};

fn read_span(address: u64) -> Result<Nanoseconds, Errno> {
    clock::nanoseconds(user_memory::read::<Timespec>(UserAddress(address))?)
}

fn clock_of(flags: u32) -> Result<Clock, Errno> {
    match flags & abi::IORING_TIMEOUT_CLOCK_MASK {
        0 => Ok(Clock::Monotonic),
        abi::IORING_TIMEOUT_BOOTTIME => Ok(Clock::Boottime),
        abi::IORING_TIMEOUT_REALTIME => Ok(Clock::Realtime),
        _ => Err(Errno::EINVAL),
    }
}

/// Prepares a TIMEOUT. Until the issue, the deadline's `at` is the span or the absolute time from
/// the SQE.
pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let deadline = parse(request)?;
    request.operation = Operation::Timeout(deadline);
    Ok(())
}

pub(crate) fn prepare_link(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    if request.sqe.off != 0 {
        return Err(Errno::EINVAL);
    }
    let deadline = parse(request)?;
    // A LINK_TIMEOUT limits the request before it in its chain. That request must exist, and must
    // not itself be a LINK_TIMEOUT.
    if locked.queues.chain.last_opcode().is_none_or(|last| last == opcode::LINK_TIMEOUT) {
        return Err(Errno::EINVAL);
    }
    request.operation = Operation::LinkTimeout(deadline);
    Ok(())
}

fn parse(request: &Request) -> Result<Deadline, Errno> {
    let sqe = request.sqe;
    if sqe.buf_index != 0 || sqe.len != 1 || sqe.file_index != 0 || sqe.addr3 != 0 || sqe.pad2 != 0 {
        return Err(Errno::EINVAL);
    }
    let flags = sqe.op_flags;
    let known = abi::IORING_TIMEOUT_ABS
        | abi::IORING_TIMEOUT_CLOCK_MASK
        | abi::IORING_TIMEOUT_ETIME_SUCCESS
        | abi::IORING_TIMEOUT_MULTISHOT;
    let multishot = flags & abi::IORING_TIMEOUT_MULTISHOT != 0;
    if flags & !known != 0 || multishot && flags & abi::IORING_TIMEOUT_ABS != 0 {
        return Err(Errno::EINVAL);
    }
    let clock = clock_of(flags)?;
    let span = read_span(sqe.addr)?;
    // `off` is the number of expiries of a multishot, or the number of completions that any other
    // timeout counts.
    let (completions, repeats, repeat_every) =
        if multishot { (0, width::low(sqe.off), span.max(1)) } else { (width::low(sqe.off), 0, 0) };
    let expiry_succeeds = flags & abi::IORING_TIMEOUT_ETIME_SUCCESS != 0;
    Ok(Deadline { clock, at: span, completions, repeat_every, repeats, expiry_succeeds, watches: None })
}

pub(crate) fn issue(_: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::Timeout(deadline) = &mut request.operation else {
        return IssueOutcome::done(Errno::EINVAL.negative());
    };
    deadline.at = absolute_time(request.sqe.op_flags, deadline.clock, deadline.at);
    IssueOutcome::AwaitsTime
}

/// Completes a LINK_TIMEOUT that is issued by itself, because the request that it limits has
/// already completed. No other LINK_TIMEOUT is ever issued: the limited request arms it when that
/// request begins to wait.
pub(crate) fn issue_link(_: &mut LockedRing, _: &mut Request) -> IssueOutcome {
    IssueOutcome::Done(Answer { result: Errno::ECANCELED.negative(), failed: false })
}

pub(crate) fn prepare_remove(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    let selects = request.has_flag(sqe_flags::FIXED_FILE | sqe_flags::BUFFER_SELECT);
    let unused = sqe.buf_index != 0 || sqe.len != 0 || sqe.file_index != 0 || sqe.addr3 != 0 || sqe.pad2 != 0;
    if selects || unused {
        return Err(Errno::EINVAL);
    }
    let (flags, target) = (sqe.op_flags, sqe.addr);
    if flags & abi::IORING_TIMEOUT_UPDATE_MASK == 0 {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        request.operation = Operation::TimeoutUpdate(TimeoutUpdate::Remove { target });
        return Ok(());
    }
    // An update cannot change the timeout's clock.
    let known = abi::IORING_TIMEOUT_UPDATE_MASK | abi::IORING_TIMEOUT_ABS;
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let linked = flags & abi::IORING_LINK_TIMEOUT_UPDATE != 0;
    let absolute = flags & abi::IORING_TIMEOUT_ABS != 0;
    let span = read_span(sqe.off)?;
    if flags & abi::IORING_TIMEOUT_UPDATE == 0 {
        // LINK_TIMEOUT_UPDATE alone is accepted, but the request removes the timeout.
        request.operation = Operation::TimeoutUpdate(TimeoutUpdate::Remove { target });
        return Ok(());
    }
    request.operation = Operation::TimeoutUpdate(TimeoutUpdate::Update { target, linked, absolute, span });
    Ok(())
}

pub(crate) fn issue_remove(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::TimeoutUpdate(update) = request.operation else {
        return IssueOutcome::done(Errno::EINVAL.negative());
    };
    let answer = self::update(locked, update);
    ask_processes::outcome(locked, request, answer)
}

/// Removes or changes a timeout of this process. Error: `ENOENT` if no timeout has the user data.
pub(crate) fn update(locked: &mut LockedRing, update: TimeoutUpdate) -> Result<i32, Errno> {
    match update {
        TimeoutUpdate::Remove { target } => remove(locked, target),
        TimeoutUpdate::Update { target, linked, absolute, span } => {
            let noted = locked.waiting.timeouts.update(target, linked, absolute, span)?;
            locked.note_timer(&noted, None);
            Ok(0)
        }
    }
}

fn remove(locked: &mut LockedRing, target: u64) -> Result<i32, Errno> {
    let is_it = |timeout: &Request| timeout.sqe.user_data == target && !timeout.is_delayed();
    let mut timeout = locked.waiting.timeouts.extract(is_it).ok_or(Errno::ENOENT)?;
    timeout.progress = Progress::Refused;
    timeout.result = Errno::ECANCELED.negative();
    locked.queues.issuable.push_back(timeout);
    Ok(0)
}
