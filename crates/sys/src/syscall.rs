//! The bare `syscall` instruction, and the one mark that carries our own calls
//! past our own trap filter.

use crate::perturbation::perturb_call;
use crate::{Errno, kept_memory};
use core::arch::asm;

/// Sixth argument of a call that must not be caught by usring's filter. Most
/// calls that the filters trap take five arguments or fewer, so the kernel never
/// looks at this register; for others see [`PASS_MARK_ABOVE_FLAGS`], and mmap
/// carries `MAP_DENYWRITE`, which Linux ignores.
pub const PASS_MARK: u64 = 0x7573_7269_6e67_3031;

/// The same for calls whose sixth argument is 32 bits of flags (preadv2(2),
/// copy_file_range(2) and the like): the kernel drops what stands above them.
pub const PASS_MARK_ABOVE_FLAGS: u64 = PASS_MARK & !0xffff_ffff;

/// An address that the program handed in: a number until
/// [`crate::user_memory`] or a system call has used it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct UserAddress(pub u64);

/// Proof that somebody vouches for the addresses in a ring's requests: they
/// may name any memory of the process, as in a system call.
#[derive(Clone, Copy, Debug)]
pub struct AddressTrust(());

impl AddressTrust {
    /// # Safety
    /// Every address that the program puts into requests of the rings made
    /// with this trust is its own to have read or written, for as long as the
    /// request is in flight.
    pub unsafe fn new() -> Self {
        AddressTrust(())
    }
}

impl UserAddress {
    pub const NULL: UserAddress = UserAddress(0);

    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` further on; wraps, as the kernel's own arithmetic
    /// does before it checks.
    pub const fn offset(self, bytes: u64) -> UserAddress {
        UserAddress(self.0.wrapping_add(bytes))
    }
}

/// A system call as a value: what an operation would ask of the kernel, run in
/// place or handed to a worker.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SystemCall {
    pub number: u32,
    pub arguments: [u64; 6],
}

impl SystemCall {
    /// A call with up to five arguments; it carries the mark.
    pub const fn new(number: u32, arguments: [u64; 5]) -> Self {
        let [a, b, c, d, e] = arguments;
        SystemCall { number, arguments: [a, b, c, d, e, PASS_MARK] }
    }

    /// A call that uses its sixth argument.
    pub const fn with_six(number: u32, arguments: [u64; 6]) -> Self {
        SystemCall { number, arguments }
    }

    /// Runs it here, as often as a signal interrupts it.
    #[inline]
    pub fn run(&self) -> Result<u64, Errno> {
        loop {
            match self.run_once() {
                Err(Errno::EINTR) => continue,
                other => return other,
            }
        }
    }

    /// Runs it here, once.
    #[inline]
    pub fn run_once(&self) -> Result<u64, Errno> {
        // SAFETY: 1. The arguments are the program's or ours and the kernel
        // checks each of them; see the crate's head on the program's numbers.
        // 2. No call that changes this thread's control flow or stack (clone,
        // rt_sigreturn, exit) is ever built as a `SystemCall`.
        let run = |call: &SystemCall| unsafe { syscall6(call.number, call.arguments) };
        perturb_call();
        let answer = kept_memory::during(self, run);
        perturb_call();
        check(answer)
    }
}

/// Turns the kernel's answer into a result: −4095…−1 are errors.
#[inline]
pub fn check(answer: u64) -> Result<u64, Errno> {
    if answer > -4096i64 as u64 { Err(Errno::new((answer as i64).wrapping_neg() as u32)) } else { Ok(answer) }
}

/// The instruction itself.
///
/// # Safety
/// As for the call that `number` names: pointers among `arguments` must be
/// valid for what the kernel does with them.
#[inline(always)]
pub unsafe fn syscall6(number: u32, arguments: [u64; 6]) -> u64 {
    let answer: u64;
    // SAFETY: 1. The caller vouches for the arguments. 2. The clobbers are
    // those of the x86-64 system call convention: rcx and r11.
    unsafe {
        asm!(
            "syscall",
            // The kernel keeps r9, and libc's own calls of fewer arguments do
            // not set it: the mark must not go along into one of them.
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
