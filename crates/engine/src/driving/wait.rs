//! Sleeping in io_uring_enter(2) until there are enough completions. The waiter watches the ring's
//! files and timers itself, so a completion needs no second thread. If several threads wait, one of
//! them is the leader, which sleeps on the ring's epoll set. The other waiters sleep on the sleep
//! word, a futex.

use super::completion_rate::CompletionRate;
use super::order::{self, Step};
use crate::driving::{deferred_submit, dispatch, ended, expiry, fire, lone_poll, reap, ring_watcher, task_work};
use crate::probes;
use crate::ring::{Exit, LockedRing, Ring};
use crate::waiting::fast_poll;
use alloc::sync::Arc;
use usring_ring::Memory;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::epoll::Event;
use usring_sys::kernel_aio::Waiter;
use usring_sys::queue::Rest;
use usring_sys::sleep::{Sleeper, Ticket, Wake};
use usring_sys::ticks::Ticks;
use usring_sys::unusual::{self, Unusual};
use usring_sys::{Errno, wait};

/// The conditions that end a thread's wait on a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitCall {
    /// Number of CQEs that end the wait; 0: the waiter checks once and returns.
    pub completions: u32,
    /// Time at which the wait ends with `ETIME`; `None`: no limit.
    pub deadline: Option<(Clock, Nanoseconds)>,
    /// The minimum wait time of io_uring_enter(2), as a time of the monotonic clock. Before this
    /// time the deadline does not count. After this time, one CQE ends the wait. A call without a
    /// deadline then ends even without a CQE.
    pub minimum: Option<Nanoseconds>,
    /// Signal mask while the waiter sleeps.
    pub mask: Option<u64>,
    /// The head of the CQ when this wait began. The wait counts CQEs from there, even those that
    /// another thread has consumed. `None`: not read yet.
    pub consumed: Option<u32>,
    /// Whether to return as soon as a request is in flight on a device, because the caller is going
    /// to poll the device.
    pub until_devices: bool,
}

impl WaitCall {
    /// Returns the head of the CQ when this wait began.
    pub fn head_at_start(&self, memory: &Memory) -> u32 {
        self.consumed.unwrap_or_else(|| memory.consumed())
    }

    /// Returns the number of CQEs that the CQ had when this wait began, plus those that have come
    /// since. CQEs that another thread has consumed meanwhile count, too. The caller needs no lock.
    pub fn arrived(&self, ring: &Ring) -> u32 {
        ring.memory.published_since(self.head_at_start(&ring.memory))
    }
}

/// Waits until the conditions of `call` hold, or a TIMEOUT request has expired or reached its
/// number of completions.
///
/// Errors: `EINTR`, `ETIME` and `EOWNERDEAD`, only if the CQ is empty; `EINVAL` if the ring accepts
/// no more waits (`retired`); the errors of making the ring's epoll set.
pub(crate) fn wait(ring: &Arc<Ring>, call: &WaitCall) -> Result<(), Errno> {
    let mut call = *call;
    // A wait with a time limit leaves deferred submits of other threads to a submit helper. The
    // submits may take longer than the limit, and the caller does not wait for their requests.
    let hurries = call.deadline.is_some() || call.minimum.is_some();
    let (mut polled, mut is_first, mut notifies_tracers) = (false, true, true);
    // When this wait began, if it is for a lone transfer (the only request in flight: `lone_poll`).
    let mut lone: Option<Ticks> = None;
    let mut rate = CompletionRate::default();
    // How many of the ring's TIMEOUTs had ended when this wait began. `None`: not read yet.
    let mut ended = None;
    if call.completions == 0 {
        choose_some(ring);
    }
    loop {
        let mut locked = ring.lock();
        if locked.retired {
            return Err(Errno::EINVAL);
        }
        let consumed = *call.consumed.get_or_insert(locked.queues.cq.consumed());
        let begins = core::mem::take(&mut is_first);
        complete_and_publish(&mut locked, call.completions, &mut polled, begins, hurries);
        let ready = locked.queues.cq.arrived_since(consumed);
        let timed_out = *ended.get_or_insert(locked.waiting.timeouts.ended) != locked.waiting.timeouts.ended;
        let is_to_poll = call.until_devices && locked.devices.queues.in_flight() > 0;
        if ready >= call.completions || timed_out || is_to_poll {
            locked.devices.queues.lone_waits.record(lone.filter(|_| ready >= call.completions));
            locked.release(Exit::Leave);
            return Ok(());
        }
        // `ended` below completes the requests of a lost SQ thread. This check comes first. So if
        // the wait returns `EOWNERDEAD`, each of these requests has its CQE.
        let is_lost = has_lost_thread(&locked);
        if ring.is_shared() && ended::complete_before_sleep(&mut locked, &mut polled) {
            locked.release(Exit::Leave);
            continue;
        }
        let Some(locked) = advance(ring, locked, &call, core::mem::take(&mut notifies_tracers))? else { continue };
        let left = match is_lost {
            true => Err(Errno::EOWNERDEAD),
            false => time_left(&mut call, ready, locked.waiting.timeouts.until_next()),
        };
        let span = match left {
            Ok(span) => span,
            // The time is up, but this wait has not polled the files yet. So it polls them once.
            Err(_) if !polled && locked.waiting.polls.armed() > 0 => {
                polled = true;
                poll_and_release(locked);
                continue;
            }
            Err(error) => return end_early(locked, error),
        };
        let Some(locked) = lone_poll::poll(ring, locked, &call, span, &mut lone) else { continue };
        match gather_or_sleep(locked, &call, span, &mut rate) {
            Ok(()) => {}
            Err(Errno::EINTR) => return interrupted(ring),
            Err(error) => return Err(error),
        }
    }
}

