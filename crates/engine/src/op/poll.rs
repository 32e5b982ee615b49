//! POLL_ADD and POLL_REMOVE. POLL_REMOVE can also change an armed poll.

use crate::completion::readiness;
use crate::host;
use crate::request::conditions::Interest;
use crate::request::operation::{Operation, PollUpdate};
use crate::request::outcome::IssueOutcome;
use crate::request::{Progress, Request};
use crate::ring::LockedRing;
use crate::waiting::ask_processes;
use usring_sys::{Errno, epoll};
use usring_uapi::io_uring as abi;
use usring_uapi::{opcode, sqe_flags};

const UPDATES: u32 = abi::IORING_POLL_UPDATE_EVENTS | abi::IORING_POLL_UPDATE_USER_DATA;

fn interest(events: u32, flags: u32) -> Interest {
    let multishot = flags & abi::IORING_POLL_ADD_MULTI != 0;
    // These bits are options of epoll_ctl(2), not events. The program cannot set them, because
    // usring chooses them for its own epoll set. (Bit 29 is EPOLLWAKEUP.)
    let behaviour = epoll::ONESHOT | epoll::EDGE | epoll::EXCLUSIVE | 1 << 29;
    // POLLRDHUP is reported even if the program did not ask for it, as error and hang-up are.
    Interest { events: events & !behaviour | epoll::PEER_HANG_UP, multishot }
}

pub(crate) fn prepare_add(locked: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    // The manual page names IORING_POLL_ADD_LEVEL for POLL_ADD, but the kernel refuses the flag. So
    // usring refuses it, too.
    if sqe.buf_index != 0 || sqe.off != 0 || sqe.addr != 0 || sqe.len & !abi::IORING_POLL_ADD_MULTI != 0 {
        return Err(Errno::EINVAL);
    }
    if sqe.len & abi::IORING_POLL_ADD_MULTI != 0 && request.has_flag(sqe_flags::CQE_SKIP_SUCCESS) {
        return Err(Errno::EINVAL);
    }
    let mut interest = interest(sqe.op_flags, sqe.len);
    if locked.ring.reports_asked_hang_ups_only() {
        interest.events &= sqe.op_flags | !epoll::PEER_HANG_UP;
    }
    request.multishot = interest.multishot;
    request.operation = Operation::Poll(interest);
    Ok(())
}

pub(crate) fn issue_add(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::Poll(interest) = request.operation else { return IssueOutcome::done(Errno::EINVAL.negative()) };
    if host::watch(request.file.number) {
        readiness::clear_emptied_from(locked);
    }
    if interest.multishot {
        return IssueOutcome::AwaitsPoll;
    }
    match epoll::poll_now(request.file.number, interest.events) {
        Err(error) => IssueOutcome::done(error.negative()),
        Ok(0) => IssueOutcome::AwaitsPoll,
        Ok(ready) => IssueOutcome::done(ready.cast_signed()),
    }
}

pub(crate) fn prepare_remove(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if sqe.buf_index != 0 || sqe.file_index != 0 || sqe.len & !(UPDATES | abi::IORING_POLL_ADD_MULTI) != 0 {
        return Err(Errno::EINVAL);
    }
    // Without an update, the multishot flag has no meaning and is refused.
    if sqe.len == abi::IORING_POLL_ADD_MULTI {
        return Err(Errno::EINVAL);
    }
    let user_data = (sqe.len & abi::IORING_POLL_UPDATE_USER_DATA != 0).then_some(sqe.off);
    let new_interest = (sqe.len & abi::IORING_POLL_UPDATE_EVENTS != 0).then(|| interest(sqe.op_flags, sqe.len));
    if user_data.is_none() && sqe.off != 0 || new_interest.is_none() && sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    request.operation = Operation::PollUpdate(PollUpdate { target: sqe.addr, user_data, interest: new_interest });
    Ok(())
}

pub(crate) fn issue_remove(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let Operation::PollUpdate(update) = request.operation else {
        return IssueOutcome::done(Errno::EINVAL.negative());
    };
    let answer = self::update(locked, update);
    ask_processes::outcome(locked, request, answer)
}

/// Removes or changes a poll of this process. Error: `ENOENT` if no poll has the user data.
pub(crate) fn update(locked: &mut LockedRing, update: PollUpdate) -> Result<i32, Errno> {
    let PollUpdate { target, user_data, interest } = update;
    let is_it = |poll: &Request| poll.sqe.opcode == opcode::POLL_ADD && poll.sqe.user_data == target;
    let mut poll = locked.waiting.polls.extract(is_it).ok_or(Errno::ENOENT)?;
    if user_data.is_none() && interest.is_none() {
        poll.progress = Progress::Refused;
        poll.result = Errno::ECANCELED.negative();
    }
    // A poll with new user data or new events is issued again, as if it were new.
    if let Some(user_data) = user_data {
        poll.sqe.user_data = user_data;
        poll.journal.inspect(|slot| locked.journal().rename(*slot, user_data));
    }
    if let (Some(new), Operation::Poll(armed)) = (interest, &mut poll.operation) {
        // An update changes only the events. A multishot poll stays a multishot, and any other poll
        // stays single.
        armed.events = new.events;
    }
    locked.queues.issuable.push_back(poll);
    Ok(0)
}
