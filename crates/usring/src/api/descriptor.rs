//! The descriptor that poll and epoll see of a ring: an eventfd, made at the program's first
//! request. The engine keeps it readable while there are completions.
//!
//! The engine also asks here which ring a descriptor is, for `POLL_ADD` of a ring and for
//! `setup_attach_wq`. The interposer has a table of all descriptors for that; the API knows only
//! those that it made.

use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use usring_engine::{Host, Ring};
use usring_sys::descriptor::{OwnedDescriptor, RESERVED_BASE, duplicate_from};
use usring_sys::per_process::PerProcess;
use usring_sys::{Errno, eventfd};

/// The descriptor of one ring, once it was made.
#[derive(Default)]
pub(super) struct Descriptor {
    made: OnceLock<Option<Arc<OwnedDescriptor>>>,
}

type Table = RwLock<Vec<(RawFd, Weak<Ring>)>>;

/// Every descriptor of a ring. A forked child starts with an empty table: the rings that it
/// inherits are not its own.
static TABLE: PerProcess<Table> = PerProcess::new();

/// Locks the table for reading. Threads that send messages look rings up here, and do not exclude
/// each other.
fn table() -> RwLockReadGuard<'static, Vec<(RawFd, Weak<Ring>)>> {
    TABLE.get_or_make(Table::default).read().unwrap_or_else(PoisonError::into_inner)
}

fn table_to_change() -> RwLockWriteGuard<'static, Vec<(RawFd, Weak<Ring>)>> {
    TABLE.get_or_make(Table::default).write().unwrap_or_else(PoisonError::into_inner)
}

impl Descriptor {
    /// Returns the descriptor's number, or −1 if it cannot be made.
    pub fn number(&self, ring: &Arc<Ring>) -> RawFd {
        if ring.is_inherited() {
            return -1;
        }
        let made = self.made.get_or_init(|| make(ring).ok());
        made.as_ref().map_or(-1, |descriptor| descriptor.number())
    }

    /// Makes the descriptor unreadable if the application has taken the last completion. The
    /// interposer does this before each poll call; the API does not see the poll calls.
    #[inline]
    pub fn settle(&self, is_empty: impl FnOnce() -> bool) {
        if self.made.get().is_some_and(Option::is_some) && is_empty() {
            usring_engine::drain_readiness();
        }
    }

    /// Removes the descriptor from the table, before the ring is closed.
    pub fn retire(&self) {
        if let Some(Some(descriptor)) = self.made.get() {
            table_to_change().retain(|(number, _)| *number != descriptor.number());
        }
    }
}

fn make(ring: &Arc<Ring>) -> Result<Arc<OwnedDescriptor>, Errno> {
    let event = eventfd::create()?;
    // The engine looks for rings' numbers from `RESERVED_BASE` on. If the process's limit ends
    // below, an ordinary number still serves poll and epoll.
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
    // Only the interposer registers rings with a thread.
    ring_at_index: |_| Err(Errno::EINVAL),
    // Every ring that has a descriptor is watched.
    watch: |_| (),
    device_of: |_| None,
    // A ring may not be closed through a ring. Any other number is the engine's to close.
    close: |number| {
        let is_ring = number >= RESERVED_BASE && ring_of(number).is_some();
        is_ring.then_some(Err(Errno::EBADF))
    },
};

/// Makes this module the one that the engine asks about descriptors.
pub(super) fn become_host() {
    usring_engine::set_host(&HOST);
}
