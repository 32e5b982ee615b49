//! usring's own threads: workers, SQ threads, the ring watcher.
//!
//! - The threads are bare: made by clone(2), with a small stack and a thread-local block that
//!   usring maps. libc does not know them. So libc ends the process when the program's own last
//!   thread ends. And usring can start a thread without entering libc's malloc.
//! - In the Rust API, whose allocator is the program's, the standard library makes the threads
//!   instead (`set_spawner`).
//! - A thread of usring blocks every signal but SIGSYS, SIGSEGV, SIGBUS and [`CHANGE_USER`]. The
//!   program's handlers run on the program's threads only.

use crate::mapping::{PAGE, private_pages, unmap};
use crate::own_threads::ThreadSlot;
use crate::syscall::PASS_MARK;
use crate::{Errno, SystemCall, capability, credentials, syscall};
use alloc::boxed::Box;
use core::arch::{asm, global_asm};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general as linux;

/// A thread, identified by the address of its thread-local block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ThreadId(pub usize);

/// Returns the calling thread, by one load. In x86-64's convention, the thread pointer is the
/// address of a word that holds this address itself.
#[inline(always)]
pub fn current() -> ThreadId {
    let pointer: usize;
    // SAFETY: x86-64's convention guarantees this word; the instruction reads no other memory.
    unsafe { asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly)) };
    ThreadId(pointer)
}

/// Which changes of credentials a thread of usring makes after its start. The thread starts with
/// the credentials of its creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Credentials {
    /// The thread repeats every change of credentials that a thread of the program makes
    /// ([`crate::credentials`]).
    Following,
    /// The thread repeats every change of user and groups that the program makes. It has at most
    /// the capabilities that it needs for this (CAP_SETUID and CAP_SETGID): its work needs no
    /// capabilities.
    Service,
    /// The thread keeps the credentials that it started with. It carries out requests of those
    /// program threads that have these credentials.
    OfSpawn,
    /// The thread keeps the credentials that it started with, and submits with them: it counts as a
    /// thread of the program.
    OfSubmitter,
}

/// Starts a thread that calls `entry(argument)` once, and ends when `entry` returns.
pub type Spawner = fn(entry: extern "C" fn(*mut c_void), argument: *mut c_void) -> Result<(), Errno>;

static SPAWNER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Makes `spawner` start all further threads of usring.
pub fn set_spawner(spawner: Spawner) {
    SPAWNER.store(spawner as *mut (), Ordering::Release);
}

/// Returns whether usring's threads are made without libc.
pub fn are_bare() -> bool {
    spawner().is_none()
}

fn spawner() -> Option<Spawner> {
    let spawner = SPAWNER.load(Ordering::Acquire);
    // SAFETY: only `set_spawner` stores to `SPAWNER`, and it stores a `Spawner`.
    (!spawner.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), Spawner>(spawner) })
}

/// An option of prctl(2), which `linux-raw-sys` has only in another module.
const PR_SET_NAME: u64 = 15;

/// Longest name of a thread in Linux, in bytes.
const NAME_MAX: usize = 15;

struct Start {
    name: [u8; NAME_MAX + 1],
    work: Box<dyn FnOnce() + Send>,
    slot: ThreadSlot,
    gives_up_capabilities: bool,
    /// Whether clone(2) has made the thread, without libc. When such a thread ends, the kernel
    /// frees its slot in [`crate::own_threads`].
    is_bare: bool,
}

/// Starts a thread. `name` is cut to 15 bytes.
///
/// Errors: `ENOMEM`; `EAGAIN` if the kernel refuses a thread, or usring has too many threads.
pub fn spawn(name: &str, credentials: Credentials, work: Box<dyn FnOnce() + Send>) -> Result<(), Errno> {
    spawn_by(spawner(), name, credentials, work)
}

/// Starts a thread by clone(2), even if a spawner is set. For a caller that may be inside libc's
/// malloc: if libc made the thread, it would enter malloc again.
pub fn spawn_unknown(name: &str, credentials: Credentials, work: Box<dyn FnOnce() + Send>) -> Result<(), Errno> {
    spawn_by(None, name, credentials, work)
}

