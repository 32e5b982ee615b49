//! The ring of an AIO context, whose completions become the context's events. The ring has no
//! descriptor, and its SQ is not used. The context submits requests one at a time ([`Submission`]).
//! If a request's SQE is refused, the caller gets the error, and no event follows.
//!
//! - The thread that completes a request writes the request's event into the program's memory
//!   (`usring_ring`'s `events`). That thread is the submitter, the ring watcher, a worker or a
//!   waiter. The program need not ask for events.
//! - The events' memory has a fixed number of slots. The events that the program has not taken, and
//!   the requests that have not completed, are together never more than these slots.
//!   [`Submission::has_room`] checks this under the ring's lock. So no event goes to the backlog,
//!   unless the program stores a wrong head. With IOPOLL the number of requests has no such bound,
//!   because events appear only when the program asks for them.
//! - A context ends in two steps. First, [`Ring::retire`] makes later submits and waits fail, wakes
//!   the waiters, and waits until all requests have completed. Then it closes the ring like any
//!   other ring.

use crate::completion::complete;
use crate::completion::event_descriptor::EventDescriptor;
use crate::driving::wait::{self, WaitCall};
use crate::driving::{batch, deferred_submit, iopoll, ring_watcher, task_work};
use crate::op::block_device;
use crate::ring::{Exit, LockedRing, Ring};
use crate::submission::{faults, observation, opcode_table, recording, start};
use crate::waiting::workers;
use crate::{devices, host};
use alloc::sync::Arc;
use usring_ring::{Layout, Memory};
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::process_maps::Maps;
use usring_sys::sleep::Sleeper;
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress, credentials, descriptor, memory_reserve, per_process, processor, unusual, width};
use usring_uapi::io_uring::IORING_SETUP_IOPOLL;
use usring_uapi::{Sqe, general as linux, opcode};

/// Longest sleep, in nanoseconds, of a thread that retires a ring. After this sleep, the thread
/// checks again whether requests are left.
const CHECK_INTERVAL_NS: Nanoseconds = 1_000_000;

/// How an AIO context finds out that devices have completed requests. libaio reads events directly
/// from the mapped ring if the ring has AIO_RING_MAGIC, and calls io_getevents(2) otherwise. Only
/// with `Signalled` does the ring have AIO_RING_MAGIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionMode {
    /// Completion interrupts: the devices signal each completion.
    Signalled,
    /// Threads that wait for events poll the devices. If a request in flight names an eventfd, the
    /// devices signal instead.
    Preferred,
    /// Threads must ask for events, and poll the devices (IOPOLL). Devices that cannot be polled
    /// are refused.
    Required,
}

/// The operations that requests of an AIO context may make on one of the program's files.
#[derive(Clone, Copy, Debug)]
pub struct FileUses {
    pub may_read: bool,
    pub may_write: bool,
    /// The file was opened as a directory.
    pub is_directory: bool,
    /// `Ok` if usring can poll for the completions of direct (O_DIRECT) transfers on the file.
    /// Otherwise the errno with which such a transfer fails.
    pub polls: Result<(), Errno>,
    /// The file is open with O_NONBLOCK. Always `false` for a device of usring's.
    pub never_waits: bool,
}

impl Ring {
    /// Makes the ring of an AIO context for `requests` concurrent requests. `id` is the context's
    /// number. By `trust`, the caller promises that usring may access every address that the ring's
    /// requests will name.
    ///
    /// Errors: `EINVAL` for too many requests; `ENOMEM`; the errors of starting a thread.
    pub fn with_events(
        trust: AddressTrust,
        requests: u32,
        id: u32,
        completion_mode: CompletionMode,
    ) -> Result<Arc<Ring>, Errno> {
        let _ = trust;
        memory_reserve::check()?;
        let layout = Layout::for_events(requests, processor::count())?;
        // With IOPOLL, the program reads no events in this memory, so the memory gets the smallest
        // layout. Events stay in the backlog until the program asks for them.
        let layout = if completion_mode == CompletionMode::Required { Layout::for_events(1, 1)? } else { layout };
        per_process::prepare()?;
        let memory = Memory::for_events(layout, id, completion_mode == CompletionMode::Signalled)?;
        ring_watcher::start()?;
        let flags = if completion_mode == CompletionMode::Required { IORING_SETUP_IOPOLL } else { 0 };
        let mut ring = super::setup::new_ring(flags, memory);
        ring.waiters_poll = completion_mode == CompletionMode::Preferred;
        ring.expected_requests = requests;
        Ok(Arc::new(ring))
    }

