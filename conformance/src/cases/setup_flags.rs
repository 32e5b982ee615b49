//! The flags of io_uring_setup(2). Some are valid alone, some require another flag, and some
//! exclude another flag.

use usring_uapi::io_uring as u;

use crate::memory::zeroed;
use crate::ring::{self, Params, Ring};
use crate::sqe::nop;
use crate::syscalls;
use crate::transcript::Transcript;

const CQE_MIXED: u32 = 1 << 18;

const FLAGS: &[(u32, &str)] = &[
    (u::IORING_SETUP_SQPOLL, "SQPOLL"),
    (u::IORING_SETUP_SQ_AFF, "SQ_AFF"),
    (u::IORING_SETUP_CQSIZE, "CQSIZE"),
    (u::IORING_SETUP_CLAMP, "CLAMP"),
    (u::IORING_SETUP_ATTACH_WQ, "ATTACH_WQ"),
    (u::IORING_SETUP_R_DISABLED, "R_DISABLED"),
    (u::IORING_SETUP_SUBMIT_ALL, "SUBMIT_ALL"),
    (u::IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN"),
    (u::IORING_SETUP_TASKRUN_FLAG, "TASKRUN_FLAG"),
    (u::IORING_SETUP_SQE128, "SQE128"),
    (u::IORING_SETUP_CQE32, "CQE32"),
    (u::IORING_SETUP_SINGLE_ISSUER, "SINGLE_ISSUER"),
    (u::IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN"),
    (u::IORING_SETUP_NO_MMAP, "NO_MMAP"),
    (u::IORING_SETUP_REGISTERED_FD_ONLY, "REGISTERED_FD_ONLY"),
    (u::IORING_SETUP_NO_SQARRAY, "NO_SQARRAY"),
    (u::IORING_SETUP_HYBRID_IOPOLL, "HYBRID_IOPOLL"),
];

fn words(flags: u32) -> String {
    let mut names = FLAGS.to_vec();
    names.push((u::IORING_SETUP_IOPOLL, "IOPOLL"));
    names.push((CQE_MIXED, "CQE_MIXED"));
    crate::names::bits(flags, &names)
}

/// Makes a ring with `flags` and closes it. Prints the result, and whether io_uring_setup(2) has
/// returned the flags unchanged.
fn attempt(t: &mut Transcript, flags: u32) {
    let mut params: Params = zeroed();
    params.flags = flags;
    let fd = syscalls::setup(8, &mut params);
    t.outcome(words(flags), fd.into());
    if fd >= 0 {
        syscalls::close(fd);
        if params.flags != flags {
            t.say(format_args!("flags now {}", words(params.flags)));
        }
    }
}

fn each_alone(t: &mut Transcript) {
    // Some flags are refused alone. CQSIZE then has no size, NO_MMAP has no memory, and ATTACH_WQ
    // names descriptor 0, which is no ring.
    for (flag, _) in FLAGS {
        attempt(t, *flag);
    }
}
case!(each_alone => "
    SQPOLL = ok
    SQ_AFF = -EINVAL
    CQSIZE = -EINVAL
    CLAMP = ok
    ATTACH_WQ = -EINVAL
    R_DISABLED = ok
    SUBMIT_ALL = ok
    COOP_TASKRUN = ok
    TASKRUN_FLAG = -EINVAL
    SQE128 = ok
    CQE32 = ok
    SINGLE_ISSUER = ok
    DEFER_TASKRUN = -EINVAL
    NO_MMAP = -EFAULT
    REGISTERED_FD_ONLY = -EINVAL
    NO_SQARRAY = ok
    HYBRID_IOPOLL = -EINVAL
");

fn unknown(t: &mut Transcript) {
    // Bits 20 to 31 are no flags of Linux 6.18.
    for bit in 20..32 {
        attempt(t, 1 << bit);
    }
    attempt(t, 1 << 31 | u::IORING_SETUP_CLAMP);
}
case!(unknown => "
    0x100000 = -EINVAL
    0x200000 = -EINVAL
    0x400000 = -EINVAL
    0x800000 = -EINVAL
    0x1000000 = -EINVAL
    0x2000000 = -EINVAL
    0x4000000 = -EINVAL
    0x8000000 = -EINVAL
    0x10000000 = -EINVAL
    0x20000000 = -EINVAL
    0x40000000 = -EINVAL
    0x80000000 = -EINVAL
    CLAMP|0x80000000 = -EINVAL
");

fn needed_together(t: &mut Transcript) {
    let single = u::IORING_SETUP_SINGLE_ISSUER;
    attempt(t, u::IORING_SETUP_DEFER_TASKRUN | single);
    attempt(t, u::IORING_SETUP_TASKRUN_FLAG | u::IORING_SETUP_COOP_TASKRUN);
    attempt(t, u::IORING_SETUP_TASKRUN_FLAG | u::IORING_SETUP_DEFER_TASKRUN | single);
    attempt(t, u::IORING_SETUP_SQ_AFF | u::IORING_SETUP_SQPOLL);
    attempt(t, u::IORING_SETUP_REGISTERED_FD_ONLY | u::IORING_SETUP_NO_SQARRAY);
}
case!(needed_together => "
    SINGLE_ISSUER|DEFER_TASKRUN = ok
    COOP_TASKRUN|TASKRUN_FLAG = ok
    TASKRUN_FLAG|SINGLE_ISSUER|DEFER_TASKRUN = ok
    SQPOLL|SQ_AFF = ok
    REGISTERED_FD_ONLY|NO_SQARRAY = -EINVAL
");

fn excluded_together(t: &mut Transcript) {
    let thread = u::IORING_SETUP_SQPOLL;
    attempt(t, thread | u::IORING_SETUP_COOP_TASKRUN);
    attempt(t, thread | u::IORING_SETUP_COOP_TASKRUN | u::IORING_SETUP_TASKRUN_FLAG);
    attempt(t, thread | u::IORING_SETUP_TASKRUN_FLAG);
    attempt(t, thread | ring::DEFER);
    attempt(t, thread | u::IORING_SETUP_DEFER_TASKRUN);
    attempt(t, u::IORING_SETUP_HYBRID_IOPOLL | thread);
}
case!(excluded_together => "
    SQPOLL|COOP_TASKRUN = -EINVAL
    SQPOLL|COOP_TASKRUN|TASKRUN_FLAG = -EINVAL
    SQPOLL|TASKRUN_FLAG = -EINVAL
    SQPOLL|SINGLE_ISSUER|DEFER_TASKRUN = -EINVAL
    SQPOLL|DEFER_TASKRUN = -EINVAL
    SQPOLL|HYBRID_IOPOLL = -EINVAL
");

fn allowed_together(t: &mut Transcript) {
    let thread = u::IORING_SETUP_SQPOLL;
    let wide = u::IORING_SETUP_SQE128 | u::IORING_SETUP_CQE32;
    attempt(t, wide);
    attempt(t, wide | u::IORING_SETUP_NO_SQARRAY);
    attempt(t, thread | wide | u::IORING_SETUP_NO_SQARRAY);
    attempt(t, thread | u::IORING_SETUP_SINGLE_ISSUER);
    attempt(t, thread | u::IORING_SETUP_R_DISABLED | u::IORING_SETUP_SUBMIT_ALL);
    attempt(
        t,
        u::IORING_SETUP_R_DISABLED
            | u::IORING_SETUP_SINGLE_ISSUER
            | u::IORING_SETUP_DEFER_TASKRUN
            | u::IORING_SETUP_COOP_TASKRUN
            | u::IORING_SETUP_TASKRUN_FLAG,
    );
    attempt(
        t,
        u::IORING_SETUP_CLAMP
            | u::IORING_SETUP_SUBMIT_ALL
            | u::IORING_SETUP_COOP_TASKRUN
            | u::IORING_SETUP_SINGLE_ISSUER,
    );
}
case!(allowed_together => "
    SQE128|CQE32 = ok
    SQE128|CQE32|NO_SQARRAY = ok
    SQPOLL|SQE128|CQE32|NO_SQARRAY = ok
    SQPOLL|SINGLE_ISSUER = ok
    SQPOLL|R_DISABLED|SUBMIT_ALL = ok
    R_DISABLED|COOP_TASKRUN|TASKRUN_FLAG|SINGLE_ISSUER|DEFER_TASKRUN = ok
    CLAMP|SUBMIT_ALL|COOP_TASKRUN|SINGLE_ISSUER = ok
");

/// A ring with the flag completes a NOP.
fn nop_on_each(t: &mut Transcript) {
    let single = u::IORING_SETUP_SINGLE_ISSUER;
    let coop = u::IORING_SETUP_COOP_TASKRUN;
    for flags in [
        0,
        u::IORING_SETUP_CLAMP,
        u::IORING_SETUP_SUBMIT_ALL,
        coop,
        coop | u::IORING_SETUP_TASKRUN_FLAG,
        single,
        single | u::IORING_SETUP_DEFER_TASKRUN,
        u::IORING_SETUP_SQE128,
        u::IORING_SETUP_CQE32,
        u::IORING_SETUP_NO_SQARRAY,
        u::IORING_SETUP_SQE128 | u::IORING_SETUP_CQE32 | u::IORING_SETUP_NO_SQARRAY,
    ] {
        let mut ring = Ring::flags(4, flags);
        for user_data in 1..=4 {
            ring.push(nop(user_data));
        }
        t.result(format_args!("{} submit", words(flags)), ring.submit_and_wait(4));
        t.in_order(&ring.reap());
    }
}
case!(nop_on_each => include_str!("setup_flags/nop_on_each.txt"));

fn sq_thread_cpu(t: &mut Transcript) {
    let flags = u::IORING_SETUP_SQPOLL | u::IORING_SETUP_SQ_AFF;
    for (cpu, name) in [(0, "cpu 0"), (100_000, "cpu 100000"), (u32::MAX, "cpu -1")] {
        let ring = Ring::with(4, |params| {
            params.flags = flags;
            params.sq_thread_cpu = cpu;
        });
        t.outcome(name, i64::from(ring.err().unwrap_or(0)));
    }
    // Without SQ_AFF the processor number is ignored.
    let ring = Ring::with(4, |params| {
        params.flags = u::IORING_SETUP_SQPOLL;
        params.sq_thread_cpu = 100_000;
    });
    t.outcome("cpu 100000 without SQ_AFF", i64::from(ring.err().unwrap_or(0)));
}
case!(sq_thread_cpu => "
    cpu 0 = ok
    cpu 100000 = -EINVAL
    cpu -1 = -EINVAL
    cpu 100000 without SQ_AFF = ok
");

fn attach_to_kinds(t: &mut Transcript) {
    let first = Ring::new(4);
    let thread = Ring::flags(4, u::IORING_SETUP_SQPOLL);
    let mut attempt = |name: &str, flags, fd: i32| {
        let ring = Ring::with(4, |params| {
            params.flags = flags | u::IORING_SETUP_ATTACH_WQ;
            params.wq_fd = fd as u32;
        });
        t.outcome(name, i64::from(ring.err().unwrap_or(0)));
    };
    attempt("to a plain ring", 0, first.fd);
    attempt("to a closed number", 0, 9999);
    attempt("to -1", 0, -1);
    attempt("to something else", 0, 1);
    attempt("SQPOLL to SQPOLL", u::IORING_SETUP_SQPOLL, thread.fd);
    attempt("SQPOLL to plain", u::IORING_SETUP_SQPOLL, first.fd);
    attempt("plain to SQPOLL", 0, thread.fd);
}
case!(attach_to_kinds => "
    to a plain ring = ok
    to a closed number = -ENXIO
    to -1 = -ENXIO
    to something else = -EINVAL
    SQPOLL to SQPOLL = ok
    SQPOLL to plain = -EINVAL
    plain to SQPOLL = ok
");

fn polled(t: &mut Transcript) {
    let poll = u::IORING_SETUP_IOPOLL;
    attempt(t, poll);
    attempt(t, poll | u::IORING_SETUP_HYBRID_IOPOLL);
    attempt(t, poll | u::IORING_SETUP_SQPOLL);
    attempt(t, poll | u::IORING_SETUP_TASKRUN_FLAG);
}
case!(polled => "
    IOPOLL = ok
    HYBRID_IOPOLL|IOPOLL = ok
    SQPOLL|IOPOLL = ok
    TASKRUN_FLAG|IOPOLL = -EINVAL
");

fn mixed_cqes(t: &mut Transcript) {
    attempt(t, CQE_MIXED);
    attempt(t, CQE_MIXED | u::IORING_SETUP_CQE32);
}
case!(mixed_cqes => "
    CQE_MIXED = ok
    CQE32|CQE_MIXED = -EINVAL
", usring => "
    CQE_MIXED = -EINVAL
    CQE32|CQE_MIXED = -EINVAL
", because "CQE_MIXED is newer than the interface usring promises; refused as by an older kernel");
