//! Defers signals that arrive while the engine runs.
//!
//! No handler of the program ever runs in the middle of the engine. Such a handler could enter the
//! ring whose lock its own thread holds, or leave by `siglongjmp` with the lock taken. So
//! `interpose` wraps the program's handlers. If a signal arrives while its thread is inside the
//! engine, the wrapper defers the signal:
//! 1. The wrapper saves the kernel's signal frame, and blocks all signals. It records in this file
//!    the mask that was in force before.
//! 2. The entry point, by which the program's call came into usring, restores that mask as its last
//!    step.
//! 3. The program's handlers run there, at the program's own call, just as the kernel delivers
//!    signals when a system call returns.
//!
//! The engine does two things for this: an interruptible sleep ([`crate::wait`]) ends with `EINTR`
//! when a signal has been deferred, and a loop that waits without sleeping checks [`interrupted`].
//!
//! Without `interpose` (the Rust API) no signal is ever deferred: [`DEFERRED`] stays zero, and
//! handlers run at once, as in any library.

use crate::{Errno, SystemCall, width};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// A set of signals, as the kernel represents it: signal n is bit n − 1.
pub type SignalSet = u64;

/// Returns the set that has one signal.
pub const fn set_of(signal: u32) -> SignalSet {
    1 << (signal - 1)
}

/// Signals that usring's code never blocks. The seccomp filter raises SIGSYS for a program's call,
/// and usring sends SIGSYS to interrupt a worker's system call. A SIGSEGV or SIGBUS in a copy of
/// the program's memory becomes EFAULT. If an instruction raises one of these signals while that
/// signal is blocked, the kernel kills the process.
pub const ALWAYS_OPEN: SignalSet = set_of(linux::SIGSYS)
    | set_of(linux::SIGSEGV)
    | set_of(linux::SIGBUS)
    | set_of(linux::SIGTRAP)
    | set_of(linux::SIGILL)
    | set_of(linux::SIGFPE);

/// The signals that a program's thread blocks while it has a deferred signal.
pub const ALL_BLOCKED: SignalSet = !ALWAYS_OPEN;

/// Number of threads with a deferred signal. As long as it is 0, code reads only this word of the
/// file. A thread depends only on its own increment, which its signal handler makes. So relaxed
/// order is enough.
pub static DEFERRED: AtomicU32 = AtomicU32::new(0);

/// Maximum number of threads that have a deferred signal at one time. In any further thread the
/// program's handler runs at once. Few slots are ever used: a deferred signal makes its thread
/// leave the engine soon, which frees the slot.
const SLOTS: usize = 256;

/// The state of one thread that has deferred signals. The entry point of the thread's call uses
/// this state to deliver them. Only the thread `owner` accesses the other fields.
struct Slot {
    /// The thread's id; 0 in a free slot.
    owner: AtomicU32,
    /// [`HAS_DELIVERY_MASK`] if `delivery_mask` is valid; else 0.
    state: AtomicU32,
    original_mask: AtomicU64,
    delivery_mask: AtomicU64,
    /// The number by which `interpose` finds the saved frame of the first deferred signal.
    saved_frame: AtomicU32,
    /// Signals of `ALWAYS_OPEN` that were sent by kill(2) or the like, not raised by an
    /// instruction. The thread does not block them, so they cannot stay pending in the kernel.
    /// Instead, the entry point sends them again.
    resend: AtomicU64,
}

const HAS_DELIVERY_MASK: u32 = 1;

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        owner: AtomicU32::new(0),
        state: AtomicU32::new(0),
        original_mask: AtomicU64::new(0),
        delivery_mask: AtomicU64::new(0),
        saved_frame: AtomicU32::new(0),
        resend: AtomicU64::new(0),
    }
}; SLOTS];

