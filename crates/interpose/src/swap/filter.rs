//! The seccomp filter of a run whose memory is swapped: traps calls that may name memory that is
//! not resident.
//!
//! Swapped memory lies in one window of addresses, whose bounds are constants ([`WINDOW`]). So the
//! filter is constant, as the others are, and need not know what a call means. A call traps if one
//! of its arguments is an address in the window. The filter knows only these calls by their
//! numbers:
//! - calls that name memory by a structure in memory (vectors, messages);
//! - calls that could make such memory (mmap);
//! - calls that must not be trapped, whatever their registers contain;
//! - calls that a program makes while it starts ([`ADDRESSES`]).
//!
//! The loader of the next program runs before there is a handler, so its calls must not trap:
//! - The loader knows no address of the window. But a register that a call does not use may equal
//!   such an address by chance. It may contain the time stamp counter, which glibc's loader reads.
//!   Hours after the machine's start, this counter equals addresses of the window for some minutes.
//!   So the filter compares only the registers that may contain an address.
//! - Of the calls that trap by number, the loader uses only writev(2), for error messages. (libc's
//!   own writev, which programs use, is rewritten when they start.)
//! - The loader maps anonymous memory at fixed addresses or in small pieces. The largest piece
//!   holds thread-local data: of a program or library, or ThreadSanitizer's 800 KiB.
//!
//! So there is one filter for each of several sizes ([`SIZES`]), which traps only mappings of at
//! least that size. A run gets the filter with the largest size that is not above its option
//! `min=`.

use crate::filter::{
    Assembler, JUMP_BITS, JUMP_EQUAL, JUMP_GREATER_OR_EQUAL, MARK, NUMBER, RET_ALLOW, RET_NO_SUCH_CALL, RET_TRAP, high,
    install_one, low,
};
use usring_swap::mappings::{LEAST_MINIMUM, WINDOW};
use usring_sys::Errno;
use usring_sys::width;
use usring_uapi::general as linux;

/// Number of create_module(2), which Linux 2.6 and later do not have. By this call, usring tests
/// whether the filter for a certain size is installed. The second argument is that size in bytes.
pub const PROBE: u32 = linux::__NR_create_module;

/// First argument of the test call [`PROBE`]. If the filter is installed, usring answers
/// [`PROBE_ANSWER`].
pub const PROBE_ARGUMENT: u64 = 0x7573_7377;
pub const PROBE_ANSWER: u64 = 0x7573_0002;

/// Calls that never trap, because they use no argument registers or do not return. (clone(2) and
/// similar calls have rules that the filter checks before these.)
const EXEMPT: [u32; 4] =
    [linux::__NR_rt_sigreturn, linux::__NR_restart_syscall, linux::__NR_exit, linux::__NR_exit_group];

/// Calls that always trap. Most of them name memory by a structure in memory, or may do so. The
/// others concern all memory of the process.
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

