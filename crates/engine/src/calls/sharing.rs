//! A ring that several processes use: how a forked child begins to use it, and how a process
//! leaves it to the others.

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

/// Rings that this process has closed, and that other processes use. They stay until the requests
/// of this process have completed.
static LEFT: PerProcess<Mutex<Vec<Arc<Ring>>>> = PerProcess::new();

impl Ring {
    /// Begins to use a ring that this process has inherited over fork(2). `inherited` is the
    /// ancestor's value, in this process's copy of memory. Takes no ring's lock.
    ///
    /// Errors: `EOWNERDEAD` if the ring cannot be used here; `ENOMEM`; those of a thread that
    /// cannot be started.
    pub fn adopt(inherited: &Ring) -> Result<Arc<Ring>, Errno> {
        // An AIO context stays its process's own. An SQ thread is the parent's.
        if inherited.has_events() || inherited.has(abi::IORING_SETUP_SQPOLL) {
            return Err(Errno::EOWNERDEAD);
        }
        memory_reserve::check()?;
        per_process::prepare()?;
        ring_watcher::start()?;
        let (task_work, taker) = queue();
        let state = new_state(taker, &inherited.memory);
        let ring = Arc::new(Ring::inherited_from(inherited, task_work, state)?);
        if ring.has(abi::IORING_SETUP_SINGLE_ISSUER) && !ring.is_disabled() {
            ring.issuer.store(OTHER_PROCESS, Ordering::Relaxed);
        }
        let has_leader = ring.control.sharing().join(&ring.wakers.sleep);
        if has_leader || !ring.control.maker_takes_part() {
            eventfd::signal(ring.creators_watcher);
        }
        process_rings::enlist(&ring);
        Ok(ring)
    }

    /// Leaves the ring to the processes that use it besides this one, if there are any. Its
    /// requests go on. Returns `false` if nothing is left to go on, and the ring may be closed.
    pub(super) fn leave(self: &Arc<Self>) -> bool {
        let others = self.is_shared() && self.control.sharing().leave();
        if !others {
            return false;
        }
        let stays = self.has_requests();
        let left = LEFT.get_or_make(Mutex::default);
        // No ring's lock is taken under that of the list.
        let mut rings = core::mem::take(&mut *left.lock());
        let ended: Vec<_> = rings.extract_if(.., |ring| !ring.has_requests()).collect();
        if stays {
            rings.push(self.clone());
        }
        left.lock().append(&mut rings);
        ended.iter().for_each(Ring::end);
        stays
    }

    fn has_requests(self: &Arc<Self>) -> bool {
        let locked = self.lock();
        let any = locked.queues.drain.outstanding() != 0;
        locked.release(Exit::Leave);
        any
    }
}
