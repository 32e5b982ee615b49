//! Vectors (`struct iovec`) that the program passes for reads, writes and messages. Each is copied
//! once.

use alloc::vec::Vec;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, UserAddress, user_memory, width};
use usring_uapi::Sqe;
use usring_uapi::general as linux;

/// Maximum number of bytes that one read or write transfers (MAX_RW_COUNT).
pub(crate) const TRANSFER_LIMIT: u64 = 0x7fff_f000;

/// Checks a vector of several members as the kernel does. Called before [`limit_total`] shortens
/// the vector. Errors: `EINVAL` if a length is negative as a signed number; `EFAULT` if a member
/// reaches beyond user memory.
pub(crate) fn check(members: &[IoVector]) -> Result<(), Errno> {
    if members.iter().any(|member| member.length > i64::MAX as u64) {
        return Err(Errno::EINVAL);
    }
    if members.iter().any(is_outside) { Err(Errno::EFAULT) } else { Ok(()) }
}

/// Checks a vector of one member. Error: `EFAULT` if the member reaches beyond user memory.
#[inline]
pub(crate) fn check_part(part: IoVector) -> Result<(), Errno> {
    if is_outside(&part) { Err(Errno::EFAULT) } else { Ok(()) }
}

#[inline]
fn is_outside(member: &IoVector) -> bool {
    member.base.checked_add(member.length).is_none_or(|end| end > user_memory::END)
}

/// Shortens a vector to [`TRANSFER_LIMIT`] bytes. Returns the number of bytes in the vector.
pub(crate) fn limit_total(members: &mut [IoVector]) -> u64 {
    let mut total = 0;
    for member in members {
        member.length = member.length.min(TRANSFER_LIMIT - total);
        total += member.length;
    }
    total
}

/// The members of a message's vector, and the progress of their transfer.
#[derive(Default)]
pub(crate) struct Members {
    all: Vec<IoVector>,
    /// Members that are completely transferred.
    done: usize,
    total: u64,
}

impl Members {
    /// Reads the program's vector. With `checked`, checks that each member lies in user memory.
    /// Without `checked`, the members are parts of a registered buffer, and the caller later checks
    /// that they lie in that buffer.
    pub fn read(&mut self, from: UserAddress, count: u64, checked: bool) -> Result<(), Errno> {
        if count > u64::from(linux::UIO_MAXIOV) {
            return Err(Errno::EINVAL);
        }
        user_memory::read_array_into(&mut self.all, from, width::size(count))?;
        if let [only] = self.all.as_mut_slice() {
            // As in the kernel, a single member is shortened before its end is checked.
            if only.length > i64::MAX as u64 {
                return Err(Errno::EINVAL);
            }
            only.length = only.length.min(TRANSFER_LIMIT);
        }
        if checked {
            check(&self.all)?;
        }
        self.done = 0;
        self.total = limit_total(&mut self.all);
        Ok(())
    }

    /// Removes all members. Keeps their allocation if it is small.
    pub fn clear(&mut self) {
        const FEW: usize = 64;
        if self.all.capacity() > FEW {
            self.all = Vec::new();
        }
        self.replace(|_| ());
    }

    /// Replaces the members by those that `fill` pushes.
    pub fn replace(&mut self, fill: impl FnOnce(&mut Vec<IoVector>)) {
        self.all.clear();
        fill(&mut self.all);
        self.done = 0;
        self.total = self.all.iter().map(|member| member.length).sum();
    }

    pub fn is_any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Returns the members that are not completely transferred.
    pub fn left(&self) -> &[IoVector] {
        &self.all[self.done..]
    }

    /// Returns the number of bytes left to transfer.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Removes the first `bytes` bytes, which have been transferred.
    pub fn advance(&mut self, bytes: u64) {
        self.total -= bytes;
        let mut left = bytes;
        while let Some(member) = self.all.get_mut(self.done) {
            let step = member.length.min(left);
            member.base += step;
            member.length -= step;
            left -= step;
            if left == 0 && member.length != 0 {
                return;
            }
            self.done += 1;
        }
    }
}

/// Reads the vector of a READV_FIXED or WRITEV_FIXED. The program's memory is read only once. The
/// caller checks later whether the members lie in the registered buffer.
pub(crate) fn of_registered(sqe: &Sqe) -> Result<Vec<IoVector>, Errno> {
    if sqe.len > linux::UIO_MAXIOV {
        return Err(Errno::EINVAL);
    }
    let members = user_memory::read_array::<IoVector>(UserAddress(sqe.addr), sqe.len as usize)?;
    if members.iter().any(|member| member.length > i64::MAX as u64) {
        return Err(Errno::EINVAL);
    }
    Ok(members)
}
