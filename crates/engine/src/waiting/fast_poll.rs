//! Requests that wait for a file to be ready: arming a request on its file's registration
//! (`poll_table`), and what an event means for it. A request that would block is armed here and
//! issued again when its file is ready. A POLL_ADD is armed here and completed.
//!
//! - **The set.** The ring's epoll set is made when the first request is armed. The thread that
//!   waits in `enter` waits on it. While no thread is inside, the ring watcher does.
//! - **An event** calls all requests that wait behind its registration, in the order in which they
//!   came, as a wake-up does in the kernel. Each POLL_ADD is completed, each other request is tried
//!   once more. A request that would block again goes back to the end of the list without a system
//!   call of its own.
//! - **Time slices.** A multishot request is tried as long as it gives results, but after [`TURN`]
//!   of them it goes behind all other requests that are ready. Meanwhile it waits at its
//!   registration, where a cancellation finds it, and is runnable. The driver comes back to it
//!   ([`go_on`]) before it sleeps. A driver that leaves has another thread do so. So the edge that
//!   called the request may be used up without any loss. A single receive that is put together from
//!   many pieces works the same way.
//! - **Registered files.** The registration of a registered file outlives its requests, and reports
//!   nothing twice. So a request may wait there only if it has just found its file not ready. For a
//!   request that has not tried ([`arm_first`]), the engine polls the file. If something is there,
//!   the request is runnable at once.
//! - **EPOLLEXCLUSIVE** makes no difference here. epoll merges events that come close together. If
//!   only one of the exclusive waiters were called for them, the others' events might be lost.

use super::expected;
use crate::completion::{complete, readiness};
use crate::host;
use crate::op::{self, Operation};
use crate::request::{Request, RequestEntry, RequestId};
use crate::ring::LockedRing;
use crate::submission::issue;
pub(crate) use crate::waiting::poll_table::{Interest, Turn};
use crate::waiting::poll_table::{Place, Tag};
use crate::waiting::{device_queues, workers};
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor;
use usring_sys::epoll::{self, Epoll, Event};
use usring_sys::{Errno, timerfd};
use usring_uapi::sqe_flags;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Issue the request again.
    Retry,
    /// Complete the request with the events.
    Report,
}

/// Events taken per epoll_wait(2). The program comes back for more. So it is not kept waiting by
/// what other files have brought, and gives back the buffers that it was lent.
pub(crate) const EVENTS: usize = 32;
/// Results that a multishot gives in a row while other requests wait: one, and the 32 retries that
/// the kernel allows it.
pub(crate) const TURN: u32 = 33;

/// Event data of descriptors that belong to no request: they only wake the waiter.
pub(crate) const WAKE_DATA: u64 = u64::MAX;
/// Event data of devices' interrupts.
pub(crate) const DEVICE_DATA: u64 = u64::MAX - 1;
/// Event data of the timer.
const TIMER_DATA: u64 = u64::MAX - 2;

/// Arms a request that would block. If its file cannot be polled, the request goes to a worker.
pub(crate) fn arm_retry(locked: &mut LockedRing, request: RequestEntry, events: u32, turn: Turn) {
    let interest = Interest { events, multishot: request.multishot };
    if locked.polls.can_go_back(&request, interest) {
        return locked.polls.push(request.place, request, Purpose::Retry, turn);
    }
    add(locked, request, interest, Begins::Retry(turn));
}

/// Arms a request that has not tried its file yet.
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
    /// The request has found nothing, or is called again in any case.
    Retry(Turn),
    /// There may be something for the request.
    First,
    Report,
}

fn add(locked: &mut LockedRing, mut request: RequestEntry, interest: Interest, begins: Begins) {
    if let Some(event) = locked.event_descriptor.as_ref().filter(|_| locked.ring.defers_task_work()) {
        event.note_wait(request.sqe.fd, request.file.number);
    }
    let believed = locked.polls.knows(request.file.number);
    let purpose = if matches!(begins, Begins::Report) { Purpose::Report } else { Purpose::Retry };
    let socket = purpose == Purpose::Retry && op::has_met_socket(&request);
    let attached = ensure_set(locked).and_then(|()| locked.polls.attach(&mut request.file, interest, socket));
    match (attached, begins) {
        (Ok(place), Begins::Retry(turn)) => locked.polls.push(place.tag, request, purpose, turn),
        (Ok(place), Begins::First) => begin_first(locked, request, interest, place),
        (Ok(place), Begins::Report) => begin_report(locked, request, interest, place),
        // The number has come to mean a file of another kind: begin again, now that this is known.
        (Err(Errno::EPERM), _) if believed && purpose == Purpose::Retry => issue::issue(locked, request),
        (Err(error), _) => refused(locked, request, interest, purpose, error),
    }
}

