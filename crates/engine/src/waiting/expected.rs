//! Guesses which files are ready before the epoll set has reported them.
//!
//! Taking an event from the epoll set costs about half as much as a receive. On a busy server, the
//! peer that got its answer longest ago has probably sent its next request already. So after a wait
//! on the epoll set that returned many events:
//!
//! 1. Multishots are queued in the order in which they last tried to receive.
//! 2. Before a driver asks the epoll set, it lets the queued multishots try again in that order. It
//!    stops after [`MOST_TRIES`] tries, or after [`MOST_MISSES`] tries that found no data.
//! 3. A multishot that found no data goes to the end of the queue, because its peer may send at any
//!    moment. If its next try finds no data either, the multishot leaves the queue until its next
//!    event.
//!
//! Guesses only save time, and lose no event. If a guess finds no data, the file's next edge is
//! still to come. If a guess empties a file before a driver takes its event, the kernel skips that
//! event. A driver still asks the epoll set at intervals (`LockedRing::is_poll_due`). After wrong
//! guesses, guessing pauses for a while.

use crate::request::conditions::Tag;
use alloc::collections::VecDeque;

/// Guessing begins after a wait on the epoll set that returns at least this many events.
const MANY_EVENTS: usize = 8;
/// Maximum number of files that one series of guesses (tries without an event) tries.
const MOST_TRIES: usize = 32;
/// Maximum number of misses (tries that found no data) in one series of guesses.
pub(crate) const MOST_MISSES: u32 = 2;
/// A miss (a try that found no data) costs as much time as this many right guesses save.
const HITS_PER_MISS: u32 = 4;
/// Longest pause of guessing after wrong guesses, as a number of waits that returned many events.
const LONGEST_PAUSE: u32 = 1024;
/// Maximum number of entries of the queue of files to try. A full queue is emptied, because guesses
/// save no time with so many files.
const MOST_QUEUED: usize = 4096;

/// State of the guesses of one poll table.
#[derive(Default)]
pub(crate) struct Expected {
    /// The files to try, each with the value of `time` at which it was put into the queue.
    queue: VecDeque<(Tag, u32)>,
    time: u32,
    guesses: bool,
    /// Whether a guess (a try without an event) has found data since the epoll set was last asked.
    was_right: bool,
    /// Guessing begins again after this many further waits with many events.
    pause: u32,
    last_pause: u32,
}

impl Expected {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns how many files one series of guesses may try. A series tries each file at most once.
    pub fn tries_of_series(&self) -> usize {
        self.queue.len().min(MOST_TRIES)
    }

    /// Records the number of events that one wait on the epoll set has returned.
    #[inline]
    pub fn note_events(&mut self, events: usize) {
        if events >= MANY_EVENTS && !self.guesses {
            self.guesses = self.pause == 0;
            self.pause = self.pause.saturating_sub(1);
        }
    }

    /// Puts a file at the end of the queue. Returns the number of files queued so far, which the
    /// caller stores in the file's slot of the poll table. A queue entry with another number is
    /// stale. `None`: guessing pauses, and the file was not queued.
    #[inline]
    pub fn put(&mut self, tag: Tag) -> Option<u32> {
        if !self.guesses {
            return None;
        }
        if self.queue.len() == MOST_QUEUED {
            self.queue.clear();
        }
        self.time = self.time.wrapping_add(1);
        self.queue.push_back((tag, self.time));
        Some(self.time)
    }

    #[inline]
    pub fn take(&mut self) -> Option<(Tag, u32)> {
        self.queue.pop_front()
    }

    /// Returns the file that will be tried next.
    #[inline]
    pub fn next(&self) -> Option<Tag> {
        self.queue.front().map(|(tag, _)| *tag)
    }

    /// Returns whether a guess (a try without an event) has found data since the epoll set was last
    /// asked.
    pub fn was_right(&self) -> bool {
        self.was_right
    }

    /// Clears [`Expected::was_right`], because the caller asks the epoll set for events now.
    #[inline]
    pub fn clear_was_right(&mut self) {
        self.was_right = false;
    }

    /// Judges one series of guesses by its `hits` (tries that found data) and `misses`. After too
    /// many misses, guessing pauses.
    pub fn judge(&mut self, hits: u32, misses: u32) {
        self.was_right |= hits > 0;
        if hits >= HITS_PER_MISS * misses {
            if hits > 0 {
                self.last_pause = 0;
            }
            return;
        }
        self.guesses = false;
        self.queue.clear();
        self.last_pause = (2 * self.last_pause).clamp(1, LONGEST_PAUSE);
        self.pause = self.last_pause;
    }
}