/// Ends a wait that has too few CQEs. Returns `error` only if the CQ is empty.
fn end_early(locked: LockedRing, error: Errno) -> Result<(), Errno> {
    let is_empty = locked.queues.cq.ready() == 0;
    locked.release(Exit::Leave);
    if is_empty { Err(error) } else { Ok(()) }
}

/// Lets requests continue that `usring run --order` holds back, for a call that waits for no
/// completion.
#[inline]
fn choose_some(ring: &Arc<Ring>) {
    if unusual::has(Unusual::Order) {
        let mut locked = ring.lock();
        order::choose_some(&mut locked);
        locked.release(Exit::Leave);
    }
}

/// Returns whether the ring's SQ thread is lost: the SQ thread belonged to an ancestor of this
/// process and does not serve the ring any more. If so, sets NEED_WAKEUP, so that the program does
/// not rely on the SQ thread.
#[inline]
fn has_lost_thread(locked: &LockedRing) -> bool {
    let is_lost = locked.ring.sq_thread.is_lost(locked.ring);
    if is_lost {
        locked.queues.sq.need_wakeup();
    }
    is_lost
}

/// Lets a request continue that `usring run --order` holds back. Called before the waiter sleeps.
/// Returns `None`, with the lock released, if the waiter has to count its completions again. With
/// `notifies_tracers`, notifies tracers that the thread waits.
///
/// Error: `EINTR` if a signal ended a pause.
#[inline]
fn advance<'a>(
    ring: &Arc<Ring>,
    mut locked: LockedRing<'a>,
    call: &WaitCall,
    notifies_tracers: bool,
) -> Result<Option<LockedRing<'a>>, Errno> {
    // In the kernel, a thread that waits by polling its devices fires no tracepoint.
    if notifies_tracers && probes::is_on(ring) && !ring.is_polled() {
        probes::waits(ring, call.completions);
    }
    if !unusual::has(Unusual::Order) || call.deadline.is_some_and(|(clock, at)| clock.now() >= at) {
        return Ok(Some(locked));
    }
    match order::advance(&mut locked) {
        Step::Sleep => return Ok(Some(locked)),
        Step::Again => locked.release(Exit::Leave),
        Step::Pause => {
            locked.release(Exit::Leave);
            if pause(ring).is_err() {
                return interrupted(ring).map(|()| None);
            }
        }
    }
    Ok(None)
}

/// Polls the ring's files once and releases the lock, for a waiter whose time is up.
fn poll_and_release(mut locked: LockedRing) {
    dispatch::poll(&mut locked);
    locked.finish_batch();
    deferred_submit::leave_pending(&mut locked);
    locked.release(Exit::Finished);
}

