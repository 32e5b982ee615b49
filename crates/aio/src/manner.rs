//! What differs between the contexts of io_setup(2) and those of io_setup2: which
//! iocbs they take, and how their events are come by.

/// By which rules a context was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// io_setup(2): what today's kernels do.
    Kernel,
    /// io_setup2 without IOCTX_FLAG_IOPOLL: the same, and no request is polled for.
    Plain,
    /// io_setup2 with it: every request is polled for.
    Polled,
}