/// Calls that programs make before usring's handler is installed: calls of the loader, and others
/// that a library may make. The second number of an entry is a count *n*: only the first *n*
/// registers of the call may contain an address. The filter ignores the call's remaining registers.
/// For a call that is not in this table, the filter compares all six.
const ADDRESSES: [(u32, u32); 65] = [
    (linux::__NR_getpid, 0),
    (linux::__NR_gettid, 0),
    (linux::__NR_getppid, 0),
    (linux::__NR_getuid, 0),
    (linux::__NR_geteuid, 0),
    (linux::__NR_getgid, 0),
    (linux::__NR_getegid, 0),
    (linux::__NR_sched_yield, 0),
    (linux::__NR_close, 0),
    (linux::__NR_dup, 0),
    (linux::__NR_dup2, 0),
    (linux::__NR_umask, 0),
    (linux::__NR_personality, 0),
    (linux::__NR_kill, 0),
    (linux::__NR_tgkill, 0),
    (linux::__NR_lseek, 0),
    (linux::__NR_membarrier, 0),
    (linux::__NR_brk, 1),
    (linux::__NR_set_tid_address, 1),
    (linux::__NR_set_robust_list, 1),
    (linux::__NR_rseq, 1),
    (linux::__NR_uname, 1),
    (linux::__NR_sysinfo, 1),
    (linux::__NR_time, 1),
    (linux::__NR_munmap, 1),
    (linux::__NR_mprotect, 1),
    (linux::__NR_madvise, 1),
    (linux::__NR_open, 1),
    (linux::__NR_access, 1),
    (linux::__NR_getcwd, 1),
    (linux::__NR_getrandom, 1),
    (linux::__NR_poll, 1),
    (linux::__NR_arch_prctl, 2),
    (linux::__NR_read, 2),
    (linux::__NR_write, 2),
    (linux::__NR_pread64, 2),
    (linux::__NR_writev, 2),
    (linux::__NR_openat, 2),
    (linux::__NR_stat, 2),
    (linux::__NR_lstat, 2),
    (linux::__NR_fstat, 2),
    (linux::__NR_statfs, 2),
    (linux::__NR_fstatfs, 2),
    (linux::__NR_readlink, 2),
    (linux::__NR_faccessat, 2),
    (linux::__NR_faccessat2, 2),
    (linux::__NR_getrlimit, 2),
    (linux::__NR_setrlimit, 2),
    (linux::__NR_getrusage, 2),
    (linux::__NR_clock_gettime, 2),
    (linux::__NR_clock_getres, 2),
    (linux::__NR_gettimeofday, 2),
    (linux::__NR_nanosleep, 2),
    (linux::__NR_getdents64, 2),
    (linux::__NR_getcpu, 2),
    (linux::__NR_newfstatat, 3),
    (linux::__NR_readlinkat, 3),
    (linux::__NR_fcntl, 3),
    (linux::__NR_mincore, 3),
    (linux::__NR_sched_getaffinity, 3),
    (linux::__NR_rt_sigprocmask, 3),
    (linux::__NR_prlimit64, 4),
    (linux::__NR_clock_nanosleep, 4),
    (linux::__NR_prctl, 5),
    (linux::__NR_statx, 5),
];

/// Option of prctl(2) that installs a seccomp filter.
const PR_SET_SECCOMP: u32 = 22;

/// The descriptor to which the loader writes its error messages.
const STANDARD_ERROR: u32 = 2;

/// Flags of mmap(2) for kinds of memory that the swap region does not provide.
const OTHER_KINDS: u32 = linux::MAP_SHARED
    | linux::MAP_FIXED
    | linux::MAP_FIXED_NOREPLACE
    | linux::MAP_STACK
    | linux::MAP_GROWSDOWN
    | linux::MAP_LOCKED
    | linux::MAP_32BIT
    | linux::MAP_HUGETLB;

const READ_WRITE: u32 = linux::PROT_READ | linux::PROT_WRITE;

/// The sizes of the filters, in bytes: an mmap(2) of swappable memory traps from this length on.
const SIZES: [u32; 4] = [width::count(LEAST_MINIMUM), 256 << 10, 512 << 10, 1 << 20];

/// Assembles a filter; `size` is one of [`SIZES`].
const fn assemble(size: u32) -> Assembler {
    let mut filter = Assembler::new();
    filter.begin_with_marks();
    filter.load(NUMBER);
    add_clone_rule(&mut filter);
    add_vfork_rule(&mut filter);
    answer_for(&mut filter, &[linux::__NR_clone3], RET_NO_SUCH_CALL);
    answer_for(&mut filter, &EXEMPT, RET_ALLOW);
    answer_for(&mut filter, &ALWAYS, RET_TRAP);
    filter.add(JUMP_EQUAL, PROBE, 0, 4);
    filter.load(low(1));
    filter.add(JUMP_GREATER_OR_EQUAL, size, 0, 1);
    filter.answer(RET_TRAP);
    filter.answer(RET_ALLOW);
    // prctl traps if it installs a filter. No other option of prctl may trap: glibc's loader may
    // use one of them to name mappings, and at that time usring has no handler yet.
    filter.add(JUMP_EQUAL, linux::__NR_prctl, 0, 4);
    filter.load(low(0));
    filter.add(JUMP_EQUAL, PR_SET_SECCOMP, 0, 1);
    filter.answer(RET_TRAP);
    filter.load(NUMBER);
    // writev traps, except for the loader's error messages.
    filter.add(JUMP_EQUAL, linux::__NR_writev, 0, 3);
    filter.load(low(0));
    filter.add(JUMP_EQUAL, STANDARD_ERROR, 1, 0);
    filter.answer(RET_TRAP);
    filter.load(NUMBER);
    // mmap traps if the mapping is large enough and the region could serve it. usring's own calls
    // have MAP_DENYWRITE and pass.
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
    // Any other call traps if one of its arguments is an address in the window.
    let mut argument = 0;
    while argument < 6 {
        add_window_rule(&mut filter, argument);
        argument += 1;
    }
    filter.answer(RET_ALLOW);
    filter
}

