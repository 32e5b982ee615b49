//! Rings that several processes use: how a forked child begins to use an inherited ring, and how a
//! process stops using a ring that others still use.

use super::setup::new_state;
use crate::driving::ring_watcher;
use crate::ring::{Exit, OTHER_PROCESS, Ring};
use crate::waiting::tasks::tasks;
use crate::waiting::{left_rings, process_rings};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use usring_sys::queue::queue;
use usring_sys::{Errno, eventfd, memory_reserve, per_process};
use usring_uapi::io_uring as abi;

impl Ring {
    /// Makes this process's `Ring` for a ring that it has inherited over fork(2). `inherited` is
    /// the copy of the ancestor's `Ring` in this process's memory. Acquires no ring's lock.
    ///
    /// Errors: `EOWNERDEAD` if this process cannot use the ring; `ENOMEM`; the errors of starting a
    /// thread.
    pub fn adopt(inherited: &Ring) -> Result<Arc<Ring>, Errno> {
        if !inherited.is_inheritable() {
            return Err(Errno::EOWNERDEAD);
        }
        memory_reserve::check()?;
        per_process::prepare()?;
        ring_watcher::start()?;
        let (task_work, consumer) = queue();
        let state = new_state(consumer, &inherited.memory);
        let ring = Arc::new(Ring::inherited_from(inherited, task_work, state)?);
        if ring.has(abi::IORING_SETUP_SINGLE_ISSUER) && !ring.is_disabled() {
            ring.issuer.store(OTHER_PROCESS, Ordering::Relaxed);
        }
        let has_leader = ring.control.sharing().join(&ring.wakers.sleep);
        if has_leader || !ring.control.maker_takes_part() {
            eventfd::signal(ring.creators_watcher);
        }
        process_rings::enlist(&ring);
        ring.await_registrations();
        ring.await_maker();
        Ok(ring)
    }

    /// Called when this process is about to execute a program. The kernel cancels the requests of a
    /// process at its exec. So this function adds this process's requests to the journal, from
    /// which other processes complete them. It removes the conditions of the timeouts from the
    /// journal, so that no other process continues a timeout. This is done even if the ring is not
    /// shared yet, because a child may begin to use the ring after the exec.
    pub fn note_exec(self: &Arc<Self>) {
        if let Some(mut locked) = self.lock_in_time() {
            locked.note_earlier_requests();
            locked.journal().forget_timers();
            locked.release(Exit::Leave);
        }
    }

    /// Called when this process has closed its last descriptor of the ring. Returns whether this
    /// process keeps its `Ring`. It does so while other processes have descriptors of the ring, and
    /// this process has requests in flight or the SQ thread. If `false`, the caller ends the ring.
    pub(super) fn leave(self: &Arc<Self>) -> bool {
        if !self.is_shared() {
            // Other processes may have inherited the ring and not used it yet. This process drops
            // its duplicate of the ring's eventfd. Otherwise `is_needed_after_close` would take the
            // duplicate for another process's descriptor of the ring.
            self.readiness.forget();
            let stays = !self.defers_task_work() && self.is_needed_after_close();
            if stays {
                left_rings::add(self, |ring| {
                    ring.stop_sharing();
                    ring.end();
                });
                tasks().wake();
            }
            return stays;
        }
        if !self.stop_sharing() {
            return false;
        }
        let stays = self.is_needed_after_close();
        left_rings::end_unneeded();
        if stays {
            left_rings::add(self, Ring::end);
            tasks().wake();
        }
        stays
    }

    /// Removes this process from the ring's users, if the ring is shared. Returns whether other
    /// users are left.
    fn stop_sharing(&self) -> bool {
        let others = self.is_shared() && self.control.sharing().leave();
        if !others {
            self.forget_deposits();
        }
        others
    }
}
