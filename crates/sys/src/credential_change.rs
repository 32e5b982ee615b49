//! The shared words by which threads agree on a change of credentials. A program's thread calls
//! setuid(2) or the like, and usring's own threads then make this call, too. [`crate::credentials`]
//! makes the calls; the loom models check this file.
//!
//! - [`Generations`] counts changes that have begun and that have ended. The number of ended
//!   changes is the generation of the credentials. A thread that starts another thread reads n from
//!   `ended` before clone(2). If the new thread then reads n from `begun`, it has the credentials
//!   of generation n.
//! - [`Order`] is the call that the service threads (threads of usring) have to make.
//! - [`Follower`] is the answer of one service thread: which order it has carried out.
//! - [`Origin`] records from where a new thread has its credentials.
//!
//! ```text
//! thread that changes       service thread (creator)       new thread
//! 1. begun += 1             1. take the order              1. last = number of the newest order
//! 2. make the call          2. make the call               2. begun == seen:
//! 3. publish the order,     3. publish the answer               generation = seen;
//!    signal the threads     before each clone(2):               publish the answer `last`
//! 4. wait for all answers      seen = ended                   begun != seen:
//! 5. ended += 1                                                 generation unknown
//! ```

use crate::ordering::Edge;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Counts the changes of credentials that have begun, and those that have ended.
#[derive(Debug)]
pub struct Generations {
    begun: AtomicU32,
    ended: AtomicU32,
}

/// Declares a function that makes atomics. The function is `const`, except in loom models, whose
/// atomics cannot be made at compile time.
macro_rules! constant_but_in_models {
    ($($item:tt)*) => {
        #[cfg(not(loom))]
        pub const $($item)*
        #[cfg(loom)]
        pub $($item)*
    };
}

#[expect(clippy::new_without_default, reason = "made in statics")]
impl Generations {
    constant_but_in_models! {
        fn new() -> Generations {
            Generations { begun: AtomicU32::new(0), ended: AtomicU32::new(0) }
        }
    }

    /// Records that a thread of the program is about to change its credentials.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Edge::Change.release());
    }

    /// Records that a change has ended: the program's thread and all service threads have made it.
    pub fn end(&self) {
        self.ended.fetch_add(1, Edge::Change.release());
    }

    /// Returns the number of changes that have ended. If no change is under way, this is the
    /// generation of the threads' credentials.
    #[inline(always)]
    pub fn ended(&self) -> u32 {
        self.ended.load(Edge::Change.acquire())
    }

    /// Discards a change of credentials that has begun and not ended. A forked child calls this
    /// function, because the thread that began the change does not exist in the child.
    pub fn forget_unfinished(&self) {
        self.begun.store(self.ended.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns the generation of the credentials of the calling thread, which has just started.
    /// `seen` is the value that [`Generations::ended`] returned to the thread's creator before
    /// clone(2). Returns `None` if a change has begun since then. It is then unknown whether the
    /// thread has the credentials from before or from after that change.
    pub fn of_newborn(&self, seen: u32) -> Option<u32> {
        (self.begun.load(Edge::Change.acquire()) == seen).then_some(seen)
    }
}

/// Where a new thread has its credentials from. The thread uses this to determine the generation of
/// its credentials (the number of changes of credentials so far).
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// The number of changes of credentials that had ended before clone(2). The new thread has
    /// credentials of this generation, unless a change begins before the thread starts.
    Seen(u32),
    /// The creator keeps the credentials that it started with, as a worker does. The new thread has
    /// the creator's generation. `None` if the creator's generation is not known.
    Inherited(Option<u32>),
}

/// Number of words in an [`Order`]: the number of the system call, its three arguments, and the
/// caller's securebits.
pub const ORDER_WORDS: usize = 5;

/// A command to the service threads (threads of usring) to repeat a system call of the program.
/// Only one thread at a time gives such an order.
#[derive(Debug)]
pub struct Order {
    /// Even: number of the newest order to the service threads. Odd: a thread is writing an order
    /// (a seqlock).
    sequence: AtomicU32,
    words: [AtomicU64; ORDER_WORDS],
}

