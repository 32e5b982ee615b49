//! Functions that the kernel never had, for programs that are linked to this
//! library (`include/usring.h`): how each comes to `dispatch`, as a system call
//! does, by a number of our own that no system call can have; and polled AIO's
//! io_setup2, whose own number went to another call later, so that none is
//! trapped. Those of swap are in `swap_calls`.

/// Defines a function that goes through the door by this number, with five
/// arguments at most.
macro_rules! exported {
    ($(#[$attribute:meta])* $name:ident, $number:expr) => {
        $(#[$attribute])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "usring_door")]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "sub rsp, {size}",
                "mov qword ptr [rsp], {number}",
                "mov [rsp + 8], rdi",
                "mov [rsp + 16], rsi",
                "mov [rsp + 24], rdx",
                "mov [rsp + 32], rcx",
                "mov [rsp + 40], r8",
                "mov qword ptr [rsp + 48], 0",
                "mov qword ptr [rsp + {return_address}], 0",
                "mov qword ptr [rsp + {trapped}], 0",
                "mov rdi, rsp",
                "call usring_run_call",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_same_value rbp",
                "ret",
                ".cfi_endproc",
                size = const $crate::doors::door::CALL_SIZE,
                number = const $number,
                return_address = const core::mem::offset_of!($crate::doors::door::Call, return_address),
                trapped = const core::mem::offset_of!($crate::doors::door::Call, trapped),
            )
        }
    };
}
pub(crate) use exported;

/// Stands for io_setup2 in a [`crate::doors::door::Call`].
pub const SETUP2: u32 = 0x7573_0001;

exported! {
    /// `int io_setup2(unsigned nr_events, unsigned flags, void *sq_ring, void *cq_ring,
    /// io_context_t *ctx)`: answers as libaio's functions do, 0 or a negative errno.
    ///
    /// # Safety
    /// What the program puts into the context's iocbs is its own to have read or
    /// written, as it is with io_setup(2).
    io_setup2, SETUP2
}
