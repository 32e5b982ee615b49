//! Transfers of no bytes: their effect on each kind of file, and their errors. preadv2(2) and
//! pwritev2(2) alone would not return all of these errors.

use crate::request::operation::read_write::{FILE_POSITION, KNOWN_FLAGS, NO_SIGNAL, ReadWrite};
use crate::request::outcome::IssueOutcome;
use crate::waiting::tasks::tasks;
use usring_sys::descriptor::{self, FileIdentity};
use usring_sys::plain::IoVector;
use usring_sys::signals;
use usring_sys::syscall::PASS_MARK_ABOVE_FLAGS;
use usring_sys::{Errno, SystemCall, message, width};
use usring_uapi::general as linux;

/// RWF_NOAPPEND: the write ignores O_APPEND.
const NO_APPEND: u32 = 0x20;
/// RWF_ATOMIC and RWF_DONTCACHE, which only some file systems support.
const ATOMIC: u32 = 0x40;
const DONT_CACHE: u32 = 0x80;

/// Makes a transfer of no bytes. On a datagram socket, an empty write must send an empty message.
/// On a counter such as an eventfd, an empty read must fail with EINVAL. In these cases preadv2(2)
/// and pwritev2(2) return 0 at once, so this function makes other calls.
#[cold]
#[inline(never)]
pub(super) fn move_nothing(transfer: &mut ReadWrite, number: i32) -> IssueOutcome {
    let identity = match descriptor::identity(number) {
        Ok(identity) => identity,
        Err(error) => return IssueOutcome::done(error.negative()),
    };
    let mut answer = transfer.call(number, 0).run();
    if answer == Err(Errno::ESPIPE) && transfer.offset != FILE_POSITION {
        if let Err(error) = transfer.forget_offset(number) {
            return IssueOutcome::done(error.negative());
        }
        answer = transfer.call(number, 0).run();
    }
    if answer == Ok(0) {
        answer = check_flags(transfer, number, &identity).map(|()| 0);
    }
    if answer == Ok(0) && !transfer.writes && identity.is_anonymous() {
        answer = read_too_little(number);
    }
    if answer == Ok(0) && transfer.writes && identity.is_socket() {
        answer = write_nothing(transfer, number);
    }
    IssueOutcome::of(answer.map(width::int))
}

/// Makes an empty write on a socket: it sends an empty message, if the socket keeps message
/// boundaries.
fn write_nothing(transfer: &ReadWrite, number: i32) -> Result<u64, Errno> {
    if transfer.flags & NO_SIGNAL != 0 {
        return message::send_call(number, IoVector::default(), message::NO_SIGNAL, None).run();
    }
    let answer = SystemCall::new(linux::__NR_write, [width::word(number), transfer.first.base, 0, 0, 0]).run();
    if answer == Err(Errno::EPIPE) {
        signal_broken_pipe(transfer);
    }
    answer
}

/// Checks the flags of a transfer of no bytes. preadv2(2) and pwritev2(2) do not check them.
fn check_flags(transfer: &ReadWrite, number: i32, identity: &FileIdentity) -> Result<(), Errno> {
    const BOTH_APPENDS: u32 = linux::RWF_APPEND | NO_APPEND;
    let flags = transfer.asked_flags();
    if flags & !KNOWN_FLAGS != 0 || flags & ATOMIC != 0 || flags & DONT_CACHE != 0 && !identity.is_regular() {
        return Err(Errno::EOPNOTSUPP);
    }
    if identity.is_regular() && flags & (linux::RWF_NOWAIT | DONT_CACHE) != 0 {
        file_takes(number, flags)?;
    }
    if flags & BOTH_APPENDS == BOTH_APPENDS { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Checks whether a regular file supports these flags, by a read into memory that is not mapped.
fn file_takes(number: i32, flags: u32) -> Result<(), Errno> {
    let nowhere = IoVector { base: 0, length: 1 };
    let flags = u64::from(flags & (linux::RWF_NOWAIT | DONT_CACHE)) | PASS_MARK_ABOVE_FLAGS;
    let arguments = [width::word(number), &raw const nowhere as u64, 1, 0, 0, flags];
    match SystemCall::with_six(linux::__NR_preadv2, arguments).run() {
        Err(Errno::EOPNOTSUPP) => Err(Errno::EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// Reads one byte. Counters, timers and similar files refuse such a short read (EINVAL).
fn read_too_little(number: i32) -> Result<u64, Errno> {
    let mut byte = 0u8;
    let part = IoVector { base: &raw mut byte as u64, length: 1 };
    let flags = u64::from(linux::RWF_NOWAIT) | PASS_MARK_ABOVE_FLAGS;
    let arguments = [width::word(number), &raw const part as u64, 1, FILE_POSITION, 0, flags];
    match SystemCall::with_six(linux::__NR_preadv2, arguments).run() {
        Err(Errno::EINVAL) => Err(Errno::EINVAL),
        _ => Ok(0),
    }
}

/// Raises SIGPIPE after a write to a pipe without readers, if the ring watcher's thread made the
/// write. The kernel raises SIGPIPE in the writing thread, but usring's threads block that signal.
/// So this function sends SIGPIPE to the process. (If the submitter had made the write, the kernel
/// would have raised SIGPIPE in the submitter.)
#[cold]
pub(super) fn signal_broken_pipe(transfer: &ReadWrite) {
    if transfer.flags & NO_SIGNAL == 0 && tasks().is_current() {
        signals::send_to_process(linux::SIGPIPE);
    }
}
