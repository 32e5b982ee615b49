//! Handles the events of the ring's epoll set: retries or completes the requests whose files are
//! ready. `dispatch` decides when to ask the set.

use crate::completion::{complete, order, readiness};
use crate::driving::reap;
use crate::host;
use crate::probes;
use crate::request::conditions::{Purpose, Tag, TimeSlice};
use crate::request::{Request, RequestEntry};
use crate::ring::LockedRing;
use crate::submission::issue;
use crate::waiting::poll_table::{DEVICE_DATA, TIMER_DATA, WAKE_DATA};
use usring_sys::descriptor;
use usring_sys::epoll::{self, Event};
use usring_sys::unusual::{self, Unusual};

/// Events taken per epoll_wait(2). With more events per call, the driver would publish the CQEs of
/// the first files later, and the program would return its provided buffers later.
pub(crate) const EVENTS: usize = 32;

/// Handles the events of the ring's epoll set, just before the next requests of chains start. Does
/// so only if a request is runnable (due for an attempt without an event), or if a request waits
/// and the set may report its file. Starts no request of a chain. The order has three effects, as
/// in the kernel:
///
/// - A new poll first reports only events that happened before the chains' next requests start. It
///   reports the effects of those requests later, as its next event.
/// - A request with POLL_FIRST whose file is ready is tried before the chains' next requests.
/// - A request may wait for a file that a chain's current request has just made ready, such as the
///   peer of the socket of a SEND ([`Request::may_make_ready`]). The waiting request, too, is tried
///   before the chains' next requests.
#[inline]
pub(crate) fn poll_before_successors(locked: &mut LockedRing) {
    let may_report = core::mem::take(&mut locked.waiting.polls.may_report);
    if may_report && locked.waiting.polls.armed() != 0 || locked.waiting.polls.has_runnable() {
        take_events(locked);
    }
}

#[cold]
#[inline(never)]
fn take_events(locked: &mut LockedRing) {
    let mut events = [Event::default(); EVENTS];
    while !locked.ring.is_led() {
        let Some(set) = locked.waiting.polls.set() else { return };
        let count = set.ready(&mut events).unwrap_or(0);
        fire_all(locked, &events[..count]);
        if count < events.len() {
            return;
        }
    }
}

/// Begins the due time slices (attempts of runnable requests) with numbers up to `last`. Slices are
/// numbered in the order in which they become due.
#[cold]
pub(super) fn run_slices_up_to(locked: &mut LockedRing, last: Option<u32>) {
    while last.is_some_and(|last| locked.waiting.polls.is_slice_due_up_to(last)) {
        run_slice(locked);
    }
}

/// Tries the request that has been runnable for longest.
pub(super) fn run_slice(locked: &mut LockedRing) {
    let Some((tag, waiter)) = locked.waiting.polls.begin_slice() else { return };
    match waiter.purpose {
        Purpose::Report => {
            let ready = waiter.request.ready_for;
            complete_poll(locked, tag, waiter.request, ready);
        }
        Purpose::Retry if waiter.request.multishot => retry_multishot(locked, tag, waiter.request),
        Purpose::Retry => issue::issue(locked, waiter.request),
    }
    locked.waiting.polls.end_round(tag);
}

pub(super) fn fire_all(locked: &mut LockedRing, events: &[Event]) {
    if unusual::has(Unusual::Order) {
        let events = order::shuffle(locked, events);
        return fire_in_order(locked, &events);
    }
    fire_in_order(locked, events);
}

#[inline(always)]
fn fire_in_order(locked: &mut LockedRing, events: &[Event]) {
    locked.waiting.polls.expected.note_events(events.len());
    prefetch(locked, events);
    for (at, event) in events.iter().enumerate() {
        if let Some(next) = events.get(at + 1) {
            locked.waiting.polls.prefetch_waiter(next.data);
        }
        let (data, mask) = (event.data, event.events);
        if data == WAKE_DATA {
            // The purpose of the wake event was to wake this thread. The event is edge-triggered,
            // so nothing has to be read.
            continue;
        }
        if data == DEVICE_DATA {
            reap::reap_after_interrupt(locked);
            continue;
        }
        if data == TIMER_DATA {
            locked.waiting.polls.timer_fires = 0;
            continue;
        }
        fire(locked, data, mask);
    }
}

