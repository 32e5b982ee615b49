//! The exit of every entry point. Delivers signals that were deferred for this thread, before the
//! program's call returns.

use crate::process;
use crate::runtime::assembler::{begin_frame, change_mask};
use crate::signals::table::{
    DEFAULT, DEFAULT_ACTION, EVERY, IGNORE, RESET_HANDLER, UNBLOCKABLE, installed, kernel_exchange, mask_in_handler,
};
use crate::signals::{context, frames};
use core::arch::global_asm;
use core::mem::offset_of;
use usring_sys::signals::{self, DEFERRED};
use usring_sys::syscall::PASS_MARK;
use usring_sys::wait::{self, SignalInformation};
use usring_sys::width;
use usring_uapi::general as linux;

/// Values that an entry point's exit keeps on its stack while it delivers this thread's deferred
/// signals.
#[repr(C)]
pub struct Delivery {
    pub delivery_mask: u64,
    pub original_mask: u64,
    pub has_delivery_mask: u64,
    /// Set of signals that the entry point's exit has to send to this thread again.
    pub resend: u64,
    pub process: u32,
    pub thread: u32,
    /// Number of the slot in which the first signal's frame is saved ([`frames`]), or 0.
    pub frame: u64,
    /// Bytes of stack that the first signal's frame needs when it is put back.
    pub frame_room: u64,
    /// The first signal's handler.
    pub handler: u64,
    /// The mask under which the first signal's handler runs.
    pub handler_mask: u64,
}

const DELIVERY_SIZE: usize = size_of::<Delivery>();
/// Bytes of stack for the `Delivery` and the previous signal mask, with eight bytes of alignment.
const ROOM: usize = (DELIVERY_SIZE + 8).next_multiple_of(16) + 8;

// usring_deliver_deferred(): called if some thread has a deferred signal. If this thread has one,
// delivers it. C calling convention. Every signal is blocked while the slots of deferred signals
// are searched. Otherwise a signal could be deferred during the search, and no later exit would
// deliver it.
//
// The first signal's frame is put back on the stack. The signal's handler is entered as the kernel
// would enter it. After the handler, rt_sigreturn(2) continues the thread at label 9, where only
// rbp is known. The kernel delivers the other signals once they are unblocked.
global_asm!(
    ".pushsection usring_entry,\"ax\",@progbits",
    ".globl usring_deliver_deferred",
    ".hidden usring_deliver_deferred",
    ".type usring_deliver_deferred,@function",
    ".p2align 4",
    "usring_deliver_deferred:",
    ".cfi_startproc",
    begin_frame!(),
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    ".cfi_offset rbx, -24",
    ".cfi_offset r12, -32",
    ".cfi_offset r13, -40",
    ".cfi_offset r14, -48",
    ".cfi_offset r15, -56",
    "sub rsp, {room}",
    "2:",
    "lea rsi, [rip + {every}]",
    "lea rdx, [rsp + {delivery_size}]",
    "call 8f",
    "mov rdi, rsp",
    "call {take_deferred}",
    "lea rsi, [rsp + {delivery_size}]",
    "test eax, eax",
    "jz 7f",
    "cmp qword ptr [rsp + {frame}], 0",
    "je 3f",
    "mov rdi, rsp",
    "sub rsp, [rsp + {frame_room}]",
    "and rsp, -64",
    "mov rsi, rsp",
    "lea rdx, [rip + 9f]",
    "mov rcx, rbp",
    "mov rbx, rdi",
    "call {place_frame}",
    "cmp qword ptr [rbx + {handler}], 0",
    "je 3f",
    // From here on, rsp is the address of the signal's frame, which may be on the alternate stack.
    // So if the handler is interrupted, the next signal's frame goes below this frame.
    "mov rsp, rax",
    "lea rsi, [rbx + {handler_mask}]",
    "xor edx, edx",
    change_mask!("{set_mask}"),
    "mov rcx, [rbx + {handler}]",
    "lea rsi, [rsp + 8 + {context_size}]",
    "lea rdx, [rsp + 8]",
    "mov edi, [rsi]",
    "xor eax, eax",
    "xor r9d, r9d",
    "jmp usring_run_handler",
    // The handler has returned, and the mask in its frame has become the thread's mask. If the
    // handler changed the mask in the frame, that change remains after this call.
    "9:",
    "lea rsp, [rbp - 40 - {room}]",
    "lea rsi, [rip + {every}]",
    "lea rdx, [rsp + {handler_mask}]",
    "call 8f",
    "mov rax, [rsp + {handler_mask}]",
    "cmp qword ptr [rsp + {has_delivery_mask}], 0",
    "je 4f",
    "cmp rax, [rsp + {delivery_mask}]",
    "je 3f",
    "mov qword ptr [rsp + {has_delivery_mask}], 0",
    "4:",
    "mov [rsp + {original_mask}], rax",
    "3:",
    "lea rsp, [rbp - 40 - {room}]",
    "xor edx, edx",
    "cmp qword ptr [rsp + {resend}], 0",
    "je 4f",
    // All signals are sent before any is unblocked, because the handler of an unblocked signal may
    // not return.
    "lea rsi, [rip + {every}]",
    "call 8f",
    "3:",
    "bsf rdx, [rsp + {resend}]",
    "jz 4f",
    "btr qword ptr [rsp + {resend}], rdx",
    "inc edx",
    "mov edi, [rsp + {process}]",
    "mov esi, [rsp + {thread}]",
    "mov eax, {tgkill}",
    "syscall",
    "jmp 3b",
    "4:",
    "xor edx, edx",
    "cmp qword ptr [rsp + {has_delivery_mask}], 0",
    "je 3f",
    "lea rsi, [rsp + {delivery_mask}]",
    "call 8f",
    "3:",
    "lea rsi, [rsp + {original_mask}]",
    "call 8f",
    "cmp dword ptr [rip + {deferred}], 0",
    "jne 2b",
    "6:",
    "add rsp, {room}",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    ".cfi_remember_state",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_restore_state",
    // The deferred signal belongs to another thread.
    "7:",
    "xor edx, edx",
    "call 8f",
    "jmp 6b",
    ".cfi_endproc",
    // Sets the signal mask to the mask at rsi. Stores the previous mask at rdx.
    "8:",
    ".cfi_startproc",
    change_mask!("{set_mask}"),
    "xor edx, edx",
    "xor r9d, r9d", // libc's next call may not set r9, and must not carry PASS_MARK
    "ret",
    ".cfi_endproc",
    ".size usring_deliver_deferred, . - usring_deliver_deferred",
    ".popsection",
    take_deferred = sym take_deferred,
    place_frame = sym place_frame,
    deferred = sym DEFERRED,
    every = sym EVERY,
    room = const ROOM,
    delivery_size = const DELIVERY_SIZE,
    has_delivery_mask = const offset_of!(Delivery, has_delivery_mask),
    delivery_mask = const offset_of!(Delivery, delivery_mask),
    original_mask = const offset_of!(Delivery, original_mask),
    resend = const offset_of!(Delivery, resend),
    process = const offset_of!(Delivery, process),
    thread = const offset_of!(Delivery, thread),
    frame = const offset_of!(Delivery, frame),
    frame_room = const offset_of!(Delivery, frame_room),
    handler = const offset_of!(Delivery, handler),
    handler_mask = const offset_of!(Delivery, handler_mask),
    context_size = const context::SIZE,
    mark = const PASS_MARK,
    set_mask = const linux::SIG_SETMASK,
    rt_sigprocmask = const linux::__NR_rt_sigprocmask,
    tgkill = const linux::__NR_tgkill,
);

