//! io_uring_enter(2).

use crate::driving::cq_wait::{self, CqWait};
use crate::driving::wait::{self, WaitCall};
use crate::driving::{dispatch, ended, iopoll, submit};
use crate::ring::{Exit, LockedRing, Ring};
use crate::waiting::ask_processes;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::Ordering;
use usring_sys::clock::{self, Clock, Nanoseconds};
use usring_sys::{Errno, UserAddress, memory_reserve, thread, user_memory};
use usring_uapi::Timespec;
use usring_uapi::io_uring as abi;

const KNOWN: u32 = abi::IORING_ENTER_GETEVENTS
    | abi::IORING_ENTER_SQ_WAKEUP
    | abi::IORING_ENTER_SQ_WAIT
    | abi::IORING_ENTER_EXT_ARG
    | abi::IORING_ENTER_REGISTERED_RING
    | abi::IORING_ENTER_ABS_TIMER
    | abi::IORING_ENTER_EXT_ARG_REG
    | abi::IORING_ENTER_NO_IOWAIT;

/// Flags with which `argument` is a structure, or the index of one (EXT_ARG_REG). The kernel checks
/// the structure before it checks the CQ. So a bad structure makes the call fail even if the CQ
/// holds enough CQEs.
const HAS_ARGUMENT: u32 = abi::IORING_ENTER_EXT_ARG | abi::IORING_ENTER_EXT_ARG_REG;
/// Bytes of `struct io_uring_reg_wait`.
const REGISTERED_WAIT_SIZE: u64 = 64;
/// Bytes of a signal set in system calls.
const SIGNAL_SET_SIZE: u64 = 8;
const MICROSECOND: u64 = 1000;
/// Longest time, in nanoseconds, that io_uring_enter(2) waits for other processes of a shared ring.
/// A request that the call has submitted may ask these processes to cancel or change their requests
/// (`waiting::remote_changes`). The wait is limited because a stopped process does not answer.
const LONGEST_REMOTE_CHANGE: Nanoseconds = 100_000_000;

/// The arguments of io_uring_enter(2), except the descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnterCall {
    pub to_submit: u32,
    pub min_complete: u32,
    /// `IORING_ENTER_*`.
    pub flags: u32,
    /// Address of a signal set or, with EXT_ARG, of a `struct io_uring_getevents_arg`.
    pub argument: UserAddress,
    pub argument_size: u64,
}