/// Completes all requests that can be completed, and publishes their CQEs. Then polls the files if
/// the waiter has enough CQEs, this wait has not `polled` yet, and a poll is due. If `wanted` is 0,
/// a poll is always due. `is_first`: the wait has just begun. `hurries`: a submit helper makes the
/// deferred submits.
fn complete_and_publish(locked: &mut LockedRing, wanted: u32, polled: &mut bool, is_first: bool, hurries: bool) {
    if unusual::has(Unusual::Order) {
        order::note_choice(locked);
    }
    *polled |= complete_finished_work(locked, wanted, is_first);
    // A waiter that is about to sleep gets the events of ready files from the epoll set. So such a
    // waiter needs no poll here.
    let sleeps = locked.queues.cq.ready() < wanted;
    let is_due = |locked: &mut LockedRing| locked.ring.is_left_to_owner() && locked.is_poll_due();
    if !*polled && !sleeps && locked.waiting.polls.armed() > 0 && (wanted == 0 || is_due(locked)) {
        *polled = true;
        dispatch::poll(locked);
    }
    locked.finish_batch();
    if hurries || locked.devices.queues.has_pending_that_waited() {
        deferred_submit::leave_pending(locked);
    }
    locked.flush_overflow();
}

/// Completes finished work, and retries requests whose files are known or expected to be ready.
/// Returns whether it has polled the files.
///
/// On a ring that defers task work, the owner continues runnable requests (those due for an attempt
/// without an event) once, when its wait begins. Later in the wait, the owner continues such
/// requests only if it has too few completions.
fn complete_finished_work(locked: &mut LockedRing, wanted: u32, is_first: bool) -> bool {
    task_work::clear_announcement(locked);
    locked.ring.watch.activity.count_visit();
    task_work::run_for_wait(locked, wanted);
    expiry::expire(locked);
    if !locked.ring.is_polled_by_thread() {
        reap::reap(locked);
    }
    let goes_on = is_first || !locked.ring.defers_task_work() || locked.queues.cq.ready() < wanted;
    let polls = goes_on && locked.waiting.polls.has_runnable();
    if polls {
        dispatch::poll_for(locked, wanted);
    }
    if locked.waiting.polls.has_expected() && locked.queues.cq.ready() < wanted && locked.ring.is_left_to_owner() {
        dispatch::try_expected(locked);
        // Publishes the CQEs that `try_expected` has posted, so that the caller counts them.
        locked.finish_batch();
    }
    polls
}

/// Ends a wait that a signal interrupted. Returns `EINTR` only if the CQ is empty.
fn interrupted(ring: &Arc<Ring>) -> Result<(), Errno> {
    let mut locked = ring.lock();
    locked.finish_batch();
    deferred_submit::leave_pending(&mut locked);
    let ready = locked.queues.cq.ready();
    locked.release(Exit::Leave);
    if ready > 0 { Ok(()) } else { Err(Errno::EINTR) }
}

/// Returns how long a waiter that has `ready` CQEs may sleep, in nanoseconds; `None`: without
/// limit. `span`: a further limit, besides those of `call`. Once the minimum time of `call` is
/// over, changes `call` so that at most one CQE is needed to end the wait.
///
/// Error: `ETIME` if the deadline has passed, or if the minimum time is over and `ready` CQEs are
/// then enough.
pub(crate) fn time_left(
    call: &mut WaitCall,
    ready: u32,
    mut span: Option<Nanoseconds>,
) -> Result<Option<Nanoseconds>, Errno> {
    let mut shorten = |other: Nanoseconds| span = Some(span.map_or(other, |span| span.min(other)));
    if let Some(minimum) = call.minimum {
        let now = Clock::Monotonic.now();
        if now < minimum {
            shorten(minimum - now);
            return Ok(span);
        }
        call.minimum = None;
        call.completions = call.completions.min(1);
        call.deadline = call.deadline.or(Some((Clock::Monotonic, minimum)));
        if ready >= call.completions {
            return Err(Errno::ETIME);
        }
    }
    if let Some((clock, at)) = call.deadline {
        let now = clock.now();
        if now >= at {
            return Err(Errno::ETIME);
        }
        shorten(at - now);
    }
    Ok(span)
}

