//! A ring's channels: its queue pairs, one for each device that the ring's requests have named.
//! Each channel has the requests in flight on its device.
//!
//! `submission::device_submit` puts a request into a channel, and `driving::reap` takes it out.
//! Requests may complete in another order than they were submitted. If a full queue pair refuses
//! requests, they wait here, in order, until requests in flight complete. `iopoll` spins on the
//! channels. Waiters of a ring without IOPOLL sleep until the channels' interrupts come.

use crate::registered::registered_buffers::RegisteredBuffers;
use crate::request::conditions::RequestId;
use crate::request::file::FileReference;
use crate::request::operation::Operation;
use crate::request::outcome::ChannelIndex;
use crate::request::{Request, RequestEntry};
use crate::waiting::lone_wait::LoneWaits;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::estimate::RingEstimate;
use usring_device::{Channel, Completions, Device, Pause, Wait};
use usring_sys::Errno;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::kernel_aio::Waiter;
use usring_sys::ticks::Ticks;

/// Number of quick checks for signs of completions between two polls of the devices. A poll takes
/// as long as several quick checks, and misses a completion that arrives meanwhile.
const SPINS: u32 = 16;

/// Longest time, in nanoseconds, between two polls of the devices, if some completions raise no
/// interrupt. A waiter that sleeps on the epoll set or the sleep word wakes after this time. For a
/// ring without waiters, the ring watcher polls by a timer.
const POLL_AGAIN_AFTER: Nanoseconds = 1_000_000;

/// The ring's channels.
#[derive(Default)]
pub(crate) struct DeviceQueues {
    pub channels: Vec<DeviceQueue>,
    pub completions: Completions,
    /// Number of requests in flight, and of requests that wait for a free slot, over all channels.
    pub in_flight: u32,
    /// Whether any channel has accepted requests since the last [`DeviceQueues::ring_doorbells`].
    /// Channels that defer their submits do not count.
    pub needs_doorbell: bool,
    /// Number of requests that usring has accepted and not yet submitted: see
    /// `driving::deferred_submit`.
    pub pending: u32,
    /// Whether a submit helper (a thread of usring) has been asked to submit the pending requests.
    pub left_to_helper: bool,
    /// Whether the ring watcher has to poll the devices by a timer, because some completions raise
    /// no interrupt, and no thread can sleep until they come.
    pub polled_later: bool,
    pub forbids_waiter: bool,
    /// State of HYBRID_IOPOLL; `None` on a ring without that flag.
    pub hybrid: Option<Box<Hybrid>>,
    /// The channel (queue pair) to the files that the kernel serves, or the error with which every
    /// attempt to open it fails. `None`: no request has needed the channel yet, or opening it
    /// failed and may succeed later.
    pub kernel_files: Option<Result<ChannelIndex, Errno>>,
    pub lone_waits: LoneWaits,
}

/// State of IORING_SETUP_HYBRID_IOPOLL. As in the kernel, the ring has one estimate of how long its
/// requests take, and each request has one sleep before its first poll.
pub(crate) struct Hybrid {
    pub estimate: RingEstimate,
    /// Requests for which no thread has polled yet, in the order of submission.
    pub unpolled: VecDeque<Unpolled>,
}

pub(crate) struct Unpolled {
    pub channel: u32,
    pub token: u32,
    pub id: RequestId,
    pub since: Ticks,
}

/// The sleep before the first poll for a request.
pub(crate) struct PrePollSleep {
    pub span: Nanoseconds,
    since: Ticks,
}

pub(crate) struct DeviceQueue {
    pub device: Arc<Device>,
    pub channel: Channel,
    pub wait: Wait,
    /// Requests in flight on this device, by their tokens.
    pub out: Vec<Option<RequestEntry>>,
    pub free: Vec<u32>,
    /// Requests that wait for a free slot of the channel's queue pair, in order of submission.
    pub awaiting_slot: VecDeque<RequestEntry>,
    /// Whether new requests have to wait, too, because earlier ones wait in `awaiting_slot`, or are
    /// being submitted from there.
    pub must_await_slot: bool,
    /// Whether a submit to this device may sleep, and is therefore made without the ring's lock.
    pub defers_submits: bool,
    /// `RWF_*` flags that usring adds to each request's own flags.
    pub added_flags: u32,
    /// Number of this channel's requests that usring has accepted and not yet submitted.
    pub pending: u32,
    /// Number of this channel's deferred submits that threads are making now.
    pub in_flush: u32,
    /// Whether the channel's interrupt has been added to the ring's epoll set.
    pub watched: bool,
    /// Whether the channel's interrupt is armed: since it was armed, it has not fired, and no
    /// request has completed.
    pub armed: bool,
}

