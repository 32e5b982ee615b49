//! Functions of liburing that submit requests, or look for completions. ThreadSanitizer needs to
//! know of these calls, because they often make no system call. The checker needs to know of
//! submissions to an SQ thread. The global offset tables lead the program to the functions below
//! ([`imports::redirect`]).

use crate::files::liburing::OfLiburing;
use crate::runtime::assembler::{begin_frame, deliver_deferred};
use crate::runtime::imports;
use crate::tsan;
use core::arch::naked_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_check::Registers;
use usring_sys::UserAddress;
use usring_sys::signals::DEFERRED;

/// Runs before a function that may submit. `frame`: the hook's frame, with the saved rbp and the
/// return address.
unsafe extern "C" fn before_submission(ring: u64, frame: *const [u64; 2]) {
    let ring = OfLiburing(UserAddress(ring));
    tsan::before(&ring);
    if !usring_check::is_started() {
        return;
    }
    if let Some(unpublished) = ring.unpublished() {
        // SAFETY: the hooks pass their frame.
        let [saved, instruction] = unsafe { *frame };
        let registers = Registers { instruction, stack: frame as u64 + 16, frame: saved };
        usring_check::publishes(unpublished.ring, unpublished.first, unpublished.sqes(), registers);
    }
}

/// Runs before a function that submits nothing.
unsafe extern "C" fn before_wait(ring: u64) {
    tsan::before(&OfLiburing(UserAddress(ring)));
}

/// Runs after each function.
unsafe extern "C" fn after(ring: u64) {
    tsan::after(&OfLiburing(UserAddress(ring)));
}

/// Defines a function that calls `$before`, then a function of liburing whose first argument is a
/// ring, and then [`after`].
macro_rules! hook {
    ($name:ident, $real:ident, $before:ident) => {
        static $real: AtomicUsize = AtomicUsize::new(0);

        #[unsafe(naked)]
        #[unsafe(link_section = "usring_entry")]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                begin_frame!(),
                "sub rsp, 64",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov rsi, rbp",
                "call {before}",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "call [rip + {real}]",
                "mov [rsp + 48], rax",
                "mov rdi, [rsp]",
                "call {after}",
                deliver_deferred!(),
                "mov rax, [rsp + 48]",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_same_value rbp",
                "ret",
                ".cfi_endproc",
                before = sym $before,
                after = sym after,
                deferred = sym DEFERRED,
                real = sym $real,
            )
        }
    };
}

hook!(submit, REAL_SUBMIT, before_submission);
hook!(submit_and_wait, REAL_SUBMIT_AND_WAIT, before_submission);
hook!(submit_and_wait_timeout, REAL_SUBMIT_AND_WAIT_TIMEOUT, before_submission);
hook!(submit_and_get_events, REAL_SUBMIT_AND_GET_EVENTS, before_submission);
hook!(get_cqe, REAL_GET_CQE, before_wait);
hook!(wait_cqes, REAL_WAIT_CQES, before_wait);
hook!(wait_cqe_timeout, REAL_WAIT_CQE_TIMEOUT, before_wait);
hook!(peek_batch_cqe, REAL_PEEK_BATCH_CQE, before_wait);

/// Makes the program call the hooks of this file in place of liburing's functions.
pub fn install() {
    let functions: [(&CStr, &AtomicUsize, unsafe extern "C" fn()); 8] = [
        (c"io_uring_submit", &REAL_SUBMIT, submit),
        (c"io_uring_submit_and_wait", &REAL_SUBMIT_AND_WAIT, submit_and_wait),
        (c"io_uring_submit_and_wait_timeout", &REAL_SUBMIT_AND_WAIT_TIMEOUT, submit_and_wait_timeout),
        (c"io_uring_submit_and_get_events", &REAL_SUBMIT_AND_GET_EVENTS, submit_and_get_events),
        (c"__io_uring_get_cqe", &REAL_GET_CQE, get_cqe),
        (c"io_uring_wait_cqes", &REAL_WAIT_CQES, wait_cqes),
        (c"io_uring_wait_cqe_timeout", &REAL_WAIT_CQE_TIMEOUT, wait_cqe_timeout),
        (c"io_uring_peek_batch_cqe", &REAL_PEEK_BATCH_CQE, peek_batch_cqe),
    ];
    for (name, real, function) in functions {
        if let Some(address) = imports::function(name) {
            real.store(address, Ordering::Release);
            imports::redirect(name, function as *const () as usize);
        }
    }
}
