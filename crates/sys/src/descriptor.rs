//! usring's own file descriptors, at numbers that are private to usring ([`crate::own_numbers`]).
//! Also queries about files.

use crate::mutex::Mutex;
use crate::own_numbers;
pub use crate::own_numbers::{RESERVED_BASE, close, has_private, is_private, leave_to_parent, private_between};
use crate::per_process::PerProcess;
use crate::set_once::SetOnce;
use crate::{Errno, SystemCall, UserAddress, valgrind, width};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use linux_raw_sys::general as linux;

/// Owner of a file descriptor. Dropping it closes the descriptor.
#[derive(Debug)]
pub struct OwnedDescriptor(i32);

impl OwnedDescriptor {
    /// Makes the owner of a descriptor that the kernel has just returned.
    pub fn from_raw(number: i32) -> Self {
        debug_assert!(number >= 0);
        OwnedDescriptor(number)
    }

    pub fn number(&self) -> i32 {
        self.0
    }

    /// Returns the number, and gives up ownership without closing the descriptor.
    pub fn into_raw(self) -> i32 {
        let number = self.0;
        core::mem::forget(self);
        number
    }

    /// Moves the descriptor to a number that is private to usring, closed on exec.
    pub fn into_private(self) -> Result<Self, Errno> {
        duplicate_private(self.0)
    }

    /// Closes the descriptor; returns the result of close(2).
    pub fn close(self) -> Result<(), Errno> {
        close(self.into_raw())
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        let _ = close(self.0);
    }
}

/// The private descriptors that forked children keep open, as set by [`keep_after_fork`]. An entry
/// is the descriptor number plus one; 0 in an unused entry.
static KEPT_AFTER_FORK: [AtomicI32; MOST_KEPT_AFTER_FORK] = [const { AtomicI32::new(0) }; MOST_KEPT_AFTER_FORK];
pub const MOST_KEPT_AFTER_FORK: usize = 8;

/// Sets the private descriptors that each child forked from now on keeps open. Returns `false` if
/// `numbers` has more than [`MOST_KEPT_AFTER_FORK`] elements. Then children keep only the first of
/// these descriptors open. Only one thread at a time may call this function.
pub fn keep_after_fork(numbers: &[i32]) -> bool {
    let numbers_and_none = numbers.iter().map(|number| number + 1).chain(core::iter::repeat(0));
    KEPT_AFTER_FORK.iter().zip(numbers_and_none).for_each(|(place, number)| place.store(number, Ordering::Relaxed));
    numbers.len() <= MOST_KEPT_AFTER_FORK
}

/// The private descriptors that all descendants of this process keep open ([`keep_in_children`]).
/// Each number is stored plus one, so that 0 means none.
static KEPT_IN_CHILDREN: [AtomicI32; MOST_KEPT_IN_CHILDREN] = [const { AtomicI32::new(0) }; MOST_KEPT_IN_CHILDREN];
const MOST_KEPT_IN_CHILDREN: usize = 64;

