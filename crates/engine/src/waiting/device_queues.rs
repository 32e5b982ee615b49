//! Who waits for a device: the ring's channels, one per device that its
//! requests have named, and the requests that are out on each.
//!
//! A request goes in at `submit` and comes out at `reap`, in any order. What a
//! full queue pair does not take waits here, in order, for a completion.
//! `iopoll` spins on these channels; a ring that is not polled sleeps on their
//! interrupts.

mod carriers;
mod delivery;

pub(crate) use carriers::Carriers;
pub(crate) use delivery::{Departing, deliver, deliver_or_leave, leave_delivery, left_to_thread};

use crate::complete;
use crate::devices;
use crate::fast_poll;
use crate::issue::{self, Answer};
use crate::lone_wait::LoneWaits;
use crate::op::{Operation, block_device};
use crate::request::{Hold, Request, RequestEntry, RequestId};
use crate::ring::{LockedRing, Ring};
use crate::timeout;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_device::estimate::RingEstimate;
use usring_device::{Channel, Completions, Device, Pause, QueueOptions, Submission, Wait};
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::kernel_aio::Waiter;
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, epoll};
use usring_uapi::general as linux;
use usring_uapi::io_uring as abi;

/// Requests that may be out on one channel: as many as the CQ has room for, or as
/// the ring was made for, within these.
const DEPTHS: core::ops::RangeInclusive<u32> = 128..=4096;

/// Signs of news that are looked for between two looks: a look takes as long as
/// several of them, and what it finds is found that much later.
const SPINS: u32 = 16;

/// CQEs of a batch that a waiter beside an SQ thread sees before the batch ends.
const SHOWN_TOGETHER: usize = 8;

/// Looks that find nothing, though a device says that there may be something.
const PATIENCE: u32 = 64;
/// After which they go on, in nanoseconds.
const LATER: Nanoseconds = 1_000_000;

/// The ring's channels.
#[derive(Default)]
pub(crate) struct DeviceQueues {
    channels: Vec<DeviceQueue>,
    completions: Completions,
    /// Requests that are out or wait for room, over all channels.
    in_flight: u32,
    /// Something was accepted since the devices were last told.
    untold: bool,
    /// Requests that were accepted and have to be delivered: see [`deliver`].
    owing: u32,
    /// A thread has been asked to do that.
    left: bool,
    /// A device can neither tell nor be waited for.
    looked_at_later: bool,
    forbids_waiter: bool,
    /// Of a ring with HYBRID_IOPOLL.
    hybrid: Option<Box<Hybrid>>,
    /// The channel to the kernel's own files, or why there is none, once one was
    /// asked for; an answer that may soon be another is not kept.
    kernel_files: Option<Result<ChannelIndex, Errno>>,
    pub lone_waits: LoneWaits,
}

/// IORING_SETUP_HYBRID_IOPOLL as the kernel has it: one estimate for the ring,
/// and one sleep for each request, before it is polled for the first time.
struct Hybrid {
    estimate: RingEstimate,
    /// Not polled for yet, in the order of submission.
    fresh: VecDeque<Fresh>,
}

struct Fresh {
    channel: u32,
    token: u32,
    id: RequestId,
    since: Ticks,
}

/// The sleep before a request's first poll.
pub(crate) struct Nap {
    pub span: Nanoseconds,
    since: Ticks,
}

struct DeviceQueue {
    device: Arc<Device>,
    channel: Channel,
    wait: Wait,
    /// By token.
    out: Vec<Option<RequestEntry>>,
    free: Vec<u32>,
    /// Did not fit.
    backlog: VecDeque<RequestEntry>,
    /// What comes now goes behind the backlog: there is some, or it is being delivered.
    is_behind: bool,
    /// To tell the device may sleep: it is done without the ring's lock.
    is_delivered_to: bool,
    /// `RWF_*` that its requests have beside their own.
    added_flags: u32,
    /// So many requests are to be delivered.
    owes: u32,
    /// Deliveries that are being made.
    away: u32,
    /// Its interrupt is in the ring's epoll set.
    watched: bool,
    /// The interrupt was armed, and neither has it fired nor has anything
    /// completed since.
    armed: bool,
}

