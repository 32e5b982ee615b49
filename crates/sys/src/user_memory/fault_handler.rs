//! The process's SIGSEGV and SIGBUS handler: has faults served of memory that is
//! ours to page ([`crate::page_fault`]), mends those in our own copies, and passes
//! everything else on to whoever was there before.
//!
//! It is installed with the flags of its predecessor, and sets the mask that the
//! kernel would have set before it calls it, so that a handler of the program (or
//! of a runtime that prints a stack) is called as the kernel would have called
//! it. Until then every signal is blocked that may be: a handler that came in
//! between could touch the very page that is being brought in.

use super::handle_fault;
use crate::SystemCall;
use crate::page_fault::{self, Cause, Fault, Served};
use crate::signals::{ALL_BLOCKED, set_of};
use core::arch::global_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

global_asm!(
    ".pushsection .text.usring_restorer,\"ax\",@progbits",
    ".globl usring_restorer",
    ".hidden usring_restorer",
    ".p2align 4",
    // Unwinders and debuggers know a signal frame by these bytes.
    "usring_restorer:",
    "mov rax, 15",
    "syscall",
    ".popsection",
);

unsafe extern "C" {
    fn usring_restorer();
}

/// `struct sigaction` as the kernel has it on x86-64.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

const DEFAULT: u64 = 0;
const IGNORE: u64 = 1;

/// A predecessor. Written before our handler can run and never again, but read
/// in handlers, so: atomics.
struct Predecessor {
    signal: u32,
    handler: AtomicU64,
    flags: AtomicU64,
    mask: AtomicU64,
}

impl Predecessor {
    const fn of(signal: u32) -> Self {
        Predecessor { signal, handler: AtomicU64::new(0), flags: AtomicU64::new(0), mask: AtomicU64::new(0) }
    }
}

static PREDECESSORS: [Predecessor; 2] = [Predecessor::of(linux::SIGSEGV), Predecessor::of(linux::SIGBUS)];

/// How far [`install_fault_handler`] has come.
static INSTALLED: AtomicU32 = AtomicU32::new(NOT_YET);
const NOT_YET: u32 = 0;
const BEGUN: u32 = 1;
const DONE: u32 = 2;

/// Puts our handler in front of what handles SIGSEGV and SIGBUS now. Later
/// calls do nothing; whoever returns may rely on it.
pub fn install_fault_handler() {
    if INSTALLED.compare_exchange(NOT_YET, BEGUN, Ordering::AcqRel, Ordering::Acquire).is_err() {
        while INSTALLED.load(Ordering::Acquire) != DONE {
            core::hint::spin_loop();
        }
        return;
    }
    for predecessor in &PREDECESSORS {
        let mut old = Action::default();
        exchange(predecessor.signal, None, Some(&mut old));
        predecessor.handler.store(old.handler, Ordering::Relaxed);
        predecessor.mask.store(old.mask, Ordering::Relaxed);
        predecessor.flags.store(old.flags, Ordering::Release);
        let ours = u64::from(linux::SA_SIGINFO | linux::SA_ONSTACK) | u64::from(linux::SA_RESTORER);
        let kept = if old.handler > IGNORE { old.flags & !u64::from(linux::SA_RESETHAND) } else { 0 };
        let new = Action {
            handler: on_fault as *const () as u64,
            flags: kept | ours,
            restorer: usring_restorer as *const () as u64,
            mask: ALL_BLOCKED,
        };
        exchange(predecessor.signal, Some(&new), None);
    }
    INSTALLED.store(DONE, Ordering::Release);
}

/// rt_sigaction(2), past our own filter. It fails for no signal used here.
fn exchange(signal: u32, new: Option<&Action>, old: Option<&mut Action>) {
    let new = new.map_or(0, |action| &raw const *action as u64);
    let old = old.map_or(0, |action| &raw mut *action as u64);
    let _ = SystemCall::new(linux::__NR_rt_sigaction, [u64::from(signal), new, old, 8, 0]).run();
}

/// Where things stand in a `siginfo_t`. The code is 0 or less if the signal was sent.
const SIGINFO_SIGNAL: usize = 0;
const SIGINFO_CODE: usize = 8;
const SIGINFO_ADDRESS: usize = 16;
/// `si_code` of a SIGSEGV: nothing is mapped there; that is not allowed.
const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
/// `si_code` of a SIGBUS: there is nothing behind the address; it is broken.
const BUS_ADRERR: i32 = 2;
const BUS_MCEERR_AR: i32 = 4;

/// Where the processor's word on a page fault stands in a `ucontext_t`, and the
/// mask that was in force.
const UCONTEXT_ERROR: usize = 192;
const UCONTEXT_MASK: usize = 296;
/// Of that word: the page was there; it was written to; it was to be run.
const ERROR_PRESENT: u64 = 1;
const ERROR_WRITE: u64 = 2;
const ERROR_FETCH: u64 = 16;

