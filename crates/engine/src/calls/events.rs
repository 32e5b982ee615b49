//! The ring of an AIO context: its completions are the context's events. It has no descriptor, and
//! its SQ is never used. The AIO context hands requests over one by one ([`Submission`]). If an SQE
//! is refused, the caller gets the error at once instead of a completion.
//!
//! - Events appear in the program's memory (`usring_ring`'s `events`) whichever thread completes a
//!   request: the submitter, the ring watcher, a worker or a waiter. The program need not ask for
//!   them.
//! - The drain counts the requests under way, under the ring's lock ([`Submission::has_room`]).
//!   Together with the events that the program has not taken they never exceed the slots. So no
//!   event needs the backlog, unless the program overwrites the head. A polled ring has no such
//!   bound, because its events only come when the program asks for them.
//! - The end of such a ring has two steps. [`Ring::retire`] forbids further submits and waits under
//!   the lock, wakes the waiters, and returns when nothing is under way. Then the ring is closed
//!   like any other.

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

/// Longest sleep, in nanoseconds, of a thread that retires a ring before it looks again.
const BETWEEN_LOOKS: Nanoseconds = 1_000_000;

/// How a ring's events come from the devices to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Devices signal their completions.
    Signalled,
    /// Callers that ask for events poll the devices, unless a request under way names an eventfd.
    Preferred,
    /// Callers have to ask for events, and poll the devices (IOPOLL). A device that does not poll
    /// is refused. The program sees that it must not read the events in memory.
    Required,
}

/// The ways in which requests may use a file of the program.
#[derive(Clone, Copy, Debug)]
pub struct FileUses {
    pub may_read: bool,
    pub may_write: bool,
    /// The file was opened as a directory.
    pub is_directory: bool,
    /// Whether direct transfers can be polled for; otherwise the error.
    pub polls: Result<(), Errno>,
    /// The file is open with O_NONBLOCK. This has no effect on a device.
    pub never_waits: bool,
}

impl Ring {
    /// Makes a ring for `requests` concurrent requests. `id` is the ring's number for its owner. By
    /// `trust` the caller vouches for every address that its requests will name.
    ///
    /// Errors: `EINVAL` for too many; `ENOMEM`; those of a thread that cannot be started.
    pub fn with_events(trust: AddressTrust, requests: u32, id: u32, attention: Attention) -> Result<Arc<Ring>, Errno> {
        let _ = trust;
        memory_reserve::check()?;
        let layout = Layout::for_events(requests, processor::count())?;
        // The program does not read events in this memory, so they wait in the backlog.
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

    /// Returns whether the program sees the events at an address. `false` if there is no /proc.
    #[cold]
    pub fn shows_events_at(&self, maps: &Maps, address: u64) -> bool {
        let Some(mapping) = self.memory.events().mapping() else { return false };
        maps.are_same(mapping.address(), address as usize)
    }

    /// Copies up to `most` events to the program and removes them from the ring. For one caller at
    /// a time; takes no lock of the ring's.
    #[inline]
    pub fn take_events(&self, to: UserAddress, most: u32) -> Result<u32, Errno> {
        self.memory.take_events(to, most)
    }

    /// Becomes the driver of the ring, to hand requests to it.
    ///
    /// Errors: `EINVAL` if the ring has been retired; `EAGAIN` if memory is low.
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
        // A mask is in force only during a sleep, so a caller with a mask does not poll.
        if self.waiters_poll && mask.is_none() {
            return iopoll::poll_and_wait(self, &call);
        }
        wait::wait(self, &call)
    }

    /// Polls the devices for the events of a polled ring. Returns at once if there is an event,
    /// otherwise when there are `wanted` events or no request is under way.
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

    /// Refuses further requests and waits. Returns when no request is under way and the ring is
    /// closed. Requests that wait for a file to be ready are ended, because it may never be;
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
                // No thread of the program sleeps here, so no signal ends the sleep.
                let _ = self.wakers.sleep.sleep(&ticket, Some(BETWEEN_LOOKS));
            }
            let _ = self.wakers.sleep.retract(ticket);
        }
        self.close();
    }

    /// Runs all work that is due, and returns whether no request is under way.
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
    /// `Some` until the submission is dropped.
    locked: Option<LockedRing<'a>>,
}

impl<'a> Submission<'a> {
    #[inline(always)]
    fn locked(&mut self) -> &mut LockedRing<'a> {
        self.locked.as_mut().expect("a submission holds its ring")
    }

    /// Returns whether there is a free slot for the event of one more request.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let locked = self.locked();
        locked.ring.is_polled() || u64::from(locked.queues.cq.room()) > locked.queues.drain.outstanding()
    }

    /// Returns what requests may do with the program's file of this number. Error: `EBADF` if no
    /// file has the number.
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
            // __O_TMPFILE names a directory, but opens a file in it.
            is_directory: flags & (linux::__O_TMPFILE | linux::O_DIRECTORY) == linux::O_DIRECTORY,
            polls,
            never_waits: flags & linux::O_NONBLOCK != 0,
        })
    }

    /// Hands a request over. `user_data` is the address of its iocb, `pad2` the data for its event,
    /// and `event` its own eventfd.
    ///
    /// Errors: those of its prepare; the request then does not exist.
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
    /// Makes the deferred submits of the batch's requests so far, before the batch continues.
    ///
    /// Errors: those for which one more request is refused now, because other threads have driven
    /// the ring meanwhile.
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
    /// Ends the batch: publishes its completions, and has its other requests watched.
    fn drop(&mut self) {
        if let Some(mut locked) = self.locked.take() {
            batch::run_issuable(&mut locked);
            locked.devices.named.end_submission();
            if credentials::differ() {
                locked.waiting.rights.end_submission();
            }
            let ring = locked.ring;
            // Threads that sleep on this ring have to poll now. If submits were deferred, those
            // have woken them.
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

/// Returns whether a call on this file may wait without a limit.
fn can_wait(number: i32) -> bool {
    descriptor::identity(number).is_ok_and(|file| file.can_wait())
}
