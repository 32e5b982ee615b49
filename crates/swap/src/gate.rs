//! The gate of a cluster keeps page faults and evictions apart. Any number of faulting threads may
//! be inside the gate. An evicting thread shuts the gate, and waits until they have left. While the
//! gate is shut, faulting threads wait outside.
//!
//! An eviction changes the mapping of the whole cluster twice: one call write-protects the victims
//! (the pages to evict), and a later call drops them. If another thread mapped a page during the
//! second call, the page would be dropped with the victims. So:
//! - A thread that changes a page's mapping is inside the gate.
//! - The evictor shuts the gate for each of the two calls. Between the two calls, the gate is open
//!   while the evictor writes the pages to the store.
//!
//! One word:
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–15 | inside | number of threads that are changing the mapping of a page they own |
//! | 28 | `referenced` | a thread was inside since the last visit of the eviction clock's hand |
//! | 29 | `claimed` | a thread evicts from the cluster, or keeps other threads from evicting |
//! | 30 | `waited` | a thread sleeps until the gate opens |
//! | 31 | `shut` | no thread may enter |

use usring_sys::futex;
use usring_sys::ordering::Edge;
use usring_sys::sync::{AtomicU32, Ordering, relax};

const INSIDE: u32 = 0xffff;
const REFERENCED: u32 = 1 << 28;
const CLAIMED: u32 = 1 << 29;
const WAITED: u32 = 1 << 30;
const SHUT: u32 = 1 << 31;

/// How often a thread polls a shut gate before it sleeps. The polls take about as long as the
/// system calls that threads make inside the gate.
const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };

#[derive(Clone, Copy, Debug)]
pub struct Gate<'a>(&'a AtomicU32);

/// Proof that the calling thread is inside the gate. When the value is dropped, the thread leaves
/// the gate.
#[derive(Debug)]
pub struct Inside<'a>(Gate<'a>);

/// Proof that no other thread evicts from the cluster. The calling thread evicts pages, or keeps
/// other threads from evicting them. When the value is dropped, another thread can claim the
/// cluster.
#[derive(Debug)]
pub struct Claim<'a>(Gate<'a>);

/// Proof that the calling thread has shut the gate, and no thread is inside. When the value is
/// dropped, the gate opens.
#[derive(Debug)]
pub struct Shut<'a>(Gate<'a>);

impl<'a> Gate<'a> {
    pub fn new(word: &'a AtomicU32) -> Self {
        Gate(word)
    }

    /// Enters the gate. Waits while the gate is shut.
    #[inline]
    pub fn enter(self) -> Inside<'a> {
        let mut spins = SPINS;
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if word & SHUT == 0 {
                let inside = (word + 1) | REFERENCED;
                if self.0.compare_exchange_weak(word, inside, Edge::Gate.acquire(), Ordering::Relaxed).is_ok() {
                    return Inside(self);
                }
            } else if spins > 0 {
                spins -= 1;
                relax();
            } else {
                let waited = word | WAITED;
                if self.0.compare_exchange(word, waited, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    let _ = futex::wait(self.0, waited, None);
                }
            }
        }
    }

    /// Claims the cluster for the calling thread. `None` if another thread has the claim.
    pub fn claim(self) -> Option<Claim<'a>> {
        let before = self.0.fetch_or(CLAIMED, Edge::Gate.acquire());
        // `then_some` would build a `Claim` even if another thread has the claim. The drop of that
        // value would clear the other thread's bit.
        (before & CLAIMED == 0).then(|| Claim(self))
    }

    /// Returns whether a thread was inside the gate since the previous call of this function.
    pub fn second_chance(self) -> bool {
        self.0.load(Ordering::Relaxed) & REFERENCED != 0
            && self.0.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        let word = self.0.0;
        let before = word.fetch_sub(1, Edge::Gate.release());
        if before & SHUT != 0 && before & INSIDE == 1 {
            futex::wake(word, u32::MAX);
        }
    }
}

/// A gate that is claimed and shut. Dropping this value opens the gate and ends the claim.
#[derive(Debug)]
pub struct ShutGate<'a>(Gate<'a>);

impl<'a> Claim<'a> {
    /// Shuts the gate and turns the claim into a [`ShutGate`]. The gate stays shut until that value
    /// is dropped.
    pub fn into_shut(mut self) -> ShutGate<'a> {
        core::mem::forget(self.shut());
        let gate = self.0;
        core::mem::forget(self);
        ShutGate(gate)
    }
}

impl Drop for ShutGate<'_> {
    fn drop(&mut self) {
        drop(Shut(self.0));
        drop(Claim(self.0));
    }
}

impl Claim<'_> {
    /// Shuts the gate and waits until no thread is inside.
    pub fn shut(&mut self) -> Shut<'_> {
        let word = self.0.0;
        let mut now = word.fetch_or(SHUT, Edge::Gate.acquire()) | SHUT;
        let mut spins = SPINS;
        while now & INSIDE != 0 {
            if spins > 0 {
                spins -= 1;
                relax();
            } else {
                let _ = futex::wait(word, now, None);
            }
            now = word.load(Edge::Gate.acquire());
        }
        Shut(self.0)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_and(!CLAIMED, Edge::Gate.release());
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        let word = self.0.0;
        let before = word.fetch_and(!(SHUT | WAITED), Edge::Gate.release());
        if before & WAITED != 0 {
            futex::wake(word, u32::MAX);
        }
    }
}