extern "C" fn on_fault(signal: u32, information: *mut c_void, context: *mut c_void) {
    // SAFETY: the kernel's arguments to this handler.
    let sent = unsafe { *information.byte_add(SIGINFO_CODE).cast::<i32>() } <= 0;
    // A signal that somebody sent says nothing about the instruction that it
    // interrupted.
    if !sent {
        match serve(signal, information, context) {
            Served::Again => return,
            Served::Refused => return pass_on_as(linux::SIGBUS, BUS_ADRERR, information, context),
            Served::Unmapped => return pass_on_as(linux::SIGSEGV, SEGV_MAPERR, information, context),
            Served::Foreign => {}
        }
        // SAFETY: as above.
        if unsafe { handle_fault(context) } {
            return;
        }
    }
    pass_on(signal, sent, information, context);
}

/// Has a fault served, if the address is somebody's.
fn serve(signal: u32, information: *mut c_void, context: *mut c_void) -> Served {
    // SAFETY: the kernel's own, of a fault: it has an address and an error word.
    let (code, address, error) = unsafe {
        (
            *information.byte_add(SIGINFO_CODE).cast::<i32>(),
            *information.byte_add(SIGINFO_ADDRESS).cast::<usize>(),
            *context.byte_add(UCONTEXT_ERROR).cast::<u64>(),
        )
    };
    let cause = match (signal, code) {
        (linux::SIGSEGV, SEGV_MAPERR) => Cause::Unmapped,
        (linux::SIGSEGV, SEGV_ACCERR) => Cause::Forbidden,
        (linux::SIGBUS, BUS_ADRERR) => Cause::Missing,
        (linux::SIGBUS, BUS_MCEERR_AR) => Cause::Broken,
        // Of a protection key, of an instruction: no page's affair.
        _ => return Served::Foreign,
    };
    if error & ERROR_FETCH != 0 {
        // Nobody serves code.
        return Served::Foreign;
    }
    let (write, present) = (error & ERROR_WRITE != 0, error & ERROR_PRESENT != 0);
    page_fault::visit(Fault { address, cause, write, present, place: 0 })
}

/// Whatever the signal was, this is another. (But our own copies answer EFAULT, as
/// the kernel's do.)
fn pass_on_as(signal: u32, code: i32, information: *mut c_void, context: *mut c_void) {
    // SAFETY: the kernel's frame, which is this handler's to change.
    unsafe {
        if handle_fault(context) {
            return;
        }
        *information.byte_add(SIGINFO_SIGNAL).cast::<u32>() = signal;
        *information.byte_add(SIGINFO_CODE).cast::<i32>() = code;
    }
    // Who handled an earlier one may have taken us off (as std's handler does), to
    // die of the next. That next one comes to us all the same if the fault was told by
    // the other signal.
    let mut now = Action::default();
    exchange(signal, None, Some(&mut now));
    let is_ours = now.handler == on_fault as *const () as u64;
    let predecessor = PREDECESSORS.iter().find(|one| one.signal == signal);
    match predecessor {
        Some(predecessor) if is_ours && predecessor.handler.load(Ordering::Acquire) > IGNORE => {
            call(predecessor, information, context);
        }
        _ => {
            exchange(signal, Some(&Action::default()), None);
            send_again(signal, information);
        }
    }
}

fn pass_on(signal: u32, sent: bool, information: *mut c_void, context: *mut c_void) {
    let Some(predecessor) = PREDECESSORS.iter().find(|one| one.signal == signal) else { return };
    let handler = predecessor.handler.load(Ordering::Acquire);
    if handler > IGNORE {
        call(predecessor, information, context);
    } else if handler == DEFAULT || !sent {
        // The default action: the fault happens again after the return, and
        // one that was sent is sent again.
        exchange(signal, Some(&Action::default()), None);
        if sent {
            send_again(signal, information);
        }
    }
}

fn call(predecessor: &Predecessor, information: *mut c_void, context: *mut c_void) {
    let flags = predecessor.flags.load(Ordering::Acquire);
    let handler = predecessor.handler.load(Ordering::Relaxed);
    let signal = predecessor.signal;
    // SAFETY: the kernel's frame.
    let before = unsafe { *context.byte_add(UCONTEXT_MASK).cast::<u64>() };
    let own = if flags & u64::from(linux::SA_NODEFER) != 0 { 0 } else { set_of(signal) };
    set_mask(before | predecessor.mask.load(Ordering::Relaxed) | own);
    // SAFETY: 1. The predecessor was a handler of this signal with these
    // flags, which say what it takes. 2. Its arguments are the kernel's own.
    unsafe {
        if flags & u64::from(linux::SA_SIGINFO) != 0 {
            let handler: extern "C" fn(u32, *mut c_void, *mut c_void) = core::mem::transmute(handler as *const ());
            handler(signal, information, context);
        } else {
            let handler: extern "C" fn(u32) = core::mem::transmute(handler as *const ());
            handler(signal);
        }
    }
}

/// For as long as the handler runs: the kernel restores what was before.
fn set_mask(mask: u64) {
    let arguments = [u64::from(linux::SIG_SETMASK), &raw const mask as u64, 0, 8, 0];
    let _ = SystemCall::new(linux::__NR_rt_sigprocmask, arguments).run();
}

fn send_again(signal: u32, information: *mut c_void) {
    let run = |number, arguments| SystemCall::new(number, arguments).run().unwrap_or(0);
    let process = run(linux::__NR_getpid, [0; 5]);
    let thread = u64::from(crate::signals::thread_id());
    run(linux::__NR_rt_tgsigqueueinfo, [process, thread, u64::from(signal), information as u64, 0]);
}
