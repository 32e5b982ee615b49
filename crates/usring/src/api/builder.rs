//! The builder of rings: parameters of io_uring_setup(2).

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

/// Sets the parameters of a ring and makes it. [`IoUring::builder`] returns a builder with the
/// defaults.
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
/// [`build`](Builder::build) refuses the combinations that io_uring_setup(2) refuses.
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

/// Returns a `struct io_uring_params` in which every field is zero.
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

    /// Keeps the ring's memory out of children made by fork(2) (madvise(2)'s `MADV_DONTFORK`). In a
    /// child, touching the queues then raises SIGSEGV. Without this setting a child inherits the
    /// memory, and each of its calls on the ring answers `EOWNERDEAD`.
    pub fn dontfork(&mut self) -> &mut Self {
        self.dontfork = true;
        self
    }

    /// Sets `IORING_SETUP_IOPOLL`: the thread that enters the ring polls for completions, and no
    /// interrupt reports them. Only a device of usring's can be polled. A request for any file of
    /// the kernel's gets `EOPNOTSUPP`.
    pub fn setup_iopoll(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_IOPOLL)
    }

    /// Starts an SQ thread, which submits the pushed requests. While that thread is awake,
    /// submitting needs no call. The thread sleeps after `idle` milliseconds without work (0: one
    /// second), and [`submit`](crate::Submitter::submit) wakes it.
    pub fn setup_sqpoll(&mut self, idle: u32) -> &mut Self {
        self.params.sq_thread_idle = idle;
        self.flag(abi::IORING_SETUP_SQPOLL)
    }

    /// Binds the SQ thread to processor `cpu`. [`build`](Builder::build) answers `EINVAL` if
    /// `setup_sqpoll` was not called, or if this process may not run on the processor.
    pub fn setup_sqpoll_cpu(&mut self, cpu: u32) -> &mut Self {
        self.params.sq_thread_cpu = cpu;
        self.flag(abi::IORING_SETUP_SQ_AFF)
    }

    /// Sets the number of entries of the completion queue, rounded up to a power of two. The
    /// default is twice the number of the submission queue. [`build`](Builder::build) answers
    /// `EINVAL` for 0, for more than 65,536, and for fewer entries than the submission queue has.
    pub fn setup_cqsize(&mut self, entries: u32) -> &mut Self {
        self.params.cq_entries = entries;
        self.flag(abi::IORING_SETUP_CQSIZE)
    }

    /// If a number of entries is too large, makes a ring with the largest possible number (SQ:
    /// 32,768; CQ: 65,536), instead of refusing the number.
    pub fn setup_clamp(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_CLAMP)
    }

    /// Shares the SQ thread of another ring of this process, whose
    /// [`as_raw_fd`](std::os::fd::AsRawFd::as_raw_fd) is `fd`. Workers need no such setting: all
    /// rings of the process share them. [`build`](Builder::build) answers `EINVAL` if `fd` is no
    /// ring of usring.
    pub fn setup_attach_wq(&mut self, fd: RawFd) -> &mut Self {
        self.params.wq_fd = fd.cast_unsigned();
        self.flag(abi::IORING_SETUP_ATTACH_WQ)
    }

    /// Starts the ring disabled. Until
    /// [`register_enable_rings`](crate::Submitter::register_enable_rings) the ring answers
    /// `EBADFD`, and only in this state can restrictions be registered.
    pub fn setup_r_disabled(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_R_DISABLED)
    }

    /// Makes a submission continue after a request that is refused. The refused request gets a
    /// completion with its error. By default the submission ends with the refused request.
    pub fn setup_submit_all(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_SUBMIT_ALL)
    }

    /// Accepted without effect. The flag tells the kernel not to interrupt a thread of the program
    /// for completions, and usring never interrupts such a thread.
    pub fn setup_coop_taskrun(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_COOP_TASKRUN)
    }

    /// Makes [`SubmissionQueue::taskrun`](crate::SubmissionQueue::taskrun) return `true` while
    /// completions are pending that are posted only when this thread enters the ring. Needs
    /// `setup_coop_taskrun` or `setup_defer_taskrun`.
    pub fn setup_taskrun_flag(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_TASKRUN_FLAG)
    }

    /// Posts completions only when the ring's owner (its single issuer) enters the ring with
    /// `GETEVENTS`, as every wait does. Needs `setup_single_issuer`.
    pub fn setup_defer_taskrun(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_DEFER_TASKRUN)
    }

    /// Lets only one thread submit: the thread that builds the ring or, if the ring starts
    /// disabled, the thread that enables it. Other threads get `EEXIST`.
    pub fn setup_single_issuer(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_SINGLE_ISSUER)
    }

    /// Leaves out the index array, by which the submission queue normally refers to its entries.
    pub fn setup_no_sqarray(&mut self) -> &mut Self {
        self.flag(abi::IORING_SETUP_NO_SQARRAY)
    }

    /// Makes a ring whose submission queue has `entries` entries, rounded up to a power of two.
    ///
    /// # Errors
    /// - `EINVAL`: `entries` is 0 or, without `setup_clamp`, over 32,768, or settings contradict
    ///   each other.
    /// - `ENOMEM`, `EMFILE`, `EAGAIN`: the process can get no more memory, descriptors or threads.
    pub fn build(&self, entries: u32) -> io::Result<IoUring<S, C>> {
        process::prepare();
        let mut params = self.params;
        // SAFETY: addresses reach the ring only by `SubmissionQueue::push`, and by the functions of
        // `Submitter` that register memory. All of these are unsafe, and their callers promise that
        // the memory is valid.
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
