/// `struct __kernel_timespec`: the time type of every io_uring timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Timespec {
    /// Whole seconds.
    pub tv_sec: i64,
    /// Nanoseconds, 0 to 999,999,999; other values are refused with `EINVAL`.
    pub tv_nsec: i64,
}
