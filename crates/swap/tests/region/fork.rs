//! Regions and fork(2). If a child touches its parent's region, it gets SIGBUS, and usring writes a
//! message to standard error. The child may have regions of its own. It may also have other memory
//! at the address of the parent's region.

use crate::common::{MIB, factor, is_child, mechanisms, region, run_child, word};
use crate::process::churn;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;
use std::sync::atomic::Ordering;

/// Runs `work` in a forked child. Returns the child's exit status and its standard error.
fn fork(work: impl FnOnce()) -> (ExitStatus, String) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child needs no lock that another thread could hold. It only touches memory, or
    // the test runs alone in its process.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: both calls pass only numbers. The alarm ends a child that hangs.
        unsafe {
            libc::alarm(60);
            libc::dup2(writer.as_raw_fd(), 2);
        }
        let outcome = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: the call ends the child, and passes only a number.
        unsafe { libc::_exit(if outcome.is_ok() { 0 } else { 101 }) };
    }
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    let mut status = 0;
    // SAFETY: the call writes the status of the child forked above to one `int`.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    (ExitStatus::from_raw(status), said)
}

#[test]
fn a_forked_child_that_touches_a_region_dies_with_a_message() {
    for mechanism in mechanisms() {
        let limit = MIB * factor(mechanism);
        let region = region(4 * limit, limit, "ram:size=128M").mechanism(mechanism).build().unwrap();
        let pages = || (0..region.size()).step_by(region.page_size());
        pages().for_each(|page| word(&region, page).store(42 + page as u64, Ordering::Relaxed));
        // The region exceeds its limit: its first pages are evicted, and its last pages are
        // resident.
        for offset in [0, region.size() / 2, region.size() - 8] {
            let (status, said) = fork(|| {
                word(&region, offset).fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(status.signal(), Some(libc::SIGBUS), "{mechanism}: {status} {said}");
            assert!(said.contains("a forked child touched"), "{mechanism}: {said}");
        }
        pages().for_each(|page| assert_eq!(word(&region, page).load(Ordering::Relaxed), 42 + page as u64));
    }
}

#[test]
fn a_forked_child_can_create_its_own_regions() {
    let name = "fork::a_forked_child_can_create_its_own_regions";
    if !is_child() {
        let output = run_child(name, |_| {});
        return assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for mechanism in mechanisms() {
        let limit = MIB / 4 * factor(mechanism);
        let build = |size| region(size, limit, "ram:size=128M").mechanism(mechanism).build().unwrap();
        let parents = build(32 * limit);
        word(&parents, 0).store(1, Ordering::Relaxed);
        let (status, said) = fork(|| {
            let own = [build(2 * limit), build(4 * limit)];
            own.iter().for_each(|region| churn(region, 2000));
        });
        assert!(status.success(), "{mechanism}: {status} {said}");
        assert_eq!(word(&parents, 0).load(Ordering::Relaxed), 1);
    }
}

#[test]
fn a_childs_mapping_at_its_parents_region_address_faults_normally() {
    for mechanism in mechanisms() {
        let limit = MIB * factor(mechanism);
        let region = region(4 * limit, limit, "ram:size=128M").mechanism(mechanism).build().unwrap();
        let (status, said) = fork(|| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
            let mapped = unsafe { libc::mmap(region.as_ptr().cast(), region.size(), libc::PROT_NONE, flags, -1, 0) };
            assert_eq!(mapped, region.as_ptr().cast());
            word(&region, 0).store(1, Ordering::Relaxed);
        });
        assert_eq!((status.signal(), &*said), (Some(libc::SIGSEGV), ""), "{mechanism}: {status}");
    }
}
