//! The seccomp filter: decides which system calls trap.
//!
//! It answers TRAP for the calls that usring serves and ALLOW for all others. TRAP takes precedence
//! over the ERRNO that a container's filter answers for io_uring, so no container has to be
//! reconfigured. exec passes filters on, and nothing can remove them. So there is one filter,
//! identical for every process and every build: it contains no address and no process id. A program
//! that finds it installed installs none.
//!
//! A run with devices has a second constant filter, for calls on files. A run whose memory is
//! swapped has one more ([`crate::swap::filter`]). With `--inject` or `usring crash`, the run also
//! has a filter for exactly the calls that get faults or are recorded ([`install_for_calls`]). A
//! program that finds these filters installed installs none.
//!
//! usring's own calls carry a mark in their sixth argument, and the filter lets them pass. If the
//! sixth argument is 32 bits of flags, the mark is above the flags. mmap(2) needs the whole
//! argument, so it carries MAP_DENYWRITE instead, a flag that Linux ignores.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_sys::descriptor::RESERVED_BASE;
use usring_sys::syscall::PASS_MARK;
use usring_sys::{Errno, SystemCall, width};
use usring_uapi::general as linux;

/// The data of usring's traps (SECCOMP_RET_DATA): "us". By this data, usring distinguishes its own
/// traps from those of another filter.
pub const TAG: i32 = 0x7573;

pub const RET_TRAP: u32 = 0x0003_0000 | TAG as u32;
pub const RET_ALLOW: u32 = 0x7fff_0000;
/// Answer to clone3(2), whose flags lie in memory, where no filter can see them. On this answer,
/// callers use clone(2), as they do on kernels before 5.3 and in containers.
pub const RET_NO_SUCH_CALL: u32 = 0x0005_0000 | ENOSYS;
const ENOSYS: u32 = 38;

/// AUDIT_ARCH_X86_64.
pub const ARCHITECTURE: u32 = 0xc000_003e;

/// `struct sock_filter`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    value: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

// linux/bpf_common.h.
const LOAD_WORD: u16 = 0x20;
pub const JUMP_EQUAL: u16 = 0x15;
pub const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;
pub const JUMP_BITS: u16 = 0x45;
const AND: u16 = 0x54;

// Offsets in struct seccomp_data.
pub const NUMBER: u32 = 0;
pub const ARCH: u32 = 4;
pub const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}
pub const fn high(argument: u32) -> u32 {
    low(argument) + 4
}

/// The mark in a register's upper half.
pub const MARK: u32 = (PASS_MARK >> 32) as u32;
const BASE: u32 = RESERVED_BASE as u32;
/// The kernel's value of O_LARGEFILE, which musl's loader passes.
const LARGE_FILE: u32 = 0o100_000;
/// Number of bytes of a library that the loader reads first, to find the library's headers. glibc's
/// loader reads 832 bytes, and musl's loader 960.
const LOADER_READS: [u32; 2] = [832, 960];
/// The loader's reads by pread64 (program headers, notes) are not whole sectors of this size. Reads
/// of whole sectors trap.
const SECTOR: u32 = 512;
/// Number of buffers with which musl's loader reads a file.
const TWO: u32 = 2;
/// Where the loader writes its error messages.
const STANDARD_ERROR: u32 = 2;
/// `ioctl` requests on the contents of files: FICLONE and FICLONERANGE give a file the contents of
/// another, and FS_IOC_FIEMAP reports where a file has contents.
pub const FICLONE: u32 = 0x4004_9409;
pub const FICLONERANGE: u32 = 0x4020_940d;
pub const FIEMAP: u32 = 0xc020_660b;

/// The condition under which a system call traps, for a number that has a rule.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// The call traps if one of its arguments, a descriptor, is in the reserved range. The field is
    /// the index of that argument. The filter compares the descriptor as unsigned, so −1 is in the
    /// range.
    Reserved(u32),
    /// The call traps if its first argument, its second argument, or both are descriptors in the
    /// reserved range. As in `Reserved`, −1 is in the range.
    EitherReserved,
    /// mmap: the call traps if the fifth argument, a descriptor, is in the reserved range and is
    /// not −1. Two flags keep the call from trapping: MAP_DENYWRITE (the mark of usring's own
    /// calls), and MAP_ANONYMOUS (which needs no descriptor).
    MapsReserved,
    /// fcntl: the call traps if the descriptor is in the reserved range, and the command duplicates
    /// it.
    DuplicatesReserved,
    /// rt_sigprocmask: the call traps if it passes a signal set, and its operation is not
    /// SIG_UNBLOCK.
    Blocks,
    /// Never: the call fails with ENOSYS.
    Missing,
    /// The call traps only in the filter for devices, under the condition [`FileRule`].
    Concerns(FileRule),
}

