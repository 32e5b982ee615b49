//! Handles the signals for which usring installs its own handler in the kernel:
//! - SIGSYS: a trapped call, or a signal of usring's to one of its own threads;
//! - SIGSEGV and SIGBUS: a fault while usring copies from or to the program's memory, or at a call
//!   site that is being rewritten;
//! - SIGTRAP, only under Valgrind: a breakpoint that has replaced a `syscall` ([`breakpoints`]).
//!
//! If a signal has any other cause, the program's handler runs, or the signal has its default
//! effect.
//!
//! The handler never runs the engine. For a trapped call it moves the instruction pointer to the
//! entry point and returns. Ordinary code on the program's own stack then serves the call, as in a
//! function call. (If the handler served the call, its return would undo changes of the signal
//! mask. Waits would not be interrupted, and nested signals would run on a small alternate stack.)

use crate::entry::{breakpoints, patch, point};
use crate::filter::TAG;
use crate::process;
use crate::runtime::assembler::change_mask;
use crate::runtime::text;
use crate::signals::table::{Action, DEFAULT, IGNORE};
use crate::signals::{context, table, wrapper};
use core::arch::global_asm;
use usring_sys::credentials;
use usring_sys::signals::{Deferral, SignalSet, set_of};
use usring_sys::syscall::PASS_MARK;
use usring_sys::wait::{self, CONTEXT_INSTRUCTION_POINTER, SignalInformation};
use usring_sys::{Errno, user_memory, width};
use usring_uapi::general as linux;

/// `si_code` of a fault that has no address, such as that of `hlt` (SI_KERNEL).
const FROM_KERNEL: i32 = 0x80;
/// `si_code` of a memory error that the kernel found by itself, without an access (BUS_MCEERR_AO).
/// The interrupted instruction does not raise the signal again.
const ACTION_OPTIONAL: i32 = 5;

// The kernel enters here with all signals blocked. rdi: signal, rsi: siginfo_t, rdx: ucontext_t. If
// the program has a handler, this code runs it on the kernel's signal frame, under the mask that
// the handler would have without usring.
global_asm!(
    ".pushsection usring_entry,\"ax\",@progbits",
    ".globl usring_own_signal_entry, usring_restorer_of_own",
    ".hidden usring_own_signal_entry, usring_restorer_of_own",
    ".type usring_own_signal_entry,@function",
    ".p2align 4",
    "usring_own_signal_entry:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 8",
    "endbr64",
    "push rdi",
    ".cfi_def_cfa_offset 16",
    "push rsi",
    ".cfi_def_cfa_offset 24",
    "push rdx",
    ".cfi_def_cfa_offset 32",
    "sub rsp, 16",
    ".cfi_def_cfa_offset 48",
    "mov rcx, rsp",
    "call {own_signal}",
    "mov [rsp + 8], rax",
    "test rax, rax",
    "jz 2f",
    "mov rsi, rsp",
    "xor edx, edx",
    change_mask!("{set_mask}"),
    "2:",
    "mov rcx, [rsp + 8]",
    "add rsp, 16",
    ".cfi_def_cfa_offset 32",
    "pop rdx",
    ".cfi_def_cfa_offset 24",
    "pop rsi",
    ".cfi_def_cfa_offset 16",
    "pop rdi",
    ".cfi_def_cfa_offset 8",
    "test rcx, rcx",
    "jz 3f",
    "xor r9d, r9d", // PASS_MARK must not reach the handler
    "xor eax, eax",
    "jmp usring_run_handler",
    "3:",
    "ret",
    ".cfi_endproc",
    ".size usring_own_signal_entry, . - usring_own_signal_entry",
    // The bytes of the restorer follow. By them, unwinders and debuggers recognise a signal frame.
    ".p2align 4",
    "nop",
    "usring_restorer_of_own:",
    "mov rax, {rt_sigreturn}",
    "syscall",
    ".popsection",
    own_signal = sym own_signal,
    mark = const PASS_MARK,
    set_mask = const linux::SIG_SETMASK,
    rt_sigprocmask = const linux::__NR_rt_sigprocmask,
    rt_sigreturn = const linux::__NR_rt_sigreturn,
);

unsafe extern "C" {
    fn usring_own_signal_entry();
    fn usring_restorer_of_own();
}

/// Installs usring's handler of `signal` in the kernel. Returns the signal's previous action.
pub fn install(signal: u32) -> Result<Action, Errno> {
    let restorer = linux::SA_RESTORER;
    let ours = Action {
        handler: usring_own_signal_entry as *const () as u64,
        flags: u64::from(linux::SA_SIGINFO | linux::SA_ONSTACK | restorer),
        restorer: usring_restorer_of_own as *const () as u64,
        mask: SignalSet::MAX,
    };
    table::kernel_exchange(signal, Some(&ours))
}

/// The arguments of the handler.
struct Arrival<'a> {
    information: &'a SignalInformation,
    context: *mut u8,
}

impl Arrival<'_> {
    /// Returns a word of the interrupted context.
    fn word(&mut self, offset: usize) -> &mut u64 {
        // SAFETY: this is the kernel's ucontext_t, which the handler may change until it returns.
        // `offset` is that of one of its 8-byte words.
        unsafe { &mut *self.context.add(offset).cast::<u64>() }
    }

    fn instruction_pointer(&mut self) -> usize {
        width::size(*self.word(CONTEXT_INSTRUCTION_POINTER))
    }

    fn continue_at(&mut self, address: usize) {
        *self.word(CONTEXT_INSTRUCTION_POINTER) = address as u64;
    }

    /// Makes the thread continue at the entry point of trapped calls. The entry point expects the
    /// return address in rcx, as after a `syscall`. rax already holds the call's number.
    fn enter(&mut self, return_address: usize) {
        *self.word(context::RCX) = return_address as u64;
        self.continue_at(width::size(point::trap_entry()));
    }

    /// Returns whether a call such as kill(2) has sent the signal. `false`: an instruction raised
    /// the signal.
    fn was_sent(&self) -> bool {
        self.information.code <= 0
    }
}

