//! Requests that wait until a file is ready (the kernel's fast poll). Each request is armed: it
//! begins to wait at its file's registration in the ring's epoll set (`poll_table`). When an event
//! wakes the request (`driving::fire`), a POLL_ADD is completed, and any other request is issued
//! again.
//!
//! - **The epoll set** is made when the first request is armed. A thread that waits in `enter`
//!   sleeps on the set. While no thread is in `enter`, the ring watcher watches the set.
//! - **An event** wakes all requests that wait at its registration, in order of arrival, as in the
//!   kernel. A request that would block again goes back to the end of the registration's list,
//!   without a system call of its own.
//! - **Time slices.** A multishot is tried again as long as it gives results. After [`SLICE`]
//!   results it has to yield to all other ready requests. (READ_MULTISHOT yields only at its
//!   submission, after one result.) A multishot that has yielded waits at its registration, where a
//!   cancellation finds it, and is marked runnable. The driver tries runnable requests again before
//!   it sleeps (`driving::dispatch`). A driver that leaves the ring passes the runnable requests to
//!   another thread. So no data is missed although the set has already reported the edge. A receive
//!   that collects its data in many pieces gets time slices, too.
//! - **Registered files.** The registration of a registered file outlives its requests, and reports
//!   no event twice. So a request may wait there only after it has found its file not ready. For a
//!   request that has not tried its file ([`arm_first`]), the engine polls the file. If an event is
//!   present, the request is runnable at once.
//! - **EPOLLEXCLUSIVE** makes no difference here. epoll merges events that come close together. If
//!   a merged event woke only one of the exclusive waiters, the others might lose their event.

use crate::completion::complete;
pub(crate) use crate::request::conditions::{Interest, TimeSlice};
use crate::request::conditions::{Purpose, RequestId};
use crate::request::operation::Operation;
use crate::request::{Request, RequestEntry};
use crate::ring::LockedRing;
use crate::waiting::poll_table::{AssignedSlot, TIMER_DATA};
use crate::waiting::workers;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor;
use usring_sys::epoll::{self, Epoll};
use usring_sys::{Errno, timerfd};
use usring_uapi::sqe_flags;

/// Maximum number of results that a multishot gives before it yields to other requests: one, and
/// the 32 retries that the kernel allows.
pub(crate) const SLICE: u32 = 33;

/// Makes a request wait: for its file, if the request has found the file not ready, or for its next
/// time slice. If the file cannot be polled, the request goes to a worker.
pub(crate) fn arm_retry(locked: &mut LockedRing, request: RequestEntry, events: u32, slice: TimeSlice) {
    let interest = Interest { events, multishot: request.multishot };
    if locked.waiting.polls.can_go_back(&request, interest) {
        return locked.waiting.polls.push(request.poll_slot, request, Purpose::Retry, slice);
    }
    add(locked, request, interest, Begins::Retry(slice));
}

/// Makes a request wait for its file. The request has not tried the file yet.
pub(crate) fn arm_first(locked: &mut LockedRing, request: RequestEntry, events: u32) {
    let interest = Interest { events, multishot: request.multishot };
    add(locked, request, interest, Begins::First);
}

/// Arms a POLL_ADD.
pub(crate) fn arm(locked: &mut LockedRing, request: RequestEntry) {
    let Operation::Poll(interest) = request.operation else { unreachable!("only a poll waits for its own events") };
    add(locked, request, interest, Begins::Report);
}

/// How a request begins to wait.
#[derive(Clone, Copy)]
enum Begins {
    /// The request has found its file not ready, or waits for its next time slice.
    Retry(TimeSlice),
    /// The request has not tried its file, which may be ready.
    First,
    Report,
}

fn add(locked: &mut LockedRing, mut request: RequestEntry, interest: Interest, begins: Begins) {
    if let Some(event) = locked.notify.event_descriptor.as_ref().filter(|_| locked.ring.defers_task_work()) {
        event.note_wait(request.sqe.fd, request.file.number);
    }
    let believed = locked.waiting.polls.knows(request.file.number);
    let purpose = if matches!(begins, Begins::Report) { Purpose::Report } else { Purpose::Retry };
    let socket = purpose == Purpose::Retry && request.is_known_socket();
    let attached = ensure_set(locked).and_then(|()| locked.waiting.polls.attach(&mut request.file, interest, socket));
    match (attached, begins) {
        (Ok(assigned), Begins::Retry(slice)) => locked.waiting.polls.push(assigned.tag, request, purpose, slice),
        (Ok(assigned), Begins::First) => begin_first(locked, request, interest, assigned),
        (Ok(assigned), Begins::Report) => begin_report(locked, request, interest, assigned),
        // The program has meanwhile opened another file under this descriptor number, and that file
        // cannot be polled. The driver issues the request again, for the new file, before it leaves
        // the ring.
        (Err(Errno::EPERM), _) if believed && purpose == Purpose::Retry => locked.queues.issuable.push_back(request),
        (Err(error), _) => handle_refusal(locked, request, interest, purpose, error),
    }
}

/// Returns the events that the file has now, if the epoll set will not report them. The set's entry
/// for the file is edge-triggered: after its first report, the entry reports only later events. The
/// first report may have woken a request that no longer exists.
fn missed_events(request: &Request, interest: Interest, assigned: AssignedSlot) -> u32 {
    if !assigned.has_reported {
        return 0;
    }
    epoll::poll_now(request.file.number, interest.events).unwrap_or(0)
}