/// Prefetches the poll slots (entries of the poll table) of all events, and the request of the
/// first event. This memory was last used long ago, so it is probably not in a cache.
#[inline]
fn prefetch(locked: &LockedRing, events: &[Event]) {
    for event in events {
        locked.waiting.polls.prefetch_slot(event.data);
    }
    if let Some(first) = events.first() {
        locked.waiting.polls.prefetch_waiter(first.data);
    }
}

fn fire(locked: &mut LockedRing, tag: u64, mask: u32) {
    // If all requests that waited for this file have been cancelled, the event is ignored.
    if !locked.waiting.polls.begin_round(tag) {
        return;
    }
    let mut retried = false;
    while let Some(waiter) = locked.waiting.polls.next_of_round(tag) {
        let stays = waiter.is_multishot_in_slices();
        let mut request = waiter.request;
        if stays {
            // This multishot is runnable, so a driver will try it again soon even without the
            // event. As in the kernel, that attempt also serves the event.
            request.ready_for |= mask;
            locked.waiting.polls.wait_again(tag, request, TimeSlice::Runnable);
            continue;
        }
        request.ready_for = mask;
        if probes::is_on(locked.ring) {
            probes::reported(locked, &request, mask);
        }
        locked.queues.statistics.count_polled(request.sqe.opcode);
        match waiter.purpose {
            Purpose::Retry if request.multishot => {
                retried = true;
                retry_multishot(locked, tag, request);
            }
            Purpose::Retry => issue::issue(locked, request),
            Purpose::Report => complete_poll(locked, tag, request, mask),
        }
    }
    locked.waiting.polls.end_round(tag);
    if retried {
        locked.waiting.polls.expect_ready(tag, false);
    }
}

/// Completes a POLL_ADD with `mask`, the events for which its file is ready. A multishot poll posts
/// a CQE and goes on waiting.
pub(super) fn complete_poll(locked: &mut LockedRing, tag: Tag, request: RequestEntry, mask: u32) {
    if request.multishot && report_more(locked, &request, mask) {
        locked.waiting.polls.push(tag, request, Purpose::Report, TimeSlice::Over);
    } else {
        complete::complete(locked, request, mask.cast_signed().into());
    }
}

/// Retries a multishot that has waited in the poll table's slot `tag`. If the multishot continues,
/// puts it back into that slot.
#[inline(always)]
pub(super) fn retry_multishot(locked: &mut LockedRing, tag: Tag, request: RequestEntry) {
    if let Some(request) = issue::retry_multishot(locked, request) {
        locked.waiting.polls.wait_again(tag, request, TimeSlice::Over);
    }
}

/// Posts one more CQE of a multishot poll. Returns `false`, and posts nothing, if the next CQE has
/// to be the poll's last.
fn report_more(locked: &mut LockedRing, request: &Request, mask: u32) -> bool {
    !is_signalled_by_a_ring(locked, request.sqe.fd, request.file.number)
        && complete::post_more(locked, request, mask.cast_signed(), 0)
}

/// Returns whether completions of a ring can make the file readable. `true` for the ring's
/// registered eventfd, for a ring's descriptor, and for an epoll set in which one of the two is
/// readable now. The CQE of a multishot poll of such a file could cause the poll's next event, for
/// ever. So such a poll ends with its first event. `asked`: the descriptor that the program named;
/// `number`: usring's duplicate.
fn is_signalled_by_a_ring(locked: &LockedRing, asked: i32, number: i32) -> bool {
    let by_event = locked.notify.event_descriptor.as_ref().is_some_and(|event| {
        let own = event.descriptor.number();
        event.number == asked
            || descriptor::is_same_file(own, number)
            || epoll::poll_now(own, epoll::IN).is_ok_and(|ready| ready != 0) && epoll::holds(number, event.number)
    });
    by_event || host::ring_of(asked).is_some() || readiness::is_signalled_in(number)
}
