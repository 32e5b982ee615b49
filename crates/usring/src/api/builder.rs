//! How a ring is to be made.

use super::os_error;
use super::process;
use super::ring::IoUring;
use super::{cqueue, squeue};
use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use usring_engine::Ring;
use usring_sys::syscall::AddressTrust;
use usring_uapi::io_uring as abi;

/// How a ring is to be made; [`IoUring::builder`] starts one.
///
/// ```
/// use usring::IoUring;
///
/// # fn main() -> std::io::Result<()> {
/// let ring: IoUring = IoUring::builder().setup_cqsize(256).setup_single_issuer().setup_defer_taskrun().build(64)?;
/// assert_eq!((ring.params().sq_entries(), ring.params().cq_entries()), (64, 256));
/// # Ok(())
/// # }
/// ```
///
/// A combination that io_uring_setup(2) refuses is refused by
/// [`build`](Builder::build).
#[derive(Clone)]
pub struct Builder<S = squeue::Entry, C = cqueue::Entry>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    dontfork: bool,
    params: abi::io_uring_params,
    entries: PhantomData<(S, C)>,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Default for Builder<S, C> {
    fn default() -> Self {
        let params = abi::io_uring_params { flags: S::BUILD_FLAGS | C::BUILD_FLAGS, ..no_parameters() };
        Builder { dontfork: false, params, entries: PhantomData }
    }
}

/// `struct io_uring_params`, all zero.
fn no_parameters() -> abi::io_uring_params {
    abi::io_uring_params {
        sq_entries: 0,
        cq_entries: 0,
        flags: 0,
        sq_thread_cpu: 0,
        sq_thread_idle: 0,
        features: 0,
        wq_fd: 0,
        resv: [0; 3],
        sq_off: abi::io_sqring_offsets {
            head: 0,
            tail: 0,
            ring_mask: 0,
            ring_entries: 0,
            flags: 0,
            dropped: 0,
            array: 0,
            resv1: 0,
            user_addr: 0,
        },
        cq_off: abi::io_cqring_offsets {
            head: 0,
            tail: 0,
            ring_mask: 0,
            ring_entries: 0,
            overflow: 0,
            cqes: 0,
            flags: 0,
            resv1: 0,
            user_addr: 0,
        },
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Builder<S, C> {
    fn flag(&mut self, flag: u32) -> &mut Self {
        self.params.flags |= flag;
        self
    }

    /// Keeps the ring's memory out of children made by fork(2) (madvise(2)'s
    /// `MADV_DONTFORK`): there, touching its queues is a segmentation fault.
    /// Without this they are there and every call answers `EOWNERDEAD`.
    pub fn dontfork(&mut self) -> &mut Self {
        self.dontfork = true;
        self
    }

    /// Polled I/O. Not offered yet: [`build`](Builder::build) answers `EINVAL`.
    pub fn setup_iopoll(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_IOPOLL)
    }

    /// A thread of the engine takes what is pushed, so that submitting needs no
    /// call while it is awake. It sleeps after `idle` milliseconds without work
    /// (0: one second); [`submit`](crate::Submitter::submit) wakes it.
    pub fn setup_sqpoll(&mut self, idle: u32) -> &mut Self {
        self.params.sq_thread_idle = idle;
        self.flag(abi::IORING_SETUP_SQPOLL)
    }

    /// Keeps that thread on one processor. `EINVAL` without `setup_sqpoll`, or
    /// if this process may not run there.
    pub fn setup_sqpoll_cpu(&mut self, cpu: u32) -> &mut Self {
        self.params.sq_thread_cpu = cpu;
        self.flag(abi::IORING_SETUP_SQ_AFF)
    }

    /// Entries of the completion queue, rounded up to a power of two; twice the
    /// submission queue's without this. `EINVAL` if that is less than the
    /// submission queue has, 0, or more than 65,536.
    pub fn setup_cqsize(&mut self, entries: u32) -> &mut Self {
        self.params.cq_entries = entries;
        self.flag(abi::IORING_SETUP_CQSIZE)
    }

    /// Too many entries are cut to the most that is possible (32,768 and
    /// 65,536) instead of refused.
    pub fn setup_clamp(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_CLAMP)
    }

    /// Shares the SQ thread of another ring of this process, given by its
    /// [`as_raw_fd`](std::os::fd::AsRawFd::as_raw_fd). Workers are the process's and always
    /// shared. `EINVAL` if the descriptor is no ring of usring.
    pub fn setup_attach_wq(&mut self, fd: RawFd) -> &mut Self {
        self.params.wq_fd = fd as u32;
        self.flag(abi::IORING_SETUP_ATTACH_WQ)
    }

    /// The ring starts disabled and answers `EBADFD` until
    /// [`register_enable_rings`](crate::Submitter::register_enable_rings);
    /// restrictions can be registered only before that.
    pub fn setup_r_disabled(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_R_DISABLED)
    }

    /// A request that is refused gets its completion and does not end the
    /// batch.
    pub fn setup_submit_all(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_SUBMIT_ALL)
    }

    /// A hint of the kernel's; taken, and without effect: usring never
    /// interrupts a thread of the program.
    pub fn setup_coop_taskrun(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_COOP_TASKRUN)
    }

    /// [`SubmissionQueue::taskrun`](crate::SubmissionQueue::taskrun) tells when
    /// completions wait for this thread to enter. Needs `setup_coop_taskrun` or
    /// `setup_defer_taskrun`.
    pub fn setup_taskrun_flag(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_TASKRUN_FLAG)
    }

    /// Completions appear only when the owner waits or asks for them. Needs
    /// `setup_single_issuer`.
    pub fn setup_defer_taskrun(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_DEFER_TASKRUN)
    }

    /// One thread alone submits: who builds the ring or, if it is disabled, who
    /// enables it. Others get `EEXIST`.
    pub fn setup_single_issuer(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_SINGLE_ISSUER)
    }

    /// No index array between the queue and its entries.
    pub fn setup_no_sqarray(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_NO_SQARRAY)
    }

    /// Makes a ring of `entries` submission queue entries, rounded up to a power
    /// of two.
    ///
    /// # Errors
    /// `EINVAL`: no entries, more than 32,768 without `setup_clamp`, or setters
    /// that contradict each other. `ENOMEM`, `EMFILE`, `EAGAIN`: no memory,
    /// descriptor or thread is left.
    pub fn build(&self, entries: u32) -> io::Result<IoUring<S, C>> {
        process::prepare();
        let mut params = self.params;
        // SAFETY: requests reach the ring through `SubmissionQueue::push` and
        // registered memory through `Submitter`'s functions, which are unsafe
        // where an address is handed in and ask the same of their callers.
        let trust = unsafe { AddressTrust::new() };
        let ring = Ring::setup(trust, entries, &mut params).map_err(os_error)?;
        let ring = IoUring::new_from(ring, params);
        if self.dontfork {
            ring.keep_from_children()?;
        }
        Ok(ring)
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> std::fmt::Debug for Builder<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("flags", &format_args!("{:#x}", self.params.flags))
            .field("dontfork", &self.dontfork)
            .finish_non_exhaustive()
    }
}
