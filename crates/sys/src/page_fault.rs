//! Memory whose page faults usring serves. `swap` registers a range with a [`FaultServer`]. The
//! process's fault handler calls it on the thread that touched a page, before any other handler
//! gets the signal.
//!
//! # How a server stays alive while it serves
//! 1. A faulting thread takes a fault slot (`FaultSlot`) and writes the entry that it will use into
//!    it (a hazard pointer).
//! 2. The thread passes a full barrier, and reads the entry in the table once more.
//! 3. A thread that removes an entry empties it, passes a full barrier, and waits until no fault
//!    slot names it.
//!
//! The thread pointer selects the slot, so faulting threads share no slot as long as there are
//! enough.
//!
//! # Stacks
//! A thread's signal stack is often two pages, and a server makes requests to devices. So each slot
//! has a stack of its own, on which the server runs. The slot's first user makes the stack.

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

/// A touch of memory that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub address: usize,
    pub cause: Cause,
    pub write: bool,
    /// The page is present, and does not permit this access.
    pub present: bool,
    /// Number of the thread's fault slot, for a server that keeps data for each slot.
    pub slot: usize,
}

/// The cause of a fault, from the signal.
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

/// The server's answer. It decides how the faulting thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The fault is not the server's: the handler goes on as if there were no server.
    Foreign,
    /// The instruction is run again.
    Again,
    /// The thread gets SIGBUS.
    Refused,
    /// The thread gets SIGSEGV: to the program, the address is not mapped.
    Unmapped,
}

/// Serves the faults of a range.
pub trait FaultServer: Send + Sync {
    /// Serves a fault. Called in a signal handler that blocks all signals that can be blocked. An
    /// implementation must not allocate, take a lock that a faulting thread could hold, or touch
    /// the range itself.
    fn serve(&self, fault: Fault) -> Served;
}

/// Returns whether an address is mapped.
pub fn is_mapped(address: usize) -> bool {
    let mut resident = 0u8;
    let arguments = [(address & !(PAGE - 1)) as u64, PAGE as u64, &raw mut resident as u64, 0, 0];
    SystemCall::new(linux::__NR_mincore, arguments).run().is_ok()
}

/// Returns whether the kernel permits an access now. Makes a call that changes nothing, and checks
/// for EFAULT. (At worst the call wakes a thread that sleeps on that word, and that thread checks
/// its word again.)
pub fn allows(address: usize, write: bool) -> bool {
    /// For FUTEX_WAKE_OP: the operation "or" with zero bits.
    const CHANGE_NOTHING: u64 = (linux::FUTEX_OP_OR as u64) << 28;
    let word = (address & !3) as u64;
    let answer = if write {
        let nobody = AtomicU32::new(0);
        let operation = u64::from(linux::FUTEX_WAKE_OP | linux::FUTEX_PRIVATE_FLAG);
        let mark = PASS_MARK_ABOVE_FLAGS | CHANGE_NOTHING;
        // SAFETY: 1. The first word is a local one. 2. The kernel adds no bits to the other.
        unsafe { syscall6(linux::__NR_futex, [nobody.as_ptr() as u64, operation, 0, 0, word, mark]) }
    } else {
        // No valid way to change a mask. The kernel checks this argument after it has read the
        // mask.
        const NO_WAY: u64 = u32::MAX as u64;
        let start = (address & !7) as u64;
        // SAFETY: the kernel reads the mask if it can, and then refuses the call.
        unsafe { syscall6(linux::__NR_rt_sigprocmask, [NO_WAY, start, 0, 8, 0, PASS_MARK]) }
    };
    check(answer) != Err(Errno::EFAULT)
}

/// Most ranges at the same time.
pub const MOST_RANGES: usize = 256;
/// Number of fault slots, a power of two. This many threads can fault at the same time; further
/// ones wait.
pub const FAULT_SLOTS: usize = 256;
/// Stack of each slot, in bytes. The kernel allocates pages when they are touched.
const STACK: usize = 64 * 1024;

struct ServedRange {
    range: Range<usize>,
    server: Arc<dyn FaultServer>,
}

/// `start` and `end` only serve to skip other entries quickly. The range in the entry itself
/// decides.
struct RangeRow {
    start: AtomicUsize,
    end: AtomicUsize,
    entry: AtomicPtr<ServedRange>,
}

static TABLE: [RangeRow; MOST_RANGES] = [const {
    RangeRow { start: AtomicUsize::new(0), end: AtomicUsize::new(0), entry: AtomicPtr::new(core::ptr::null_mut()) }
}; MOST_RANGES];

