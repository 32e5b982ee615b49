//! Keeps the program's signal handlers out of the engine.
//!
//! Every handler of the program is installed in the kernel as the wrapper `usring_signal_entry`.
//! The wrapper checks where the signal found its thread:
//!
//! | thread was in | wrapper |
//! |---|---|
//! | the program, or an entry point | runs the program's handler, on the kernel's own frame |
//! | the engine | puts the signal off, and keeps its frame (`frames`) until the call leaves |
//!
//! Signals that arrive later are blocked meanwhile and wait in the kernel, so all signals keep
//! their order.
//!
//! In the kernel SIGSYS, SIGSEGV and SIGBUS belong to usring ([`own_signal`]). The program's
//! actions for them exist in the table only. They are removed from every mask, because a trap or a
//! fault would kill the process while they are blocked.
//!
//! SA_RESETHAND never reaches the kernel: a signal that was put off would find the default action
//! when it comes again. The wrapper implements the flag.

pub mod frames;
mod settle;

use crate::call::{Call, Outcome};
use crate::doors::own_signal;
use crate::process;
use crate::runtime::text;
use crate::signals::settle::Delivery;
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::signals::{self, ALL_BLOCKED, ALWAYS_OPEN, Noted, SignalSet, set_of};
use usring_sys::syscall::PASS_MARK;
use usring_sys::thread::CHANGE_USER;
use usring_sys::wait::{self, SignalInformation};
use usring_sys::{Errno, SystemCall, UserAddress, user_memory};
use usring_uapi::general as linux;

pub const LAST_SIGNAL: usize = 64;
pub const DEFAULT: u64 = 0;
pub const IGNORE: u64 = 1;

/// Signals that belong to usring in the kernel, and are never in a mask.
pub const OWN: [u32; 3] = [linux::SIGSYS, linux::SIGSEGV, linux::SIGBUS];
pub const KEPT_OPEN: SignalSet = set_of(linux::SIGSYS) | set_of(linux::SIGSEGV) | set_of(linux::SIGBUS);

/// Signals that the kernel removes from every mask.
const UNBLOCKABLE: SignalSet = set_of(linux::SIGKILL) | set_of(linux::SIGSTOP);

const RESET_HANDLER: u64 = linux::SA_RESETHAND as u64;

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: SignalSet,
}

/// The action that the program last installed for a signal. For a signal that does not belong to
/// usring, the action is valid only while the kernel's handler is the wrapper.
#[repr(C)]
struct Entry {
    handler: AtomicU64,
    flags: AtomicU64,
    restorer: AtomicU64,
    mask: AtomicU64,
}

static TABLE: [Entry; LAST_SIGNAL + 1] = [const {
    Entry { handler: AtomicU64::new(0), flags: AtomicU64::new(0), restorer: AtomicU64::new(0), mask: AtomicU64::new(0) }
}; LAST_SIGNAL + 1];

const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    fn get(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed),
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    fn set(&self, action: &Action) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
    }
}

/// Returns the program's action for a signal that belongs to usring.
pub fn installed(signal: u32) -> Action {
    TABLE[signal as usize].get()
}

/// Resets the program's action for a signal that belongs to usring (SA_RESETHAND).
pub fn reset(signal: u32) {
    TABLE[signal as usize].handler.store(DEFAULT, Ordering::Release);
}