/// Sleeps for at most one millisecond, or until another thread puts work on the ring's task-work
/// list. Then runs that work.
///
/// Error: `EINTR` if a signal ended the sleep.
pub(crate) fn pause(ring: &Arc<Ring>) -> Result<(), Errno> {
    let ticket = ring.wakers.sleep.announce(Sleeper::Futex, 1);
    let slept = if ring.task_work.is_empty() {
        wait::futex(ring.wakers.sleep.futex(), ticket.futex_value(), Some(1_000_000))
    } else {
        Ok(())
    };
    let _ = ring.wakers.sleep.retract(ticket);
    let mut locked = ring.lock();
    task_work::run(&mut locked);
    locked.release(Exit::Leave);
    if slept == Err(Errno::EINTR) { slept } else { Ok(()) }
}

/// Returns how many completions have to arrive before a waker wakes this waiter. On a ring that
/// defers task work, only completions from now on count. On any other ring, the CQEs since the
/// wait's start count, too.
fn needed_completions(locked: &mut LockedRing, call: &WaitCall) -> u32 {
    if !locked.ring.defers_task_work() {
        return call.completions;
    }
    match locked.queues.consumer.stop() {
        Rest::OutOfReach => 1,
        Rest::Nothing | Rest::Entries => call
            .completions
            .saturating_sub(locked.queues.cq.arrived_since(call.head_at_start(&locked.ring.memory)))
            .max(1),
    }
}

/// Waits once: pauses while events gather, or sleeps.
///
/// Errors: `EINTR`, and the errors of making the epoll set.
fn gather_or_sleep(
    locked: LockedRing,
    call: &WaitCall,
    span: Option<Nanoseconds>,
    rate: &mut CompletionRate,
) -> Result<(), Errno> {
    match pause_for_more_events(locked, call, span, rate)? {
        Some(locked) => sleep(locked, call, span),
        None => Ok(()),
    }
}

/// Pauses while events of the files gather, so that one wake-up serves several events. Pauses only
/// on a ring that defers task work, if the waiter needs several more completions and has measured
/// their rate. (The kernel wakes such a waiter once, when there are enough completions. Without a
/// pause, an epoll set would wake the waiter for each event.)
///
/// Returns `None`, with the lock released, if the waiter paused; otherwise the held lock.
///
/// Errors: `EINTR` if a signal ended the pause.
fn pause_for_more_events<'a>(
    mut locked: LockedRing<'a>,
    call: &WaitCall,
    span: Option<Nanoseconds>,
    rate: &mut CompletionRate,
) -> Result<Option<LockedRing<'a>>, Errno> {
    let ring = locked.ring;
    if !ring.defers_task_work() || locked.waiting.polls.armed() == 0 || call.mask.is_some() || call.minimum.is_some() {
        return Ok(Some(locked));
    }
    let ready = locked.queues.cq.arrived_since(call.head_at_start(&ring.memory));
    let Some(pause) = rate.pause(ready, call.completions - ready) else { return Ok(Some(locked)) };
    if locked.waiting.polls.has_runnable() || locked.devices.queues.has_pending_submits() {
        return Ok(Some(locked));
    }
    // This call comes before `announce`. Otherwise the waiter would wake itself, because of the
    // CQEs that it has just published.
    locked.wake_others();
    let needed = needed_completions(&mut locked, call);
    let ticket = ring.wakers.announce(Sleeper::Futex, needed, call.head_at_start(&ring.memory));
    locked.release(Exit::Pause);
    let pause = span.map_or(pause, |span| span.min(pause));
    let slept = match ring.task_work.is_empty() {
        true => wait::futex(ring.wakers.sleep.futex(), ticket.futex_value(), Some(pause)),
        false => Ok(()),
    };
    let _ = ring.wakers.sleep.retract(ticket);
    let mut locked = ring.lock();
    dispatch::poll(&mut locked);
    locked.finish_batch();
    locked.release(Exit::Pause);
    if slept == Err(Errno::EINTR) { Err(Errno::EINTR) } else { Ok(None) }
}

