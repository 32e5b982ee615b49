//! Gives numbers to processes that share memory by fork(2), determines whether such a process is
//! alive, and wakes all these processes.
//!
//! A process id would not serve as the number: the kernel reuses it for another process later, and
//! a process has a different process id in each PID namespace.
//!
//! - The first process that needs a number makes the **register**: a memfd that holds the last
//!   number given out. Its descendants inherit the file and its mapping.
//! - No two processes ever get one number.
//! - A process locks the byte of the register at its own number by a POSIX record lock (fcntl(2)).
//!   The kernel releases the lock when the process ends. If the process executes another program,
//!   the kernel or that program releases it ([`join`]). A child does not inherit the lock. So a
//!   process is alive while its byte is locked.
//! - A process can become a user of another process's register, too ([`join`]). It locks the byte
//!   at its own number there as well. The numbers of each register begin at another number. So a
//!   process has one number in all its registers.
//! - An eventfd belongs to the register, and descendants inherit it, too. A process writes it to
//!   wake all others ([`wake_all`]). No process reads it, so its counter only grows. Each epoll set
//!   that watches it edge-triggered reports each write ([`watch_wake_ups`]).
//! - The sockets by which processes pass files on ([`crate::deposit`]) also belong to the register,
//!   and so does their lock.
//!
//! A child that shares its parent's descriptor table (CLONE_FILES without CLONE_VM) shares its
//! record locks, too. So parent and child could not see each other's death. Such a child gets no
//! number.

use crate::clock::Clock;
use crate::descriptor::{self, FileIdentity, OwnedDescriptor, WRITE_LOCK};
use crate::epoll::{self, Epoll};
use crate::eventfd;
use crate::mapping;
use crate::mutex::Mutex;
use crate::per_process::PerProcess;
use crate::process_mutex::{Guard, ProcessMutex};
use crate::sync::AtomicU32;
use crate::{Errno, SystemCall, deposit, width};
use alloc::ffi::CString;
use alloc::format;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// The number of a process that shares no memory with other processes, and so has no register.
pub const ALONE: u32 = 1;
/// The largest number of a process.
pub const MOST: u32 = (1 << 29) - 1;

/// Number of descriptors that belong to a register.
pub const DESCRIPTORS: usize = 4;
/// Maximum number of registers that a process uses: that of its own number, and those that it has
/// joined.
pub const REGISTERS: usize = 4;
/// The registers that this process uses, without gaps. The first one gives it its number. For each,
/// the descriptors that all users of the register have, each plus 1; 0 if there is none:
///
/// 1. the register (the memfd that holds the last number given out), set last;
/// 2. the eventfd that wakes all processes;
/// 3. the socket that receives files;
/// 4. the socket that sends files.
///
/// Children inherit the values.
static SHARED: [[AtomicI32; DESCRIPTORS]; REGISTERS] =
    [const { [const { AtomicI32::new(0) }; DESCRIPTORS] }; REGISTERS];