/// The condition under which a call on files traps.
#[derive(Clone, Copy)]
enum FileRule {
    /// Always.
    Any,
    /// For calls whose sixth argument is 32 bits of flags: the call always traps, unless it is
    /// usring's own. usring's mark is above these 32 bits.
    AnyWithFlags,
    /// read: the call traps unless it looks like a read of the loader's.
    Reads,
    /// pread64: the call traps unless it looks like a read of the loader's.
    ReadsAt,
    /// readv: the call traps unless it looks like a read of musl's loader.
    ReadsVector,
    /// writev: the call traps unless it could be an error message of the loader.
    WritesVector,
    /// open: the call traps unless its flags are those with which the loader opens files. The field
    /// is the index of the argument that holds the flags.
    Opens(u32),
    /// lseek: searches for data or for holes.
    SeeksHoles,
    /// fcntl: sets the status flags.
    SetsFlags,
    /// mmap: shares a file's pages.
    Shares,
    /// ioctl: the kernel would read the file's own content.
    Clones,
}

/// The rules, in the order in which the filter checks them. The kernel notes which call numbers the
/// filter always allows, and does not run the filter for them.
const RULES: [(u32, When); 35] = [
    (linux::__NR_mmap, When::MapsReserved),
    (linux::__NR_close, When::Reserved(0)),
    (linux::__NR_fcntl, When::DuplicatesReserved),
    (linux::__NR_epoll_ctl, When::Reserved(2)),
    (linux::__NR_rt_sigprocmask, When::Blocks),
    (linux::__NR_rt_sigaction, When::Always),
    (linux::__NR_io_uring_enter, When::Always),
    (linux::__NR_io_uring_setup, When::Always),
    (linux::__NR_io_uring_register, When::Always),
    (linux::__NR_io_submit, When::Always),
    (linux::__NR_io_getevents, When::Always),
    (linux::__NR_io_pgetevents, When::Always),
    (linux::__NR_io_setup, When::Always),
    (linux::__NR_io_destroy, When::Always),
    (linux::__NR_io_cancel, When::Always),
    (linux::__NR_dup, When::Reserved(0)),
    (linux::__NR_dup2, When::EitherReserved),
    (linux::__NR_dup3, When::EitherReserved),
    // With CLONE_CLEAR_SIGHAND, a child would not have the trap's handler, and the child's first
    // trap would kill it. posix_spawn of glibc 2.38 and later makes such children.
    (linux::__NR_clone3, When::Missing),
    (linux::__NR_execve, When::Always),
    (linux::__NR_execveat, When::Always),
    (linux::__NR_close_range, When::Reserved(1)),
    (linux::__NR_setuid, When::Always),
    (linux::__NR_setgid, When::Always),
    (linux::__NR_setreuid, When::Always),
    (linux::__NR_setregid, When::Always),
    (linux::__NR_setresuid, When::Always),
    (linux::__NR_setresgid, When::Always),
    (linux::__NR_setfsuid, When::Always),
    (linux::__NR_setfsgid, When::Always),
    (linux::__NR_setgroups, When::Always),
    (linux::__NR_capset, When::Always),
    (linux::__NR_landlock_restrict_self, When::Always),
    (linux::__NR_unshare, When::Always),
    (linux::__NR_setns, When::Always),
];

