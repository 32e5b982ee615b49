//! Lists the threads of the process (/proc/self/task), and determines how a thread has ended.
//! [`crate::own_threads`] knows which of the threads are usring's.

use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall, width};
use core::mem::offset_of;
use linux_raw_sys::general as linux;

/// Returns the id of the first listed thread of the process for which `is_sought` returns `true`.
pub fn find(is_sought: impl Fn(u32) -> bool) -> Result<Option<u32>, Errno> {
    let path = c"/proc/self/task".as_ptr() as u64;
    let flags = u64::from(linux::O_RDONLY | linux::O_DIRECTORY | linux::O_CLOEXEC);
    let opened = SystemCall::new(linux::__NR_openat, [width::word(linux::AT_FDCWD), path, flags, 0, 0]).run()?;
    let directory = OwnedDescriptor::from_raw(width::int(opened));
    let mut entries = [0u8; 512];
    loop {
        let arguments = [width::word(directory.number()), entries.as_mut_ptr() as u64, entries.len() as u64, 0, 0];
        let length = width::size(SystemCall::new(linux::__NR_getdents64, arguments).run()?);
        if length == 0 {
            return Ok(None);
        }
        let mut at = 0;
        while at < length {
            let size = usize::from(u16::from_le_bytes([entries[at + 16], entries[at + 17]]));
            let found = number_in(&entries[at + NAME_IN_ENTRY..at + size]).filter(|thread| is_sought(*thread));
            if found.is_some() {
                return Ok(found);
            }
            at += size;
        }
    }
}

/// Offset of the name in a `struct linux_dirent64`, in bytes. (The entry's size is at offset 16.)
const NAME_IN_ENTRY: usize = 19;

/// Parses a directory entry's name as a number, if it is one.
fn number_in(name: &[u8]) -> Option<u32> {
    let digits = name.split(|byte| *byte == 0).next()?;
    let number = digits.iter().try_fold(0u32, |number, byte| {
        byte.is_ascii_digit().then(|| number.wrapping_mul(10).wrapping_add(u32::from(byte - b'0')))
    })?;
    (!digits.is_empty()).then_some(number)
}

/// Returns the id of the process's first thread. Linux lists this thread in /proc even after it has
/// ended.
pub fn first() -> u32 {
    width::low(SystemCall::new(linux::__NR_getpid, [0; 5]).run_once().unwrap_or(0))
}

/// Returns the status that a thread passed to exit(2), if the thread has ended and Linux still
/// lists it in /proc/self/task.
pub fn status_of_ended(thread: u32) -> Option<u8> {
    let mut text = [0u8; 1024];
    status_in(read_stat(thread, &mut text)?)
}

/// Returns whether a thread has begun to end. Such a thread runs no more code in user mode. Returns
/// `false` if Linux no longer lists the thread.
pub fn is_ending(thread: u32) -> bool {
    // The buffer has room for the fields up to the flags: seven numbers, the state, and a name of
    // 15 bytes. It is small because the caller may run on a small signal stack of the program.
    let mut text = [0u8; 128];
    read_stat(thread, &mut text).and_then(has_begun_to_end).unwrap_or(false)
}

/// Reads `/proc/self/task/TID/stat`.
fn read_stat(thread: u32, text: &mut [u8]) -> Option<&[u8]> {
    let mut path = [0u8; 40];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        path[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    let digits = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0].map(|place| b'0' + (thread / 10u32.pow(place) % 10) as u8);
    let leading = digits.iter().take_while(|digit| **digit == b'0').count();
    put(b"/proc/self/task/");
    put(&digits[leading..]);
    put(b"/stat\0");
    let flags = u64::from(linux::O_RDONLY | linux::O_CLOEXEC);
    let arguments = [width::word(linux::AT_FDCWD), path.as_ptr() as u64, flags, 0, 0];
    let file = OwnedDescriptor::from_raw(width::int(SystemCall::new(linux::__NR_openat, arguments).run().ok()?));
    let arguments = [width::word(file.number()), text.as_mut_ptr() as u64, text.len() as u64, 0, 0];
    let length = width::size(SystemCall::new(linux::__NR_read, arguments).run().ok()?);
    Some(&text[..length])
}

