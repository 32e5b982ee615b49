//! How the users of queues learn that the back end is another one.
//!
//! A queue's rings have one writer on our side, the queue's user; the control
//! plane only hands them to back ends. The two agree by two words of the arena:
//!
//! 1. The connection is lost. Users notice nothing: they add requests, and what
//!    the old back end still completes is completed.
//! 2. Another back end has answered, so the old one is gone. The control plane
//!    raises the *generation* and makes every queue's interrupt readable. It
//!    starts no queue. ([`Edge::Generation`]: whoever reads it may write the rings.)
//! 3. A user who sees a new generation puts his rings in order (what is used is
//!    his; the rest is laid out anew) and stores it in his *settled* word; then
//!    he tells the control plane.
//! 4. The control plane starts a queue once its settled word has the present
//!    generation ([`Edge::Settled`]): the back end reads rings that nobody
//!    rearranges any more.
//!
//! A user who is not there to look holds up nobody but himself. The generation
//! is odd once there will be no other back end: users answer EIO. A control plane that
//! was killed does not say so: then its users do (`lifeline`).

use usring_sys::ordering::Edge;
use usring_sys::shared::SharedMemory;
use usring_sys::sync::Ordering;

/// Before the memory is shared.
pub fn first(memory: &SharedMemory, at: usize) {
    memory.word(at).store(2, Ordering::Relaxed);
}

/// Step 2, after `generation`. As long as there is a control plane only that writes the
/// word, so it knows what it holds.
pub fn begin(memory: &SharedMemory, at: usize, generation: u32) {
    memory.word(at).store((generation & !1).wrapping_add(2), Edge::Generation.release());
}

/// The end, after `generation`; also by users, when there is no control plane any more.
pub fn end(memory: &SharedMemory, at: usize, generation: u32) {
    memory.word(at).store(generation | 1, Edge::Generation.release());
}

#[inline]
pub fn present(memory: &SharedMemory, at: usize) -> u32 {
    memory.word(at).load(Edge::Generation.acquire())
}

/// Whether there will be no other back end.
#[inline]
pub fn is_end(generation: u32) -> bool {
    generation & 1 != 0
}

/// Step 3.
pub fn settle(memory: &SharedMemory, at: usize, generation: u32) {
    memory.word(at).store(generation, Edge::Settled.release());
}

/// Step 4.
pub fn settled(memory: &SharedMemory, at: usize) -> u32 {
    memory.word(at).load(Edge::Settled.acquire())
}
