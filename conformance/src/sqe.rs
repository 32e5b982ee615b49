//! Functions that build the SQEs of common requests from named parameters. A case that needs
//! further fields of an SQE sets them itself.

use usring_uapi::{Sqe, Timespec, opcode, sqe_flags};

/// Returns an SQE with the opcode, descriptor and user_data of the parameters. Its other fields are
/// zero.
pub fn sqe(opcode: u8, fd: i32, user_data: u64) -> Sqe {
    Sqe { opcode, fd, user_data, ..Sqe::default() }
}

/// Methods that change an SQE and return the result, so that several calls can follow each other.
pub trait Change: Sized {
    fn with(self, change: impl FnOnce(&mut Sqe)) -> Sqe;

    /// Adds `IOSQE_*` flags.
    fn flagged(self, flags: u8) -> Sqe {
        self.with(|sqe| sqe.flags |= flags)
    }

    /// Sets the opcode's own flags (`op_flags`).
    fn op_flags(self, flags: u32) -> Sqe {
        self.with(|sqe| sqe.op_flags = flags)
    }

    fn linked(self) -> Sqe {
        self.flagged(sqe_flags::IO_LINK)
    }

    fn fixed(self) -> Sqe {
        self.flagged(sqe_flags::FIXED_FILE)
    }

    fn forced_async(self) -> Sqe {
        self.flagged(sqe_flags::ASYNC)
    }
}

impl Change for Sqe {
    fn with(mut self, change: impl FnOnce(&mut Sqe)) -> Sqe {
        change(&mut self);
        self
    }
}

/// A change of an SQE. The text is the name of the change in transcripts.
pub type Field = (&'static str, fn(&mut Sqe));

pub const fn field(name: &'static str, change: fn(&mut Sqe)) -> Field {
    (name, change)
}

/// Makes a table of changes, of which each sets one field: `fields![len = 1, flags |= FIXED_FILE]`.
/// A string before a field is the name of that change. Without a string, the name is that of the
/// field.
macro_rules! fields {
    ($($($name:literal)? $field:ident $set:tt $value:expr),* $(,)?) => {
        [$($crate::sqe::field([$($name,)? stringify!($field)][0], |sqe| sqe.$field $set $value)),*]
    };
}
pub(crate) use fields;

/// The offset that means the file's current position in a READ or WRITE.
pub const CURRENT: u64 = u64::MAX;

pub fn nop(user_data: u64) -> Sqe {
    sqe(opcode::NOP, -1, user_data)
}

pub fn read(fd: i32, buffer: &mut [u8], offset: u64, user_data: u64) -> Sqe {
    let address = buffer.as_mut_ptr() as u64;
    read_at(fd, address, buffer.len() as u32, offset, user_data)
}

pub fn read_at(fd: i32, address: u64, length: u32, offset: u64, user_data: u64) -> Sqe {
    Sqe { addr: address, len: length, off: offset, ..sqe(opcode::READ, fd, user_data) }
}

pub fn write(fd: i32, buffer: &[u8], offset: u64, user_data: u64) -> Sqe {
    let address = buffer.as_ptr() as u64;
    write_at(fd, address, buffer.len() as u32, offset, user_data)
}

pub fn write_at(fd: i32, address: u64, length: u32, offset: u64, user_data: u64) -> Sqe {
    Sqe { opcode: opcode::WRITE, ..read_at(fd, address, length, offset, user_data) }
}

pub fn readv(fd: i32, vectors: &[libc::iovec], offset: u64, user_data: u64) -> Sqe {
    Sqe { opcode: opcode::READV, ..read_at(fd, vectors.as_ptr() as u64, vectors.len() as u32, offset, user_data) }
}

pub fn writev(fd: i32, vectors: &[libc::iovec], offset: u64, user_data: u64) -> Sqe {
    Sqe { opcode: opcode::WRITEV, ..readv(fd, vectors, offset, user_data) }
}

/// Returns an iovec.
pub fn vector(address: u64, length: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length }
}

pub fn poll(fd: i32, events: i16, user_data: u64) -> Sqe {
    sqe(opcode::POLL_ADD, fd, user_data).op_flags(u32::from(events as u16))
}

pub fn poll_remove(target: u64, user_data: u64) -> Sqe {
    Sqe { addr: target, ..sqe(opcode::POLL_REMOVE, -1, user_data) }
}

/// Returns a TIMEOUT. The caller keeps `time` alive until the SQE is submitted.
pub fn timeout(time: &Timespec, count: u64, flags: u32, user_data: u64) -> Sqe {
    Sqe { addr: &raw const *time as u64, len: 1, off: count, op_flags: flags, ..sqe(opcode::TIMEOUT, -1, user_data) }
}

pub fn timeout_remove(target: u64, user_data: u64) -> Sqe {
    Sqe { addr: target, ..sqe(opcode::TIMEOUT_REMOVE, -1, user_data) }
}

pub fn link_timeout(time: &Timespec, flags: u32, user_data: u64) -> Sqe {
    Sqe { opcode: opcode::LINK_TIMEOUT, ..timeout(time, 0, flags, user_data) }
}

pub fn cancel(target: u64, flags: u32, user_data: u64) -> Sqe {
    Sqe { addr: target, op_flags: flags, ..sqe(opcode::ASYNC_CANCEL, -1, user_data) }
}

pub fn close(fd: i32, user_data: u64) -> Sqe {
    sqe(opcode::CLOSE, fd, user_data)
}

pub fn send(fd: i32, bytes: &[u8], user_data: u64) -> Sqe {
    Sqe { addr: bytes.as_ptr() as u64, len: bytes.len() as u32, ..sqe(opcode::SEND, fd, user_data) }
}

pub fn recv(fd: i32, bytes: &mut [u8], user_data: u64) -> Sqe {
    Sqe { addr: bytes.as_mut_ptr() as u64, len: bytes.len() as u32, ..sqe(opcode::RECV, fd, user_data) }
}

/// Returns a SENDMSG or RECVMSG. The caller keeps `header` alive until the request has completed.
pub fn message(opcode: u8, fd: i32, header: *const libc::msghdr, user_data: u64) -> Sqe {
    Sqe { addr: header as u64, len: 1, ..sqe(opcode, fd, user_data) }
}
