/// `struct __kernel_timespec`: the time type of every io_uring timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Timespec {
    /// Whole seconds.
    pub tv_sec: i64,
    /// Nanoseconds in addition to `tv_sec`. io_uring accepts 10⁹ and more, too, and refuses
    /// negative values with `EINVAL`.
    pub tv_nsec: i64,
}
