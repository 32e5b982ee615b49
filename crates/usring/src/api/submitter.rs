//! io_uring_enter(2): submitting and waiting.

use super::os_error;
use super::ring::Core;
use std::fmt;
use std::io;
use std::mem;
use usring_engine::EnterCall;
use usring_ring::flags as sq_flags;
use usring_sys::ordering::{Edge, Side};
use usring_sys::{Errno, UserAddress};
use usring_uapi::io_uring as abi;

use super::EnterFlags;
use crate::types::SubmitArgs;

/// Bytes of the kernel's signal set. (libc's `sigset_t` is larger.)
const SIGNAL_SET_SIZE: u32 = 8;

/// A handle to submit, to wait for completions and to register, made by
/// [`IoUring::submitter`](crate::IoUring::submitter). Several threads may each have one at the same
/// time.
pub struct Submitter<'a> {
    pub(super) core: &'a Core,
    /// Whether [`Submitter::register_ring_fd`] was called.
    pub(super) is_registered: bool,
}

impl<'a> Submitter<'a> {
    #[inline]
    pub(super) fn new(core: &'a Core) -> Self {
        Submitter { core, is_registered: false }
    }

    #[inline]
    fn call(&self, call: &EnterCall) -> io::Result<usize> {
        self.core.ring.enter(call).map(|taken| taken as usize).map_err(os_error)
    }

    /// Calls io_uring_enter(2) with the given arguments; `flags` are [`EnterFlags`]. Most programs
    /// should call [`submit`](Submitter::submit) or another function of this type instead.
    ///
    /// Returns how many entries were taken from the submission queue.
    ///
    /// # Errors
    /// - `EINVAL`: `flags` or `arg` is invalid.
    /// - `EBADFD`: the ring is not enabled.
    /// - `EEXIST`: the ring has a single issuer, which is another thread.
    /// - `EINTR`, `ETIME`: a signal or the timeout has ended the wait, and no completion is there.
    /// - `EFAULT`: no memory is mapped at an address in `arg`.
    /// - `EOWNERDEAD`: the ring is a parent process's, or its SQ thread could not be started.
    ///
    /// # Safety
    /// `arg` is of the type that the flags require: a signal set of the kernel's or, with
    /// `EXT_ARG`, a `struct io_uring_getevents_arg` whose pointers are valid.
    pub unsafe fn enter<T: Sized>(
        &self,
        to_submit: u32,
        min_complete: u32,
        flag: u32,
        arg: Option<&T>,
    ) -> io::Result<usize> {
        let argument = arg.map_or(UserAddress::NULL, |arg| UserAddress((&raw const *arg) as u64));
        let argument_size = mem::size_of::<T>() as u64;
        self.call(&EnterCall { to_submit, min_complete, flags: flag, argument, argument_size })
    }

    /// Submits all pushed entries, and returns their number. On a ring with `setup_sqpoll` this
    /// function only wakes the SQ thread, if that thread sleeps.
    ///
    /// # Errors
    /// Those of [`enter`](Submitter::enter).
    #[inline]
    pub fn submit(&self) -> io::Result<usize> {
        self.submit_and_wait(0)
    }

    /// Submits all pushed entries, and waits until the queue holds `want` completions. Completions
    /// that the queue holds already count, too. Returns the number of submitted entries.
    ///
    /// # Errors
    /// Those of [`enter`](Submitter::enter). `EINTR` is returned only if no entry was submitted and
    /// no completion is in the queue when a signal handler ends the wait.
    pub fn submit_and_wait(&self, want: usize) -> io::Result<usize> {
        let Some(call) = self.prepare(want) else { return Ok(self.pushed() as usize) };
        self.call(&call)
    }

