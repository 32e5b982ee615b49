//! A system call of the program: the form in which the entry points pass it to [`crate::dispatch`],
//! and the outcome that `dispatch` returns.

use usring_sys::syscall::{PASS_MARK, PASS_MARK_ABOVE_FLAGS};
use usring_sys::width;
use usring_uapi::general as linux;

/// A system call of the program on its way through an entry point. The entry point keeps it on the
/// program's stack. When the call is done, the entry point restores `arguments` to the program's
/// registers.
#[repr(C)]
pub struct Call {
    pub number: u64,
    /// The arguments, from rdi, rsi, rdx, r10, r8 and r9.
    pub arguments: [u64; 6],
    /// The address at which the program continues: after its `syscall` instruction, unless
    /// [`Call::repeat_at_site`] changes it.
    pub return_address: u64,
    /// 1 if the call arrived by the trap, which means that its call site is not rewritten yet;
    /// otherwise 0.
    pub trapped: u64,
    /// Address of the entry point's frame. The frame holds the program's rbp, and the address at
    /// which the program continues.
    pub frame: u64,
    pub forward: Forward,
    /// Space in which the entry point stores the outcome that `dispatch` returned.
    pub outcome: Outcome,
}

/// A system call that the entry point makes in place of the program's ([`Outcome::FORWARD`]).
#[repr(C)]
pub struct Forward {
    pub number: u64,
    pub arguments: [u64; 6],
    /// Address of memory to which `arguments` may point. The memory outlives the dispatch.
    pub scratch: u64,
}

/// The result of a dispatch. Returned in rax and rdx.
#[repr(C)]
pub struct Outcome {
    pub answer: u64,
    pub kind: u64,
}

impl Outcome {
    /// The call is done. `answer` is its result for the program.
    pub const DONE: u64 = 0;
    /// The entry point makes the call in `Call::forward`, and the kernel answers it.
    pub const FORWARD: u64 = 1;
    /// The entry point first delivers a signal. Then it dispatches the call again.
    pub const AGAIN: u64 = 2;
    /// The entry point makes the call in `Call::forward`. With the kernel's answer,
    /// [`crate::dispatch::after`] releases the memory that was pinned for the call, and applies an
    /// injected fault.
    pub const PINNED: u64 = 3;
}

/// Bytes of a [`Call`] on a stack.
pub const CALL_SIZE: usize = size_of::<Call>().next_multiple_of(16);

/// Bytes of the `syscall` instruction.
const SYSCALL_LENGTH: u64 = 2;

impl Call {
    /// Lets the kernel answer the call unchanged. The call gets the mark by which usring's seccomp
    /// filter recognises usring's calls, so the filter lets it pass.
    pub fn pass(&mut self) -> Outcome {
        let arguments = self.marked();
        self.forward_to(self.number, arguments)
    }

    /// Returns the arguments with the mark by which usring's seccomp filter recognises usring's
    /// calls. The filter lets such a call pass.
    pub fn marked(&self) -> [u64; 6] {
        let mut arguments = self.arguments;
        match width::low(self.number) {
            linux::__NR_mmap => arguments[3] |= u64::from(linux::MAP_DENYWRITE),
            linux::__NR_preadv2 | linux::__NR_pwritev2 | linux::__NR_splice | linux::__NR_copy_file_range => {
                arguments[5] = arguments[5] & 0xffff_ffff | PASS_MARK_ABOVE_FLAGS;
            }
            // These calls trap only if memory is swapped. The filter for swapped memory compares
            // only the upper half of the mark. So the mark goes to the upper half of an argument of
            // which Linux reads only the lower 32 bits. In these calls, this is the sixth argument.
            linux::__NR_futex | linux::__NR_futex_wait | linux::__NR_sendto | linux::__NR_mbind => {
                arguments[5] = arguments[5] & 0xffff_ffff | PASS_MARK_ABOVE_FLAGS;
            }
            // For these calls, Linux reads only the lower 32 bits of the first argument.
            linux::__NR_recvfrom
            | linux::__NR_pselect6
            | linux::__NR_epoll_pwait
            | linux::__NR_epoll_pwait2
            | linux::__NR_process_vm_readv
            | linux::__NR_process_vm_writev
            | linux::__NR_move_pages => {
                arguments[0] = arguments[0] & 0xffff_ffff | PASS_MARK_ABOVE_FLAGS;
            }
            _ => arguments[5] = PASS_MARK,
        }
        arguments
    }

    /// Makes the program repeat the call at its own `syscall` instruction, where the kernel answers
    /// it. Calls that return twice on one stack need this. The call must have trapped. The caller
    /// must have marked the arguments, so that usring's filter lets the repeated call pass.
    pub fn repeat_at_site(&mut self) -> Outcome {
        self.return_address -= SYSCALL_LENGTH;
        Outcome { answer: self.number, kind: Outcome::DONE }
    }

    /// Lets the kernel answer another system call than the program's: the call `number` with
    /// `arguments`. The arguments must have the mark that [`Call::marked`] adds, so that usring's
    /// filter lets the call pass.
    pub fn forward_to(&mut self, number: u64, arguments: [u64; 6]) -> Outcome {
        self.forward.number = number;
        self.forward.arguments = arguments;
        Outcome { answer: 0, kind: Outcome::FORWARD }
    }
}

impl<T: Into<u64>> From<Result<T, usring_sys::Errno>> for Outcome {
    fn from(result: Result<T, usring_sys::Errno>) -> Outcome {
        let answer = match result {
            Ok(value) => value.into(),
            Err(error) => i64::from(error.negative()).cast_unsigned(),
        };
        Outcome { answer, kind: Outcome::DONE }
    }
}