/// Returns what the file is ready for, where its registration would not report that. A registration
/// that has reported an event reports only what comes after it. The earlier event may have been for
/// a request that is gone by now.
fn is_there(request: &Request, interest: Interest, place: Place) -> u32 {
    if !place.has_reported {
        return 0;
    }
    epoll::poll_now(request.file.number, interest.events).unwrap_or(0)
}

fn begin_first(locked: &mut LockedRing, mut request: RequestEntry, interest: Interest, place: Place) {
    let there = is_there(&request, interest, place);
    let turn = if there == 0 { Turn::Over } else { Turn::Due };
    request.ready_for = there;
    locked.polls.push(place.tag, request, Purpose::Retry, turn);
}

/// A multishot POLL_ADD begins with what is there at this moment, even if a request behind it
/// takes that. So its turn is due. An event that the set reports before its turn takes the
/// turn's place, as wake-ups that come together do in the kernel.
fn begin_report(locked: &mut LockedRing, mut request: RequestEntry, interest: Interest, place: Place) {
    // Where the set is to report what is there, and another thread sleeps on the set, that
    // thread has the event already.
    let is_left_to_sleeper = !place.has_reported && locked.ring.wakers.sleep.is_led();
    let mut turn = Turn::Over;
    if interest.multishot && !is_left_to_sleeper {
        request.ready_for = epoll::poll_now(request.file.number, interest.events).unwrap_or(0);
        turn = if request.ready_for == 0 { Turn::Over } else { Turn::Due };
    }
    locked.polls.push(place.tag, request, Purpose::Report, turn);
}

/// Handles a request whose file epoll refuses.
fn refused(locked: &mut LockedRing, request: RequestEntry, interest: Interest, purpose: Purpose, error: Errno) {
    match (error, purpose) {
        (Errno::EPERM, Purpose::Retry) if request.has_flag(sqe_flags::BUFFER_SELECT) || request.row.work.is_none() => {
            // The file cannot be polled. A worker cannot help either: the request has no buffer
            // yet, or its opcode no blocking work.
            complete::complete(locked, request, Errno::EAGAIN.negative().into());
        }
        (Errno::EPERM, Purpose::Retry) => workers::hand_over(locked, request),
        // A file that cannot be polled is always ready, as in poll(2).
        (Errno::EPERM, Purpose::Report) => {
            let ready = interest.events & (epoll::IN | epoll::OUT | 0x40 | 0x100);
            let answer = if ready == 0 { Errno::EINVAL.negative() } else { ready as i32 };
            complete::complete(locked, request, answer.into());
        }
        _ => complete::complete(locked, request, error.negative().into()),
    }
}

/// Makes the set on first use, with the ring's wake descriptor in it.
pub(crate) fn ensure_set(locked: &mut LockedRing) -> Result<(), Errno> {
    if locked.polls.set().is_some() {
        return Ok(());
    }
    let set = Epoll::new()?;
    locked.ring.wakers.join(&set)?;
    locked.polls.put_set(set);
    Ok(())
}

/// Arms the set's timer for the ring's next timeout. A timer that fires earlier is left as it is:
/// the thread that handles its event comes by here again. So a ring whose timeouts are far away
/// costs its drivers no call. (On a ring that defers task work, other threads see the event and
/// leave it where it is.)
#[inline]
pub(crate) fn arm_timer(locked: &mut LockedRing, due: Option<Nanoseconds>) -> Result<(), Errno> {
    let Some(due) = due else { return Ok(()) };
    let fires = locked.polls.timer_fires;
    if fires != 0 && fires <= due && !locked.ring.defers_task_work() {
        return Ok(());
    }
    arm_timer_anew(locked, due)
}

