//! The words by which threads agree on a change of credentials. [`crate::credentials`] makes the
//! changes; the loom models run this file.
//!
//! - [`Generations`] counts changes. A thread that is born between two counts that agree has
//!   exactly the credentials of that generation.
//! - [`Order`] is the change that the service threads are to make, too.
//! - [`Follower`] is the answer of one service thread.
//!
//! ```text
//! thread that changes              service thread (creator)          thread that is born
//! 1. begun + 1                     1. take the order                 1. begun = seen?
//! 2. make the call                 2. make the call                     yes: of generation seen
//! 3. give the order, signal        3. answer                            no: of none
//! 4. wait for all answers          before a clone(2): seen = ended
//! 5. ended + 1
//! ```

use crate::ordering::Edge;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// How many changes have begun and how many have ended.
#[derive(Debug)]
pub struct Generations {
    begun: AtomicU32,
    ended: AtomicU32,
}

/// Makes a value of atomics: a constant, or in a model an object of loom's.
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

    /// A thread is about to change.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Edge::Change.release());
    }

    /// The thread has changed, and the service threads with it.
    pub fn end(&self) {
        self.ended.fetch_add(1, Edge::Change.release());
    }

    /// The generation of threads that have no change under way.
    #[inline(always)]
    pub fn ended(&self) -> u32 {
        self.ended.load(Edge::Change.acquire())
    }

    /// Returns the generation of the calling thread, which has just been born. `seen` is what
    /// [`Generations::ended`] returned to its creator before clone(2). `None`: a change has begun
    /// since, so the thread may have credentials of before or of after.
    pub fn of_newborn(&self, seen: u32) -> Option<u32> {
        (self.begun.load(Edge::Change.acquire()) == seen).then_some(seen)
    }
}

/// Words of an order: the call's number, its arguments, the securebits of its caller.
pub const ORDER_WORDS: usize = 5;

/// The change that service threads are to make. One thread at a time gives orders.
#[derive(Debug)]
pub struct Order {
    /// Odd while the words change.
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
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        let next = sequence.wrapping_add(2);
        self.sequence.store(next, Edge::Change.release());
        next
    }

    /// The order, with its number, if it is not the one that was `made` last. A service thread that
    /// comes late never mixes two orders: it finds none, and is signalled again.
    pub fn take(&self, made: u32) -> Option<(u32, [u64; ORDER_WORDS])> {
        let sequence = self.sequence.load(Edge::Change.acquire());
        if sequence == made || sequence % 2 == 1 {
            return None;
        }
        let words = core::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.sequence.load(Ordering::Relaxed) == sequence).then_some((sequence, words))
    }

    /// The last order's number, for a thread that is born with its effect.
    pub fn last(&self) -> u32 {
        self.sequence.load(Edge::Change.acquire())
    }
}

/// The answers of one service thread. The thread alone writes here.
#[derive(Debug)]
pub struct Follower {
    /// The last order that the thread has carried out.
    made: AtomicU32,
    /// The thread's credentials then ([`crate::credentials`]).
    state: AtomicU64,
}

#[expect(clippy::new_without_default, reason = "made in statics")]
impl Follower {
    constant_but_in_models! {
        fn new() -> Follower {
            Follower { made: AtomicU32::new(0), state: AtomicU64::new(0) }
        }
    }

    /// The last order that the thread has carried out.
    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Relaxed)
    }

    /// The thread has carried an order out.
    pub fn answer(&self, order: u32, state: u64) {
        self.state.store(state, Ordering::Relaxed);
        self.made.store(order, Edge::Change.release());
    }

    /// The thread's state after an order. `None`: it has not carried the order out.
    pub fn state_after(&self, order: u32) -> Option<u64> {
        let made = self.made.load(Edge::Change.acquire());
        (made == order).then(|| self.state.load(Ordering::Relaxed))
    }
}
