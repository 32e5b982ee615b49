//! IORING_SETUP_IOPOLL: the thread that asks for events polls the devices for completions, and the
//! devices use no interrupt.

use crate::driving::wait::{self, WaitCall};
use crate::driving::{deferred_submit, reap, task_work};
use crate::ring::{Exit, LockedRing, Ring};
use crate::waiting::workers;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_device::Pause;
use usring_sys::clock::Nanoseconds;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, signals, timer_slack};

/// Number of polls of the devices after which the ring's lock is released for a moment, so that
/// other threads can take it.
const POLLS_PER_HOLD: u32 = 16;

/// A time limit of at least this many nanoseconds (36 years) counts as no limit.
const NO_LIMIT_FROM_NS: Nanoseconds = 1 << 60;

/// Whether io_uring_enter(2) polls the devices even if the ring has an SQ thread, as in kernels
/// before 5.7. Only a benchmark sets this, to compare with polling by the SQ thread alone.
static POLLING_ENTER: AtomicBool = AtomicBool::new(false);

/// Makes io_uring_enter(2) poll the devices of each IOPOLL ring of this process from now on, even
/// if the ring has an SQ thread.
pub fn have_enter_poll() {
    POLLING_ENTER.store(true, Ordering::Relaxed);
}

pub(crate) fn enters_poll() -> bool {
    POLLING_ENTER.load(Ordering::Relaxed)
}

/// Runs io_uring_enter(2) with GETEVENTS on an IOPOLL ring without an SQ thread. Returns at once if
/// there is a CQE. Otherwise polls until there are `minimum` CQEs, or until no request of the ring
/// is on a device or a worker.
///
/// Errors: `EINTR` for a signal, if the CQ is empty.
pub(crate) fn poll(mut locked: LockedRing, minimum: u32) -> Result<(), Errno> {
    let ring = locked.ring;
    locked.flush_overflow();
    if locked.queues.cq.ready() > 0 {
        locked.release(Exit::Leave);
        return Ok(());
    }
    loop {
        let (back, end) = poll_until(ring, locked, minimum, None);
        match end {
            PollEnd::NothingOut if workers::have_requests_of(ring) => {
                // No request is in flight on a device, but workers run requests of the ring: those
                // that no queue pair could take. This thread waits for the workers.
                back.release(Exit::Finished);
                wait::pause(ring)?;
            }
            PollEnd::Enough | PollEnd::NothingOut => {
                back.release(Exit::Finished);
                return Ok(());
            }
            PollEnd::Interrupted | PollEnd::TimeIsUp => {
                let nothing = back.queues.cq.ready() == 0;
                back.release(Exit::Finished);
                return if nothing { Err(Errno::EINTR) } else { Ok(()) };
            }
            PollEnd::UseInterrupts => {
                // The wait must not ask for more completions than can come. Otherwise the wait
                // would never end.
                let completions = minimum.min(back.queues.cq.ready() + back.devices.queues.in_flight());
                back.release(Exit::Pause);
                return wait::wait(ring, &WaitCall { completions, ..Default::default() });
            }
        }
        locked = ring.lock();
    }
}

/// Waits on a ring without IOPOLL whose waiters poll the devices. Spins while requests are in
/// flight on devices, and sleeps otherwise.
///
/// Errors: `EINTR` and `ETIME`, if the CQ is empty.
pub(crate) fn poll_and_wait(ring: &Arc<Ring>, call: &WaitCall) -> Result<(), Errno> {
    loop {
        let left =
            call.deadline.map(|(clock, at)| at.saturating_sub(clock.now())).filter(|left| *left < NO_LIMIT_FROM_NS);
        let (back, end) = poll_until(ring, ring.lock(), call.completions, left);
        let any = back.queues.cq.ready() > 0;
        back.release(Exit::Finished);
        match end {
            PollEnd::Enough => return Ok(()),
            PollEnd::Interrupted if !any => return Err(Errno::EINTR),
            PollEnd::TimeIsUp if !any => return Err(Errno::ETIME),
            PollEnd::Interrupted | PollEnd::TimeIsUp => return Ok(()),
            PollEnd::UseInterrupts => return wait::wait(ring, call),
            PollEnd::NothingOut => {}
        }
        wait::wait(ring, &WaitCall { until_devices: true, ..*call })?;
        // The wait may return without enough CQEs. Either a request is now in flight on a device,
        // or the call's time is up, or a signal came. In the last two cases a single CQE is enough.
        let is_over = || call.deadline.is_some_and(|(clock, at)| clock.now() >= at) || signals::interrupted();
        let ready = ring.memory.ready();
        if ready >= call.completions || ready > 0 && is_over() {
            return Ok(());
        }
    }
}

