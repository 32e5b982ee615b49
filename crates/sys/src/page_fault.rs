//! Ranges of memory whose page faults usring serves. `swap` registers a range with a
//! [`FaultServer`]. When a thread touches a page that is not accessible, the process's fault
//! handler calls the server on that thread, before any other handler gets the signal.
//!
//! # How a server stays alive while it serves
//! 1. A faulting thread acquires a fault slot (`FaultSlot`), and stores in it the address of the
//!    table entry that it will use (a hazard pointer).
//! 2. The thread executes a full barrier, and checks that the table still has this entry.
//! 3. A thread that removes an entry clears it in the table, executes a full barrier, and waits
//!    until no fault slot names the entry.
//!
//! A thread searches for a free fault slot from a position on that depends on its thread pointer.
//! So threads rarely compete for a fault slot.
//!
//! # Stacks
//! A thread's signal stack often has only two pages, which is too small for a server that makes
//! requests to devices. So each fault slot has a stack of its own, on which the server runs. The
//! first thread that uses the slot maps the stack.

use crate::mapping::{PAGE, private_pages};
use crate::mutex::Mutex;
use crate::per_process::PerProcess;
use crate::syscall::{PASS_MARK, PASS_MARK_ABOVE_FLAGS, check, syscall6};
use crate::{Errno, SystemCall, processor, spread, thread};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::arch::global_asm;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use linux_raw_sys::general as linux;

/// An access to memory that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub address: usize,
    pub cause: Cause,
    pub write: bool,
    /// Whether the faulting page is present. If so, it does not permit the access.
    pub present: bool,
    /// Number of the thread's fault slot, for a server that keeps data for each slot.
    pub slot: usize,
}

/// The cause of a fault, from the signal's number and `si_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// SIGSEGV: the address is not mapped, or has a guard marker.
    Unmapped,
    /// SIGSEGV: the mapping does not permit the access.
    Forbidden,
    /// SIGBUS: the mapping has no memory there.
    Missing,
    /// SIGBUS: the memory is broken (a hardware error).
    Broken,
}

/// The answer of a [`FaultServer`]: how the faulting thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The fault is not in memory of the server. The fault handler continues as if there were no
    /// server.
    Foreign,
    /// The faulting instruction is executed again.
    Again,
    /// The thread gets SIGBUS.
    Refused,
    /// The thread gets SIGSEGV. For the program, the address is not mapped.
    Unmapped,
}

/// Serves the faults of a registered range of memory.
pub trait FaultServer: Send + Sync {
    /// Serves a fault. Called in a signal handler that blocks all signals that can be blocked. An
    /// implementation must not allocate, acquire a lock that a faulting thread could hold, or
    /// access the range itself.
    fn serve(&self, fault: Fault) -> Served;
}

/// Returns whether an address is mapped.
pub fn is_mapped(address: usize) -> bool {
    let mut resident = 0u8;
    let arguments = [(address & !(PAGE - 1)) as u64, PAGE as u64, &raw mut resident as u64, 0, 0];
    SystemCall::new(linux::__NR_mincore, arguments).run().is_ok()
}

/// Returns whether the kernel permits an access now. Makes a system call on that memory which
/// changes nothing, and checks for EFAULT. (The call may wake a thread that sleeps in futex(2) on
/// the examined word.)
pub fn allows(address: usize, write: bool) -> bool {
    /// The operation of FUTEX_WAKE_OP: "or" with zero bits.
    const CHANGE_NOTHING: u64 = (linux::FUTEX_OP_OR as u64) << 28;
    let word = (address & !3) as u64;
    let answer = if write {
        let nobody = AtomicU32::new(0);
        let operation = u64::from(linux::FUTEX_WAKE_OP | linux::FUTEX_PRIVATE_FLAG);
        let mark = PASS_MARK_ABOVE_FLAGS | CHANGE_NOTHING;
        // SAFETY: 1. The first word is the local `nobody`. 2. The kernel changes no bit of the
        // second word, or answers `EFAULT`.
        unsafe { syscall6(linux::__NR_futex, [nobody.as_ptr() as u64, operation, 0, 0, word, mark]) }
    } else {
        // The value is no valid `how` of rt_sigprocmask(2). The kernel first reads the mask at
        // `start`, and then checks this argument.
        const NO_WAY: u64 = u32::MAX as u64;
        let start = (address & !7) as u64;
        // SAFETY: the kernel only reads the eight bytes at `start`, if it can, and then refuses the
        // call.
        unsafe { syscall6(linux::__NR_rt_sigprocmask, [NO_WAY, start, 0, 8, 0, PASS_MARK]) }
    };
    check(answer) != Err(Errno::EFAULT)
}