// The wrapper. On entry: rdi signal, rsi siginfo_t, rdx ucontext_t; rsp is the kernel's frame, and
// the ucontext_t begins eight bytes above it.
//
// A second signal may arrive before the first one's wrapper has decided. Until then the wrapper
// pushes nothing. So the second wrapper finds the first one's ucontext_t by rsp, and with it the
// code that both signals interrupted.
global_asm!(
    ".pushsection usring_door,\"ax\",@progbits",
    ".globl usring_signal_entry, usring_signal_decided",
    ".hidden usring_signal_entry, usring_signal_decided",
    ".type usring_signal_entry,@function",
    ".p2align 4",
    "usring_signal_entry:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 8",
    "endbr64",
    // libc requests a change of user from every thread by this signal, and waits for each. That
    // includes usring's threads, which never leave the engine. So its handler may run anywhere.
    "cmp edi, [rip + {change_user}]",
    "je 5f",
    "mov r8, rdx",
    "2:",
    "mov rax, [r8 + {rip}]",
    "lea rcx, [rip + usring_signal_entry]",
    "cmp rax, rcx",
    "jb 3f",
    "lea rcx, [rip + usring_signal_decided]",
    "cmp rax, rcx",
    "jae 3f",
    "mov r8, [r8 + {rsp}]",
    "add r8, 8",
    "jmp 2b",
    "3:",
    "mov rcx, rax",
    "sub rax, [rip + {library}]",
    "cmp rax, [rip + {library} + 8]",
    "jae 5f",
    "sub rcx, [rip + {doors}]",
    "cmp rcx, [rip + {doors} + 8]",
    "jb 5f",
    // The engine was interrupted. No further signal may arrive from here on, not even those that
    // are never blocked in the engine.
    "mov edi, {set_mask}",
    "lea rsi, [rip + {every}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov r9, {mark}",
    "mov eax, {rt_sigprocmask}",
    "syscall",
    // Decided: a wrapper that interrupts this code may push.
    "usring_signal_decided:",
    "lea rsi, [rsp + {information}]",
    "lea rdx, [rsp + 8]",
    "mov rdi, r8",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "call {put_off}",
    "add rsp, 8",
    ".cfi_def_cfa_offset 8",
    "test rax, rax",
    "jnz 6f",
    "ret",
    // The signal cannot be put off (no slot): the handler runs under the mask in rdx.
    "6:",
    "push rdx",
    ".cfi_def_cfa_offset 16",
    "mov edi, {set_mask}",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, 8",
    "mov r9, {mark}",
    "mov eax, {rt_sigprocmask}",
    "syscall",
    "pop rax",
    ".cfi_def_cfa_offset 8",
    // The program's handler. It may run under the mask of a sigsuspend(2) or ppoll(2) that usring
    // has not seen, so usring's signals are unblocked here.
    "5:",
    "mov edi, {unblock}",
    "lea rsi, [rip + {kept_open}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov r9, {mark}",
    "mov eax, {rt_sigprocmask}",
    "syscall",
    "mov r8d, [rsp + {information}]",
    "mov ecx, r8d",
    "shl ecx, 5",
    "lea rax, [rip + {table}]",
    "add rax, rcx",
    "mov rcx, [rax + {handler}]",
    "test dword ptr [rax + {flags}], {reset_handler}",
    "jz 7f",
    // SA_RESETHAND: the kernel's action becomes the default.
    "push rcx",
    ".cfi_def_cfa_offset 16",
    "mov edi, r8d",
    "lea rsi, [rip + {default_action}]",
    "xor edx, edx",
    "mov eax, {rt_sigaction}",
    "syscall",
    "pop rcx",
    ".cfi_def_cfa_offset 8",
    "7:",
    "mov edi, r8d",
    "lea rsi, [rsp + {information}]",
    "lea rdx, [rsp + 8]",
    "xor r9d, r9d", // the mark must not reach the handler
    "xor eax, eax",
    "cmp rcx, {ignore}",
    "ja usring_run_handler",
    "ret",
    ".cfi_endproc",
    ".size usring_signal_entry, . - usring_signal_entry",
    ".popsection",
    change_user = sym CHANGE_USER,
    rsp = const CONTEXT_STACK_POINTER,
    rip = const wait::CONTEXT_INSTRUCTION_POINTER,
    information = const 8 + CONTEXT_SIZE,
    library = sym text::LIBRARY,
    doors = sym text::DOORS,
    put_off = sym put_off,
    every = sym EVERY,
    kept_open = sym OPEN,
    default_action = sym DEFAULT_ACTION,
    table = sym TABLE,
    flags = const offset_of!(Entry, flags),
    handler = const offset_of!(Entry, handler),
    reset_handler = const RESET_HANDLER,
    ignore = const IGNORE,
    mark = const PASS_MARK,
    set_mask = const linux::SIG_SETMASK,
    unblock = const linux::SIG_UNBLOCK,
    rt_sigprocmask = const linux::__NR_rt_sigprocmask,
    rt_sigaction = const linux::__NR_rt_sigaction,
);

