//! Tests memory that usring shares with the program: a read returns the bytes that were written,
//! and an offset out of range panics.
#![cfg(not(loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use usring_sys::mapping::{Mapping, PAGE, private_pages, unmap};
use usring_sys::process_maps::Maps;
use usring_sys::shared::SharedMemory;
use usring_sys::shared_array::SharedArray;
use usring_sys::user_memory::install_fault_handler;
use usring_sys::{Errno, SystemCall, UserAddress};
use usring_uapi::general as linux;
use usring_uapi::{Cqe, Sqe};

fn memory() -> SharedMemory {
    SharedMemory::new(Mapping::shared(PAGE).unwrap())
}

#[test]
fn words_and_entries_lie_where_their_offsets_say() {
    let memory = memory();
    memory.word(8).store(0x0403_0201, Ordering::Relaxed);
    assert_eq!(memory.read::<[u8; 4]>(8), [1, 2, 3, 4]);
    assert_eq!(memory.half_word(10).load(Ordering::Relaxed), 0x0403);
    let cqe = Cqe { user_data: 7, res: -11, flags: 3 };
    memory.write(PAGE - 16, cqe);
    assert_eq!(memory.read::<Cqe>(PAGE - 16), cqe);
    let sqe = Sqe { opcode: 1, user_data: 9, pad2: u64::MAX, ..Sqe::default() };
    memory.write(64, sqe);
    assert_eq!(memory.read::<Sqe>(64), sqe);
    assert_eq!(memory.word(64 + 32).load(Ordering::Relaxed), 9);
}

#[test]
fn a_duplicate_mapping_shows_the_same_memory() {
    install_fault_handler();
    let memory = memory();
    let copy = memory.duplicate(PAGE, 0).unwrap();
    let seen = SharedMemory::of_program(UserAddress(copy as u64), PAGE).unwrap();
    memory.word(100).store(42, Ordering::Relaxed);
    assert_eq!(seen.word(100).load(Ordering::Relaxed), 42);
    seen.write(200, 43u64);
    assert_eq!(memory.read::<u64>(200), 43);
    assert!(seen.mapping().is_none());
    drop(seen);
    unmap(copy, PAGE).unwrap();
}

#[test]
fn duplicates_of_neighbouring_parts_are_one_mapping() {
    let maps = Maps::open().unwrap();
    let both_are_one = |_| {
        let mapping = Mapping::shared(3 * PAGE).unwrap();
        let second = mapping.duplicate(PAGE..3 * PAGE, PAGE, 0).unwrap();
        let first = mapping.duplicate(0..PAGE, PAGE, 0).unwrap();
        assert!(maps.are_same(first, mapping.address()) && maps.are_same(second, mapping.address() + PAGE));
        // The addresses next to the duplicates are in use now, so a third duplicate lies elsewhere.
        let again = mapping.duplicate(0..PAGE, PAGE, 0).unwrap();
        assert!(again != first && maps.are_same(again, mapping.address()));
        maps.area_of(first).unwrap().range == (first..second + PAGE)
    };
    // The addresses before a duplicate can be in use by chance, but hardly in each of 16 attempts.
    assert!((0..16).any(both_are_one));
}

#[test]
fn a_duplicate_shows_nothing_behind_its_part() {
    let mapping = Mapping::shared(2 * PAGE).unwrap();
    let address = mapping.duplicate(0..PAGE, 3 * PAGE, 0).unwrap();
    let maps = Maps::open().unwrap();
    assert!(maps.are_same(address, mapping.address()));
    let behind = maps.area_of(address + PAGE).unwrap();
    assert_eq!((behind.protection, behind.inode), (0, 0));
    unmap(address, 3 * PAGE).unwrap();
}

#[test]
fn an_offset_outside_the_memory_panics() {
    let memory = memory();
    let refused = |f: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(f)).is_err());
    refused(&|| _ = memory.word(PAGE).load(Ordering::Relaxed));
    refused(&|| _ = memory.word(PAGE - 2).load(Ordering::Relaxed));
    refused(&|| _ = memory.word(2).load(Ordering::Relaxed));
    refused(&|| _ = memory.word(usize::MAX - 3).load(Ordering::Relaxed));
    refused(&|| _ = memory.half_word(PAGE).load(Ordering::Relaxed));
    refused(&|| _ = memory.read::<Sqe>(PAGE - 56));
    refused(&|| _ = memory.read::<u64>(4));
    refused(&|| memory.write(PAGE - 8, Cqe::default()));
}

#[test]
fn an_array_index_never_leaves_the_array() {
    let memory = Arc::new(memory());
    let values = SharedArray::<[u64; 2], 64>::new(&memory, 128, 4);
    values.write(usize::MAX, [1, 2]);
    assert_eq!(values.read(3), [1, 2]);
    assert_eq!(memory.read::<[u64; 4]>(128 + 3 * 64), [1, 2, 0, 0]);
    let words = SharedArray::<AtomicU16, 2>::new(&memory, 8, 8);
    words.half_word(9).store(7, Ordering::Relaxed);
    assert_eq!(memory.half_word(10).load(Ordering::Relaxed), 7);
    // The last value of an array may end where the shared memory ends.
    SharedArray::<u64, 512>::new(&memory, 504, 8).write(7, 5);
    assert_eq!(memory.read::<u64>(PAGE - 8), 5);
    let refused = |f: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(f)).is_err());
    refused(&|| drop(SharedArray::<u64, 512>::new(&memory, 512, 8)));
    refused(&|| drop(SharedArray::<u64, 512>::new(&memory, 500, 4)));
    refused(&|| drop(SharedArray::<u64, 512>::new(&memory, 0, 3)));
    refused(&|| drop(SharedArray::<u64, 512>::new(&memory, usize::MAX - 7, 1)));
}

#[test]
fn memory_that_the_program_lends_must_be_mapped() {
    install_fault_handler();
    let start = private_pages(2 * PAGE).unwrap();
    // The second page is made inaccessible, and is not unmapped. At unmapped addresses, the mapping
    // of another test could appear.
    let forbidden = [(start + PAGE) as u64, PAGE as u64, linux::PROT_NONE.into(), 0, 0];
    SystemCall::new(linux::__NR_mprotect, forbidden).run().unwrap();
    let at = |offset: usize| UserAddress((start + offset) as u64);
    assert!(SharedMemory::of_program(at(0), PAGE).is_ok());
    assert_eq!(SharedMemory::of_program(at(0), PAGE + 1).err(), Some(Errno::EFAULT));
    assert!(SharedMemory::of_program(at(PAGE - 64), 8).is_ok(), "a cache line may be lent in part");
    assert_eq!(SharedMemory::of_program(at(8), 8).err(), Some(Errno::EINVAL));
    assert_eq!(SharedMemory::of_program(UserAddress::NULL, 8).err(), Some(Errno::EFAULT));
    assert_eq!(SharedMemory::of_program(UserAddress(u64::MAX - 63), 64).err(), Some(Errno::EFAULT));
    unmap(start, 2 * PAGE).unwrap();
}
