//! Guesses which files are ready before the epoll set has reported them.
//!
//! Taking an event from the set costs about half as much as a receive. On a busy server, requests
//! pile up: the peer that it answered longest ago has probably sent its next request already. So
//! while waits of the set bring many events at a time:
//!
//! 1. Multishots are queued in the order in which they were last tried.
//! 2. Before the set is asked, they are tried in that order, until [`MOST`] were tried or
//!    [`MISSES`] of them found nothing.
//! 3. A multishot that found nothing goes to the end of the queue once. After a second miss it is
//!    dropped until its next event. Without the second chance, it and its peer would wait until the
//!    set is asked.
//!
//! These guesses only save time. They take nothing out of the set: if a file was tried in vain, its
//! next edge is still to come. If a file was emptied before its event is taken, the kernel passes
//! over the event. The set is still asked at intervals (`LockedRing::is_poll_due`). After wrong
//! guesses there are none for a while.

use crate::request::conditions::Tag;
use alloc::collections::VecDeque;

/// Least number of events per wait at which guesses begin.
const MANY: usize = 8;
/// Most files tried in a row.
const MOST: usize = 32;
/// Number of files that a wait tries in vain before it asks the epoll set.
pub(crate) const MISSES: u32 = 2;
/// Number of right guesses that save as much time as one wrong guess costs.
const WORTH: u32 = 4;
/// After wrong guesses, at most this many waits ask the set without guessing.
const LONGEST_PAUSE: u32 = 1024;
/// Most entries of the queue. A ring with more files gains nothing by guesses.
const LIMIT: usize = 4096;

/// State of the guesses, part of `poll_table`.
#[derive(Default)]
pub(crate) struct Expected {
    /// Each file, with the time (`time`) at which it was queued.
    queue: VecDeque<(Tag, u32)>,
    time: u32,
    guesses: bool,
    /// A guess was right since the set was last asked.
    was_right: bool,
    /// Number of waits with many events that have to pass before the next guess.
    pause: u32,
    last_pause: u32,
}

impl Expected {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns how many files may be tried in a row, each at most once.
    pub fn chances(&self) -> usize {
        self.queue.len().min(MOST)
    }

    /// Notes the number of events that a wait of the set has brought.
    #[inline]
    pub fn note_events(&mut self, events: usize) {
        if events >= MANY && !self.guesses {
            self.guesses = self.pause == 0;
            self.pause = self.pause.saturating_sub(1);
        }
    }

    /// Puts a file at the end of the queue. Returns the entry's time, which the file's slot has to
    /// remember: an entry of the file with another time is stale. `None`: guesses pause, and the
    /// file is not queued.
    #[inline]
    pub fn put(&mut self, tag: Tag) -> Option<u32> {
        if !self.guesses {
            return None;
        }
        if self.queue.len() == LIMIT {
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

    /// Returns the file to be tried next.
    #[inline]
    pub fn next(&self) -> Option<Tag> {
        self.queue.front().map(|(tag, _)| *tag)
    }

    /// Returns whether a guess was right since the set was last asked.
    pub fn was_right(&self) -> bool {
        self.was_right
    }

    /// Begins a new interval: the set is being asked.
    #[inline]
    pub fn begin_anew(&mut self) {
        self.was_right = false;
    }

    /// Judges a series of guesses by its `hits` and `misses`. After too many misses, guesses pause.
    pub fn judge(&mut self, hits: u32, misses: u32) {
        self.was_right |= hits > 0;
        if hits >= WORTH * misses {
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
