//! The state of one process, and how a process notices that it is a forked child.
//!
//! A forked child finds that it has no [`Process`] and makes its own. It then resets all that it
//! has inherited ([`set_child_reset`]). A vfork child (also posix_spawn's) runs in its parent's
//! memory and notices nothing. So before a thread makes a lasting change of a table, it checks
//! [`is_own`].
//!
//! | file | content |
//! |---|---|
//! | [`environment`] | usring's variables |
//! | [`counting`] | the file in which rings are counted |
//! | [`stacks`] | stacks for threads whose own is too small |

pub mod counting;
pub mod environment;
pub mod stacks;

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use usring_sys::SystemCall;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::set_once::SetOnce;
use usring_sys::width;
use usring_uapi::general as linux;

/// State that a forked child must not inherit.
pub struct Process {
    id: u32,
    /// Locked while a signal's action changes, in the kernel and in usring's table.
    pub actions: Mutex<()>,
    /// Locked while the tables of rings' and devices' descriptors change.
    pub descriptors: Mutex<()>,
    /// Locked while code is rewritten. The content says whether membarrier(2) can make every
    /// processor synchronise its instruction stream. `None`: that is not known yet.
    pub patching: Mutex<Option<bool>>,
    /// Held while threads' rows of registered rings change.
    pub registered: Mutex<()>,
}

static PROCESS: PerProcess<Process> = PerProcess::new();

/// Whether code of usring has run in this process. (The process id does not show this, because a
/// child in another PID namespace may have the id of its parent.)
static BEGUN: PerProcess<AtomicBool> = PerProcess::new();
/// Whether code of usring has run in this process or in one of its ancestors. If it has run in an
/// ancestor, a forked child has tables to reset.
static HAS_TABLES: AtomicBool = AtomicBool::new(false);

/// The function that resets, in a forked child, all that the child has inherited. Its arguments:
/// whether the child shares its parent's descriptors, and the process id of the parent.
pub type ChildReset = fn(ChildDescriptors, u32);

static CHILD_RESET: SetOnce<ChildReset> = SetOnce::new();

/// Sets the function that resets each forked child. Must be called before the first call of
/// [`current`].
pub fn set_child_reset(reset_in_child: &'static ChildReset) {
    CHILD_RESET.set(reset_in_child);
}

/// Returns this process's state. In a forked child, the first call makes the state, and resets what
/// the child has inherited. Later calls cost one load.
#[inline]
pub fn current() -> &'static Process {
    match PROCESS.get() {
        Some(process) => process,
        None => begin(),
    }
}

#[cold]
fn begin() -> &'static Process {
    let id = getpid();
    let is_first = !BEGUN.get_or_make(|| AtomicBool::new(false)).swap(true, Ordering::Relaxed);
    if HAS_TABLES.swap(true, Ordering::Relaxed) && is_first {
        // A child starts with one thread. usring's code runs here before the child makes another
        // thread (`entry::fork_symbols`). So no other thread exists now.
        let descriptors = ChildDescriptors::take();
        if let Some(reset_in_child) = CHILD_RESET.get() {
            reset_in_child(descriptors, LAST_BEGUN.load(Ordering::Relaxed));
        }
        counting::count_for(id);
    }
    LAST_BEGUN.store(id, Ordering::Relaxed);
    PROCESS.get_or_make(|| Process {
        id,
        actions: Mutex::new(()),
        descriptors: Mutex::new(()),
        patching: Mutex::new(None),
        registered: Mutex::new(()),
    })
}

/// Whether a child shares its parent's descriptors.
#[derive(Clone, Copy)]
pub enum ChildDescriptors {
    Unknown,
    Own,
    /// clone(2) with CLONE_FILES: if the child closes a descriptor, it is closed for the parent,
    /// too.
    Shared,
}

impl ChildDescriptors {
    /// Returns how this child was made. Resets the value, so that the child's own children find
    /// `Unknown`.
    fn take() -> ChildDescriptors {
        const OWN: u8 = ChildDescriptors::Own as u8;
        const SHARED: u8 = ChildDescriptors::Shared as u8;
        match OF_CHILD.swap(ChildDescriptors::Unknown as u8, Ordering::Relaxed) {
            OWN => ChildDescriptors::Own,
            SHARED => ChildDescriptors::Shared,
            _ => ChildDescriptors::Unknown,
        }
    }
}

/// The [`ChildDescriptors`] that [`begin_child`] passes to [`begin`], as a number.
static OF_CHILD: AtomicU8 = AtomicU8::new(ChildDescriptors::Unknown as u8);
/// Process id of the last process in which code of usring began to run. When that code begins to
/// run in a child, this is the id of the child's parent.
static LAST_BEGUN: AtomicU32 = AtomicU32::new(0);

/// Prepares a forked child, unless code of usring has run in it already: makes its state, and
/// resets what it has inherited.
pub fn begin_child(descriptors: ChildDescriptors) {
    if PROCESS.get().is_none() {
        OF_CHILD.store(descriptors as u8, Ordering::Relaxed);
        begin();
    }
}

/// Returns the id of the calling process. In a vfork child, that is the child's own id, while the
/// id in [`current`] is the parent's.
pub fn id() -> u32 {
    getpid()
}

/// Whether the calling process owns the memory in which it runs.
pub enum Caller {
    /// A process in its own memory.
    Own,
    /// A vfork child, which borrows its parent's memory.
    Borrower,
    /// A forked child that has its own memory, and in which no code of usring has run yet.
    NotBegun,
}

/// Returns whether the calling process owns the memory in which it runs. A signal handler may call
/// this function: if the process has no state yet, the function does not make it.
pub fn caller() -> Caller {
    match PROCESS.get() {
        Some(process) if process.id == getpid() => Caller::Own,
        Some(_) => Caller::Borrower,
        None => Caller::NotBegun,
    }
}

/// Returns whether the calling process owns the memory in which it runs. A vfork child borrows that
/// memory from its parent. Makes a system call.
pub fn is_own() -> bool {
    getpid() == current().id
}

fn getpid() -> u32 {
    width::low(SystemCall::new(linux::__NR_getpid, [0; 5]).run_once().unwrap_or(0))
}
