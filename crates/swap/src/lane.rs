//! A queue pair of the backing store with all that a transfer on it needs, made
//! ahead: a thread in a signal handler may not allocate.
//!
//! One page for a thread that waits for it is waited for as the device's policy
//! says, that is: polled, but not for ever. Everything else (pages brought in
//! ahead, pages written out) is one larger request, and its thread sleeps.

use crate::courtesy::Courtesy;
use usring_device::{
    Channel, Completions, Device, DeviceRequest, Manner, NamedFile, Operation, Pause, QueueOptions, Submission,
};
use usring_sys::paged_memory::Bounce;
use usring_sys::plain::IoVector;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, epoll, kept_memory, processor, timer_slack};

/// Requests in flight on a lane; one at a time is made, and its wrappers may
/// want room.
const DEPTH: u32 = 4;

/// Nanoseconds of polling after which its thread sleeps: what took so long is
/// made longer by a wake-up, some tens of microseconds, by a few per cent.
const LONGEST_POLL: u64 = 1_000_000;

/// How a request is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// As the device's policy says.
    ByPolicy,
    Asleep,
}

pub struct Lane {
    channel: Channel,
    completions: Completions,
    bounce: Bounce,
    transfer: u64,
    segments: usize,
    block: u64,
    courtesy: Courtesy,
}

impl Lane {
    /// With a bounce buffer of so many bytes.
    pub fn new(device: &Device, bounce: usize) -> Result<Self, Errno> {
        let geometry = *device.geometry();
        let options = QueueOptions { depth: DEPTH, interrupts: true };
        let mut channel = device.open_channel_for(Manner::Ring, options)?;
        channel.keep_tracking();
        let mut completions = Completions::new();
        completions.reserve();
        Ok(Lane {
            channel,
            completions,
            bounce: Bounce::new(bounce)?,
            transfer: u64::from(geometry.transfer & !(geometry.block - 1)),
            segments: geometry.segments as usize,
            block: u64::from(geometry.block),
            courtesy: Courtesy::default(),
        })
    }

    /// Reads so many bytes of the device, and answers them.
    pub fn read(&mut self, device: &Device, offset: u64, length: usize, waiting: Waiting) -> Result<&[u8], Errno> {
        let segment = IoVector { base: self.bounce.address() as u64, length: length as u64 };
        self.whole(device, Operation::Read, offset, &mut [segment], waiting)?;
        Ok(self.bounce.bytes(length))
    }

    /// The same into a larger bounce buffer, asleep.
    pub fn read_to<'a>(
        &mut self,
        bounce: &'a mut Bounce,
        device: &Device,
        offset: u64,
        length: usize,
    ) -> Result<&'a [u8], Errno> {
        let segment = IoVector { base: bounce.address() as u64, length: length as u64 };
        self.whole(device, Operation::Read, offset, &mut [segment], Waiting::Asleep)?;
        Ok(bounce.bytes(length))
    }

    /// Writes these bytes. What the segments are afterwards means nothing.
    pub fn write(&mut self, device: &Device, offset: u64, segments: &mut [IoVector]) -> Result<(), Errno> {
        self.whole(device, Operation::Write, offset, segments, Waiting::Asleep)
    }

    /// All of a transfer, in as many requests as the device wants.
    fn whole(
        &mut self,
        device: &Device,
        operation: Operation,
        mut offset: u64,
        mut segments: &mut [IoVector],
        waiting: Waiting,
    ) -> Result<(), Errno> {
        // What is written may be the very pages that nobody else can have now.
        let _exempt = kept_memory::exempt();
        while !segments.is_empty() {
            let (count, cut, length) = self.piece(segments);
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
            let done = self.one(device, &request, waiting)?;
            segments[count - 1].length = rest;
            // A short transfer that makes no whole blocks is none.
            let done = done - done % self.block;
            if done == 0 {
                return Err(Errno::EIO);
            }
            offset += done;
            segments = advance(segments, done);
        }
        Ok(())
    }

    /// How many segments go into the next request, how much of the last of
    /// them, and how many bytes that makes.
    fn piece(&self, segments: &[IoVector]) -> (usize, u64, u64) {
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

    fn one(&mut self, device: &Device, request: &DeviceRequest, waiting: Waiting) -> Result<u64, Errno> {
        loop {
            match self.channel.submit(request) {
                Submission::Accepted => break,
                Submission::Full => processor::give_way(),
                Submission::NeedsWorker => return device.driver().execute(request).map(u64::from),
                Submission::Refused(error) => return Err(error),
            }
        }
        self.channel.ring_doorbell();
        let result = self.wait(waiting);
        u64::try_from(result).map_err(|_| Errno::new(result.unsigned_abs()))
    }

    /// The result of the request that is out.
    /// Who polls gives way between two looks, and sleeps where that does not pay.
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
                Pause::Spin if self.courtesy.give_way(now) => {}
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
            // It fails where the kernel has no memory: then this spins.
            let _ = epoll::wait_readable(interrupt);
        }
    }
}

/// What is left of segments when the first bytes are done.
fn advance(mut segments: &mut [IoVector], mut done: u64) -> &mut [IoVector] {
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