// usring_run_handler(rcx: the program's handler; rdi, rsi, rdx: its arguments; rsp: the kernel's
// frame): runs it and returns to the restorer. A handler may change the mask in its ucontext_t,
// which is in force afterwards. usring's signals stay open in that mask, too.
global_asm!(
    ".pushsection usring_door,\"ax\",@progbits",
    ".globl usring_run_handler",
    ".hidden usring_run_handler",
    ".type usring_run_handler,@function",
    ".p2align 4",
    "usring_run_handler:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "call rcx",
    "add rsp, 8",
    ".cfi_def_cfa_offset 8",
    "and dword ptr [rsp + 8 + {mask}], {not_kept_open}",
    "ret",
    ".cfi_endproc",
    ".size usring_run_handler, . - usring_run_handler",
    ".popsection",
    mask = const CONTEXT_MASK,
    not_kept_open = const !(KEPT_OPEN as i32),
);

/// All of these signals are in the lower half of the mask.
const _: () = assert!(KEPT_OPEN <= i32::MAX as u64);

/// Offsets in a `ucontext_t`, and its size.
pub const CONTEXT_STACK_POINTER: usize = 160;
pub const CONTEXT_FRAME_POINTER: usize = 120;
pub const CONTEXT_MASK: usize = 296;
pub const CONTEXT_SIZE: usize = 304;

pub static EVERY: SignalSet = SignalSet::MAX;
static OPEN: SignalSet = KEPT_OPEN;
static DEFAULT_ACTION: Action = Action { handler: DEFAULT, flags: 0, restorer: 0, mask: 0 };

unsafe extern "C" {
    fn usring_signal_entry();
    fn usring_signal_decided();
}

/// Returns the ucontext_t of the interrupted code. Looks through wrappers that were interrupted
/// before they had decided (see the wrapper).
///
/// # Safety
/// `context` must be the ucontext_t of a signal frame of the kernel's.
pub unsafe fn interrupted_by(mut context: *mut u8) -> *mut u8 {
    let undecided = usring_signal_entry as *const () as u64..usring_signal_decided as *const () as u64;
    // SAFETY: this is the kernel's layout. An undecided wrapper has pushed nothing, so its own
    // frame, eight bytes below its ucontext_t, is the top of its stack.
    unsafe {
        while undecided.contains(&*context.add(wait::CONTEXT_INSTRUCTION_POINTER).cast::<u64>()) {
            context = (*context.add(CONTEXT_STACK_POINTER).cast::<*mut u8>()).add(8);
        }
    }
    context
}

fn wrapper() -> u64 {
    usring_signal_entry as *const () as u64
}

/// Whether the handler has to run now, and under which mask.
#[repr(C)]
struct Verdict {
    runs: u64,
    mask: SignalSet,
}

/// Puts a signal off that found its thread in the engine. `first` is the ucontext_t of the frame
/// that interrupted the engine, `own` that of this signal. Every signal is blocked.
extern "C" fn put_off(first: *mut u8, information: *mut SignalInformation, own: *mut u8) -> Verdict {
    // SAFETY: these are the kernel's frames on this stack. They may be changed until the handlers
    // return.
    let (information, original_mask, own_mask, instruction_pointer) = unsafe {
        (
            &*information,
            *first.add(CONTEXT_MASK).cast::<SignalSet>(),
            &mut *own.add(CONTEXT_MASK).cast::<SignalSet>(),
            &mut *first.add(wait::CONTEXT_INSTRUCTION_POINTER).cast::<u64>(),
        )
    };
    let runs = |own_mask| Verdict { runs: 1, mask: mask_in_handler(information.signal as u32, own_mask) };
    // An instruction of the engine raised the signal, and would raise it again.
    if information.code > 0 && matches!(information.signal as u32, linux::SIGILL | linux::SIGFPE) {
        return runs(*own_mask);
    }
    // SAFETY: the frame begins eight bytes below its ucontext_t.
    let kept = unsafe { frames::keep(own.sub(8)) };
    let note = kept.unwrap_or(0);
    match signals::put_off(original_mask, 0, note) {
        Noted::First if note != 0 => {}
        Noted::First | Noted::Again => {
            frames::give_back(note);
            let itself = set_of(information.signal as u32);
            if itself & ALWAYS_OPEN != 0 {
                // The kernel's queue would deliver it at once, again and again.
                signals::send_again(itself);
            } else {
                // It goes to the end of the kernel's queue. It may lose its position among signals
                // of its number, but nothing else.
                queue_again(information);
            }
        }
        Noted::Full => {
            frames::give_back(note);
            return runs(*own_mask);
        }
    }
    if let Some(way_out) = wait::way_out(*instruction_pointer as usize) {
        *instruction_pointer = way_out as u64;
    }
    *own_mask = ALL_BLOCKED;
    Verdict { runs: 0, mask: 0 }
}

