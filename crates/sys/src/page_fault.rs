//! Memory whose faults are served by ourselves: `swap` registers a range with a
//! [`FaultServer`], and the process's fault handler asks it, in the thread that
//! touched a page, before anybody else sees the signal.
//!
//! # How a server stays alive while it is asked
//! A visitor writes which entry of the table it is going to use into its own
//! place (a hazard pointer), and looks at the entry once more. Who removes an
//! entry empties it first and then waits until no place names it. Both have a
//! full barrier between store and look. Places are chosen by the thread, so two
//! threads that fault share none as long as there are enough.
//!
//! # Stacks
//! A thread's signal stack is often two pages, and a server makes requests to
//! devices. So each place has a stack of its own, made by its first visitor, on
//! which the server runs.

use crate::mapping::{PAGE, private_pages};
use crate::mutex::Mutex;
use crate::per_process::PerProcess;
use crate::syscall::{PASS_MARK, PASS_MARK_ABOVE_FLAGS, check, syscall6};
use crate::{Errno, SystemCall, processor, thread};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::arch::global_asm;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use linux_raw_sys::general as linux;

/// A touch of memory that did not go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub address: usize,
    pub cause: Cause,
    pub write: bool,
    /// A page is there, and does not allow this.
    pub present: bool,
    /// Small number of the thread's place, for a server that keeps something
    /// for each.
    pub place: usize,
}

/// What the signal says of a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// SIGSEGV: nothing is mapped there, or a guard marker.
    Unmapped,
    /// SIGSEGV: what is mapped there does not allow it.
    Forbidden,
    /// SIGBUS: what is mapped there has no memory.
    Missing,
    /// SIGBUS: the memory is broken.
    Broken,
}

/// What becomes of the thread that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It is not the server's affair: as if there were none.
    Foreign,
    /// Its instruction is run again.
    Again,
    /// It gets a SIGBUS.
    Refused,
    /// Nothing is mapped there, as far as the program is concerned: SIGSEGV.
    Unmapped,
}

/// Serves the faults of a range.
pub trait FaultServer: Send + Sync {
    /// Called in a signal handler, with all signals blocked that can be: no
    /// allocation, no lock that a faulting thread could hold, and no touch of
    /// the range itself.
    fn serve(&self, fault: Fault) -> Served;
}

/// Whether anything is mapped at an address.
pub fn is_mapped(address: usize) -> bool {
    let mut resident = 0u8;
    let arguments = [(address & !(PAGE - 1)) as u64, PAGE as u64, &raw mut resident as u64, 0, 0];
    SystemCall::new(linux::__NR_mincore, arguments).run().is_ok()
}

/// Whether the kernel allows a touch now: asked by calls that change nothing, for their EFAULT.
/// (At worst one wakes somebody who sleeps on that word, and who looks again.)
pub fn allows(address: usize, write: bool) -> bool {
    /// Of FUTEX_WAKE_OP: a word of zero bits is added by "or".
    const CHANGE_NOTHING: u64 = (linux::FUTEX_OP_OR as u64) << 28;
    let word = (address & !3) as u64;
    let answer = if write {
        let nobody = AtomicU32::new(0);
        let operation = u64::from(linux::FUTEX_WAKE_OP | linux::FUTEX_PRIVATE_FLAG);
        let mark = PASS_MARK_ABOVE_FLAGS | CHANGE_NOTHING;
        // SAFETY: 1. The first word is ours. 2. To the other the kernel adds nothing.
        unsafe { syscall6(linux::__NR_futex, [nobody.as_ptr() as u64, operation, 0, 0, word, mark]) }
    } else {
        // There is no such way to change a mask; the kernel looks at that after it has read the mask.
        const NO_WAY: u64 = u32::MAX as u64;
        let start = (address & !7) as u64;
        // SAFETY: it is read, if it can be, and nothing is done.
        unsafe { syscall6(linux::__NR_rt_sigprocmask, [NO_WAY, start, 0, 8, 0, PASS_MARK]) }
    };
    check(answer) != Err(Errno::EFAULT)
}

