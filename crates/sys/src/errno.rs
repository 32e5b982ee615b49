use core::fmt;

/// A positive Linux error number, as in errno(3).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Errno(i32);

impl Errno {
    /// Makes an error from its positive number.
    pub const fn new(number: u32) -> Self {
        Errno(number.cast_signed())
    }

    /// Returns the negative error number, as system calls and CQEs report it.
    pub const fn negative(self) -> i32 {
        -self.0
    }
}

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(pub const $name: Errno = Errno::new(linux_raw_sys::errno::$name);)*

            /// Returns the error's symbolic name, such as `EINVAL`. `None` for an error that usring
            /// itself never returns.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Errno::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

names! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENOTDIR EISDIR EINVAL
    ENFILE EMFILE ENOTTY EFBIG ENOSPC ESPIPE EPIPE EDOM ERANGE ENAMETOOLONG ENOSYS ELIBBAD EBADFD EBADR EOVERFLOW
    EOPNOTSUPP ENOBUFS ETIME ETIMEDOUT EALREADY ECANCELED EOWNERDEAD ENODEV EXDEV ESRCH ECHILD ENOTSOCK
    EINPROGRESS ENODATA EROFS ECONNRESET ECONNREFUSED EISCONN ECONNABORTED EMSGSIZE
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
