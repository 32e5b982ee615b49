//! Rings that several processes use: how a forked child begins to use an inherited ring, and how a
//! process stops using a ring that others still use.

use super::setup::new_state;
use crate::driving::ring_watcher;
use crate::ring::{Exit, OTHER_PROCESS, Ring};
use crate::waiting::process_rings;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::queue::queue;
use usring_sys::{Errno, eventfd, memory_reserve, per_process};
use usring_uapi::io_uring as abi;

/// Rings that this process has closed and that other processes use. Each stays here until the
/// requests that this process has submitted to it have completed. A ring whose SQ thread is one of
/// this process stays for good: the SQ thread submits for the other processes.
static LEFT: PerProcess<Mutex<Vec<Arc<Ring>>>> = PerProcess::new();

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
    /// process at its exec. So other processes have to know these requests, and must not continue
    /// the timeouts among them. A child may begin to use the ring after the exec.
    pub fn note_exec(self: &Arc<Self>) {
        if let Some(mut locked) = self.lock_in_time() {
            locked.note_earlier_requests();
            locked.journal().forget_timers();
            locked.release(Exit::Leave);
        }
    }

    /// Stops using the ring if other processes use it. Requests of this process continue. Returns
    /// `false` if the caller may close the ring: no other process uses it, or this process has
    /// neither requests nor the SQ thread of the ring.
    pub(super) fn leave(self: &Arc<Self>) -> bool {
        if !self.is_shared() {
            return false;
        }
        if !self.control.sharing().leave() {
            self.forget_deposits();
            return false;
        }
        let stays = self.is_needed();
        let left = LEFT.get_or_make(Mutex::default);
        // The rings are taken off the list here, because no ring's lock may be acquired while the
        // list is locked.
        let mut rings = core::mem::take(&mut *left.lock());
        let ended: Vec<_> = rings.extract_if(.., |ring| !ring.is_needed()).collect();
        if stays {
            rings.push(self.clone());
        }
        left.lock().append(&mut rings);
        ended.iter().for_each(Ring::end);
        stays
    }

    /// Returns whether a ring that this process has left still needs this process: requests of this
    /// process have not completed, or the ring's SQ thread belongs to this process.
    fn is_needed(self: &Arc<Self>) -> bool {
        if self.sq_thread.is_own() {
            return true;
        }
        let locked = self.lock();
        let any = locked.queues.drain.outstanding() != 0;
        locked.release(Exit::Leave);
        any
    }
}
