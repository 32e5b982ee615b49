//! Files that are expected to be ready before the epoll set has said so. An event
//! costs about as much in the set as half a receive does; where a server has more
//! to do than it gets done, whom it has answered longest ago will have asked
//! again. So while waits of the set bring many events at a time, the multishots
//! that were called are kept in the order in which they were, and tried in that
//! order before the set is asked: until two of them have had nothing, for so many
//! in a row. Who had nothing goes behind all others once more, and is then forgotten
//! until its next event; else it would wait for the set to be asked, and with it its peer.
//!
//! It is a guess about speed and nothing else. Nothing is taken out of the set by
//! it: a file that was tried in vain has its edge to come, and one that was
//! emptied before its event is passed over by the kernel. The set is asked at
//! intervals all the same (`LockedRing::is_due_for_a_look`). Where guesses go wrong
//! they are given up for a while.

use super::poll_slot::Tag;
use alloc::collections::VecDeque;

/// So many events at a time are a sign of it.
const MANY: usize = 8;
/// So many are tried in a row.
const MOST: usize = 32;
/// So many in vain.
pub(super) const MISSES: u32 = 2;
/// A guess in vain costs as much as so many good ones save.
const WORTH: u32 = 4;
/// So many waits of the set without guesses, at most, after wrong ones.
const LONGEST_PAUSE: u32 = 1024;
/// More than any ring has that is worth it.
const LIMIT: usize = 4096;

/// In `poll_table`.
#[derive(Default)]
pub(crate) struct Expected {
    /// Each with the time at which it was put here.
    queue: VecDeque<(Tag, u32)>,
    time: u32,
    guesses: bool,
    /// A guess was right since the set was asked last.
    was_right: bool,
    /// So many waits have to bring many events before the next guess.
    pause: u32,
    last_pause: u32,
}

impl Expected {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many may be tried in a row: nobody twice.
    pub fn chances(&self) -> usize {
        self.queue.len().min(MOST)
    }

    /// The set has brought so many events.
    #[inline]
    pub fn told_of(&mut self, events: usize) {
        if events >= MANY && !self.guesses {
            self.guesses = self.pause == 0;
            self.pause = self.pause.saturating_sub(1);
        }
    }

    /// Puts a file at the end; answers the time that its slot is to remember:
    /// what was put here earlier of it counts no more.
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

    /// The one to be tried next.
    #[inline]
    pub fn next(&self) -> Option<Tag> {
        self.queue.front().map(|(tag, _)| *tag)
    }

    /// Whether guesses have stood in for the set since it was asked last.
    pub fn was_right(&self) -> bool {
        self.was_right
    }

    /// The set is asked.
    #[inline]
    pub fn begin_anew(&mut self) {
        self.was_right = false;
    }

    /// What came of guesses.
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