#[inline(never)]
fn arm_timer_anew(locked: &mut LockedRing, due: Nanoseconds) -> Result<(), Errno> {
    ensure_set(locked)?;
    if locked.polls.timer.is_none() {
        let timer = timerfd::create()?;
        if let Some(set) = locked.polls.set() {
            set.add(timer.number(), epoll::IN | epoll::EDGE, TIMER_DATA)?;
        }
        locked.polls.timer = Some(timer);
    }
    if let Some(timer) = &locked.polls.timer {
        timerfd::arm_at(timer.number(), due)?;
        locked.polls.timer_fires = due.max(1);
    }
    Ok(())
}

/// Polls which armed files are ready now, without waiting. While a thread leads, only that thread
/// takes events from the set: one of them may be the event that wakes it. The leader is in the
/// kernel or on its way here.
pub(crate) fn look(locked: &mut LockedRing) {
    if locked.ring.wakers.sleep.is_led() {
        go_on(locked);
        return;
    }
    let mut events = [Event::default(); EVENTS];
    // This is also done when nothing is armed: a wake event that no thread takes would keep the set
    // readable, and the ring watcher awake.
    loop {
        let Some(set) = locked.polls.set() else { return };
        let count = set.ready(&mut events).unwrap_or(0);
        dispatch(locked, &events[..count]);
        if count < events.len() {
            return;
        }
    }
}

/// Handles what the epoll set reported.
pub(crate) fn dispatch(locked: &mut LockedRing, events: &[Event]) {
    fire_all(locked, events);
    issue::run_issuable(locked);
    go_on(locked);
}

/// Calls the requests whose files are ready, before the chains of a batch go on, where a
/// request is due. A poll that has just begun reports what is there. The chains bring its
/// next event. Issues no successor.
#[inline]
pub(crate) fn look_before_successors(locked: &mut LockedRing) {
    if locked.polls.has_due() {
        take_events(locked);
    }
}

#[cold]
#[inline(never)]
fn take_events(locked: &mut LockedRing) {
    let mut events = [Event::default(); EVENTS];
    while !locked.ring.wakers.sleep.is_led() {
        let Some(set) = locked.polls.set() else { return };
        let count = set.ready(&mut events).unwrap_or(0);
        fire_all(locked, &events[..count]);
        if count < events.len() {
            return;
        }
    }
}

fn fire_all(locked: &mut LockedRing, events: &[Event]) {
    locked.polls.expected.told_of(events.len());
    prefetch(locked, events);
    for (at, event) in events.iter().enumerate() {
        if let Some(next) = events.get(at + 1) {
            locked.polls.prefetch_waiter(next.data);
        }
        let (data, mask) = (event.data, event.events);
        if data == WAKE_DATA {
            // The event has woken this thread. It is edge-triggered: there is nothing to read.
            continue;
        }
        if data == DEVICE_DATA {
            device_queues::interrupted(locked);
            continue;
        }
        if data == TIMER_DATA {
            locked.polls.timer_fires = 0;
            continue;
        }
        fire(locked, data, mask);
    }
}

/// Prefetches the slots of all events, and the request of the first one: they were last touched
/// long ago.
#[inline]
fn prefetch(locked: &LockedRing, events: &[Event]) {
    for event in events {
        locked.polls.prefetch_slot(event.data);
    }
    if let Some(first) = events.first() {
        locked.polls.prefetch_waiter(first.data);
    }
}

/// Calls each runnable request once.
#[inline]
pub(crate) fn go_on(locked: &mut LockedRing) {
    if locked.polls.has_due() {
        take_turns(locked);
    }
}

#[inline(never)]
fn take_turns(locked: &mut LockedRing) {
    for _ in 0..locked.polls.due_count() {
        let Some((tag, waiter)) = locked.polls.begin_turn() else { continue };
        match waiter.purpose {
            Purpose::Report => {
                let ready = waiter.request.ready_for;
                report(locked, tag, waiter.request, ready);
            }
            Purpose::Retry if waiter.request.multishot => call(locked, tag, waiter.request),
            Purpose::Retry => issue::issue(locked, waiter.request),
        }
        locked.polls.end_round(tag);
    }
    issue::run_issuable(locked);
}