impl EnterCall {
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Refuses unknown flags (`EINVAL`). The kernel checks the flags before the descriptor.
    pub fn check_flags(&self) -> Result<(), Errno> {
        if self.flags & !KNOWN != 0 { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

impl Ring {
    /// io_uring_enter(2): submits, waits, or both. Returns how many SQEs were taken; 0 for a wait
    /// alone. With SQPOLL, returns `to_submit`.
    ///
    /// Errors: `EINVAL` (flags, argument size, time), `EFAULT` (argument), `EBADFD` (not enabled),
    /// `EINTR`, `ETIME`. `EEXIST`: SINGLE_ISSUER, and the caller is another thread. `EOWNERDEAD`:
    /// the `Ring` belongs to an ancestor of this process, or the ring's SQ thread has ended.
    #[inline(always)]
    pub fn enter(self: &Arc<Self>, call: &EnterCall) -> Result<u32, Errno> {
        call.check_flags()?;
        self.check_process()?;
        if self.has(abi::IORING_SETUP_SQPOLL) { self.enter_polled(call) } else { self.enter_direct(call) }
    }

    #[inline(always)]
    fn enter_direct(self: &Arc<Self>, call: &EnterCall) -> Result<u32, Errno> {
        let mut locked = self.lock();
        if self.is_disabled() {
            return Err(Errno::EBADFD);
        }
        let mut taken = 0;
        if call.to_submit != 0 {
            self.check_issuer()?;
            if !self.defers_task_work() {
                crate::driving::task_work::run(&mut locked);
            }
            if submit::is_unusual(self) {
                return self.submit_unusual(locked, call);
            }
            taken = submit::submit_usual(&mut locked, call.to_submit);
            dispatch::run_runnable_briefly(&mut locked);
        }
        self.end_enter(locked, taken, call)
    }

    /// Submits SQEs while the process is in an unusual state (`sys::unusual`), for example with an
    /// observer, or while other processes share the ring.
    #[cold]
    #[inline(never)]
    fn submit_unusual<'a>(self: &'a Arc<Self>, mut locked: LockedRing<'a>, call: &EnterCall) -> Result<u32, Errno> {
        let first_number = locked.waiting.remote_changes.next_number();
        let taken = submit::submit_unusual(&mut locked, call.to_submit);
        dispatch::run_runnable_briefly(&mut locked);
        let numbers = first_number..locked.waiting.remote_changes.next_number();
        if locked.waiting.remote_changes.has(&numbers) {
            locked = self.wait_for_answers(locked, &numbers);
        }
        self.end_enter(locked, taken, call)
    }

    /// Waits, at most for [`LONGEST_REMOTE_CHANGE`], until other processes have answered the remote
    /// changes with these numbers. By a remote change, a request of this call asks another process
    /// to cancel or change requests that the other process has. Because of the wait, the asking
    /// request has its CQE when the call returns, as with the kernel.
    fn wait_for_answers<'a>(self: &'a Arc<Self>, mut locked: LockedRing<'a>, numbers: &Range<u64>) -> LockedRing<'a> {
        let end = Clock::Monotonic.now() + LONGEST_REMOTE_CHANGE;
        while locked.waiting.remote_changes.has(numbers) && Clock::Monotonic.now() < end {
            locked.release(Exit::Leave);
            let paused = wait::pause(self);
            locked = self.lock();
            // The asked process may have died.
            ask_processes::proceed(&mut locked);
            if paused.is_err() {
                break;
            }
        }
        locked
    }

    /// Ends the call after its submission: waits for CQEs if the caller asked for that, and
    /// releases the ring's lock. `taken`: number of SQEs that were taken.
    #[inline(always)]
    fn end_enter(self: &Arc<Self>, mut locked: LockedRing, taken: u32, call: &EnterCall) -> Result<u32, Errno> {
        let waits = call.has(abi::IORING_ENTER_GETEVENTS) && taken == call.to_submit;
        if locked.waiting.polls.armed() != 0 {
            self.watch.activity.note_call(waits);
        }
        if waits && self.is_polled() {
            locked.finish_batch();
            let polled = self.poll_for_events(locked, call);
            return if taken > 0 { Ok(taken) } else { polled.map(|()| 0) };
        }
        if waits {
            if call.to_submit != 0 && self.defers_task_work() {
                crate::driving::task_work::run_for_wait(&mut locked, call.min_complete);
                self.run_deferred_runnable(&mut locked, call.min_complete);
            }
            locked.finish_batch();
            // If the CQ already holds enough CQEs, the call does not wait.
            if call.min_complete != 0 && !call.has(HAS_ARGUMENT) && self.has_enough(&locked, call) {
                self.run_deferred_runnable(&mut locked, call.min_complete);
                if taken != 0 && locked.waiting.polls.has_expected() {
                    self.try_expected(&mut locked);
                }
                // On some rings, the ring watcher does not watch files and timers: the threads that
                // wait for CQEs poll them. This call does not wait, so it normally does not poll.
                // It polls only if too many calls in a row have not polled.
                if self.is_left_to_owner() && locked.is_poll_due() {
                    crate::driving::task_work::run_all(&mut locked);
                    locked.finish_batch();
                }
                locked.release(Exit::Finished);
                return Ok(taken);
            }
            return self.wait_for_events(locked, taken, call);
        }
        if taken == 0 {
            return self.enter_idle(locked, call);
        }
        locked.release(Exit::Leave);
        Ok(taken)
    }

    /// Finishes an io_uring_enter(2) that has submitted nothing and does not wait.
    ///
    /// Error: `EAGAIN` if memory is too low to submit anything.
    #[inline(never)]
    fn enter_idle(&self, mut locked: LockedRing, call: &EnterCall) -> Result<u32, Errno> {
        if call.to_submit == 0 {
            self.poll_own(&mut locked);
        }
        let is_refused = call.to_submit != 0 && memory_reserve::is_low() && locked.queues.sq.pending() != 0;
        locked.release(Exit::Leave);
        if is_refused { Err(Errno::EAGAIN) } else { Ok(0) }
    }

    /// Completes requests that have become ready since the last call, such as a read from a pipe
    /// that the program has written to. The caller finds the CQEs when its call returns, as with
    /// the kernel. Does nothing on a ring with DEFER_TASKRUN, whose owner asks for CQEs by
    /// GETEVENTS.
    fn poll_own(&self, locked: &mut LockedRing) {
        if !self.defers_task_work() && !self.is_polled() {
            crate::driving::task_work::run_all(locked);
        }
    }

    /// Retries the runnable requests of a ring that defers task work. A runnable request has
    /// stopped at the end of its time slice (`fast_poll::SLICE` results), although its file may
    /// still be ready. The kernel retries such requests at the end of a submission and at the
    /// beginning of a wait. `wanted`: the number of completions that the owner waits for.
    #[inline]
    fn run_deferred_runnable(&self, locked: &mut LockedRing, wanted: u32) {
        if locked.waiting.polls.has_runnable() && self.defers_task_work() {
            dispatch::poll_for(locked, wanted);
            locked.finish_batch();
        }
    }

    /// Tries requests whose files are probably ready, at the end of a call that does not wait. The
    /// program then has the CQEs of these requests one call earlier. The kernel runs waiting task
    /// work at this point.
    fn try_expected(self: &Arc<Self>, locked: &mut LockedRing) {
        let is_half_empty = locked.queues.cq.ready() <= self.memory.layout().cq_entries / 2;
        if is_half_empty && self.is_left_to_owner() {
            dispatch::try_expected(locked);
            locked.finish_batch();
        }
    }

    /// Waits for CQEs. The caller has finished its batch.
    #[inline(never)]
    fn wait_for_events(self: &Arc<Self>, locked: LockedRing, taken: u32, call: &EnterCall) -> Result<u32, Errno> {
        locked.release(Exit::Pause);
        let waited = self.get_events(call);
        if waited.is_err() {
            // `get_events` may have failed before its wait, and other threads may have left work
            // for this driver. This release runs that work.
            self.lock().release(Exit::Leave);
        }
        if taken > 0 { Ok(taken) } else { waited.map(|()| 0) }
    }

    #[inline(always)]
    fn has_enough(&self, locked: &LockedRing, call: &EnterCall) -> bool {
        locked.queues.cq.ready() >= call.min_complete && !locked.queues.cq.has_overflow() && self.task_work.is_empty()
    }

    /// io_uring_enter(2) on a ring with SQPOLL. Submits nothing: wakes the SQ thread, waits for
    /// free SQ entries, or waits for completions.
    #[inline(never)]
    fn enter_polled(self: &Arc<Self>, call: &EnterCall) -> Result<u32, Errno> {
        if self.is_disabled() {
            return Err(Errno::EBADFD);
        }
        // This path acquires the ring's lock only if there is a backlog of CQEs, because the SQ
        // thread holds the lock most of the time.
        if self.memory.flags() & abi::IORING_SQ_CQ_OVERFLOW != 0 {
            self.flush_overflow();
        }
        if let Err(error) = self.sq_thread.check_alive(self) {
            ended::complete_for_lost_thread(self);
            return Err(error);
        }
        if call.has(abi::IORING_ENTER_SQ_WAKEUP) {
            self.sq_thread.wake();
        }
        if call.has(abi::IORING_ENTER_SQ_WAIT) {
            self.sq_thread.wait_for_room(self)?;
        }
        if call.has(abi::IORING_ENTER_GETEVENTS) {
            let polls = self.is_polled() && !self.is_adopted();
            let waited = if polls && iopoll::enters_poll() {
                self.poll_for_events(self.lock(), call)
            } else {
                self.get_events(call)
            };
            if call.to_submit == 0 {
                waited?;
            }
        }
        Ok(call.to_submit)
    }

    fn flush_overflow(self: &Arc<Self>) {
        let mut locked = self.lock();
        if locked.queues.cq.has_overflow() {
            locked.flush_overflow();
        }
        locked.release(Exit::Leave);
    }

    /// Checks the calling thread: only the issuer of a ring with SINGLE_ISSUER may submit and run
    /// deferred task work. Error: `EEXIST`.
    #[inline]
    fn check_issuer(&self) -> Result<(), Errno> {
        if !self.has(abi::IORING_SETUP_SINGLE_ISSUER) || self.issuer.load(Ordering::Relaxed) == thread::current().0 {
            return Ok(());
        }
        Err(Errno::EEXIST)
    }

    /// Runs GETEVENTS on a ring with IOPOLL. If the call has an extended argument, the argument is
    /// checked, but its time limit has no effect, because the caller polls and does not sleep.
    fn poll_for_events(self: &Arc<Self>, locked: LockedRing, call: &EnterCall) -> Result<(), Errno> {
        let checked = match self.defers_task_work() {
            true => self.check_issuer(),
            false => Ok(()),
        };
        let checked = match call.has(abi::IORING_ENTER_EXT_ARG) {
            true => checked.and_then(|()| self.read_argument(call).map(drop)),
            false => checked,
        };
        if let Err(error) = checked {
            locked.release(Exit::Leave);
            return Err(error);
        }
        iopoll::poll(locked, call.min_complete.min(self.memory.layout().cq_entries))
    }

    fn get_events(self: &Arc<Self>, call: &EnterCall) -> Result<(), Errno> {
        if self.defers_task_work() {
            self.check_issuer()?;
        }
        let mut wait_call = self.read_argument(call)?;
        wait_call.completions = call.min_complete.min(self.memory.layout().cq_entries);
        if self.is_polled() && wait_call.mask.is_none() && !self.is_shared() {
            wait_call.consumed = Some(self.memory.consumed());
            match cq_wait::wait(self, &mut wait_call)? {
                CqWait::Over => return Ok(()),
                CqWait::IsShared => {}
            }
        }
        wait::wait(self, &wait_call)
    }

    fn read_argument(self: &Arc<Self>, call: &EnterCall) -> Result<WaitCall, Errno> {
        let mut wait_call = WaitCall::default();
        if call.has(abi::IORING_ENTER_EXT_ARG_REG) {
            // Registered waits need a registered memory region, which usring does not support.
            let fits = call.has(abi::IORING_ENTER_EXT_ARG) && call.argument_size == REGISTERED_WAIT_SIZE;
            return Err(if fits { Errno::EFAULT } else { Errno::EINVAL });
        }
        if !call.has(abi::IORING_ENTER_EXT_ARG) {
            wait_call.mask = read_mask(call.argument, call.argument_size)?;
            return Ok(wait_call);
        }
        if call.argument_size != size_of::<abi::io_uring_getevents_arg>() as u64 {
            return Err(Errno::EINVAL);
        }
        let argument: abi::io_uring_getevents_arg = user_memory::read(call.argument)?;
        wait_call.mask = read_mask(UserAddress(argument.sigmask), u64::from(argument.sigmask_sz))?;
        if argument.min_wait_usec != 0 {
            wait_call.minimum = Some(Clock::Monotonic.now() + u64::from(argument.min_wait_usec) * MICROSECOND);
        }
        if argument.ts != 0 {
            let clock = self.lock().waiting.clock;
            let span = clock::limit(user_memory::read::<Timespec>(UserAddress(argument.ts))?);
            let at = if call.has(abi::IORING_ENTER_ABS_TIMER) { span } else { clock.now().saturating_add(span) };
            wait_call.deadline = Some((clock, at));
        }
        Ok(wait_call)
    }
}

fn read_mask(address: UserAddress, size: u64) -> Result<Option<u64>, Errno> {
    if address.is_null() {
        return Ok(None);
    }
    if size != SIGNAL_SET_SIZE {
        return Err(Errno::EINVAL);
    }
    user_memory::read::<u64>(address).map(Some)
}
