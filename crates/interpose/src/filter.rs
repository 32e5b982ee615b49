//! The seccomp filter: which system calls trap.
//!
//! It answers TRAP for our calls and ALLOW for everything else. TRAP wins over
//! the ERRNO that a container's filter gives for io_uring, so nothing has to be
//! unblocked. Filters are inherited by exec and cannot be taken off, so there
//! is one, the same for every process and every build: no address, no process
//! id in it, and who finds it in place installs none.
//!
//! Calls of our own carry a mark in their sixth argument, which no call trapped
//! here has a use for; mmap has one, and carries MAP_DENYWRITE (a flag that
//! Linux ignores) instead.

use usring_sys::descriptor::RESERVED_BASE;
use usring_sys::syscall::PASS_MARK;
use usring_sys::{Errno, SystemCall};
use usring_uapi::general as linux;

/// What our traps carry (SECCOMP_RET_DATA), so that they are told apart from
/// another filter's: "us".
pub const TAG: i32 = 0x7573;

const RET_TRAP: u32 = 0x0003_0000 | TAG as u32;
const RET_ALLOW: u32 = 0x7fff_0000;

/// AUDIT_ARCH_X86_64.
const ARCHITECTURE: u32 = 0xc000_003e;

/// `struct sock_filter`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Instruction {
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
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;
const JUMP_BITS: u16 = 0x45;

// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}
const fn high(argument: u32) -> u32 {
    low(argument) + 4
}

const BASE: u32 = RESERVED_BASE as u32;

/// What makes a call trap, beyond its number.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// The argument, a descriptor, is in the reserved range; as an unsigned
    /// number, so −1 is.
    Reserved(u32),
    /// Either of the first two is.
    EitherReserved,
    /// mmap: the fifth argument is, and is not −1, and the flags carry no mark.
    MapsReserved,
    /// fcntl: the first argument is, and the command duplicates.
    DuplicatesReserved,
    /// rt_sigprocmask: there is a set, and it may block something.
    Blocks,
}

/// In the order in which the filter looks. The kernel remembers which numbers
/// are allowed whatever their arguments and does not run the filter for them.
const RULES: [(u32, When); 15] = [
    (linux::__NR_mmap, When::MapsReserved),
    (linux::__NR_close, When::Reserved(0)),
    (linux::__NR_fcntl, When::DuplicatesReserved),
    (linux::__NR_epoll_ctl, When::Reserved(2)),
    (linux::__NR_rt_sigprocmask, When::Blocks),
    (linux::__NR_rt_sigaction, When::Always),
    (linux::__NR_io_uring_enter, When::Always),
    (linux::__NR_io_uring_setup, When::Always),
    (linux::__NR_io_uring_register, When::Always),
    (linux::__NR_dup, When::Reserved(0)),
    (linux::__NR_dup2, When::EitherReserved),
    (linux::__NR_dup3, When::EitherReserved),
    (linux::__NR_execve, When::Always),
    (linux::__NR_execveat, When::Always),
    (linux::__NR_close_range, When::Reserved(1)),
];

const LENGTH: usize = 160;

/// The filter under construction.
struct Assembler {
    code: [Instruction; LENGTH],
    length: usize,
}

impl Assembler {
    const fn add(&mut self, code: u16, value: u32, jump_true: usize, jump_false: usize) {
        let (jump_true, jump_false) = (jump_true as u8, jump_false as u8);
        self.code[self.length] = Instruction { code, jump_true, jump_false, value };
        self.length += 1;
    }

    const fn load(&mut self, offset: u32) {
        self.add(LOAD_WORD, offset, 0, 0);
    }

    const fn answer(&mut self, value: u32) {
        self.add(RETURN, value, 0, 0);
    }

    /// ALLOW if the last argument carries the mark, else TRAP.
    const fn trap_unless_marked(&mut self) {
        self.load(low(5));
        self.add(JUMP_EQUAL, PASS_MARK as u32, 0, 3);
        self.load(high(5));
        self.add(JUMP_EQUAL, (PASS_MARK >> 32) as u32, 0, 1);
        self.answer(RET_ALLOW);
        self.answer(RET_TRAP);
    }

    /// Goes on if the argument is in the reserved range, else ALLOW.
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
                self.add(JUMP_BITS, linux::MAP_DENYWRITE, 0, 1);
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
        }
        self.trap_unless_marked();
    }
}

/// The filter, assembled at compile time.
const fn assemble() -> Assembler {
    let nothing = Instruction { code: 0, jump_true: 0, jump_false: 0, value: 0 };
    let mut filter = Assembler { code: [nothing; LENGTH], length: 0 };
    filter.load(ARCH);
    filter.add(JUMP_EQUAL, ARCHITECTURE, 1, 0);
    filter.answer(RET_ALLOW);
    filter.load(NUMBER);
    let mut rule = 0;
    while rule < RULES.len() {
        let (number, when) = RULES[rule];
        // Over the rule's code, whose length is known once it is written.
        let jump = filter.length;
        filter.add(JUMP_EQUAL, number, 0, 0);
        filter.rule(when);
        filter.code[jump].jump_false = (filter.length - jump - 1) as u8;
        rule += 1;
    }
    filter.answer(RET_ALLOW);
    filter
}

static FILTER: Assembler = assemble();

const PR_SET_NO_NEW_PRIVS: u64 = 38;
const SECCOMP_SET_MODE_FILTER: u64 = 1;
/// All threads, should there be some already.
const SECCOMP_FILTER_FLAG_TSYNC: u64 = 1;
/// Older kernels slow a filtered thread's branches and stores down unless told
/// not to; the filter protects nothing that they could betray.
const SECCOMP_FILTER_FLAG_SPEC_ALLOW: u64 = 4;

/// Installs the filter for the whole process and everything it will start.
pub fn install() -> Result<(), Errno> {
    SystemCall::new(linux::__NR_prctl, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0]).run()?;
    let program = Program { length: FILTER.length as u16, instructions: FILTER.code.as_ptr() };
    let flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let arguments = [SECCOMP_SET_MODE_FILTER, flags, &raw const program as u64, 0, 0];
    match SystemCall::new(linux::__NR_seccomp, arguments).run()? {
        0 => Ok(()),
        // The id of a thread that cannot be brought along.
        _ => Err(Errno::ESRCH),
    }
}
