//! Stores that are too small for the region, or that refuse all writes. A page that cannot be
//! written to the store stays resident. An access to such a page is not slower than an access to
//! other memory.

use crate::common::{device, factor, is_child, mechanisms, run_child, word};
use crate::switch;
use fastrand::Rng;
use std::sync::atomic::Ordering;
use std::time::Instant;
use usring_swap::{Builder, Mechanism, SwapRegion};

/// The smallest limit that a region accepts, in pages.
const LEAST_LIMIT: usize = 64;

/// Pages by which the peak may exceed a low limit. The pages for which the store has no room come
/// on top. The slack covers one chunk (by which the limit is raised), and the pages that the
/// evictor has taken.
const SLACK: u64 = 3 * LEAST_LIMIT as u64;

/// Runs `work` once for each mechanism, in a new process.
fn in_child(test: &str, work: fn(Mechanism)) {
    if is_child() {
        // SAFETY: the call passes no memory. The alarm ends a test that hangs.
        unsafe { libc::alarm(30) };
        return work(Mechanism::of_name(&std::env::var("MECHANISM").unwrap()).unwrap());
    }
    for mechanism in mechanisms() {
        let output = run_child(&format!("full::{test}"), |command| {
            command.env("MECHANISM", mechanism.name());
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mechanism}: {:?} {said}", output.status);
    }
}

/// Returns a builder of a region whose store may be smaller than the region. With
/// `Builder::backing`, the region would refuse such a store.
fn small(size: usize, limit: usize, store: &str) -> Builder {
    SwapRegion::builder().size(size).limit(limit).device(device(store).0)
}

/// Writes different words to the start and the end of each page.
fn number_pages(region: &SwapRegion) {
    let unit = region.page_size();
    for page in 0..region.size() / unit {
        for offset in [0, unit - 8] {
            word(region, page * unit + offset).store((page * unit + offset + 1) as u64, Ordering::Relaxed);
        }
    }
}

fn check_pages(region: &SwapRegion) {
    let unit = region.page_size();
    for page in 0..region.size() / unit {
        for offset in [0, unit - 8] {
            let found = word(region, page * unit + offset).load(Ordering::Relaxed);
            assert_eq!(found, (page * unit + offset + 1) as u64, "{:?}", region.statistics());
        }
    }
}

#[test]
fn faults_beyond_a_full_store_do_not_each_search_for_a_victim() {
    in_child("faults_beyond_a_full_store_do_not_each_search_for_a_victim", |mechanism| {
        const LIMIT: usize = 8 << 20;
        let region = small(8 * LIMIT, LIMIT, "ram:size=16M").mechanism(mechanism).build().unwrap();
        number_pages(&region);
        let statistics = region.statistics();
        assert_eq!(statistics.slots_taken, statistics.slots, "{statistics:?}");
        assert!(statistics.over_limit > 0, "{statistics:?}");
        assert!(statistics.peak <= statistics.pages - statistics.slots + SLACK, "{statistics:?}");
        check_pages(&region);
        let statistics = region.statistics();
        assert!(statistics.peak <= statistics.pages - statistics.slots + SLACK, "{statistics:?}");
    });
}

#[test]
fn a_failing_store_is_not_retried_for_each_page() {
    in_child("a_failing_store_is_not_retried_for_each_page", |mechanism| {
        let limit = LEAST_LIMIT * mechanism.unit(0);
        let (device, switch) = switch::device(32 * limit);
        switch.fails_writes.store(true, Ordering::Relaxed);
        let builder = SwapRegion::builder().size(32 * limit).limit(limit).device(device);
        let region = builder.mechanism(mechanism).build().unwrap();
        let start = Instant::now();
        number_pages(&region);
        check_pages(&region);
        let attempts = region.statistics().write_errors;
        // After 8 failed writes the store counts as failing. From then on, the evictor tries to
        // write to it at most every 10 ms.
        let most = 64 + start.elapsed().as_millis() as u64 / 10;
        assert!((1..=most).contains(&attempts), "{attempts} in {:?}", start.elapsed());
        // The evictor must soon notice that writes succeed again.
        switch.fails_writes.store(false, Ordering::Relaxed);
        while region.statistics().resident > region.statistics().limit {
            std::thread::yield_now();
        }
        check_pages(&region);
        assert!(region.statistics().resident <= region.statistics().limit + SLACK);
    });
}

/// Reads 16 bytes with one instruction.
fn read_at_once(region: &SwapRegion, offset: usize) -> [u64; 2] {
    assert!(offset + 16 <= region.size());
    // SAFETY: the 16 bytes are within the region, and every x86-64 processor has SSE2.
    unsafe {
        let mut words = [0; 2];
        let value = std::arch::x86_64::_mm_loadu_si128(region.as_ptr().add(offset).cast());
        std::arch::x86_64::_mm_storeu_si128(words.as_mut_ptr().cast(), value);
        words
    }
}

/// The instruction needs two pages in memory together. With a full store, a page gets room only
/// after another page was evicted. That page could always be the other page of the instruction.
#[test]
fn an_instruction_gets_both_of_its_pages_with_a_full_store() {
    in_child("an_instruction_gets_both_of_its_pages_with_a_full_store", |mechanism| {
        let limit = 2 * LEAST_LIMIT * mechanism.unit(0);
        let store = format!("ram:size={}", 2 * limit);
        let region = small(4 * limit, limit, &store).readahead(0).mechanism(mechanism).build().unwrap();
        let unit = region.page_size();
        number_pages(&region);
        let mut random = Rng::with_seed(1);
        for turn in 0..20_000 / factor(mechanism) {
            let page = match turn < 2 * region.size() / unit {
                true => turn % (region.size() / unit - 1),
                false => random.usize(..region.size() / unit - 1),
            };
            let boundary = (page + 1) * unit;
            let words = read_at_once(&region, boundary - 8);
            assert_eq!(words, [(boundary - 7) as u64, (boundary + 1) as u64], "{:?}", region.statistics());
        }
        check_pages(&region);
    });
}