/// Returns the mask under which the kernel would run the program's handler of a signal that arrives
/// while `mask` is in force.
pub fn mask_in_handler(signal: u32, mask: SignalSet) -> SignalSet {
    let action = installed(signal);
    let itself = if action.flags & u64::from(linux::SA_NODEFER) != 0 { 0 } else { set_of(signal) };
    ((mask | action.mask) & !KEPT_OPEN) | (itself & !set_of(linux::SIGSYS))
}

/// Puts a signal into this thread's queue, with its siginfo_t.
pub fn queue_again(information: &SignalInformation) {
    let process = process::id();
    let (thread, signal) = (u64::from(signals::thread_id()), information.signal as u64);
    let arguments = [u64::from(process), thread, signal, &raw const *information as u64, 0];
    if SystemCall::new(linux::__NR_rt_tgsigqueueinfo, arguments).run_once().is_err() {
        // The queue is full (RLIMIT_SIGPENDING): send the signal without its siginfo_t.
        let _ = signals::send_to_thread(thread as u32, signal as u32);
    }
}

/// For an entry point's exit, with every signal blocked: takes this thread's put-off state into
/// `delivery`. Returns 0 if there is none.
pub extern "C" fn take_put_off(delivery: &mut Delivery) -> u32 {
    let Some(put_off) = signals::take() else { return 0 };
    *delivery = Delivery {
        delivery_mask: put_off.delivery_mask.unwrap_or(0) & !UNBLOCKABLE,
        original_mask: put_off.original_mask,
        has_delivery_mask: u64::from(put_off.delivery_mask.is_some()),
        resend: put_off.resend,
        process: process::id(),
        thread: signals::thread_id(),
        frame: u64::from(put_off.note),
        frame_room: frames::room_for(put_off.note),
        handler: DEFAULT,
        handler_mask: 0,
    };
    1
}

/// Puts the kept frame of a signal back on a stack: into the room at `room`, or where the kernel
/// had put it on the alternate stack. When its handler returns, the thread goes on at `resume` with
/// `frame_pointer`, under the next mask. Returns the frame's address.
pub extern "C" fn place_put_off(delivery: &mut Delivery, room: *mut u8, resume: u64, frame_pointer: u64) -> *mut u8 {
    // SAFETY: the room is as large as `frames::room_for` said.
    let frame = unsafe { frames::place(delivery.frame as u32, room) };
    // SAFETY: the frame was the kernel's, and has its layout.
    let signal = unsafe {
        let context = frame.add(8);
        let word = |offset: usize, value: u64| context.add(offset).cast::<u64>().write(value);
        word(wait::CONTEXT_INSTRUCTION_POINTER, resume);
        word(CONTEXT_STACK_POINTER, frame_pointer);
        word(CONTEXT_FRAME_POINTER, frame_pointer);
        let next_mask = if delivery.has_delivery_mask != 0 { delivery.delivery_mask } else { delivery.original_mask };
        word(CONTEXT_MASK, next_mask);
        delivery.handler_mask = next_mask;
        (*frame.add(8 + CONTEXT_SIZE).cast::<SignalInformation>()).signal as u32
    };
    let action = installed(signal);
    delivery.handler_mask = mask_in_handler(signal, delivery.handler_mask);
    // If the program has set the action to default or ignore meanwhile, the signal is lost, as an
    // ignored pending signal would be.
    delivery.handler = if action.handler > IGNORE { action.handler } else { DEFAULT };
    if action.flags & RESET_HANDLER != 0 {
        let _ = kernel_exchange(signal, Some(&DEFAULT_ACTION));
    }
    frame
}

