//! Tests of forks that fail to freeze swapped memory, or to keep it from a child. The evictor does
//! not stop in time, or madvise(2) does not keep the memory from the child.

use crate::common::{MIB, PAGE};
use crate::mappings::{LIMIT, check, in_child, numbered, word};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use usring_swap::Mechanism;
use usring_swap::mappings::Mappings;
use usring_sys::Errno;

/// One second in nanoseconds.
const ONE_SECOND: u64 = 1_000_000_000;

/// Touches enough pages to make the evictor start. They are too few for this thread to evict a page
/// itself. Returns the addresses of these pages.
fn set_evictor_to_work(mappings: &Mappings) -> Range<usize> {
    let start = mappings.change().map(LIMIT).unwrap();
    let touched = start..start + LIMIT - LIMIT / 40;
    touched.clone().step_by(PAGE).for_each(|page| word(page).store(page as u64 ^ 0x5555, Ordering::Relaxed));
    touched
}

#[test]
fn a_fork_does_not_wait_for_a_stalled_device() {
    in_child("inheritance::a_fork_does_not_wait_for_a_stalled_device", |mappings, switch| {
        if mappings.region().page_size() != PAGE {
            // With the mechanism `mprotect`, units are large, so the region has few of them. A
            // thread that needs room then evicts a unit itself, and the evictor never runs.
            return;
        }
        let mappings: &'static Mappings = Box::leak(Box::new(mappings));
        switch.stalls_writes.store(true, Ordering::Relaxed);
        let range = set_evictor_to_work(mappings);
        let start = Instant::now();
        while switch.stalled.load(Ordering::Relaxed) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing is evicted");
            std::thread::yield_now();
        }
        let held = std::thread::spawn(|| mappings.freeze(ONE_SECOND).err());
        assert_eq!(held.join().unwrap(), Some(Errno::EBUSY));
        switch.stalls_writes.store(false, Ordering::Relaxed);
        assert_ne!(mappings.freeze(60 * ONE_SECOND).err(), Some(Errno::EBUSY), "the device answers again");
        // The eviction during which `freeze` failed continues.
        let more = numbered(mappings, 4 * MIB);
        check(&range, 0);
        check(&more, 0);
    });
}

/// Makes madvise(2) with MADV_DONTFORK fail with EPERM in this process from now on.
fn deny_keeping_from_children() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let unless = |k: u32, skip| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: skip,
        k,
    };
    const NUMBER: u32 = 0;
    const ADVICE: u32 = 32;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER),
        unless(libc::SYS_madvise as u32, 3),
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, ADVICE),
        unless(libc::MADV_DONTFORK as u32, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points to the instructions of `filter`, which lives until both calls
    // return.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Forks a child that runs `begin`. Returns how many pages of `range` are mapped in the child
/// afterwards: all of them, or 0.
fn pages_of_child(range: &Range<usize>, begin: impl FnOnce()) -> usize {
    let (start, length) = (range.start as *mut libc::c_void, range.len());
    // SAFETY: the forked child only makes system calls and exits, so it needs no lock of another
    // thread.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            begin();
            let mut resident = [0u8; 64];
            let answer = libc::mincore(start, length, resident.as_mut_ptr());
            libc::_exit(if answer == 0 { (length / PAGE) as i32 } else { 0 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        libc::WEXITSTATUS(status) as usize
    }
}

#[test]
fn a_child_that_does_not_inherit_drops_memory_that_fork_copied() {
    in_child("inheritance::a_child_that_does_not_inherit_drops_memory_that_fork_copied", |mappings, _| {
        let mappings: &'static Mappings = Box::leak(Box::new(mappings));
        let range = numbered(mappings, 20 * MIB);
        let few = range.start..range.start + 16 * PAGE;
        match mappings.freeze(60 * ONE_SECOND) {
            Ok(held) => drop(held),
            Err(Errno::EOPNOTSUPP) => return,
            Err(error) => panic!("{error}"),
        }
        assert!(mappings.without_pager(true).is_none());
        assert_eq!(pages_of_child(&few, || {}), 0, "a child does not inherit the memory");
        deny_keeping_from_children();
        drop(mappings.freeze(60 * ONE_SECOND).unwrap());
        if mappings.region().mechanism() != Mechanism::UserFault {
            // The mechanism is `guard` or `mprotect`. Both map a file, and a child never inherits
            // this mapping.
            assert!(pages_of_child(&few, || {}) == 0 && mappings.without_pager(true).is_none());
            return check(&range, 0);
        }
        assert_eq!(pages_of_child(&few, || {}), 16, "a child inherits the memory now");
        let unpaged = mappings.without_pager(true).expect("memory that a child inherits");
        assert_eq!(pages_of_child(&few, || unpaged.unmap_in_child().unwrap()), 0, "the child has unmapped the memory");
        let borrowed = mappings.without_pager(false).expect("memory that a child inherits");
        assert!(mappings.around(few.start).is_some(), "the mappings are not locked");
        assert_eq!(pages_of_child(&few, || borrowed.unmap_in_child().unwrap()), 0, "the child has unmapped the memory");
        check(&range, 0);
    });
}