/// Makes all descendants of this process keep a private descriptor open. The descriptor must never
/// be closed. Returns `false` if there are too many such descriptors.
pub fn keep_in_children(number: i32) -> bool {
    KEPT_IN_CHILDREN
        .iter()
        .any(|place| place.compare_exchange(0, number + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok())
}

/// Closes the private duplicates that a forked child inherited, because they would keep the
/// parent's files open. Descriptors of [`keep_after_fork`] and [`keep_in_children`] stay open.
pub fn close_private_after_fork() {
    own_numbers::close_after_fork(|number| {
        let mut kept = KEPT_AFTER_FORK.iter().chain(&KEPT_IN_CHILDREN);
        kept.any(|kept| kept.load(Ordering::Relaxed) == number + 1)
    });
}

/// Makes a pipe by pipe2(2). Returns its read end and its write end.
pub fn pipe(flags: u32) -> Result<[OwnedDescriptor; 2], Errno> {
    let mut numbers = [0i32; 2];
    SystemCall::new(linux::__NR_pipe2, [&raw mut numbers as u64, u64::from(flags), 0, 0, 0]).run()?;
    Ok(numbers.map(OwnedDescriptor::from_raw))
}

/// Makes a duplicate of the program's descriptor at a number that is private to usring, closed on
/// exec.
pub fn duplicate_private(number: i32) -> Result<OwnedDescriptor, Errno> {
    own_numbers::duplicate(number, None)
}

/// Parked duplicates. usring needs them no more, but keeps them open for now, because close(2)
/// would drop record locks of the program. See [`release`].
static PARKED: PerProcess<Mutex<Vec<OwnedDescriptor>>> = PerProcess::new();
static PARKED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The function to call when a duplicate is parked (kept open because close(2) would drop record
/// locks of the program). Empty until [`set_parked_hook`].
static PARKED_HOOK: SetOnce<fn()> = SetOnce::new();

/// Sets the function that is called when a duplicate is parked (kept open for the program's record
/// locks). The module that sets the function then has to call [`close_unlocked`] from time to time,
/// until no duplicate is parked.
pub fn set_parked_hook(hook: &'static fn()) {
    PARKED_HOOK.set(hook);
}

/// Returns whether a duplicate is parked: kept open because close(2) would drop record locks of the
/// program.
pub fn has_parked() -> bool {
    PARKED_COUNT.load(Ordering::Relaxed) != 0
}

/// Closes the parked duplicates (kept open for record locks) whose files have no record lock any
/// more.
pub fn close_unlocked() {
    let mut parked = parked().lock();
    parked.retain(|duplicate| is_locked(duplicate.number()));
    PARKED_COUNT.store(parked.len(), Ordering::Relaxed);
}

fn parked() -> &'static Mutex<Vec<OwnedDescriptor>> {
    PARKED.get_or_make(|| Mutex::new(Vec::new()))
}

/// Releases a private duplicate of a file that may have record locks.
///
/// If a process closes any descriptor of a file, it loses all its POSIX record locks on the file
/// (fcntl(2), "Advisory record locking"). The program must keep its locks. So while any process
/// holds such a lock on the file, the duplicate is parked: it stays open, and serves the next
/// request for this file.
fn release(duplicate: OwnedDescriptor) {
    if !has_parked() && !is_locked(duplicate.number()) {
        return;
    }
    parked().lock().push(duplicate);
    close_unlocked();
    if has_parked()
        && let Some(hook) = PARKED_HOOK.get()
    {
        hook();
    }
}

/// Owner of a duplicated descriptor that only usring uses. Closing the descriptor would release the
/// program's record locks on the file (fcntl(2)). So if any process holds such a lock when the
/// owner is dropped, the descriptor stays open for now (is parked). The default value has no
/// descriptor.
#[derive(Debug, Default)]
pub struct HeldDescriptor {
    duplicate: Option<OwnedDescriptor>,
    /// Whether the file is of a kind that takes no record locks. If so, the drop of this value does
    /// not check for locks.
    never_locked: bool,
}

impl HeldDescriptor {
    pub fn new(duplicate: OwnedDescriptor) -> Self {
        HeldDescriptor { duplicate: Some(duplicate), never_locked: false }
    }

    pub fn number(&self) -> i32 {
        self.duplicate.as_ref().map_or(-1, OwnedDescriptor::number)
    }

    /// Records that the file is of a kind that takes no record locks
    /// ([`FileIdentity::is_never_locked`]).
    pub fn assume_never_locked(&mut self) {
        self.never_locked = true;
    }

    /// Returns whether the duplicate has the preferred number for a duplicate of the program's
    /// descriptor `number` (see [`duplicate_at_preferred`]).
    pub fn has_preferred_number(&self, number: i32) -> bool {
        self.number() == own_numbers::preferred(number)
    }
}

impl Drop for HeldDescriptor {
    fn drop(&mut self) {
        match self.duplicate.take() {
            Some(duplicate) if self.never_locked => drop(duplicate),
            Some(duplicate) => release(duplicate),
            None => {}
        }
    }
}

/// Returns a private duplicate of a file, for a request that has to wait or for a registered file.
/// If a duplicate of this file is parked (kept open for the program's record locks), returns the
/// parked duplicate. Otherwise makes a new duplicate.
pub fn hold(number: i32) -> Result<HeldDescriptor, Errno> {
    hold_at(number, None)
}

/// Returns a private duplicate of a file, at the preferred number if that number is free. The
/// preferred number depends only on `number`.
pub fn duplicate_at_preferred(number: i32) -> Result<HeldDescriptor, Errno> {
    hold_at(number, Some(own_numbers::preferred(number)))
}

fn hold_at(number: i32, wish: Option<i32>) -> Result<HeldDescriptor, Errno> {
    if has_parked() {
        let mut parked = parked().lock();
        if let Some(index) = parked.iter().position(|other| is_same_file(other.number(), number)) {
            let duplicate = parked.swap_remove(index);
            PARKED_COUNT.store(parked.len(), Ordering::Relaxed);
            return Ok(HeldDescriptor::new(duplicate));
        }
    }
    own_numbers::duplicate(number, wish).map(HeldDescriptor::new)
}

/// Value of `l_type` for a write lock (F_WRLCK).
pub(crate) const WRITE_LOCK: i16 = width::short(linux::F_WRLCK as u64).cast_signed();

/// Returns whether any process has a record lock on the file. F_OFD_GETLK asks for locks that
/// conflict with a lock of an open file description. Every record lock conflicts with it, even one
/// of this process.
fn is_locked(number: i32) -> bool {
    let mut lock = linux::flock { l_type: WRITE_LOCK, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    let command = u64::from(linux::F_OFD_GETLK);
    let asked = SystemCall::new(linux::__NR_fcntl, [width::word(number), command, &raw mut lock as u64, 0, 0]).run();
    asked.is_ok() && u32::from(lock.l_type.cast_unsigned()) != linux::F_UNLCK
}

/// Makes a duplicate at the lowest free number from `lowest` on, closed on exec.
pub fn duplicate_from(number: i32, lowest: i32) -> Result<OwnedDescriptor, Errno> {
    let arguments = [width::word(number), u64::from(linux::F_DUPFD_CLOEXEC), width::word(lowest), 0, 0];
    SystemCall::new(linux::__NR_fcntl, arguments).run().map(|new| OwnedDescriptor(width::int(new)))
}

/// Returns the program's soft limit of open files.
pub fn program_limit() -> u64 {
    own_numbers::limits().map_or(1024, |[soft, _]| soft)
}

/// Makes a duplicate at the lowest free number, for the program. Returns its number.
pub fn duplicate_for_program(number: i32, close_on_exec: bool) -> Result<i32, Errno> {
    let command = if close_on_exec { linux::F_DUPFD_CLOEXEC } else { linux::F_DUPFD };
    let arguments = [width::word(number), u64::from(command), 0, 0, 0];
    SystemCall::new(linux::__NR_fcntl, arguments).run().map(width::int)
}

/// Makes a private duplicate of an eventfd. Errors: `EINVAL` for any other file. The kernel's
/// `eventfd_ctx_fdget` has this error, too.
pub fn duplicate_eventfd(number: i32) -> Result<OwnedDescriptor, Errno> {
    let duplicate = duplicate_private(number)?;
    let link = link_of(duplicate.number());
    // Without /proc the file's kind cannot be checked.
    if link[0] == 0 || link.starts_with(b"anon_inode:[eventfd]") { Ok(duplicate) } else { Err(Errno::EINVAL) }
}

/// Returns the first 32 bytes of the target of a descriptor's link in /proc. Returns only zeroes if
/// /proc is missing.
pub(crate) fn link_of(number: i32) -> [u8; 32] {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0u8; 10];
    let mut rest = number.cast_unsigned();
    let mut count = 0;
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    for (place, digit) in path[14..].iter_mut().zip(digits[..count].iter().rev()) {
        *place = *digit;
    }
    let mut link = [0u8; 32];
    let arguments = [path.as_ptr() as u64, link.as_mut_ptr() as u64, link.len() as u64, 0, 0];
    let _ = SystemCall::new(linux::__NR_readlink, arguments).run();
    link
}

/// Returns whether the file is open with O_DIRECT.
pub fn is_direct(number: i32) -> bool {
    status_flags(number).is_ok_and(|flags| flags & linux::O_DIRECT != 0)
}

/// Clears O_NONBLOCK.
pub fn clear_nonblocking(number: i32) -> Result<(), Errno> {
    set_status_flags(number, status_flags(number)? & !linux::O_NONBLOCK)
}

/// Sets the status flags by fcntl(F_SETFL).
pub fn set_status_flags(number: i32, flags: u32) -> Result<(), Errno> {
    let arguments = [width::word(number), u64::from(linux::F_SETFL), u64::from(flags), 0, 0];
    SystemCall::new(linux::__NR_fcntl, arguments).run().map(drop)
}

/// Returns the status flags, by fcntl(F_GETFL).
pub fn status_flags(number: i32) -> Result<u32, Errno> {
    let arguments = [width::word(number), u64::from(linux::F_GETFL), 0, 0, 0];
    SystemCall::new(linux::__NR_fcntl, arguments).run().map(width::low)
}

/// The fields of fstat(2) that the engine uses.
#[derive(Clone, Copy, Debug)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
    /// Size of a regular file, in bytes.
    pub size: u64,
    mode: u32,
}

