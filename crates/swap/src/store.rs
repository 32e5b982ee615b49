//! The backing store: a device that is divided into slots, each as long as one unit of the region,
//! and the queues to the device.
//!
//! A thread has a fault slot ([`usring_sys::page_fault`]) while usring serves its fault. The number
//! of the fault slot selects a store queue. If there are enough store queues, no two threads share
//! one. A thread whose store queue is in use locks the next free store queue.

use crate::run::MOST;
use crate::slots::Slots;
use crate::store_queue::StoreQueue;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::Device;
use usring_sys::Errno;
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::paged_memory::Bounce;

pub struct Store {
    device: Arc<Device>,
    pub slots: Slots,
    /// Bytes before the first slot.
    header: u64,
    /// Bytes of a slot.
    unit: usize,
    queues: Vec<Mutex<StoreQueue>>,
    /// Bounce buffers for requests of several slots.
    wide: Vec<Mutex<Bounce>>,
}

/// Maximum number of bytes of a request for several slots. A slot may be larger than this: then
/// each request is for one slot.
const MOST_REQUEST_BYTES: usize = 128 << 10;
/// Number of store queues that share one bounce buffer for requests of several slots. Sharing saves
/// memory: the memory of these buffers is never returned to the kernel.
const QUEUES_PER_BUFFER: usize = 4;

impl Store {
    /// Makes a store whose slots begin after `header` bytes. It has `queues` store queues, or fewer
    /// if the device has fewer queue pairs. With `shareable`, forked children can share the slots.
    ///
    /// Errors:
    /// - `EINVAL`: the device is read-only, takes no segments, or has less than one unit.
    /// - `EINVAL`: the unit is not a multiple of the device's block.
    /// - The error of opening the first queue pair.
    pub fn new(device: Arc<Device>, header: u64, unit: usize, queues: usize, shareable: bool) -> Result<Self, Errno> {
        let geometry = device.geometry();
        if geometry.features.read_only || !unit.is_multiple_of(geometry.block as usize) || geometry.segments == 0 {
            return Err(Errno::EINVAL);
        }
        let count = u32::try_from(geometry.size.saturating_sub(header) / unit as u64).unwrap_or(u32::MAX);
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        // Without shared memory from the kernel, the store works, but forked children cannot share
        // its slots.
        let shared = if shareable { Slots::shareable(count).ok() } else { None };
        let slots = shared.map_or_else(|| Slots::new(count), Ok)?;
        Self::with_slots(device, header, unit, queues, slots)
    }

    /// Makes the store of a forked child: the parent's device, the slots `slots`, and new store
    /// queues.
    pub fn inherit(&self, slots: Slots) -> Result<Self, Errno> {
        Self::with_slots(self.device.clone(), self.header, self.unit, self.queues.len(), slots)
    }

    fn with_slots(device: Arc<Device>, header: u64, unit: usize, queues: usize, slots: Slots) -> Result<Self, Errno> {
        let mut open = Vec::new();
        for _ in 0..queues {
            match StoreQueue::new(&device, unit) {
                Ok(queue) => open.push(Mutex::new(queue)),
                Err(error) if open.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        let wide = (0..open.len().div_ceil(QUEUES_PER_BUFFER))
            .map(|_| Bounce::new(MOST_REQUEST_BYTES.max(unit)).map(Mutex::new));
        let wide = wide.collect::<Result<_, _>>()?;
        Ok(Store { slots, header, unit, queues: open, wide, device })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the byte offset on the device at which a slot begins.
    pub fn offset(&self, slot: u32) -> u64 {
        self.header + u64::from(slot) * self.unit as u64
    }

    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Locks the store queue that belongs to a fault slot. If that queue is in use, locks the next
    /// free store queue.
    pub fn queue(&self, fault_slot: usize) -> Guard<'_, StoreQueue> {
        lock_for_fault_slot(&self.queues, fault_slot)
    }

    /// Locks a bounce buffer for a request of up to [`Store::wide_pages`] pages. Prefers the buffer
    /// that belongs to the fault slot.
    pub fn wide_bounce(&self, fault_slot: usize) -> Guard<'_, Bounce> {
        lock_for_fault_slot(&self.wide, fault_slot)
    }

    /// Returns the maximum number of pages that fit in one request for several pages.
    pub fn wide_pages(&self) -> usize {
        (MOST_REQUEST_BYTES / self.unit).clamp(1, MOST)
    }
}

/// Locks the element that belongs to a fault slot. If it is locked, locks the next free element. If
/// no element is free, waits for the element of the fault slot.
fn lock_for_fault_slot<T>(all: &[Mutex<T>], fault_slot: usize) -> Guard<'_, T> {
    let one = |step: usize| &all[(fault_slot + step) % all.len()];
    let free = (0..all.len()).find_map(|step| one(step).try_lock());
    free.unwrap_or_else(|| one(0).lock())
}