/// Returns the kernel's AIO context to sleep on, and the largest number of completions to wait for
/// there. Such a sleep is one system call with one wake-up. Returns `None` if the call has a signal
/// mask, or if the ring watches a file or another device. Also returns `None` on a ring that does
/// not defer task work: another thread could arm a file or a timer during the sleep.
fn aio_waiter(locked: &LockedRing, call: &WaitCall) -> Option<(Waiter, u32)> {
    if !locked.ring.defers_task_work() || locked.waiting.polls.armed() != 0 || call.mask.is_some() {
        return None;
    }
    let (waiter, to_come) = locked.devices.queues.waiter()?;
    // A request outside the AIO context may complete first, and its completion counts, too. If
    // there is such a request, this thread sleeps for a single completion.
    let is_all = locked.queues.drain.outstanding() == u64::from(to_come);
    Some((waiter, if is_all { to_come.min(Waiter::MOST) } else { 1 }))
}

/// Sleeps once, in four steps: announces the sleeper, releases the lock, checks the task-work list
/// once more, sleeps. In another order, the waiter could miss a wake-up.
fn sleep(mut locked: LockedRing, call: &WaitCall, span: Option<Nanoseconds>) -> Result<(), Errno> {
    let ring = locked.ring.clone();
    if locked.waiting.polls.has_runnable() || locked.devices.queues.has_pending_submits() {
        locked.release(Exit::Pause);
        return Ok(());
    }
    let watches_devices = locked.devices.queues.in_flight() > 0 && !ring.is_polled_by_thread();
    let waiter = if watches_devices { aio_waiter(&locked, call) } else { None };
    if watches_devices && waiter.is_none() && !reap::arm_interrupts(&mut locked) {
        // A device has completed a request, or has no interrupt to wake a sleeper. So the caller
        // polls again.
        locked.release(Exit::Leave);
        return Ok(());
    }
    let span = if waiter.is_none() { locked.devices.queues.bound_sleep(span) } else { span };
    let watches_files = locked.waiting.polls.armed() > 0 || watches_devices || call.mask.is_some();
    if watches_files && let Err(error) = fast_poll::ensure_set(&mut locked) {
        locked.release(Exit::Leave);
        return Err(error);
    }
    let leads = locked.waiting.polls.set().is_some() && ring.control.sharing().try_lead(&ring.wakers.sleep);
    let is_shared = ring.is_shared();
    let span = if is_shared { Some(ended::bound_sleep(&mut locked, span)) } else { span };
    if is_shared && watches_devices && !leads {
        return sleep_on_own_devices(locked, call, span);
    }
    let set = locked.waiting.polls.set().map_or(-1, |set| set.number());
    if leads {
        ring_watcher::disarm(&locked);
    }
    let kind = if leads { Sleeper::Epoll } else { Sleeper::Futex };
    // This call comes before `announce`. Otherwise the waiter would wake itself, because of the
    // CQEs that it has just published.
    locked.wake_others();
    let needed = needed_completions(&mut locked, call);
    match waiter.filter(|_| leads) {
        Some((waiter, most)) => sleep_for_completions(locked, (&waiter, needed.min(most)), needed, span),
        None => {
            let ticket = ring.wakers.announce(kind, needed, call.head_at_start(&ring.memory));
            // On a shared ring the ring watcher watches the files during this sleep.
            locked.release(if is_shared { Exit::Finished } else { Exit::Pause });
            sleep_announced(&ring, ticket, leads.then_some(set), call, span)
        }
    }
}

/// Longest single sleep, in nanoseconds, of a waiter of a shared ring in a system call that another
/// process cannot end. The waiter checks the CQ after each such sleep.
const CQ_CHECK_INTERVAL_NS: Nanoseconds = 1_000_000;

/// Sleeps once on the epoll set of a shared ring, for a waiter whose process has transfers in
/// flight on devices. (Other waiters of a shared ring sleep on the sleep word.) Such a transfer
/// ends soon, and its interrupt, an event of the set, wakes the waiter directly.
///
/// Errors: `EINTR`, and the errors of epoll_wait(2).
fn sleep_on_own_devices(locked: LockedRing, call: &WaitCall, span: Option<Nanoseconds>) -> Result<(), Errno> {
    let ring = locked.ring.clone();
    let set = locked.waiting.polls.set().map_or(-1, |set| set.number());
    ring_watcher::disarm(&locked);
    locked.release(Exit::Pause);
    let mut events = [Event::default(); fire::EVENTS];
    let span = span.map_or(CQ_CHECK_INTERVAL_NS, |span| span.min(CQ_CHECK_INTERVAL_NS));
    let slept = match ring.task_work.is_empty() {
        true => wait::epoll(set, &mut events, Some(span), call.mask),
        false => Ok(0),
    };
    let mut locked = ring.lock();
    locked.note_poll();
    dispatch::dispatch(&mut locked, &events[..*slept.as_ref().unwrap_or(&0)], call.completions);
    locked.finish_batch();
    locked.release(Exit::Pause);
    slept.map(drop)
}