/// How the link of each of these descriptors begins in /proc.
const LINKS: [&[u8]; DESCRIPTORS] = [b"/memfd:usring-processes", b"anon_inode:[eventfd]", b"socket:[", b"socket:["];
/// For each register, the address of the last number given out, in the mapping of the memfd. Null
/// before the process uses the register.
static LAST: [AtomicPtr<AtomicU64>; REGISTERS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; REGISTERS];
/// This process's views of the locks for the sockets by which processes pass files on.
static QUEUE_LOCKS: [PerProcess<ProcessMutex<(), &'static AtomicU32>>; REGISTERS] =
    [const { PerProcess::new() }; REGISTERS];
/// Number of attempts to find a number that no other process has in any of the registers.
const ATTEMPTS: usize = 8;
/// This process's number, once it has one.
static OWN: PerProcess<u32> = PerProcess::new();
/// Whether this process shares its parent's descriptor table.
static SHARES_DESCRIPTORS: AtomicBool = AtomicBool::new(false);
/// Value of `l_type` that removes locks (F_UNLCK).
const UNLOCK: i16 = width::short(linux::F_UNLCK as u64).cast_signed();
/// Held while this process makes the register (the memfd of process numbers) or gets its number.
static REGISTER_LOCK: PerProcess<Mutex<()>> = PerProcess::new();

/// Returns this process's number. The first call chooses the number, and makes the register if no
/// ancestor has made it.
///
/// Errors: those of memfd_create(2), mmap(2) and fcntl(2); `EAGAIN` if no number is left;
/// `EOWNERDEAD` in a child that shares its parent's descriptor table.
pub fn own() -> Result<u32, Errno> {
    if let Some(number) = OWN.get() {
        return Ok(*number);
    }
    if SHARES_DESCRIPTORS.load(Ordering::Relaxed) {
        return Err(Errno::EOWNERDEAD);
    }
    let _one_at_a_time = REGISTER_LOCK.get_or_make(|| Mutex::new(())).lock();
    if let Some(number) = OWN.get() {
        return Ok(*number);
    }
    let last = first_register()?;
    for _ in 0..ATTEMPTS {
        let number = last.fetch_add(1, Ordering::Relaxed) + 1;
        if number > u64::from(MOST) {
            break;
        }
        let number = width::low(number);
        if registers().all(|register| record_lock(register, linux::F_SETLK, number).is_ok()) {
            return Ok(*OWN.get_or_make(|| number));
        }
    }
    Err(Errno::EAGAIN)
}

/// Returns the descriptors of the registers that this process uses.
fn registers() -> impl Iterator<Item = i32> {
    SHARED.iter().map(|shared| shared[0].load(Ordering::Acquire) - 1).take_while(|register| *register >= 0)
}

/// Records in a forked child whether the child shares its parent's descriptor table.
pub fn begin_child(shares_descriptors: bool) {
    SHARES_DESCRIPTORS.store(shares_descriptors, Ordering::Relaxed);
}

/// Returns the word that holds the last number given out, in this process's first register. Makes
/// that register if there is none. The caller holds `REGISTER_LOCK`.
fn first_register() -> Result<&'static AtomicU64, Errno> {
    // SAFETY: a non-null pointer in `LAST` points to a word on a page that is never unmapped, and
    // every process accesses the word as an atomic.
    if let Some(last) = unsafe { LAST[0].load(Ordering::Acquire).as_ref() }
        && registers().next().is_some()
    {
        return Ok(last);
    }
    let file = mapping::sealable_memory_file(c"usring-processes", mapping::PAGE as u64)?;
    let last = &mapping::shared_words(&file)?[0];
    last.store(first_number(), Ordering::Relaxed);
    let wake_event = eventfd::create()?.into_private()?;
    if !descriptor::keep_in_children(file.number()) || !descriptor::keep_in_children(wake_event.number()) {
        return Err(Errno::EMFILE);
    }
    SHARED[0][1].store(wake_event.into_raw() + 1, Ordering::Release);
    // If the sockets of `deposit` cannot be made, processes share rings but pass no files on.
    if let Ok(sockets) = deposit::queue()
        && sockets.iter().all(|socket| descriptor::keep_in_children(socket.number()))
    {
        SHARED[0][2..]
            .iter()
            .zip(sockets)
            .for_each(|(place, socket)| place.store(socket.into_raw() + 1, Ordering::Release));
    }
    LAST[0].store(core::ptr::from_ref(last).cast_mut(), Ordering::Release);
    SHARED[0][0].store(file.into_raw() + 1, Ordering::Release);
    Ok(last)
}

/// Returns the number before the first one of a new register. It depends on the time, so the
/// numbers of two registers hardly ever meet.
fn first_number() -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    // Half of the numbers are left for the register's processes.
    const UNUSED_BITS: u32 = u64::BITS - MOST.count_ones() + 1;
    (Clock::Monotonic.now().wrapping_mul(MULTIPLIER) >> UNUSED_BITS).max(ALONE.into())
}

/// Returns the descriptors of the registers that this process uses, in the order of `SHARED`. A
/// missing one is −1.
pub fn descriptors() -> [[i32; DESCRIPTORS]; REGISTERS] {
    core::array::from_fn(|register| core::array::from_fn(|index| SHARED[register][index].load(Ordering::Acquire) - 1))
}

/// Returns the address at which a process has the values of [`descriptors`], as 32-bit words, each
/// plus 1. In another process that runs this library, they lie at the same place of the library.
pub fn address_of_descriptors() -> usize {
    SHARED.as_ptr() as usize
}