/// Returns the fields of `/proc/PID/stat` from the state on.
fn fields_of(text: &[u8]) -> Option<impl DoubleEndedIterator<Item = &[u8]>> {
    // The thread's name comes before the state, in parentheses. It may contain any character, even
    // a parenthesis.
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    Some(text[name_end + 1..].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()))
}

/// PF_EXITING, a bit of the field of flags in `/proc/PID/stat`. Linux sets it before it clears the
/// thread's id in memory (CLONE_CHILD_CLEARTID).
const EXITING: u32 = 0x4;
/// Number of fields between the state and the flags in `/proc/PID/stat`.
const BEFORE_FLAGS: usize = 5;

fn has_begun_to_end(text: &[u8]) -> Option<bool> {
    let flags = fields_of(text)?.nth(1 + BEFORE_FLAGS).and_then(number_in)?;
    Some(flags & EXITING != 0)
}

/// Returns the exit status, which is the last field of `/proc/PID/stat`. `None` for a thread that
/// is not in state Z or X.
fn status_in(text: &[u8]) -> Option<u8> {
    let mut fields = fields_of(text)?;
    let has_ended = matches!(fields.next()?, b"Z" | b"X");
    let status = fields.next_back().and_then(number_in)?;
    has_ended.then_some(width::byte((status >> 8).into()))
}

/// A pidfd of one thread. It becomes readable once the thread has ended.
#[derive(Debug)]
pub struct ThreadDescriptor(OwnedDescriptor);

/// PIDFD_THREAD (Linux 6.9): the pidfd is for one thread, not for its process.
const THREAD: u32 = linux::O_EXCL;
/// The ioctl PIDFD_GET_INFO; its flag PIDFD_INFO_EXIT (`EXIT`, Linux 6.15).
const GET_INFORMATION: u64 = 0xc040_ff0b;
const EXIT: u64 = 1 << 3;

/// `struct pidfd_info`.
#[repr(C)]
#[derive(Default)]
struct Information {
    mask: u64,
    control_group: u64,
    ids: [u32; 11],
    exit_status: i32,
}

const _: () = assert!(size_of::<Information>() == 64 && offset_of!(Information, exit_status) == 60);

impl ThreadDescriptor {
    /// Opens a pidfd of a thread. Errors: `EINVAL` before Linux 6.9; `ESRCH` if there is no such
    /// thread.
    pub fn open(thread: u32) -> Result<ThreadDescriptor, Errno> {
        let number = SystemCall::new(linux::__NR_pidfd_open, [u64::from(thread), u64::from(THREAD), 0, 0, 0]).run()?;
        OwnedDescriptor::from_raw(width::int(number)).into_private().map(ThreadDescriptor)
    }

    pub fn number(&self) -> i32 {
        self.0.number()
    }

    /// Returns the status that the thread passed to exit(2). The thread must have ended. `None` if
    /// the kernel does not report the status.
    ///
    /// Error: `EAGAIN` if Linux still lists the thread in /proc/self/task.
    pub fn exit_code(&self) -> Result<Option<u8>, Errno> {
        let mut information = Information { mask: EXIT, ..Information::default() };
        let arguments = [width::word(self.number()), GET_INFORMATION, &raw mut information as u64, 0, 0];
        match SystemCall::new(linux::__NR_ioctl, arguments).run() {
            Ok(_) if information.mask & EXIT != 0 => Ok(Some(width::byte(width::word(information.exit_status >> 8)))),
            Ok(_) => Err(Errno::EAGAIN),
            // Before Linux 6.13, the kernel answers ENOTTY. Before 6.15, it answers ESRCH as soon
            // as it no longer lists the thread.
            Err(_) => Ok(None),
        }
    }
}