fn spawn_by(
    spawner: Option<Spawner>,
    name: &str,
    kind: Credentials,
    work: Box<dyn FnOnce() + Send>,
) -> Result<(), Errno> {
    let slot = ThreadSlot::reserve(kind, credentials::generation())?;
    let thread_word = slot.thread_word();
    let gives_up_capabilities = kind == Credentials::Service;
    let name_buffer = [0; NAME_MAX + 1];
    let is_bare = spawner.is_none();
    let mut start = Box::new(Start { name: name_buffer, work, slot, gives_up_capabilities, is_bare });
    let length = name.len().min(NAME_MAX);
    start.name[..length].copy_from_slice(&name.as_bytes()[..length]);
    let argument = Box::into_raw(start);
    // A new thread inherits its creator's signal mask.
    let mask = block_signals();
    let result = match spawner {
        Some(spawner) => spawner(run, argument.cast()),
        None => spawn_bare(run, argument.cast(), thread_word),
    };
    restore_signals(mask);
    if result.is_err() {
        // SAFETY: no thread was started, so this function still owns `argument`.
        drop(unsafe { Box::from_raw(argument) });
    }
    result
}

extern "C" fn run(argument: *mut c_void) {
    // SAFETY: `argument` came from `Box::into_raw` in `spawn_by`, which passed it to this thread
    // alone.
    let start = unsafe { Box::from_raw(argument.cast::<Start>()) };
    let Start { name, work, slot, gives_up_capabilities, is_bare } = *start;
    let (generations, order) = credentials::shared_words();
    let id = slot.begin(generations, order);
    if is_bare {
        store_id(id);
    }
    block_signals();
    if gives_up_capabilities {
        let _ = capability::keep_identity_only();
    }
    let _ = SystemCall::new(linux::__NR_prctl, [PR_SET_NAME, name.as_ptr() as u64, 0, 0, 0]).run();
    work();
    slot.end(is_bare);
}

/// Offset from the thread pointer at which the program's libc keeps a thread's id.
/// [`crate::thread_ids`] determines it; 0: not known.
pub(crate) static ID_OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Stores the id of the calling thread in the word in which libc keeps the ids of its own threads.
/// The calling thread is bare. So [`crate::thread_ids`] finds the id there.
fn store_id(id: u32) {
    let offset = ID_OFFSET.load(Ordering::Relaxed);
    if offset == 0 || offset + size_of::<u32>() > LOCALS {
        return;
    }
    let word = (current().0 + offset) as *mut u32;
    // SAFETY: 1. Behind a bare thread's thread pointer, `LOCALS` bytes are mapped for this thread.
    // 2. Only this thread uses them, and it holds no reference to them. 3. The offset is a multiple
    // of 8, and the thread pointer is that of a page.
    unsafe { word.write(id) };
}

/// Number of the signal by which libc changes the user of every thread that it knows, in setuid()
/// and similar functions. For glibc it is SIGSETXID. For another libc, the number of that libc's
/// signal is stored here before usring makes its first thread.
pub static CHANGE_USER: AtomicU32 = AtomicU32::new(if cfg!(target_env = "musl") { CHANGE_USER_MUSL } else { 33 });

/// musl's SIGSYNCCALL. (33 is its SIGCANCEL.)
pub const CHANGE_USER_MUSL: u32 = 34;

/// Blocks all signals but SIGSYS, SIGSEGV, SIGBUS and [`CHANGE_USER`]. Returns the previous mask.
fn block_signals() -> u64 {
    let open = [linux::SIGSYS, linux::SIGSEGV, linux::SIGBUS, CHANGE_USER.load(Ordering::Relaxed)];
    let blocked = open.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
    change_mask(blocked)
}

fn restore_signals(mask: u64) {
    change_mask(mask);
}

fn change_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let arguments = [u64::from(linux::SIG_SETMASK), &raw const mask as u64, &raw mut old as u64, 8, 0];
    let _ = SystemCall::new(linux::__NR_rt_sigprocmask, arguments).run();
    old
}

/// While this value lives, no handler of the program interrupts the thread that made it. For
/// threads of the program whose work must not stop halfway.
#[derive(Debug)]
#[must_use = "signals are open again when it is dropped"]
pub struct ClosedSignals(u64);

pub fn close_signals() -> ClosedSignals {
    ClosedSignals(block_signals())
}

impl Drop for ClosedSignals {
    fn drop(&mut self) {
        restore_signals(self.0);
    }
}

