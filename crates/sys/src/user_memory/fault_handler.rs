//! The process's SIGSEGV and SIGBUS handler. For each fault, in this order:
//! 1. If usring pages the memory, the memory's server serves the fault ([`crate::page_fault`]).
//! 2. If the fault is in a copy routine of [`crate::user_memory`], the handler makes that routine
//!    return an error.
//! 3. Otherwise the handler calls its predecessor: the handler that was installed before.
//!
//! The handler is installed with the flags of its predecessor. Before usring's handler calls the
//! predecessor, it sets the signal mask that the kernel would have set. So a handler of the program
//! (or of a runtime that prints a stack) runs as if the kernel had called it. Until then usring's
//! handler blocks every signal that can be blocked: the handler of such a signal could access the
//! page that the server is bringing back.

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
    // Unwinders and debuggers recognise a signal frame by the bytes of this code.
    "usring_restorer:",
    "mov rax, 15",
    "syscall",
    ".popsection",
);

unsafe extern "C" {
    fn usring_restorer();
}

/// The kernel's `struct sigaction` on x86-64.
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

/// The handler of a signal that was installed before usring's handler. The fields are written once,
/// before usring's handler can run. They are atomics because signal handlers read them.
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

/// Progress of [`install_fault_handler`]: `NOT_YET`, `BEGUN` or `DONE`.
static INSTALLED: AtomicU32 = AtomicU32::new(NOT_YET);
const NOT_YET: u32 = 0;
const BEGUN: u32 = 1;
const DONE: u32 = 2;

/// Installs usring's handler in front of the present handlers of SIGSEGV and SIGBUS. Later calls
/// only wait until the handler is installed.
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

/// Calls rt_sigaction(2), which cannot fail for SIGSEGV and SIGBUS.
fn exchange(signal: u32, new: Option<&Action>, old: Option<&mut Action>) {
    let new = new.map_or(0, |action| &raw const *action as u64);
    let old = old.map_or(0, |action| &raw mut *action as u64);
    let _ = SystemCall::new(linux::__NR_rt_sigaction, [u64::from(signal), new, old, 8, 0]).run();
}

/// Offsets in a `siginfo_t`, in bytes. If a system call such as kill(2) sent the signal, the code
/// is 0 or less.
const SIGINFO_SIGNAL: usize = 0;
const SIGINFO_CODE: usize = 8;
const SIGINFO_ADDRESS: usize = 16;
/// Values of `si_code` for SIGSEGV: the address is not mapped; the access is not permitted.
const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
/// Values of `si_code` for SIGBUS: the mapping has no memory there; the memory is broken.
const BUS_ADRERR: i32 = 2;
const BUS_MCEERR_AR: i32 = 4;

/// Offsets in a `ucontext_t`, in bytes: the processor's error code of a page fault, and the signal
/// mask that was in force.
const UCONTEXT_ERROR: usize = 192;
const UCONTEXT_MASK: usize = 296;
/// Bits of the error code: the page was present; the access was a write; the access was an
/// instruction fetch.
const ERROR_PRESENT: u64 = 1;
const ERROR_WRITE: u64 = 2;
const ERROR_FETCH: u64 = 16;

extern "C" fn on_fault(signal: u32, information: *mut c_void, context: *mut c_void) {
    // SAFETY: `information` is the `siginfo_t` that the kernel passed to this handler.
    let sent = unsafe { *information.byte_add(SIGINFO_CODE).cast::<i32>() } <= 0;
    // A signal that a system call has sent is unrelated to the instruction that it interrupted.
    if !sent {
        match serve(signal, information, context) {
            Served::Again => return,
            Served::Refused => return pass_on_as(linux::SIGBUS, BUS_ADRERR, information, context),
            Served::Unmapped => return pass_on_as(linux::SIGSEGV, SEGV_MAPERR, information, context),
            Served::Foreign => {}
        }
        // SAFETY: `context` is the `ucontext_t` that the kernel passed to this handler.
        if unsafe { handle_fault(context) } {
            return;
        }
    }
    pass_on(signal, sent, information, context);
}

/// Calls the server of the memory at the faulting address, if there is one.
fn serve(signal: u32, information: *mut c_void, context: *mut c_void) -> Served {
    // SAFETY: both pointers lead into the kernel's signal frame. For a fault the frame has an
    // address and an error code.
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
        // Other faults are those of a protection key or of a privileged instruction. They are never
        // caused by an evicted page.
        _ => return Served::Foreign,
    };
    if error & ERROR_FETCH != 0 {
        // A server never serves memory that holds code.
        return Served::Foreign;
    }
    let (write, present) = (error & ERROR_WRITE != 0, error & ERROR_PRESENT != 0);
    page_fault::call_server(Fault { address, cause, write, present, slot: 0 })
}

/// Passes a fault on to the predecessor as if the kernel had raised `signal` with the code `code`.
/// But if the fault is in a copy routine of usring, it becomes EFAULT, as it does in the kernel.
fn pass_on_as(signal: u32, code: i32, information: *mut c_void, context: *mut c_void) {
    // SAFETY: both pointers lead into the kernel's signal frame, which a handler may change.
    unsafe {
        if handle_fault(context) {
            return;
        }
        *information.byte_add(SIGINFO_SIGNAL).cast::<u32>() = signal;
        *information.byte_add(SIGINFO_CODE).cast::<i32>() = code;
    }
    // At an earlier fault, the predecessor may have removed usring's handler for `signal`, so that
    // the next fault ends the process (std's handler does this). If the next fault raises the other
    // of the two signals, it still arrives here.
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
        // Sets the signal's default action, which ends the process. If a fault raised the signal,
        // the instruction faults again after this handler returns. If a system call sent the
        // signal, it is sent again here.
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
    // SAFETY: `context` is the `ucontext_t` in the kernel's signal frame.
    let before = unsafe { *context.byte_add(UCONTEXT_MASK).cast::<u64>() };
    let own = if flags & u64::from(linux::SA_NODEFER) != 0 { 0 } else { set_of(signal) };
    set_mask(before | predecessor.mask.load(Ordering::Relaxed) | own);
    // SAFETY: 1. The predecessor was installed as a handler of this signal, and its flags say which
    // arguments it takes. 2. The arguments are those that the kernel passed.
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

/// Sets the signal mask until the running handler returns. Then the kernel restores the previous
/// mask.
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
