//! SETXATTR, GETXATTR, FSETXATTR, FGETXATTR: each is one system call. The prepare copies the
//! attribute's name, the path, and a value to be set.

use super::path::PATH_LIMIT;
use crate::request::Request;
use crate::request::operation::Call;
use crate::ring::LockedRing;
use alloc::vec::Vec;
use usring_sys::{Errno, UserAddress, user_memory};
use usring_uapi::general as linux;
use usring_uapi::{opcode, sqe_flags};

/// Bytes of the longest attribute name, with its NUL (XATTR_NAME_MAX + 1).
const NAME_LIMIT: usize = 256;
/// Bytes of the longest attribute value (XATTR_SIZE_MAX).
const VALUE_LIMIT: u32 = 65_536;
const KNOWN_FLAGS: u32 = linux::XATTR_CREATE | linux::XATTR_REPLACE;

/// Prepares the system call. The SQE has the value's address in `off` and the path's address in
/// `addr3`.
pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    let of_path = matches!(sqe.opcode, opcode::SETXATTR | opcode::GETXATTR);
    let sets = matches!(sqe.opcode, opcode::SETXATTR | opcode::FSETXATTR);
    if of_path && request.has_flag(sqe_flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    if sqe.op_flags & !(if sets { KNOWN_FLAGS } else { 0 }) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut memory = read_name(UserAddress(sqe.addr))?;
    let value = memory.len();
    if sets {
        if sqe.len > VALUE_LIMIT {
            return Err(Errno::E2BIG);
        }
        user_memory::append(&mut memory, &user_memory::read_array(UserAddress(sqe.off), sqe.len as usize)?)?;
    }
    let path = memory.len();
    if of_path {
        user_memory::append(&mut memory, &user_memory::read_c_string(UserAddress(sqe.addr3), PATH_LIMIT)?)?;
        if memory.len() == path + 1 {
            return Err(Errno::ENOENT);
        }
    }
    let at = memory.as_ptr() as u64;
    let value = if sets { at + value as u64 } else { sqe.off };
    let arguments = [at + path as u64, at, value, u64::from(sqe.len), u64::from(sqe.op_flags)];
    request.operation = match sqe.opcode {
        opcode::SETXATTR => Call::with_memory(linux::__NR_setxattr, arguments, memory),
        opcode::GETXATTR => Call::with_memory(linux::__NR_getxattr, arguments, memory),
        opcode::FSETXATTR => Call::on_file_with_memory(linux::__NR_fsetxattr, arguments, memory),
        _ => Call::on_file_with_memory(linux::__NR_fgetxattr, arguments, memory),
    };
    Ok(())
}

/// Reads the name of an attribute. Error: `ERANGE` if the name is empty or too long.
fn read_name(address: UserAddress) -> Result<Vec<u8>, Errno> {
    match user_memory::read_c_string(address, NAME_LIMIT) {
        Ok(name) if name.len() == 1 => Err(Errno::ERANGE),
        Err(Errno::ENAMETOOLONG) => Err(Errno::ERANGE),
        name => name,
    }
}
