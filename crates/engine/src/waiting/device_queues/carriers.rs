//! Threads that carry what others have accepted and must not sleep for: the
//! attendant, an SQ thread of several rings, who is inside another ring or has a time
//! limit. Born on demand, by the attendant, and gone when idle.
//!
//! There is one for every ring whose delivery stands still, so none waits for
//! another's.

use super::delivery;
use crate::process::process;
use crate::ring::Ring;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::mutex::Mutex;
use usring_sys::thread::Credentials;
use usring_sys::{Errno, futex};

/// An idle carrier ends after this long.
const IDLE_LIMIT: u64 = 5_000_000_000;

/// All carriers of the process.
#[derive(Default)]
pub(crate) struct Carriers {
    state: Mutex<State>,
    /// Futex word of the idle ones; counted up per ring.
    signal: AtomicU32,
}

#[derive(Default)]
struct State {
    /// With something to be delivered.
    rings: VecDeque<Arc<Ring>>,
    threads: u32,
    idle: u32,
}

impl Carriers {
    /// Has what the ring owes delivered soon; the ring's lock may be held. `false`:
    /// there can be no thread.
    pub fn call(&'static self, ring: &Arc<Ring>) -> bool {
        if process().attendant.start().is_err() {
            return false;
        }
        let mut state = self.state.lock();
        state.rings.push_back(ring.clone());
        let wakes = state.idle > 0;
        let is_another_needed = state.rings.len() > state.idle as usize;
        state.threads += u32::from(is_another_needed);
        self.signal.fetch_add(1, Ordering::SeqCst);
        drop(state);
        if wakes {
            futex::wake(&self.signal, 1);
        }
        if is_another_needed {
            let (life, stillborn) = (Box::new(|| self.carry()), Box::new(|| self.not_born()));
            process().attendant.start_thread("usring-deliver", Credentials::Following, life, stillborn);
        }
        true
    }

    /// Without a thread it has to be the attendant after all.
    fn not_born(&self) {
        let mut state = self.state.lock();
        state.threads -= 1;
        let stranded = if state.threads == 0 { core::mem::take(&mut state.rings) } else { VecDeque::new() };
        drop(state);
        stranded.into_iter().for_each(delivery::deliver_all);
    }

    /// The life of a carrier.
    fn carry(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(ring) = state.rings.pop_front() {
                drop(state);
                delivery::deliver_all(ring);
                state = self.state.lock();
                continue;
            }
            let seen = self.signal.load(Ordering::SeqCst);
            state.idle += 1;
            drop(state);
            let outcome = futex::wait(&self.signal, seen, Some(IDLE_LIMIT));
            state = self.state.lock();
            state.idle -= 1;
            if outcome == Err(Errno::ETIMEDOUT) && state.rings.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