/// Serves a signal. If the program's handler has to run, returns the handler, and stores its signal
/// mask in `*mask`. Otherwise returns 0.
extern "C" fn own_signal(_: u32, information: &SignalInformation, context: *mut u8, mask: &mut SignalSet) -> u64 {
    let mut arrival = Arrival { information, context };
    let served = match information.signal.cast_unsigned() {
        linux::SIGSYS => serve_trap(&mut arrival),
        linux::SIGTRAP => serve_breakpoint(&mut arrival),
        _ => serve_fault(&mut arrival),
    };
    if served { 0 } else { pass_to_program(&mut arrival, mask) }
}

fn serve_trap(arrival: &mut Arrival) -> bool {
    let information = arrival.information;
    if information.code == context::TRAPPED && information.data == TAG {
        let number = width::low(*arrival.word(context::RAX));
        if credentials::CALLS.contains(&number) {
            change_credentials(arrival, number);
            return true;
        }
        let return_address = arrival.instruction_pointer();
        arrival.enter(return_address);
        return true;
    }
    if !information.is_ours() {
        return false;
    }
    credentials::follow();
    if let Some(exit_address) = wait::exit_address(arrival.instruction_pointer()) {
        arrival.continue_at(exit_address);
    }
    true
}

/// Serves a breakpoint that has replaced a `syscall` ([`breakpoints`]).
fn serve_breakpoint(arrival: &mut Arrival) -> bool {
    let Some(return_address) = breakpoints::replaced(arrival.instruction_pointer()) else { return false };
    arrival.enter(return_address);
    true
}

/// Makes a call of the program that changes credentials. To change them for the whole process,
/// glibc makes the call in every thread, in the handler of a signal. If the signal has interrupted
/// the engine, the thread must not enter the engine a second time. So the trap's handler makes the
/// call here, and does not lead the thread to the entry point.
fn change_credentials(arrival: &mut Arrival, number: u32) {
    let arguments = [context::RDI, context::RSI, context::RDX].map(|register| *arrival.word(register));
    *arrival.word(context::RAX) = match process::caller() {
        process::Caller::Own => credentials::change(number, arguments),
        process::Caller::Borrower => credentials::change_alone(number, arguments),
        process::Caller::NotBegun => credentials::change_early(number, arguments),
    };
}

fn serve_fault(arrival: &mut Arrival) -> bool {
    if arrival.was_sent() {
        return false;
    }
    let at = arrival.instruction_pointer();
    let halted = || if arrival.information.code == FROM_KERNEL { patch::redirected(at) } else { None };
    let mended = user_memory::fix_up(at).or_else(halted);
    if let Some(target) = mended {
        arrival.continue_at(target);
    }
    mended.is_some()
}

/// Passes a signal to the program. If a handler of the program has to run now, returns the handler,
/// and stores its signal mask in `*mask`. Otherwise defers the signal, ignores it or takes its
/// default action, and returns 0.
fn pass_to_program(arrival: &mut Arrival, mask: &mut SignalSet) -> u64 {
    let signal = arrival.information.signal.cast_unsigned();
    if arrival.was_sent() && defer_in_engine(arrival, signal) {
        return 0;
    }
    let interrupted_mask = *arrival.word(context::MASK);
    let action = table::installed(signal);
    match action.handler {
        IGNORE if arrival.was_sent() => 0,
        DEFAULT | IGNORE => {
            take_default_action(arrival, signal);
            0
        }
        handler => {
            if action.flags & u64::from(linux::SA_RESETHAND) != 0 {
                table::reset(signal);
            }
            *mask = table::mask_in_handler(signal, interrupted_mask);
            handler
        }
    }
}

/// Defers a signal that has interrupted its thread in the engine. Returns `false` if the signal is
/// not deferred: the thread was not in the engine, or all slots for deferred signals are in use.
/// The signal's handler then runs now.
fn defer_in_engine(arrival: &mut Arrival, signal: u32) -> bool {
    // SAFETY: the context is that of a signal frame of the kernel's.
    let found = unsafe { wrapper::interrupted_by(arrival.context) };
    let mut interrupted = Arrival { information: arrival.information, context: found };
    let mask = *interrupted.word(context::MASK);
    if !text::is_engine(interrupted.instruction_pointer())
        || usring_sys::signals::defer(mask, set_of(signal), 0) == Deferral::Full
    {
        return false;
    }
    if let Some(exit_address) = wait::exit_address(interrupted.instruction_pointer()) {
        interrupted.continue_at(exit_address);
    }
    *arrival.word(context::MASK) = usring_sys::signals::ALL_BLOCKED;
    true
}

/// Sets the signal's default action, and makes the signal arrive once more. For SIGSYS, SIGSEGV and
/// SIGBUS, the default action kills the process with a core dump. A fault arrives again when the
/// thread repeats the instruction. If no instruction would raise the signal, this function sends it
/// again.
fn take_default_action(arrival: &mut Arrival, signal: u32) {
    let _ = table::kernel_exchange(signal, Some(&Action::default()));
    *arrival.word(context::MASK) &= !set_of(signal);
    if arrival.was_sent() || signal == linux::SIGSYS || arrival.information.code == ACTION_OPTIONAL {
        wrapper::queue_again(arrival.information);
    }
}
