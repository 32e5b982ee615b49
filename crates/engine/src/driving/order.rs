//! Chooses which request continues next, among those that `usring run --order` holds back
//! ([`crate::completion::order`]). Also causes wake-ups without a completion, and early sleeps of
//! the SQ thread.

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

/// Nanoseconds between two checks of a thread that waits for chosen requests ([`await_chosen`]).
const AWAIT_PAUSE_NS: Nanoseconds = 100_000;
/// After a submission, the requests that `usring run --order` holds back continue one by one, as
/// long as draws succeed. Before each request, a draw succeeds with the probability 1 / `EARLY`.
const EARLY: u64 = 2;
/// Average number of choices per burst. A burst lets all requests continue that `usring run
/// --order` holds back, and not only one.
const BURST: u64 = 6;
/// Average number of submissions per signal of the ring without a completion.
const SPURIOUS: u64 = 8;
/// Average number of checks for work after which an SQ thread without work sleeps early once.
const SLEEPS: u64 = 64;

/// The next step of a waiter that has too few completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The waiter counts the completions again, because a request has continued.
    Again,
    /// The waiter pauses, because a worker or device has the chosen request.
    Pause,
    /// The waiter sleeps, because `usring run --order` holds no request back.
    Sleep,
}

/// Lets requests continue that `usring run --order` holds back, for a waiter with too few
/// completions. Returns what the waiter does next.
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

/// Chooses one of the requests that `usring run --order` holds back, and lets it continue. Returns
/// `false` if none can be chosen.
fn release_one(locked: &mut LockedRing) -> bool {
    let Some(id) = locked.waiting.order.as_mut().and_then(|order| order.choose(Clock::Monotonic.now())) else {
        return false;
    };
    order::release(locked, id);
    batch::run_issuable(locked);
    true
}

/// Lets some of the requests continue that `usring run --order` holds back. Now and then also
/// signals the ring without a completion. Called after each submission, and when a thread looks for
/// completions without waiting for any.
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

/// Waits, for a bounded time, until the chosen requests have completed, so that the program's next
/// step comes after them. Holds the ring's lock meanwhile, which no worker needs. Deferred submits
/// are made without the lock. So if some are pending or being made, this function returns at once.
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

/// Notes that a thread has come to choose a request. The time limit of the requests that `usring
/// run --order` holds back then begins anew ([`crate::waiting::order`]).
pub(super) fn note_choice(locked: &mut LockedRing) {
    if let Some(order) = order::of(locked) {
        order.attend();
    }
}

/// Returns whether an SQ thread without work shall sleep now, before its idle time is over. The
/// random numbers of `usring run --order` decide. Without that option the answer is `false`.
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
