//! The seccomp filter of a run whose memory is swapped: which calls may name memory
//! that is not there.
//!
//! Such memory lies in a window of addresses that is the same in every process
//! ([`WINDOW`]), so the filter is constant, as the others are, and knows no call by
//! its meaning: what has an address of the window among its arguments traps. Known by
//! number are only calls that name memory by way of memory (vectors, messages), those
//! that could bring such memory about (mmap), and those that may not be led astray,
//! whatever is left in the registers that they do not use.
//!
//! The loader of the next program works before there is a handler. It knows no address of
//! the window; of what traps by number it uses writev(2) alone, to complain (libc's own, which
//! programs use, is rewritten when they start), and maps anonymous memory at fixed places or
//! in small pieces: the largest is for what threads have of their own (a table of a program's
//! or library's, ThreadSanitizer's 800 KiB). So there is a filter for each of several sizes
//! ([`SIZES`]), and a run has that which traps no smaller pieces than it has to.

use crate::doors::filter::{
    ARCH, ARCHITECTURE, Assembler, JUMP_BITS, JUMP_EQUAL, JUMP_GREATER_OR_EQUAL, NUMBER, RET_ALLOW, RET_TRAP, high,
    install_one, low,
};
use usring_swap::mappings::{LEAST_MINIMUM, WINDOW};
use usring_sys::Errno;
use usring_sys::syscall::PASS_MARK;
use usring_uapi::general as linux;

/// create_module(2), which Linux 2.6 and later do not have: by it a program finds a
/// filter in place that traps pieces of memory as large as its second argument.
pub const PROBE: u32 = linux::__NR_create_module;

/// Never ours: they take nothing from registers, or leave by another way than they came.
/// (clone(2) and its kin are looked at before.)
const EXEMPT: [u32; 4] =
    [linux::__NR_rt_sigreturn, linux::__NR_restart_syscall, linux::__NR_exit, linux::__NR_exit_group];

/// They name memory by way of memory, or could; or they copy all of it.
const ALWAYS: [u32; 23] = [
    linux::__NR_fork,
    linux::__NR_readv,
    linux::__NR_preadv,
    linux::__NR_pwritev,
    linux::__NR_preadv2,
    linux::__NR_pwritev2,
    linux::__NR_sendmsg,
    linux::__NR_recvmsg,
    linux::__NR_sendmmsg,
    linux::__NR_recvmmsg,
    linux::__NR_vmsplice,
    linux::__NR_process_vm_readv,
    linux::__NR_process_vm_writev,
    linux::__NR_pselect6,
    linux::__NR_futex_waitv,
    linux::__NR_ioctl,
    linux::__NR_setsockopt,
    linux::__NR_ptrace,
    linux::__NR_seccomp,
    linux::__NR_bpf,
    linux::__NR_keyctl,
    linux::__NR_sigaltstack,
    linux::__NR_mlockall,
];

/// The mark in a register's upper half: every call of ours has it in its sixth argument
/// or, where that is an address, in its first, a number of 32 bits.
const MARK: u32 = (PASS_MARK >> 32) as u32;

/// prctl(2)'s.
const PR_SET_SECCOMP: u32 = 22;

/// Where the loader complains.
const STANDARD_ERROR: u32 = 2;

/// Of mmap: another kind of memory than we give.
const OTHER_KINDS: u32 = linux::MAP_SHARED
    | linux::MAP_FIXED
    | linux::MAP_FIXED_NOREPLACE
    | linux::MAP_STACK
    | linux::MAP_GROWSDOWN
    | linux::MAP_LOCKED
    | linux::MAP_32BIT
    | linux::MAP_HUGETLB;

const READ_WRITE: u32 = linux::PROT_READ | linux::PROT_WRITE;

/// From how many bytes on memory that is mapped comes to us, by filter.
const SIZES: [u32; 4] = [LEAST_MINIMUM as u32, 256 << 10, 512 << 10, 1 << 20];

