//! The descriptor of a ring for poll and epoll: an eventfd, made when the program first asks for
//! it. The engine keeps the eventfd readable while the ring has completions.
//!
//! For `POLL_ADD` on a ring and for `setup_attach_wq`, this module tells the engine which ring a
//! descriptor belongs to. It knows only descriptors that it has made. (In `libusring.so` the
//! interposer answers instead, from a table of all descriptors.)

use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use usring_engine::{Host, Ring};
use usring_sys::descriptor::{OwnedDescriptor, RESERVED_BASE, duplicate_from};
use usring_sys::per_process::PerProcess;
use usring_sys::{Errno, eventfd};

/// The descriptor of one ring, or none if the program has not asked for it yet.
#[derive(Default)]
pub(super) struct Descriptor {
    made: OnceLock<Option<Arc<OwnedDescriptor>>>,
}

type Table = RwLock<Vec<(RawFd, Weak<Ring>)>>;

/// The descriptors of all rings of this process, with their rings. A forked child starts with an
/// empty table, because it cannot use the rings that it inherits.
static TABLE: PerProcess<Table> = PerProcess::new();

/// Locks the table for reading. Threads that send messages between rings look up rings at the same
/// time, so a reader must not exclude another reader.
fn table() -> RwLockReadGuard<'static, Vec<(RawFd, Weak<Ring>)>> {
    TABLE.get_or_make(Table::default).read().unwrap_or_else(PoisonError::into_inner)
}

fn table_to_change() -> RwLockWriteGuard<'static, Vec<(RawFd, Weak<Ring>)>> {
    TABLE.get_or_make(Table::default).write().unwrap_or_else(PoisonError::into_inner)
}

impl Descriptor {
    /// Returns the descriptor's number. The first call makes the descriptor. Returns −1 if that
    /// fails, or if the ring is the parent process's.
    pub fn number(&self, ring: &Arc<Ring>) -> RawFd {
        if ring.is_inherited() {
            return -1;
        }
        let made = self.made.get_or_init(|| make(ring).ok());
        made.as_ref().map_or(-1, |descriptor| descriptor.number())
    }

    /// Makes the descriptor unreadable if the application has taken the last completion. The API
    /// calls this function whenever the application uses the completion queue. (The interposer does
    /// not see such uses. It makes this check before each poll call of the program instead.)
    #[inline]
    pub fn clear_readiness(&self, is_empty: impl FnOnce() -> bool) {
        if self.made.get().is_some_and(Option::is_some) && is_empty() {
            usring_engine::clear_emptied_readiness();
        }
    }

    /// Removes the descriptor from the table of all rings. Called before the ring is closed.
    pub fn retire(&self) {
        if let Some(Some(descriptor)) = self.made.get() {
            table_to_change().retain(|(number, _)| *number != descriptor.number());
        }
    }
}

fn make(ring: &Arc<Ring>) -> Result<Arc<OwnedDescriptor>, Errno> {
    let event = eventfd::create()?;
    // The engine treats only numbers from `RESERVED_BASE` on as rings. If the limit of open files
    // is lower, the eventfd keeps its ordinary number, and serves only poll and epoll.
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
    // `register_ring_fd` of the API makes no table of registered rings, so no index names a ring.
    ring_at_index: |_| Err(Errno::EINVAL),
    // There is nothing to do: `make` watches each ring that gets a descriptor.
    watch: |_| (),
    attach: |_| (),
    device_of: |_| None,
    // Refuses a CLOSE request for a ring's descriptor with EBADF. `None` makes the engine close the
    // number itself.
    close: |number| {
        let is_ring = number >= RESERVED_BASE && ring_of(number).is_some();
        is_ring.then_some(Err(Errno::EBADF))
    },
};

/// Makes this module the host that the engine asks about descriptors.
pub(super) fn become_host() {
    usring_engine::set_host(&HOST);
}
