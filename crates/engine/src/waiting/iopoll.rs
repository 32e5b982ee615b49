//! IORING_SETUP_IOPOLL: whoever asks for events looks for them at the devices,
//! and nothing interrupts it.

use crate::device_queues;
use crate::ring::{LockedRing, Ring};
use crate::wait::{self, WaitCall};
use crate::{task_work, workers};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_device::Pause;
use usring_sys::clock::Nanoseconds;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, signals, timer_slack};

/// Looks between two chances for others to take the ring's lock.
const LOOKS_PER_TURN: u32 = 16;

/// Decades: no time limit for looking.
const FOR_EVER: Nanoseconds = 1 << 60;

/// Beside an SQ thread enter polls, too, as kernels before 5.7 had it: to see
/// what it is worth that it does not.
static POLLING_ENTER: AtomicBool = AtomicBool::new(false);

/// See `POLLING_ENTER`.
pub fn have_enter_poll() {
    POLLING_ENTER.store(true, Ordering::Relaxed);
}

pub(crate) fn enters_poll() -> bool {
    POLLING_ENTER.load(Ordering::Relaxed)
}

/// enter(2) with GETEVENTS on a polled ring without an SQ thread: comes back
/// at once if there is a CQE, else polls until there are `minimum` or nothing
/// is out any more.
///
/// Errors: `EINTR` for a signal, if no CQE is there.
pub(crate) fn poll(mut locked: LockedRing, minimum: u32) -> Result<(), Errno> {
    let ring = locked.ring;
    locked.flush_overflow();
    if locked.cq.ready() > 0 {
        locked.leave();
        return Ok(());
    }
    loop {
        let (back, end) = look_until(ring, locked, minimum, None);
        match end {
            End::NothingOut if workers::have_requests_of(ring) => {
                // What no queue pair could take is under way all the same.
                back.depart();
                wait::pause(ring)?;
            }
            End::Enough | End::NothingOut => {
                back.depart();
                return Ok(());
            }
            End::Interrupted | End::TimeIsUp => {
                let nothing = back.cq.ready() == 0;
                back.depart();
                return if nothing { Err(Errno::EINTR) } else { Ok(()) };
            }
            End::Told => {
                // Never for more than is out.
                let completions = minimum.min(back.cq.ready() + back.devices.in_flight());
                back.unlock();
                return wait::wait(ring, &WaitCall { completions, ..Default::default() });
            }
        }
        locked = ring.lock();
    }
}

/// A wait on a ring that looks for its events without being a polled one: spins
/// while something is out on a device, and sleeps for everything else.
pub(crate) fn look_and_wait(ring: &Arc<Ring>, call: &WaitCall) -> Result<(), Errno> {
    loop {
        let left = call.deadline.map(|(clock, at)| at.saturating_sub(clock.now())).filter(|left| *left < FOR_EVER);
        let (back, end) = look_until(ring, ring.lock(), call.completions, left);
        let any = back.cq.ready() > 0;
        back.depart();
        match end {
            End::Enough => return Ok(()),
            End::Interrupted if !any => return Err(Errno::EINTR),
            End::TimeIsUp if !any => return Err(Errno::ETIME),
            End::Interrupted | End::TimeIsUp => return Ok(()),
            End::Told => return wait::wait(ring, call),
            End::NothingOut => {}
        }
        wait::wait(ring, &WaitCall { until_devices: true, ..*call })?;
        // It ends without enough for a device, or because it is over and there
        // is something.
        let is_over = || call.deadline.is_some_and(|(clock, at)| clock.now() >= at) || signals::interrupted();
        let ready = ring.memory.ready();
        if ready >= call.completions || ready > 0 && is_over() {
            return Ok(());
        }
    }
}

/// Why looking has ended.
enum End {
    Enough,
    /// No device has anything to do.
    NothingOut,
    Interrupted,
    TimeIsUp,
    /// The devices are to tell, by their policy.
    Told,
}

/// Looks until there are `minimum` CQEs, for so long at most. The batch is
/// finished when it comes back.
#[inline(always)]
fn look_until<'a>(
    ring: &'a Arc<Ring>,
    mut locked: LockedRing<'a>,
    minimum: u32,
    limit: Option<Nanoseconds>,
) -> (LockedRing<'a>, End) {
    let end = limit.map(|limit| Ticks::now().after(limit));
    let mut looks = 0;
    loop {
        task_work::run(&mut locked);
        locked = look(ring, locked);
        locked.finish_batch();
        if locked.devices.owes_delivery() && limit.is_some() {
            // It may take longer.
            device_queues::leave_delivery(&mut locked);
        }
        if locked.cq.ready() >= minimum {
            return (locked, End::Enough);
        }
        if locked.devices.in_flight() == 0 {
            return (locked, End::NothingOut);
        }
        if signals::interrupted() {
            return (locked, End::Interrupted);
        }
        if end.is_some_and(|end| Ticks::now() >= end) {
            return (locked, End::TimeIsUp);
        }
        looks += 1;
        locked = match locked.devices.pause(looks == 1) {
            Pause::Spin if looks % LOOKS_PER_TURN != 0 && !locked.devices.owes_delivery() => {
                let _ = locked.devices.spin();
                locked
            }
            Pause::Sleep(span) => {
                locked.unlock();
                // Ended early by a signal: the next look sees that.
                let _ = timer_slack::sleep_precisely(span.min(limit.unwrap_or(span)));
                ring.lock()
            }
            Pause::Spin => {
                locked.unlock();
                ring.lock()
            }
            Pause::Interrupt => return (locked, End::Told),
        };
    }
}

/// One look at the devices.
#[inline(always)]
fn look<'a>(ring: &'a Arc<Ring>, mut locked: LockedRing<'a>) -> LockedRing<'a> {
    if locked.devices.has_naps() {
        return look_after_nap(ring, locked);
    }
    device_queues::reap(&mut locked);
    locked
}

/// On a ring with HYBRID_IOPOLL: after the sleep that the next request's first
/// poll is worth.
#[inline(never)]
fn look_after_nap<'a>(ring: &'a Arc<Ring>, mut locked: LockedRing<'a>) -> LockedRing<'a> {
    let nap = locked.devices.next_nap();
    if let Some(nap) = nap.as_ref().filter(|nap| nap.span > 0) {
        locked.unlock();
        // Ended early by a signal: the caller sees that.
        let _ = timer_slack::sleep_precisely(nap.span);
        locked = ring.lock();
    }
    device_queues::reap(&mut locked);
    if let Some(nap) = &nap {
        locked.devices.end_nap(nap);
    }
    locked
}
