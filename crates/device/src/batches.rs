//! A queue of completions for drivers in which all requests of a batch have one latency. A batch is
//! the completions of the requests that one doorbell submitted. They become due together, in the
//! order in which they were added.
//!
//! Drivers whose own cost must stay small use this queue. A request costs one store at submission
//! and a copy at completion, because due times are kept per batch.

use crate::request::{Completion, Completions};
use alloc::boxed::Box;
use alloc::vec::Vec;
use usring_sys::Errno;
use usring_sys::ticks::Ticks;
use usring_sys::width;

/// Two circular arrays: one of completions, one of batches. Their sizes are powers of two. A
/// position counts the entries that were ever added or collected, modulo 2³². Its low bits are the
/// index in the array.
pub(crate) struct Batches {
    completions: Box<[Completion]>,
    /// Has as many entries as `completions`, because a batch may hold a single completion.
    batches: Box<[Batch]>,
    depth: u32,
    /// Position of the next completion to collect (`head`), and position of the next one to add
    /// (`tail`).
    head: u32,
    tail: u32,
    /// Position of the next batch to collect (`first`), and position of the next one to add
    /// (`last`).
    first: u32,
    last: u32,
}

#[derive(Clone, Copy)]
struct Batch {
    due: Ticks,
    /// Position after the batch's last completion.
    end: u32,
}

/// Due time of a completion that is due immediately, whatever the clock says.
pub(crate) const AT_ONCE: Ticks = Ticks(0);

impl Batches {
    pub fn new(depth: u32) -> Result<Batches, Errno> {
        let room = depth.checked_next_power_of_two().ok_or(Errno::ENOMEM)?;
        Ok(Batches {
            completions: allocate_ring(room, Completion { token: 0, result: 0 })?,
            batches: allocate_ring(room, Batch { due: AT_ONCE, end: 0 })?,
            depth,
            head: 0,
            tail: 0,
            first: 0,
            last: 0,
        })
    }

    /// Adds a completion to the current batch, which [`Batches::end_batch`] ends. Returns `false`
    /// if `depth` completions are in the queue already.
    #[inline]
    pub fn add(&mut self, completion: Completion) -> bool {
        if self.tail.wrapping_sub(self.head) >= self.depth {
            return false;
        }
        let mask = self.completions.len() - 1;
        self.completions[self.tail as usize & mask] = completion;
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Ends the current batch and sets its due time, unless the batch is empty. A batch never
    /// becomes due before the batches that were added before it.
    #[inline]
    pub fn end_batch(&mut self, due: impl FnOnce() -> Ticks) {
        let mask = self.batches.len() - 1;
        let ended = if self.first == self.last {
            self.head
        } else {
            self.batches[self.last.wrapping_sub(1) as usize & mask].end
        };
        if ended != self.tail {
            self.batches[self.last as usize & mask] = Batch { due: due(), end: self.tail };
            self.last = self.last.wrapping_add(1);
        }
    }

    /// Returns the due time of the first batch. `None` if there is no batch.
    #[inline]
    pub fn earliest(&self) -> Option<Ticks> {
        if self.first == self.last { None } else { Some(self.front().due) }
    }

    #[inline]
    fn front(&self) -> Batch {
        self.batches[self.first as usize & (self.batches.len() - 1)]
    }

    /// Moves due completions to `completions`, as many as fit there. Returns whether it moved any.
    /// Reads the clock at most once. Does not read it if there is no batch, or if the due time of
    /// the first batch is [`AT_ONCE`].
    #[inline]
    pub fn collect(&mut self, completions: &mut Completions) -> bool {
        let now = match self.earliest() {
            None => return false,
            Some(AT_ONCE) => AT_ONCE,
            Some(_) => Ticks::now(),
        };
        let start = self.head;
        while self.first != self.last && self.front().due <= now {
            let end = self.front().end;
            let at = self.head as usize & (self.completions.len() - 1);
            let batch = end.wrapping_sub(self.head) as usize;
            // A batch of completions that crosses the array's end is copied in two parts. The next
            // iteration of the loop copies the second part.
            let straight = batch.min(self.completions.len() - at);
            let taken = completions.take_from(&self.completions[at..at + straight]);
            self.head = self.head.wrapping_add(width::count(taken));
            if taken < straight {
                break;
            }
            if self.head == end {
                self.first = self.first.wrapping_add(1);
            }
        }
        self.head != start
    }
}

fn allocate_ring<T: Copy>(room: u32, value: T) -> Result<Box<[T]>, Errno> {
    let mut places = Vec::new();
    places.try_reserve_exact(room as usize).map_err(|_| Errno::ENOMEM)?;
    places.resize(room as usize, value);
    Ok(places.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The positions wrap around at 2³², and batches of different sizes cross the end of the array.
    #[test]
    fn order_and_depth_hold_when_positions_wrap() {
        let mut batches = Batches::new(5).unwrap();
        for position in [&mut batches.head, &mut batches.tail, &mut batches.first, &mut batches.last] {
            *position = u32::MAX - 40;
        }
        let mut completions = Completions::new();
        let (mut added, mut seen) = (0, 0);
        for round in 0..100 {
            let size = 1 + round % 5;
            for _ in 0..size {
                assert!(batches.add(Completion { token: added, result: 0 }));
                added += 1;
                if added % 3 == 0 {
                    batches.end_batch(|| AT_ONCE);
                }
            }
            assert!(size < 5 || !batches.add(Completion { token: 0, result: 0 }), "no room is left");
            batches.end_batch(|| AT_ONCE);
            completions.clear();
            assert!(batches.collect(&mut completions));
            for completion in completions.as_slice() {
                assert_eq!(completion.token, seen);
                seen += 1;
            }
            assert_eq!(seen, added);
            assert!(!batches.collect(&mut completions) && batches.earliest().is_none());
        }
    }
}
