//! A ring whose completions are an AIO context's events: another face of the
//! engine drives it. It has no descriptor, and its SQ is never used: requests
//! are handed over one by one by whoever holds it ([`Submission`]), and what an
//! SQE is refused for is told at once instead of by a completion.
//!
//! Events appear in the program's memory (`usring_ring`'s `events`) by whatever
//! way the engine completes a request: in the submitting call, by the attendant,
//! a worker or a waiter; nobody has to ask for them.
//!
//! How many requests are under way is nobody's own word: it is what the drain
//! counts under the ring's lock ([`Submission::has_room`]). Together with the events
//! that the program has not taken they never exceed the slots, so no event needs
//! the backlog, unless the program scribbles over its head. A polled ring, whose
//! events are only ever asked for, has no such bound.
//!
//! The end of such a ring has two steps. [`Ring::retire`] says under the lock
//! that nobody may submit or wait any more, wakes who does, and comes back when
//! nothing is under way; then it is closed as any ring is.

use crate::device_queues;
use crate::event_descriptor::EventDescriptor;
use crate::iopoll;
use crate::issue;
use crate::op::block_device;
use crate::process::process;
use crate::ring::{LockedRing, Ring};
use crate::submit;
use crate::wait::{self, WaitCall};
use crate::{complete, host, rights, task_work, workers};
use alloc::sync::Arc;
use usring_ring::{Layout, Memory};
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::sleep::Sleeper;
use usring_sys::syscall::AddressTrust;
use usring_sys::{Errno, UserAddress, credentials, descriptor, memory_reserve, per_process, processor, unusual};
use usring_uapi::io_uring::IORING_SETUP_IOPOLL;
use usring_uapi::{Sqe, general as linux, opcode};

/// How long a retiring ring sleeps at most before it looks again.
const BETWEEN_LOOKS: Nanoseconds = 1_000_000;

/// How events come from the devices to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// By themselves: a device tells of what it has done.
    Told,
    /// Whoever asks for events looks at the devices, as long as nothing else has
    /// to be told: no eventfd waits for any of them.
    Preferred,
    /// Only by asking for them; a device that does not poll is refused
    /// (IOPOLL), and the program is told not to read the ring by itself.
    Required,
}

/// What a request may do with a file of the program.
#[derive(Clone, Copy, Debug)]
pub struct FileUses {
    pub may_read: bool,
    pub may_write: bool,
    /// It was opened as one.
    pub is_directory: bool,
    /// Transfers by no page cache can be polled for; else why not.
    pub polls: Result<(), Errno>,
    /// Open with O_NONBLOCK, which a device does not mind.
    pub never_waits: bool,
}

impl Ring {
    /// A ring for so many requests at a time, known to whoever keeps it by `id`.
    /// Who calls vouches, by `trust`, for every address that its requests will
    /// name.
    ///
    /// Errors: `EINVAL` for too many; `ENOMEM`; those of a thread that cannot be
    /// started.
    pub fn with_events(trust: AddressTrust, requests: u32, id: u32, attention: Attention) -> Result<Arc<Ring>, Errno> {
        let _ = trust;
        memory_reserve::check()?;
        let layout = Layout::for_events(requests, processor::count())?;
        // Nobody reads events there, and the rest waits in the backlog.
        let layout = if attention == Attention::Required { Layout::for_events(1, 1)? } else { layout };
        per_process::prepare()?;
        let memory = Memory::for_events(layout, id, attention == Attention::Told)?;
        process().attendant.start()?;
        let flags = if attention == Attention::Required { IORING_SETUP_IOPOLL } else { 0 };
        let mut ring = super::setup::new_ring(flags, memory);
        ring.looks_for_events = attention == Attention::Preferred;
        ring.expected_requests = requests;
        Ok(Arc::new(ring))
    }

    /// Bytes of the events' mapping, and how many there are at most.
    pub fn events_size(&self) -> (usize, u32) {
        let layout = self.memory.layout();
        (layout.events_length(), layout.cq_entries)
    }

