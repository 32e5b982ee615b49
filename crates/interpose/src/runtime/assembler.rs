//! Pieces of assembler that several sections share. The code that uses a piece supplies its
//! operands.

/// Calls rt_sigprocmask(2) with PASS_MARK, so that usring's filter lets the call pass. rsi: the
/// address of the set. If rdx is not 0, the previous mask is stored there. `$how`: the name, in
/// braces, of the operand that says how the set changes the mask, such as `"{set_mask}"`. Further
/// operands: `mark`, `rt_sigprocmask`. The mark stays in r9.
macro_rules! change_mask {
    ($how:literal) => {
        concat!("mov edi, ", $how, "\nmov r10d, 8\nmov r9, {mark}\nmov eax, {rt_sigprocmask}\nsyscall\n")
    };
}
pub(crate) use change_mask;

/// Delivers this thread's deferred signals. Makes only one comparison if no thread of the process
/// has deferred signals. Uses the label 2. Operand: `deferred`.
macro_rules! deliver_deferred {
    () => {
        "cmp dword ptr [rip + {deferred}], 0\nje 2f\ncall usring_deliver_deferred\n2:\n"
    };
}
pub(crate) use deliver_deferred;

/// Begins a frame with rbp, and its unwind information.
macro_rules! begin_frame {
    () => {
        concat!(
            "push rbp\n",
            ".cfi_def_cfa_offset 16\n",
            ".cfi_offset rbp, -16\n",
            "mov rbp, rsp\n",
            ".cfi_def_cfa_register rbp\n",
        )
    };
}
pub(crate) use begin_frame;

/// Loads the registers for an mmap(2) of anonymous memory. On entry, rsi is the length of that
/// memory. Operands: `protection`, `flags`, `mmap`.
macro_rules! load_mmap {
    () => {
        concat!(
            "xor edi, edi\n",
            "mov edx, {protection}\n",
            "mov r10d, {flags}\n",
            "mov r8, -1\n",
            "xor r9d, r9d\n",
            "mov eax, {mmap}\n",
        )
    };
}
pub(crate) use load_mmap;

/// Waits by wait4(2) for the child whose process id is in edi. `$options`: the names, in braces, of
/// the operands for wait4's options, such as `"{wait_all}"`. Further operand: `wait4`.
macro_rules! wait_for_child {
    ($options:literal) => {
        concat!("xor esi, esi\nmov edx, ", $options, "\nxor r10d, r10d\nmov eax, {wait4}\nsyscall\n")
    };
}
pub(crate) use wait_for_child;
