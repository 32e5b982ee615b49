//! `IOSQE_*`: the SQE flags common to all opcodes (io_uring_enter(2)).

pub const FIXED_FILE: u8 = 1 << 0;
pub const IO_DRAIN: u8 = 1 << 1;
pub const IO_LINK: u8 = 1 << 2;
pub const IO_HARDLINK: u8 = 1 << 3;
pub const ASYNC: u8 = 1 << 4;
pub const BUFFER_SELECT: u8 = 1 << 5;
pub const CQE_SKIP_SUCCESS: u8 = 1 << 6;
/// All defined SQE flags. An SQE with any other bit is refused with `EINVAL`.
pub const ALL: u8 = 0x7f;