    /// Maps the events once more, for the program.
    pub fn map_events(&self) -> Result<usize, Errno> {
        let mapping = self.memory.events().mapping().ok_or(Errno::ENOMEM)?;
        mapping.duplicate(mapping.length())
    }

    /// Copies up to `most` events to the program and takes them out. For one
    /// caller at a time; needs no lock of the ring's.
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
                locked.leave();
                return Err(Errno::EAGAIN);
            }
            if credentials::differ() {
                rights::begin_submission(&mut locked);
            }
        }
        locked.named.begin_submission();
        Ok(Submission { locked: Some(locked) })
    }

    /// Waits until there are `wanted` events, at most until `deadline`, by the
    /// monotonic clock.
    ///
    /// Errors, if no event is there: `ETIME`; `EINTR`; `EINVAL` if the ring is
    /// retired.
    pub fn await_events(
        self: &Arc<Self>,
        wanted: u32,
        deadline: Option<Nanoseconds>,
        mask: Option<u64>,
    ) -> Result<(), Errno> {
        self.check_process()?;
        let deadline = deadline.map(|at| (Clock::Monotonic, at));
        let call = WaitCall { completions: wanted, deadline, mask, ..Default::default() };
        // A mask is in force while one sleeps, so then nobody looks.
        if self.looks_for_events && mask.is_none() {
            return iopoll::look_and_wait(self, &call);
        }
        wait::wait(self, &call)
    }

    /// Looks at the devices for the events of a polled ring: comes back at once if
    /// there is one, else when there are `wanted` or nothing is to come.
    ///
    /// Error: `EINTR` for a signal, if there is no event.
    pub fn poll_events(self: &Arc<Self>, wanted: u32) -> Result<(), Errno> {
        self.check_process()?;
        iopoll::poll(self.lock(), wanted)
    }

    /// Ends the wait of a POLL_ADD, which completes with nothing. `false`: no
    /// such request waits for its file.
    pub fn end_poll(self: &Arc<Self>, user_data: u64) -> bool {
        let mut locked = self.lock();
        let found = locked
            .polls
            .extract(|request| request.sqe.opcode == opcode::POLL_ADD && request.sqe.user_data == user_data);
        let any = found.is_some();
        if let Some(request) = found {
            complete::complete(&mut locked, request, 0.into());
        }
        locked.leave();
        any
    }

    /// No more requests and no more waiting; comes back when nothing is under
    /// way, and the ring is closed. What waits for a file's readiness ends, for
    /// that may never come; transfers are done. In a forked child nothing
    /// happens: the ring is the parent's.
    pub fn retire(self: &Arc<Self>) {
        if self.is_inherited() {
            return;
        }
        let mut locked = self.lock();
        locked.retired = true;
        while let Some(request) = locked.polls.extract(|_| true) {
            complete::complete(&mut locked, request, 0.into());
        }
        workers::interrupt(self, |view| descriptor::identity(view.number).is_ok_and(|file| file.can_wait()));
        locked.leave();
        self.wakers.wake_all(u32::MAX);
        while !self.is_idle() {
            let ticket = self.wakers.sleep.announce(Sleeper::Futex, 0);
            if !self.is_idle() {
                // Not as the program's thread sleeps: no signal ends this.
                let _ = self.wakers.sleep.sleep(&ticket, Some(BETWEEN_LOOKS));
            }
            let _ = self.wakers.sleep.retract(ticket);
        }
        self.close();
    }

    /// Whether no request is under way, after a look at everything.
    fn is_idle(self: &Arc<Self>) -> bool {
        let mut locked = self.lock();
        task_work::run_all(&mut locked);
        let idle = locked.drain.outstanding() == 0;
        locked.leave();
        idle
    }
}

/// A submission under way: the ring's driver, until it is dropped.
pub struct Submission<'a> {
    /// There until then.
    locked: Option<LockedRing<'a>>,
}

