//! The kernel's layout of a signal frame: byte offsets in a `ucontext_t`, and values of `si_code`.
//! The offset of the instruction pointer is in [`usring_sys::wait`].

pub const ALTERNATE_STACK: usize = 16;
pub const R8: usize = 40;
pub const R9: usize = 48;
pub const R10: usize = 56;
pub const RDI: usize = 104;
pub const RSI: usize = 112;
pub const FRAME_POINTER: usize = 120;
pub const RDX: usize = 136;
pub const RAX: usize = 144;
pub const RCX: usize = 152;
pub const STACK_POINTER: usize = 160;
/// Offset of the pointer to the state of the floating-point and vector registers.
pub const REGISTER_STATE: usize = 224;
pub const MASK: usize = 296;
/// Bytes of a `ucontext_t`.
pub const SIZE: usize = 304;

/// `si_code` of a call trapped by seccomp (SYS_SECCOMP).
pub const TRAPPED: i32 = 1;
