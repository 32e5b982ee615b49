//! Finds a ring's channel to a device, and opens it for the first request that names the device.
//!
//! `device_queues` has the open channels (queue pairs on devices). The ring's setup decides two
//! things about a channel: its depth, and whether it raises interrupts.

use super::device_queues::{DeviceQueue, DeviceQueues, Hybrid};
use crate::devices;
use crate::request::outcome::ChannelIndex;
use crate::ring::Ring;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use usring_device::estimate::RingEstimate;
use usring_device::{Device, QueueOptions};
use usring_sys::{Errno, width};
use usring_uapi::general as linux;
use usring_uapi::io_uring as abi;

/// Bounds of a channel's depth, the number of requests that may be in flight on it. Within the
/// bounds, the depth is the larger of the CQ's size and the number of requests that the ring was
/// made for.
const DEPTHS: core::ops::RangeInclusive<u32> = 128..=4096;

impl DeviceQueues {
    /// Returns the ring's channel to a device. The first request that names the device opens the
    /// channel.
    #[inline]
    pub fn channel(&mut self, ring: &Ring, device: &Arc<Device>) -> Result<ChannelIndex, Errno> {
        match self.channels.iter().position(|queue| Arc::ptr_eq(&queue.device, device)) {
            Some(index) => Ok(ChannelIndex(width::count(index))),
            None => self.open(ring, device),
        }
    }

    /// Returns the index of the ring's channel to the kernel's AIO, which serves all files that do
    /// not stand for a device of usring. The first call opens the channel. If the channel cannot be
    /// opened at all, this call and all later calls return the error.
    #[inline]
    pub fn channel_to_kernel_files(&mut self, ring: &Ring) -> Result<ChannelIndex, Errno> {
        match self.kernel_files {
            Some(known) => known,
            None => {
                let opened = self.open(ring, devices::kernel_files());
                if !opened.is_err_and(is_passing) {
                    self.kernel_files = Some(opened);
                }
                opened
            }
        }
    }

    #[cold]
    pub fn open(&mut self, ring: &Ring, device: &Arc<Device>) -> Result<ChannelIndex, Errno> {
        let is_of_kernel = Arc::ptr_eq(device, devices::kernel_files());
        let expected = ring.memory.layout().cq_entries.max(ring.expected_requests);
        let depth = expected.clamp(*DEPTHS.start(), *DEPTHS.end());
        let interrupts = !ring.is_polled() || device.waits_when_polled();
        let mut channel = device.open_channel(QueueOptions { depth, interrupts })?;
        if ring.defers_task_work() {
            // The ring's owner is the only thread that waits. If the owner waits only for
            // transfers, it sleeps in io_getevents(2), which needs no interrupts.
            channel.suppress_interrupts();
        }
        if ring.has(abi::IORING_SETUP_HYBRID_IOPOLL) && !ring.is_polled_by_thread() && self.hybrid.is_none() {
            self.hybrid = Some(Box::new(Hybrid { estimate: RingEstimate::new(), unpolled: VecDeque::new() }));
        }
        self.channels.push(DeviceQueue {
            device: device.clone(),
            wait: channel.begin_wait(),
            defers_submits: channel.defers_submits(),
            // A worker gets a transfer that would block, as in the kernel's io_uring. RWF_NOWAIT
            // makes io_submit(2) fail for such a transfer instead of blocking.
            added_flags: if is_of_kernel && !ring.may_block_in_submit() { linux::RWF_NOWAIT } else { 0 },
            pending: 0,
            in_flush: 0,
            channel,
            out: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            awaiting_slot: VecDeque::new(),
            must_await_slot: false,
            watched: false,
            armed: false,
        });
        Ok(ChannelIndex(width::count(self.channels.len()) - 1))
    }
}

/// Returns whether a later attempt can succeed, because the cause of the error may have gone by
/// then.
fn is_passing(error: Errno) -> bool {
    matches!(error, Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::EINTR)
}
