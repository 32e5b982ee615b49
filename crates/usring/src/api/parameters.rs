//! The parameters that a ring was made with.

use std::fmt;
use usring_uapi::io_uring as abi;

/// The parameters and features of a ring: `struct io_uring_params` of io_uring_setup(2), as the
/// engine has filled it in.
#[derive(Clone)]
pub struct Parameters(pub(super) abi::io_uring_params);

impl Parameters {
    fn has(&self, flag: u32) -> bool {
        self.0.flags & flag != 0
    }

    fn promises(&self, feature: u32) -> bool {
        self.0.features & feature != 0
    }

    /// Returns whether an SQ thread submits
    /// ([`Builder::setup_sqpoll`](crate::Builder::setup_sqpoll)).
    pub fn is_setup_sqpoll(&self) -> bool {
        self.has(abi::IORING_SETUP_SQPOLL)
    }

    /// Returns whether completions are polled for
    /// ([`Builder::setup_iopoll`](crate::Builder::setup_iopoll)).
    pub fn is_setup_iopoll(&self) -> bool {
        self.has(abi::IORING_SETUP_IOPOLL)
    }

    /// Returns whether only one thread submits
    /// ([`Builder::setup_single_issuer`](crate::Builder::setup_single_issuer)).
    pub fn is_setup_single_issuer(&self) -> bool {
        self.has(abi::IORING_SETUP_SINGLE_ISSUER)
    }

    /// Returns `true`: one mapping serves both queues.
    pub fn is_feature_single_mmap(&self) -> bool {
        self.promises(abi::IORING_FEAT_SINGLE_MMAP)
    }

    /// Returns `true`: completions that find no room in the queue wait in a backlog and are not
    /// lost.
    pub fn is_feature_nodrop(&self) -> bool {
        self.promises(abi::IORING_FEAT_NODROP)
    }

    /// Returns `true`: everything that a request points to, except the data itself, may be reused
    /// once the request was submitted.
    pub fn is_feature_submit_stable(&self) -> bool {
        self.promises(abi::IORING_FEAT_SUBMIT_STABLE)
    }

    /// Returns `true`: an offset of −1 means the file's own position.
    pub fn is_feature_rw_cur_pos(&self) -> bool {
        self.promises(abi::IORING_FEAT_RW_CUR_POS)
    }

    /// Returns `true`: a request that the submitting thread carries out has that thread's
    /// credentials. A worker's request has the credentials with which the first ring of the process
    /// was made, unless the request names a personality.
    ///
    /// setuid(2) of libc and its relatives also change the credentials of workers and of
    /// personalities. (In the kernel, a personality keeps its own.) The Rust API does not see
    /// changes that apply to one thread alone: capabilities, Landlock, a file system view. Make
    /// such changes before the first ring is made, or register a personality afterwards.
    pub fn is_feature_cur_personality(&self) -> bool {
        self.promises(abi::IORING_FEAT_CUR_PERSONALITY)
    }

    /// Returns `true`: a request whose file is not ready waits by polling and occupies no thread.
    pub fn is_feature_fast_poll(&self) -> bool {
        self.promises(abi::IORING_FEAT_FAST_POLL)
    }

    /// Returns `true`: `PollAdd` takes 32 bits of events.
    pub fn is_feature_poll_32bits(&self) -> bool {
        self.promises(abi::IORING_FEAT_POLL_32BITS)
    }

    /// Returns `true`: with `setup_sqpoll`, files need not be registered.
    pub fn is_feature_sqpoll_nonfixed(&self) -> bool {
        self.promises(abi::IORING_FEAT_SQPOLL_NONFIXED)
    }

    /// Returns `true`: [`Submitter::submit_with_args`](crate::Submitter::submit_with_args) takes a
    /// timeout.
    pub fn is_feature_ext_arg(&self) -> bool {
        self.promises(abi::IORING_FEAT_EXT_ARG)
    }

    /// Returns `true`: workers are threads of this process.
    pub fn is_feature_native_workers(&self) -> bool {
        self.promises(abi::IORING_FEAT_NATIVE_WORKERS)
    }

    /// Returns `true`: registered files and buffers can be tagged and updated.
    pub fn is_feature_resource_tagging(&self) -> bool {
        self.promises(abi::IORING_FEAT_RSRC_TAGS)
    }

    /// Returns `true`: a request with the flag `SKIP_SUCCESS` posts no completion if it succeeds.
    pub fn is_feature_skip_cqe_on_success(&self) -> bool {
        self.promises(abi::IORING_FEAT_CQE_SKIP)
    }

    /// Returns `true`: the file of a linked request is looked up when the request starts. So the
    /// previous request in the chain may open that file.
    pub fn is_feature_linked_file(&self) -> bool {
        self.promises(abi::IORING_FEAT_LINKED_FILE)
    }

    /// Returns whether one request can send or receive several provided buffers as a bundle.
    pub fn is_feature_recvsend_bundle(&self) -> bool {
        self.promises(abi::IORING_FEAT_RECVSEND_BUNDLE)
    }

    /// Returns `true`: [`SubmitArgs::min_wait_usec`](crate::types::SubmitArgs::min_wait_usec) has
    /// an effect.
    pub fn is_feature_min_timeout(&self) -> bool {
        self.promises(abi::IORING_FEAT_MIN_TIMEOUT)
    }

    /// Returns `true`: `EnterFlags::NO_IOWAIT` is accepted. A sleep of usring's never counts as
    /// waiting for I/O.
    pub fn is_feature_no_iowait(&self) -> bool {
        self.promises(abi::IORING_FEAT_NO_IOWAIT)
    }

    /// Returns the number of entries of the submission queue, a power of two.
    pub fn sq_entries(&self) -> u32 {
        self.0.sq_entries
    }

    /// Returns the milliseconds without work after which the SQ thread sleeps, as passed to
    /// [`Builder::setup_sqpoll`](crate::Builder::setup_sqpoll). 0 stands for one second.
    pub fn sq_thread_idle(&self) -> u32 {
        self.0.sq_thread_idle
    }

    /// Returns the number of entries of the completion queue, a power of two.
    pub fn cq_entries(&self) -> u32 {
        self.0.cq_entries
    }
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parameters")
            .field("flags", &format_args!("{:#x}", self.0.flags))
            .field("features", &format_args!("{:#x}", self.0.features))
            .field("sq_entries", &self.0.sq_entries)
            .field("cq_entries", &self.0.cq_entries)
            .field("sq_thread_idle", &self.0.sq_thread_idle)
            .finish()
    }
}
