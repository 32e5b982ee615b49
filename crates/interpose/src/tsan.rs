//! ThreadSanitizer of the program: a ring orders the accesses of threads that hand memory over by
//! it. ThreadSanitizer sees neither the kernel's nor usring's part of that, and would report races.
//!
//! | event | annotation |
//! |---|---|
//! | io_uring_enter begins; a function of liburing that submits is called | release of the ring's CQ tail |
//! | io_uring_enter ends; a function of liburing that looks for CQEs returns | acquire of the ring's CQ tail |
//! | a MSG_RING is submitted | release of the target ring's CQ tail |
//!
//! The object is the tail in the program's own mapping. So code of the program that reads the tail
//! as an atomic word, as liburing's inline functions do, acquires it, too.
//!
//! The functions of ThreadSanitizer are called only in threads of the program, because it does not
//! know usring's threads. So the work of an SQ thread is not annotated: liburing's functions are.

use crate::call::Call;
use crate::files::descriptors::{self, File, Found};
use crate::files::rings;
use crate::runtime::assembler::{begin_frame, deliver_deferred};
use crate::runtime::{imports, libc};
use core::arch::naked_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_engine::observers::{self, Observer, Submitted};
use usring_sys::own_threads::{self, Owner};
use usring_sys::signals::{self, DEFERRED};
use usring_sys::{UserAddress, user_memory};
use usring_uapi::opcode;

static OBSERVER: Observer = Observer { submitted, completed: |_| {}, stepped: None, opened: |_| {}, closed: |_| {} };

/// `__tsan_acquire` and `__tsan_release`.
type Annotate = unsafe extern "C" fn(u64);

/// The addresses of the functions, or 0.
static ACQUIRE: AtomicUsize = AtomicUsize::new(0);
static RELEASE: AtomicUsize = AtomicUsize::new(0);

/// Returns whether the program has ThreadSanitizer.
pub fn is_on() -> bool {
    RELEASE.load(Ordering::Relaxed) != 0
}

/// Begins to annotate, if the program has ThreadSanitizer. Returns whether it has.
///
/// Errors: a message of one sentence.
pub fn learn() -> Result<bool, &'static str> {
    if !libc::has_sanitizer() {
        return Ok(false);
    }
    let (Some(acquire), Some(release)) = (imports::function(c"__tsan_acquire"), imports::function(c"__tsan_release"))
    else {
        return Ok(false);
    };
    if !observers::add(&OBSERVER) {
        return Err("there are too many observers of requests");
    }
    ACQUIRE.store(acquire, Ordering::Relaxed);
    RELEASE.store(release, Ordering::Relaxed);
    install();
    Ok(true)
}

fn annotate(function: &AtomicUsize, object: u64) {
    let function = function.load(Ordering::Relaxed);
    if function != 0 && object != 0 {
        // SAFETY: 1. The address is that of a function of type `Annotate`. 2. It takes any address
        // of the program's memory, and does not access the memory. 3. The callers run in threads of
        // the program.
        unsafe { core::mem::transmute::<usize, Annotate>(function)(object) };
    }
}

fn submitted(submitted: &Submitted) {
    if submitted.sqe.opcode != opcode::MSG_RING
        || matches!(own_threads::owner_of(signals::thread_id()), Owner::Usring | Owner::Submitter)
    {
        return;
    }
    let target = submitted.file.unwrap_or(submitted.sqe.fd);
    if let Found::Ring(tail) = descriptors::with_inside(target, File::cq_tail) {
        annotate(&RELEASE, tail);
    }
}

/// Annotates the beginning of an io_uring_enter call. Returns the object for [`end`].
pub fn begin(call: &Call) -> u64 {
    if !is_on() {
        return 0;
    }
    let object = rings::cq_tail(call).unwrap_or(0);
    annotate(&RELEASE, object);
    object
}

/// Annotates the end of an io_uring_enter call.
pub fn end(object: u64) {
    annotate(&ACQUIRE, object);
}

// Offsets in liburing's `struct io_uring`, which are the same in all versions of liburing 2: the
// address of the CQ tail (`cq.ktail`), and the ring's descriptor (`ring_fd`).
const TAIL: u64 = 112;
const DESCRIPTOR: u64 = 196;

/// Returns the object that stands for liburing's ring at an address; 0 if there is none.
fn object_of(ring: u64) -> u64 {
    let ring = UserAddress(ring);
    let (Ok(tail), Ok(number)) =
        (user_memory::read::<u64>(ring.offset(TAIL)), user_memory::read::<i32>(ring.offset(DESCRIPTOR)))
    else {
        return 0;
    };
    match descriptors::with(number, |file| file.cq_tail()) {
        Found::Ring(known) if known == tail => tail,
        _ => 0,
    }
}

unsafe extern "C" fn before(ring: u64) {
    annotate(&RELEASE, object_of(ring));
}

unsafe extern "C" fn after(ring: u64) {
    annotate(&ACQUIRE, object_of(ring));
}

/// Defines a function that calls [`before`], a function of liburing whose first argument is a ring,
/// and [`after`].
macro_rules! hook {
    ($name:ident, $real:ident) => {
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
                before = sym before,
                after = sym after,
                deferred = sym DEFERRED,
                real = sym $real,
            )
        }
    };
}

hook!(submit, REAL_SUBMIT);
hook!(submit_and_wait, REAL_SUBMIT_AND_WAIT);
hook!(submit_and_wait_timeout, REAL_SUBMIT_AND_WAIT_TIMEOUT);
hook!(submit_and_get_events, REAL_SUBMIT_AND_GET_EVENTS);
hook!(get_cqe, REAL_GET_CQE);
hook!(wait_cqes, REAL_WAIT_CQES);
hook!(wait_cqe_timeout, REAL_WAIT_CQE_TIMEOUT);
hook!(peek_batch_cqe, REAL_PEEK_BATCH_CQE);

/// Makes the program call the hooks of this file in place of liburing's functions.
fn install() {
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