impl<'a> Submission<'a> {
    #[inline(always)]
    fn locked(&mut self) -> &mut LockedRing<'a> {
        self.locked.as_mut().expect("a submission holds its ring")
    }

    /// Whether one more request is sure of a slot for its event.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let locked = self.locked();
        locked.ring.is_polled() || u64::from(locked.cq.room()) > locked.drain.outstanding()
    }

    /// What may be done with the program's file of this number. `EBADF`: there
    /// is none.
    #[inline]
    pub fn file(&mut self, number: i32) -> Result<FileUses, Errno> {
        let locked = self.locked();
        if host::has_devices()
            && let Some(file) = locked.named.device(number)
        {
            let manner = file.manner();
            let polls = if manner.is_direct() { file.device().check_polled() } else { Err(Errno::EOPNOTSUPP) };
            return Ok(FileUses {
                may_read: manner.may_read(),
                may_write: manner.may_write(),
                is_directory: false,
                polls,
                never_waits: false,
            });
        }
        let flags = locked.named.status_flags(number)?;
        if flags & linux::O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        let mode = flags & linux::O_ACCMODE;
        let polls = match locked.ring.is_polled() {
            true => block_device::channel_to_kernel_file(locked, number, false).map(drop),
            // Nobody asks.
            false => Err(Errno::EOPNOTSUPP),
        };
        Ok(FileUses {
            may_read: mode != linux::O_WRONLY,
            may_write: mode != linux::O_RDONLY,
            // A file without a name is opened by the one of its directory.
            is_directory: flags & (linux::__O_TMPFILE | linux::O_DIRECTORY) == linux::O_DIRECTORY,
            polls,
            never_waits: flags & linux::O_NONBLOCK != 0,
        })
    }

    /// Hands a request over: `user_data` is its iocb, `pad2` what its event is to
    /// carry. `told` is its own eventfd.
    ///
    /// Errors: what its prep refuses it for; then there is no such request.
    #[inline]
    pub fn add(&mut self, sqe: &Sqe, told: Option<Arc<EventDescriptor>>) -> Result<(), Errno> {
        let locked = self.locked();
        let mut request = locked.pool.take().ok_or(Errno::EAGAIN)?;
        request.sqe = *sqe;
        request.begin();
        let mut prepared = submit::prepare(locked, &mut request);
        if prepared.is_ok() && locked.devices.owes_delivery() && !block_device::joins_delivery(locked, &request) {
            prepared = self.deliver();
        }
        let locked = self.locked();
        if let Err(error) = prepared {
            locked.pool.give_back(request);
            return Err(error);
        }
        rights::mark(locked, &mut request);
        locked.statistics.count_submitted(sqe.opcode);
        locked.told.begin(&told);
        request.told = told;
        locked.drain.admit();
        submit::start(locked, request);
        Ok(())
    }
}

impl<'a> Submission<'a> {
    /// What the batch has brought so far is delivered before it goes on.
    ///
    /// Errors: what one more request is refused for now: others have had the ring.
    #[cold]
    fn deliver(&mut self) -> Result<(), Errno> {
        self.locked().finish_batch();
        self.locked = self.locked.take().map(device_queues::deliver);
        let locked = self.locked();
        // Another thread may have closed a number meanwhile.
        locked.named.forget();
        if locked.retired {
            return Err(Errno::EINVAL);
        }
        if self.has_room() { Ok(()) } else { Err(Errno::EAGAIN) }
    }
}

impl Drop for Submission<'_> {
    /// The batch ends: what has completed is published, and somebody watches what
    /// has not.
    fn drop(&mut self) {
        if let Some(mut locked) = self.locked.take() {
            issue::run_issuable(&mut locked);
            locked.named.end_submission();
            if credentials::differ() {
                rights::end_submission(&mut locked);
            }
            let ring = locked.ring;
            // Who sleeps there meanwhile is to look now; who delivers says so before.
            let looked_for = ring.looks_for_events && locked.devices.in_flight() > 0 && !locked.devices.owes_delivery();
            locked.leave();
            if looked_for {
                ring.wakers.wake_all(u32::MAX);
            }
        }
    }
}