/// Number of leading rows that have ever been used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Lock for changes of the table; never taken in a signal handler.
static CHANGES: PerProcess<Mutex<()>> = PerProcess::new();

fn changes() -> &'static Mutex<()> {
    CHANGES.get_or_make(|| Mutex::new(()))
}

/// A fault slot, in a cache line of its own.
#[repr(align(64))]
struct FaultSlot {
    /// The entry in use, or null: the slot is free.
    hazard: AtomicPtr<ServedRange>,
    /// Top of the stack; 0 before the stack is made.
    stack: AtomicUsize,
}

static SLOTS: [FaultSlot; FAULT_SLOTS] =
    [const { FaultSlot { hazard: AtomicPtr::new(core::ptr::null_mut()), stack: AtomicUsize::new(0) } }; FAULT_SLOTS];

/// A registered range; dropping it ends the service.
#[derive(Debug)]
pub struct Registration {
    row: usize,
    entry: AtomicPtr<ServedRange>,
}

/// Lets `server` serve faults within the range from now on. The fault handler must be installed
/// ([`crate::user_memory::install_fault_handler`]).
///
/// Returns `None` if there are too many ranges.
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

/// Removes older ranges that overlap. A forked child does not have its parent's ranges, so the
/// kernel may reuse their addresses there: the newer range is valid.
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
    /// Leaves the entry in the table. For a forked child: the fault slots of the parent's threads
    /// may name the entry for ever there, so waiting for them would never end.
    pub fn forget(self) {
        core::mem::forget(self);
    }
}

impl Drop for Registration {
    /// Removes the range, and waits until no thread is being served.
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
        // SAFETY: 1. It came from `Box::into_raw` in `register`, this is its only owner, and the
        // table no longer has it. 2. No fault slot names it. A thread that takes a slot now reads
        // the table after it has written its hazard, and finds the entry gone.
        drop(unsafe { Box::from_raw(old) });
    }
}

/// Frees all fault slots, in a forked child: the parent's faulting threads do not exist there.
pub fn forget_after_fork() {
    // Writes only where a change is needed: the child shares these pages with its parent.
    for slot in SLOTS.iter().filter(|slot| !slot.hazard.load(Ordering::Relaxed).is_null()) {
        slot.hazard.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// Returns the fault slot that the calling thread tries first when it faults. Outside a fault the
/// number is only a hint: any other slot would do.
pub fn fault_slot() -> usize {
    spread::row(thread::current().0, FAULT_SLOTS)
}

/// For the fault handler: lets the range's server serve a fault, if there is one. `fault.slot` is
/// not set yet.
pub(crate) fn visit(fault: Fault) -> Served {
    visit_row(fault).unwrap_or(Served::Foreign)
}

fn visit_row(fault: Fault) -> Option<Served> {
    let address = fault.address;
    let rows = &TABLE[..USED.load(Ordering::Acquire)];
    let row = rows
        .iter()
        .find(|row| (row.start.load(Ordering::Relaxed)..row.end.load(Ordering::Relaxed)).contains(&address))?;
    let (slot, entry) = enter(row)?;
    let visitor = &SLOTS[slot];
    // SAFETY: the hazard keeps the entry alive until it is cleared below.
    let ServedRange { range, server } = unsafe { &*entry };
    let served = range.contains(&address).then(|| {
        let fault = Fault { slot, ..fault };
        on_stack(visitor, &mut || server.serve(fault))
    });
    visitor.hazard.store(core::ptr::null_mut(), Ordering::Release);
    served
}

/// Takes a fault slot, and names the row's entry in it.
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
    // rdi function, rsi its argument, rdx top of the stack.
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

/// Work to run on another stack, and its result.
struct Task<'a> {
    work: &'a mut dyn FnMut() -> Served,
    served: Served,
}

extern "C" fn run(task: *mut c_void) {
    // SAFETY: the argument belongs to `on_stack`, which waits for this function to return.
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
            // Out of memory: the thread's own stack is used.
            None => return work(),
        },
        top => top,
    };
    let mut task = Task { work, served: Served::Refused };
    // SAFETY: 1. The stack belongs to the slot, whose only user is this thread. 2. `run` takes the
    // argument passed here, and does not unwind: a panic in usring ends the process.
    unsafe { usring_on_stack(run, (&raw mut task).cast(), top) };
    task.served
}

/// Makes a stack above a guard page.
fn make_stack() -> Option<usize> {
    let mapping = private_pages(PAGE + STACK).ok()?;
    let _ = SystemCall::new(linux::__NR_mprotect, [mapping as u64, PAGE as u64, 0, 0, 0]).run();
    Some(mapping + PAGE + STACK)
}