/// The state of a thread that has deferred signals. The entry point of the thread's call uses this
/// state to deliver them.
#[derive(Clone, Copy, Debug)]
pub struct DeferredSignals {
    /// The mask that was in force when the first signal was deferred.
    pub original_mask: SignalSet,
    /// The `sigmask` argument of the wait that was interrupted; `None` if the wait had no such
    /// argument. The entry point first delivers signals under this mask.
    pub delivery_mask: Option<SignalSet>,
    pub resend: SignalSet,
    pub saved_frame: u32,
}

/// The result of [`defer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deferral {
    /// This is the thread's first deferred signal. The signal mask that was in force and the number
    /// of the signal's saved frame are now recorded.
    First,
    /// The thread already has a deferred signal, whose record stays unchanged. The new signal has
    /// to stay pending in the kernel, or be sent again.
    AlreadyDeferred,
    /// No slot is free: the program's handler has to run now.
    Full,
}

/// Returns the calling thread's id.
pub fn thread_id() -> u32 {
    match SystemCall::new(linux::__NR_gettid, [0; 5]).run_once() {
        Ok(id) => width::low(id),
        Err(_) => thread_id_of_proc(),
    }
}

/// Returns the calling thread's id if a filter of the program denies gettid(2). Reads it from the
/// end of the link /proc/thread-self (`PROCESS/task/THREAD`). If there is no /proc, returns the
/// process id, which is the first thread's id.
#[cold]
fn thread_id_of_proc() -> u32 {
    let mut text = [0u8; 48];
    let path = c"/proc/thread-self".as_ptr() as u64;
    let arguments = [width::word(linux::AT_FDCWD), path, text.as_mut_ptr() as u64, text.len() as u64, 0];
    let read = SystemCall::new(linux::__NR_readlinkat, arguments).run_once();
    let digits = read.ok().and_then(|length| text[..width::size(length)].rsplit(|byte| *byte == b'/').next());
    let id = digits.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok());
    id.unwrap_or_else(|| width::low(SystemCall::new(linux::__NR_getpid, [0; 5]).run_once().unwrap_or(0)))
}

/// Returns whether the process has a thread with this id. Returns `true` if getpid(2) fails.
pub fn is_alive(thread: u32) -> bool {
    let Ok(process) = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once() else { return true };
    SystemCall::new(linux::__NR_tgkill, [process, u64::from(thread), 0, 0, 0]).run_once().is_ok()
}

/// Returns whether a process has this id. A process that has ended keeps its id until its parent
/// has waited for it.
pub fn process_exists(process: u32) -> bool {
    SystemCall::new(linux::__NR_kill, [u64::from(process), 0, 0, 0, 0]).run_once() != Err(Errno::ESRCH)
}

fn slot_of(thread: u32) -> Option<&'static Slot> {
    TABLE.iter().find(|slot| slot.owner.load(Ordering::Relaxed) == thread)
}

/// Returns whether a signal for the calling thread has been deferred. If no thread has a deferred
/// signal, this costs one load.
#[inline]
pub fn interrupted() -> bool {
    DEFERRED.load(Ordering::Relaxed) != 0 && slot_of(thread_id()).is_some()
}

/// Records the `sigmask` argument of the wait that was just interrupted. Pending signals that this
/// mask does not block reach their handlers before the program's call returns.
/// [`crate::wait::epoll`] calls this function itself.
pub fn set_delivery_mask(mask: SignalSet) {
    if DEFERRED.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(slot) = slot_of(thread_id()) {
        slot.delivery_mask.store(mask & !ALWAYS_OPEN, Ordering::Relaxed);
        slot.state.store(HAS_DELIVERY_MASK, Ordering::Relaxed);
    }
}

