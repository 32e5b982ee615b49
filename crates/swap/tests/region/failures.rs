//! Failing devices, full stores, and programs that unmap, lock or protect parts of a region
//! themselves. No content may be lost. No page may show content that was not written to that page.

use crate::common::{MIB, PAGE, device, factor, is_child, mechanisms, region, run_child, word};
use crate::switch;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::sync::atomic::Ordering;
use usring_swap::{Builder, Mechanism, SwapRegion};

/// Returns a builder of a region on a RAM device of `store` bytes, which may be less than `size`.
fn small(size: usize, limit: usize, store: usize) -> Builder {
    SwapRegion::builder().size(size).limit(limit).device(device(&format!("ram:size={store}")).0)
}

/// Writes a different number to each page.
fn number_pages(region: &SwapRegion) {
    for page in 0..region.size() / region.page_size() {
        word(region, page * region.page_size()).store(page as u64 + 1, Ordering::Relaxed);
    }
}

fn check_pages(region: &SwapRegion) {
    for page in 0..region.size() / region.page_size() {
        let number = word(region, page * region.page_size()).load(Ordering::Relaxed);
        assert_eq!(number, page as u64 + 1, "{} {:?}", region.mechanism(), region.statistics());
    }
}

#[test]
fn a_full_store_stops_eviction_and_loses_no_page() {
    for mechanism in mechanisms() {
        let limit = MIB / 2 * factor(mechanism);
        let region = small(8 * limit, limit, 2 * limit).mechanism(mechanism).build().unwrap();
        number_pages(&region);
        let statistics = region.statistics();
        assert!(statistics.over_limit > 0, "{statistics:?}");
        assert_eq!(statistics.slots_taken, statistics.slots, "{statistics:?}");
        check_pages(&region);
    }
}

#[test]
fn occasional_write_errors_lose_no_page_and_keep_the_limit() {
    for mechanism in mechanisms() {
        let limit = MIB * factor(mechanism);
        let (device, switch) = switch::device(16 * limit);
        switch.fails_each.store(3, Ordering::Relaxed);
        let builder = SwapRegion::builder().size(8 * limit).limit(limit).device(device);
        let region = builder.mechanism(mechanism).build().unwrap();
        number_pages(&region);
        check_pages(&region);
        let statistics = region.statistics();
        assert!(statistics.write_errors > 0 && statistics.over_limit == 0, "{statistics:?}");
    }
}

#[test]
fn pages_stay_resident_while_all_writes_fail_and_are_evicted_later() {
    for mechanism in mechanisms() {
        let limit = MIB / 2 * factor(mechanism);
        let (device, switch) = switch::device(8 * limit);
        switch.fails_writes.store(true, Ordering::Relaxed);
        let builder = SwapRegion::builder().size(4 * limit).limit(limit).device(device);
        let region = builder.mechanism(mechanism).build().unwrap();
        number_pages(&region);
        let statistics = region.statistics();
        assert_eq!(statistics.resident, statistics.pages, "{statistics:?}");
        check_pages(&region);
        switch.fails_writes.store(false, Ordering::Relaxed);
        region.set_limit(limit).unwrap();
        let statistics = region.statistics();
        assert!(statistics.resident <= statistics.limit, "{statistics:?}");
        check_pages(&region);
    }
}

#[test]
fn a_lowered_limit_is_kept_while_the_evictor_runs() {
    for mechanism in mechanisms() {
        // With a small limit, the region has few clusters, so the evictor and this thread often
        // want the same cluster.
        let limit = 128 * PAGE * factor(mechanism);
        let region = region(2 * limit, limit, "ram:size=64M").mechanism(mechanism).build().unwrap();
        for _ in 0..100 {
            number_pages(&region);
            region.set_limit(limit / 2).unwrap();
            let statistics = region.statistics();
            assert!(statistics.resident <= statistics.limit, "{statistics:?}");
            region.set_limit(limit).unwrap();
        }
        check_pages(&region);
    }
}

