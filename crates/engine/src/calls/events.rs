//! A ring whose completions are an AIO context's events. It has no descriptor, and its SQ is never
//! used. The AIO context hands requests over one by one ([`Submission`]). If an SQE is refused, the
//! caller gets the error at once instead of a completion.
//!
//! - Events appear in the program's memory (`usring_ring`'s `events`) in whatever way the engine
//!   completes a request: in the submitting call, the ring watcher, a worker or a waiter. The
//!   program need not ask for them.
//! - The number of requests under way is what the drain counts under the ring's lock
//!   ([`Submission::has_room`]). Together with the events that the program has not taken they never
//!   exceed the slots. So no event needs the backlog, unless the program overwrites the head. A
//!   polled ring, whose events only come by asking, has no such bound.
//! - The end of such a ring has two steps. [`Ring::retire`] forbids further submits and waits under
//!   the lock, wakes the waiters, and returns when nothing is under way. Then the ring is closed as
//!   any other.

use crate::completion::complete;
use crate::completion::event_descriptor::EventDescriptor;
use crate::driving::wait::{self, WaitCall};
use crate::driving::{batch, deferred_submit, iopoll, ring_watcher, task_work};
use crate::op::block_device;
use crate::ring::{Exit, LockedRing, Ring};
use crate::submission::{opcode_table, start};
use crate::waiting::workers;
use crate::{devices, host};
use alloc::sync::Arc;
use usring_ring::{Layout, Memory};
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::process_maps::Maps;
use usring_sys::sleep::Sleeper;
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress, credentials, descriptor, memory_reserve, per_process, processor, unusual};
use usring_uapi::io_uring::IORING_SETUP_IOPOLL;
use usring_uapi::{Sqe, general as linux, opcode};

/// Longest sleep of a retiring ring before it looks again.
const BETWEEN_LOOKS: Nanoseconds = 1_000_000;

/// The way by which events come from the devices to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// By themselves: a device signals its completions.
    Signalled,
    /// Callers that ask for events poll the devices, unless an eventfd waits for an event.
    Preferred,
    /// Only by asking for them (IOPOLL). A device that does not poll is refused, and the program is
    /// instructed not to read the ring by itself.
    Required,
}

/// The uses of a file of the program that requests may make.
#[derive(Clone, Copy, Debug)]
pub struct FileUses {
    pub may_read: bool,
    pub may_write: bool,
    /// The file was opened as a directory.
    pub is_directory: bool,
    /// Direct transfers can be polled for; otherwise the error.
    pub polls: Result<(), Errno>,
    /// Open with O_NONBLOCK, which has no effect on a device.
    pub never_waits: bool,
}

impl Ring {
    /// Makes a ring for `requests` concurrent requests. Its owner knows it by `id`. By `trust` the
    /// caller vouches for every address that its requests will name.
    ///
    /// Errors: `EINVAL` for too many; `ENOMEM`; those of a thread that cannot be started.
    pub fn with_events(trust: AddressTrust, requests: u32, id: u32, attention: Attention) -> Result<Arc<Ring>, Errno> {
        let _ = trust;
        memory_reserve::check()?;
        let layout = Layout::for_events(requests, processor::count())?;
        // The program does not read events there, and the rest waits in the backlog.
        let layout = if attention == Attention::Required { Layout::for_events(1, 1)? } else { layout };
        per_process::prepare()?;
        let memory = Memory::for_events(layout, id, attention == Attention::Signalled)?;
        ring_watcher::start()?;
        let flags = if attention == Attention::Required { IORING_SETUP_IOPOLL } else { 0 };
        let mut ring = super::setup::new_ring(flags, memory);
        ring.waiters_poll = attention == Attention::Preferred;
        ring.expected_requests = requests;
        Ok(Arc::new(ring))
    }

    /// Returns the bytes of the events' mapping, and the most events in it.
    pub fn events_size(&self) -> (usize, u32) {
        let layout = self.memory.layout();
        (layout.events_length(), layout.cq_entries)
    }

    /// Maps the events once more, for the program.
    pub fn map_events(&self) -> Result<usize, Errno> {
        let events = self.memory.events();
        events.duplicate(events.length())
    }

    /// Whether an address of the program's shows the events. `false` where there is no /proc.
    #[cold]
    pub fn shows_events_at(&self, maps: &Maps, address: u64) -> bool {
        let Some(mapping) = self.memory.events().mapping() else { return false };
        maps.are_same(mapping.address(), address as usize)
    }

