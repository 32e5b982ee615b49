//! The bare `syscall` instruction, and the mark that lets usring's own calls pass usring's seccomp
//! filter.

use crate::perturbation::perturb_call;
use crate::{Errno, call_hook, pinned_memory, width};
use core::arch::asm;

/// The pass mark: the sixth argument of usring's own system calls, by which usring's seccomp filter
/// lets them pass. Most calls that the filter traps take at most five arguments, so the kernel
/// never reads the sixth. Calls that take six use [`PASS_MARK_ABOVE_FLAGS`]. mmap(2) carries
/// `MAP_DENYWRITE` instead, which Linux ignores.
pub const PASS_MARK: u64 = 0x7573_7269_6e67_3031;

/// [`PASS_MARK`] for calls whose sixth argument is 32 bits of flags (preadv2(2), copy_file_range(2)
/// and the like). The kernel ignores the bits above the flags.
pub const PASS_MARK_ABOVE_FLAGS: u64 = PASS_MARK & !0xffff_ffff;

/// An address from the program. It is only a number until [`crate::user_memory`] or a system call
/// uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct UserAddress(pub u64);

/// Proof that the creator of a ring vouches for the addresses in its requests. These addresses may
/// name any memory of the process, as in a system call.
#[derive(Clone, Copy, Debug)]
pub struct AddressTrust(());

impl AddressTrust {
    /// # Safety
    /// The program puts addresses into requests of rings that are made with this value.
    /// Each address must name memory of the program that the request may read or write, for as long
    /// as the request is in flight.
    pub unsafe fn new() -> Self {
        AddressTrust(())
    }
}

impl UserAddress {
    pub const NULL: UserAddress = UserAddress(0);

    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the address that is `bytes` higher. The sum wraps around, as the kernel's sum does
    /// before the kernel checks the address.
    pub const fn offset(self, bytes: u64) -> UserAddress {
        UserAddress(self.0.wrapping_add(bytes))
    }
}

/// A system call as a value: number and arguments. It can run on the calling thread or on a worker.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SystemCall {
    pub number: u32,
    pub arguments: [u64; 6],
}

impl SystemCall {
    /// Builds a system call with up to five arguments. The sixth argument is [`PASS_MARK`], by
    /// which the call passes usring's seccomp filter.
    pub const fn new(number: u32, arguments: [u64; 5]) -> Self {
        let [a, b, c, d, e] = arguments;
        SystemCall { number, arguments: [a, b, c, d, e, PASS_MARK] }
    }

    /// Builds a system call with six arguments, without a pass mark.
    pub const fn with_six(number: u32, arguments: [u64; 6]) -> Self {
        SystemCall { number, arguments }
    }

    /// Makes the system call on this thread, and repeats it after each `EINTR`.
    #[inline]
    pub fn run(&self) -> Result<u64, Errno> {
        loop {
            match self.run_once() {
                Err(Errno::EINTR) => continue,
                other => return other,
            }
        }
    }

    /// Makes the system call once, on this thread.
    #[inline]
    pub fn run_once(&self) -> Result<u64, Errno> {
        // SAFETY: 1. The arguments are the program's or usring's, and the kernel checks each of
        // them (see "The program's numbers" at the head of the crate). 2. No call that changes this
        // thread's control flow or stack (clone, rt_sigreturn, exit) is ever built as a
        // `SystemCall`.
        let run = |call: &SystemCall| unsafe { syscall6(call.number, call.arguments) };
        perturb_call();
        let answer = call_hook::call_through(self, |call| pinned_memory::call_pinned(call, run));
        perturb_call();
        check(answer)
    }

    /// Makes the system call on this thread, without the recorder's hook ([`call_hook`]), and
    /// repeats it after each `EINTR`.
    pub fn run_unhooked(&self) -> Result<u64, Errno> {
        loop {
            // SAFETY: the reasons are those in `run_once`.
            match check(unsafe { syscall6(self.number, self.arguments) }) {
                Err(Errno::EINTR) => continue,
                other => return other,
            }
        }
    }
}

/// Converts the kernel's answer into a result: −4095…−1 are errors.
#[inline]
pub fn check(answer: u64) -> Result<u64, Errno> {
    if answer > (-4096i64).cast_unsigned() { Err(Errno::new(width::low(answer.wrapping_neg()))) } else { Ok(answer) }
}

/// Executes the `syscall` instruction.
///
/// # Safety
/// The requirements are those of the system call `number`. Pointers among `arguments` must be valid
/// for the use that the kernel makes of them.
#[inline(always)]
pub unsafe fn syscall6(number: u32, arguments: [u64; 6]) -> u64 {
    let answer: u64;
    // SAFETY: 1. The caller vouches for the arguments. 2. rcx and r11, which the kernel overwrites,
    // are declared as clobbered.
    unsafe {
        asm!(
            "syscall",
            // Clear r9, which holds the pass mark. The kernel preserves r9, and libc sets it only
            // for calls with six arguments. So a later call of libc would otherwise carry the pass
            // mark, too.
            "xor r9d, r9d",
            inlateout("rax") u64::from(number) => answer,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            inlateout("r9") arguments[5] => _,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}
