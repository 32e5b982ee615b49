/// `struct __kernel_timespec`: what every io_uring timeout is given as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Timespec {
    /// Whole seconds.
    pub tv_sec: i64,
    /// Nanoseconds, 0 to 999,999,999; anything else is `-EINVAL`.
    pub tv_nsec: i64,
}