/// The calls that also trap if the run has devices: all calls that move a file's bytes. The filter
/// cannot select them by the descriptor's number, because a device may have any number (by a
/// shell's redirection, or from another process).
///
/// The loader's own calls must not trap: the loader runs before there is a handler, so a trap would
/// kill the program. The loader's descriptors have the lowest free numbers, perhaps that of
/// standard input, so these numbers do not identify its calls. The filter recognises the loader's
/// calls by their arguments. (If a program makes calls with such arguments by libc's functions,
/// usring sees them by the symbols.)
const DEVICE_RULES: [(u32, When); 28] = [
    (linux::__NR_read, When::Concerns(FileRule::Reads)),
    (linux::__NR_write, When::Concerns(FileRule::Any)),
    (linux::__NR_openat, When::Concerns(FileRule::Opens(2))),
    (linux::__NR_open, When::Concerns(FileRule::Opens(1))),
    (linux::__NR_creat, When::Concerns(FileRule::Any)),
    (linux::__NR_openat2, When::Concerns(FileRule::Any)),
    (linux::__NR_pread64, When::Concerns(FileRule::ReadsAt)),
    (linux::__NR_pwrite64, When::Concerns(FileRule::Any)),
    (linux::__NR_lseek, When::Concerns(FileRule::SeeksHoles)),
    (linux::__NR_fcntl, When::Concerns(FileRule::SetsFlags)),
    (linux::__NR_readv, When::Concerns(FileRule::ReadsVector)),
    (linux::__NR_writev, When::Concerns(FileRule::WritesVector)),
    (linux::__NR_preadv, When::Concerns(FileRule::Any)),
    (linux::__NR_pwritev, When::Concerns(FileRule::Any)),
    (linux::__NR_preadv2, When::Concerns(FileRule::AnyWithFlags)),
    (linux::__NR_pwritev2, When::Concerns(FileRule::AnyWithFlags)),
    (linux::__NR_fsync, When::Concerns(FileRule::Any)),
    (linux::__NR_fdatasync, When::Concerns(FileRule::Any)),
    (linux::__NR_sync_file_range, When::Concerns(FileRule::Any)),
    (linux::__NR_truncate, When::Concerns(FileRule::Any)),
    (linux::__NR_ftruncate, When::Concerns(FileRule::Any)),
    (linux::__NR_fallocate, When::Concerns(FileRule::Any)),
    (linux::__NR_sendfile, When::Concerns(FileRule::Any)),
    (linux::__NR_splice, When::Concerns(FileRule::AnyWithFlags)),
    (linux::__NR_copy_file_range, When::Concerns(FileRule::AnyWithFlags)),
    (linux::__NR_mmap, When::Concerns(FileRule::Shares)),
    (linux::__NR_ioctl, When::Concerns(FileRule::Clones)),
    // No program makes this call for another purpose. By it, usring tests whether the filter is
    // installed.
    (PROBE, When::Concerns(FileRule::Any)),
];

/// Number of _sysctl(2), which Linux 5.5 and later do not have. By this call, usring tests whether
/// the filter for devices is installed.
pub const PROBE: u32 = linux::__NR__sysctl;

/// Number of get_kernel_syms(2), which Linux 2.6 and later do not have. By this call, usring tests
/// whether the filter of [`install_for_calls`] is installed.
pub const FAULTS_PROBE: u32 = linux::__NR_get_kernel_syms;

/// Whether the replaced functions of libc check for each call whether usring has to serve it. They
/// must do so if a filter lets calls pass that look like the loader's.
pub static SYMBOLS_CHECK: AtomicBool = AtomicBool::new(false);

/// Whether the replaced functions of libc that take or make descriptors check each call. They check
/// it if [`SYMBOLS_CHECK`] is set, or if the program is traced.
pub static DESCRIPTORS_CHECK: AtomicBool = AtomicBool::new(false);

/// Makes the replaced functions of libc check each call.
pub fn check_symbols() {
    SYMBOLS_CHECK.store(true, Ordering::Relaxed);
    DESCRIPTORS_CHECK.store(true, Ordering::Relaxed);
}

const LENGTH: usize = 480;

/// The filter under construction.
pub struct Assembler {
    code: [Instruction; LENGTH],
    length: usize,
}

impl Assembler {
    pub const fn new() -> Self {
        let nothing = Instruction { code: 0, jump_true: 0, jump_false: 0, value: 0 };
        Assembler { code: [nothing; LENGTH], length: 0 }
    }

    pub const fn add(&mut self, code: u16, value: u32, jump_true: usize, jump_false: usize) {
        let (jump_true, jump_false) = (width::byte(jump_true as u64), width::byte(jump_false as u64));
        self.code[self.length] = Instruction { code, jump_true, jump_false, value };
        self.length += 1;
    }

    pub const fn load(&mut self, offset: u32) {
        self.add(LOAD_WORD, offset, 0, 0);
    }

    pub const fn answer(&mut self, value: u32) {
        self.add(RETURN, value, 0, 0);
    }

