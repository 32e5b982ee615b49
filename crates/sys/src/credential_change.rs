//! The words by which threads agree on a change of credentials. [`crate::credentials`] makes the
//! changes; the loom models run this file.
//!
//! - [`Generations`] counts changes that have begun and that have ended. If `ended` was n before
//!   clone(2), and the new thread reads n from `begun`, the thread has the credentials of
//!   generation n.
//! - [`Order`] is the change that the service threads (threads of usring) have to make.
//! - [`Follower`] is the answer of one service thread.
//! - [`Origin`] is where a new thread has its credentials from.
//!
//! ```text
//! thread that changes              service thread (creator)          new thread
//! 1. begun + 1                     1. take the order                 1. last = order's number
//! 2. make the call                 2. make the call                  2. begun = seen?
//! 3. give the order, signal        3. answer                            yes: of generation seen,
//! 4. wait for all answers          before a clone(2): seen = ended           answer last
//! 5. ended + 1                                                          no: of none
//! ```

use crate::ordering::Edge;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Counts of the changes that have begun and of those that have ended.
#[derive(Debug)]
pub struct Generations {
    begun: AtomicU32,
    ended: AtomicU32,
}

/// Declares a function that makes atomics: `const`, except in models, where loom's atomics cannot
/// be.
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

    /// Notes that a thread is about to change.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Edge::Change.release());
    }

    /// Notes that the thread and the service threads have changed.
    pub fn end(&self) {
        self.ended.fetch_add(1, Edge::Change.release());
    }

    /// Returns the number of changes that have ended. That is the generation of every thread that
    /// shares the program's credentials, unless a change is under way.
    #[inline(always)]
    pub fn ended(&self) -> u32 {
        self.ended.load(Edge::Change.acquire())
    }

    /// Forgets a change that has begun and will never end. For a forked child, in which the
    /// changing thread does not exist.
    pub fn forget_unended(&self) {
        self.begun.store(self.ended.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns the generation of the calling thread, which has just started. `seen` is the value
    /// that [`Generations::ended`] returned to its creator before clone(2). `None`: a change has
    /// begun since, so the thread may have the credentials from before or after it.
    pub fn of_newborn(&self, seen: u32) -> Option<u32> {
        (self.begun.load(Edge::Change.acquire()) == seen).then_some(seen)
    }
}

/// The source of the credentials that a new thread has.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// The creator has this generation, unless a change begins before the thread starts.
    Seen(u32),
    /// The creator (a worker or an anchor) never changes its credentials after its start. The new
    /// thread gets the creator's generation; `None`: it is not known.
    Inherited(Option<u32>),
}

/// Words of an order: the call's number, its arguments, the securebits of its caller.
pub const ORDER_WORDS: usize = 5;

/// The change that service threads have to make. Only one thread at a time gives orders.
#[derive(Debug)]
pub struct Order {
    /// Odd while the words are being written.
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

    /// Gives an order and returns its number.
    pub fn give(&self, words: [u64; ORDER_WORDS]) -> u32 {
        let number = self.write(words);
        self.sequence.store(number, Edge::Change.release());
        number
    }

    /// Writes an order that no thread takes yet. Returns the number under which it will be taken.
    /// The first part of [`Order::give`], apart for the models: a fork may come between the two.
    pub fn write(&self, words: [u64; ORDER_WORDS]) -> u32 {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        sequence.wrapping_add(2)
    }

    /// Forgets an order that was being written. For a forked child, in which the writer does not
    /// exist.
    pub fn forget_unfinished(&self) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(sequence % 2), Ordering::Relaxed);
    }

    /// Returns the newest order and its number. `made` is the number of the last order that the
    /// caller has carried out. `None`: there is no newer order, or another one is just being
    /// written. The writer then signals the service thread again, so a late thread never mixes two
    /// orders.
    pub fn take(&self, made: u32) -> Option<(u32, [u64; ORDER_WORDS])> {
        let sequence = self.sequence.load(Edge::Change.acquire());
        if sequence == made || sequence % 2 == 1 {
            return None;
        }
        let words = core::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.sequence.load(Ordering::Relaxed) == sequence).then_some((sequence, words))
    }

    /// Returns the last order's number, for a new thread that already has the order's effect.
    pub fn last(&self) -> u32 {
        self.sequence.load(Edge::Change.acquire())
    }
}

/// The answers of one service thread. Only that thread writes them.
#[derive(Debug)]
pub struct Follower {
    /// The last order that the thread has carried out.
    made: AtomicU32,
    /// A hash of the thread's credentials after that order ([`crate::credentials`]).
    state: AtomicU64,
}

#[expect(clippy::new_without_default, reason = "made in statics")]
impl Follower {
    constant_but_in_models! {
        fn new() -> Follower {
            Follower { made: AtomicU32::new(0), state: AtomicU64::new(0) }
        }
    }

    /// Begins the life of the calling thread. Returns the generation of its credentials, if known.
    pub fn begin(&self, origin: Origin, generations: &Generations, order: &Order) -> Option<u32> {
        // Read first: an order of a change that begins after this is still to be carried out.
        let last = order.last();
        let generation = match origin {
            Origin::Seen(seen) => generations.of_newborn(seen),
            Origin::Inherited(generation) => generation,
        };
        if generation.is_some() {
            // The thread starts with the effect of all earlier orders.
            self.answer(last, 0);
        }
        generation
    }

    /// Returns the last order that the thread has carried out.
    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Relaxed)
    }

    /// Notes that the thread has carried out an order.
    pub fn answer(&self, order: u32, state: u64) {
        self.state.store(state, Ordering::Relaxed);
        self.made.store(order, Edge::Change.release());
    }

    /// Returns the thread's state after an order. `None`: the thread has not carried it out.
    pub fn state_after(&self, order: u32) -> Option<u64> {
        let made = self.made.load(Edge::Change.acquire());
        (made == order).then(|| self.state.load(Ordering::Relaxed))
    }
}