impl FileIdentity {
    pub fn is_regular(&self) -> bool {
        self.mode & linux::S_IFMT == linux::S_IFREG
    }

    /// Returns whether the file is a regular file or a block device.
    pub fn is_stored(&self) -> bool {
        self.is_regular() || self.is_block_device()
    }

    /// Returns whether a transfer may have to wait for another process or a peer: `true` for any
    /// file but regular files, directories and block devices.
    pub fn can_wait(&self) -> bool {
        let kind = self.mode & linux::S_IFMT;
        !matches!(kind, linux::S_IFREG | linux::S_IFDIR | linux::S_IFBLK)
    }

    /// Returns whether files of this kind never have record locks. Such files are sockets, pipes
    /// and anonymous inodes (whose mode has no kind).
    pub fn is_never_locked(&self) -> bool {
        matches!(self.mode & linux::S_IFMT, linux::S_IFSOCK | linux::S_IFIFO | 0)
    }

    /// Returns whether the file is an anonymous inode: an eventfd, a timer and the like.
    pub fn is_anonymous(&self) -> bool {
        self.mode & linux::S_IFMT == 0
    }

    pub fn is_character_device(&self) -> bool {
        self.mode & linux::S_IFMT == linux::S_IFCHR
    }

    pub fn is_socket(&self) -> bool {
        self.mode & linux::S_IFMT == linux::S_IFSOCK
    }