/// Most ranges at the same time.
pub const MOST_RANGES: usize = 256;
/// Threads that fault at the same time; more wait. A power of two.
pub const PLACES: usize = 256;
/// Of each place. Pages are used only where touched.
const STACK: usize = 64 * 1024;

struct ServedRange {
    range: Range<usize>,
    server: Arc<dyn FaultServer>,
}

/// The start and the end are for looking past entries that are not meant; the
/// entry itself has the truth.
struct Row {
    start: AtomicUsize,
    end: AtomicUsize,
    entry: AtomicPtr<ServedRange>,
}

static TABLE: [Row; MOST_RANGES] = [const {
    Row { start: AtomicUsize::new(0), end: AtomicUsize::new(0), entry: AtomicPtr::new(core::ptr::null_mut()) }
}; MOST_RANGES];

/// Rows from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Held by who changes the table; never in a signal handler.
static CHANGES: PerProcess<Mutex<()>> = PerProcess::new();

fn changes() -> &'static Mutex<()> {
    CHANGES.get_or_make(|| Mutex::new(()))
}

/// A cache line for each.
#[repr(align(64))]
struct Place {
    /// The entry that is in use, or null: the place is free.
    hazard: AtomicPtr<ServedRange>,
    /// Top of the stack, once there is one.
    stack: AtomicUsize,
}

static VISITORS: [Place; PLACES] =
    [const { Place { hazard: AtomicPtr::new(core::ptr::null_mut()), stack: AtomicUsize::new(0) } }; PLACES];

/// A range that is being served, until it is dropped.
#[derive(Debug)]
pub struct Registration {
    row: usize,
    entry: AtomicPtr<ServedRange>,
}

/// From now on faults within the range are the server's. The fault handler has
/// been installed ([`crate::user_memory::install_fault_handler`]).
///
/// `None` if there are too many ranges.
pub fn register(range: Range<usize>, server: Arc<dyn FaultServer>) -> Option<Registration> {
    let _turn = changes().lock();
    replace_older(&range);
    let row = TABLE.iter().position(|row| row.entry.load(Ordering::Relaxed).is_null())?;
    let Row { start, end, entry } = &TABLE[row];
    start.store(range.start, Ordering::Relaxed);
    end.store(range.end, Ordering::Relaxed);
    let fresh = Box::into_raw(Box::new(ServedRange { range, server }));
    entry.store(fresh, Ordering::Release);
    USED.fetch_max(row + 1, Ordering::Release);
    Some(Registration { row, entry: AtomicPtr::new(fresh) })
}

/// A forked child does not have its parent's ranges, so it may be given their
/// addresses for its own: the newer one holds.
fn replace_older(range: &Range<usize>) {
    for Row { start, end, entry } in &TABLE {
        if start.load(Ordering::Relaxed) < range.end && range.start < end.load(Ordering::Relaxed) {
            start.store(0, Ordering::Relaxed);
            end.store(0, Ordering::Relaxed);
            entry.store(core::ptr::null_mut(), Ordering::Release);
        }
    }
}

impl Registration {
    /// For a forked child, whose parent's visitors are not there to leave: the
    /// entry stays.
    pub fn forget(self) {
        core::mem::forget(self);
    }
}

impl Drop for Registration {
    /// Waits for who is being served.
    fn drop(&mut self) {
        let _turn = changes().lock();
        let Row { start, end, entry } = &TABLE[self.row];
        let old = *self.entry.get_mut();
        // Another range may have taken its place.
        if entry.load(Ordering::Relaxed) == old {
            start.store(0, Ordering::Relaxed);
            end.store(0, Ordering::Relaxed);
            entry.store(core::ptr::null_mut(), Ordering::Release);
        }
        fence(Ordering::SeqCst);
        while VISITORS.iter().any(|place| place.hazard.load(Ordering::Acquire) == old) {
            processor::give_way();
        }
        // SAFETY: 1. It came from `Box::into_raw` in `register`, this is its only
        // owner, and the table does not name it any more. 2. No visitor does; one that comes now
        // looks at the table after it has written its hazard, and sees that.
        drop(unsafe { Box::from_raw(old) });
    }
}

