//! PIPE: makes a pipe, and writes the descriptors of its ends to the program's memory.

use crate::registered::registered_files::FileSlot;
use crate::request::Request;
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::{Errno, UserAddress, user_memory};
use usring_uapi::general as linux;

/// The flags of pipe2(2). O_EXCL stands for O_NOTIFICATION_PIPE, which most kernels refuse.
const KNOWN_FLAGS: u32 = linux::O_CLOEXEC | linux::O_NONBLOCK | linux::O_DIRECT | linux::O_EXCL;

pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = &request.sqe;
    if sqe.fd != 0 || sqe.off != 0 || sqe.addr3 != 0 || sqe.op_flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let (flags, address) = (request.sqe.op_flags, UserAddress(request.sqe.addr));
    IssueOutcome::of(match FileSlot::from_sqe(request.sqe.file_index) {
        FileSlot::Ordinary => ordinary(locked, flags, address),
        slot => direct(locked, slot, flags, address),
    })
}

fn ordinary(locked: &mut LockedRing, flags: u32, address: UserAddress) -> Result<i32, Errno> {
    let ends = descriptor::pipe(flags)?;
    user_memory::write(address, ends.each_ref().map(OwnedDescriptor::number))?;
    for end in ends {
        locked.waiting.polls.forget_registration(end.number());
        end.into_raw();
    }
    Ok(0)
}

/// Puts the ends of a pipe into the slot that the request names and the next one, or into any two
/// free slots. After an error, removes the ends that are already in the table.
fn direct(locked: &mut LockedRing, slot: FileSlot, flags: u32, address: UserAddress) -> Result<i32, Errno> {
    if flags & linux::O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    // The ends have ordinary numbers for a moment. With O_CLOEXEC, no program that is executed in
    // that moment inherits them.
    let [from, to] = descriptor::pipe(flags | linux::O_CLOEXEC)?;
    let first = install(locked, slot, from)?;
    let next = if let FileSlot::Index(index) = slot { FileSlot::Index(index + 1) } else { slot };
    let second = install(locked, next, to).inspect_err(|_| {
        let _ = locked.registered.files.remove(first);
    })?;
    user_memory::write(address, [first, second]).inspect_err(|_| {
        let _ = locked.registered.files.remove(first);
        let _ = locked.registered.files.remove(second);
    })?;
    Ok(0)
}

/// Puts one end of a pipe into a slot of the table of registered files. Returns the slot.
fn install(locked: &mut LockedRing, slot: FileSlot, end: OwnedDescriptor) -> Result<u32, Errno> {
    let answer = locked.registered.files.install_unlocked(slot, end.into_private()?)?;
    Ok(if let FileSlot::Index(index) = slot { index } else { answer.cast_unsigned() })
}