/// `size` is one of [`SIZES`].
const fn assemble(size: u32) -> Assembler {
    let mut filter = Assembler::new();
    filter.load(ARCH);
    filter.add(JUMP_EQUAL, ARCHITECTURE, 1, 0);
    filter.answer(RET_ALLOW);
    filter.load(high(5));
    filter.add(JUMP_EQUAL, MARK, 2, 0);
    filter.load(high(0));
    filter.add(JUMP_EQUAL, MARK, 0, 1);
    filter.answer(RET_ALLOW);
    filter.load(NUMBER);
    look_at_clone(&mut filter);
    look_at_vfork(&mut filter);
    answer_for(&mut filter, &[linux::__NR_clone3], RET_NO_SUCH_CALL);
    answer_for(&mut filter, &EXEMPT, RET_ALLOW);
    answer_for(&mut filter, &ALWAYS, RET_TRAP);
    filter.add(JUMP_EQUAL, PROBE, 0, 4);
    filter.load(low(1));
    filter.add(JUMP_GREATER_OR_EQUAL, size, 0, 1);
    filter.answer(RET_TRAP);
    filter.answer(RET_ALLOW);
    // prctl: where it installs a filter. (glibc's loader may name mappings by it.)
    filter.add(JUMP_EQUAL, linux::__NR_prctl, 0, 4);
    filter.load(low(0));
    filter.add(JUMP_EQUAL, PR_SET_SECCOMP, 0, 1);
    filter.answer(RET_TRAP);
    filter.load(NUMBER);
    // writev: not as a loader complains.
    filter.add(JUMP_EQUAL, linux::__NR_writev, 0, 3);
    filter.load(low(0));
    filter.add(JUMP_EQUAL, STANDARD_ERROR, 1, 0);
    filter.answer(RET_TRAP);
    filter.load(NUMBER);
    // mmap: what we would give, if it is large enough; and past us what is marked.
    filter.add(JUMP_EQUAL, linux::__NR_mmap, 0, 12);
    filter.load(low(3));
    filter.add(JUMP_BITS, linux::MAP_DENYWRITE, 0, 1);
    filter.answer(RET_ALLOW);
    filter.add(JUMP_BITS, OTHER_KINDS, 8, 0);
    filter.add(JUMP_BITS, linux::MAP_ANONYMOUS, 0, 7);
    filter.load(low(2));
    filter.add(JUMP_EQUAL, READ_WRITE, 0, 5);
    filter.load(high(1));
    filter.add(JUMP_EQUAL, 0, 0, 2);
    filter.load(low(1));
    filter.add(JUMP_GREATER_OR_EQUAL, size, 0, 1);
    filter.answer(RET_TRAP);
    // An address of the window.
    let mut argument = 0;
    while argument < 6 {
        filter.load(high(argument));
        filter.add(JUMP_GREATER_OR_EQUAL, (WINDOW.start >> 32) as u32, 0, 2);
        filter.add(JUMP_GREATER_OR_EQUAL, (WINDOW.end >> 32) as u32, 1, 0);
        filter.answer(RET_TRAP);
        argument += 1;
    }
    filter.answer(RET_ALLOW);
    filter
}

/// What says what it wants in memory, where no filter sees whether it makes a process: as on kernels
/// before 5.3 and in containers, callers take clone(2).
const RET_NO_SUCH_CALL: u32 = 0x0005_0000 | ENOSYS;
const ENOSYS: u32 = 38;

/// Of clone what makes a process.
const fn look_at_clone(filter: &mut Assembler) {
    filter.add(JUMP_EQUAL, linux::__NR_clone, 0, 4);
    filter.load(low(0));
    filter.add(JUMP_BITS, linux::CLONE_THREAD, 0, 1);
    filter.answer(RET_ALLOW);
    filter.answer(RET_TRAP);
}

/// It has no argument, and no register of its own: what is looked at is its alone, so that the
/// mark, should it stay there, is none for any other call.
const fn look_at_vfork(filter: &mut Assembler) {
    filter.add(JUMP_EQUAL, linux::__NR_vfork, 0, 4);
    filter.load(high(VFORK_MARKED));
    filter.add(JUMP_EQUAL, MARK, 0, 1);
    filter.answer(RET_ALLOW);
    filter.answer(RET_TRAP);
}

/// The "argument" of a vfork that has a mark.
pub const VFORK_MARKED: u32 = 4;

/// The same answer for each of these.
const fn answer_for(filter: &mut Assembler, numbers: &[u32], answer: u32) {
    let mut index = 0;
    while index < numbers.len() {
        filter.add(JUMP_EQUAL, numbers[index], 0, 1);
        filter.answer(answer);
        index += 1;
    }
}

static FILTERS: [Assembler; SIZES.len()] =
    [assemble(SIZES[0]), assemble(SIZES[1]), assemble(SIZES[2]), assemble(SIZES[3])];

fn index_for(minimum: usize) -> usize {
    SIZES.iter().rposition(|size| *size as usize <= minimum).unwrap_or(0)
}

/// From how many bytes on memory comes to us at the latest, where `minimum` is wanted.
pub fn size_for(minimum: usize) -> u32 {
    SIZES[index_for(minimum)]
}

/// Installs the filter for `minimum`, for the whole process and everything it will start.
pub fn install(minimum: usize) -> Result<(), Errno> {
    install_one(&FILTERS[index_for(minimum)])
}