    /// Copies up to `most` events to the program and takes them out. For one caller at a time;
    /// needs no lock of the ring's.
    #[inline]
    pub fn take_events(&self, to: UserAddress, most: u32) -> Result<u32, Errno> {
        self.memory.take_events(to, most)
    }

    /// Becomes the driver of the ring, to hand requests to it.
    ///
    /// Errors: `EINVAL` if it has been retired; `EAGAIN` where memory is low.
    pub fn begin_submission(self: &Arc<Self>) -> Result<Submission<'_>, Errno> {
        self.check_process()?;
        let mut locked = self.lock();
        if locked.retired {
            return Err(Errno::EINVAL);
        }
        task_work::run(&mut locked);
        if unusual::any() {
            if memory_reserve::check().is_err() {
                locked.release(Exit::Leave);
                return Err(Errno::EAGAIN);
            }
            if credentials::differ() {
                {
                    let outstanding = locked.queues.drain.outstanding();
                    locked.waiting.rights.begin_submission(outstanding)
                };
            }
        }
        locked.devices.named.begin_submission();
        Ok(Submission { locked: Some(locked) })
    }

    /// Waits until there are `wanted` events, at most until `deadline`, by the monotonic clock.
    ///
    /// Errors, if no event is there: `ETIME`; `EINTR`; `EINVAL` if the ring is retired.
    pub fn await_events(
        self: &Arc<Self>,
        wanted: u32,
        deadline: Option<Nanoseconds>,
        mask: Option<u64>,
    ) -> Result<(), Errno> {
        self.check_process()?;
        let deadline = deadline.map(|at| (Clock::Monotonic, at));
        let call = WaitCall { completions: wanted, deadline, mask, ..Default::default() };
        // A mask is only in force during a sleep, so with a mask the caller does not poll.
        if self.waiters_poll && mask.is_none() {
            return iopoll::poll_and_wait(self, &call);
        }
        wait::wait(self, &call)
    }

    /// Polls the devices for the events of a polled ring. Returns at once if there is one, else
    /// when there are `wanted` or none is to come.
    ///
    /// Error: `EINTR` for a signal, if there is no event.
    pub fn poll_events(self: &Arc<Self>, wanted: u32) -> Result<(), Errno> {
        self.check_process()?;
        iopoll::poll(self.lock(), wanted)
    }

    /// Ends the wait of a POLL_ADD, which completes with 0. Returns `false` if no such request
    /// waits for its file.
    pub fn end_poll(self: &Arc<Self>, user_data: u64) -> bool {
        let mut locked = self.lock();
        let found = locked
            .waiting
            .polls
            .extract(|request| request.sqe.opcode == opcode::POLL_ADD && request.sqe.user_data == user_data);
        let any = found.is_some();
        if let Some(request) = found {
            complete::complete(&mut locked, request, 0.into());
        }
        locked.release(Exit::Leave);
        any
    }

    /// Refuses further requests and waits; returns when nothing is under way and the ring is
    /// closed. Requests that wait for a file's readiness are ended, because it may never come;
    /// transfers are completed. In a forked child nothing happens: the ring is the parent's.
    pub fn retire(self: &Arc<Self>) {
        if self.is_inherited() {
            return;
        }
        let mut locked = self.lock();
        locked.retired = true;
        while let Some(request) = locked.waiting.polls.extract(|_| true) {
            complete::complete(&mut locked, request, 0.into());
        }
        workers::interrupt(self, |view| view.number.is_some_and(can_wait));
        locked.release(Exit::Leave);
        self.wakers.wake_all(u32::MAX);
        while !self.is_idle() {
            let ticket = self.wakers.sleep.announce(Sleeper::Futex, 0);
            if !self.is_idle() {
                // This is not a sleep of the program's thread: no signal ends it.
                let _ = self.wakers.sleep.sleep(&ticket, Some(BETWEEN_LOOKS));
            }
            let _ = self.wakers.sleep.retract(ticket);
        }
        self.close();
    }

    /// Returns whether no request is under way, after running everything that is due.
    fn is_idle(self: &Arc<Self>) -> bool {
        let mut locked = self.lock();
        task_work::run_all(&mut locked);
        let idle = locked.queues.drain.outstanding() == 0;
        locked.release(Exit::Leave);
        idle
    }
}

/// A submission under way: its holder drives the ring until the submission is dropped.
pub struct Submission<'a> {
    /// Always `Some` before the drop.
    locked: Option<LockedRing<'a>>,
}

