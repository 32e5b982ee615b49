//! Puts the program's descriptors into a ring's table of registered files (REGISTER_FILES and its
//! updates). Asks the host which numbers stand for rings or devices. The table itself
//! (`registered_files`) does not ask the host.

use super::registered_files::{Entry, FileSlot, RegisteredFile, RegisteredFiles};
use crate::host;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::descriptor::{self, HeldDescriptor};
use usring_sys::{Errno, UserAddress, user_memory, width};
use usring_uapi::general::O_PATH;
use usring_uapi::io_uring as abi;

/// Maximum number of slots of a table (IORING_MAX_FIXED_FILES).
const LIMIT: u32 = 1 << 20;

fn of_program(number: i32) -> Result<Arc<RegisteredFile>, Errno> {
    let descriptor = hold_of_program(number)?;
    Ok(Arc::new(RegisteredFile::new(descriptor, host::device_of(number))))
}

fn hold_of_program(number: i32) -> Result<HeldDescriptor, Errno> {
    if host::ring_of(number).is_some() {
        // If a ring were registered with itself, it would stay open for ever. So usring refuses to
        // register any ring.
        return Err(Errno::EBADF);
    }
    // A descriptor that stands only for a path (O_PATH, open(2)) cannot be registered.
    if descriptor::status_flags(number)? & O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    descriptor::hold(number)
}

/// REGISTER_FILES and REGISTER_FILES2: makes the table from the program's arrays of descriptor
/// numbers and of tags.
pub(crate) fn register(
    files: &mut RegisteredFiles,
    numbers: UserAddress,
    tags: UserAddress,
    count: u32,
) -> Result<u32, Errno> {
    if files.is_registered() {
        return Err(Errno::EBUSY);
    }
    if count == 0 {
        return Err(Errno::EINVAL);
    }
    if count > LIMIT || u64::from(count) > descriptor::program_limit() {
        return Err(Errno::EMFILE);
    }
    let mut entries = Vec::new();
    entries.try_reserve_exact(count as usize).map_err(|_| Errno::ENOMEM)?;
    for index in 0..u64::from(count) {
        let tag = if tags.is_null() { 0 } else { user_memory::read::<u64>(tags.offset(8 * index))? };
        let number = if numbers.is_null() { -1 } else { user_memory::read::<i32>(numbers.offset(4 * index))? };
        if number == -1 {
            if tag != 0 {
                return Err(Errno::EINVAL);
            }
            entries.push(Entry::default());
            continue;
        }
        let file = of_program(number)?;
        entries.push(Entry { file: Some(file), tag });
    }
    files.set(entries);
    Ok(0)
}

/// REGISTER_FILES_UPDATE, REGISTER_FILES_UPDATE2 and the request FILES_UPDATE. Returns how many
/// slots were updated before the first error. If the first slot has an error, returns that error.
pub(crate) fn update(
    files: &mut RegisteredFiles,
    offset: u32,
    numbers: UserAddress,
    tags: UserAddress,
    count: u32,
) -> Result<i32, Errno> {
    let size = files.count() as u64;
    if !files.is_registered() {
        return Err(Errno::ENXIO);
    }
    let end = offset.checked_add(count).ok_or(Errno::EOVERFLOW)?;
    if u64::from(end) > size {
        return Err(Errno::EINVAL);
    }
    for_each(count, |index| update_one(files, offset + width::low(index), numbers.offset(4 * index), tags, index))
}

fn update_one(
    files: &mut RegisteredFiles,
    slot: u32,
    number: UserAddress,
    tags: UserAddress,
    index: u64,
) -> Result<(), Errno> {
    let tag = if tags.is_null() { 0 } else { user_memory::read::<u64>(tags.offset(8 * index))? };
    let number = user_memory::read::<i32>(number)?;
    if (number == -1 || number == abi::IORING_REGISTER_FILES_SKIP) && tag != 0 {
        return Err(Errno::EINVAL);
    }
    if number == abi::IORING_REGISTER_FILES_SKIP {
        return Ok(());
    }
    if number == -1 {
        files.retire(slot);
        return Ok(());
    }
    let file = of_program(number);
    files.retire(slot);
    files.fill(slot, Entry { file: Some(file?), tag })
}

/// FILES_UPDATE with FILE_INDEX_ALLOC: puts the file of each number of the program's array into a
/// free slot, and writes the slot's index over the number. Returns how many files got a slot before
/// the first error.
pub(crate) fn allocate(files: &mut RegisteredFiles, numbers: UserAddress, count: u32) -> Result<i32, Errno> {
    if !files.is_registered() {
        return Err(Errno::ENXIO);
    }
    for_each(count, |index| {
        let address = numbers.offset(4 * index);
        let file = of_program(user_memory::read::<i32>(address)?)?;
        let slot = files.receive(FileSlot::Any, file)?;
        user_memory::write(address, slot).inspect_err(|_| files.retire(slot.cast_unsigned()))
    })
}

/// Calls `work` with 0, 1, … below `count`, up to the first call that fails. Returns how many calls
/// succeeded, or the error if the first call fails.
fn for_each(count: u32, mut work: impl FnMut(u64) -> Result<(), Errno>) -> Result<i32, Errno> {
    let mut done = 0;
    for index in 0..u64::from(count) {
        match work(index) {
            Ok(()) => done += 1,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}