impl DeviceQueue {
    /// Whether a failure may only say that the transfer would have to wait, that its file takes no
    /// RWF_NOWAIT, or that io_submit(2) is forbidden. Only a transfer that keeps its file can go to
    /// a worker: the program's own number may stand for another file by now.
    #[cold]
    fn needs_worker(&self, request: &Request, result: i32) -> bool {
        const WOULD_WAIT: i32 = Errno::EAGAIN.negative();
        const UNKNOWN_FLAG: i32 = Errno::EOPNOTSUPP.negative();
        // Also of a buffered write: O_DIRECT has been taken away since.
        const REFUSED_FLAG: i32 = Errno::EINVAL.negative();
        // A seccomp filter's answers for io_submit(2).
        const DENIED: [i32; 3] = [Errno::EPERM.negative(), Errno::ENOSYS.negative(), Errno::EACCES.negative()];
        let is_ours = matches!(&request.operation, Operation::ReadWrite(transfer) if !transfer.never_waits());
        let has_file = !matches!(request.file.hold, Hold::Submitter);
        let is_passing = matches!(result, WOULD_WAIT | UNKNOWN_FLAG | REFUSED_FLAG) || DENIED.contains(&result);
        self.added_flags != 0 && is_passing && is_ours && has_file
    }
}

/// Names a channel of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelIndex(u32);

impl DeviceQueues {
    /// Requests that no completion has come for yet.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The ring's channel to a device; opened by the first request that names it.
    #[inline]
    pub fn channel(&mut self, ring: &Ring, device: &Arc<Device>) -> Result<ChannelIndex, Errno> {
        match self.channels.iter().position(|queue| Arc::ptr_eq(&queue.device, device)) {
            Some(index) => Ok(ChannelIndex(index as u32)),
            None => self.open(ring, device),
        }
    }

    /// The ring's channel to all files of the kernel's.
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
    fn open(&mut self, ring: &Ring, device: &Arc<Device>) -> Result<ChannelIndex, Errno> {
        let is_of_kernel = Arc::ptr_eq(device, devices::kernel_files());
        let expected = ring.memory.layout().cq_entries.max(ring.expected_requests);
        let depth = expected.clamp(*DEPTHS.start(), *DEPTHS.end());
        let interrupts = !ring.is_polled() || device.waits_when_polled();
        let mut channel = device.open_channel(QueueOptions { depth, interrupts })?;
        if ring.defers_task_work() {
            // Its owner sleeps on the completions themselves, as long as it waits for nothing else.
            channel.silence();
        }
        if ring.has(abi::IORING_SETUP_HYBRID_IOPOLL) && !ring.is_polled_by_thread() && self.hybrid.is_none() {
            self.hybrid = Some(Box::new(Hybrid { estimate: RingEstimate::new(), fresh: VecDeque::new() }));
        }
        self.channels.push(DeviceQueue {
            device: device.clone(),
            wait: channel.begin_wait(),
            is_delivered_to: channel.is_delivered_to(),
            // As the kernel's ring does: what would wait within io_submit(2) is a worker's.
            added_flags: if is_of_kernel && !ring.has_events() { linux::RWF_NOWAIT } else { 0 },
            owes: 0,
            away: 0,
            channel,
            out: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            backlog: VecDeque::new(),
            is_behind: false,
            watched: false,
            armed: false,
        });
        Ok(ChannelIndex(self.channels.len() as u32 - 1))
    }

    /// Whether requests are out of which the interrupts do not tell.
    pub fn has_silent(&self) -> bool {
        self.channels.iter().any(|queue| queue.channel.has_silent())
    }

    /// How long a sleep on the interrupts may last.
    pub fn bound_sleep(&self, span: Option<Nanoseconds>) -> Option<Nanoseconds> {
        if self.has_silent() { Some(span.map_or(LATER, |span| span.min(LATER))) } else { span }
    }

    /// Has the attendant drive the ring once more, after [`LATER`].
    pub fn look_later(&mut self) {
        self.looked_at_later = true;
    }

    /// Sleeps on completions themselves are impossible: io_getevents(2) is forbidden.
    pub fn forbid_waiter(&mut self) {
        self.forbids_waiter = true;
    }