/// Moves this thread's deferred signals into `delivery`, with every signal blocked. Returns 0 if
/// the thread has no deferred signal. Called by `usring_deliver_deferred`.
extern "C" fn take_deferred(delivery: &mut Delivery) -> u32 {
    let Some(deferred) = signals::take() else { return 0 };
    *delivery = Delivery {
        delivery_mask: deferred.delivery_mask.unwrap_or(0) & !UNBLOCKABLE,
        original_mask: deferred.original_mask,
        has_delivery_mask: u64::from(deferred.delivery_mask.is_some()),
        resend: deferred.resend,
        process: process::id(),
        thread: signals::thread_id(),
        frame: u64::from(deferred.saved_frame),
        frame_room: frames::room_for(deferred.saved_frame),
        handler: DEFAULT,
        handler_mask: 0,
    };
    1
}

/// Puts the saved frame of a signal back: in `room`, or at the address on the alternate stack where
/// the kernel had put it. When the signal's handler returns, the thread continues at `resume`, with
/// `frame_pointer` in rbp and rsp. The thread's mask is then `delivery_mask` if there is one,
/// otherwise `original_mask`. Returns the frame's address.
extern "C" fn place_frame(delivery: &mut Delivery, room: *mut u8, resume: u64, frame_pointer: u64) -> *mut u8 {
    // SAFETY: `usring_deliver_deferred` passes a `room` of the size that `frames::room_for`
    // returned.
    let frame = unsafe { frames::place(width::low(delivery.frame), room) };
    // SAFETY: the frame is a copy of one that the kernel made, so the offsets lie within it.
    let signal = unsafe {
        let start = frame.add(8);
        let word = |offset: usize, value: u64| start.add(offset).cast::<u64>().write(value);
        word(wait::CONTEXT_INSTRUCTION_POINTER, resume);
        word(context::STACK_POINTER, frame_pointer);
        word(context::FRAME_POINTER, frame_pointer);
        let next_mask = if delivery.has_delivery_mask != 0 { delivery.delivery_mask } else { delivery.original_mask };
        word(context::MASK, next_mask);
        delivery.handler_mask = next_mask;
        ((*frame.add(8 + context::SIZE).cast::<SignalInformation>()).signal).cast_unsigned()
    };
    let action = installed(signal);
    delivery.handler_mask = mask_in_handler(signal, delivery.handler_mask);
    // The program may have set the action to default or ignore since the signal arrived. Then the
    // signal is dropped. The kernel, too, drops a pending signal when the signal becomes ignored.
    delivery.handler = if action.handler > IGNORE { action.handler } else { DEFAULT };
    if action.flags & RESET_HANDLER != 0 {
        let _ = kernel_exchange(signal, Some(&DEFAULT_ACTION));
    }
    frame
}