impl DeviceQueue {
    /// Returns whether a worker should try a failed request again. A worker may succeed where
    /// io_submit(2) would have blocked, where the file does not support RWF_NOWAIT, or where a
    /// seccomp filter forbids io_submit(2). `false` if the request holds no duplicate of its file,
    /// because the program's descriptor number may name another file by now.
    #[cold]
    pub fn needs_worker(&self, request: &Request, result: i32) -> bool {
        const WOULD_WAIT: i32 = Errno::EAGAIN.negative();
        const UNKNOWN_FLAG: i32 = Errno::EOPNOTSUPP.negative();
        // io_submit(2) returns this error if the program has cleared O_DIRECT since the request's
        // submission: a write is then buffered, and the file system supports RWF_NOWAIT for direct
        // I/O only.
        const REFUSED_FLAG: i32 = Errno::EINVAL.negative();
        // Errors with which a seccomp filter may refuse io_submit(2).
        const DENIED: [i32; 3] = [Errno::EPERM.negative(), Errno::ENOSYS.negative(), Errno::EACCES.negative()];
        let is_ours = matches!(&request.operation, Operation::ReadWrite(transfer) if !transfer.never_waits());
        let has_file = !matches!(request.file.reference, FileReference::Submitter);
        let is_passing = is_ours && matches!(result, WOULD_WAIT | UNKNOWN_FLAG | REFUSED_FLAG);
        // If the program itself has set RWF_NOWAIT, the worker's attempt has the flag, too. So the
        // request goes to a worker only if a seccomp filter denied io_submit(2).
        self.added_flags != 0 && (is_passing || DENIED.contains(&result)) && has_file
    }
}

impl DeviceQueues {
    /// Returns the number of requests in flight on devices, plus those that wait for room in a full
    /// queue pair.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns whether requests are in flight whose completions raise no interrupt.
    pub fn has_suppressed(&self) -> bool {
        self.channels.iter().any(|queue| queue.channel.has_suppressed())
    }

    /// Returns `span`. If some completions raise no interrupt, shortens it to [`POLL_AGAIN_AFTER`].
    pub fn bound_sleep(&self, span: Option<Nanoseconds>) -> Option<Nanoseconds> {
        if self.has_suppressed() {
            Some(span.map_or(POLL_AGAIN_AFTER, |span| span.min(POLL_AGAIN_AFTER)))
        } else {
            span
        }
    }

    /// Makes the ring watcher drive the ring once more, after [`POLL_AGAIN_AFTER`].
    pub fn poll_later(&mut self) {
        self.polled_later = true;
    }

    /// Records that a seccomp filter forbids io_getevents(2), so that no thread can sleep in that
    /// call.
    pub fn forbid_waiter(&mut self) {
        self.forbids_waiter = true;
    }

    /// If [`Self::poll_later`] was called since the last call, returns the time (monotonic clock)
    /// at which the ring watcher has to poll the devices again. `None`: the ring watcher waits for
    /// interrupts only.
    pub fn next_poll(&mut self) -> Option<Nanoseconds> {
        core::mem::take(&mut self.polled_later).then(|| Clock::Monotonic.now().saturating_add(POLL_AGAIN_AFTER))
    }