    /// When somebody has to come by who looks at the devices once more.
    pub fn next_look(&mut self) -> Option<Nanoseconds> {
        core::mem::take(&mut self.looked_at_later).then(|| Clock::Monotonic.now().saturating_add(LATER))
    }

    /// Takes a request out that no device has yet.
    pub fn extract_waiting(&mut self, mut matches: impl FnMut(&RequestEntry) -> bool) -> Option<RequestEntry> {
        for queue in &mut self.channels {
            if let Some(place) = queue.backlog.iter().position(&mut matches) {
                self.in_flight -= 1;
                return queue.backlog.remove(place);
            }
        }
        None
    }

    /// Whether a device with requests out has no interrupt: only a poll finds
    /// what it completes.
    fn cannot_tell(&self) -> bool {
        self.channels.iter().any(|queue| queue.channel.in_flight() > 0 && queue.channel.interrupt().is_none())
    }

    /// Whether requests have their own sleeps before they are polled for.
    #[inline(always)]
    pub fn has_naps(&self) -> bool {
        self.hybrid.is_some()
    }

    /// The next request that has not been polled for, on a ring with HYBRID_IOPOLL.
    pub fn next_nap(&mut self) -> Option<Nap> {
        let hybrid = self.hybrid.as_mut()?;
        while let Some(fresh) = hybrid.fresh.pop_front() {
            let out = &self.channels[fresh.channel as usize].out[fresh.token as usize];
            if out.as_ref().is_some_and(|request| request.id == fresh.id) {
                return Some(Nap { span: hybrid.estimate.sleep(), since: fresh.since });
            }
        }
        None
    }

    /// The poll after that sleep is over.
    pub fn end_nap(&mut self, nap: &Nap) {
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.estimate.record(Ticks::now().since(nap.since), nap.span);
        }
    }

    /// A wait on all channels begins, also on those that are not busy yet.
    fn begin_wait(&mut self) {
        for queue in &mut self.channels {
            queue.wait = queue.channel.begin_wait();
        }
    }

    /// What to do after a look that found too little: the least of what the
    /// busy channels say. `begins`: it is the first such look of its wait.
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
            // Its sleeps are those of each request.
            Some(Pause::Sleep(_)) if self.hybrid.is_some() => Pause::Spin,
            pause => pause.unwrap_or(Pause::Spin),
        }
    }

    /// Spins until one of the devices may have completed something, a short
    /// while at most. Whether one may have.
    #[inline]
    pub fn spin(&mut self) -> bool {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            let busy = self.channels.iter_mut().filter(|queue| queue.channel.in_flight() > 0);
            if busy.map(|queue| &mut queue.channel).any(Channel::has_news) {
                return true;
            }
        }
        false
    }

    /// How to sleep for completions of the kernel's files, and how many of them are to come,
    /// if no other device has anything to do. `None` while a submit helper may hand one of
    /// them to a worker, of which that sleep would not learn.
    pub fn waiter(&self) -> Option<(Waiter, u32)> {
        if self.forbids_waiter {
            return None;
        }
        if self.channels.iter().any(|queue| queue.owes != 0 || queue.away != 0 || queue.is_behind) {
            return None;
        }
        let mut busy = self.channels.iter().map(|queue| &queue.channel).filter(|channel| channel.in_flight() > 0);
        let (only, None) = (busy.next()?, busy.next()) else { return None };
        let count = (self.in_flight == only.in_flight()).then_some(self.in_flight)?;
        Some((only.waiter()?, count))
    }

    /// Tells the devices of what was accepted, once per batch; but for what is
    /// [owed](Self::owes_delivery).
    #[inline]
    pub fn ring_doorbells(&mut self) {
        if self.untold {
            self.untold = false;
            let queues = self.channels.iter_mut().filter(|queue| !queue.is_delivered_to);
            queues.for_each(|queue| queue.channel.ring_doorbell());
        }
    }

    /// Whether something was accepted that whoever gives up the ring's lock has to
    /// [deliver].
    #[inline(always)]
    pub fn owes_delivery(&self) -> bool {
        self.owing != 0 && !self.left
    }

    /// Whether some of what is owed has waited for room: whoever finds the room is
    /// hardly ever who has submitted it.
    pub fn owes_backlog(&self) -> bool {
        self.owing != 0 && self.channels.iter().any(|queue| queue.is_behind && queue.owes != 0)
    }
}

