//! The difference between contexts of io_setup(2) and of io_setup2: which iocbs they accept, and
//! how the program gets their events.

/// The rules by which a context was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextKind {
    /// io_setup(2): the rules of today's kernels.
    Kernel,
    /// io_setup2 without IOCTX_FLAG_IOPOLL: the rules of io_setup(2), and polled requests are
    /// refused.
    Plain,
    /// io_setup2 with IOCTX_FLAG_IOPOLL: every request is polled for.
    Polled,
}
