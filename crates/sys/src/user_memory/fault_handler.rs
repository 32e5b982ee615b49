//! The process's SIGSEGV and SIGBUS handler: mends faults in our own copies
//! and passes everything else on to whoever was there before.
//!
//! It is installed with the flags and the mask of its predecessor, so that a
//! handler of the program (or of a runtime that prints a stack) is called as
//! the kernel would have called it.

use super::handle_fault;
use crate::SystemCall;
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
}

static PREDECESSORS: [Predecessor; 2] = [
    Predecessor { signal: linux::SIGSEGV, handler: AtomicU64::new(0), flags: AtomicU64::new(0) },
    Predecessor { signal: linux::SIGBUS, handler: AtomicU64::new(0), flags: AtomicU64::new(0) },
];

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
        predecessor.flags.store(old.flags, Ordering::Release);
        let ours = u64::from(linux::SA_SIGINFO | linux::SA_ONSTACK) | u64::from(linux::SA_RESTORER);
        let kept = if old.handler > IGNORE { old.flags & !u64::from(linux::SA_RESETHAND) } else { 0 };
        let new = Action {
            handler: on_fault as *const () as u64,
            flags: kept | ours,
            restorer: usring_restorer as *const () as u64,
            mask: if old.handler > IGNORE { old.mask } else { 0 },
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

/// Where `si_code` stands in a `siginfo_t`; 0 or less if the signal was sent.
const SIGINFO_CODE: usize = 8;

extern "C" fn on_fault(signal: u32, information: *mut c_void, context: *mut c_void) {
    // SAFETY: the kernel's arguments to this handler.
    let sent = unsafe { *information.byte_add(SIGINFO_CODE).cast::<i32>() } <= 0;
    // SAFETY: as above. A signal that somebody sent says nothing about the
    // instruction that it interrupted.
    if !sent && unsafe { handle_fault(context) } {
        return;
    }
    let Some(predecessor) = PREDECESSORS.iter().find(|one| one.signal == signal) else { return };
    let flags = predecessor.flags.load(Ordering::Acquire);
    let handler = predecessor.handler.load(Ordering::Relaxed);
    if handler > IGNORE {
        call(handler, flags, signal, information, context);
    } else if handler == DEFAULT || !sent {
        // The default action: the fault happens again after the return, and
        // one that was sent is sent again.
        exchange(signal, Some(&Action::default()), None);
        if sent {
            send_again(signal, information);
        }
    }
}

fn call(handler: u64, flags: u64, signal: u32, information: *mut c_void, context: *mut c_void) {
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

fn send_again(signal: u32, information: *mut c_void) {
    let run = |number, arguments| SystemCall::new(number, arguments).run().unwrap_or(0);
    let process = run(linux::__NR_getpid, [0; 5]);
    let thread = run(linux::__NR_gettid, [0; 5]);
    run(linux::__NR_rt_tgsigqueueinfo, [process, thread, u64::from(signal), information as u64, 0]);
}