    /// Begins a filter that answers ALLOW for other architectures and for every marked call. Every
    /// call of usring's, except mmap(2), has the mark in the upper half of its sixth argument. If
    /// that argument is an address, the mark is in the upper half of the first argument, a number
    /// of 32 bits.
    pub const fn begin_with_marks(&mut self) {
        self.load(ARCH);
        self.add(JUMP_EQUAL, ARCHITECTURE, 1, 0);
        self.answer(RET_ALLOW);
        self.load(high(5));
        self.add(JUMP_EQUAL, MARK, 2, 0);
        self.load(high(0));
        self.add(JUMP_EQUAL, MARK, 0, 1);
        self.answer(RET_ALLOW);
    }

    /// Adds code that answers ALLOW if the sixth argument is [`PASS_MARK`], the mark of usring's
    /// own calls, else TRAP.
    const fn trap_unless_marked(&mut self) {
        self.load(low(5));
        self.add(JUMP_EQUAL, width::low(PASS_MARK), 0, 3);
        self.load(high(5));
        self.add(JUMP_EQUAL, (PASS_MARK >> 32) as u32, 0, 1);
        self.answer(RET_ALLOW);
        self.answer(RET_TRAP);
    }

    /// Adds code that answers ALLOW unless the argument, a descriptor, is in the reserved range.
    const fn if_reserved(&mut self, argument: u32) {
        self.load(low(argument));
        self.add(JUMP_GREATER_OR_EQUAL, BASE, 1, 0);
        self.answer(RET_ALLOW);
    }

    const fn rule(&mut self, when: When) {
        match when {
            When::Always => {}
            When::Reserved(argument) => self.if_reserved(argument),
            When::EitherReserved => {
                self.load(low(0));
                self.add(JUMP_GREATER_OR_EQUAL, BASE, 3, 0);
                self.if_reserved(1);
            }
            When::MapsReserved => {
                self.if_reserved(4);
                self.add(JUMP_EQUAL, u32::MAX, 2, 0);
                self.load(low(3));
                self.add(JUMP_BITS, linux::MAP_DENYWRITE | linux::MAP_ANONYMOUS, 0, 1);
                self.answer(RET_ALLOW);
                self.answer(RET_TRAP);
                return;
            }
            When::DuplicatesReserved => {
                self.if_reserved(0);
                self.load(low(1));
                self.add(JUMP_EQUAL, linux::F_DUPFD, 2, 0);
                self.add(JUMP_EQUAL, linux::F_DUPFD_CLOEXEC, 1, 0);
                self.answer(RET_ALLOW);
            }
            When::Blocks => {
                self.load(low(0));
                self.add(JUMP_EQUAL, linux::SIG_UNBLOCK, 4, 0);
                self.load(low(1));
                self.add(JUMP_EQUAL, 0, 0, 3);
                self.load(high(1));
                self.add(JUMP_EQUAL, 0, 0, 1);
                self.answer(RET_ALLOW);
            }
            When::Missing => return self.answer(RET_NO_SUCH_CALL),
            When::Concerns(file) => return self.file_rule(file),
        }
        self.trap_unless_marked();
    }

    /// Adds code that answers ALLOW if the arguments look like those of the loader's calls.
    const fn unless_loader(&mut self, file: FileRule) {
        match file {
            FileRule::Reads => {
                self.load(low(0));
                self.add(JUMP_GREATER_OR_EQUAL, BASE, 4, 0);
                self.load(low(2));
                self.add(JUMP_EQUAL, LOADER_READS[0], 1, 0);
                self.add(JUMP_EQUAL, LOADER_READS[1], 0, 1);
                self.answer(RET_ALLOW);
            }
            FileRule::ReadsAt => {
                self.load(low(0));
                self.add(JUMP_GREATER_OR_EQUAL, BASE, 3, 0);
                self.load(low(2));
                self.add(JUMP_BITS, SECTOR - 1, 0, 1);
                self.answer(RET_ALLOW);
            }
            FileRule::ReadsVector => {
                self.load(low(0));
                self.add(JUMP_EQUAL, 0, 4, 0);
                self.add(JUMP_GREATER_OR_EQUAL, BASE, 3, 0);
                self.load(low(2));
                self.add(JUMP_EQUAL, TWO, 0, 1);
                self.answer(RET_ALLOW);
            }
            FileRule::WritesVector => {
                self.load(low(0));
                self.add(JUMP_EQUAL, STANDARD_ERROR, 0, 1);
                self.answer(RET_ALLOW);
            }
            FileRule::Opens(argument) => {
                self.load(low(argument));
                self.add(AND, !linux::O_LARGEFILE & !LARGE_FILE, 0, 0);
                self.add(JUMP_EQUAL, linux::O_RDONLY | linux::O_CLOEXEC, 0, 1);
                self.answer(RET_ALLOW);
            }
            FileRule::Shares => {
                self.load(low(3));
                self.add(JUMP_BITS, linux::MAP_DENYWRITE | linux::MAP_ANONYMOUS, 1, 0);
                self.add(JUMP_BITS, linux::MAP_SHARED, 1, 0);
                self.answer(RET_ALLOW);
            }
            _ => {}
        }
    }

