//! A device that another process, the back end, serves: vhost-user-blk. Requests go through
//! virtqueues in shared memory. A request takes no system call while the back end polls, and one
//! system call to wake the back end when it sleeps.
//!
//! | part | file |
//! |---|---|
//! | the memory of the queues | [`arena`] |
//! | replacement and end of the back end | [`generation`] |
//! | a queue pair | `queue` |
//! | detecting the end of the control plane | `lifeline` |
//! | program memory shared with the back end | `shares` |
//! | the virtio block device | `block` |
//! | the rings | [`crate::virtqueue`] |
//!
//! The control plane ([`Supply`]) has the connection to the back end. Each device has one control
//! plane, in the process that started the run.

pub mod arena;
pub mod block;
pub mod generation;
mod lifeline;
mod queue;
mod shares;

use crate::driver::{Driver, QueueOptions, QueuePair};
use crate::geometry::Geometry;
use crate::spec::{DeviceKind, Layer, Opened, Opening, OptionRow, ValueKind};
use crate::supply::Supply;
use alloc::boxed::Box;
use arena::{Arena, Parameters};
use core::cell::LazyCell;
use queue::Queue;
use shares::{Share, Shares};
use usring_sys::mapping::{self, Mapping, PAGE};
use usring_sys::plain::IoVector;
use usring_sys::process_maps::Maps;
use usring_sys::sync::Arc;
use usring_sys::{Errno, UserAddress, pinned_memory, user_memory, width};

pub static KIND: DeviceKind = DeviceKind {
    name: "vhost-user",
    options: &[
        OptionRow { name: "socket", value: ValueKind::Path, required: true },
        OptionRow { name: "reconnect", value: ValueKind::Switch, required: false },
        OptionRow { name: "queues", value: ValueKind::Number, required: false },
        OptionRow { name: "zero-copy", value: ValueKind::Switch, required: false },
    ],
    check: check_queues,
    open: Opening::Device(open),
};

/// Maximum number of queues of a device: as many as the protocol's messages can number.
pub const MOST_QUEUES: u64 = 256;

pub(super) fn check_queues(layer: &Layer) -> Result<(), &'static str> {
    match layer.number("queues") {
        Some(0) => Err("a device must have at least one queue"),
        Some(queues) if queues > MOST_QUEUES => Err("a device can have at most 256 queues"),
        _ => Ok(()),
    }
}

/// The options of a vhost-user device that the control plane needs, from the device's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options<'a> {
    pub socket: &'a str,
    pub reconnect: bool,
    /// Number of queues. `None`: all queues that the back end has, up to a limit of the control
    /// plane.
    pub queues: Option<u32>,
    /// Advice how to get more queues. It ends the error message for the case that all queues of the
    /// device are in use.
    pub more_queues: &'static str,
}

impl<'a> Options<'a> {
    /// Returns the options of a vhost-user device; `None` for any other kind of device.
    pub fn of(layer: &'a Layer) -> Option<Options<'a>> {
        if layer.kind() != KIND.name {
            return None;
        }
        Some(Options {
            socket: layer.text("socket")?,
            reconnect: layer.switch("reconnect").unwrap_or(false),
            queues: layer.number("queues").and_then(|queues| u32::try_from(queues).ok()),
            more_queues: "start it with num-queues=… for more",
        })
    }
}

pub(super) fn open(layer: &Layer, supply: Box<dyn Supply>) -> Opened {
    let arena = Arena::open(supply.arena()?)?;
    let parameters = arena.parameters();
    Ok(Box::new(Handle(Arc::new(VhostUser {
        geometry: parameters.geometry(),
        parameters,
        arena,
        shares: Shares::default(),
        zero_copy: layer.switch("zero-copy").unwrap_or(false),
        supply,
    }))))
}

/// State shared by the driver and its queue pairs.
struct VhostUser {
    arena: Arena,
    parameters: Parameters,
    geometry: Geometry,
    shares: Shares,
    /// Whether registered memory may be shared with the back end. The user of the run decides,
    /// because sharing has two risks. First, data that another thread writes to the memory during
    /// the registration can be lost. Second, a forked child shares the memory with its parent.
    zero_copy: bool,
    supply: Box<dyn Supply>,
}

struct Handle(Arc<VhostUser>);

impl Driver for Handle {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        let grant = self.0.supply.queue()?;
        Ok(Box::new(Queue::new(Arc::clone(&self.0), grant, options)?))
    }

    /// Moves whole private pages to a memory file, which the back end maps, too. The pages keep
    /// their addresses and their content. If a step fails, the memory stays private.
    fn share_memory(&self, memory: IoVector) {
        if !self.0.zero_copy {
            return;
        }
        // The program may have unmapped the memory of an earlier share, and mapped other memory
        // there. A request must not find that share any more, because its pages are not the
        // program's memory.
        let maps = LazyCell::new(Maps::open);
        let area_of = |at| maps.as_ref().and_then(|maps| maps.area_of(at));
        self.0.shares.replace(memory, |share| share.is_mapped(area_of));
        let Some((start, length)) = whole_pages(memory) else { return };
        if pinned_memory::is_evictable(IoVector { base: start, length: length as u64 }) {
            return;
        }
        let address = UserAddress(start);
        if user_memory::probe_writable(address, length).is_err() || !mapping::is_private(address, length) {
            return;
        }
        let Ok(file) = mapping::memory_file(c"usring-registered", length as u64) else { return };
        let number = file.number();
        let Ok(pages) = Mapping::of_file(file, length) else { return };
        let Ok(region) = self.0.supply.share(number, length as u64) else { return };
        if pages.replace(0..pages.length(), address).is_err() {
            return self.0.supply.unshare(region.slot);
        }
        let file = area_of(width::size(start)).map(|area| (area.device, area.inode));
        self.0.shares.add(Share { start, length: length as u64, address: region.address, slot: region.slot, file });
    }

    fn unshare_memory(&self, memory: IoVector) {
        let Some((start, length)) = whole_pages(memory) else { return };
        if let Some(share) = self.0.shares.remove(start, length as u64) {
            self.0.supply.unshare(share.slot);
        }
    }

    fn unshare_replaced(&self, memory: IoVector) {
        while let Some(share) = self.0.shares.remove_replaced(memory) {
            self.0.supply.unshare(share.slot);
        }
    }
}

/// Returns the start address and length of the whole pages within the memory. `None` if there are
/// none.
fn whole_pages(memory: IoVector) -> Option<(u64, usize)> {
    let page = PAGE as u64;
    let start = memory.base.checked_next_multiple_of(page)?;
    let end = memory.base.checked_add(memory.length)? / page * page;
    (end > start && end <= user_memory::END).then(|| (start, width::size(end - start)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_may_have_no_whole_page() {
        assert_eq!(whole_pages(IoVector { base: 0x1200, length: 0x800 }), None);
        assert_eq!(whole_pages(IoVector { base: 0x1200, length: 0x2000 }), Some((0x2000, 0x1000)));
    }
}