#[expect(clippy::new_without_default, reason = "made in statics")]
impl Order {
    #[cfg(not(loom))]
    pub const fn new() -> Order {
        Order { sequence: AtomicU32::new(0), words: [const { AtomicU64::new(0) }; ORDER_WORDS] }
    }

    #[cfg(loom)]
    pub fn new() -> Order {
        Order { sequence: AtomicU32::new(0), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Publishes an order to the service threads and returns its number.
    pub fn publish(&self, words: [u64; ORDER_WORDS]) -> u32 {
        let number = self.write(words);
        self.sequence.store(number, Edge::Change.release());
        number
    }

    /// Writes an order without publishing it: the first half of [`Order::publish`]. Returns the
    /// number that the order will have. The loom models call only this half to model a fork between
    /// the two halves.
    pub fn write(&self, words: [u64; ORDER_WORDS]) -> u32 {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        sequence.wrapping_add(2)
    }

    /// Makes `sequence` even again if a thread was writing an order. A forked child calls this
    /// function, because the writing thread does not exist in the child.
    pub fn forget_unfinished(&self) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(sequence % 2), Ordering::Relaxed);
    }

    /// Returns the newest order and its number. `made` is the number of the last order that the
    /// caller has carried out. Returns `None` if no order is newer. Also returns `None` if a thread
    /// is writing an order, because the caller must not mix the words of two orders. The writer
    /// then signals the caller again.
    pub fn take(&self, made: u32) -> Option<(u32, [u64; ORDER_WORDS])> {
        let sequence = self.sequence.load(Edge::Change.acquire());
        if sequence == made || sequence % 2 == 1 {
            return None;
        }
        let words = core::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.sequence.load(Ordering::Relaxed) == sequence).then_some((sequence, words))
    }

    /// Returns the sequence number of the newest order to the service threads. An order makes them
    /// repeat a system call that changed the program's credentials. Odd while an order is written.
    pub fn last(&self) -> u32 {
        self.sequence.load(Edge::Change.acquire())
    }
}

/// The answer of one service thread to the last [`Order`]. Only the service thread writes it.
#[derive(Debug)]
pub struct Follower {
    /// Number of the last order (to repeat a change of credentials) that the service thread has
    /// carried out.
    made: AtomicU32,
    /// A hash of the service thread's credentials after it has carried out the order `made`
    /// ([`crate::credentials`]).
    state: AtomicU64,
}

#[expect(clippy::new_without_default, reason = "made in statics")]
impl Follower {
    constant_but_in_models! {
        fn new() -> Follower {
            Follower { made: AtomicU32::new(0), state: AtomicU64::new(0) }
        }
    }

    /// Returns the generation of the credentials of the calling thread, which has just started. If
    /// the generation is known, records that the thread has carried out all orders so far: it has
    /// inherited their effect from its creator.
    pub fn begin(&self, origin: Origin, generations: &Generations, order: &Order) -> Option<u32> {
        // `last` is read before the generation. If a change begins after this read of `last`, the
        // thread does not count its order as carried out, and still has to carry it out.
        let last = order.last();
        let generation = match origin {
            Origin::Seen(seen) => generations.of_newborn(seen),
            Origin::Inherited(generation) => generation,
        };
        if generation.is_some() {
            // The new thread has inherited from its creator the effect of all orders up to `last`.
            self.answer(last, 0);
        }
        generation
    }

    /// Returns the number of the last order that the service thread has carried out.
    pub fn last_made(&self) -> u32 {
        self.made.load(Ordering::Relaxed)
    }

    /// Stores the service thread's answer: it has carried out `order`, and `state` is a hash of its
    /// credentials afterwards.
    pub fn answer(&self, order: u32, state: u64) {
        self.state.store(state, Ordering::Relaxed);
        self.made.store(order, Edge::Change.release());
    }

    /// Returns the hash of the service thread's credentials after `order`. Returns `None` if
    /// `order` is not the last order that the thread has carried out.
    pub fn state_after(&self, order: u32) -> Option<u64> {
        let made = self.made.load(Edge::Change.acquire());
        (made == order).then(|| self.state.load(Ordering::Relaxed))
    }
}