/// Records that a signal has been deferred while `original_mask` was in force. Called by
/// `interpose`'s wrapper, in signal context with every signal blocked. A signal that cannot stay
/// pending in the kernel must be sent again: then `resend` holds the signal. Otherwise `resend` is
/// empty.
pub fn defer(original_mask: SignalSet, resend: SignalSet, saved_frame: u32) -> Deferral {
    let thread = thread_id();
    if let Some(slot) = slot_of(thread) {
        slot.resend.fetch_or(resend, Ordering::Relaxed);
        return Deferral::AlreadyDeferred;
    }
    // Acquire: pairs with the release in `take`, by which the slot's last owner has freed the slot.
    // After that release it no longer uses the slot's fields.
    let free = |slot: &&Slot| slot.owner.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let Some(slot) = TABLE.iter().find(free) else {
        return Deferral::Full;
    };
    slot.original_mask.store(original_mask, Ordering::Relaxed);
    slot.state.store(0, Ordering::Relaxed);
    slot.saved_frame.store(saved_frame, Ordering::Relaxed);
    slot.resend.store(resend, Ordering::Relaxed);
    DEFERRED.fetch_add(1, Ordering::Relaxed);
    Deferral::First
}

/// Adds signals of [`ALWAYS_OPEN`] to the deferred signals of the calling thread. The entry point
/// sends them to the thread again when the program's call ends. Does nothing unless the thread
/// already has a deferred signal.
pub fn send_again(signals: SignalSet) {
    if let Some(slot) = slot_of(thread_id()) {
        slot.resend.fetch_or(signals, Ordering::Relaxed);
    }
}

/// Returns the calling thread's state of deferred signals and frees its slot. The entry point calls
/// this function before it delivers the signals, because a handler may never return. `None` if no
/// signal was deferred.
pub fn take() -> Option<DeferredSignals> {
    let slot = slot_of(thread_id())?;
    let delivery = slot.state.load(Ordering::Relaxed) == HAS_DELIVERY_MASK;
    let deferred = DeferredSignals {
        original_mask: slot.original_mask.load(Ordering::Relaxed),
        delivery_mask: delivery.then(|| slot.delivery_mask.load(Ordering::Relaxed)),
        resend: slot.resend.load(Ordering::Relaxed),
        saved_frame: slot.saved_frame.load(Ordering::Relaxed),
    };
    slot.owner.store(0, Ordering::Release);
    DEFERRED.fetch_sub(1, Ordering::Relaxed);
    Some(deferred)
}

/// Frees all slots. Called in a forked child before any other code runs there, because the parent's
/// other threads do not exist in the child.
pub fn forget_after_fork() {
    // Writes only to slots in use. Free slots may lie on a page that the child still shares with
    // its parent, and a write would copy this page.
    for slot in TABLE.iter().filter(|slot| slot.owner.load(Ordering::Relaxed) != 0) {
        slot.owner.store(0, Ordering::Relaxed);
    }
    DEFERRED.store(0, Ordering::Relaxed);
}

/// Sets the calling thread's signal mask; returns the previous mask.
pub fn set_mask(mask: SignalSet) -> SignalSet {
    let mut old: SignalSet = 0;
    let arguments = [u64::from(linux::SIG_SETMASK), &raw const mask as u64, &raw mut old as u64, 8, 0];
    // This call cannot fail: both addresses are valid and the size is right.
    let _ = SystemCall::new(linux::__NR_rt_sigprocmask, arguments).run_once();
    old
}

/// Sends a signal to this process. Any thread that does not block the signal takes it.
pub fn send_to_process(signal: u32) {
    let Ok(process) = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once() else { return };
    // This call cannot fail: a process may signal itself.
    let _ = SystemCall::new(linux::__NR_kill, [process, u64::from(signal), 0, 0, 0]).run_once();
}

/// Sends a signal to one thread of this process. Errors: `ESRCH` if the thread has ended.
pub fn send_to_thread(thread: u32, signal: u32) -> Result<(), Errno> {
    let process = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once()?;
    let arguments = [process, u64::from(thread), u64::from(signal), 0, 0];
    SystemCall::new(linux::__NR_tgkill, arguments).run_once().map(drop)
}