    const fn file_rule(&mut self, file: FileRule) {
        match file {
            FileRule::Any => {}
            FileRule::AnyWithFlags => {
                self.load(high(5));
                self.add(JUMP_EQUAL, (PASS_MARK >> 32) as u32, 0, 1);
                self.answer(RET_ALLOW);
                self.answer(RET_TRAP);
                return;
            }
            FileRule::Reads
            | FileRule::ReadsAt
            | FileRule::ReadsVector
            | FileRule::WritesVector
            | FileRule::Opens(_) => self.unless_loader(file),
            FileRule::SeeksHoles => {
                self.load(low(2));
                self.add(JUMP_GREATER_OR_EQUAL, linux::SEEK_DATA, 1, 0);
                self.answer(RET_ALLOW);
            }
            FileRule::SetsFlags => {
                self.load(low(1));
                self.add(JUMP_EQUAL, linux::F_SETFL, 1, 0);
                self.answer(RET_ALLOW);
            }
            FileRule::Shares => {
                self.unless_loader(file);
                self.answer(RET_TRAP);
                return;
            }
            FileRule::Clones => {
                self.load(low(1));
                self.add(JUMP_EQUAL, FICLONE, 3, 0);
                self.add(JUMP_EQUAL, FICLONERANGE, 2, 0);
                self.add(JUMP_EQUAL, FIEMAP, 1, 0);
                self.answer(RET_ALLOW);
            }
        }
        self.trap_unless_marked();
    }
}

/// Assembles a filter, at compile time.
const fn assemble(rules: &[(u32, When)]) -> Assembler {
    let mut filter = Assembler::new();
    filter.load(ARCH);
    filter.add(JUMP_EQUAL, ARCHITECTURE, 1, 0);
    filter.answer(RET_ALLOW);
    filter.load(NUMBER);
    let mut rule = 0;
    while rule < rules.len() {
        let (number, when) = rules[rule];
        // If the call's number differs from the rule's, this jumps over the rule's code. The
        // distance is filled in below.
        let jump = filter.length;
        filter.add(JUMP_EQUAL, number, 0, 0);
        filter.rule(when);
        filter.code[jump].jump_false = width::byte((filter.length - jump - 1) as u64);
        rule += 1;
    }
    filter.answer(RET_ALLOW);
    filter
}

/// Returns the condition under which the filter for faults traps a call. `None`: this filter does
/// not trap the call. Either the main filter always traps it already, or it is close(2): the
/// loader's calls of close(2) look like the program's.
fn rule_for_fault(number: u32) -> Option<When> {
    match number {
        linux::__NR_close => None,
        _ if RULES.iter().any(|(known, when)| *known == number && matches!(when, When::Always)) => None,
        _ => Some(DEVICE_RULES.iter().find(|(known, _)| *known == number).map_or(
            When::Concerns(FileRule::Any),
            |(_, when)| match when {
                // The filter for devices traps only some calls with these numbers. The filter for
                // faults has to trap all of them.
                When::Concerns(FileRule::SeeksHoles | FileRule::SetsFlags | FileRule::AnyWithFlags) => {
                    When::Concerns(FileRule::Any)
                }
                other => *other,
            },
        )),
    }
}

/// Returns whether a filter lets some calls with this number pass, because they look like calls of
/// the loader. If the program makes such a call by a function of libc, usring sees it by that
/// function's symbol.
pub fn spares_loader(number: u32) -> bool {
    !matches!(rule_for_fault(number), Some(When::Concerns(FileRule::Any) | When::Always))
}

fn numbers(calls: &[u64; 8]) -> impl Iterator<Item = u32> {
    (0..512).filter(|number| calls[*number as usize / 64] & 1 << (number % 64) != 0)
}