/// The reason why polling has ended.
enum PollEnd {
    Enough,
    /// No device has a request in flight.
    NothingOut,
    Interrupted,
    TimeIsUp,
    /// The devices' polling policy asks the waiter to use interrupts.
    UseInterrupts,
}

/// Polls until there are `minimum` CQEs, for at most `limit` nanoseconds (`None`: without limit).
/// Returns why polling ended. On return, the CQEs that were posted are published.
#[inline(always)]
fn poll_until<'a>(
    ring: &'a Arc<Ring>,
    mut locked: LockedRing<'a>,
    minimum: u32,
    limit: Option<Nanoseconds>,
) -> (LockedRing<'a>, PollEnd) {
    let end = limit.map(|limit| Ticks::now().after(limit));
    let mut polls = 0;
    loop {
        task_work::run(&mut locked);
        locked = poll_once(ring, locked);
        locked.finish_batch();
        if locked.devices.queues.has_pending_submits() && limit.is_some() {
            // A deferred submit may take longer than the time limit, so a submit helper makes the
            // submit.
            deferred_submit::leave_pending(&mut locked);
        }
        if locked.queues.cq.ready() >= minimum {
            return (locked, PollEnd::Enough);
        }
        if locked.devices.queues.in_flight() == 0 {
            return (locked, PollEnd::NothingOut);
        }
        if signals::interrupted() {
            return (locked, PollEnd::Interrupted);
        }
        if end.is_some_and(|end| Ticks::now() >= end) {
            return (locked, PollEnd::TimeIsUp);
        }
        polls += 1;
        locked = match locked.devices.queues.pause(polls == 1) {
            Pause::Spin if polls % POLLS_PER_HOLD != 0 && !locked.devices.queues.has_pending_submits() => {
                let _ = locked.devices.queues.spin();
                locked
            }
            Pause::Sleep(span) => {
                locked.release(Exit::Pause);
                // If a signal ends the sleep early, `signals::interrupted` reports it after the
                // next poll.
                let _ = timer_slack::sleep_precisely(span.min(limit.unwrap_or(span)));
                ring.lock()
            }
            Pause::Spin => {
                locked.release(Exit::Pause);
                ring.lock()
            }
            Pause::Interrupt => return (locked, PollEnd::UseInterrupts),
        };
    }
}

/// Polls the devices once.
#[inline(always)]
fn poll_once<'a>(ring: &'a Arc<Ring>, mut locked: LockedRing<'a>) -> LockedRing<'a> {
    if locked.devices.queues.has_pre_poll_sleeps() {
        return poll_after_sleep(ring, locked);
    }
    reap::reap(&mut locked);
    locked
}

/// Sleeps and then polls, on a ring with HYBRID_IOPOLL. The ring's estimate of the device's latency
/// gives the length of the sleep before a request's first poll.
#[inline(never)]
fn poll_after_sleep<'a>(ring: &'a Arc<Ring>, mut locked: LockedRing<'a>) -> LockedRing<'a> {
    let sleep = locked.devices.queues.next_pre_poll_sleep();
    if let Some(sleep) = sleep.as_ref().filter(|sleep| sleep.span > 0) {
        locked.release(Exit::Pause);
        // The result is not needed: if a signal ends the sleep early, the caller learns that from
        // `signals::interrupted`.
        let _ = timer_slack::sleep_precisely(sleep.span);
        locked = ring.lock();
    }
    reap::reap(&mut locked);
    if let Some(sleep) = &sleep {
        locked.devices.queues.end_pre_poll_sleep(sleep);
    }
    locked
}
