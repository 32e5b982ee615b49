//! State of one process, and how a process notices that it is a forked child.
//!
//! A forked child finds [`Process`] gone and makes its own. At that moment it disowns all that it
//! has inherited. A vfork child (or posix_spawn's) runs in its parent's memory and notices nothing.
//! So code that would change tables for good checks [`is_own`] first.

use crate::doors::stacks;
use crate::files::{descriptors, devices, registered};
use crate::program::environment;
use crate::signals::frames;
use crate::swapped::managed;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use usring_engine::readiness;
use usring_sys::credentials;
use usring_sys::descriptor;
use usring_sys::eventfd;
use usring_sys::mutex::Mutex;
use usring_sys::page_fault;
use usring_sys::per_process::PerProcess;
use usring_sys::pinned_memory;
use usring_sys::{SystemCall, signals};
use usring_uapi::general as linux;

/// State that a forked child must not inherit.
pub struct Process {
    id: u32,
    /// Held while the kernel's action of a signal and the table's are changed together.
    pub actions: Mutex<()>,
    /// Held while descriptors of rings change.
    pub descriptors: Mutex<()>,
    /// Held while code is rewritten. Whether the processors can be synchronised, once that is
    /// known.
    pub patching: Mutex<Option<bool>>,
    /// Held while threads' rows of registered rings change.
    pub registered: Mutex<()>,
}

static PROCESS: PerProcess<Process> = PerProcess::new();

/// Whether this process has begun. (In another PID namespace a child's id may equal its parent's.)
static BEGUN: PerProcess<AtomicBool> = PerProcess::new();
/// Whether this process or one of its ancestors has begun.
static HAS_TABLES: AtomicBool = AtomicBool::new(false);

/// Returns this process's state. One load if it exists.
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
        // A child starts with one thread, and begins here before it makes another
        // (`doors::fork_symbols`). So there is no other thread.
        credentials::forget_after_fork();
        signals::forget_after_fork();
        frames::forget_after_fork();
        stacks::forget_after_fork();
        readiness::SIGNALLED.store(0, Ordering::Relaxed);
        if shares_descriptors() {
            descriptor::leave_to_parent();
        } else {
            descriptor::close_private_after_fork();
        }
        page_fault::forget_after_fork();
        pinned_memory::forget_after_fork();
        descriptors::disown();
        devices::disown();
        managed::begin_after_fork();
        registered::disown();
        environment::count_for(id);
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

/// How a child was made, with regard to its descriptors.
#[derive(Clone, Copy)]
pub enum Birth {
    Unknown,
    OwnDescriptors,
    /// clone(2) with CLONE_FILES: a descriptor that the child closes is closed for its parent.
    SharedDescriptors,
}

/// A [`Birth`], of this process or of one of its ancestors.
static BIRTH: AtomicU8 = AtomicU8::new(Birth::Unknown as u8);
/// The last process that has begun: the parent, in a child that begins now.
static LAST_BEGUN: AtomicU32 = AtomicU32::new(0);

/// Begins a child that has just been made, if it has not begun yet.
pub fn begin_child(birth: Birth) {
    if PROCESS.get().is_none() {
        BIRTH.store(birth as u8, Ordering::Relaxed);
        begin();
    }
}

/// Whether this child shares its parent's descriptors. If the fork was not seen, this is tested: a
/// descriptor that the child opens then exists in its parent, too.
fn shares_descriptors() -> bool {
    let birth = BIRTH.swap(Birth::Unknown as u8, Ordering::Relaxed);
    if birth != Birth::Unknown as u8 {
        return birth == Birth::SharedDescriptors as u8;
    }
    let Ok(probe) = eventfd::create() else { return false };
    let own = descriptors::eventfd_id(None, probe.number());
    own.is_some() && own == descriptors::eventfd_id(Some(LAST_BEGUN.load(Ordering::Relaxed)), probe.number())
}

/// Returns the id of the calling process; in a vfork child it differs from that of [`current`].
pub fn id() -> u32 {
    getpid()
}

/// The caller's relation to the memory that it runs in.
pub enum Caller {
    Own,
    /// A vfork child, which borrows it.
    Borrower,
    /// A forked child in its own memory, before any code of usring has run there.
    NotBegun,
}

/// Returns the caller's relation to the memory that it runs in. For signal handlers: makes no
/// state.
pub fn caller() -> Caller {
    match PROCESS.get() {
        Some(process) if process.id == getpid() => Caller::Own,
        Some(_) => Caller::Borrower,
        None => Caller::NotBegun,
    }
}

/// Whether the caller is the process that owns this memory, and not a vfork child that borrows it.
/// Makes a system call.
pub fn is_own() -> bool {
    getpid() == current().id
}

fn getpid() -> u32 {
    SystemCall::new(linux::__NR_getpid, [0; 5]).run_once().unwrap_or(0) as u32
}
