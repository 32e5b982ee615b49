//! A change that one process of a shared ring asks of another: to cancel or change requests that
//! only the other process can reach. A ring has one slot for this.
//!
//! | word | content |
//! |---|---|
//! | `ASKER` | number of the process that asks, 0: the slot is free |
//! | `TARGET` | number of the process that has to make the change, 0: that process has answered |
//! | `ANSWER` | the answer |
//! | `WANTED` | 1: a process waits for the slot |
//! | `CHANGE` | the change, which the engine encodes |
//!
//! The steps:
//!
//! 1. The asking process fills the slot, and wakes the other processes.
//! 2. The asked process makes the change, stores the answer, and wakes the other processes.
//! 3. The asking process takes the answer. It asks the next process, or frees the slot. It may also
//!    free the slot without an answer.
//!
//! All words change under the ring's lock only. A process may die between any two stores:
//!
//! - A process that dies in step 1 leaves a free slot, because `ASKER` is stored last.
//! - A slot whose asking process has died counts as free.
//! - If the asked process has died, the asking process continues without an answer. The death wakes
//!   no process. So the asking process checks from time to time whether the asked process is alive.
//! - A process that dies before it has woken the others still holds the ring's lock. The next
//!   process that gets the lock wakes them.

use usring_sys::shared::SharedMemory;
use usring_sys::sync::{Arc, Ordering};

/// A change, as the engine encodes it.
pub type Change = [u64; 5];

const ASKER: usize = 0;
const TARGET: usize = 4;
const ANSWER: usize = 8;
const WANTED: usize = 12;
const CHANGE: usize = 16;
/// Bytes of the slot.
pub const LENGTH: usize = 64;

/// One process's view of a ring's change slot. By this slot one process asks another process to
/// change requests. Only the holder of the ring's lock uses the view.
pub struct ChangeSlot {
    memory: Arc<SharedMemory>,
    start: usize,
    /// This process's number.
    own: u32,
}

impl ChangeSlot {
    /// Returns the view for the process with the number `own`. `start` is the slot's offset in
    /// `memory`, in bytes.
    pub fn new(memory: Arc<SharedMemory>, start: usize, own: u32) -> ChangeSlot {
        ChangeSlot { memory, start, own }
    }

    fn get(&self, word: usize) -> u32 {
        self.memory.word(self.start + word).load(Ordering::Relaxed)
    }

    /// Stores a word, after all earlier stores.
    fn set(&self, word: usize, value: u32) {
        self.memory.word(self.start + word).store(value, Ordering::Release);
    }

    /// Returns whether this process may use the slot to ask for a change. If another process uses
    /// the slot, records that this process waits for the slot.
    pub fn is_available(&self, is_alive: impl Fn(u32) -> bool) -> bool {
        let asker = self.get(ASKER);
        let is_available = asker == 0 || self.is_own() || !is_alive(asker);
        if !is_available {
            self.set(WANTED, 1);
        }
        is_available
    }

    /// Asks the process `target` to make `change` to the requests of `target`. The caller has
    /// checked [`ChangeSlot::is_available`]. If this process already has a change in the slot, that
    /// change stays, and now goes to `target`: `change` is ignored.
    pub fn ask(&self, target: u32, change: Change) {
        if !self.is_own() {
            self.set(ASKER, 0);
            (0..).step_by(8).zip(change).for_each(|(offset, word)| {
                self.memory.write(self.start + CHANGE + offset, word);
            });
        }
        self.set(TARGET, target);
        self.set(ASKER, self.own);
    }

    /// Returns the change that another process asks of this process; `None` if no process asks.
    pub fn requested_change(&self) -> Option<Change> {
        let is_asked = self.get(ASKER) != 0 && self.get(TARGET) == self.own;
        is_asked.then(|| core::array::from_fn(|index| self.memory.read(self.start + CHANGE + 8 * index)))
    }

    /// Returns the number of the process that asks for a change; 0 if no process asks.
    pub fn asker(&self) -> u32 {
        self.get(ASKER)
    }

    /// Answers the process that asks.
    pub fn answer(&self, answer: i32) {
        self.set(ANSWER, answer.cast_unsigned());
        self.set(TARGET, 0);
    }

    /// Returns the answer to the change that this process has asked for; `None` before the answer.
    pub fn answered(&self) -> Option<i32> {
        let is_there = self.is_own() && self.get(TARGET) == 0;
        is_there.then(|| self.get(ANSWER).cast_signed())
    }

    /// Returns whether this process uses the slot.
    pub fn is_own(&self) -> bool {
        self.get(ASKER) == self.own
    }

    /// Returns whether another process waits for the slot.
    pub fn is_wanted(&self) -> bool {
        self.get(WANTED) != 0
    }

    /// Frees the slot, which this process has used. Returns whether another process waits for the
    /// slot.
    pub fn free(&self) -> bool {
        self.set(ASKER, 0);
        let is_wanted = self.is_wanted();
        self.set(WANTED, 0);
        is_wanted
    }
}
