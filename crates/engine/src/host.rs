//! The engine's questions about descriptor numbers. The host answers these questions, because only
//! the host keeps a table of the program's descriptors. The host is `interpose`, or the Rust API in
//! a process that links usring.

use crate::devices;
use crate::ring::Ring;
use crate::waiting::tasks::tasks;
use alloc::boxed::Box;
use alloc::sync::Arc;
use usring_device::OpenDevice;
use usring_sys::Errno;
use usring_sys::descriptor::{self, RESERVED_BASE};
use usring_sys::set_once::SetOnce;

/// The functions of the host. The engine calls these functions while it holds a ring's lock, so
/// they must not close a ring. If a function has to close a ring, it calls [`run_later`].
pub struct Host {
    /// Returns the ring that a descriptor number stands for.
    pub ring_of: fn(i32) -> Option<Arc<Ring>>,
    /// Returns the ring that the calling thread has registered at an index.
    pub ring_at_index: fn(u32) -> Result<Arc<Ring>, Errno>,
    /// The engine calls this before it polls a descriptor number. If the number is a ring's, the
    /// host calls [`Ring::watch_readiness`]. From then on, the descriptor is readable while the CQ
    /// is not empty.
    pub watch: fn(i32),
    /// Gives the ring the eventfd that stands for its descriptor ([`Ring::attach_descriptor`]), if
    /// this process still has a descriptor number for the ring.
    pub attach: fn(&Ring),
    /// Returns the device of usring's that a descriptor number stands for.
    pub device_of: fn(i32) -> Option<Arc<OpenDevice>>,
    /// Closes a descriptor number as the program's close(2) would, if the number is in the host's
    /// table. `None`: the number is not in that table, because it is an ordinary descriptor. Error:
    /// `EBADF` for a number that the program may not close here, such as a ring's.
    pub close: fn(i32) -> Option<Result<(), Errno>>,
}

static HOST: SetOnce<Host> = SetOnce::new();

/// Sets the host. Called once, before the first ring.
pub fn set_host(host: &'static Host) {
    HOST.set(host);
}

/// Returns the device of usring's that a descriptor number stands for.
pub(crate) fn device_of(number: i32) -> Option<Arc<OpenDevice>> {
    if !devices::are_any() {
        return None;
    }
    (host()?.device_of)(number)
}

/// Makes the ring watcher run `action` soon, without any ring's lock. Drops `action` at once if
/// there is no ring watcher and none can be started, for example before the first ring.
pub fn run_later(action: impl FnOnce() + Send + 'static) {
    tasks().run(Box::new(action));
}

fn host() -> Option<&'static Host> {
    HOST.get()
}

/// Returns the ring that a descriptor number refers to. The number may also be a low one, to which
/// the program has duplicated the ring's descriptor.
pub(crate) fn ring_at(number: i32) -> Option<Arc<Ring>> {
    (host()?.ring_of)(number)
}

/// Returns the ring that the calling thread has registered at `index`.
pub(crate) fn ring_at_index(index: u32) -> Result<Arc<Ring>, Errno> {
    (host().ok_or(Errno::EINVAL)?.ring_at_index)(index)
}

/// Returns the ring that a descriptor number refers to. Asks the host only about numbers from
/// [`RESERVED_BASE`] on, because the numbers of rings begin there.
pub(crate) fn ring_of(number: i32) -> Option<Arc<Ring>> {
    if number < RESERVED_BASE {
        return None;
    }
    (host()?.ring_of)(number)
}

/// Notifies the host that the engine is about to poll a descriptor number. Returns whether the
/// number may be a ring's.
pub(crate) fn watch(number: i32) -> bool {
    let Some(host) = host().filter(|_| number >= RESERVED_BASE) else { return false };
    (host.watch)(number);
    true
}

/// Makes the host attach the eventfd of the ring's descriptor to the ring.
pub(crate) fn attach(ring: &Ring) {
    if let Some(host) = host() {
        (host.attach)(ring);
    }
}

/// Returns the ring that a setup with ATTACH_WQ names. Errors: `ENXIO` if the number is no open
/// file, `EINVAL` if the file is no ring.
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
