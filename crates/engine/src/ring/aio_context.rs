//! How the ring of an AIO context (io_setup(2), libaio) differs from an io_uring. The engine treats
//! these two kinds of rings alike, except where it calls one of the methods below. `calls::events`
//! has the calls on the ring of an AIO context.

use super::Ring;
use crate::observers::AIO_CONTEXT;
use usring_inject::Kind;
use usring_sys::width;
use usring_uapi::Sqe;
use usring_uapi::io_uring::IORING_SETUP_IOPOLL;

impl Ring {
    #[inline]
    fn is_aio_context(&self) -> bool {
        self.memory.layout().has_events()
    }

    /// Returns the number by which observers of requests know the ring: its own number. For a
    /// libaio context, the number is made from the ring's address and has the bit [`AIO_CONTEXT`].
    pub(crate) fn observed_number(&self) -> u32 {
        if !self.is_aio_context() {
            return self.number;
        }
        AIO_CONTEXT | width::low(core::ptr::from_ref(self) as u64 >> 6) & (AIO_CONTEXT - 1)
    }

    /// Returns whether completions are posted as events (`io_event`) and not as CQEs. Each event
    /// may also signal an eventfd.
    #[inline]
    pub(crate) fn posts_events(&self) -> bool {
        self.is_aio_context()
    }

    /// Returns whether the kernel's AIO may make the ring's writes without O_DIRECT on ordinary
    /// files. (The kernel's AIO may make the O_DIRECT transfers of any ring.)
    #[inline]
    pub(crate) fn uses_kernel_aio(&self) -> bool {
        self.is_aio_context()
    }

    /// Returns whether a transfer may block the submitting thread, as in io_submit(2).
    #[inline]
    pub(crate) fn may_block_in_submit(&self) -> bool {
        self.is_aio_context()
    }

    /// Returns whether a poll request reports the peer's hang-up (POLLRDHUP) only if the program
    /// asked for it.
    #[inline]
    pub(crate) fn reports_asked_hang_ups_only(&self) -> bool {
        self.is_aio_context()
    }

    /// Returns whether a child process can use the ring after fork(2). An AIO context belongs to
    /// one process.
    pub(crate) fn is_inheritable(&self) -> bool {
        !self.is_aio_context()
    }

    /// Returns whether `usring run --order` may choose the order of the ring's completions.
    pub(crate) fn has_free_order(&self) -> bool {
        !self.is_aio_context() && !self.has(IORING_SETUP_IOPOLL) && !self.is_shared()
    }

    /// Returns the words by which a rule of `--inject` may name a request: the kind of the
    /// request's call, its user data, and the ring's number. That number is `None` for an AIO
    /// context.
    pub(crate) fn rule_words(&self, sqe: &Sqe) -> (Kind, u64, Option<u32>) {
        if self.is_aio_context() { (Kind::Aio, sqe.pad2, None) } else { (Kind::Ring, sqe.user_data, Some(self.number)) }
    }
}