/// Maximum number of ranges with a fault server that are registered at the same time.
pub const MOST_RANGES: usize = 256;
/// Number of fault slots, a power of two. If all are in use, the next faulting thread waits.
pub const FAULT_SLOTS: usize = 256;
/// Size of each fault slot's stack, in bytes. The kernel allocates its pages when they are touched.
const STACK: usize = 64 * 1024;

struct ServedRange {
    range: Range<usize>,
    server: Arc<dyn FaultServer>,
}

/// A row of the table of ranges. `start` and `end` are copies for a fast search. They may be out of
/// date. So after a match the search checks `range` in the row's [`ServedRange`].
struct RangeRow {
    start: AtomicUsize,
    end: AtomicUsize,
    entry: AtomicPtr<ServedRange>,
}

static TABLE: [RangeRow; MOST_RANGES] = [const {
    RangeRow { start: AtomicUsize::new(0), end: AtomicUsize::new(0), entry: AtomicPtr::new(core::ptr::null_mut()) }
}; MOST_RANGES];

/// Number of rows of [`TABLE`] that have ever been used. They are the first rows of the table.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Held while the table of ranges is changed. Never acquired in a signal handler.
static CHANGES: PerProcess<Mutex<()>> = PerProcess::new();

fn changes() -> &'static Mutex<()> {
    CHANGES.get_or_make(|| Mutex::new(()))
}

/// A fault slot: a hazard pointer and a stack. A thread has a fault slot while a server serves its
/// page fault. The slot lies in a cache line of its own.
#[repr(align(64))]
struct FaultSlot {
    /// The entry of the table of ranges that the thread with this fault slot uses; null if the
    /// fault slot is free.
    hazard: AtomicPtr<ServedRange>,
    /// Top of the fault slot's stack; 0 until the stack is mapped.
    stack: AtomicUsize,
}

static SLOTS: [FaultSlot; FAULT_SLOTS] =
    [const { FaultSlot { hazard: AtomicPtr::new(core::ptr::null_mut()), stack: AtomicUsize::new(0) } }; FAULT_SLOTS];

/// The registration of a range whose faults a server serves. Dropping the registration removes the
/// range from the table.
#[derive(Debug)]
pub struct Registration {
    row: usize,
    entry: AtomicPtr<ServedRange>,
}

/// Makes `server` serve faults within the range from now on. The fault handler must be installed
/// ([`crate::user_memory::install_fault_handler`]).
///
/// Returns `None` if [`MOST_RANGES`] ranges are registered already.
pub fn register(range: Range<usize>, server: Arc<dyn FaultServer>) -> Option<Registration> {
    let _turn = changes().lock();
    replace_older(&range);
    let row = TABLE.iter().position(|row| row.entry.load(Ordering::Relaxed).is_null())?;
    let RangeRow { start, end, entry } = &TABLE[row];
    start.store(range.start, Ordering::Relaxed);
    end.store(range.end, Ordering::Relaxed);
    let fresh = Box::into_raw(Box::new(ServedRange { range, server }));
    entry.store(fresh, Ordering::Release);
    USED.fetch_max(row + 1, Ordering::Release);
    Some(Registration { row, entry: AtomicPtr::new(fresh) })
}

/// Removes older ranges that overlap with `range`. There are such ranges in a forked child: the
/// table still has the parent's ranges, and the kernel may map other memory at their addresses.
fn replace_older(range: &Range<usize>) {
    for RangeRow { start, end, entry } in &TABLE {
        if start.load(Ordering::Relaxed) < range.end && range.start < end.load(Ordering::Relaxed) {
            start.store(0, Ordering::Relaxed);
            end.store(0, Ordering::Relaxed);
            entry.store(core::ptr::null_mut(), Ordering::Release);
        }
    }
}

impl Registration {
    /// Drops this value without removing the range. For a forked child: to remove the range, it
    /// would wait until no fault slot names the range. The fault slots of the parent's threads may
    /// name the range for ever.
    pub fn forget(self) {
        core::mem::forget(self);
    }
}

impl Drop for Registration {
    /// Removes the range from the table of ranges, and waits until no thread uses the range's
    /// server.
    fn drop(&mut self) {
        let _turn = changes().lock();
        let RangeRow { start, end, entry } = &TABLE[self.row];
        let old = *self.entry.get_mut();
        // Another range may have replaced this one ([`replace_older`]).
        if entry.load(Ordering::Relaxed) == old {
            start.store(0, Ordering::Relaxed);
            end.store(0, Ordering::Relaxed);
            entry.store(core::ptr::null_mut(), Ordering::Release);
        }
        fence(Ordering::SeqCst);
        while SLOTS.iter().any(|slot| slot.hazard.load(Ordering::Acquire) == old) {
            processor::yield_now();
        }
        // SAFETY: 1. `old` came from `Box::into_raw` in `register`, and this value is its only
        // owner. 2. No fault slot names `old`. A thread that acquires a slot later checks the table
        // after it has written its hazard pointer, and finds the entry gone.
        drop(unsafe { Box::from_raw(old) });
    }
}