/// Whether who asks again may get another answer.
fn is_passing(error: Errno) -> bool {
    matches!(error, Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::EINTR)
}

/// Hands a transfer to its device.
#[inline(always)]
pub(crate) fn submit(locked: &mut LockedRing, mut request: RequestEntry, index: ChannelIndex) {
    if request.link.is_some() {
        timeout::arm_link_timeout(locked, &mut request);
    }
    let queues = &mut locked.devices;
    let queue = &mut queues.channels[index.0 as usize];
    if queue.is_behind {
        return not_accepted(locked, request, index, Submission::Full);
    }
    let Some(token) = queue.free.pop() else { return not_accepted(locked, request, index, Submission::Full) };
    let submission = match &request.operation {
        Operation::ReadWrite(transfer) => {
            let (registered, number) = (request.fixed_buffer.is_any(), request.file.number);
            queue.channel.submit(&transfer.as_device_request(token, registered, number, queue.added_flags))
        }
        _ => Submission::Refused(Errno::EINVAL),
    };
    if submission == Submission::Accepted {
        if let Some(hybrid) = &mut queues.hybrid {
            hybrid.fresh.push_back(Fresh { channel: index.0, token, id: request.id, since: Ticks::now() });
        }
        queue.out[token as usize] = Some(request);
        queues.in_flight += 1;
        if !queue.is_delivered_to {
            queues.untold = true;
            return;
        }
        // Its own thread sees to it, and to what was left to another.
        queues.left = false;
        queues.owing += 1;
        queue.owes += 1;
        return;
    }
    queue.free.push(token);
    not_accepted(locked, request, index, submission);
}

#[cold]
fn not_accepted(locked: &mut LockedRing, mut request: RequestEntry, index: ChannelIndex, submission: Submission) {
    match submission {
        Submission::Refused(error) => complete::complete(locked, request, error.negative().into()),
        Submission::NeedsWorker => issue::hand_to_worker(locked, request),
        Submission::Full | Submission::Accepted => {
            // It may find out later that it needs a worker, and the program may
            // close its file meanwhile.
            block_device::note(locked, &mut request);
            if request.file.device.is_none()
                && let Err(error) = locked.named.keep(&mut request.file)
            {
                return complete::complete(locked, request, error.negative().into());
            }
            locked.devices.in_flight += 1;
            let queue = &mut locked.devices.channels[index.0 as usize];
            queue.backlog.push_back(request);
            queue.is_behind = true;
        }
    }
}

/// Completes what the devices have done, and says whether that is anything.
/// Never blocks.
#[inline(always)]
pub(crate) fn reap(locked: &mut LockedRing) -> bool {
    if locked.devices.in_flight == 0 {
        return false;
    }
    let mut any = false;
    for index in 0..locked.devices.channels.len() {
        any |= reap_one(locked, index);
    }
    locked.devices.ring_doorbells();
    any
}

#[inline(always)]
fn reap_one(locked: &mut LockedRing, index: usize) -> bool {
    let DeviceQueues { channels, completions, .. } = &mut locked.devices;
    completions.clear();
    channels[index].channel.poll(completions);
    !completions.as_slice().is_empty() && complete_found(locked, index)
}

/// Completes what a look has found, and what further looks find if there may be more.
#[inline(never)]
fn complete_found(locked: &mut LockedRing, index: usize) -> bool {
    let mut completions = core::mem::take(&mut locked.devices.completions);
    loop {
        for (number, completion) in completions.as_slice().iter().enumerate() {
            let queue = &mut locked.devices.channels[index];
            let Some(request) = queue.out[completion.token as usize].take() else { continue };
            queue.free.push(completion.token);
            locked.devices.in_flight -= 1;
            if completion.result < 0 && locked.devices.channels[index].needs_worker(&request, completion.result) {
                if completion.result == Errno::EOPNOTSUPP.negative() {
                    block_device::note_without_nowait(locked, &request);
                }
                issue::hand_to_worker(locked, request);
                continue;
            }
            locked.statistics.count_polled(request.sqe.opcode);
            let failed = crate::op::is_failure(&request, completion.result);
            complete::complete(locked, request, Answer { result: completion.result, failed });
            if number % SHOWN_TOGETHER == SHOWN_TOGETHER - 1 && locked.ring.is_polled_by_thread() {
                publish_early(locked);
            }
        }
        let has_had_room = completions.has_room();
        completions.clear();
        let queue = &mut locked.devices.channels[index];
        queue.armed = false;
        // Not past what is being delivered.
        if queue.is_behind && queue.away == 0 {
            submit_backlog(locked, index);
        }
        if has_had_room {
            break;
        }
        locked.devices.channels[index].channel.poll(&mut completions);
    }
    locked.devices.completions = completions;
    true
}

