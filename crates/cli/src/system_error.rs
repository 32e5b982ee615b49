//! The one form of a system error in messages: `EACCES: permission denied`.

use nix::errno::Errno;
use std::fmt::Display;

/// An error that may have come from a system call.
pub trait SystemError: Display {
    /// Returns the error's number, if a system call returned it.
    fn number(&self) -> Option<i32>;
}

impl SystemError for std::io::Error {
    fn number(&self) -> Option<i32> {
        self.raw_os_error()
    }
}

impl SystemError for Errno {
    fn number(&self) -> Option<i32> {
        Some(*self as i32)
    }
}

impl SystemError for usring_sys::Errno {
    fn number(&self) -> Option<i32> {
        Some(-self.negative())
    }
}

impl SystemError for seccompiler::Error {
    fn number(&self) -> Option<i32> {
        match self {
            seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error.number(),
            _ => None,
        }
    }
}

impl<T: SystemError> SystemError for &T {
    fn number(&self) -> Option<i32> {
        (*self).number()
    }
}

/// Returns the words by which messages name the error. An error that no system call returned keeps
/// its own text.
pub fn words(error: &impl SystemError) -> String {
    let Some(number) = error.number() else { return error.to_string() };
    let errno = Errno::from_raw(number);
    if errno == Errno::UnknownErrno {
        return format!("errno {number}");
    }
    let mut text = errno.desc().to_owned();
    // `text` begins with a capital letter, which becomes a small one unless it begins an
    // abbreviation.
    if text.as_bytes().get(1).is_some_and(u8::is_ascii_lowercase) {
        text[..1].make_ascii_lowercase();
    }
    format!("{errno:?}: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_system_error_has_one_form() {
        assert_eq!(words(&std::io::Error::from_raw_os_error(13)), "EACCES: permission denied");
        assert_eq!(words(&Errno::ENOENT), "ENOENT: no such file or directory");
        assert_eq!(words(&usring_sys::Errno::EIO), "EIO: I/O error");
        assert_eq!(words(&std::io::Error::from_raw_os_error(9999)), "errno 9999");
        assert_eq!(words(&std::io::Error::other("the file is short")), "the file is short");
    }
}