/// Adds the rule for the register of `argument`: a call traps if this register contains an address
/// in the window. The exceptions are calls whose register contains no address according to
/// [`ADDRESSES`].
const fn add_window_rule(filter: &mut Assembler, argument: u32) {
    let mut unused = 0;
    let mut index = 0;
    while index < ADDRESSES.len() {
        unused += (ADDRESSES[index].1 <= argument) as usize;
        index += 1;
    }
    filter.load(high(argument));
    filter.add(JUMP_GREATER_OR_EQUAL, width::count(WINDOW.start >> 32), 0, unused + 4);
    filter.add(JUMP_GREATER_OR_EQUAL, width::count(WINDOW.end >> 32), unused + 3, 0);
    filter.load(NUMBER);
    index = 0;
    while index < ADDRESSES.len() {
        let (number, count) = ADDRESSES[index];
        if count <= argument {
            // For a call with this number, the jump skips the other comparisons with numbers, and
            // the answer TRAP after them.
            filter.add(JUMP_EQUAL, number, unused, 0);
            unused -= 1;
        }
        index += 1;
    }
    filter.answer(RET_TRAP);
    filter.answer(RET_ALLOW);
}

/// Adds the rule for clone(2), which traps if it makes a process and not a thread.
const fn add_clone_rule(filter: &mut Assembler) {
    filter.add(JUMP_EQUAL, linux::__NR_clone, 0, 4);
    filter.load(low(0));
    filter.add(JUMP_BITS, linux::CLONE_THREAD, 0, 1);
    filter.answer(RET_ALLOW);
    filter.answer(RET_TRAP);
}

/// Adds the rule for vfork(2), which traps unless it carries usring's mark ([`MARK`]). vfork(2) has
/// no argument, so it carries the mark in r8. The filter accepts no mark in r8 for any other call.
/// So a mark that stays in r8 lets no later call pass.
const fn add_vfork_rule(filter: &mut Assembler) {
    filter.add(JUMP_EQUAL, linux::__NR_vfork, 0, 4);
    filter.load(high(VFORK_MARKED));
    filter.add(JUMP_EQUAL, MARK, 0, 1);
    filter.answer(RET_ALLOW);
    filter.answer(RET_TRAP);
}

/// Index of the argument register (r8) that carries usring's mark in vfork(2), which itself has no
/// arguments.
pub const VFORK_MARKED: u32 = 4;

/// Adds a rule for each call in `numbers`: the filter answers `answer`.
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

/// Returns whether the filter for mappings of `minimum` bytes is installed, and its traps reach
/// usring.
pub fn is_installed(minimum: usize) -> bool {
    let arguments = [PROBE_ARGUMENT, u64::from(SIZES[index_for(minimum)]), 0, 0, 0, 0];
    // SAFETY: the kernel has no such call, and usring's answer to it accesses no memory.
    unsafe { usring_sys::syscall::syscall6(PROBE, arguments) == PROBE_ANSWER }
}

/// Installs the filter for mappings of `minimum` bytes, for the whole process and all its children.
pub fn install(minimum: usize) -> Result<(), Errno> {
    install_one(&FILTERS[index_for(minimum)])
}