#[test]
fn an_unreadable_page_raises_sigbus_and_a_message_names_its_slot() {
    if is_child() {
        let mechanism = Mechanism::of_name(&std::env::var("MECHANISM").unwrap()).unwrap();
        let limit = MIB / 2 * factor(mechanism);
        let (device, switch) = switch::device(8 * limit);
        let builder = SwapRegion::builder().size(4 * limit).limit(limit).device(device);
        let region = builder.mechanism(mechanism).build().unwrap();
        number_pages(&region);
        switch.fails_reads.store(true, Ordering::Relaxed);
        // Some of the pages that this loop reads are evicted. The device fails to read them, and
        // this raises SIGBUS.
        let sum: u64 = (0..64).map(|page| word(&region, page * region.page_size()).load(Ordering::Relaxed)).sum();
        panic!("read {sum} although some pages are unreadable");
    }
    for mechanism in mechanisms() {
        let output = run_child("failures::an_unreadable_page_raises_sigbus_and_a_message_names_its_slot", |command| {
            command.env("MECHANISM", mechanism.name());
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{mechanism}: {:?} {said}", output.status);
        assert!(said.contains("cannot be read back: slot ") && said.contains("EIO"), "{mechanism}: {said}");
    }
}

/// Runs `work` once for each mechanism, in a new process. `work` gets a region whose pages hold
/// different numbers. `check` gets the new process's output and exit status.
fn in_child(test: &str, work: fn(SwapRegion), check: fn(Mechanism, Output)) {
    if is_child() {
        // SAFETY: the call passes no memory. The alarm ends a test that hangs.
        unsafe { libc::alarm(60) };
        let mechanism = Mechanism::of_name(&std::env::var("MECHANISM").unwrap()).unwrap();
        let limit = MIB / 2 * factor(mechanism);
        let region = region(4 * limit, limit, "ram:size=64M").mechanism(mechanism).build().unwrap();
        number_pages(&region);
        return work(region);
    }
    for mechanism in mechanisms() {
        let output = run_child(test, |command| {
            command.env("MECHANISM", mechanism.name());
        });
        check(mechanism, output);
    }
}

/// The region's memory file is made shorter. A touch beyond its new end raises SIGBUS. So does a
/// touch for which the kernel has no memory.
#[test]
fn memory_that_the_kernel_refuses_raises_sigbus() {
    let cut_off = |region: SwapRegion| {
        for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
            let path = entry.unwrap().path();
            if std::fs::read_link(&path).is_ok_and(|name| name.to_string_lossy().contains("usring-swap")) {
                std::fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
            }
        }
        // The test wrote the last page last, so the page is resident.
        word(&region, region.size() - region.page_size()).fetch_add(0, Ordering::Relaxed);
        check_pages(&region);
    };
    in_child("failures::memory_that_the_kernel_refuses_raises_sigbus", cut_off, |mechanism, output| {
        let said = String::from_utf8_lossy(&output.stderr);
        match mechanism {
            Mechanism::Guard | Mechanism::Protect => {
                assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{mechanism}: {:?} {said}", output.status);
            }
            // The regions of these mechanisms have no file.
            Mechanism::UserFault | Mechanism::Thread => assert!(output.status.success(), "{mechanism}: {said}"),
        }
    });
}

#[test]
fn a_write_to_pages_that_the_program_protected_raises_sigsegv() {
    let protect = |region: SwapRegion| {
        // The test wrote the last page last, so the page is resident.
        let last = region.size() - region.page_size();
        // SAFETY: the page is within the region, and no reference to it exists while its protection
        // changes.
        unsafe {
            libc::mprotect(region.as_ptr().add(last).cast(), region.page_size(), libc::PROT_READ);
        }
        assert_eq!(word(&region, last).load(Ordering::Relaxed), (last / region.page_size()) as u64 + 1);
        word(&region, last).store(1, Ordering::Relaxed);
    };
    let test = "failures::a_write_to_pages_that_the_program_protected_raises_sigsegv";
    in_child(test, protect, |mechanism, output| {
        // The mechanism `mprotect` itself changes the protection of pages. It cannot recognise the
        // protection that the program has set.
        if mechanism != Mechanism::Protect {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{mechanism}: {:?} {said}", output.status);
        }
    });
}

#[test]
fn mlockall_by_the_program_loses_no_page() {
    let lock = |region: SwapRegion| {
        // SAFETY: the call passes no memory and changes no content. The call fails if pages are
        // evicted, but it locks the resident pages nevertheless.
        unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
        check_pages(&region);
        number_pages(&region);
        check_pages(&region);
    };
    in_child("failures::mlockall_by_the_program_loses_no_page", lock, |mechanism, output| {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mechanism}: {:?} {said}", output.status);
    });
}

/// The program drops a page by madvise(2), and the pager does not see this. The pager notices it
/// when a thread next reads the page. This thread may be the evictor.
#[test]
fn madv_dontneed_by_the_program_loses_no_other_page() {
    let throw_away = |region: SwapRegion| {
        let (unit, pages) = (region.page_size(), region.size() / region.page_size());
        for round in 0..4 {
            for page in (round..pages).step_by(3) {
                word(&region, page * unit).store(1, Ordering::Relaxed);
                // SAFETY: the page is within the region, and no reference to it exists while its
                // content is dropped.
                let answer =
                    unsafe { libc::madvise(region.as_ptr().add(page * unit).cast(), unit, libc::MADV_DONTNEED) };
                assert_eq!(answer, 0);
            }
            // If a page was resident when the test called MADV_DONTNEED, it now holds 0. If it was
            // evicted before, it still has its content.
            for page in 0..pages {
                let found = word(&region, page * unit).load(Ordering::Relaxed);
                assert!([0, 1, page as u64 + 1].contains(&found), "page {page} holds {found}");
                assert!(found == page as u64 + 1 || page % 3 == round % 3, "page {page} holds {found}");
            }
            number_pages(&region);
        }
    };
    let test = "failures::madv_dontneed_by_the_program_loses_no_other_page";
    in_child(test, throw_away, |mechanism, output| {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mechanism}: {:?} {said}", output.status);
    });
}