fn begin_first(locked: &mut LockedRing, mut request: RequestEntry, interest: Interest, assigned: AssignedSlot) {
    let missed = missed_events(&request, interest, assigned);
    let slice = if missed == 0 { TimeSlice::Over } else { TimeSlice::Runnable };
    request.ready_for = missed;
    locked.waiting.polls.may_report = true;
    locked.waiting.polls.push(assigned.tag, request, Purpose::Retry, slice);
}

/// Begins a POLL_ADD. A multishot poll's first CQE reports the events that are present now, even if
/// another request reads the data before the poll runs. So the poll is runnable at once. If the
/// epoll set reports an event before the poll runs, the CQE reports that event instead. In the
/// kernel, too, the two wake-ups become one.
fn begin_report(locked: &mut LockedRing, mut request: RequestEntry, interest: Interest, assigned: AssignedSlot) {
    // If the epoll set has not reported the file's present events yet, the set will report them. If
    // the ring has a leader (a waiter that sleeps on the set), the leader then posts the
    // multishot's first CQE.
    let is_left_to_sleeper = !assigned.has_reported && locked.ring.is_led();
    let mut slice = TimeSlice::Over;
    if interest.multishot && !is_left_to_sleeper {
        request.ready_for = epoll::poll_now(request.file.number, interest.events).unwrap_or(0);
        slice = if request.ready_for == 0 { TimeSlice::Over } else { TimeSlice::Runnable };
    }
    locked.waiting.polls.push(assigned.tag, request, Purpose::Report, slice);
}

/// Handles the error of epoll_ctl(2) for a request's file.
fn handle_refusal(locked: &mut LockedRing, request: RequestEntry, interest: Interest, purpose: Purpose, error: Errno) {
    match (error, purpose) {
        (Errno::EPERM, Purpose::Retry)
            if request.has_flag(sqe_flags::BUFFER_SELECT) || request.properties.work.is_none() =>
        {
            // The file cannot be polled. A worker cannot run the request either: the request has no
            // buffer yet, or its opcode has no blocking work.
            complete::complete(locked, request, Errno::EAGAIN.negative().into());
        }
        (Errno::EPERM, Purpose::Retry) => workers::queue_for_worker(locked, request),
        // A file that cannot be polled is always ready, as in poll(2).
        (Errno::EPERM, Purpose::Report) => {
            let ready = interest.events & (epoll::IN | epoll::OUT | 0x40 | 0x100);
            let answer = if ready == 0 { Errno::EINVAL.negative() } else { ready.cast_signed() };
            complete::complete(locked, request, answer.into());
        }
        _ => complete::complete(locked, request, error.negative().into()),
    }
}

/// Makes the ring's epoll set on first use, and adds the wake eventfd to it.
pub(crate) fn ensure_set(locked: &mut LockedRing) -> Result<(), Errno> {
    if locked.waiting.polls.set().is_some() {
        return Ok(());
    }
    let set = Epoll::new()?;
    locked.ring.wakers.add_wake_event(&set)?;
    locked.waiting.polls.put_set(set);
    Ok(())
}

/// Arms the timer in the ring's epoll set for the time `due`. Leaves a timer that is set for an
/// earlier time: the thread that handles the timer's event calls this function again. So a timeout
/// that is due after another one costs no system call.
///
/// On a ring that defers task work, every call sets the timer. The ring watcher gets the timer's
/// event there, but only notifies the ring's owner, and does not call this function.
#[inline]
pub(crate) fn arm_timer(locked: &mut LockedRing, due: Option<Nanoseconds>) -> Result<(), Errno> {
    let Some(due) = due else { return Ok(()) };
    let fires = locked.waiting.polls.timer_fires;
    if fires != 0 && fires <= due && !locked.ring.defers_task_work() {
        return Ok(());
    }
    arm_timer_anew(locked, due)
}

#[inline(never)]
fn arm_timer_anew(locked: &mut LockedRing, due: Nanoseconds) -> Result<(), Errno> {
    ensure_set(locked)?;
    if locked.waiting.polls.timer.is_none() {
        let timer = timerfd::create()?;
        if let Some(set) = locked.waiting.polls.set() {
            set.add(timer.number(), epoll::IN | epoll::EDGE, TIMER_DATA)?;
        }
        locked.waiting.polls.timer = Some(timer);
    }
    if let Some(timer) = &locked.waiting.polls.timer {
        timerfd::arm_at(timer.number(), due)?;
        locked.waiting.polls.timer_fires = due.max(1);
    }
    Ok(())
}

/// Drops the epoll set and its timer, because the ring is closed.
pub(crate) fn drop_set(locked: &mut LockedRing) {
    locked.waiting.polls = Default::default();
}

/// Removes and returns the waiting request with this id, because its LINK_TIMEOUT has expired.
/// `None`: no request with this id waits for a file.
pub(crate) fn cancel_id(locked: &mut LockedRing, id: RequestId) -> Option<RequestEntry> {
    locked.waiting.polls.extract(|request| request.id == id)
}

/// Returns whether a file is a character device that cannot be polled (such as `/dev/zero`).
pub(crate) fn is_unpolled_device(number: i32) -> bool {
    descriptor::identity(number).is_ok_and(|identity| identity.is_character_device()) && !epoll::can_be_polled(number)
}
