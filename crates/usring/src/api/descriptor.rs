//! What poll and epoll may see of a ring: an eventfd, made when somebody asks
//! for it, which the engine keeps readable while there are completions.
//!
//! This is also where the engine learns whose a descriptor is (`POLL_ADD` of a
//! ring, `setup_attach_wq`): the doors of the interposer have a table of all
//! descriptors, the API knows those that it made.

use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use usring_engine::{Host, Ring};
use usring_sys::descriptor::{OwnedDescriptor, RESERVED_BASE, duplicate_from};
use usring_sys::per_process::PerProcess;
use usring_sys::{Errno, eventfd};

/// The descriptor of one ring, once there is one.
#[derive(Default)]
pub(super) struct Descriptor {
    made: OnceLock<Option<Arc<OwnedDescriptor>>>,
}

type Table = RwLock<Vec<(RawFd, Weak<Ring>)>>;

/// Every descriptor of a ring. A forked child starts with none: the rings that
/// it inherits are not its own.
static TABLE: PerProcess<Table> = PerProcess::new();

/// Whoever sends a message looks here: they do not exclude each other.
fn table() -> RwLockReadGuard<'static, Vec<(RawFd, Weak<Ring>)>> {
    TABLE.get_or_make(Table::default).read().unwrap_or_else(PoisonError::into_inner)
}

fn table_to_change() -> RwLockWriteGuard<'static, Vec<(RawFd, Weak<Ring>)>> {
    TABLE.get_or_make(Table::default).write().unwrap_or_else(PoisonError::into_inner)
}

impl Descriptor {
    /// Its number, −1 if it cannot be made.
    pub fn number(&self, ring: &Arc<Ring>) -> RawFd {
        if ring.is_inherited() {
            return -1;
        }
        let made = self.made.get_or_init(|| make(ring).ok());
        made.as_ref().map_or(-1, |descriptor| descriptor.number())
    }

    /// The application has taken completions: if none is left, whoever polls
    /// is to see it. The doors of the interposer do this before each poll call;
    /// here nobody sees the poll calls.
    #[inline]
    pub fn settle(&self, is_empty: impl FnOnce() -> bool) {
        if self.made.get().is_some_and(Option::is_some) && is_empty() {
            usring_engine::drain_readiness();
        }
    }

    /// The ring is about to go.
    pub fn retire(&self) {
        if let Some(Some(descriptor)) = self.made.get() {
            table_to_change().retain(|(number, _)| *number != descriptor.number());
        }
    }
}

fn make(ring: &Arc<Ring>) -> Result<Arc<OwnedDescriptor>, Errno> {
    let event = eventfd::create()?;
    // Where rings' numbers are looked for; if the process's limit ends below,
    // an ordinary number still serves whoever polls.
    let descriptor = Arc::new(duplicate_from(event.number(), RESERVED_BASE).unwrap_or(event));
    table_to_change().push((descriptor.number(), Arc::downgrade(ring)));
    ring.attach_descriptor(descriptor.clone());
    ring.watch_readiness();
    Ok(descriptor)
}

fn ring_of(number: RawFd) -> Option<Arc<Ring>> {
    let table = table();
    let (_, ring) = table.iter().find(|(other, _)| *other == number)?;
    ring.upgrade()
}

static HOST: Host = Host {
    ring_of,
    // Rings are registered with a thread by the doors.
    ring_at_index: |_| Err(Errno::EINVAL),
    // Every ring that has a descriptor is watched.
    watch: |_| (),
    device_of: |_| None,
    // A ring may not be closed through a ring; all else is an ordinary number.
    close: |number| {
        let is_ring = number >= RESERVED_BASE && ring_of(number).is_some();
        is_ring.then_some(Err(Errno::EBADF))
    },
};

/// From now on the engine asks here.
pub(super) fn become_host() {
    usring_engine::set_host(&HOST);
}