/// Returns whether this process uses the register in a file.
pub fn uses(file: &FileIdentity) -> bool {
    let same = |other: FileIdentity| (other.device, other.inode) == (file.device, file.inode);
    registers().any(|register| descriptor::identity(register).is_ok_and(same))
}

/// Returns whether `number` may be the descriptor of a register at position `kind` in `SHARED`.
pub fn is_descriptor(kind: usize, number: i32) -> bool {
    LINKS.get(kind).is_some_and(|link| descriptor::is_linked_to(number, link))
}

/// Makes this process a user of another process's register, which it does not use yet. `files`: the
/// descriptors, in the order of `SHARED`, private to usring; `None` for each that is missing. After
/// an execve(2), drops the number that the process had before.
///
/// Errors:
/// - `EMFILE` if this process uses too many registers; those of mmap(2).
/// - `EINVAL` if the descriptors are not those of a register.
/// - `EAGAIN` if another process has this process's number in the register.
pub fn join(files: [Option<OwnedDescriptor>; DESCRIPTORS]) -> Result<(), Errno> {
    let _one_at_a_time = REGISTER_LOCK.get_or_make(|| Mutex::new(())).lock();
    if let Some(register) = &files[0]
        && uses(&descriptor::identity(register.number())?)
    {
        // Another thread has joined the register meanwhile. Closing this descriptor of the register
        // would release the process's lock, so all stay open.
        files.into_iter().flatten().for_each(|file| _ = file.into_raw());
        return Ok(());
    }
    let free = registers().count();
    let shared = SHARED.get(free).ok_or(Errno::EMFILE)?;
    let [Some(register), Some(_), ..] = &files else { return Err(Errno::EINVAL) };
    let is_right = |(kind, file): (usize, &Option<OwnedDescriptor>)| {
        file.as_ref().is_none_or(|file| is_descriptor(kind, file.number()))
    };
    if !files.iter().enumerate().all(is_right) {
        return Err(Errno::EINVAL);
    }
    mapping::seal(register.number())?;
    if descriptor::identity(register.number())?.size < mapping::PAGE as u64 {
        return Err(Errno::EINVAL);
    }
    let mut lock = linux::flock { l_type: UNLOCK, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    let arguments = [width::word(register.number()), u64::from(linux::F_SETLK), &raw mut lock as u64, 0, 0];
    SystemCall::new(linux::__NR_fcntl, arguments).run()?;
    if let Some(own) = OWN.get() {
        record_lock(register.number(), linux::F_SETLK, *own)?;
    }
    let last = &mapping::shared_words(register)?[0];
    LAST[free].store(core::ptr::from_ref(last).cast_mut(), Ordering::Release);
    for (place, file) in shared.iter().zip(files).rev() {
        file.iter().for_each(|file| _ = descriptor::keep_in_children(file.number()));
        place.store(file.map_or(0, |file| file.into_raw() + 1), Ordering::Release);
    }
    Ok(())
}

/// Returns whether the process with this number is alive. The calling process must have a number,
/// and `number` must be that of another process.
pub fn is_alive(number: u32) -> bool {
    // If fcntl(2) fails, the process counts as alive: a lock must not be taken over from a living
    // process.
    let is_locked =
        |register| record_lock(register, linux::F_GETLK, number).map(|(kind, _)| kind) != Ok(linux::F_UNLCK);
    registers().any(is_locked)
}

/// Returns the process id of the process with this number. `None`: that process is not alive, or
/// has no id in this process's PID namespace. The requirements are those of [`is_alive`].
pub fn process_id(number: u32) -> Option<u32> {
    registers().find_map(|register| {
        let (kind, process) = record_lock(register, linux::F_GETLK, number).ok()?;
        u32::try_from(process).ok().filter(|process| kind != linux::F_UNLCK && *process != 0)
    })
}

/// Returns whether the process with this number is stopped, by a signal or by a tracer. `false` if
/// that is not known. The requirements are those of [`is_alive`].
pub fn is_stopped(number: u32) -> bool {
    let state = process_id(number).and_then(|process| {
        let path = CString::new(format!("/proc/{process}/stat")).ok()?;
        let flags = u64::from(linux::O_RDONLY | linux::O_CLOEXEC);
        let arguments = [width::word(linux::AT_FDCWD), path.as_ptr() as u64, flags, 0, 0];
        let file = OwnedDescriptor::from_raw(width::int(SystemCall::new(linux::__NR_openat, arguments).run().ok()?));
        let mut text = [0u8; 512];
        let arguments = [width::word(file.number()), text.as_mut_ptr() as u64, text.len() as u64, 0, 0];
        let length = width::size(SystemCall::new(linux::__NR_read, arguments).run().ok()?);
        // In /proc/PID/stat, the state follows the name of the program, which may contain any
        // characters.
        let name_ends = text[..length].iter().rposition(|byte| *byte == b')')?;
        text.get(name_ends + 2).copied()
    });
    matches!(state, Some(b'T' | b't'))
}

/// Adds the eventfds that wake all processes to `set`, with the event data `data`. From then on the
/// set reports at least one event after each [`wake_all`] of any process. Gives this process a
/// number if it has none. After [`join`], another call adds the eventfd of that register.
///
/// Errors: those of [`own`] and of epoll_ctl(2).
pub fn watch_wake_ups(set: &Epoll, data: u64) -> Result<(), Errno> {
    own()?;
    wake_events().try_for_each(|event| match set.add(event, epoll::IN | epoll::EDGE, data) {
        Err(Errno::EEXIST) => Ok(()),
        added => added,
    })
}

fn wake_events() -> impl Iterator<Item = i32> {
    SHARED.iter().map(|shared| shared[1].load(Ordering::Acquire) - 1).take(registers().count())
}

/// Wakes all processes that have called [`watch_wake_ups`], and this process, too. For rare use:
/// the cost grows with the number of processes. The calling process must have a number.
pub fn wake_all() {
    wake_events().for_each(eventfd::signal);
}

/// Proof that the lock for the sockets that pass files on is held. If a process dies with the lock,
/// the next process takes the lock over.
pub(crate) struct QueueLock {
    receiver: i32,
    sender: i32,
    _lock: Guard<'static, (), &'static AtomicU32>,
}

impl QueueLock {
    pub fn receiver(&self) -> i32 {
        self.receiver
    }

    pub fn sender(&self) -> i32 {
        self.sender
    }
}

/// Returns the indices of the registers that this process uses, for [`queue_lock`]. Gives this
/// process a number if it has none.
///
/// Errors: those of [`own`].
pub(crate) fn queues() -> Result<core::ops::Range<usize>, Errno> {
    own()?;
    Ok(0..registers().count())
}

/// Acquires the lock for the sockets of a register that pass files on.
///
/// Errors: those of [`own`]; `ENXIO` if there are no such sockets.
pub(crate) fn queue_lock(register: usize) -> Result<QueueLock, Errno> {
    let own = own()?;
    let [receiver, sender] = [2, 3].map(|index| SHARED[register][index].load(Ordering::Acquire) - 1);
    let last = LAST[register].load(Ordering::Acquire);
    if receiver < 0 || sender < 0 || last.is_null() {
        return Err(Errno::ENXIO);
    }
    // SAFETY: 1. A pointer in `LAST` points to the first word of the register's page, which is
    // never unmapped. The second word is in that page, too. 2. Every process accesses the first
    // half of the second word only as an atomic.
    let word: &'static AtomicU32 = unsafe { &*last.add(1).cast() };
    let lock = QUEUE_LOCKS[register].get_or_make(|| ProcessMutex::join(word, own, is_alive, ()));
    Ok(QueueLock { receiver, sender, _lock: lock.lock(|(), _| {}) })
}

/// Calls fcntl(2) for a write lock on byte `number` of the register. Returns the type of lock that
/// the kernel reports, and the process id of its holder (only with F_GETLK).
fn record_lock(register: i32, command: u32, number: u32) -> Result<(u32, i32), Errno> {
    let mut lock = linux::flock { l_type: WRITE_LOCK, l_whence: 0, l_start: i64::from(number), l_len: 1, l_pid: 0 };
    let arguments = [width::word(register), u64::from(command), &raw mut lock as u64, 0, 0];
    SystemCall::new(linux::__NR_fcntl, arguments).run()?;
    Ok((u32::from(lock.l_type.cast_unsigned()), lock.l_pid))
}