    /// Returns the requests on devices, and those that wait for a free slot.
    pub fn requests_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.channels.iter_mut().flat_map(|queue| {
            let on_device = queue.out.iter_mut().flatten();
            on_device.chain(&mut queue.awaiting_slot).map(|request| &mut **request)
        })
    }

    /// Removes and returns the first request for which `matches` returns true, among those that
    /// wait for a free slot of a queue pair. No device has that request yet.
    pub fn extract_waiting(&mut self, mut matches: impl FnMut(&RequestEntry) -> bool) -> Option<RequestEntry> {
        for queue in &mut self.channels {
            if let Some(index) = queue.awaiting_slot.iter().position(&mut matches) {
                self.in_flight -= 1;
                return queue.awaiting_slot.remove(index);
            }
        }
        None
    }

    /// Returns whether a device with requests in flight has no interrupt. Only a poll finds the
    /// completions of such a device.
    pub fn lacks_interrupt(&self) -> bool {
        self.channels.iter().any(|queue| queue.channel.in_flight() > 0 && queue.channel.interrupt().is_none())
    }

    /// Returns whether each request has its own sleep before its first poll (HYBRID_IOPOLL).
    #[inline(always)]
    pub fn has_pre_poll_sleeps(&self) -> bool {
        self.hybrid.is_some()
    }

    /// On a ring with HYBRID_IOPOLL, returns the sleep before the first poll of the oldest request
    /// that no thread has polled for.
    pub fn next_pre_poll_sleep(&mut self) -> Option<PrePollSleep> {
        let hybrid = self.hybrid.as_mut()?;
        while let Some(fresh) = hybrid.unpolled.pop_front() {
            let out = &self.channels[fresh.channel as usize].out[fresh.token as usize];
            if out.as_ref().is_some_and(|request| request.id == fresh.id) {
                return Some(PrePollSleep { span: hybrid.estimate.sleep(), since: fresh.since });
            }
        }
        None
    }

    /// Updates the ring's estimate of the sleeps (HYBRID_IOPOLL). Called after a request's sleep
    /// and the first poll for that request.
    pub fn end_pre_poll_sleep(&mut self, sleep: &PrePollSleep) {
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.estimate.record(Ticks::now().since(sleep.since), sleep.span);
        }
    }

    /// Begins a new wait on all channels (queue pairs on devices), including those without requests
    /// in flight.
    pub fn begin_wait(&mut self) {
        for queue in &mut self.channels {
            queue.wait = queue.channel.begin_wait();
        }
    }

    /// Returns what a waiter does after a poll that found too few completions. The polling policy
    /// of each channel with requests in flight proposes a pause. The shortest pause wins, and
    /// spinning counts as the shortest. `begins`: this is the first poll of a wait.
    #[inline]
    pub fn pause(&mut self, begins: bool) -> Pause {
        if begins {
            self.begin_wait();
        }
        let mut all: Option<Pause> = None;
        for queue in self.channels.iter_mut().filter(|queue| queue.channel.in_flight() > 0) {
            let pause = queue.channel.pause(&mut queue.wait);
            all = Some(match (all, pause) {
                (None, pause) => pause,
                (Some(one), other) => one.min(other),
            });
        }
        match all {
            // On a ring with HYBRID_IOPOLL, a waiter sleeps only before the first poll for a
            // request.
            Some(Pause::Sleep(_)) if self.hybrid.is_some() => Pause::Spin,
            pause => pause.unwrap_or(Pause::Spin),
        }
    }

    /// Spins for a short while, until a device seems to have completed a request. Returns whether a
    /// device seems to have completed one.
    #[inline]
    pub fn spin(&mut self) -> bool {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            let busy = self.channels.iter_mut().filter(|queue| queue.channel.in_flight() > 0);
            if busy.map(|queue| &mut queue.channel).any(Channel::has_completions) {
                return true;
            }
        }
        false
    }

    /// Returns the kernel AIO context on which a waiter can sleep, and the number of requests in
    /// flight on it. `None` if another device has requests in flight, or if no thread can sleep on
    /// the context. Also `None` while a submit helper may pass a request to a worker: the sleep
    /// would miss that request's completion.
    pub fn waiter(&self) -> Option<(Waiter, u32)> {
        if self.forbids_waiter {
            return None;
        }
        if self.channels.iter().any(|queue| queue.pending != 0 || queue.in_flush != 0 || queue.must_await_slot) {
            return None;
        }
        let mut busy = self.channels.iter().map(|queue| &queue.channel).filter(|channel| channel.in_flight() > 0);
        let (only, None) = (busy.next()?, busy.next()) else { return None };
        let count = (self.in_flight == only.in_flight()).then_some(self.in_flight)?;
        Some((only.waiter()?, count))
    }

    /// Rings the devices' doorbells, once per batch. Skips devices whose submits are
    /// [deferred](Self::has_pending_submits).
    #[inline]
    pub fn ring_doorbells(&mut self) {
        if self.needs_doorbell {
            self.needs_doorbell = false;
            let queues = self.channels.iter_mut().filter(|queue| !queue.defers_submits);
            queues.for_each(|queue| queue.channel.ring_doorbell());
        }
    }

    /// Returns whether the thread that releases the ring's lock has to submit deferred requests:
    /// some are pending, and no submit helper has been asked to submit them.
    #[inline(always)]
    pub fn has_pending_submits(&self) -> bool {
        self.pending != 0 && !self.left_to_helper
    }

    /// Returns whether deferred requests are pending, or a thread is submitting some without the
    /// ring's lock.
    pub fn has_unfinished_submits(&self) -> bool {
        self.pending != 0 || self.channels.iter().any(|queue| queue.in_flush != 0)
    }

    /// Returns whether a request that had to wait for a free slot has one now, but its submit is
    /// deferred. The slot was freed by a thread that handled a completion. That thread is rarely
    /// the request's submitter, so it leaves the submit to a helper.
    pub fn has_pending_that_waited(&self) -> bool {
        self.pending != 0 && self.channels.iter().any(|queue| queue.must_await_slot && queue.pending != 0)
    }
}

/// Resources of a closed ring. usring releases them when the ring's last deferred submit has ended.
/// Until then, the submit could still pass memory of these resources to the kernel.
#[derive(Default)]
pub(crate) struct ClosedRingResources {
    pub devices: DeviceQueues,
    buffers: RegisteredBuffers,
}

impl ClosedRingResources {
    pub fn of(devices: &mut DeviceQueues, buffers: &mut RegisteredBuffers) -> ClosedRingResources {
        ClosedRingResources { devices: core::mem::take(devices), buffers: core::mem::take(buffers) }
    }

    /// Returns whether all deferred submits have ended.
    pub fn submits_have_ended(&self) -> bool {
        self.devices.channels.iter().all(|queue| queue.in_flush == 0)
    }

    /// Waits until no device accesses memory for this ring any more, which may take long. So the
    /// caller does not hold the ring's lock. Then releases the resources.
    pub fn release_resources(self) {
        let ClosedRingResources { devices, mut buffers } = self;
        drop(devices);
        buffers.unshare();
    }
}