    pub fn is_block_device(&self) -> bool {
        self.mode & linux::S_IFMT == linux::S_IFBLK
    }
}

/// Returns whether two descriptor numbers refer to one open file description. `false` if that is
/// not known.
pub fn is_same_file(one: i32, other: i32) -> bool {
    same_file(one, other) == Some(true)
}

/// Returns whether `number` refers to the open file description to which `other` refers in another
/// process. `false` if that is not known: kcmp(2) decides, and a sandbox can deny it, or this
/// process has no right to inspect the other process.
pub fn is_file_of(process: u32, other: i32, number: i32) -> bool {
    let own = SystemCall::new(linux::__NR_getpid, [0; 5]).run().unwrap_or(0);
    let arguments = [own, process.into(), KCMP_FILE, width::word(number), width::word(other)];
    SystemCall::new(linux::__NR_kcmp, arguments).run() == Ok(0)
}

/// The type of comparison of kcmp(2) for open file descriptions.
const KCMP_FILE: u64 = 0;

/// Returns whether two descriptor numbers refer to one open file description. Uses
/// fcntl(F_DUPFD_QUERY) from Linux 6.10 on, and kcmp(2) before. If a sandbox denies both, inode and
/// status flags decide. Anonymous inodes (eventfds, timers) all share one inode. For two of them
/// with equal flags the answer is then not known: `None`.
pub fn same_file(one: i32, other: i32) -> Option<bool> {
    if one == other {
        return Some(true);
    }
    let arguments = [width::word(one), u64::from(linux::F_DUPFD_QUERY), width::word(other), 0, 0];
    // Valgrind does not know this command of fcntl(2), and would print a warning.
    if !valgrind::is_there()
        && let Ok(same) = SystemCall::new(linux::__NR_fcntl, arguments).run()
    {
        return Some(same == 1);
    }
    let process = SystemCall::new(linux::__NR_getpid, [0; 5]).run().unwrap_or(0);
    let arguments = [process, process, KCMP_FILE, width::word(one), width::word(other)];
    if let Ok(order) = SystemCall::new(linux::__NR_kcmp, arguments).run() {
        return Some(order == 0);
    }
    let (Ok(first), Ok(second)) = (identity(one), identity(other)) else { return Some(false) };
    let same_inode = first.device == second.device && first.inode == second.inode;
    let same_mode = status_flags(one).is_ok_and(|flags| status_flags(other) == Ok(flags));
    // S_IFMT bits are zero for anonymous inodes only.
    let has_inode_of_its_own = first.mode & linux::S_IFMT != 0;
    if same_inode && same_mode && !has_inode_of_its_own { None } else { Some(same_inode && same_mode) }
}

/// Returns a file's identity, by fstat(2).
pub fn identity(number: i32) -> Result<FileIdentity, Errno> {
    identity_by(|buffer| SystemCall::new(linux::__NR_fstat, [width::word(number), buffer, 0, 0, 0]))
}

/// Returns the identity of the file at a path in the program's memory, by fstatat(2). Follows
/// symbolic links.
pub fn identity_of_path(directory: i32, path: UserAddress) -> Result<FileIdentity, Errno> {
    let arguments = |buffer| [width::word(directory), path.0, buffer, 0, 0];
    identity_by(|buffer| SystemCall::new(linux::__NR_newfstatat, arguments(buffer)))
}

fn identity_by(call: impl FnOnce(u64) -> SystemCall) -> Result<FileIdentity, Errno> {
    let mut buffer = core::mem::MaybeUninit::<linux::stat>::zeroed();
    call(buffer.as_mut_ptr() as u64).run()?;
    // SAFETY: `stat` is plain numbers, zeroed above and filled by the kernel.
    let stat = unsafe { buffer.assume_init() };
    Ok(FileIdentity { device: stat.st_dev, inode: stat.st_ino, size: stat.st_size.cast_unsigned(), mode: stat.st_mode })
}
