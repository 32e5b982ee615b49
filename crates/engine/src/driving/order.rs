//! Chooses which of the requests goes on that `usring run --order` holds back
//! ([`crate::completion::order`]), and makes wake-ups and the SQ thread's sleep come at bad times.

use crate::completion::order;
use crate::driving::{batch, dispatch, reap, task_work};
use crate::ring::LockedRing;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_device::random::Random;
use usring_inject::armed;
use usring_inject::page::OrderEvent;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::unusual::{self, Unusual};
use usring_sys::{signals, wait};

/// Nanoseconds of a pause of a submitter.
const AWAIT_PAUSE_NS: Nanoseconds = 100_000;
/// After a submission, requests go on until a draw of one in this number fails.
const EARLY: u64 = 2;
/// At one choice in this number, all requests go on.
const BURST: u64 = 6;
/// After one submission in this number, the ring is signalled without a completion.
const SPURIOUS: u64 = 8;
/// One check of an idle SQ thread in this number ends with its sleep.
const SLEEPS: u64 = 64;

/// The next step of a waiter that has too few completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It counts the completions again, because a request has gone on.
    Again,
    /// It pauses, because a worker or device has the chosen request.
    Pause,
    /// It sleeps, because nothing is held back.
    Sleep,
}

/// Has requests go on for a waiter with too few completions.
#[cold]
#[inline(never)]
pub(crate) fn advance(locked: &mut LockedRing) -> Step {
    let Some(order) = &mut locked.waiting.order else { return Step::Sleep };
    if order.is_awaiting(Clock::Monotonic.now()) {
        return Step::Pause;
    }
    if locked.waiting.polls.armed() != 0 {
        let before = locked.queues.cq.end();
        dispatch::poll(locked);
        if locked.queues.cq.end() != before {
            return Step::Again;
        }
    }
    let is_burst = order::of(locked).is_some_and(|order| order.happens(BURST));
    if !release_one(locked) {
        return Step::Sleep;
    }
    if is_burst {
        armed::count_order(OrderEvent::Burst);
        await_chosen(locked);
        while release_one(locked) {
            await_chosen(locked);
        }
    }
    Step::Again
}

/// Chooses one request, which goes on. Returns `false` if there is none.
fn release_one(locked: &mut LockedRing) -> bool {
    let Some(id) = locked.waiting.order.as_mut().and_then(|order| order.choose(Clock::Monotonic.now())) else {
        return false;
    };
    order::release(locked, id);
    batch::run_issuable(locked);
    true
}

/// Has some requests go on, and signals the ring without a completion, now and then. Called after
/// each submission, and when a thread looks for completions without waiting for any.
#[cold]
#[inline(never)]
pub(crate) fn choose_some(locked: &mut LockedRing) {
    armed::note_submitter(signals::thread_id());
    note_choice(locked);
    while order::of(locked).is_some_and(|order| order.happens(EARLY)) && release_one(locked) {
        await_chosen(locked);
    }
    let is_listening = locked.notify.event_descriptor.is_some() || locked.ring.readiness.is_polled();
    if is_listening
        && locked.queues.drain.outstanding() != 0
        && order::of(locked).is_some_and(|order| order.happens(SPURIOUS))
    {
        locked.signal_without_completion();
        armed::count_order(OrderEvent::Signalled);
    }
}

/// Waits until the chosen requests have completed, so that what the program does next comes after
/// them. The wait is bounded. It holds the ring's lock, which no worker needs. But submits to
/// devices are made without that lock. If some are due or being made, their requests are left to
/// the next call.
#[cold]
#[inline(never)]
pub(crate) fn await_chosen(locked: &mut LockedRing) {
    let is_awaiting = |locked: &mut LockedRing| {
        locked.waiting.order.as_mut().is_some_and(|order| order.is_awaiting(Clock::Monotonic.now()))
    };
    while is_awaiting(locked) && !locked.devices.queues.has_unfinished_submits() {
        let _ = wait::nanosleep(AWAIT_PAUSE_NS);
        task_work::run(locked);
        reap::reap(locked);
        batch::run_issuable(locked);
    }
    note_choice(locked);
}

/// Notes that a thread is there to choose. So a slow request does not let the requests held back go
/// on by their time limit.
pub(super) fn note_choice(locked: &mut LockedRing) {
    if let Some(order) = order::of(locked) {
        order.attend();
    }
}

/// Returns whether an SQ thread that has no work sleeps before its idle time is over.
pub(crate) fn has_sq_thread_sleep() -> bool {
    static CHECKS: AtomicU64 = AtomicU64::new(0);
    if !unusual::has(Unusual::Order) {
        return false;
    }
    let Some(mut random) = armed::order_of_ring(u32::MAX) else { return false };
    let count = CHECKS.fetch_add(1, Ordering::Relaxed);
    let sleeps = Random::of(random.draw(), count).below(SLEEPS) == 0;
    if sleeps {
        armed::count_order(OrderEvent::Slept);
    }
    sleeps
}