/// Shows the CQEs posted so far to a waiter that looks at the CQ in memory, and wakes
/// one that sleeps: it comes back while the rest of the batch is posted.
fn publish_early(locked: &mut LockedRing) {
    locked.cq.publish_early();
    // Without a barrier: a sleeper that is overlooked here is woken at the batch's end.
    locked.ring.wakers.wake_all(locked.ring.memory.ready());
}

/// Room has come, or its last delivery is back: what waited goes first, and nothing
/// that comes later is delivered beside it.
#[cold]
fn submit_backlog(locked: &mut LockedRing, index: usize) {
    let queue = &mut locked.devices.channels[index];
    queue.is_behind = false;
    let waiting = core::mem::take(&mut queue.backlog);
    locked.devices.in_flight -= waiting.len() as u32;
    for request in waiting {
        submit(locked, request, ChannelIndex(index as u32));
    }
    let queue = &mut locked.devices.channels[index];
    queue.is_behind |= queue.owes != 0;
}

/// Has the devices tell the ring's epoll set of what they complete, on a ring
/// that sleeps for it. `false` if something may have completed already, or the
/// device cannot tell: the caller looks again first.
pub(crate) fn arm_interrupts(locked: &mut LockedRing) -> bool {
    let mut all = true;
    for index in 0..locked.devices.channels.len() {
        let queue = &locked.devices.channels[index];
        if queue.channel.in_flight() > 0 && !queue.armed {
            all &= arm_one(locked, index).is_ok_and(|armed| armed);
        }
    }
    all
}

fn arm_one(locked: &mut LockedRing, index: usize) -> Result<bool, Errno> {
    let interrupt = locked.devices.channels[index].channel.interrupt().ok_or(Errno::EOPNOTSUPP)?;
    if !locked.devices.channels[index].watched {
        fast_poll::ensure_set(locked)?;
        let set = locked.polls.set().ok_or(Errno::ENOMEM)?;
        set.add(interrupt, epoll::IN | epoll::EDGE, fast_poll::DEVICE_DATA)?;
        locked.devices.channels[index].watched = true;
    }
    let queue = &mut locked.devices.channels[index];
    queue.armed = queue.channel.arm_interrupt();
    Ok(queue.armed)
}

/// A device has told the epoll set: which one, is not asked.
pub(crate) fn interrupted(locked: &mut LockedRing) {
    locked.devices.channels.iter_mut().for_each(|queue| queue.armed = false);
    reap(locked);
}

/// The driver of a ring that is not polled leaves: completes what is done, and
/// lets the devices tell of the rest. A device that cannot tell and has nothing
/// done (the kernel had no room for a request) is looked at again by a timer.
pub(crate) fn settle(locked: &mut LockedRing) {
    let mut fruitless = 0;
    while locked.devices.in_flight() > 0 && !arm_interrupts(locked) {
        let found = reap(locked);
        locked.finish_batch();
        fruitless = if found { 0 } else { fruitless + 1 };
        if fruitless == PATIENCE {
            locked.devices.looked_at_later = true;
            return;
        }
        if !found && locked.devices.cannot_tell() {
            return;
        }
    }
}

impl Ring {
    /// Whether completions are found by polling the devices.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.has(abi::IORING_SETUP_IOPOLL)
    }

    /// Whether the SQ thread does that, and nobody else.
    #[inline]
    pub(crate) fn is_polled_by_thread(&self) -> bool {
        const BOTH: u32 = abi::IORING_SETUP_IOPOLL | abi::IORING_SETUP_SQPOLL;
        self.flags & BOTH == BOTH
    }
}
