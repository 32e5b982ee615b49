//! Submit helpers: threads that make deferred submits (submits that may sleep) for threads that
//! must not sleep. Such threads are the ring watcher, an SQ thread of several rings, and a thread
//! that is inside another ring or has a time limit. The ring watcher starts submit helpers on
//! demand. Idle submit helpers end.
//!
//! Each ring whose deferred submit sleeps occupies one submit helper, so no ring waits for another
//! ring's submit.

use super::deferred_submit;
use crate::ring::Ring;
use crate::waiting::idle_threads::{self, IdleThreads};
use crate::waiting::tasks::tasks;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::thread::Credentials;

/// All submit helpers of the process.
#[derive(Default)]
pub(crate) struct SubmitHelpers {
    state: Mutex<State>,
    /// Futex word on which idle submit helpers sleep. The word is raised once for each ring that is
    /// put into `rings`.
    job_futex: AtomicU32,
}

static SUBMIT_HELPERS: PerProcess<SubmitHelpers> = PerProcess::new();

/// Returns the submit helpers of this process; makes their list on first use.
pub(crate) fn submit_helpers() -> &'static SubmitHelpers {
    SUBMIT_HELPERS.get_or_make(SubmitHelpers::default)
}

#[derive(Default)]
struct State {
    /// Rings with deferred submits that wait for a submit helper.
    rings: VecDeque<Arc<Ring>>,
    threads: IdleThreads,
}

impl SubmitHelpers {
    /// Makes a submit helper run the ring's deferred submits soon. The caller may hold the ring's
    /// lock. Returns `false` if the ring watcher, which starts helpers, cannot be started.
    pub fn call(&'static self, ring: &Arc<Ring>) -> bool {
        if tasks().start().is_err() {
            return false;
        }
        let mut state = self.state.lock();
        state.rings.push_back(ring.clone());
        let wakes = state.threads.has_idle();
        let queued = state.rings.len();
        let is_another_needed = state.threads.add_for(queued, 1, u32::MAX) > 0;
        drop(state);
        idle_threads::note_job(&self.job_futex, wakes);
        if is_another_needed {
            let (life, spawn_failed) = (Box::new(|| self.serve()), Box::new(|| self.spawn_failed()));
            tasks().start_thread("usring-submit", Credentials::Following, life, spawn_failed);
        }
        true
    }

    /// Handles a failed start of a submit helper. If there is no helper at all, the calling thread
    /// (the ring watcher) makes the submits.
    fn spawn_failed(&self) {
        let mut state = self.state.lock();
        state.threads.remove();
        let stranded = if state.threads.is_empty() { core::mem::take(&mut state.rings) } else { VecDeque::new() };
        drop(state);
        stranded.into_iter().for_each(deferred_submit::flush_all);
    }

    /// Runs a submit helper's thread, which ends after `IDLE_LIMIT` without work.
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(ring) = state.rings.pop_front() {
                drop(state);
                deferred_submit::flush_all(ring);
                state = self.state.lock();
                continue;
            }
            let seen = self.job_futex.load(Ordering::SeqCst);
            let is_long;
            (state, is_long) = idle_threads::sleep(&self.state, state, (&self.job_futex, seen), |state: &mut State| {
                &mut state.threads
            });
            if is_long && state.rings.is_empty() {
                state.threads.remove();
                return;
            }
        }
    }
}
