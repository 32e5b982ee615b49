//! Who waits for a file to be ready: arming a request on its file's
//! registration (`poll_table`), and what an event of it means. A request that
//! would block is armed here and issued again when its file is ready; a
//! POLL_ADD is armed here and completed.
//!
//! The ring's epoll set is made when the first request is armed. It is waited
//! on by the thread that waits in `enter` or, while nobody is inside, by the
//! attendant.
//!
//! An event calls all who wait behind its registration, in the order in which
//! they came, as a wake-up does in the kernel: each POLL_ADD is told of it, each
//! other request is tried once more, and what would block again goes back to
//! the end of the list without a system call of its own.
//!
//! A multishot request is tried as often as it gives something, but not for
//! ever: after a turn of [`TURN`] results it goes behind everybody else who is
//! ready. It waits at its registration meanwhile, for a cancellation to find,
//! and is due: whoever drives the ring comes back to it ([`go_on`]) before it
//! sleeps, and a driver that leaves has somebody else do so. So the edge that
//! called it may be used up without anything being lost. A single receive that is
//! put together of many pieces does the same.
//!
//! A registered file's registration outlives who waits behind it, and tells of
//! nothing twice. So a request may wait there only if it has just found its file
//! not ready; one that has not asked ([`arm_first`]) has that asked for it, and if
//! something is there its turn is due at once.
//!
//! EPOLLEXCLUSIVE makes
//! no difference here: epoll merges events that come close together, so if only
//! one of the exclusive waiters were called for them, the others' might be lost.

use super::expected;
use crate::complete;
use crate::device_queues;
use crate::host;
use crate::issue;
use crate::op::{self, Operation};
use crate::poll_table::Place;
use crate::poll_table::Tag;
pub(crate) use crate::poll_table::{Interest, Turn};
use crate::readiness;
use crate::request::{Request, RequestEntry, RequestId};
use crate::ring::LockedRing;
use crate::workers;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor;
use usring_sys::epoll::{self, Epoll, Event};
use usring_sys::{Errno, timerfd};
use usring_uapi::sqe_flags;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Issue the request again.
    Retry,
    /// Complete it with the events.
    Report,
}

/// So many events are taken from the set at a time. The program comes back for
/// more, so it is not kept waiting by what others have brought, and gives
/// back the buffers that it was lent.
pub(crate) const EVENTS: usize = 32;
/// Results that a multishot gives in a row while others wait: one, and the 32
/// retries that the kernel allows it.
pub(crate) const TURN: u32 = 33;

/// Event data of descriptors that are no request: only wakes the waiter.
pub(crate) const WAKE_DATA: u64 = u64::MAX;
/// That of devices' interrupts.
pub(crate) const DEVICE_DATA: u64 = u64::MAX - 1;
/// That of the timer: it has fired.
const TIMER_DATA: u64 = u64::MAX - 2;

/// Arms a request that would block; its file decides: what cannot be polled
/// goes to a worker.
pub(crate) fn arm_retry(locked: &mut LockedRing, request: RequestEntry, events: u32, turn: Turn) {
    let interest = Interest { events, multishot: request.multishot };
    if locked.polls.can_go_back(&request, interest) {
        return locked.polls.push(request.place, request, Purpose::Retry, turn);
    }
    add(locked, request, interest, Begins::Retry(turn));
}

/// The same for one that knows nothing of its file yet.
pub(crate) fn arm_first(locked: &mut LockedRing, request: RequestEntry, events: u32) {
    let interest = Interest { events, multishot: request.multishot };
    add(locked, request, interest, Begins::First);
}

/// Arms a POLL_ADD.
pub(crate) fn arm(locked: &mut LockedRing, request: RequestEntry) {
    let Operation::Poll(interest) = request.operation else { unreachable!("only a poll waits for its own events") };
    add(locked, request, interest, Begins::Report);
}

/// As what a request begins to wait.
#[derive(Clone, Copy)]
enum Begins {
    /// It has found nothing, or comes back in any case.
    Retry(Turn),
    /// There may be something for it.
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
        // The number has come to mean a file of another kind: from the start,
        // with the truth known now.
        (Err(Errno::EPERM), _) if believed && purpose == Purpose::Retry => issue::issue(locked, request),
        (Err(error), _) => refused(locked, request, interest, purpose, error),
    }
}

/// Returns what the file is ready for, where its registration does not report that: one
/// that has reported an event reports what comes. What is there may have come long ago,
/// for a request that is gone by now.
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

fn begin_report(locked: &mut LockedRing, request: RequestEntry, interest: Interest, place: Place) {
    // A multishot begins with what is there.
    if interest.multishot {
        let there = is_there(&request, interest, place);
        if there != 0 && !complete::post_more(locked, request.sqe.user_data, there as i32, 0) {
            return complete::complete(locked, request, (there as i32).into());
        }
    }
    locked.polls.push(place.tag, request, Purpose::Report, Turn::Over);
}

