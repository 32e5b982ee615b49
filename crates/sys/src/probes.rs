//! Probes at which bpftrace(8), perf(1) and gdb(1) can stop or count (USDT). They have the names
//! and arguments of the kernel's tracepoints of io_uring.
//!
//! Each probe is a function with one `nop`. A note in the section `.note.stapsdt` tells tracers:
//!
//! - the address of the `nop`, which a tracer replaces by a breakpoint;
//! - the address of the semaphore, which a tracer increments ([`crate::unusual`]);
//! - the registers of the arguments: `8@%rdi` is an unsigned number of 8 bytes, `-8@%rdi` a signed
//!   one.
//!
//! The section is not loaded. All probes share one semaphore, so a caller checks a single word
//! before it calls any of them. The format is described at
//! <https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>.

use crate::unusual;
use core::arch::asm;

/// Returns where a probe's argument is, in the syntax of the section `.note.stapsdt`.
macro_rules! place {
    (u64, $register:tt) => {
        concat!("8@%", $register)
    };
    (i64, $register:tt) => {
        concat!("-8@%", $register)
    };
}

/// Declares a probe `io_uring:io_uring_NAME`.
macro_rules! probe {
    ($(#[$text:meta])* $name:ident: $first:ident: $first_kind:ident = $first_register:tt
        $(, $argument:ident: $kind:ident = $register:tt)* $(,)?) => {
        $(#[$text])*
        #[cold]
        #[inline(never)]
        #[allow(clippy::too_many_arguments, reason = "they are the tracepoint's fields")]
        pub fn $name($first: $first_kind $(, $argument: $kind)*) {
            // SAFETY: the code is one `nop`. The rest goes to sections that no code uses.
            unsafe {
                asm!(
                    "990: nop",
                    // If a program never calls the function, the linker drops the function together
                    // with its note.
                    ".pushsection .note.stapsdt, \"o\", @note, {function}",
                    ".balign 4",
                    ".4byte 992f - 991f, 994f - 993f, 3",
                    "991: .asciz \"stapsdt\"",
                    "992: .balign 4",
                    "993: .8byte 990b",
                    ".8byte _.stapsdt.base",
                    ".8byte {states} + 2",
                    ".asciz \"io_uring\"",
                    concat!(".asciz \"io_uring_", stringify!($name), "\""),
                    concat!(".asciz \"", place!($first_kind, $first_register)
                        $(, " ", place!($kind, $register))*, "\""),
                    "994: .balign 4",
                    ".popsection",
                    // The notes hold the address that this section had when the library was linked.
                    // Tracers compare it with the section's present address, to see whether
                    // prelink(8) has moved the library.
                    ".ifndef _.stapsdt.base",
                    ".pushsection .stapsdt.base, \"aGR\", @progbits, .stapsdt.base, comdat",
                    ".weak _.stapsdt.base",
                    ".hidden _.stapsdt.base",
                    "_.stapsdt.base: .space 1",
                    ".size _.stapsdt.base, 1",
                    ".popsection",
                    ".endif",
                    function = sym $name,
                    states = sym unusual::STATES,
                    in($first_register) $first,
                    $(in($register) $argument,)*
                    options(nostack, preserves_flags, readonly)
                );
            }
        }
    };
}

probe! {
    /// A ring was made.
    create: fd: i64 = "rdi", ctx: u64 = "rsi", sq_entries: u64 = "rdx", cq_entries: u64 = "rcx", flags: u64 = "r8"
}
probe! {
    /// io_uring_register(2) ends. `nr_files`, `nr_bufs`: the sizes of the ring's tables.
    register: ctx: u64 = "rdi", opcode: u64 = "rsi", nr_files: u64 = "rdx", nr_bufs: u64 = "rcx", ret: i64 = "r8"
}
probe! {
    /// A request gets the file of a descriptor.
    file_get: ctx: u64 = "rdi", req: u64 = "rsi", user_data: u64 = "rdx", fd: i64 = "rcx"
}
probe! {
    /// A request is queued for a worker. `rw`: 1 if workers carry out the file's requests in order.
    queue_async_work: ctx: u64 = "rdi", req: u64 = "rsi", user_data: u64 = "rdx", opcode: u64 = "rcx",
    flags: u64 = "r8", work: u64 = "r9", rw: i64 = "r10", op_str: u64 = "r11"
}
probe! {
    /// A request waits because of an IO_DRAIN.
    defer: ctx: u64 = "rdi", req: u64 = "rsi", data: u64 = "rdx", opcode: u64 = "rcx", op_str: u64 = "r8"
}
probe! {
    /// A request joins a chain behind `target_req`.
    link: ctx: u64 = "rdi", req: u64 = "rsi", target_req: u64 = "rdx"
}
probe! {
    /// A thread is about to wait for `min_events` CQEs.
    cqring_wait: ctx: u64 = "rdi", min_events: i64 = "rsi"
}
probe! {
    /// The failure of `req` cancels `link`, a later request of its chain.
    fail_link: ctx: u64 = "rdi", req: u64 = "rsi", user_data: u64 = "rdx", opcode: u64 = "rcx", link: u64 = "r8",
    op_str: u64 = "r9"
}
probe! {
    /// A CQE goes to the CQ. `req` is the request if the CQE is its last, and otherwise 0. `extra1`
    /// and `extra2` are the second half of a CQE of 32 bytes.
    complete: ctx: u64 = "rdi", req: u64 = "rsi", user_data: u64 = "rdx", res: i64 = "rcx", cflags: u64 = "r8",
    extra1: u64 = "r9", extra2: u64 = "r10"
}
probe! {
    /// A request was taken from the SQ and checked.
    submit_req: ctx: u64 = "rdi", req: u64 = "rsi", user_data: u64 = "rdx", opcode: u64 = "rcx", flags: u64 = "r8",
    sq_thread: u64 = "r9", op_str: u64 = "r10"
}
probe! {
    /// A request waits for its file.
    poll_arm: ctx: u64 = "rdi", req: u64 = "rsi", user_data: u64 = "rdx", opcode: u64 = "rcx", mask: i64 = "r8",
    events: i64 = "r9", op_str: u64 = "r10"
}
probe! {
    /// The file of a waiting request is ready.
    task_add: ctx: u64 = "rdi", req: u64 = "rsi", user_data: u64 = "rdx", opcode: u64 = "rcx", mask: i64 = "r8",
    op_str: u64 = "r9"
}
probe! {
    /// An SQE was refused. In the tracepoint, `error` is the last argument. Here it is the sixth,
    /// because bpftrace before 0.24 reads only six arguments. A probe has at most twelve arguments,
    /// so some of the tracepoint's fields are missing.
    req_failed: ctx: u64 = "rdi", req: u64 = "rsi", user_data: u64 = "rdx", opcode: u64 = "rcx", flags: u64 = "r8",
    error: i64 = "r9", ioprio: u64 = "r10", off: u64 = "r11", addr: u64 = "rax", len: u64 = "r12",
    op_flags: u64 = "r13", op_str: u64 = "r14"
}
probe! {
    /// A CQE goes to the backlog, because the CQ is full.
    cqe_overflow: ctx: u64 = "rdi", user_data: u64 = "rsi", res: i64 = "rdx", cflags: u64 = "rcx", ocqe: u64 = "r8"
}
probe! {
    /// A thread has run `count` entries of a ring's task-work list.
    task_work_run: tctx: u64 = "rdi", count: u64 = "rsi"
}
probe! {
    /// The owner of a ring with DEFER_TASKRUN has run `count` entries of the ring's task-work list.
    local_work_run: ctx: u64 = "rdi", count: i64 = "rsi", loops: u64 = "rdx"
}
probe! {
    /// A write has moved `got` of `wanted` bytes, and a worker continues it. `fpos`: the file
    /// position at which the write began.
    short_write: ctx: u64 = "rdi", fpos: u64 = "rsi", wanted: u64 = "rdx", got: u64 = "rcx"
}
