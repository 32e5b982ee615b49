//! RENAMEAT, UNLINKAT, MKDIRAT, SYMLINKAT, LINKAT: each is one system call, on paths that the
//! prepare copies. libuv uses these opcodes if the kernel's version has them.

use crate::request::Request;
use crate::request::operation::Call;
use crate::ring::LockedRing;
use alloc::vec::Vec;
use usring_sys::{Errno, UserAddress, user_memory, width};
use usring_uapi::general as linux;
use usring_uapi::{Sqe, sqe_flags};

/// Bytes of the longest path, with its NUL.
pub(super) const PATH_LIMIT: usize = linux::PATH_MAX as usize;

fn check(request: &Request) -> Result<Sqe, Errno> {
    let sqe = request.sqe;
    if sqe.buf_index != 0 || sqe.file_index != 0 {
        return Err(Errno::EINVAL);
    }
    if request.has_flag(sqe_flags::FIXED_FILE) {
        return Err(Errno::EBADF);
    }
    Ok(sqe)
}

/// Reads two paths into one allocation. Returns the allocation, and the second path's offset in it.
fn two_paths(first: u64, second: u64) -> Result<(Vec<u8>, usize), Errno> {
    let mut memory = user_memory::read_c_string(UserAddress(first), PATH_LIMIT)?;
    let middle = memory.len();
    user_memory::append(&mut memory, &user_memory::read_c_string(UserAddress(second), PATH_LIMIT)?)?;
    Ok((memory, middle))
}

/// Prepares renameat2(2). The SQE has the new directory's descriptor in `len`.
pub(crate) fn prepare_rename(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = check(request)?;
    let (paths, middle) = two_paths(sqe.addr, sqe.off)?;
    let old = paths.as_ptr() as u64;
    let arguments = [width::word(sqe.fd), old, u64::from(sqe.len), old + middle as u64, u64::from(sqe.op_flags)];
    request.operation = Call::with_memory(linux::__NR_renameat2, arguments, paths);
    Ok(())
}

pub(crate) fn prepare_unlink(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = check(request)?;
    if sqe.off != 0 || sqe.len != 0 || sqe.op_flags & !linux::AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    let path = user_memory::read_c_string(UserAddress(sqe.addr), PATH_LIMIT)?;
    let arguments = [width::word(sqe.fd), path.as_ptr() as u64, u64::from(sqe.op_flags), 0, 0];
    request.operation = Call::with_memory(linux::__NR_unlinkat, arguments, path);
    Ok(())
}

/// Prepares mkdirat(2). The SQE has the mode in `len`.
pub(crate) fn prepare_mkdir(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = check(request)?;
    if sqe.off != 0 || sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    let path = user_memory::read_c_string(UserAddress(sqe.addr), PATH_LIMIT)?;
    let arguments = [width::word(sqe.fd), path.as_ptr() as u64, u64::from(sqe.len), 0, 0];
    request.operation = Call::with_memory(linux::__NR_mkdirat, arguments, path);
    Ok(())
}

/// Prepares symlinkat(2). The SQE has the link's target in `addr` and the link's own path in `off`.
pub(crate) fn prepare_symlink(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = check(request)?;
    if sqe.len != 0 || sqe.op_flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (paths, middle) = two_paths(sqe.addr, sqe.off)?;
    let target = paths.as_ptr() as u64;
    let arguments = [target, width::word(sqe.fd), target + middle as u64, 0, 0];
    request.operation = Call::with_memory(linux::__NR_symlinkat, arguments, paths);
    Ok(())
}

/// Prepares linkat(2). The SQE has the new directory's descriptor in `len`.
pub(crate) fn prepare_link(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = check(request)?;
    let (paths, middle) = two_paths(sqe.addr, sqe.off)?;
    let old = paths.as_ptr() as u64;
    let arguments = [width::word(sqe.fd), old, u64::from(sqe.len), old + middle as u64, u64::from(sqe.op_flags)];
    request.operation = Call::with_memory(linux::__NR_linkat, arguments, paths);
    Ok(())
}
