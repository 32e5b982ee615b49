//! Tests the pools that let many objects share mappings.
#![cfg(not(loom))]

use usring_sys::mapping::PAGE;
use usring_sys::mapping_pool::{MappingPool, Part};
use usring_sys::process_maps::Maps;

/// Returns the address of a part.
fn address(part: &Part) -> usize {
    part.mapping.address() + part.range.start
}

#[test]
fn parts_follow_each_other_and_do_not_overlap() {
    static POOL: MappingPool = MappingPool::new();
    let parts: Vec<Part> = (0..64).map(|index| POOL.take(1 + index % 3 * PAGE).unwrap()).collect();
    for (index, pair) in parts.windows(2).enumerate() {
        assert_eq!(pair[0].range.len(), (1 + index % 3) * PAGE);
        let is_next = pair[1].range.start == pair[0].range.end;
        assert!(is_next || pair[1].mapping.address() != pair[0].mapping.address());
    }
}

#[test]
fn a_part_is_handed_out_once() {
    static POOL: MappingPool = MappingPool::new();
    let kept: Vec<Part> = (0..3).map(|_| POOL.take(PAGE).unwrap()).collect();
    kept[2].memory(0..PAGE).word(0).store(7, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..1000 {
        let part = POOL.take(PAGE).unwrap();
        assert_eq!(part.memory(0..PAGE).word(0).fetch_add(1, std::sync::atomic::Ordering::Relaxed), 0);
    }
    assert_eq!(kept[2].memory(0..PAGE).word(0).load(std::sync::atomic::Ordering::Relaxed), 7);
}

#[test]
fn a_mapping_ends_with_the_last_of_its_parts() {
    static POOL: MappingPool = MappingPool::new();
    let maps = Maps::open().unwrap();
    let inode = |address: usize| maps.area_of(address).map(|area| area.inode);
    let parts: Vec<Part> = (0..3).map(|_| POOL.take(PAGE).unwrap()).collect();
    let (last, own) = (address(&parts[2]), inode(address(&parts[2])));
    assert!(own.is_some_and(|inode| inode != 0));
    let kept = parts[2].memory(0..PAGE);
    drop(parts);
    assert_eq!(inode(last), own);
    drop(kept);
    assert_ne!(inode(last), own);
}

#[test]
fn a_long_part_has_a_mapping_of_its_own() {
    static POOL: MappingPool = MappingPool::new();
    let short = POOL.take(PAGE).unwrap();
    let long = POOL.take(16 << 20).unwrap();
    assert_eq!((long.range.len(), long.mapping.length()), (16 << 20, 16 << 20));
    assert_ne!(long.mapping.address(), short.mapping.address());
    assert!(POOL.take(usize::MAX).is_err());
}

/// A child must not be able to access the memory of objects that its parent makes after the fork.
#[test]
fn a_child_has_only_the_parts_from_before_the_fork() {
    static POOL: MappingPool = MappingPool::new();
    let parts: Vec<Part> = (0..5).map(|_| POOL.take(PAGE).unwrap()).collect();
    let last = &parts[4];
    assert!(last.mapping.length() > last.range.end, "the mapping has room for a later part");
    let later = address(last) + PAGE;
    // SAFETY: the child makes only system calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = parts.iter().all(|part| is_mapped(address(part))) && !is_mapped(later);
        // SAFETY: the call ends the child.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    assert!(child > 0 && is_mapped(later));
    let mut status = -1;
    // SAFETY: the call waits for this test's child, and writes to `status`.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// Returns whether the page at `address` is mapped.
fn is_mapped(address: usize) -> bool {
    let mut resident = 0u8;
    // SAFETY: the call writes one byte for one page.
    unsafe { libc::mincore(address as *mut libc::c_void, PAGE, &raw mut resident) == 0 }
}