/// Answers rt_sigprocmask(2); usring's signals stay open.
pub fn change_mask(call: &mut Call) -> Outcome {
    let [_, set, _, size, ..] = call.arguments;
    if size != 8 {
        return call.pass();
    }
    let Ok(mask) = user_memory::read::<SignalSet>(UserAddress(set)) else {
        return call.pass();
    };
    let outcome = call.pass();
    if mask & KEPT_OPEN != 0 {
        call.forward.scratch = mask & !KEPT_OPEN;
        call.forward.arguments[1] = &raw const call.forward.scratch as u64;
    }
    outcome
}

/// Answers rt_sigaction(2).
pub fn change_action(call: &mut Call) -> Result<u64, Errno> {
    let [signal, new, old, size, ..] = call.arguments;
    let signal = signal as u32;
    if size != 8 || signal == 0 || signal as usize > LAST_SIGNAL {
        return Err(Errno::EINVAL);
    }
    let new = if new == 0 { None } else { Some(read_action(UserAddress(new))?) };
    if new.is_some() && (signal == linux::SIGKILL || signal == linux::SIGSTOP) {
        return Err(Errno::EINVAL);
    }
    let before = if OWN.contains(&signal) { exchange_own(signal, new) } else { exchange(signal, new)? };
    if old != 0 {
        let Action { handler, flags, restorer, mask } = before;
        user_memory::write(UserAddress(old), [handler, flags, restorer, mask])?;
    }
    Ok(0)
}

fn read_action(address: UserAddress) -> Result<Action, Errno> {
    let [handler, flags, restorer, mask] = user_memory::read::<[u64; 4]>(address)?;
    Ok(Action { handler, flags, restorer, mask })
}

fn exchange_own(signal: u32, new: Option<Action>) -> Action {
    let before = installed(signal);
    // A vfork child has handlers of its own but shares this table. Its actions for these three
    // signals last only until its exec, which resets them.
    if let Some(new) = new
        && process::is_own()
    {
        TABLE[signal as usize].set(&new);
    }
    before
}

fn exchange(signal: u32, new: Option<Action>) -> Result<Action, Errno> {
    let _one_at_a_time = process::current().actions.lock();
    let entry = &TABLE[signal as usize];
    let before = entry.get();
    let wrapped = new.map(|new| {
        if new.handler <= IGNORE {
            return new;
        }
        if process::is_own() {
            entry.set(&new);
        }
        // Without SA_SIGINFO the kernel would not write the siginfo_t.
        let flags = new.flags & !RESET_HANDLER | u64::from(linux::SA_SIGINFO);
        // This handler runs wherever it finds the thread. A signal on top of it could not see that
        // the engine was interrupted, so all are blocked.
        let alone = if signal == CHANGE_USER.load(Ordering::Relaxed) { ALL_BLOCKED } else { 0 };
        Action { handler: wrapper(), flags, mask: (new.mask | alone) & !KEPT_OPEN, ..new }
    });
    let in_kernel = kernel_exchange(signal, wrapped.as_ref())?;
    Ok(if in_kernel.handler == wrapper() { before } else { in_kernel })
}

/// Calls rt_sigaction(2), past usring's own filter.
pub fn kernel_exchange(signal: u32, new: Option<&Action>) -> Result<Action, Errno> {
    let mut old = Action::default();
    let new = new.map_or(0, |new| &raw const *new as u64);
    let arguments = [u64::from(signal), new, &raw mut old as u64, 8, 0];
    SystemCall::new(linux::__NR_rt_sigaction, arguments).run_once().map(|_| old)
}

/// Takes over, at the start, the handlers that were installed before, and the three signals that
/// belong to usring.
pub fn take_over() -> Result<(), Errno> {
    for signal in (1..=LAST_SIGNAL as u32).filter(|signal| !OWN.contains(signal)) {
        let before = kernel_exchange(signal, None)?;
        if before.handler > IGNORE {
            exchange(signal, Some(before))?;
        }
    }
    for signal in OWN {
        let before = own_signal::install(signal)?;
        // No code has run before that could have a handler of SIGSYS: it is the one of
        // `program::unserved`, from the program that executed this one.
        let is_unserved = signal == linux::SIGSYS && before.handler > IGNORE;
        TABLE[signal as usize].set(&if is_unserved { Action::default() } else { before });
    }
    let arguments = [u64::from(linux::SIG_UNBLOCK), &raw const OPEN as u64, 0, 8, 0];
    SystemCall::new(linux::__NR_rt_sigprocmask, arguments).run_once().map(drop)
}
