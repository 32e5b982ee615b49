//! The kinds of contexts, made by io_setup(2) and by io_setup2. They differ in the iocbs that they
//! accept, and in how the program gets their events.

/// The rules that a context follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextKind {
    /// Made by io_setup(2): accepts and refuses iocbs as the current kernel does.
    Kernel,
    /// Made by io_setup2 without IOCTX_FLAG_IOPOLL: accepts and refuses iocbs as the current kernel
    /// does, except that it refuses polled requests.
    Plain,
    /// Made by io_setup2 with IOCTX_FLAG_IOPOLL: callers poll the devices for every request.
    Polled,
}
