//! Signals that arrive while the engine runs.
//!
//! No handler of the program ever runs in the middle of the engine: it could
//! enter the ring whose lock its own thread holds, or leave by `siglongjmp`
//! with the lock taken. `interpose` wraps the program's handlers; when a
//! signal finds its thread inside the engine, the wrapper puts it off: it keeps
//! the kernel's frame, blocks all signals and notes here the mask that was in
//! force. The door by which the call came undoes that as the last thing it
//! does, and there the handlers run: at the program's own call, as the kernel
//! delivers signals at return to user mode.
//!
//! What the engine has to know of this: an interruptible sleep ([`crate::wait`])
//! ends with `EINTR` when a signal has been put off, and a loop that waits
//! without sleeping asks [`interrupted`].
//!
//! Without `interpose` (the Rust API) nothing is ever put off: [`DEFERRED`]
//! stays zero, and handlers run where they find the thread, as in any library.

use crate::{Errno, SystemCall};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// A set of signals as the kernel holds it: signal n is bit n − 1.
pub type SignalSet = u64;

/// The set of one signal.
pub const fn set_of(signal: u32) -> SignalSet {
    1 << (signal - 1)
}

/// Never blocked while our code runs. SIGSYS is the trap by which calls
/// arrive and what wakes a worker out of a system call; SIGSEGV and SIGBUS
/// become EFAULT in our copies of the program's memory; and any of these that
/// is raised by an instruction while blocked would kill the process.
pub const ALWAYS_OPEN: SignalSet = set_of(linux::SIGSYS)
    | set_of(linux::SIGSEGV)
    | set_of(linux::SIGBUS)
    | set_of(linux::SIGTRAP)
    | set_of(linux::SIGILL)
    | set_of(linux::SIGFPE);

/// What a thread blocks while a signal is put off, and what threads of our own
/// block always.
pub const ALL_BLOCKED: SignalSet = !ALWAYS_OPEN;

/// How many threads have a signal put off: the one word that fast paths look
/// at. Counted up by a thread for itself (in its signal handler) and down by
/// the same thread, so relaxed order is enough.
pub static DEFERRED: AtomicU32 = AtomicU32::new(0);

/// Threads with a signal put off at the same time; if more have, their
/// handlers run where they are. A thread keeps its slot only until it leaves
/// the engine, and a put-off signal makes it leave, so a few are ever used.
const SLOTS: usize = 256;

/// Where a thread notes what its door has to undo. Only the thread `owner`
/// touches the other fields.
struct Slot {
    /// Thread id, or 0: free.
    owner: AtomicU32,
    /// `HAS_DELIVERY_MASK`.
    state: AtomicU32,
    original_mask: AtomicU64,
    delivery_mask: AtomicU64,
    /// `interpose`'s: where it keeps the first signal.
    note: AtomicU32,
    /// Signals of `ALWAYS_OPEN` that somebody sent (nothing was raised by an
    /// instruction of ours), to be sent again: they cannot wait in the blocked
    /// queue.
    resend: AtomicU64,
}

const HAS_DELIVERY_MASK: u32 = 1;

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        owner: AtomicU32::new(0),
        state: AtomicU32::new(0),
        original_mask: AtomicU64::new(0),
        delivery_mask: AtomicU64::new(0),
        note: AtomicU32::new(0),
        resend: AtomicU64::new(0),
    }
}; SLOTS];

/// What the door has to undo for its thread.
#[derive(Clone, Copy, Debug)]
pub struct PutOff {
    /// The mask that was in force when the first signal was put off.
    pub original_mask: SignalSet,
    /// The mask under which the signals are to be delivered first: the
    /// `sigmask` argument of a wait that was interrupted.
    pub delivery_mask: Option<SignalSet>,
    pub resend: SignalSet,
    pub note: u32,
}

/// Whether a signal could be put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The first of this thread: mask and note were taken down.
    First,
    /// Others are put off already: the kernel has to keep this one.
    Again,
    /// No slot is free: the handler has to run here and now.
    Full,
}

/// The calling thread's id.
pub fn thread_id() -> u32 {
    match SystemCall::new(linux::__NR_gettid, [0; 5]).run_once() {
        Ok(id) => id as u32,
        Err(_) => thread_id_of_proc(),
    }
}

/// The calling thread's id where a filter of the program's denies gettid(2): the end of the link
/// /proc/thread-self, `PROCESS/task/THREAD`. Without /proc the process's, which is its first thread's.
#[cold]
fn thread_id_of_proc() -> u32 {
    let mut text = [0u8; 48];
    let path = c"/proc/thread-self".as_ptr() as u64;
    let arguments = [linux::AT_FDCWD as u64, path, text.as_mut_ptr() as u64, text.len() as u64, 0];
    let read = SystemCall::new(linux::__NR_readlinkat, arguments).run_once();
    let digits = read.ok().and_then(|length| text[..length as usize].rsplit(|byte| *byte == b'/').next());
    let id = digits.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok());
    id.unwrap_or_else(|| SystemCall::new(linux::__NR_getpid, [0; 5]).run_once().unwrap_or(0) as u32)
}

