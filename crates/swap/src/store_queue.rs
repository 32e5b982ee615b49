//! A store queue: one queue pair of the backing store, with the buffers that a transfer needs.
//! Store queues are made before the first page fault, because a thread in a signal handler must not
//! allocate.
//!
//! A thread that faults on one page waits according to the device's polling policy, and polls for
//! at most [`LONGEST_POLL`] nanoseconds. Other transfers (read-ahead, eviction, several pages) are
//! larger requests. During these, the thread sleeps.

use crate::back_off::BackOff;
use usring_device::{
    Channel, Completions, Device, DeviceRequest, NamedFile, Operation, Pause, QueueOptions, Submission, WaiterKind,
};
use usring_sys::paged_memory::Bounce;
use usring_sys::plain::IoVector;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, epoll, pinned_memory, processor, timer_slack};

/// Queue depth. A store queue has one request in flight. The device may have wrappers that add
/// latency or errors to requests: the other entries are for them.
const DEPTH: u32 = 4;

/// Nanoseconds of polling after which the thread sleeps. A wake-up takes some tens of microseconds.
/// For a transfer that takes longer than this limit, that is only a few per cent.
const LONGEST_POLL: u64 = 1_000_000;

/// How a thread waits for its request to complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// According to the device's polling policy.
    ByPolicy,
    Asleep,
}

pub struct StoreQueue {
    channel: Channel,
    completions: Completions,
    bounce: Bounce,
    transfer: u64,
    segments: usize,
    block: u64,
    back_off: BackOff,
}

impl StoreQueue {
    /// Makes a store queue with a bounce buffer of `bounce` bytes.
    pub fn new(device: &Device, bounce: usize) -> Result<Self, Errno> {
        let geometry = *device.geometry();
        let options = QueueOptions { depth: DEPTH, interrupts: true };
        let mut channel = device.open_channel_for(WaiterKind::Ring, options)?;
        channel.keep_tracking();
        let mut completions = Completions::new();
        completions.reserve();
        Ok(StoreQueue {
            channel,
            completions,
            bounce: Bounce::new(bounce)?,
            transfer: u64::from(geometry.transfer & !(geometry.block - 1)),
            segments: geometry.segments as usize,
            block: u64::from(geometry.block),
            back_off: BackOff::default(),
        })
    }

    /// Reads `length` bytes of the device, from `offset` on, into the queue's bounce buffer.
    /// Returns these bytes.
    pub fn read(&mut self, device: &Device, offset: u64, length: usize, waiting: Waiting) -> Result<&[u8], Errno> {
        let segment = IoVector { base: self.bounce.address() as u64, length: length as u64 };
        self.transfer_all(device, Operation::Read, offset, &mut [segment], waiting)?;
        Ok(self.bounce.bytes(length))
    }

    /// Reads `length` bytes of the device, from `offset` on, into the caller's bounce buffer, and
    /// returns them. The thread sleeps meanwhile.
    pub fn read_to<'a>(
        &mut self,
        bounce: &'a mut Bounce,
        device: &Device,
        offset: u64,
        length: usize,
    ) -> Result<&'a [u8], Errno> {
        let segment = IoVector { base: bounce.address() as u64, length: length as u64 };
        self.transfer_all(device, Operation::Read, offset, &mut [segment], Waiting::Asleep)?;
        Ok(bounce.bytes(length))
    }

    /// Writes the content of the segments to the device. May change the addresses and lengths in
    /// `segments`.
    pub fn write(&mut self, device: &Device, offset: u64, segments: &mut [IoVector]) -> Result<(), Errno> {
        self.transfer_all(device, Operation::Write, offset, segments, Waiting::Asleep)
    }

    /// Transfers all bytes of the segments, by as many requests as the device's limits require.
    fn transfer_all(
        &mut self,
        device: &Device,
        operation: Operation,
        mut offset: u64,
        mut segments: &mut [IoVector],
        waiting: Waiting,
    ) -> Result<(), Errno> {
        // A hook pins the swapped memory that a transfer on a device uses. For the requests of this
        // queue the hook would wait for pages that this thread itself owns. So they are exempt from
        // the hook.
        let _exempt = pinned_memory::exempt();
        while !segments.is_empty() {
            let (count, cut, length) = self.next_request_size(segments);
            let rest = core::mem::replace(&mut segments[count - 1].length, cut);
            let request = DeviceRequest {
                token: 0,
                operation,
                durable: false,
                registered: false,
                offset,
                length,
                segments: &segments[..count],
                file: NamedFile::default(),
            };
            let done = self.run_request(device, &request, waiting)?;
            segments[count - 1].length = rest;
            // The transfer may have been short. Only its whole blocks count as done, and the next
            // request transfers the rest.
            let done = done - done % self.block;
            if done == 0 {
                return Err(Errno::EIO);
            }
            offset += done;
            segments = skip_done(segments, done);
        }
        Ok(())
    }

    /// Returns three values for the next request: its number of segments, its number of bytes in
    /// its last segment, and its total number of bytes.
    fn next_request_size(&self, segments: &[IoVector]) -> (usize, u64, u64) {
        let mut length = 0;
        for (index, segment) in segments.iter().take(self.segments).enumerate() {
            let room = self.transfer - length;
            if segment.length >= room {
                return (index + 1, room, self.transfer);
            }
            length += segment.length;
        }
        let count = segments.len().min(self.segments);
        (count, segments[count - 1].length, length)
    }

    fn run_request(&mut self, device: &Device, request: &DeviceRequest, waiting: Waiting) -> Result<u64, Errno> {
        loop {
            match self.channel.submit(request) {
                Submission::Accepted => break,
                Submission::Full => processor::yield_now(),
                Submission::NeedsWorker => return device.driver().execute(request).map(u64::from),
                Submission::Refused(error) => return Err(error),
            }
        }
        self.channel.ring_doorbell();
        let result = self.wait(waiting);
        u64::try_from(result).map_err(|_| Errno::new(result.unsigned_abs()))
    }

    /// Waits for the request in flight and returns its result. A polling thread yields the
    /// processor between two polls. If yields take too long, it sleeps instead.
    fn wait(&mut self, waiting: Waiting) -> i32 {
        let mut wait = self.channel.begin_wait();
        let start = Ticks::now();
        let mut now = start;
        loop {
            self.completions.clear();
            self.channel.poll(&mut self.completions);
            if let Some(completion) = self.completions.as_slice().first() {
                return completion.result;
            }
            if waiting == Waiting::Asleep || now.since(start) > LONGEST_POLL {
                self.sleep();
                continue;
            }
            match self.channel.pause(&mut wait) {
                Pause::Spin if self.back_off.try_yield(now) => {}
                Pause::Spin => self.sleep(),
                Pause::Sleep(span) => drop(timer_slack::sleep_precisely(span)),
                Pause::Interrupt => self.sleep(),
            }
            now = Ticks::now();
        }
    }

    fn sleep(&mut self) {
        if self.channel.arm_interrupt()
            && let Some(interrupt) = self.channel.interrupt()
        {
            // If the kernel has no memory, `wait_readable` fails at once. Then the caller polls
            // again.
            let _ = epoll::wait_readable(interrupt);
        }
    }
}

/// Returns the segments without their first `done` bytes, which were transferred.
fn skip_done(mut segments: &mut [IoVector], mut done: u64) -> &mut [IoVector] {
    while let Some(first) = segments.first_mut() {
        if done < first.length {
            first.base += done;
            first.length -= done;
            break;
        }
        done -= first.length;
        segments = &mut segments[1..];
    }
    segments
}
