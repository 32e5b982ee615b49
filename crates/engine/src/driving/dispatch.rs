//! Decides when to ask a ring's epoll set for ready files. Also retries some requests without an
//! event: multishots whose files are expected to be ready, and runnable requests. A runnable
//! request has stopped at the end of its time slice (`fast_poll::SLICE` results), although its file
//! may hold more. `fire` handles the events.

use crate::driving::batch;
use crate::driving::fire::{EVENTS, fire_all, retry_multishot, run_slice, run_slices_up_to};
use crate::ring::LockedRing;
use crate::waiting::expected;
use usring_sys::epoll::Event;
use usring_sys::width;

/// Asks the epoll set, without waiting, which of its files are ready, and retries or completes the
/// requests that wait for these files. If the ring has a leader (a waiter that sleeps on the set),
/// leaves the events to the leader, because any event may be the one that ends its sleep. This
/// function then only tries runnable requests, which are due for an attempt without an event.
pub(crate) fn poll(locked: &mut LockedRing) {
    poll_for(locked, 1);
}

/// Handles the events of the ring's epoll set without waiting (see [`poll`]), for a caller that
/// waits for `wanted` completions.
pub(crate) fn poll_for(locked: &mut LockedRing, wanted: u32) {
    if locked.ring.is_led() {
        run_runnable(locked);
        return;
    }
    let due = DueSlices::of(locked);
    let mut events = [Event::default(); EVENTS];
    let mut fired = 0;
    // The set is asked even if no request waits for a file, because it may hold a wake event. If
    // that event stayed in the set, the set would stay readable and wake the ring watcher again
    // and again.
    loop {
        let Some(set) = locked.waiting.polls.set() else { return };
        let count = set.ready(&mut events).unwrap_or(0);
        handle_events(locked, &events[..count]);
        fired += count;
        if count < events.len() {
            return run_due(locked, due, fired, wanted);
        }
        if !locked.ring.defers_task_work() {
            run_runnable(locked);
        }
    }
}

/// Handles `events`, which the epoll set reported, for a caller that waits for `wanted`
/// completions.
pub(crate) fn dispatch(locked: &mut LockedRing, events: &[Event], wanted: u32) {
    let due = DueSlices::of(locked);
    handle_events(locked, events);
    run_due(locked, due, events.len(), wanted);
}

/// Handles `events`, and issues the requests that become issuable by them.
#[inline]
fn handle_events(locked: &mut LockedRing, events: &[Event]) {
    locked.waiting.polls.may_report = false;
    fire_all(locked, events);
    batch::run_issuable(locked);
}

/// The time slices (next attempts of runnable requests) that were due before the driver took events
/// from the epoll set.
#[derive(Clone, Copy)]
struct DueSlices {
    /// The number of the last of these slices (`PollTable::slices_due`). The driver may begin some
    /// of these slices while it handles events: a due slice goes before the next request of a
    /// chain.
    last: u32,
    count: usize,
}

impl DueSlices {
    fn of(locked: &LockedRing) -> DueSlices {
        let polls = &locked.waiting.polls;
        DueSlices { last: polls.slices_due(), count: polls.runnable_count() }
    }
}

/// Tries the runnable requests (those due for an attempt without an event). `fired`: the number of
/// events just handled.
#[inline]
fn run_due(locked: &mut LockedRing, due: DueSlices, fired: usize, wanted: u32) {
    if locked.ring.defers_task_work() {
        if locked.waiting.polls.has_runnable() {
            run_deferred_slices(locked, due, fired + due.count, wanted);
        }
    } else {
        run_runnable(locked);
    }
}

/// Tries the runnable requests whose time slices are `due`, on a ring that defers task work. Then
/// tries requests that have become runnable meanwhile, until there were `wanted` attempts. As in
/// the kernel (`io_run_local_work_continue`), requests that become runnable later are left to the
/// owner's next wait. `attempts`: number of events handled, plus number of slices `due`.
#[cold]
#[inline(never)]
fn run_deferred_slices(locked: &mut LockedRing, due: DueSlices, mut attempts: usize, wanted: u32) {
    run_slices_up_to(locked, Some(due.last));
    batch::run_issuable(locked);
    while attempts < width::size(u64::from(wanted)) && locked.waiting.polls.has_runnable() {
        let runnable = locked.waiting.polls.runnable_count();
        attempts += runnable;
        run_slices(locked, runnable);
    }
}

/// Tries each runnable request once. A runnable request has used up its time slice
/// (`fast_poll::SLICE` results) while its file may still be ready.
#[inline]
pub(crate) fn run_runnable(locked: &mut LockedRing) {
    if locked.waiting.polls.has_runnable() {
        run_slices(locked, locked.waiting.polls.runnable_count());
    }
}

/// Tries the first `count` runnable requests once.
#[inline(never)]
fn run_slices(locked: &mut LockedRing, count: usize) {
    for _ in 0..count {
        run_slice(locked);
    }
    batch::run_issuable(locked);
}

/// Tries multishots whose files have probably become ready since the last try, although the epoll
/// set has reported no event for these files.
#[inline(never)]
pub(crate) fn try_expected(locked: &mut LockedRing) {
    let (mut hits, mut misses) = (0, 0);
    for _ in 0..locked.waiting.polls.expected.tries_of_series() {
        let Some((tag, waiter)) = locked.waiting.polls.begin_expected() else { break };
        let posted = locked.queues.cq.tail();
        retry_multishot(locked, tag, waiter.request);
        locked.waiting.polls.end_round(tag);
        let nothing = locked.queues.cq.tail() == posted;
        locked.waiting.polls.expect_ready(tag, nothing);
        hits += u32::from(!nothing);
        misses += u32::from(nothing);
        if misses == expected::MOST_MISSES {
            break;
        }
    }
    locked.waiting.polls.expected.judge(hits, misses);
    batch::run_issuable(locked);
}

/// Tries runnable requests (those due for an attempt without an event) before this thread returns
/// to the program. The kernel tries them until no request is runnable. Here the number of attempts
/// is bounded: a peer that keeps sending must not occupy the program's thread for ever. Does
/// nothing on a ring that defers task work: its owner continues the requests in its next
/// io_uring_enter(2).
#[inline(always)]
pub(crate) fn run_runnable_briefly(locked: &mut LockedRing) {
    if locked.waiting.polls.has_runnable() && !locked.ring.defers_task_work() {
        poll_while_runnable(locked);
    }
}

#[inline(never)]
fn poll_while_runnable(locked: &mut LockedRing) {
    const MOST_POLLS: u32 = 1024;
    for _ in 0..MOST_POLLS {
        poll(locked);
        if !locked.waiting.polls.has_runnable() {
            return;
        }
    }
}
