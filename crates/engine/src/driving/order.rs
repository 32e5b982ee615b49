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

/// Nanoseconds between two checks of a thread in [`await_chosen`]. The thread checks whether the
/// requests that it let continue have completed.
const AWAIT_PAUSE_NS: Nanoseconds = 100_000;
/// After a submission, one of the requests held back by `usring run --order` may continue, with the
/// probability 1 / `EARLY`. After each request that continues, one more may continue, with the
/// probability 1 / `EARLY` again.
const EARLY: u64 = 2;
/// On average, one of this many choices of `usring run --order` is a burst. In a burst, all
/// requests that are held back continue, and not only one of them.
const BURST: u64 = 6;
/// Replaces [`BURST`] if the CQ has too little room for all requests that `usring run --order`
/// holds back. A burst then makes the CQ overflow.
const FLOOD: u64 = 3;
/// Average number of submissions after which the ring's descriptor and eventfd are once signalled
/// although no request has completed.
const SPURIOUS: u64 = 8;
/// On average, an SQ thread without work sleeps early at one of this many checks for work.
const SLEEPS: u64 = 64;

/// The next step of a waiter that has too few completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A request has continued or completed, so the waiter counts the completions again.
    Again,
    /// A request may continue but is still with a worker or a device, so the waiter pauses.
    Pause,
    /// No request that `usring run --order` holds back can continue now, so the waiter sleeps.
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
    let times = if exceed_room(locked) { FLOOD } else { BURST };
    let is_burst = order::of(locked).is_some_and(|order| order.happens(times));
    if is_burst {
        return if burst(locked) { Step::Again } else { Step::Sleep };
    }
    if release_one(locked) { Step::Again } else { Step::Sleep }
}

/// Returns whether the CQ has too little room for all requests that `usring run --order` holds
/// back. In the kernel they could all complete now, and the CQ would overflow.
fn exceed_room(locked: &mut LockedRing) -> bool {
    let room = usring_sys::width::size(locked.queues.cq.room().into());
    locked.waiting.order.as_ref().is_some_and(|order| order.waiting() > room)
}

/// Lets all requests continue that `usring run --order` holds back, one after the other. Returns
/// `false` if there is none.
fn burst(locked: &mut LockedRing) -> bool {
    if !release_one(locked) {
        return false;
    }
    armed::count_order(OrderEvent::Burst);
    await_chosen(locked);
    while release_one(locked) {
        await_chosen(locked);
    }
    true
}

/// Chooses one of the requests that `usring run --order` holds back, and lets it continue. Returns
/// `false` if none can be chosen.
fn release_one(locked: &mut LockedRing) -> bool {
    let Some(id) = locked.waiting.order.as_mut().and_then(|order| order.choose(Clock::Monotonic.now())) else {
        return false;
    };
    order::let_continue(locked, id);
    batch::run_issuable(locked);
    true
}

/// Lets some of the requests continue that `usring run --order` holds back. Now and then also
/// signals the ring's descriptor and eventfd although no request has completed. Called after each
/// submission, and when a thread checks for completions without waiting for any.
#[cold]
#[inline(never)]
pub(crate) fn choose_some(locked: &mut LockedRing) {
    armed::note_submitter(signals::thread_id());
    note_choice(locked);
    if exceed_room(locked) && order::of(locked).is_some_and(|order| order.happens(FLOOD)) {
        burst(locked);
    }
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

/// Waits until the requests that `usring run --order` let continue have completed, but only for a
/// bounded time. So the program's next step comes after these completions. Keeps the ring's lock
/// during the wait, because the workers do not need it. Returns at once while deferred submits are
/// unfinished, because these submits end only after the lock is released.
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

/// Restarts the time limit for requests that `usring run --order` holds back
/// ([`crate::waiting::order`]). The limit counts only time in which no thread submits or waits.
/// Called by a thread that submits or waits.
pub(super) fn note_choice(locked: &mut LockedRing) {
    if let Some(order) = order::of(locked) {
        order.attend();
    }
}

/// Returns whether an SQ thread without work has to sleep now, before its idle time is over. The
/// random numbers of `usring run --order` decide. Without that option the answer is `false`.
pub(crate) fn sq_thread_sleeps_early() -> bool {
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