    /// Submits all pushed entries and waits until the queue holds `want` completions. `args` adds a
    /// timeout, a signal mask during the wait, or a time after which one completion is enough. The
    /// mask is passed with the kernel's size of 8 bytes. (The `io-uring` crate passes libc's larger
    /// size, which the kernel refuses.)
    ///
    /// ```
    /// use std::time::Duration;
    /// use usring::{IoUring, types};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let ring = IoUring::new(4)?;
    /// let time = types::Timespec::from(Duration::from_millis(1));
    /// let args = types::SubmitArgs::new().timespec(&time);
    /// let error = ring.submitter().submit_with_args(1, &args).unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(libc::ETIME));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`enter`](Submitter::enter). `ETIME` is returned only if no entry was submitted and
    /// no completion is in the queue when the timeout has passed.
    pub fn submit_with_args(&self, want: usize, args: &SubmitArgs<'_, '_>) -> io::Result<usize> {
        let Some(mut call) = self.prepare(want) else { return Ok(self.pushed() as usize) };
        const { assert!(mem::size_of::<SubmitArgs<'_, '_>>() == mem::size_of::<abi::io_uring_getevents_arg>()) };
        // SAFETY: `SubmitArgs` is a transparent wrapper of this structure, which holds plain
        // numbers.
        let mut argument: abi::io_uring_getevents_arg = unsafe { mem::transmute_copy(args) };
        if argument.sigmask != 0 {
            argument.sigmask_sz = SIGNAL_SET_SIZE;
        }
        call.flags |= EnterFlags::EXT_ARG.bits();
        call.argument = UserAddress((&raw const argument) as u64);
        call.argument_size = mem::size_of_val(&argument) as u64;
        self.call(&call)
    }

    /// Waits until the submission queue of a ring with `setup_sqpoll` has room. On other rings,
    /// [`submit`](Submitter::submit) makes room.
    ///
    /// # Errors
    /// Those of [`enter`](Submitter::enter).
    pub fn squeue_wait(&self) -> io::Result<usize> {
        self.call(&EnterCall { flags: EnterFlags::SQ_WAIT.bits(), ..EnterCall::default() })
    }

    fn pushed(&self) -> u32 {
        self.core.ring.memory().submitted()
    }

    /// Returns the arguments of the io_uring_enter that submits everything and waits for `want`
    /// completions. Returns `None` if no call is needed: the SQ thread is awake, the caller waits
    /// for no completion, and none is in the backlog or pending as task work.
    #[inline]
    fn prepare(&self, want: usize) -> Option<EnterCall> {
        let memory = self.core.ring.memory();
        let polled = self.core.parameters.is_setup_sqpoll();
        if polled {
            // This barrier separates the store of the SQ tail from the load of the flag NEED_WAKEUP
            // below.
            Edge::NeedWakeup.barrier(Side::Waker);
        }
        let state = memory.flags();
        // Only an enter with GETEVENTS moves the backlog to the queue and runs task work.
        let waiting = state & (sq_flags::CQ_OVERFLOW | sq_flags::TASKRUN) != 0;
        let mut flags = EnterFlags::empty();
        flags.set(EnterFlags::GETEVENTS, want > 0 || waiting);
        if polled {
            flags.set(EnterFlags::SQ_WAKEUP, state & sq_flags::NEED_WAKEUP != 0);
            if flags.is_empty() && !self.core.ring.is_inherited() {
                return None;
            }
        }
        let min_complete = u32::try_from(want).unwrap_or(u32::MAX);
        Some(EnterCall { to_submit: memory.submitted(), min_complete, flags: flags.bits(), ..EnterCall::default() })
    }

    /// Registers the ring in the calling thread's table of registered rings. In the kernel this
    /// saves the look-up of the descriptor. usring looks up no descriptor here, so this function
    /// only records the registration.
    ///
    /// # Errors
    /// `EEXIST`: this submitter was registered already.
    pub fn register_ring_fd(&mut self) -> io::Result<()> {
        if mem::replace(&mut self.is_registered, true) { Err(os_error(Errno::EEXIST)) } else { Ok(()) }
    }

    /// Undoes [`register_ring_fd`](Submitter::register_ring_fd).
    ///
    /// # Errors
    /// `EINVAL`: this submitter was not registered.
    pub fn unregister_ring_fd(&mut self) -> io::Result<()> {
        if mem::replace(&mut self.is_registered, false) { Ok(()) } else { Err(os_error(Errno::EINVAL)) }
    }
}

impl fmt::Debug for Submitter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitter").field("pushed", &self.pushed()).finish_non_exhaustive()
    }
}