    /// Returns the length of the events' memory in bytes, and the number of events that fit in it.
    pub fn events_size(&self) -> (usize, u32) {
        let layout = self.memory.layout();
        (layout.events_length(), layout.cq_entries)
    }

    /// Maps the events' memory once more, for the program. Returns the address.
    pub fn map_events(&self) -> Result<usize, Errno> {
        let events = self.memory.events();
        events.duplicate(events.length(), 0)
    }

    /// Returns whether the mapping at `address` shows the memory of the ring's events. Returns
    /// `false` if /proc is not mounted.
    #[cold]
    pub fn shows_events_at(&self, maps: &Maps, address: u64) -> bool {
        let Some(mapping) = self.memory.events().mapping() else { return false };
        maps.are_same(mapping.address(), width::size(address))
    }

    /// Copies up to `most` events to the program and removes them from the ring. Only one thread
    /// may call this at a time. Acquires no lock of the ring.
    #[inline]
    pub fn take_events(&self, to: UserAddress, most: u32) -> Result<u32, Errno> {
        self.memory.take_events(to, most)
    }

    /// Begins a submission: the calling thread becomes the ring's driver.
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
            if credentials::may_differ() {
                let outstanding = locked.queues.drain.outstanding();
                locked.waiting.rights.begin_submission(outstanding);
            }
        }
        locked.devices.named.begin_submission();
        Ok(Submission { locked: Some(locked), recorded_batch: recording::begin_batch() })
    }

    /// Waits until there are `wanted` events, or until `deadline` on the monotonic clock.
    ///
    /// Errors, only if there is no event: `ETIME`; `EINTR`; `EINVAL` if the ring has been retired.
    pub fn await_events(
        self: &Arc<Self>,
        wanted: u32,
        deadline: Option<Nanoseconds>,
        mask: Option<u64>,
    ) -> Result<(), Errno> {
        self.check_process()?;
        let deadline = deadline.map(|at| (Clock::Monotonic, at));
        let call = WaitCall { completions: wanted, deadline, mask, ..Default::default() };
        // The signal mask applies only while the thread sleeps. So a caller with a mask sleeps and
        // does not poll.
        if self.waiters_poll && mask.is_none() {
            return iopoll::poll_and_wait(self, &call);
        }
        wait::wait(self, &call)
    }

    /// Polls the devices for the events of a ring with IOPOLL. Returns at once if there is an
    /// event. Otherwise returns when there are `wanted` events or no request is in flight.
    ///
    /// Error: `EINTR` for a signal, if there is no event.
    pub fn poll_events(self: &Arc<Self>, wanted: u32) -> Result<(), Errno> {
        self.check_process()?;
        iopoll::poll(self.lock(), wanted)
    }

    /// Completes the POLL_ADD that has this `user_data`, with the result 0. Returns `false` if no
    /// such request waits for its file.
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

    /// Ends the ring: refuses further submissions and waits, lets all requests complete, and closes
    /// the ring. Requests that wait for a file complete at once, because the file may never be
    /// ready. Transfers run to their end. Does nothing in a forked child, because the ring is the
    /// parent's.
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
                // A signal may end this sleep early. The loop then checks again.
                let _ = self.wakers.sleep.sleep(&ticket, Some(CHECK_INTERVAL_NS));
            }
            let _ = self.wakers.sleep.retract(ticket);
        }
        self.close();
    }

    /// Runs all work that is due. Returns whether all requests have completed.
    fn is_idle(self: &Arc<Self>) -> bool {
        let mut locked = self.lock();
        task_work::run_all(&mut locked);
        let idle = locked.queues.drain.outstanding() == 0;
        locked.release(Exit::Leave);
        idle
    }
}

/// A submission in progress. The thread that has this value is the ring's driver until it drops the
/// value.
pub struct Submission<'a> {
    /// `Some` until the submission is dropped.
    locked: Option<LockedRing<'a>>,
    /// Number of this submission's batch in the recording that `usring crash` makes.
    recorded_batch: u64,
}