/// Returns whether the filter for faults has to trap any of the calls in `calls`.
fn is_trapped_by_filter(calls: &[u64; 8]) -> bool {
    numbers(calls).any(|number| rule_for_fault(number).is_some())
}

/// The answer to [`FAULTS_PROBE`] if the filter of [`install_for_calls`] is installed.
pub const CALLS_PROBE_ANSWER: u64 = 0x7573_0003;

/// Returns a hash of the calls (FNV-1a). It is the argument of the call that tests whether the
/// filter for exactly these calls is installed. Filters for other calls have other hashes.
fn probe_argument(calls: &[u64; 8]) -> u32 {
    let bytes = calls.iter().flat_map(|word| word.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns whether the filter for exactly these calls is installed, and its traps reach usring.
fn is_installed_for(calls: &[u64; 8]) -> bool {
    let arguments = [u64::from(probe_argument(calls)), 0, 0, 0, 0, 0];
    // SAFETY: the kernel has no such call, and usring reads no memory for it.
    unsafe { usring_sys::syscall::syscall6(FAULTS_PROBE, arguments) == CALLS_PROBE_ANSWER }
}

/// Makes these calls trap, unless a filter for exactly these calls is installed already.
/// `unreached`: the error if the kernel accepts the filter but the filter has no effect.
///
/// Errors: a message of one sentence.
pub fn install_for_calls(calls: &[u64; 8], unreached: &'static str) -> Result<(), &'static str> {
    if !is_trapped_by_filter(calls) || is_installed_for(calls) {
        return Ok(());
    }
    install_filter_for(calls, probe_argument(calls))
        .map_err(|_| "the kernel refuses the seccomp filter that traps the program's calls")?;
    if is_installed_for(calls) { Ok(()) } else { Err(unreached) }
}

/// Installs the filter for calls that may get faults, for the whole process and all its children.
/// `probe`: the argument of the call that tests whether this filter is installed.
fn install_filter_for(calls: &[u64; 8], probe: u32) -> Result<(), Errno> {
    let mut filter = Box::new(Assembler::new());
    filter.begin_with_marks();
    filter.load(NUMBER);
    filter.add(JUMP_EQUAL, FAULTS_PROBE, 0, 4);
    filter.load(low(0));
    filter.add(JUMP_EQUAL, probe, 0, 1);
    filter.answer(RET_TRAP);
    filter.answer(RET_ALLOW);
    for (number, when) in numbers(calls).filter_map(|number| Some((number, rule_for_fault(number)?))) {
        let jump = filter.length;
        filter.add(JUMP_EQUAL, number, 0, 0);
        if let When::Concerns(file) = when {
            filter.unless_loader(file);
        }
        filter.answer(RET_TRAP);
        filter.code[jump].jump_false = width::byte((filter.length - jump - 1) as u64);
    }
    filter.answer(RET_ALLOW);
    install_one(&filter)
}

static FILTER: Assembler = assemble(&RULES);
static DEVICE_FILTER: Assembler = assemble(&DEVICE_RULES);

const PR_SET_NO_NEW_PRIVS: u64 = 38;
const SECCOMP_SET_MODE_FILTER: u64 = 1;
/// Flag: the filter applies to all threads that exist.
const SECCOMP_FILTER_FLAG_TSYNC: u64 = 1;
/// Flag: the kernel does not protect the filtered threads against speculative execution. On older
/// kernels, that protection is the default, and slows down the threads' branches and stores. This
/// filter guards no secrets, so its threads need no protection.
const SECCOMP_FILTER_FLAG_SPEC_ALLOW: u64 = 4;

/// Installs the filter for the whole process and all its children.
pub fn install() -> Result<(), Errno> {
    install_one(&FILTER)
}

/// Installs the filter for calls on devices, for the whole process and all its children.
pub fn install_for_devices() -> Result<(), Errno> {
    install_one(&DEVICE_FILTER)
}

pub fn install_one(filter: &Assembler) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_prctl, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0]).run()?;
    let program = Program { length: width::short(filter.length as u64), instructions: filter.code.as_ptr() };
    let flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let arguments = [SECCOMP_SET_MODE_FILTER, flags, &raw const program as u64, 0, 0];
    match SystemCall::new(linux::__NR_seccomp, arguments).run()? {
        0 => Ok(()),
        // The kernel answers with the id of a thread for which the filter could not be installed.
        _ => Err(Errno::ESRCH),
    }
}
