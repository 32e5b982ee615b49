//! How the ring of an AIO context (io_setup(2), libaio) differs from an io_uring. The rest of the
//! engine treats both alike, and asks one of these questions where it cannot. `calls::events` has
//! the calls on such a ring.

use super::Ring;
use usring_inject::Kind;
use usring_uapi::Sqe;
use usring_uapi::io_uring::{IORING_SETUP_IOPOLL, IORING_SETUP_SQPOLL};

impl Ring {
    #[inline]
    fn is_aio_context(&self) -> bool {
        self.memory.layout().has_events()
    }

    /// Completions become events (`io_event`) in place of CQEs. They have no second half, and may
    /// signal an eventfd each.
    #[inline]
    pub(crate) fn posts_events(&self) -> bool {
        self.is_aio_context()
    }

    /// The ring's transfers on ordinary files may go by the kernel's AIO.
    #[inline]
    pub(crate) fn uses_kernel_aio(&self) -> bool {
        self.is_aio_context()
    }

    /// A transfer may block the submitting thread, as io_submit(2) may.
    #[inline]
    pub(crate) fn may_block_in_submit(&self) -> bool {
        self.is_aio_context()
    }

    /// A poll request reports the peer's hang-up (POLLRDHUP) only if the program asked for it.
    #[inline]
    pub(crate) fn reports_asked_hang_ups_only(&self) -> bool {
        self.is_aio_context()
    }

    /// A child process can use the ring after fork(2). An AIO context belongs to its process alone.
    /// An SQ thread exists only in the parent.
    pub(crate) fn is_inheritable(&self) -> bool {
        !self.is_aio_context() && !self.has(IORING_SETUP_SQPOLL)
    }

    /// `usring run --order` may choose the order of the ring's completions.
    pub(crate) fn has_free_order(&self) -> bool {
        !self.is_aio_context() && !self.has(IORING_SETUP_IOPOLL) && !self.is_shared()
    }

    /// Returns the words by which a rule of `--inject` may name a request. They are the kind of its
    /// call, its user data, and the ring's number (`None`: an AIO context).
    pub(crate) fn rule_words(&self, sqe: &Sqe) -> (Kind, u64, Option<u32>) {
        if self.is_aio_context() { (Kind::Aio, sqe.pad2, None) } else { (Kind::Ring, sqe.user_data, Some(self.number)) }
    }
}