/// Sleeps once, after the sleeper was announced. `set`: the ring's epoll set, on which this thread
/// sleeps because it leads. `None`: this thread sleeps on the sleep word.
fn sleep_announced(
    ring: &Arc<Ring>,
    ticket: Ticket,
    set: Option<i32>,
    call: &WaitCall,
    span: Option<Nanoseconds>,
) -> Result<(), Errno> {
    let mut events = [Event::default(); fire::EVENTS];
    let outcome = match (set, call.mask) {
        _ if !ring.task_work.is_empty() => Ok(0),
        (Some(set), mask) => wait::epoll(set, &mut events, span, mask),
        (None, Some(mask)) if ring.is_shared() => {
            // futex(2) cannot change the signal mask, so this sleep uses another system call.
            wait::under_mask(span.map_or(CQ_CHECK_INTERVAL_NS, |span| span.min(CQ_CHECK_INTERVAL_NS)), mask).map(|()| 0)
        }
        (None, _) => wait::futex(ring.wakers.sleep.futex(), ticket.futex_value(), span).map(|()| 0),
    };
    let _ = ring.wakers.sleep.retract(ticket);
    if set.is_some() {
        stop_leading(ring, &events[..*outcome.as_ref().unwrap_or(&0)], call.completions);
    }
    if outcome == Err(Errno::EINTR) { Err(Errno::EINTR) } else { Ok(()) }
}

/// Sleeps until the kernel's AIO context holds `least` completions. `needed`: completions of any
/// kind that the waiter still needs.
fn sleep_for_completions(
    locked: LockedRing,
    (waiter, least): (&Waiter, u32),
    needed: u32,
    span: Option<Nanoseconds>,
) -> Result<(), Errno> {
    let ring = locked.ring.clone();
    ring.wakers.completions.begin(waiter.clone(), least);
    // Each entry on the task-work list is a completion, too. Once the list has `needed - (least -
    // 1)` entries, the waiter needs fewer than `least` completions of the AIO context. So a waker
    // then ends the sleep.
    let ticket = ring.wakers.sleep.announce(Sleeper::Epoll, needed - (least - 1));
    locked.release(Exit::Pause);
    let slept = if ring.task_work.is_empty() { waiter.sleep(least, span) } else { Ok(()) };
    let _ = ring.wakers.sleep.retract(ticket);
    ring.wakers.completions.end();
    stop_leading(&ring, &[], needed);
    match slept {
        Err(Errno::EINTR) => return Err(Errno::EINTR),
        Err(_) => forbid_waiter(&ring),
        Ok(()) => {}
    }
    Ok(())
}

/// Records that a seccomp filter of the program denies io_getevents(2). From now on the ring's
/// leader sleeps on the epoll set.
#[cold]
fn forbid_waiter(ring: &Arc<Ring>) {
    let mut locked = ring.lock();
    locked.devices.queues.forbid_waiter();
    locked.release(Exit::Leave);
}

/// Handles `events` from the ring's epoll set, and makes another waiter the leader. The new leader
/// then sleeps on the set. `wanted`: the number of completions that this thread waits for.
fn stop_leading(ring: &Arc<Ring>, events: &[Event], wanted: u32) {
    let mut locked = ring.lock();
    locked.note_poll();
    dispatch::dispatch(&mut locked, events, wanted);
    locked.finish_batch();
    let successor = ring.wakers.sleep.resign();
    // `Exit::Bare` leaves deferred submits pending until this thread takes the lock again. So the
    // next leader does not have to wait until these submits are made.
    locked.release(Exit::Bare);
    if successor == Wake::Futex {
        ring.wakers.sleep.wake_futex();
    }
}
