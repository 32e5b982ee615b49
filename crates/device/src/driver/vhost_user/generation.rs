//! How the users of queues learn that a new back end serves the device.
//!
//! On usring's side a queue's rings have one writer, the queue's user. The control plane only
//! passes the rings to back ends. User and control plane synchronize by two words in the arena, the
//! generation and the queue's ready word:
//!
//! 1. The connection to the back end is lost. Users notice nothing. They still add requests, and
//!    find requests that the old back end still completes.
//! 2. Another back end has answered, so the old one has ended. The control plane raises the
//!    *generation* and makes every queue's interrupt readable. It starts no queue.
//!    ([`Edge::Generation`]: a user that reads the new value may write the rings.)
//! 3. A user that sees a new generation lays its rings out anew: it keeps the used entries and
//!    rebuilds the available ring. It stores the generation in its *ready* word, and then signals
//!    the control plane.
//! 4. The control plane starts a queue when its ready word equals the generation
//!    ([`Edge::QueueReady`]). No user changes the rings any more while the back end reads them.
//!
//! A user that never polls delays only its own queue. An odd generation means that there will be no
//! other back end. Users then complete their requests with EIO. If the control plane was killed, it
//! cannot store that value, and a user stores it instead (`lifeline`).

use usring_sys::ordering::Edge;
use usring_sys::shared::SharedMemory;
use usring_sys::sync::Ordering;

/// Sets the generation to 2, that of the first back end. Called before the memory is shared.
pub fn set_first(memory: &SharedMemory, at: usize) {
    memory.word(at).store(2, Ordering::Relaxed);
}

/// Stores the generation that follows `generation`: step 2 of the protocol at the top of this file.
/// Only the control plane calls this function. While the control plane lives, no other process
/// writes the word.
pub fn begin_next(memory: &SharedMemory, at: usize, generation: u32) {
    memory.word(at).store((generation & !1).wrapping_add(2), Edge::Generation.release());
}

/// Marks `generation` as the last one: no other back end follows. If the control plane has died, a
/// user calls this function instead.
pub fn mark_last(memory: &SharedMemory, at: usize, generation: u32) {
    memory.word(at).store(generation | 1, Edge::Generation.release());
}

#[inline]
pub fn current(memory: &SharedMemory, at: usize) -> u32 {
    memory.word(at).load(Edge::Generation.acquire())
}

/// Returns whether `generation` is odd, which says that there will be no other back end.
#[inline]
pub fn is_last(generation: u32) -> bool {
    generation & 1 != 0
}

/// Stores `generation` in a queue's ready word: the queue's user has laid its rings out for that
/// generation's back end. This is step 3 of the protocol at the top of this file.
pub fn mark_ready(memory: &SharedMemory, at: usize, generation: u32) {
    memory.word(at).store(generation, Edge::QueueReady.release());
}

/// Returns a queue's ready word: the generation for which the queue's rings are laid out. This is
/// step 4 of the protocol at the top of this file.
pub fn ready_generation(memory: &SharedMemory, at: usize) -> u32 {
    memory.word(at).load(Edge::QueueReady.acquire())
}