/// In a forked child: nobody is being served. (The parent's servers were visited by threads
/// that are not there to leave.)
pub fn forget_after_fork() {
    // Only read where nothing is to be changed: the child shares these pages.
    for place in VISITORS.iter().filter(|place| !place.hazard.load(Ordering::Relaxed).is_null()) {
        place.hazard.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The calling thread's place, as good as any while it does not fault.
pub fn place() -> usize {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let spread = (thread::current().0 as u64).wrapping_mul(GOLDEN);
    (spread >> (64 - PLACES.trailing_zeros())) as usize
}

/// For the fault handler: has the fault served, if it is somebody's. What it says of
/// the place is not known yet.
pub(crate) fn visit(fault: Fault) -> Served {
    visit_row(fault).unwrap_or(Served::Foreign)
}

fn visit_row(fault: Fault) -> Option<Served> {
    let address = fault.address;
    let rows = &TABLE[..USED.load(Ordering::Acquire)];
    let row = rows
        .iter()
        .find(|row| (row.start.load(Ordering::Relaxed)..row.end.load(Ordering::Relaxed)).contains(&address))?;
    let (place, entry) = enter(row)?;
    let visitor = &VISITORS[place];
    // SAFETY: the hazard keeps the entry alive until it is taken back below.
    let ServedRange { range, server } = unsafe { &*entry };
    let served = range.contains(&address).then(|| {
        let fault = Fault { place, ..fault };
        on_stack(visitor, &mut || server.serve(fault))
    });
    visitor.hazard.store(core::ptr::null_mut(), Ordering::Release);
    served
}

/// Takes a place, and names the row's entry in it.
fn enter(row: &Row) -> Option<(usize, *mut ServedRange)> {
    let first = place();
    let mut step = 0;
    loop {
        let entry = row.entry.load(Ordering::Acquire);
        if entry.is_null() {
            return None;
        }
        let place = (first + step) % PLACES;
        let hazard = &VISITORS[place].hazard;
        if hazard.compare_exchange(core::ptr::null_mut(), entry, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            step += 1;
            if step.is_multiple_of(PLACES) {
                processor::give_way();
            }
            continue;
        }
        fence(Ordering::SeqCst);
        if row.entry.load(Ordering::Acquire) == entry {
            return Some((place, entry));
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

/// What is run on another stack, and what came of it.
struct Errand<'a> {
    work: &'a mut dyn FnMut() -> Served,
    served: Served,
}

extern "C" fn run(errand: *mut c_void) {
    // SAFETY: `on_stack`'s own, which waits for this to return.
    let errand = unsafe { &mut *errand.cast::<Errand>() };
    errand.served = (errand.work)();
}

fn on_stack(place: &Place, work: &mut dyn FnMut() -> Served) -> Served {
    let top = match place.stack.load(Ordering::Relaxed) {
        0 => match make_stack() {
            Some(top) => {
                place.stack.store(top, Ordering::Relaxed);
                top
            }
            // No memory: the thread's own has to do.
            None => return work(),
        },
        top => top,
    };
    let mut errand = Errand { work, served: Served::Refused };
    // SAFETY: 1. The stack is the place's, whose only user this thread is while
    // it has the place. 2. `run` takes what it is given, and does not unwind:
    // panics of ours end the process.
    unsafe { usring_on_stack(run, (&raw mut errand).cast(), top) };
    errand.served
}

/// A stack above a page that nobody may touch.
fn make_stack() -> Option<usize> {
    let mapping = private_pages(PAGE + STACK).ok()?;
    let _ = SystemCall::new(linux::__NR_mprotect, [mapping as u64, PAGE as u64, 0, 0, 0]).run();
    Some(mapping + PAGE + STACK)
}