/// Tries multishots for which the set has reported nothing, but whose files have probably become
/// ready since the last call.
#[inline(never)]
pub(crate) fn try_expected(locked: &mut LockedRing) {
    let (mut hits, mut misses) = (0, 0);
    for _ in 0..locked.polls.expected.chances() {
        let Some((tag, waiter)) = locked.polls.begin_expected() else { break };
        let posted = locked.cq.tail();
        call(locked, tag, waiter.request);
        locked.polls.end_round(tag);
        let nothing = locked.cq.tail() == posted;
        locked.polls.expect(tag, nothing);
        hits += u32::from(!nothing);
        misses += u32::from(nothing);
        if misses == expected::MISSES {
            break;
        }
    }
    locked.polls.expected.judge(hits, misses);
    issue::run_issuable(locked);
}

/// Calls runnable requests before the caller returns, as far as that does not keep it for long. The
/// owner of a ring that defers task work asks for these itself.
#[inline(always)]
pub(crate) fn go_on_a_while(locked: &mut LockedRing) {
    if locked.polls.has_due() && !locked.ring.defers_task_work() {
        look_while_due(locked);
    }
}

#[inline(never)]
fn look_while_due(locked: &mut LockedRing) {
    const PASSES: u32 = 16;
    for _ in 0..PASSES {
        look(locked);
        if !locked.polls.has_due() {
            return;
        }
    }
}

fn fire(locked: &mut LockedRing, tag: u64, mask: u32) {
    // An event of requests that were cancelled meanwhile finds none.
    if !locked.polls.begin_round(tag) {
        return;
    }
    let mut retried = false;
    while let Some(waiter) = locked.polls.next_of_round(tag) {
        let mut request = waiter.request;
        request.ready_for = mask;
        locked.statistics.count_polled(request.sqe.opcode);
        match waiter.purpose {
            Purpose::Retry if request.multishot => {
                retried = true;
                call(locked, tag, request);
            }
            Purpose::Retry => issue::issue(locked, request),
            Purpose::Report => report(locked, tag, request, mask),
        }
    }
    locked.polls.end_round(tag);
    if retried {
        locked.polls.expect(tag, false);
    }
}

/// Completes a POLL_ADD with what its file is ready for. A multishot waits on.
fn report(locked: &mut LockedRing, tag: Tag, request: RequestEntry, mask: u32) {
    if request.multishot && report_more(locked, &request, mask) {
        locked.polls.push(tag, request, Purpose::Report, Turn::Over);
    } else {
        complete::complete(locked, request, (mask as i32).into());
    }
}

/// Calls a multishot that has waited there.
#[inline(always)]
fn call(locked: &mut LockedRing, tag: Tag, request: RequestEntry) {
    if let Some(request) = issue::call(locked, request) {
        locked.polls.waits_on(tag, request);
    }
}

/// Posts one more CQE of a multishot poll. Returns `false` if the next CQE is its last, because
/// this one does not fit.
fn report_more(locked: &mut LockedRing, request: &Request, mask: u32) -> bool {
    !is_told_by_a_ring(locked, request.sqe.fd, request.file.number)
        && complete::post_more(locked, request.sqe.user_data, mask as i32, 0)
}

/// Returns whether completions make the file readable. That holds for the ring's registered
/// eventfd, a ring's descriptor, and an epoll set that contains one of these. A multishot on such a
/// file could feed itself for ever, so its first event of that kind is its last.
fn is_told_by_a_ring(locked: &LockedRing, asked: i32, number: i32) -> bool {
    let by_event = locked.event_descriptor.as_ref().is_some_and(|event| {
        let own = event.descriptor.number();
        event.number == asked
            || descriptor::is_same_file(own, number)
            || epoll::poll_now(own, epoll::IN).is_ok_and(|ready| ready != 0) && epoll::holds(number, event.number)
    });
    by_event || host::ring_of(asked).is_some() || readiness::is_signalled_in(number)
}

/// Drops set and timer, for a ring that goes away.
pub(crate) fn dissolve(locked: &mut LockedRing) {
    locked.polls = Default::default();
}

/// Ends the wait of one request, found by its id (a link timeout expired).
pub(crate) fn cancel_id(locked: &mut LockedRing, id: RequestId) -> Option<RequestEntry> {
    locked.polls.extract(|request| request.id == id)
}

/// Returns whether a file is a character device that cannot be polled (`/dev/zero`).
pub(crate) fn is_unpolled_device(number: i32) -> bool {
    descriptor::identity(number).is_ok_and(|identity| identity.is_character_device()) && !epoll::can_be_polled(number)
}
