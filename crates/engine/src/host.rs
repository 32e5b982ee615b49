//! The questions about descriptors that the engine asks its host. The engine keeps no table of
//! descriptors, but the host does. The host is the interposer; a ring that is used through the Rust
//! API has no host.

use crate::devices;
use crate::ring::Ring;
use crate::waiting::tasks::tasks;
use alloc::boxed::Box;
use alloc::sync::Arc;
use usring_device::OpenDevice;
use usring_sys::Errno;
use usring_sys::descriptor::{self, RESERVED_BASE};
use usring_sys::set_once::SetOnce;

/// The functions of the host. The engine calls them with a ring's lock held, so they must leave the
/// close of a ring to [`run_later`].
pub struct Host {
    /// The ring that this number stands for, if it is one.
    pub ring_of: fn(i32) -> Option<Arc<Ring>>,
    /// The ring that the calling thread has registered at this index.
    pub ring_at_index: fn(u32) -> Result<Arc<Ring>, Errno>,
    /// Called when the number is about to be polled. If it is a ring's, its readability has to
    /// follow the CQ from now on ([`Ring::watch_readiness`]).
    pub watch: fn(i32),
    /// The device of usring's that this number stands for, if any.
    pub device_of: fn(i32) -> Option<Arc<OpenDevice>>,
    /// Closes the number as the program's close(2) would, if the host keeps it and it is no ring.
    /// Error: `EBADF`. `None` for an ordinary descriptor.
    pub close: fn(i32) -> Option<Result<(), Errno>>,
}

static HOST: SetOnce<Host> = SetOnce::new();

/// Sets the host, once, before the first ring.
pub fn set_host(host: &'static Host) {
    HOST.set(host);
}

/// Returns the device behind a number.
pub(crate) fn device_of(number: i32) -> Option<Arc<OpenDevice>> {
    if !devices::are_any() {
        return None;
    }
    (host()?.device_of)(number)
}

/// Has the ring watcher run an action soon, when no ring's lock is held. If neither this process
/// nor its parent has set a ring up, the action is dropped at once.
pub fn run_later(action: impl FnOnce() + Send + 'static) {
    tasks().run(Box::new(action));
}

fn host() -> Option<&'static Host> {
    HOST.get()
}

/// Returns the ring behind any number, including a low number to which the program has duplicated
/// the ring's descriptor.
pub(crate) fn ring_at(number: i32) -> Option<Arc<Ring>> {
    (host()?.ring_of)(number)
}

/// Returns the ring at an index that the calling thread has registered.
pub(crate) fn ring_at_index(index: u32) -> Result<Arc<Ring>, Errno> {
    (host().ok_or(Errno::EINVAL)?.ring_at_index)(index)
}

/// Returns the ring behind a number; asks the host only about numbers that can be a ring's.
pub(crate) fn ring_of(number: i32) -> Option<Arc<Ring>> {
    if number < RESERVED_BASE {
        return None;
    }
    (host()?.ring_of)(number)
}

/// Notifies the host that a number is about to be polled; returns whether it can be a ring's.
pub(crate) fn watch(number: i32) -> bool {
    let Some(host) = host().filter(|_| number >= RESERVED_BASE) else { return false };
    (host.watch)(number);
    true
}

/// Returns the ring that ATTACH_WQ names. Errors: `ENXIO` if the number is no open file, `EINVAL`
/// if it is no ring.
pub(crate) fn ring_to_attach_to(number: i32) -> Result<Arc<Ring>, Errno> {
    match ring_of(number) {
        Some(ring) => Ok(ring),
        None if descriptor::status_flags(number).is_err() => Err(Errno::ENXIO),
        None => Err(Errno::EINVAL),
    }
}

pub(crate) fn close(number: i32) -> Option<Result<(), Errno>> {
    (host()?.close)(number)
}
