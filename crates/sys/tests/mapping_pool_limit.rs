//! Tests a pool of mappings in a process with few free addresses. The test has a binary of its own,
//! because this limit would make other tests in its process fail.
#![cfg(not(loom))]

use usring_sys::mapping::PAGE;
use usring_sys::mapping_pool::{MappingPool, Part};

#[test]
fn a_pool_without_room_to_grow_hands_out_parts_one_by_one() {
    static POOL: MappingPool = MappingPool::new();
    const PARTS: usize = 700;
    let mut parts: Vec<Part> = Vec::with_capacity(PARTS);
    parts.extend((0..PARTS - 8).map(|_| POOL.take(PAGE).unwrap()));
    let last = parts.last().unwrap();
    let left = (last.mapping.length() - last.range.end) / PAGE;
    let rest: Vec<Part> = (0..left).map(|_| POOL.take(PAGE).unwrap()).collect();
    limit_memory(16 * PAGE);
    parts.extend((0..8).map(|_| POOL.take(PAGE).unwrap()));
    assert_eq!(parts[PARTS - 8].mapping.length(), PAGE);
    drop(rest);
}

/// Limits the addresses of this process: it may use `more` bytes in addition to those that it uses
/// now.
fn limit_memory(more: usize) {
    let used = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = used.split(' ').next().unwrap().parse().unwrap();
    let most = (pages * PAGE + more) as u64;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call reads `limit`, and changes only the limit of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}
