/// `struct __kernel_timespec`: the time type of every io_uring timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Timespec {
    /// Whole seconds.
    pub tv_sec: i64,
    /// Nanoseconds. io_uring also accepts 1,000,000,000 and more; it refuses negative values with
    /// `EINVAL`.
    pub tv_nsec: i64,
}
