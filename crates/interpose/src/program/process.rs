//! What one process has for itself, and how it notices that it is a child.
//!
//! A forked child finds everything of [`Process`] gone and makes its own; that
//! is the moment at which what it inherited is disowned. A vfork child (or
//! posix_spawn's) runs in its parent's memory and notices nothing: whatever
//! would change tables for good asks [`is_own`] first.

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
use usring_sys::kept_memory;
use usring_sys::mutex::Mutex;
use usring_sys::page_fault;
use usring_sys::per_process::PerProcess;
use usring_sys::{SystemCall, signals};
use usring_uapi::general as linux;

/// State that a forked child must not inherit.
pub struct Process {
    id: u32,
    /// Held while the kernel's and our notion of a handler are brought in line.
    pub actions: Mutex<()>,
    /// Held while descriptors of rings change.
    pub descriptors: Mutex<()>,
    /// Held while code is rewritten; whether the processors can be brought
    /// along, once that is known.
    pub patching: Mutex<Option<bool>>,
    /// Held while threads' tables of registered rings come and go.
    pub registered: Mutex<()>,
}

static PROCESS: PerProcess<Process> = PerProcess::new();

/// Whether this process has begun. (A child's id may be its parent's, in another namespace.)
static BEGUN: PerProcess<AtomicBool> = PerProcess::new();
/// Whether this process has, or one that it comes from.
static HAS_TABLES: AtomicBool = AtomicBool::new(false);

/// This process's state. One look where it exists.
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
        // A child is born with one thread, and comes by here before it makes another
        // (`doors::fork_symbols`): nobody else is about.
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
        kept_memory::forget_after_fork();
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

/// How a child was made, as far as its descriptors are concerned.
#[derive(Clone, Copy)]
pub enum Birth {
    Unknown,
    OwnDescriptors,
    /// clone(2) with CLONE_FILES: what the child closes is closed for its parent.
    SharedDescriptors,
}

/// A [`Birth`]; of this process, or of one that it comes from.
static BIRTH: AtomicU8 = AtomicU8::new(Birth::Unknown as u8);
/// The process that was the last to begin: to a child that begins now, its parent.
static LAST_BEGUN: AtomicU32 = AtomicU32::new(0);

/// Begins a child that has just been made, if it has not begun yet.
pub fn begin_child(birth: Birth) {
    if PROCESS.get().is_none() {
        BIRTH.store(birth as u8, Ordering::Relaxed);
        begin();
    }
}

/// Whether this child's descriptors are its parent's. One that was made unseen is
/// asked: what it opens, its parent has as well.
fn shares_descriptors() -> bool {
    let birth = BIRTH.swap(Birth::Unknown as u8, Ordering::Relaxed);
    if birth != Birth::Unknown as u8 {
        return birth == Birth::SharedDescriptors as u8;
    }
    let Ok(probe) = eventfd::create() else { return false };
    let own = descriptors::eventfd_id(None, probe.number());
    own.is_some() && own == descriptors::eventfd_id(Some(LAST_BEGUN.load(Ordering::Relaxed)), probe.number())
}

/// The id of the calling process: in a vfork child not that of [`current`].
pub fn id() -> u32 {
    getpid()
}

/// The caller's relation to the memory it runs in.
pub enum Caller {
    Own,
    /// A vfork child's, which borrows it.
    Borrower,
    /// A forked child's own, and nothing of ours has run in the child yet.
    NotBegun,
}

/// The caller's relation to the memory it runs in. For signal handlers: makes nothing.
pub fn caller() -> Caller {
    match PROCESS.get() {
        Some(process) if process.id == getpid() => Caller::Own,
        Some(_) => Caller::Borrower,
        None => Caller::NotBegun,
    }
}

/// Whether the caller is the process whose memory this is, and not a vfork
/// child that borrows it. A system call.
pub fn is_own() -> bool {
    getpid() == current().id
}

fn getpid() -> u32 {
    SystemCall::new(linux::__NR_getpid, [0; 5]).run_once().unwrap_or(0) as u32
}
