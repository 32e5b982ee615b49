//! Signals that arrive while the engine runs.
//!
//! No handler of the program ever runs in the middle of the engine. Such a handler could enter the
//! ring whose lock its own thread holds, or leave by `siglongjmp` with the lock taken. So
//! `interpose` wraps the program's handlers. If a signal finds its thread inside the engine, the
//! wrapper puts the signal off:
//! 1. It keeps the kernel's frame, blocks all signals, and records here the mask that was in force.
//! 2. The entry point of the call undoes this as its last step.
//! 3. The handlers run there, at the program's own call, as the kernel delivers signals at the
//!    return to user mode.
//!
//! The engine does two things for this: an interruptible sleep ([`crate::wait`]) ends with `EINTR`
//! when a signal has been put off, and a loop that waits without sleeping checks [`interrupted`].
//!
//! Without `interpose` (the Rust API) no signal is ever put off: [`DEFERRED`] stays zero, and
//! handlers run at once, as in any library.

use crate::{Errno, SystemCall};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// A set of signals, as the kernel represents it: signal n is bit n − 1.
pub type SignalSet = u64;

/// Returns the set that has one signal.
pub const fn set_of(signal: u32) -> SignalSet {
    1 << (signal - 1)
}

/// Signals that are never blocked while usring's code runs. SIGSYS is the trap by which calls
/// arrive, and the signal that ends a worker's system call. SIGSEGV and SIGBUS become EFAULT in
/// copies of the program's memory. Any of these signals, raised by an instruction while blocked,
/// would kill the process.
pub const ALWAYS_OPEN: SignalSet = set_of(linux::SIGSYS)
    | set_of(linux::SIGSEGV)
    | set_of(linux::SIGBUS)
    | set_of(linux::SIGTRAP)
    | set_of(linux::SIGILL)
    | set_of(linux::SIGFPE);

/// The signals that a thread blocks while a signal is put off, and that usring's own threads always
/// block.
pub const ALL_BLOCKED: SignalSet = !ALWAYS_OPEN;

/// Number of threads with a put-off signal: the one word that fast paths read. Each thread counts
/// itself up (in its signal handler) and down, so relaxed order is enough.
pub static DEFERRED: AtomicU32 = AtomicU32::new(0);

/// Most threads with a put-off signal at the same time; beyond, handlers run at once. A thread
/// keeps its slot only until it leaves the engine, and a put-off signal makes it leave. So few
/// slots are ever used.
const SLOTS: usize = 256;

/// A thread's put-off signals: the state that its entry point has to undo. Only the thread `owner`
/// touches the other fields.
struct Slot {
    /// Thread id, or 0: free.
    owner: AtomicU32,
    /// `HAS_DELIVERY_MASK`.
    state: AtomicU32,
    original_mask: AtomicU64,
    delivery_mask: AtomicU64,
    /// Where `interpose` keeps the first signal: a number of its own choice.
    note: AtomicU32,
    /// Signals of `ALWAYS_OPEN` that were sent by kill(2) or the like, not raised by an
    /// instruction. They cannot wait in the blocked queue, so the entry point sends them again.
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

/// The state that the entry point has to undo for its thread.
#[derive(Clone, Copy, Debug)]
pub struct PutOff {
    /// The mask that was in force when the first signal was put off.
    pub original_mask: SignalSet,
    /// The mask under which the signals are to be delivered first: the `sigmask` argument of an
    /// interrupted wait.
    pub delivery_mask: Option<SignalSet>,
    pub resend: SignalSet,
    pub note: u32,
}

/// Whether a signal could be put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The first signal of this thread: mask and note were recorded.
    First,
    /// Another signal is put off already: the kernel has to keep this one.
    Again,
    /// No slot is free: the handler has to run now.
    Full,
}

/// Returns the calling thread's id.
pub fn thread_id() -> u32 {
    match SystemCall::new(linux::__NR_gettid, [0; 5]).run_once() {
        Ok(id) => id as u32,
        Err(_) => thread_id_of_proc(),
    }
}

