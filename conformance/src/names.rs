//! The names of errnos and flags. Transcripts contain these names instead of numbers, such as
//! `-ENOBUFS` and `MORE|BUFFER`.

use usring_uapi::errno as e;
use usring_uapi::io_uring as u;

macro_rules! errno_names {
    ($($name:ident)*) => { &[$((e::$name as i32, stringify!($name))),*] };
}

const ERRNOS: &[(i32, &str)] = errno_names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST
    EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS
    EPIPE ENOSYS ELOOP ENOTEMPTY EOVERFLOW EBADFD EILSEQ EOPNOTSUPP ECONNRESET ENOBUFS ENOTCONN
    ETIMEDOUT EALREADY ECANCELED EOWNERDEAD ETIME EBADR ENAMETOOLONG EPROTO ENODATA ENOTSOCK
    ECONNREFUSED EDOM ERANGE EUSERS ELIBBAD ENOEXEC EBADMSG ENETUNREACH EADDRINUSE EADDRNOTAVAIL
    EAFNOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT EPROTOTYPE EISCONN EINPROGRESS ECONNABORTED EDESTADDRREQ
    ENOPROTOOPT
};

/// Formats the result of a system call: the number itself, or `-ENAME` for a negative errno.
pub fn result(value: i32) -> String {
    if value >= 0 {
        return value.to_string();
    }
    match ERRNOS.iter().find(|(number, _)| *number == -value) {
        Some((_, name)) => format!("-{name}"),
        None => format!("-errno({})", -value),
    }
}

/// Formats a result whose exact value the kernel does not guarantee, such as a descriptor or an
/// address. The text is `ok`, or `-ENAME` for a negative errno.
pub fn outcome(value: i64) -> String {
    if value >= 0 { "ok".into() } else { result(value as i32) }
}

/// Returns the names of the bits that are set in `word`, joined by `|`. Returns `-` if no bit is
/// set.
pub fn bits(word: u32, names: &[(u32, &str)]) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut left = word;
    for (bit, name) in names {
        if left & bit != 0 {
            words.push((*name).into());
            left &= !bit;
        }
    }
    if left != 0 {
        words.push(format!("{left:#x}"));
    }
    if words.is_empty() { "-".into() } else { words.join("|") }
}

/// Formats the flags of a CQE as names. The id of a selected buffer follows in brackets.
pub fn cqe_flags(flags: u32) -> String {
    let names = [
        (u::IORING_CQE_F_MORE, "MORE"),
        (u::IORING_CQE_F_SOCK_NONEMPTY, "SOCK_NONEMPTY"),
        (u::IORING_CQE_F_NOTIF, "NOTIF"),
        (u::IORING_CQE_F_BUF_MORE, "BUF_MORE"),
    ];
    let low = flags & 0xffff & !u::IORING_CQE_F_BUFFER;
    let mut text = bits(low, &names);
    if flags & u::IORING_CQE_F_BUFFER != 0 {
        let buffer = format!("BUFFER({})", flags >> u::IORING_CQE_BUFFER_SHIFT);
        text = if text == "-" { buffer } else { format!("{text}|{buffer}") };
    } else if flags >> 16 != 0 {
        text = format!("{text}|upper({})", flags >> 16);
    }
    text
}

/// Formats the word of flags in the SQ ring as names.
pub fn sq_flags(flags: u32) -> String {
    bits(
        flags,
        &[
            (u::IORING_SQ_NEED_WAKEUP, "NEED_WAKEUP"),
            (u::IORING_SQ_CQ_OVERFLOW, "CQ_OVERFLOW"),
            (u::IORING_SQ_TASKRUN, "TASKRUN"),
        ],
    )
}

/// Formats poll events as names.
pub fn events(events: i32) -> String {
    if events < 0 {
        return result(events);
    }
    bits(
        events as u32,
        &[
            (libc::POLLIN as u32, "IN"),
            (libc::POLLPRI as u32, "PRI"),
            (libc::POLLOUT as u32, "OUT"),
            (libc::POLLERR as u32, "ERR"),
            (libc::POLLHUP as u32, "HUP"),
            (libc::POLLNVAL as u32, "NVAL"),
            (libc::POLLRDNORM as u32, "RDNORM"),
            (libc::POLLRDBAND as u32, "RDBAND"),
            (libc::POLLWRNORM as u32, "WRNORM"),
            (libc::POLLWRBAND as u32, "WRBAND"),
            (libc::POLLRDHUP as u32, "RDHUP"),
        ],
    )
}