/// Whether the process has a thread of this id.
pub fn is_alive(thread: u32) -> bool {
    let Ok(process) = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once() else { return true };
    SystemCall::new(linux::__NR_tgkill, [process, u64::from(thread), 0, 0, 0]).run_once().is_ok()
}

fn slot_of(thread: u32) -> Option<&'static Slot> {
    TABLE.iter().find(|slot| slot.owner.load(Ordering::Relaxed) == thread)
}

/// Whether a signal for the calling thread has been put off. Costs one load
/// where no thread has one.
#[inline]
pub fn interrupted() -> bool {
    DEFERRED.load(Ordering::Relaxed) != 0 && slot_of(thread_id()).is_some()
}

/// The wait that was just interrupted ran under this mask (its `sigmask`
/// argument): signals that only this mask lets through are to reach their
/// handlers before the call returns. [`crate::wait::epoll`] does this by itself.
pub fn set_delivery_mask(mask: SignalSet) {
    if DEFERRED.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(slot) = slot_of(thread_id()) {
        slot.delivery_mask.store(mask & !ALWAYS_OPEN, Ordering::Relaxed);
        slot.state.store(HAS_DELIVERY_MASK, Ordering::Relaxed);
    }
}

/// For `interpose`'s wrapper, in signal context with every signal blocked: notes that a signal has been
/// put off while `original_mask` was in force. `resend` names a signal that
/// has to be sent again, for it cannot wait in the kernel's queue.
pub fn put_off(original_mask: SignalSet, resend: SignalSet, note: u32) -> Noted {
    let thread = thread_id();
    if let Some(slot) = slot_of(thread) {
        slot.resend.fetch_or(resend, Ordering::Relaxed);
        return Noted::Again;
    }
    // Acquire: the fields of a slot just freed by another thread are dead.
    let free = |slot: &&Slot| slot.owner.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let Some(slot) = TABLE.iter().find(free) else {
        return Noted::Full;
    };
    slot.original_mask.store(original_mask, Ordering::Relaxed);
    slot.state.store(0, Ordering::Relaxed);
    slot.note.store(note, Ordering::Relaxed);
    slot.resend.store(resend, Ordering::Relaxed);
    DEFERRED.fetch_add(1, Ordering::Relaxed);
    Noted::First
}

/// Has the door send more signals of `ALWAYS_OPEN` again; something is put off
/// for this thread already.
pub fn send_again(signals: SignalSet) {
    if let Some(slot) = slot_of(thread_id()) {
        slot.resend.fetch_or(signals, Ordering::Relaxed);
    }
}

/// For the door, on its way out: takes what was put off for this thread. The
/// slot is free again before any handler runs, for a handler may never return.
pub fn take() -> Option<PutOff> {
    let slot = slot_of(thread_id())?;
    let delivery = slot.state.load(Ordering::Relaxed) == HAS_DELIVERY_MASK;
    let put_off = PutOff {
        original_mask: slot.original_mask.load(Ordering::Relaxed),
        delivery_mask: delivery.then(|| slot.delivery_mask.load(Ordering::Relaxed)),
        resend: slot.resend.load(Ordering::Relaxed),
        note: slot.note.load(Ordering::Relaxed),
    };
    slot.owner.store(0, Ordering::Release);
    DEFERRED.fetch_sub(1, Ordering::Relaxed);
    Some(put_off)
}

/// In a fork child, before anything else runs there: the slots of the
/// parent's other threads mean nothing.
pub fn forget_after_fork() {
    // Only read where nothing is to be changed: the child shares these pages.
    for slot in TABLE.iter().filter(|slot| slot.owner.load(Ordering::Relaxed) != 0) {
        slot.owner.store(0, Ordering::Relaxed);
    }
    DEFERRED.store(0, Ordering::Relaxed);
}

/// Sets the calling thread's mask and tells the one before.
pub fn set_mask(mask: SignalSet) -> SignalSet {
    let mut old: SignalSet = 0;
    let arguments = [u64::from(linux::SIG_SETMASK), &raw const mask as u64, &raw mut old as u64, 8, 0];
    // Cannot fail: both addresses are ours and the size is right.
    let _ = SystemCall::new(linux::__NR_rt_sigprocmask, arguments).run_once();
    old
}

/// Sends a signal to this process: any thread that does not block it takes it.
pub fn send_to_process(signal: u32) {
    let Ok(process) = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once() else { return };
    // Cannot fail: the process is there, and its own.
    let _ = SystemCall::new(linux::__NR_kill, [process, u64::from(signal), 0, 0, 0]).run_once();
}

/// Sends a signal to one thread of this process. `ESRCH`: it is gone.
pub fn send_to_thread(thread: u32, signal: u32) -> Result<(), Errno> {
    let process = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once()?;
    let arguments = [process, u64::from(thread), u64::from(signal), 0, 0];
    SystemCall::new(linux::__NR_tgkill, arguments).run_once().map(drop)
}