/// The file is not one that epoll takes.
fn refused(locked: &mut LockedRing, request: RequestEntry, interest: Interest, purpose: Purpose, error: Errno) {
    match (error, purpose) {
        (Errno::EPERM, Purpose::Retry) if request.has_flag(sqe_flags::BUFFER_SELECT) || request.row.work.is_none() => {
            // Neither polled nor, without its buffer or work for one, for a worker.
            complete::complete(locked, request, Errno::EAGAIN.negative().into());
        }
        (Errno::EPERM, Purpose::Retry) => workers::hand_over(locked, request),
        // A file that cannot be polled is always ready, as poll(2) has it.
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

/// Lets the set wake its watcher when the ring's next timer is due. Where it
/// will do so earlier already, that is left: who deals with that event comes by
/// here again, and a ring whose timers are far away costs its drivers no call.
/// (Of a ring that defers, others see the event and leave it where it is.)
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

/// Looks which armed files are ready now, without waiting. While somebody
/// leads, that thread alone takes events from the set: among them may be the
/// one that is to wake it, and it is in the kernel or on its way here.
pub(crate) fn look(locked: &mut LockedRing) {
    if locked.ring.wakers.sleep.is_led() {
        go_on(locked);
        return;
    }
    let mut events = [Event::default(); EVENTS];
    // Also when nothing is armed: a wake event that nobody took would keep the
    // set readable, and the attendant awake.
    loop {
        let Some(set) = locked.polls.set() else { return };
        let count = set.ready(&mut events).unwrap_or(0);
        dispatch(locked, &events[..count]);
        if count < events.len() {
            return;
        }
    }
}

/// Deals with what the epoll set reported.
pub(crate) fn dispatch(locked: &mut LockedRing, events: &[Event]) {
    locked.polls.expected.told_of(events.len());
    prefetch(locked, events);
    for (at, event) in events.iter().enumerate() {
        if let Some(next) = events.get(at + 1) {
            locked.polls.prefetch_waiter(next.data);
        }
        let (data, mask) = (event.data, event.events);
        if data == WAKE_DATA {
            // It has woken us, edge-triggered: nothing to read.
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
    issue::run_issuable(locked);
    go_on(locked);
}

/// Who waits has been left alone for long: fetches what is needed of the slots
/// while it goes by them, and of the first one's request.
#[inline]
fn prefetch(locked: &LockedRing, events: &[Event]) {
    for event in events {
        locked.polls.prefetch_slot(event.data);
    }
    if let Some(first) = events.first() {
        locked.polls.prefetch_waiter(first.data);
    }
}

/// Comes back to those whose turn is due, to each of them once.
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
        if waiter.request.multishot {
            call(locked, tag, waiter.request);
        } else {
            issue::issue(locked, waiter.request);
        }
        locked.polls.end_round(tag);
    }
    issue::run_issuable(locked);
}

/// Tries multishots whose files the set has not told of, but which have probably
/// become ready since they were last called.
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

/// Before a call returns: what is due is done with by then, as far as that does
/// not keep the caller for long. The owner of a ring that defers asks for it.
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
    // An event of requests that were cancelled meanwhile finds nobody.
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
            Purpose::Report if request.multishot && report_more(locked, &request, mask) => {
                locked.polls.push(tag, request, Purpose::Report, Turn::Over);
            }
            Purpose::Report => complete::complete(locked, request, (mask as i32).into()),
        }
    }
    locked.polls.end_round(tag);
    if retried {
        locked.polls.expect(tag, false);
    }
}

/// Calls a multishot that has waited there.
#[inline(always)]
fn call(locked: &mut LockedRing, tag: Tag, request: RequestEntry) {
    if let Some(request) = issue::call(locked, request) {
        locked.polls.waits_on(tag, request);
    }
}

/// One more CQE of a multishot poll; `false` if the next one is its last,
/// because this one does not fit.
fn report_more(locked: &mut LockedRing, request: &Request, mask: u32) -> bool {
    !is_told_by_a_ring(locked, request.sqe.fd, request.file.number)
        && complete::post_more(locked, request.sqe.user_data, mask as i32, 0)
}

/// Whether completions make the file readable, as the ring's registered eventfd, a
/// ring's descriptor, or an epoll set that one of these is in. A multishot on that
/// could feed itself for ever, so the first event of that kind is its last.
fn is_told_by_a_ring(locked: &LockedRing, asked: i32, number: i32) -> bool {
    let by_event = locked.event_descriptor.as_ref().is_some_and(|event| {
        let own = event.descriptor.number();
        event.number == asked
            || descriptor::is_same_file(own, number)
            || epoll::poll_now(own, epoll::IN).is_ok_and(|ready| ready != 0) && epoll::holds(number, event.number)
    });
    by_event || host::ring_of(asked).is_some() || readiness::is_signalled_in(number)
}

/// The ring is gone: no set, no timer.
pub(crate) fn dissolve(locked: &mut LockedRing) {
    locked.polls = Default::default();
}

/// Ends the wait of one request, found by its id (a link timeout expired).
pub(crate) fn cancel_id(locked: &mut LockedRing, id: RequestId) -> Option<RequestEntry> {
    locked.polls.extract(|request| request.id == id)
}

/// Whether a file is a device of characters that cannot be waited for (`/dev/zero`).
pub(crate) fn is_unpolled_device(number: i32) -> bool {
    descriptor::identity(number).is_ok_and(|identity| identity.is_character_device()) && !epoll::can_be_polled(number)
}