impl<'a> Submission<'a> {
    #[inline(always)]
    fn locked(&mut self) -> &mut LockedRing<'a> {
        self.locked.as_mut().expect("a submission holds its ring")
    }

    /// Returns whether one more request would have a slot for its event.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let locked = self.locked();
        locked.ring.is_polled() || u64::from(locked.queues.cq.room()) > locked.queues.drain.outstanding()
    }

    /// Returns the uses that requests may make of the program's file with this number. Error:
    /// `EBADF` if there is none.
    #[inline]
    pub fn file(&mut self, number: i32) -> Result<FileUses, Errno> {
        let locked = self.locked();
        if devices::are_any()
            && let Some(file) = locked.devices.named.device(number, host::device_of)
        {
            let mode = file.mode();
            let polls = if mode.is_direct() { file.device().check_polled() } else { Err(Errno::EOPNOTSUPP) };
            return Ok(FileUses {
                may_read: mode.may_read(),
                may_write: mode.may_write(),
                is_directory: false,
                polls,
                never_waits: false,
            });
        }
        let flags = locked.devices.named.status_flags(number)?;
        if flags & linux::O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        let mode = flags & linux::O_ACCMODE;
        let polls = match locked.ring.is_polled() {
            true => block_device::channel_to_kernel_file(locked, number, false).map(drop),
            // Without IOPOLL the answer is not used.
            false => Err(Errno::EOPNOTSUPP),
        };
        Ok(FileUses {
            may_read: mode != linux::O_WRONLY,
            may_write: mode != linux::O_RDONLY,
            // A file without a name is opened by that of its directory.
            is_directory: flags & (linux::__O_TMPFILE | linux::O_DIRECTORY) == linux::O_DIRECTORY,
            polls,
            never_waits: flags & linux::O_NONBLOCK != 0,
        })
    }

    /// Hands over a request: `user_data` is its iocb, `pad2` the value for its event, and
    /// `event` its own eventfd.
    ///
    /// Errors: those of its prepare; there is then no such request.
    #[inline]
    pub fn add(&mut self, sqe: &Sqe, event: Option<Arc<EventDescriptor>>) -> Result<(), Errno> {
        let locked = self.locked();
        let mut request = locked.queues.pool.take().ok_or(Errno::EAGAIN)?;
        request.sqe = *sqe;
        let row = opcode_table::row(request.sqe.opcode);
        request.begin(&row.properties);
        let mut prepared = start::prepare(locked, &mut request, row);
        if prepared.is_ok()
            && locked.devices.queues.has_pending_submits()
            && !block_device::joins_deferred_submit(locked, &request)
        {
            prepared = self.flush();
        }
        let locked = self.locked();
        if let Err(error) = prepared {
            locked.queues.pool.give_back(request);
            return Err(error);
        }
        locked.waiting.rights.mark(&mut request);
        locked.queues.statistics.count_submitted(sqe.opcode);
        locked.notify.request_events.begin(&event);
        request.event = event;
        locked.queues.drain.admit();
        start::start(locked, request, row);
        Ok(())
    }
}

impl<'a> Submission<'a> {
    /// Makes the batch's deferred submits so far, before the batch goes on.
    ///
    /// Errors: those for which one more request is refused now: other threads have had the ring
    /// meanwhile.
    #[cold]
    fn flush(&mut self) -> Result<(), Errno> {
        self.locked().finish_batch();
        self.locked = self.locked.take().map(deferred_submit::flush);
        let locked = self.locked();
        // Another thread may have closed a number meanwhile.
        locked.devices.named.forget();
        if locked.retired {
            return Err(Errno::EINVAL);
        }
        if self.has_room() { Ok(()) } else { Err(Errno::EAGAIN) }
    }
}

impl Drop for Submission<'_> {
    /// Ends the batch: publishes what has completed, and has the rest watched.
    fn drop(&mut self) {
        if let Some(mut locked) = self.locked.take() {
            batch::run_issuable(&mut locked);
            locked.devices.named.end_submission();
            if credentials::differ() {
                locked.waiting.rights.end_submission();
            }
            let ring = locked.ring;
            // Threads that sleep on this ring have to poll now; with deferred submits they have
            // been woken before.
            let looked_for = ring.waiters_poll
                && locked.devices.queues.in_flight() > 0
                && !locked.devices.queues.has_pending_submits();
            locked.release(Exit::Leave);
            if looked_for {
                ring.wakers.wake_all(u32::MAX);
            }
        }
    }
}

/// Returns whether a call on this file may wait for ever.
fn can_wait(number: i32) -> bool {
    descriptor::identity(number).is_ok_and(|file| file.can_wait())
}
