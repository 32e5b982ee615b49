//! IORING_SETUP_IOPOLL: whoever asks for events looks for them at the devices,
//! and nothing interrupts it.

use crate::device_queues;
use crate::ring::{LockedRing, Ring};
use crate::wait::{self, WaitCall};
use crate::{task_work, workers};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_device::Pause;
use usring_sys::{Errno, signals, timer_slack};

/// Looks between two chances for others to take the ring's lock.
const LOOKS_PER_TURN: u32 = 16;

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
    locked.devices.begin_wait();
    let mut looks = 0;
    loop {
        task_work::run(&mut locked);
        locked = look(ring, locked);
        locked.finish_batch();
        if locked.cq.ready() >= minimum {
            break;
        }
        if locked.devices.in_flight() == 0 {
            if !workers::have_requests_of(ring) {
                break;
            }
            // What no queue pair could take is under way all the same.
            locked.leave();
            wait::pause(ring)?;
            locked = ring.lock();
            continue;
        }
        if signals::interrupted() {
            let nothing = locked.cq.ready() == 0;
            locked.leave();
            return if nothing { Err(Errno::EINTR) } else { Ok(()) };
        }
        looks += 1;
        locked = match locked.devices.pause() {
            Pause::Spin if looks % LOOKS_PER_TURN != 0 => {
                locked.devices.spin();
                locked
            }
            Pause::Sleep(span) => {
                locked.unlock();
                // Ended early by a signal: the next look sees that.
                let _ = timer_slack::sleep_precisely(span);
                ring.lock()
            }
            Pause::Spin => {
                locked.unlock();
                ring.lock()
            }
            Pause::Interrupt => {
                // Never for more than is out.
                let completions = minimum.min(locked.cq.ready() + locked.devices.in_flight());
                locked.unlock();
                return wait::wait(ring, &WaitCall { completions, ..Default::default() });
            }
        };
    }
    locked.leave();
    Ok(())
}

/// One look at the devices; on a ring with HYBRID_IOPOLL, after the sleep that
/// the next request's first poll is worth.
fn look<'a>(ring: &'a Arc<Ring>, mut locked: LockedRing<'a>) -> LockedRing<'a> {
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
