//! The queue pairs of blocking calls. A process runs at most sixteen blocking calls on a device at
//! a time, each with a queue pair of its own.

use super::caller::Caller;
use crate::device::Device;
use crate::policy::PollPolicy;
use core::array;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::{Errno, spread, thread, width};

const MOST_CALLS: usize = 16;
/// Number of locks for writes to parts of blocks. Several blocks share a lock, so a write to one
/// may wait needlessly for a write to another.
const BLOCK_LOCKS: usize = 64;

pub(crate) struct Callers {
    /// An array of *seats*. A seat is a lock and, after the seat's first use, a queue pair. A call
    /// keeps a seat locked until the call returns. A thread first tries its home seat ([`home`]).
    seats: [Mutex<Option<Caller>>; MOST_CALLS],
    /// One bit for each entry of `seats`, set once the entry has a queue pair.
    open: AtomicU32,
    block_locks: [Mutex<()>; BLOCK_LOCKS],
}

/// A locked seat, whose queue pair the call uses.
pub(super) struct Seat<'a>(Guard<'a, Option<Caller>>);

impl Deref for Seat<'_> {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        self.0.as_ref().expect("`take` returns only seats that have a queue pair")
    }
}

impl DerefMut for Seat<'_> {
    fn deref_mut(&mut self) -> &mut Caller {
        self.0.as_mut().expect("`take` returns only seats that have a queue pair")
    }
}

impl Default for Callers {
    fn default() -> Self {
        Callers { seats: Default::default(), open: AtomicU32::new(0), block_locks: array::from_fn(|_| Mutex::new(())) }
    }
}

impl Callers {
    /// Returns a locked seat, which has a queue pair for one blocking call. If all seats are
    /// locked, or the device has no further queue pair, waits for a seat that has one.
    ///
    /// Errors: those of [`crate::Driver::open_queue`], if no seat has a queue pair.
    pub(super) fn take(&self, device: &Device) -> Result<Seat<'_>, Errno> {
        let own = home(thread::current().0);
        for index in (own..MOST_CALLS).chain(0..own) {
            let Some(mut seat) = self.seats[index].try_lock() else { continue };
            match ensure_queue_pair(device, &mut seat) {
                Ok(()) => {
                    self.open.fetch_or(1 << index, Ordering::Relaxed);
                    return Ok(Seat(seat));
                }
                // The device has no further queue pair. This call waits for a queue pair that
                // another call uses. It fails if no call has one.
                Err(error) if self.open.load(Ordering::Relaxed) == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.wait(device, own)
    }

    /// Waits until another call unlocks its seat.
    #[cold]
    fn wait(&self, device: &Device, own: usize) -> Result<Seat<'_>, Errno> {
        let open = self.open.load(Ordering::Relaxed);
        // Waits for the first seat with a queue pair, counted from the thread's home seat with
        // wrap-around.
        let first = (open >> own).trailing_zeros() as usize + own;
        let index = if first < MOST_CALLS { first } else { open.trailing_zeros() as usize % MOST_CALLS };
        let mut seat = self.seats[index].lock();
        ensure_queue_pair(device, &mut seat)?;
        Ok(Seat(seat))
    }

    /// Locks a block against other writes to parts of the block.
    pub(super) fn lock_block(&self, block: u64) -> Guard<'_, ()> {
        self.block_locks[width::size(block % BLOCK_LOCKS as u64)].lock()
    }
}

/// Makes sure that a seat (a lock and its queue pair) has a queue pair. Under the policy
/// `interrupt`, a new queue pair has interrupts. Under that policy, this function also replaces an
/// old queue pair that has no interrupts.
fn ensure_queue_pair(device: &Device, seat: &mut Option<Caller>) -> Result<(), Errno> {
    let interrupts = device.policy() == PollPolicy::Interrupt;
    match seat {
        Some(caller) if !interrupts || caller.has_interrupts() => Ok(()),
        Some(caller) => {
            // If the device opens no other queue pair, the call keeps the seat's old queue pair and
            // polls it.
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

/// Returns the index in `seats` of the seat that a thread tries first. `thread` is the address of
/// the thread's control block. Two control blocks never lie in one page, so each thread has another
/// page number.
fn home(thread: usize) -> usize {
    spread::row(thread >> 12, MOST_CALLS)
}
