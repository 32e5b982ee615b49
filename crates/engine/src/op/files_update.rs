//! FILES_UPDATE: does what REGISTER_FILES_UPDATE does, as a request.

use crate::registered::program_files;
use crate::registered::registered_files::FILE_INDEX_ALLOC;
use crate::request::Request;
use crate::request::outcome::IssueOutcome;
use crate::ring::LockedRing;
use usring_sys::{Errno, UserAddress, user_memory, width};
use usring_uapi::sqe_flags;

pub(crate) fn prepare(_: &mut LockedRing, request: &mut Request) -> Result<(), Errno> {
    let sqe = request.sqe;
    if request.has_flag(sqe_flags::FIXED_FILE | sqe_flags::BUFFER_SELECT) {
        return Err(Errno::EINVAL);
    }
    if sqe.op_flags != 0 || sqe.file_index != 0 || sqe.len == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

pub(crate) fn issue(locked: &mut LockedRing, request: &mut Request) -> IssueOutcome {
    let sqe = request.sqe;
    let (address, count) = (UserAddress(sqe.addr), sqe.len as usize);
    if width::low(sqe.off) == FILE_INDEX_ALLOC {
        return IssueOutcome::of(allocate(locked, address, count));
    }
    IssueOutcome::of(program_files::update(
        &mut locked.registered.files,
        width::low(sqe.off),
        address,
        UserAddress::NULL,
        sqe.len,
    ))
}

/// Puts each descriptor of the program's array into a free slot, and writes the slot's index into
/// the array. Stops at the first error. Returns how many descriptors got a slot; the error if there
/// are none.
fn allocate(locked: &mut LockedRing, address: UserAddress, count: usize) -> Result<i32, Errno> {
    let numbers = user_memory::read_array::<i32>(address, count)?;
    let mut done = 0;
    for (index, &number) in numbers.iter().enumerate() {
        let placed = program_files::allocate(&mut locked.registered.files, number);
        let written = placed.and_then(|slot| user_memory::write(address.offset(4 * index as u64), slot));
        match written {
            Ok(()) => done += 1,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}
