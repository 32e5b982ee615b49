//! The entries of an io_uring's two rings, SQE and CQE, without nested unions.
//!
//! The kernel's header declares the SQE as nested unions. Here each 32- or 64-bit slot has one
//! name. The meaning of a slot depends on the opcode: see the files of `engine::op`, one for each
//! family of opcodes.

use core::mem::{offset_of, size_of};
use linux_raw_sys::io_uring as raw;

/// Submission queue entry (`struct io_uring_sqe`), 64 bytes. With `IORING_SETUP_SQE128` an entry
/// occupies two slots of this size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sqe {
    pub opcode: u8,
    /// `IOSQE_*`, see [`crate::sqe_flags`].
    pub flags: u8,
    /// I/O priority. For accept, send and receive: flags of these opcodes.
    pub ioprio: u16,
    pub fd: i32,
    /// File offset, `addr2`, or another field that depends on the opcode.
    pub off: u64,
    pub addr: u64,
    pub len: u32,
    /// Flags of the opcode: `rw_flags`, `fsync_flags`, `poll32_events`, `open_flags`…
    pub op_flags: u32,
    pub user_data: u64,
    /// `buf_index` (a registered buffer) or `buf_group` (a group of provided buffers).
    pub buf_index: u16,
    pub personality: u16,
    /// `splice_fd_in`, `file_index`, `optlen` or `addr_len`, depending on the opcode.
    pub file_index: u32,
    pub addr3: u64,
    pub pad2: u64,
}

/// Completion queue entry (`struct io_uring_cqe`), 16 bytes. With `IORING_SETUP_CQE32` another 16
/// bytes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cqe {
    pub user_data: u64,
    pub res: i32,
    /// `IORING_CQE_F_*`. With `IORING_CQE_F_BUFFER` the upper 16 bits hold the buffer ID.
    pub flags: u32,
}

impl Cqe {
    /// Returns the CQE as the two 64-bit words that it occupies in memory.
    #[inline(always)]
    pub const fn words(self) -> [u64; 2] {
        const { assert!(cfg!(target_endian = "little")) };
        [self.user_data, (self.flags as u64) << 32 | self.res.cast_unsigned() as u64]
    }

    /// Returns the CQE that occupies these two 64-bit words in memory.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "each half of the word is a field")]
    pub const fn from_words([user_data, rest]: [u64; 2]) -> Cqe {
        Cqe { user_data, res: (rest as u32).cast_signed(), flags: (rest >> 32) as u32 }
    }
}

const _: () = {
    assert!(size_of::<Sqe>() == 64 && size_of::<Sqe>() == size_of::<raw::io_uring_sqe>());
    assert!(size_of::<Cqe>() == 16 && size_of::<Cqe>() == size_of::<raw::io_uring_cqe>());
    assert!(offset_of!(Sqe, user_data) == offset_of!(raw::io_uring_sqe, user_data));
    assert!(offset_of!(Sqe, len) == offset_of!(raw::io_uring_sqe, len));
    assert!(offset_of!(Sqe, personality) == offset_of!(raw::io_uring_sqe, personality));
    assert!(offset_of!(Sqe, file_index) == 44 && offset_of!(Sqe, addr3) == 48);
    assert!(offset_of!(Cqe, flags) == 12);
};
