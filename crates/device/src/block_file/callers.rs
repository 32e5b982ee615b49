//! The queue pairs of blocking calls: at most sixteen calls at a time in a process, each with a
//! queue pair of its own.

use super::caller::Caller;
use crate::device::Device;
use crate::policy::PollPolicy;
use core::array;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::{Errno, spread, thread, width};

const MOST: usize = 16;
/// Number of locks for writes to parts of blocks. Blocks that share a lock only wait for each
/// other.
const TURNS: usize = 64;

pub(crate) struct Callers {
    /// A queue pair for each of these seats. A call locks a seat for its duration. A thread tries
    /// its home seat first ([`home`]).
    seats: [Mutex<Option<Caller>>; MOST],
    /// Seats that have a queue pair, or had one a moment ago, one bit each.
    open: AtomicU32,
    turns: [Mutex<()>; TURNS],
}

/// A caller, held for the duration of a call.
pub(super) struct Seat<'a>(Guard<'a, Option<Caller>>);

impl Deref for Seat<'_> {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        self.0.as_ref().expect("`take` gives out occupied seats only")
    }
}

impl DerefMut for Seat<'_> {
    fn deref_mut(&mut self) -> &mut Caller {
        self.0.as_mut().expect("`take` gives out occupied seats only")
    }
}

impl Default for Callers {
    fn default() -> Self {
        Callers { seats: Default::default(), open: AtomicU32::new(0), turns: array::from_fn(|_| Mutex::new(())) }
    }
}

impl Callers {
    /// Takes a caller that no other call uses; waits if necessary.
    ///
    /// Errors: those of [`crate::Driver::open_queue`] for the first queue pair.
    pub(super) fn take(&self, device: &Device) -> Result<Seat<'_>, Errno> {
        let own = home(thread::current().0);
        for index in (own..MOST).chain(0..own) {
            let Some(mut seat) = self.seats[index].try_lock() else { continue };
            match occupy(device, &mut seat) {
                Ok(()) => {
                    self.open.fetch_or(1 << index, Ordering::Relaxed);
                    return Ok(Seat(seat));
                }
                // The device has no further queue pair, so the call waits for a seat that has one.
                Err(error) if self.open.load(Ordering::Relaxed) == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.wait(device, own)
    }

    /// Waits for the seat of another call.
    #[cold]
    fn wait(&self, device: &Device, own: usize) -> Result<Seat<'_>, Errno> {
        let open = self.open.load(Ordering::Relaxed);
        // The first open seat from the thread's home on, wrapping around.
        let first = (open >> own).trailing_zeros() as usize + own;
        let index = if first < MOST { first } else { open.trailing_zeros() as usize % MOST };
        let mut seat = self.seats[index].lock();
        occupy(device, &mut seat)?;
        Ok(Seat(seat))
    }

    /// Excludes other writers of parts of this block.
    pub(super) fn turn(&self, block: u64) -> Guard<'_, ()> {
        self.turns[width::size(block % TURNS as u64)].lock()
    }
}

/// Gives the seat a queue pair. It has interrupts if the device's policy is now `interrupt`.
fn occupy(device: &Device, seat: &mut Option<Caller>) -> Result<(), Errno> {
    let interrupts = device.policy() == PollPolicy::Interrupt;
    match seat {
        Some(caller) if !interrupts || caller.has_interrupts() => Ok(()),
        Some(caller) => {
            // If this fails, the old queue pair still works, by polling.
            if let Ok(other) = Caller::new(device, interrupts) {
                *caller = other;
            }
            Ok(())
        }
        None => {
            *seat = Some(Caller::new(device, interrupts)?);
            Ok(())
        }
    }
}

/// Returns a thread's home seat. The control blocks of threads lie pages apart.
fn home(thread: usize) -> usize {
    spread::row(thread >> 12, MOST)
}