/// Frees all fault slots. For a forked child, in which the parent's faulting threads do not exist.
pub fn forget_after_fork() {
    // Writes only to slots in use. Free slots may lie on a page that the child still shares with
    // its parent, and a write would copy this page.
    for slot in SLOTS.iter().filter(|slot| !slot.hazard.load(Ordering::Relaxed).is_null()) {
        slot.hazard.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// Returns the number of the fault slot that the calling thread tries first when it faults.
pub fn fault_slot() -> usize {
    spread::row(thread::current().0, FAULT_SLOTS)
}

/// Called by the fault handler. Calls the server of the range that contains the fault's address, if
/// there is one. `fault.slot` need not be set.
pub(crate) fn call_server(fault: Fault) -> Served {
    call_server_of_row(fault).unwrap_or(Served::Foreign)
}

fn call_server_of_row(fault: Fault) -> Option<Served> {
    let address = fault.address;
    let rows = &TABLE[..USED.load(Ordering::Acquire)];
    let row = rows
        .iter()
        .find(|row| (row.start.load(Ordering::Relaxed)..row.end.load(Ordering::Relaxed)).contains(&address))?;
    let (slot, entry) = enter(row)?;
    let visitor = &SLOTS[slot];
    // SAFETY: the slot's hazard pointer keeps the entry alive until it is cleared below.
    let ServedRange { range, server } = unsafe { &*entry };
    let served = range.contains(&address).then(|| {
        let fault = Fault { slot, ..fault };
        on_stack(visitor, &mut || server.serve(fault))
    });
    visitor.hazard.store(core::ptr::null_mut(), Ordering::Release);
    served
}

/// Acquires a fault slot, and stores in it the entry of `row` (a row of the table of ranges).
/// Returns the number of the fault slot, and the entry. `None` if the row has no entry.
fn enter(row: &RangeRow) -> Option<(usize, *mut ServedRange)> {
    let first = fault_slot();
    let mut step = 0;
    loop {
        let entry = row.entry.load(Ordering::Acquire);
        if entry.is_null() {
            return None;
        }
        let slot = (first + step) % FAULT_SLOTS;
        let hazard = &SLOTS[slot].hazard;
        if hazard.compare_exchange(core::ptr::null_mut(), entry, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            step += 1;
            if step.is_multiple_of(FAULT_SLOTS) {
                processor::yield_now();
            }
            continue;
        }
        fence(Ordering::SeqCst);
        if row.entry.load(Ordering::Acquire) == entry {
            return Some((slot, entry));
        }
        hazard.store(core::ptr::null_mut(), Ordering::Release);
    }
}

global_asm!(
    ".pushsection .text.usring_on_stack,\"ax\",@progbits",
    ".globl usring_on_stack",
    ".hidden usring_on_stack",
    ".p2align 4",
    // The arguments: rdi a function, rsi the function's argument, rdx the top of the stack.
    "usring_on_stack:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdx",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    fn usring_on_stack(function: extern "C" fn(*mut c_void), argument: *mut c_void, top: usize);
}

/// A function that runs on the stack of a fault slot, and its result. (A thread has a fault slot
/// while it handles a page fault.)
struct Task<'a> {
    work: &'a mut dyn FnMut() -> Served,
    served: Served,
}

extern "C" fn run(task: *mut c_void) {
    // SAFETY: `task` is the address of a `Task` of `on_stack`, which uses it again only after this
    // function has returned.
    let task = unsafe { &mut *task.cast::<Task>() };
    task.served = (task.work)();
}

fn on_stack(slot: &FaultSlot, work: &mut dyn FnMut() -> Served) -> Served {
    let top = match slot.stack.load(Ordering::Relaxed) {
        0 => match make_stack() {
            Some(top) => {
                slot.stack.store(top, Ordering::Relaxed);
                top
            }
            // There is no memory for a stack, so the function runs on the thread's own stack.
            None => return work(),
        },
        top => top,
    };
    let mut task = Task { work, served: Served::Refused };
    // SAFETY: 1. The stack belongs to the slot, whose only user is this thread. 2. `run` expects
    // the address of a `Task`. 3. `run` does not unwind: a panic in usring ends the process.
    unsafe { usring_on_stack(run, (&raw mut task).cast(), top) };
    task.served
}

/// Maps a stack above a guard page. Returns its top.
fn make_stack() -> Option<usize> {
    let mapping = private_pages(PAGE + STACK).ok()?;
    let _ = SystemCall::new(linux::__NR_mprotect, [mapping as u64, PAGE as u64, 0, 0, 0]).run();
    Some(mapping + PAGE + STACK)
}