/// Size of a bare thread's stack, in bytes. The kernel allocates its pages when they are touched.
const STACK: usize = 256 * 1024;
/// Number of zeroed bytes on each side of the thread pointer. Code may expect thread-local
/// variables below the thread pointer. Above it, libcs keep words of their own.
const LOCALS: usize = PAGE;

global_asm!(
    ".pushsection .text.usring_bare_thread,\"ax\",@progbits",
    ".globl usring_clone, usring_leave",
    ".hidden usring_clone, usring_leave",
    // The arguments: rdi flags, rsi stack, rdx thread pointer, rcx entry, r8 argument of the entry,
    // r9 mapping. On the caller's stack: [rsp + 8] the mapping's length, [rsp + 16] address for the
    // thread's id.
    ".p2align 4",
    "usring_clone:",
    "mov r10, [rsp + 8]",
    // Pass entry, argument, mapping and its length to the new thread on that thread's stack.
    "and rsi, -16",
    "sub rsi, 32",
    "mov [rsi], rcx",
    "mov [rsi + 8], r8",
    "mov [rsi + 16], r9",
    "mov [rsi + 24], r10",
    "mov r8, rdx",
    "mov rdx, [rsp + 16]",
    "mov r10, rdx",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
    "xor ebp, ebp",
    "pop rcx",
    "pop rdi",
    "call rcx",
    // The thread is about to unmap its own stack. No signal handler may run after that, so the
    // thread blocks all signals.
    "mov rax, -1",
    "push rax",
    "mov rsi, rsp",
    "mov edi, {set_mask}",
    "xor edx, edx",
    "mov r10d, 8",
    "mov r9, {mark}",
    "mov eax, {rt_sigprocmask}",
    "syscall",
    "pop rax",
    "pop rdi",
    "pop rsi",
    "mov eax, 11",
    "syscall",
    "xor edi, edi",
    "mov eax, 60",
    "syscall",
    "ud2",
    ".popsection",
    set_mask = const linux::SIG_SETMASK,
    mark = const PASS_MARK,
    rt_sigprocmask = const linux::__NR_rt_sigprocmask,
);

unsafe extern "C" {
    fn usring_clone(
        flags: u64,
        stack: *mut u8,
        thread_pointer: *mut u8,
        entry: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        mapping: *mut u8,
        length: usize,
        thread_word: *mut u32,
    ) -> u64;
}

/// Starts a thread by clone(2). Its guard page, stack and thread-local block are one mapping, which
/// the thread itself unmaps at its end. `thread_word` holds the thread's id while the thread lives.
fn spawn_bare(entry: extern "C" fn(*mut c_void), argument: *mut c_void, thread_word: *mut u32) -> Result<(), Errno> {
    let length = PAGE + STACK + 2 * LOCALS;
    let mapping = private_pages(length)?;
    let guard = SystemCall::new(linux::__NR_mprotect, [mapping as u64, PAGE as u64, 0, 0, 0]).run();
    let pointer = (mapping + PAGE + STACK + LOCALS) as *mut u8;
    let flags = linux::CLONE_VM
        | linux::CLONE_FS
        | linux::CLONE_FILES
        | linux::CLONE_SIGHAND
        | linux::CLONE_THREAD
        | linux::CLONE_SYSVSEM
        | linux::CLONE_SETTLS
        | linux::CLONE_PARENT_SETTID
        | linux::CLONE_CHILD_CLEARTID;
    let started = guard.and_then(|_| {
        // SAFETY: 1. The mapping is fresh, and large enough for guard page, stack and thread-local
        // block. 2. From clone(2) on only the new thread uses the mapping, until that thread unmaps
        // it. 3. `spawn_by` has blocked signals, so no handler of the program runs on the new
        // stack. 4. `thread_word` points into a static.
        unsafe {
            pointer.cast::<usize>().write(pointer as usize);
            let stack = (mapping + PAGE + STACK) as *mut u8;
            let flags = u64::from(flags);
            syscall::check(usring_clone(
                flags,
                stack,
                pointer,
                entry,
                argument,
                mapping as *mut u8,
                length,
                thread_word,
            ))
        }
    });
    if started.is_err() {
        let _ = unmap(mapping, length);
    }
    started.map(drop)
}
