//! The names of errnos and signals, as strace(1) takes them.

use usring_uapi::{errno, general};

macro_rules! errnos {
    ($($name:ident)*) => {
        /// Each errno with its name.
        const ERRNOS: &[(&str, u32)] = &[$((stringify!($name), errno::$name)),*];
    };
}

errnos! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST
    EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE
    EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH
    ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE
    ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD
    ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
    EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN
    ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT
    ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT
    ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL
    EHWPOISON
}

/// Second names of errnos.
const ALIASES: [(&str, &str); 3] = [("EWOULDBLOCK", "EAGAIN"), ("EDEADLOCK", "EDEADLK"), ("ENOTSUP", "EOPNOTSUPP")];

/// Highest errno that a system call can answer.
const HIGHEST: u32 = 4095;

/// Returns the errno with this name or number (1 to 4095). `None`: there is no such errno.
pub fn errno(text: &str) -> Option<u16> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == text).map_or(text, |(_, name)| name);
    let known = ERRNOS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let number = known.or_else(|| number(text))?;
    u16::try_from(number).ok().filter(|number| *number >= 1 && u32::from(*number) <= HIGHEST)
}

/// Returns the name of an errno; `None` if the number has no name.
pub fn errno_name(number: u16) -> Option<&'static str> {
    ERRNOS.iter().find(|(_, known)| *known == u32::from(number)).map(|(name, _)| *name)
}

macro_rules! signals {
    ($($name:ident)*) => {
        /// Each signal with its name.
        const SIGNALS: &[(&str, u32)] = &[$((stringify!($name), general::$name)),*];
    };
}

signals! {
    SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM SIGTERM
    SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO
    SIGPWR SIGSYS
}

/// Highest signal (SIGRTMAX).
const HIGHEST_SIGNAL: u32 = 64;

/// Returns the signal with this name (`SIGTERM` or `TERM`) or number. `None`: there is no such
/// signal.
pub fn signal(text: &str) -> Option<u8> {
    let bare = text.strip_prefix("SIG").unwrap_or(text);
    let known = SIGNALS.iter().find(|(name, _)| name.strip_prefix("SIG") == Some(bare)).map(|(_, number)| *number);
    let number = known.or_else(|| number(text))?;
    u8::try_from(number).ok().filter(|number| *number >= 1 && u32::from(*number) <= HIGHEST_SIGNAL)
}

/// Returns the name of a signal; `None` for real-time signals.
pub fn signal_name(number: u8) -> Option<&'static str> {
    SIGNALS.iter().find(|(_, known)| *known == u32::from(number)).map(|(name, _)| *name)
}

/// Parses a number that consists of digits only. (`parse` alone would accept a sign.) `None` for
/// any other text.
fn number(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_has_a_name_or_a_number() {
        assert_eq!(errno("EIO"), Some(5));
        assert_eq!(errno("EWOULDBLOCK"), errno("EAGAIN"));
        assert_eq!(errno("4095"), Some(4095));
        assert_eq!(errno("4096"), None);
        assert_eq!(errno("0"), None);
        assert_eq!(errno("-5"), None);
        assert_eq!(errno("eio"), None);
        assert_eq!(errno_name(28), Some("ENOSPC"));
    }

    #[test]
    fn a_signal_has_a_name_or_a_number() {
        assert_eq!(signal("SIGUSR1"), Some(10));
        assert_eq!(signal("USR1"), Some(10));
        assert_eq!(signal("64"), Some(64));
        assert_eq!(signal("65"), None);
        assert_eq!(signal("SIGNONE"), None);
    }
}