impl<'a> Submission<'a> {
    #[inline(always)]
    fn locked(&mut self) -> &mut LockedRing<'a> {
        self.locked.as_mut().expect("a submission holds its ring")
    }

    /// Returns whether one more request can be added: the events' memory has a free slot for the
    /// request's event. Always `true` with IOPOLL.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let locked = self.locked();
        locked.ring.is_polled() || u64::from(locked.queues.cq.room()) > locked.queues.drain.outstanding()
    }

    /// Returns what requests may do with the file that the program's descriptor `number` refers to.
    /// Error: `EBADF` if there is no such file.
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
            // Without IOPOLL, this field is not used.
            false => Err(Errno::EOPNOTSUPP),
        };
        Ok(FileUses {
            may_read: mode != linux::O_WRONLY,
            may_write: mode != linux::O_RDONLY,
            // O_TMPFILE contains the bit of O_DIRECTORY, but such an open makes a regular file.
            is_directory: flags & (linux::__O_TMPFILE | linux::O_DIRECTORY) == linux::O_DIRECTORY,
            polls,
            never_waits: flags & linux::O_NONBLOCK != 0,
        })
    }

    /// Adds a request to the submission. The SQE's `user_data` is the address of the iocb. The
    /// SQE's `pad2` becomes the `data` of the request's event. `event` is the eventfd that the iocb
    /// names.
    ///
    /// Errors: the errors of the opcode's prepare; `EAGAIN` if memory is low or the slots for
    /// events are used up; `EINVAL` if the ring was retired since the submission began. After an
    /// error, the request gets no event.
    #[inline]
    pub fn add(&mut self, sqe: &Sqe, event: Option<Arc<EventDescriptor>>) -> Result<(), Errno> {
        let batch = self.recorded_batch;
        let locked = self.locked();
        let mut request = locked.queues.pool.take().ok_or(Errno::EAGAIN)?;
        request.sqe = *sqe;
        let is_armed = faults::have_rows();
        let row = match is_armed {
            true => faults::row(request.sqe.opcode),
            false => opcode_table::row(request.sqe.opcode),
        };
        request.begin(&row.properties);
        (request.was_asked, request.rule_count) = (false, 0);
        (request.recorded, request.recorded_batch) = (0, batch);
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
        locked.waiting.rights.join_submitters_group(&mut request);
        if is_armed {
            observation::submitted_for_steps(locked, &mut request);
        }
        locked.queues.statistics.count_submitted(sqe.opcode);
        locked.notify.request_events.begin(&event);
        request.event = event;
        locked.queues.drain.admit();
        start::start(locked, request, row);
        Ok(())
    }
}

impl<'a> Submission<'a> {
    /// Makes the deferred submits (`driving::deferred_submit`) of the requests added so far. The
    /// caller can add further requests afterwards.
    ///
    /// Errors: `EINVAL` if the ring was retired during the submit; `EAGAIN` if other threads have
    /// used the remaining slots for events by then.
    #[cold]
    fn flush(&mut self) -> Result<(), Errno> {
        self.locked().finish_batch();
        self.locked = self.locked.take().map(deferred_submit::flush);
        let locked = self.locked();
        // The ring's lock was released during the deferred submits. Another thread may have closed
        // a descriptor then, so a number may name another file now. `named` keeps files by
        // descriptor number, so it is emptied.
        locked.devices.named.forget();
        if locked.retired {
            return Err(Errno::EINVAL);
        }
        if self.has_room() { Ok(()) } else { Err(Errno::EAGAIN) }
    }
}

impl Drop for Submission<'_> {
    /// Ends the submission: publishes completions, and hands the remaining waits to the ring
    /// watcher.
    fn drop(&mut self) {
        if let Some(mut locked) = self.locked.take() {
            batch::run_issuable(&mut locked);
            locked.devices.named.end_submission();
            if credentials::may_differ() {
                locked.waiting.rights.end_submission();
            }
            let ring = locked.ring;
            // The waiters of this ring have to poll the devices now, so sleeping waiters are woken.
            // If submits are deferred, the thread that makes the submits wakes the waiters later.
            let must_wake = ring.waiters_poll
                && locked.devices.queues.in_flight() > 0
                && !locked.devices.queues.has_pending_submits();
            locked.release(Exit::Leave);
            if must_wake {
                ring.wakers.wake_all(u32::MAX);
            }
        }
    }
}

/// Returns whether a system call on this file may wait without limit.
fn can_wait(number: i32) -> bool {
    descriptor::identity(number).is_ok_and(|file| file.can_wait())
}
