//! io_uring_setup(2): sizes, offsets, feature bits, and refused parameters.

use usring_uapi::io_uring as u;

use crate::memory::{BAD, KERNEL_HALF, Pages, zeroed};
use crate::names;
use crate::ring::{Params, Ring};
use crate::syscalls;
use crate::transcript::Transcript;

/// Makes a ring and prints its sizes. Repeats the call after -ENOMEM: without root, a ring needs
/// locked memory, and the kernel releases that of an earlier ring a little after the close.
fn try_sizes(t: &mut Transcript, entries: u32, flags: u32, cq_entries: u32) {
    let mut params: Params = zeroed();
    params.flags = flags;
    params.cq_entries = cq_entries;
    let given = params;
    let mut fd = 0;
    crate::time::until(|| {
        params = given;
        fd = syscalls::setup(entries, &mut params);
        fd != -libc::ENOMEM
    });
    let asked = format!("setup({entries}, cq {cq_entries}, flags {flags:#x})");
    if fd < 0 {
        t.result(asked, fd);
        return;
    }
    syscalls::close(fd);
    let (sq, cq) = (params.sq_entries, params.cq_entries);
    t.say(format_args!("{asked} = sq {sq} cq {cq}"));
}

fn sizes(t: &mut Transcript) {
    for entries in [0, 1, 2, 3, 4, 5, 31, 33, 1000, 32767, 32768, 32769, 65536, u32::MAX] {
        try_sizes(t, entries, 0, 0);
    }
    // CQSIZE is not set, so the kernel ignores the program's `cq_entries` and overwrites it.
    try_sizes(t, 4, 0, 1000);
}
case!(sizes => "
    setup(0, cq 0, flags 0x0) = -EINVAL
    setup(1, cq 0, flags 0x0) = sq 1 cq 2
    setup(2, cq 0, flags 0x0) = sq 2 cq 4
    setup(3, cq 0, flags 0x0) = sq 4 cq 8
    setup(4, cq 0, flags 0x0) = sq 4 cq 8
    setup(5, cq 0, flags 0x0) = sq 8 cq 16
    setup(31, cq 0, flags 0x0) = sq 32 cq 64
    setup(33, cq 0, flags 0x0) = sq 64 cq 128
    setup(1000, cq 0, flags 0x0) = sq 1024 cq 2048
    setup(32767, cq 0, flags 0x0) = sq 32768 cq 65536
    setup(32768, cq 0, flags 0x0) = sq 32768 cq 65536
    setup(32769, cq 0, flags 0x0) = -EINVAL
    setup(65536, cq 0, flags 0x0) = -EINVAL
    setup(4294967295, cq 0, flags 0x0) = -EINVAL
    setup(4, cq 1000, flags 0x0) = sq 4 cq 8
");

fn clamped_sizes(t: &mut Transcript) {
    let clamp = u::IORING_SETUP_CLAMP;
    for entries in [0, 1, 7, 32768, 32769, u32::MAX] {
        try_sizes(t, entries, clamp, 0);
    }
    let both = clamp | u::IORING_SETUP_CQSIZE;
    try_sizes(t, 8, both, 65536);
    try_sizes(t, 8, both, 65537);
    try_sizes(t, 8, both, u32::MAX);
    try_sizes(t, 8, both, 4);
    try_sizes(t, 8, both, 0);
    try_sizes(t, 32769, both, 70000);
}
case!(clamped_sizes => "
    setup(0, cq 0, flags 0x10) = -EINVAL
    setup(1, cq 0, flags 0x10) = sq 1 cq 2
    setup(7, cq 0, flags 0x10) = sq 8 cq 16
    setup(32768, cq 0, flags 0x10) = sq 32768 cq 65536
    setup(32769, cq 0, flags 0x10) = sq 32768 cq 65536
    setup(4294967295, cq 0, flags 0x10) = sq 32768 cq 65536
    setup(8, cq 65536, flags 0x18) = sq 8 cq 65536
    setup(8, cq 65537, flags 0x18) = sq 8 cq 65536
    setup(8, cq 4294967295, flags 0x18) = sq 8 cq 65536
    setup(8, cq 4, flags 0x18) = -EINVAL
    setup(8, cq 0, flags 0x18) = -EINVAL
    setup(32769, cq 70000, flags 0x18) = sq 32768 cq 65536
");

fn cq_sizes(t: &mut Transcript) {
    let cqsize = u::IORING_SETUP_CQSIZE;
    for cq_entries in [0, 1, 7, 8, 9, 16, 100, 65535, 65536, 65537, u32::MAX] {
        try_sizes(t, 8, cqsize, cq_entries);
    }
    // The kernel rounds up both sizes before it checks that the CQ is at least as large as the SQ.
    try_sizes(t, 5, cqsize, 5);
    try_sizes(t, 5, cqsize, 4);
}
case!(cq_sizes => "
    setup(8, cq 0, flags 0x8) = -EINVAL
    setup(8, cq 1, flags 0x8) = -EINVAL
    setup(8, cq 7, flags 0x8) = sq 8 cq 8
    setup(8, cq 8, flags 0x8) = sq 8 cq 8
    setup(8, cq 9, flags 0x8) = sq 8 cq 16
    setup(8, cq 16, flags 0x8) = sq 8 cq 16
    setup(8, cq 100, flags 0x8) = sq 8 cq 128
    setup(8, cq 65535, flags 0x8) = sq 8 cq 65536
    setup(8, cq 65536, flags 0x8) = sq 8 cq 65536
    setup(8, cq 65537, flags 0x8) = -EINVAL
    setup(8, cq 4294967295, flags 0x8) = -EINVAL
    setup(5, cq 5, flags 0x8) = sq 8 cq 8
    setup(5, cq 4, flags 0x8) = -EINVAL
");

fn say_offsets(t: &mut Transcript, params: &Params) {
    let sq = &params.sq_off;
    let cq = &params.cq_off;
    t.say(format_args!(
        "sq head {} tail {} mask {} entries {} flags {} dropped {} array {} resv {} user {}",
        sq.head, sq.tail, sq.ring_mask, sq.ring_entries, sq.flags, sq.dropped, sq.array, sq.resv1, sq.user_addr
    ));
    t.say(format_args!(
        "cq head {} tail {} mask {} entries {} overflow {} cqes {} flags {} resv {} user {}",
        cq.head, cq.tail, cq.ring_mask, cq.ring_entries, cq.overflow, cq.cqes, cq.flags, cq.resv1, cq.user_addr
    ));
}

fn offsets(t: &mut Transcript) {
    for (entries, flags) in [
        (1, 0),
        (8, 0),
        (300, 0),
        (8, u::IORING_SETUP_CQE32),
        (8, u::IORING_SETUP_SQE128),
        (8, u::IORING_SETUP_NO_SQARRAY),
    ] {
        t.say(format_args!("entries {entries} flags {flags:#x}"));
        say_offsets(t, &Ring::flags(entries, flags).params);
    }
}
case!(offsets => "
    entries 1 flags 0x0
    sq head 0 tail 4 mask 16 entries 24 flags 36 dropped 32 array 128 resv 0 user 0
    cq head 8 tail 12 mask 20 entries 28 overflow 44 cqes 64 flags 40 resv 0 user 0
    entries 8 flags 0x0
    sq head 0 tail 4 mask 16 entries 24 flags 36 dropped 32 array 320 resv 0 user 0
    cq head 8 tail 12 mask 20 entries 28 overflow 44 cqes 64 flags 40 resv 0 user 0
    entries 300 flags 0x0
    sq head 0 tail 4 mask 16 entries 24 flags 36 dropped 32 array 16448 resv 0 user 0
    cq head 8 tail 12 mask 20 entries 28 overflow 44 cqes 64 flags 40 resv 0 user 0
    entries 8 flags 0x800
    sq head 0 tail 4 mask 16 entries 24 flags 36 dropped 32 array 640 resv 0 user 0
    cq head 8 tail 12 mask 20 entries 28 overflow 44 cqes 64 flags 40 resv 0 user 0
    entries 8 flags 0x400
    sq head 0 tail 4 mask 16 entries 24 flags 36 dropped 32 array 320 resv 0 user 0
    cq head 8 tail 12 mask 20 entries 28 overflow 44 cqes 64 flags 40 resv 0 user 0
    entries 8 flags 0x10000
    sq head 0 tail 4 mask 16 entries 24 flags 36 dropped 32 array 0 resv 0 user 0
    cq head 8 tail 12 mask 20 entries 28 overflow 44 cqes 64 flags 40 resv 0 user 0
");

/// The feature bits of Linux 6.18 that the cases print. Not printed are bits for which there are no
/// cases: bundles, and integrity attributes.
const FEATURES: &[(u32, &str)] = &[
    (u::IORING_FEAT_SINGLE_MMAP, "SINGLE_MMAP"),
    (u::IORING_FEAT_NODROP, "NODROP"),
    (u::IORING_FEAT_SUBMIT_STABLE, "SUBMIT_STABLE"),
    (u::IORING_FEAT_RW_CUR_POS, "RW_CUR_POS"),
    (u::IORING_FEAT_CUR_PERSONALITY, "CUR_PERSONALITY"),
    (u::IORING_FEAT_FAST_POLL, "FAST_POLL"),
    (u::IORING_FEAT_POLL_32BITS, "POLL_32BITS"),
    (u::IORING_FEAT_SQPOLL_NONFIXED, "SQPOLL_NONFIXED"),
    (u::IORING_FEAT_EXT_ARG, "EXT_ARG"),
    (u::IORING_FEAT_NATIVE_WORKERS, "NATIVE_WORKERS"),
    (u::IORING_FEAT_RSRC_TAGS, "RSRC_TAGS"),
    (u::IORING_FEAT_CQE_SKIP, "CQE_SKIP"),
    (u::IORING_FEAT_LINKED_FILE, "LINKED_FILE"),
    (u::IORING_FEAT_REG_REG_RING, "REG_REG_RING"),
    (u::IORING_FEAT_MIN_TIMEOUT, "MIN_TIMEOUT"),
    (u::IORING_FEAT_NO_IOWAIT, "NO_IOWAIT"),
];

fn features(t: &mut Transcript) {
    let ring = Ring::new(4);
    for (bit, name) in FEATURES {
        let there = if ring.params.features & bit != 0 { "yes" } else { "no" };
        t.say(format_args!("{name} {there}"));
    }
}
case!(features => "
    SINGLE_MMAP yes
    NODROP yes
    SUBMIT_STABLE yes
    RW_CUR_POS yes
    CUR_PERSONALITY yes
    FAST_POLL yes
    POLL_32BITS yes
    SQPOLL_NONFIXED yes
    EXT_ARG yes
    NATIVE_WORKERS yes
    RSRC_TAGS yes
    CQE_SKIP yes
    LINKED_FILE yes
    REG_REG_RING yes
    MIN_TIMEOUT yes
    NO_IOWAIT yes
");

fn first_words(t: &mut Transcript) {
    let ring = Ring::new(8);
    t.say(format_args!("sq head {} tail {}", ring.sq_head(), ring.sq_tail()));
    t.say(format_args!("cq head {} tail {}", ring.cq_head(), ring.cq_tail()));
    t.say(format_args!("sq flags {}", names::sq_flags(ring.sq_flags())));
    t.say(format_args!("dropped {} overflow {}", ring.sq_dropped(), ring.cq_overflow()));
    let word = |offset| ring.word(offset);
    t.say(format_args!("sq mask {}", word(ring.params.sq_off.ring_mask)));
    t.say(format_args!("sq entries {}", word(ring.params.sq_off.ring_entries)));
    t.say(format_args!("cq mask {}", word(ring.params.cq_off.ring_mask)));
    t.say(format_args!("cq entries {}", word(ring.params.cq_off.ring_entries)));
    t.say(format_args!("cq flags {}", word(ring.params.cq_off.flags)));
    let array: Vec<u32> = (0..8).map(|slot| word(ring.params.sq_off.array + slot * 4)).collect();
    t.say(format_args!("sq array {array:?}"));
}
case!(first_words => "
    sq head 0 tail 0
    cq head 0 tail 0
    sq flags -
    dropped 0 overflow 0
    sq mask 7
    sq entries 8
    cq mask 15
    cq entries 16
    cq flags 0
    sq array [0, 0, 0, 0, 0, 0, 0, 0]
");

/// Prints which fields of the parameters io_uring_setup(2) overwrites, and which keep the program's
/// values.
fn params_come_back(t: &mut Transcript) {
    let mut params: Params = zeroed();
    params.sq_entries = 99;
    params.cq_entries = 99;
    params.sq_thread_cpu = 98;
    params.sq_thread_idle = 97;
    params.wq_fd = 96;
    params.features = 95;
    params.sq_off.resv1 = 94;
    params.cq_off.user_addr = 93;
    let fd = syscalls::setup(4, &mut params);
    t.outcome("setup", fd.into());
    syscalls::close(fd);
    t.say(format_args!(
        "sq {} cq {} flags {} cpu {} idle {} wq {} features changed {}",
        params.sq_entries,
        params.cq_entries,
        params.flags,
        params.sq_thread_cpu,
        params.sq_thread_idle,
        params.wq_fd,
        params.features != 95
    ));
    t.say(format_args!("resv {} user {}", params.sq_off.resv1, params.cq_off.user_addr));
}
case!(params_come_back => "
    setup = ok
    sq 4 cq 8 flags 0 cpu 98 idle 97 wq 96 features changed true
    resv 0 user 0
");

fn reserved_fields(t: &mut Transcript) {
    for index in 0..3 {
        let mut params: Params = zeroed();
        params.resv[index] = 1;
        t.outcome(format_args!("resv[{index}] = 1"), syscalls::setup(4, &mut params).into());
    }
}
case!(reserved_fields => "
    resv[0] = 1 = -EINVAL
    resv[1] = 1 = -EINVAL
    resv[2] = 1 = -EINVAL
");

fn bad_pointer(t: &mut Transcript) {
    t.result("params null", syscalls::setup(4, std::ptr::null_mut()));
    t.result("params unmapped", syscalls::setup(4, BAD as *mut Params));
    t.result("params in the kernel's half", syscalls::setup(4, KERNEL_HALF as *mut Params));
    let pages = Pages::new(1);
    pages.protect_last(libc::PROT_READ);
    // The kernel can read the parameters, but cannot write the results to them. It has already made
    // the ring, so it removes the ring again.
    t.result("params read-only", syscalls::setup(4, pages.at(0) as *mut Params));
    t.result("params null, entries 0", syscalls::setup(0, std::ptr::null_mut()));
    let pages = Pages::new(2);
    pages.forbid_last();
    t.result("params across a bad page", syscalls::setup(4, pages.at(4096 - 60) as *mut Params));
}
case!(bad_pointer => "
    params null = -EFAULT
    params unmapped = -EFAULT
    params in the kernel's half = -EFAULT
    params read-only = -EFAULT
    params null, entries 0 = -EFAULT
    params across a bad page = -EFAULT
");

fn close_on_exec(t: &mut Transcript) {
    let ring = Ring::new(4);
    // SAFETY: the call touches no memory.
    let flags = unsafe { libc::fcntl(ring.fd, libc::F_GETFD) };
    t.say(format_args!("FD_CLOEXEC {}", flags & libc::FD_CLOEXEC != 0));
}
case!(close_on_exec => "FD_CLOEXEC true");

fn no_descriptor_left(t: &mut Transcript) {
    let limit = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
    // SAFETY: the call reads only `limit`. The process already uses the descriptors 0 to 2.
    t.result("RLIMIT_NOFILE = 3", unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) });
    let mut params: Params = zeroed();
    t.outcome("setup", syscalls::setup(4, &mut params).into());
}
case!(no_descriptor_left => "
    RLIMIT_NOFILE = 3 = 0
    setup = -EMFILE
");

fn hundred_rings(t: &mut Transcript) {
    let mut rings: Vec<Ring> = (0..100).map(|_| Ring::new(8)).collect();
    let mut right = 0;
    for (number, ring) in rings.iter_mut().enumerate() {
        let entry = ring.one(crate::sqe::nop(number as u64));
        if entry.user_data == number as u64 && entry.res == 0 {
            right += 1;
        }
    }
    t.say(format_args!("right answers: {right}"));
    rings.clear();
    t.entry(&Ring::new(8).one(crate::sqe::nop(1)));
}
case!(hundred_rings => "
    right answers: 100
    cqe 1: 0
");

fn closed_at_once(t: &mut Transcript) {
    for _ in 0..200 {
        let mut params: Params = zeroed();
        let fd = syscalls::setup(16, &mut params);
        if fd < 0 {
            t.result("setup", fd);
            return;
        }
        syscalls::close(fd);
    }
    t.say("200 rings made and closed");
}
case!(closed_at_once => "200 rings made and closed");
