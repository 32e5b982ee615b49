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
//!   The kernel releases the lock when the process ends or executes another program. A child does
//!   not inherit it. So a process is alive while its byte is locked.
//! - An eventfd belongs to the register, and descendants inherit it, too. A process writes it to
//!   wake all others ([`wake_all`]). No process reads it, so its counter only grows. Each epoll set
//!   that watches it edge-triggered reports each write ([`watch_wake_ups`]).
//! - The sockets by which processes pass files on ([`crate::deposit`]) also belong to the register,
//!   and so does their lock.
//!
//! A child that shares its parent's descriptor table (CLONE_FILES without CLONE_VM) shares its
//! record locks, too. So parent and child could not see each other's death. Such a child gets no
//! number.

use crate::descriptor::{self, OwnedDescriptor, WRITE_LOCK};
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

/// Descriptor of the register (the memfd that holds the last number given out), plus 1; 0 before
/// the register is made. Children inherit the value.
static REGISTER: AtomicI32 = AtomicI32::new(0);
/// Descriptor of the eventfd that wakes all processes, plus 1; 0 before the register is made.
static WAKE_EVENT: AtomicI32 = AtomicI32::new(0);
/// Address of the last number given out, in the mapping of the register (a memfd). Null before the
/// register is made.
static LAST: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
/// Descriptors of the sockets that pass files on: the end that receives, and the end that sends.
/// Each is stored plus 1; 0 if there are none.
static QUEUE: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
/// This process's view of the lock for the sockets by which processes pass files on.
static QUEUE_LOCK: PerProcess<ProcessMutex<(), &'static AtomicU32>> = PerProcess::new();
/// This process's number, once it has one.
static OWN: PerProcess<u32> = PerProcess::new();
/// Whether this process shares its parent's descriptor table.
static SHARES_DESCRIPTORS: AtomicBool = AtomicBool::new(false);
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
    let (file, last) = register()?;
    let number = last.fetch_add(1, Ordering::Relaxed) + 1;
    if number > u64::from(MOST) {
        return Err(Errno::EAGAIN);
    }
    record_lock(file, linux::F_SETLK, width::low(number))?;
    Ok(*OWN.get_or_make(|| width::low(number)))
}

/// Records in a forked child whether the child shares its parent's descriptor table.
pub fn begin_child(shares_descriptors: bool) {
    SHARES_DESCRIPTORS.store(shares_descriptors, Ordering::Relaxed);
}

/// Returns the descriptor of the register (a memfd), and the word in it that holds the last number
/// given out. Makes the register if there is none. The caller holds `REGISTER_LOCK`.
fn register() -> Result<(i32, &'static AtomicU64), Errno> {
    let made = REGISTER.load(Ordering::Acquire);
    // SAFETY: a non-null `LAST` points to a word on a page that is never unmapped, and every
    // process accesses the word as an atomic.
    if let Some(last) = unsafe { LAST.load(Ordering::Acquire).as_ref() }
        && made != 0
    {
        return Ok((made - 1, last));
    }
    let file: OwnedDescriptor = mapping::memory_file(c"usring-processes", mapping::PAGE as u64)?;
    let last = &mapping::shared_words(&file)?[0];
    last.store(u64::from(ALONE), Ordering::Relaxed);
    let wake_event = eventfd::create()?.into_private()?;
    if !descriptor::keep_in_children(file.number()) || !descriptor::keep_in_children(wake_event.number()) {
        return Err(Errno::EMFILE);
    }
    WAKE_EVENT.store(wake_event.into_raw() + 1, Ordering::Release);
    // If the sockets of `deposit` cannot be made, processes share rings but pass no files on.
    if let Ok(sockets) = deposit::queue()
        && sockets.iter().all(|socket| descriptor::keep_in_children(socket.number()))
    {
        QUEUE.iter().zip(sockets).for_each(|(place, socket)| place.store(socket.into_raw() + 1, Ordering::Release));
    }
    LAST.store(core::ptr::from_ref(last).cast_mut(), Ordering::Release);
    let number = file.into_raw();
    REGISTER.store(number + 1, Ordering::Release);
    Ok((number, last))
}

/// Returns whether the process with this number is alive. The calling process must have a number,
/// and `number` must be that of another process.
pub fn is_alive(number: u32) -> bool {
    let register = REGISTER.load(Ordering::Acquire) - 1;
    // If fcntl(2) fails, the process counts as alive: a lock must not be taken over from a living
    // process.
    record_lock(register, linux::F_GETLK, number).map(|(kind, _)| kind) != Ok(linux::F_UNLCK)
}

/// Returns the process id of the process with this number. `None`: that process is not alive, or
/// has no id in this process's PID namespace. The requirements are those of [`is_alive`].
pub fn process_id(number: u32) -> Option<u32> {
    let register = REGISTER.load(Ordering::Acquire) - 1;
    let (kind, process) = record_lock(register, linux::F_GETLK, number).ok()?;
    u32::try_from(process).ok().filter(|process| kind != linux::F_UNLCK && *process != 0)
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

/// Adds the eventfd that wakes all processes to `set`, with the event data `data`. From then on the
/// set reports at least one event after each [`wake_all`] of any process. Gives this process a
/// number if it has none.
///
/// Errors: those of [`own`] and of epoll_ctl(2).
pub fn watch_wake_ups(set: &Epoll, data: u64) -> Result<(), Errno> {
    own()?;
    set.add(WAKE_EVENT.load(Ordering::Acquire) - 1, epoll::IN | epoll::EDGE, data)
}

/// Wakes all processes that have called [`watch_wake_ups`], and this process, too. For rare use:
/// the cost grows with the number of processes. The calling process must have a number.
pub fn wake_all() {
    eventfd::signal(WAKE_EVENT.load(Ordering::Acquire) - 1);
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

/// Acquires the lock for the sockets that pass files on. Gives this process a number if it has
/// none.
///
/// Errors: those of [`own`]; `ENXIO` if there are no such sockets.
pub(crate) fn queue_lock() -> Result<QueueLock, Errno> {
    let own = own()?;
    let [receiver, sender] = [&QUEUE[0], &QUEUE[1]].map(|place| place.load(Ordering::Acquire) - 1);
    let last = LAST.load(Ordering::Acquire);
    if receiver < 0 || sender < 0 || last.is_null() {
        return Err(Errno::ENXIO);
    }
    // SAFETY: 1. `LAST` points to the first word of the register's page, which is never unmapped.
    // The second word is in that page, too. 2. Every process accesses the first half of the second
    // word only as an atomic.
    let word: &'static AtomicU32 = unsafe { &*last.add(1).cast() };
    let lock = QUEUE_LOCK.get_or_make(|| ProcessMutex::join(word, own, is_alive, ()));
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