/// Returns the calling thread's id if a filter of the program denies gettid(2). The id is the end
/// of the link /proc/thread-self, `PROCESS/task/THREAD`. Without /proc, returns the process id,
/// which is the id of the first thread.
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

/// Returns whether the process has a thread of this id; `true` if the process id is not known.
pub fn is_alive(thread: u32) -> bool {
    let Ok(process) = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once() else { return true };
    SystemCall::new(linux::__NR_tgkill, [process, u64::from(thread), 0, 0, 0]).run_once().is_ok()
}

fn slot_of(thread: u32) -> Option<&'static Slot> {
    TABLE.iter().find(|slot| slot.owner.load(Ordering::Relaxed) == thread)
}

/// Returns whether a signal for the calling thread has been put off. Costs one load while no thread
/// has a put-off signal.
#[inline]
pub fn interrupted() -> bool {
    DEFERRED.load(Ordering::Relaxed) != 0 && slot_of(thread_id()).is_some()
}

/// Records the mask of the wait that was just interrupted (its `sigmask` argument). Signals that
/// only this mask lets through reach their handlers before the call returns. [`crate::wait::epoll`]
/// calls this itself.
pub fn set_delivery_mask(mask: SignalSet) {
    if DEFERRED.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(slot) = slot_of(thread_id()) {
        slot.delivery_mask.store(mask & !ALWAYS_OPEN, Ordering::Relaxed);
        slot.state.store(HAS_DELIVERY_MASK, Ordering::Relaxed);
    }
}

/// Records that a signal has been put off while `original_mask` was in force. Called by
/// `interpose`'s wrapper, in signal context with every signal blocked. `resend` names a signal that
/// must be sent again, because it cannot wait in the kernel's queue.
pub fn put_off(original_mask: SignalSet, resend: SignalSet, note: u32) -> Noted {
    let thread = thread_id();
    if let Some(slot) = slot_of(thread) {
        slot.resend.fetch_or(resend, Ordering::Relaxed);
        return Noted::Again;
    }
    // Acquire: another thread that just freed the slot no longer uses its fields.
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

/// Adds signals of `ALWAYS_OPEN` that the entry point sends again. The thread must have a put-off
/// signal already.
pub fn send_again(signals: SignalSet) {
    if let Some(slot) = slot_of(thread_id()) {
        slot.resend.fetch_or(signals, Ordering::Relaxed);
    }
}

/// Takes the state of this thread, for the entry point on its way out. The slot is free again
/// before any handler runs, because a handler may never return.
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

/// Frees all slots, in a fork child before any other code runs there. The parent's other threads do
/// not exist in the child.
pub fn forget_after_fork() {
    // Writes only where a change is needed: the child shares these pages with its parent.
    for slot in TABLE.iter().filter(|slot| slot.owner.load(Ordering::Relaxed) != 0) {
        slot.owner.store(0, Ordering::Relaxed);
    }
    DEFERRED.store(0, Ordering::Relaxed);
}

/// Sets the calling thread's mask; returns the previous mask.
pub fn set_mask(mask: SignalSet) -> SignalSet {
    let mut old: SignalSet = 0;
    let arguments = [u64::from(linux::SIG_SETMASK), &raw const mask as u64, &raw mut old as u64, 8, 0];
    // Cannot fail: both addresses are valid and the size is right.
    let _ = SystemCall::new(linux::__NR_rt_sigprocmask, arguments).run_once();
    old
}

/// Sends a signal to this process. Any thread that does not block the signal takes it.
pub fn send_to_process(signal: u32) {
    let Ok(process) = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once() else { return };
    // Cannot fail: the process exists and may signal itself.
    let _ = SystemCall::new(linux::__NR_kill, [process, u64::from(signal), 0, 0, 0]).run_once();
}

/// Sends a signal to one thread of this process. Errors: `ESRCH` if the thread has ended.
pub fn send_to_thread(thread: u32, signal: u32) -> Result<(), Errno> {
    let process = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once()?;
    let arguments = [process, u64::from(thread), u64::from(signal), 0, 0];
    SystemCall::new(linux::__NR_tgkill, arguments).run_once().map(drop)
}
