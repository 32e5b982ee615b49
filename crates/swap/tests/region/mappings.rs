//! The mappings of a program in a region, as `usring run --swap` makes them. Each test runs in its
//! own process, because the region of a program's mappings has a fixed address.

use crate::common::{MIB, PAGE, is_child, mechanisms, run_child};
use crate::switch::{self, Switch};
use fastrand::Rng;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use usring_swap::mappings::{Mappings, Options, PinLimit};
use usring_swap::{Access, Mechanism, text};
use usring_sys::Errno;

pub const LIMIT: usize = 8 * MIB;

/// Runs `work` once for each mechanism, in a new process. By the `Switch`, `work` can make the
/// region's device fail.
pub fn in_child(test: &str, work: fn(Mappings, Arc<Switch>)) {
    if is_child() {
        // SAFETY: the call passes no memory. The alarm ends a test that hangs.
        unsafe { libc::alarm(120) };
        let (device, switch) = switch::device(64 * MIB);
        let mechanism = std::env::var("MECHANISM").unwrap();
        let text = text::parse(&format!("ram:size=64M,limit={LIMIT},mechanism={mechanism}")).unwrap();
        let options = Options { text: &text, statistics: None, socket: None };
        return work(Mappings::on(device, &options).unwrap(), switch);
    }
    for mechanism in mechanisms() {
        let output = run_child(test, |command| {
            command.env("MECHANISM", mechanism.name());
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mechanism}: {:?} {said}", output.status);
    }
}

pub fn word(address: usize) -> &'static AtomicU64 {
    // SAFETY: the tests pass addresses of mapped and aligned words, and access these words by
    // atomic operations only.
    unsafe { &*(address as *const AtomicU64) }
}

/// Maps `length` bytes and writes a different number to each page. Returns the addresses of the new
/// mapping.
pub fn numbered(mappings: &Mappings, length: usize) -> Range<usize> {
    let start = mappings.change().map(length).unwrap();
    number(&(start..start + length), 0);
    start..start + length
}

fn number(range: &Range<usize>, more: u64) {
    range.clone().step_by(PAGE).for_each(|page| word(page).store((page as u64 ^ 0x5555) + more, Ordering::Relaxed));
}

/// Checks the numbers that [`numbered`] wrote to the pages of a range, after their content has
/// moved to `range`. `away`: how many bytes lie from a page of `range` to the page where its
/// content was.
#[track_caller]
pub fn check(range: &Range<usize>, away: usize) {
    for page in range.clone().step_by(PAGE) {
        let expected = page.wrapping_add(away) as u64 ^ 0x5555;
        assert_eq!(word(page).load(Ordering::Relaxed), expected, "page {}", (page - range.start) / PAGE);
    }
}

#[test]
fn addresses_released_to_the_kernel_are_reusable_once_unmapped() {
    in_child("mappings::addresses_released_to_the_kernel_are_reusable_once_unmapped", |mappings, _| {
        let mut first = None;
        for round in 0..20 {
            let range = numbered(&mappings, 20 * MIB);
            assert_eq!(*first.get_or_insert(range.clone()), range, "round {round}");
            let given = range.start + 4 * MIB..range.start + 5 * MIB + round * PAGE;
            mappings.change().release_to_kernel(&given).unwrap();
            check(&range, 0);
            // SAFETY: the range is mapped and belongs to the test. A read-only page keeps its
            // content.
            assert_eq!(unsafe { libc::mprotect(given.start as _, MIB, libc::PROT_READ) }, 0);
            check(&range, 0);
            mappings.change().unmap(&range).unwrap();
            let again = mappings.change().map(20 * MIB).unwrap();
            assert!((again..again + 20 * MIB).step_by(PAGE).all(|page| word(page).load(Ordering::Relaxed) == 0));
            let statistics = mappings.region().statistics();
            assert!(statistics.resident <= statistics.limit && statistics.over_limit == 0, "{statistics:?}");
            mappings.change().unmap(&(again..again + 20 * MIB)).unwrap();
            assert_eq!(mappings.region().statistics().slots_taken, 0);
            assert_eq!(mappings.region().statistics().resident, 0);
        }
    });
}

/// Makes mappings until the kernel allows the process no more. Then unmaps `but` of them.
fn use_up_mappings(but: usize) {
    let mut made = Vec::new();
    loop {
        // Adjacent pages get different protections. Otherwise the kernel would merge their mappings
        // into one.
        let protection = if made.len() % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
        // SAFETY: the kernel chooses a free address, so no existing memory changes.
        let page = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
        };
        if page == libc::MAP_FAILED {
            break;
        }
        made.push(page);
    }
    for page in made.iter().rev().take(but) {
        // SAFETY: this function mapped the page, and nothing uses it.
        unsafe { libc::munmap(*page, PAGE) };
    }
}

#[test]
fn a_release_to_the_kernel_without_free_mappings_loses_no_page() {
    in_child("mappings::a_release_to_the_kernel_without_free_mappings_loses_no_page", |mappings, _| {
        if mappings.region().mechanism() == Mechanism::Protect {
            // The mechanism `mprotect` itself needs more mappings.
            return;
        }
        let range = numbered(&mappings, 20 * MIB);
        let refused = (0..8).filter(|but| {
            use_up_mappings(*but);
            // Releases one evicted page and one resident page.
            let answers = [2 * MIB, 19 * MIB].map(|offset| {
                let given = range.start + offset + but * MIB / 8;
                mappings.change().release_to_kernel(&(given..given + PAGE))
            });
            check(&range, 0);
            answers.iter().any(Result::is_err)
        });
        assert!(refused.count() > 0, "no release fails for lack of mappings");
        number(&range, 0);
        check(&range, 0);
    });
}

#[test]
fn an_unreadable_page_is_neither_released_to_the_kernel_nor_lost() {
    in_child("mappings::an_unreadable_page_is_neither_released_to_the_kernel_nor_lost", |mappings, switch| {
        let range = numbered(&mappings, 20 * MIB);
        switch.fails_reads.store(true, Ordering::Relaxed);
        assert_eq!(mappings.change().release_to_kernel(&range), Err(Errno::EIO));
        switch.fails_reads.store(false, Ordering::Relaxed);
        check(&range, 0);
        assert!(mappings.change().release_to_kernel(&range).is_ok());
        check(&range, 0);
    });
}

/// System calls can pin more pages than the limit allows. Threads that need other pages meanwhile
/// exceed the limit, and do not wait for each other.
#[test]
fn threads_do_not_wait_for_each_other_while_all_pages_are_pinned() {
    in_child("mappings::threads_do_not_wait_for_each_other_while_all_pages_are_pinned", |mappings, _| {
        let kept = numbered(&mappings, LIMIT);
        mappings.pin(&kept, Access::Write, PinLimit::None, |_| {}).unwrap();
        const PART: usize = 16 * PAGE;
        let more = mappings.change().map(8 * PART).unwrap();
        std::thread::scope(|scope| {
            for part in (more..more + 8 * PART).step_by(PART) {
                scope.spawn(move || number(&(part..part + PART), 0));
            }
        });
        check(&(more..more + 8 * PART), 0);
        assert!(mappings.region().statistics().over_limit > 0);
        mappings.unpin(&kept);
        check(&kept, 0);
    });
}

#[test]
fn a_remapped_range_keeps_its_contents() {
    in_child("mappings::a_remapped_range_keeps_its_contents", |mappings, switch| {
        let range = numbered(&mappings, 20 * MIB);
        let neighbour = numbered(&mappings, MIB);
        // With a mechanism that tracks writes, pages that are only read stay clean.
        check(&(range.start + 3 * MIB..range.start + 6 * MIB), 0);
        let pin = range.start + MIB..range.start + MIB + 3 * PAGE;
        mappings.pin(&pin, Access::Write, PinLimit::HalfOfMemory, |_| {}).unwrap();
        let by_memory = mappings.region().page_size() > PAGE;
        switch.fails_reads.store(by_memory, Ordering::Relaxed);
        // If a unit is one page of the kernel, evicted pages are not read when they move. So the
        // move succeeds although the device fails reads.
        let failed = mappings.change().remap(&range, 24 * MIB, true);
        switch.fails_reads.store(false, Ordering::Relaxed);
        let start = match failed {
            Err(error) => {
                assert!(by_memory && error == Errno::EFAULT, "{error}");
                check(&range, 0);
                assert_eq!(mappings.mapped().len(), 1, "the new addresses are free again");
                mappings.change().remap(&range, 24 * MIB, true).unwrap()
            }
            Ok(start) => start,
        };
        assert!(start >= neighbour.end);
        check(&(start..start + 20 * MIB), range.start.wrapping_sub(start));
        assert!((start + 20 * MIB..start + 24 * MIB).step_by(PAGE).all(|page| word(page).load(Ordering::Relaxed) == 0));
        mappings.unpin(&pin);
        check(&neighbour, 0);
        let statistics = mappings.region().statistics();
        assert!(statistics.resident <= statistics.limit && statistics.over_limit == 0, "{statistics:?}");
        // Some pages of the old range were pinned. The next change of the mappings frees them.
        assert_eq!(mappings.change().map(range.len()), Some(range.start));
        assert!(range.clone().step_by(PAGE).all(|page| word(page).load(Ordering::Relaxed) == 0));
    });
}

#[test]
fn moved_pages_keep_their_contents_beside_evictions() {
    in_child("mappings::moved_pages_keep_their_contents_beside_evictions", |mappings, _| {
        let others = numbered(&mappings, LIMIT + 2 * MIB);
        // Pages move between two holes in different clusters. The pages around each hole are in
        // use.
        let unit = mappings.region().page_size();
        let holes = [others.start + unit, others.start + 2 * MIB.max(32 * unit) + 4 * unit];
        holes.iter().for_each(|hole| mappings.change().unmap(&(*hole..hole + 2 * unit)).unwrap());
        let is_hole = |page: &usize| holes.iter().any(|hole| (*hole..hole + 2 * unit).contains(page));
        let stop = AtomicBool::new(false);
        let mut wrong = 0;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                // Writes to more pages than the limit allows, so that pages are evicted.
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let pages = others.clone().step_by(PAGE).filter(|page| !is_hole(page));
                        pages.for_each(|page| word(page).store(1, Ordering::Relaxed));
                    }
                });
            }
            for round in 1..=500 {
                let start = mappings.change().map(unit).unwrap();
                // The range cannot grow where it is, because the page behind it is mapped.
                let behind = start + unit..start + 2 * unit;
                assert_eq!(mappings.change().map_over(&behind), Ok(true));
                word(start).store(round, Ordering::Relaxed);
                let moved = mappings.change().remap(&(start..start + unit), 2 * unit, true).unwrap();
                assert_ne!(moved, start);
                wrong += u32::from(word(moved).load(Ordering::Relaxed) != round);
                mappings.change().unmap(&behind).unwrap();
                mappings.change().unmap(&(moved..moved + 2 * unit)).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(wrong, 0, "moved pages lost their contents");
    });
}

#[test]
fn no_increment_is_lost_while_pages_go_to_the_kernel_and_back() {
    in_child("mappings::no_increment_is_lost_while_pages_go_to_the_kernel_and_back", |mappings, switch| {
        switch.fails_each.store(7, Ordering::Relaxed);
        let range = numbered(&mappings, 16 * MIB);
        range.clone().step_by(PAGE).for_each(|page| word(page).store(0, Ordering::Relaxed));
        let others = numbered(&mappings, 16 * MIB);
        let stop = AtomicBool::new(false);
        let count: u64 = std::thread::scope(|scope| {
            let adders = [1, 2, 3].map(|seed| {
                let (range, stop) = (range.clone(), &stop);
                scope.spawn(move || {
                    let mut random = Rng::with_seed(seed);
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        word(range.start + random.usize(..range.len() / PAGE) * PAGE).fetch_add(1, Ordering::Relaxed);
                        count += 1;
                    }
                    count
                })
            });
            let mut random = Rng::with_seed(9);
            for round in 0..80 {
                // Other threads increment words in `range`. This thread releases some pages of
                // `range` to the kernel. Then it releases, unmaps and remaps a part of `others`.
                let given = range.start + random.usize(..range.len() / PAGE - 40) * PAGE;
                mappings.change().release_to_kernel(&(given..given + (1 + random.usize(..40)) * PAGE)).unwrap();
                let unit = mappings.region().page_size();
                let given = others.start + random.usize(..(others.len() - MIB) / unit) * unit;
                let given = given..given + (1 + random.usize(..MIB / unit)) * unit;
                mappings.change().release_to_kernel(&given).unwrap();
                mappings.change().unmap(&given).unwrap();
                assert_eq!(mappings.change().map_over(&given), Ok(true));
                number(&given, 0);
                if round % 20 == 0 {
                    check(&others, 0);
                }
            }
            stop.store(true, Ordering::Relaxed);
            adders.into_iter().map(|adder| adder.join().unwrap()).sum()
        });
        let sum: u64 = range.clone().step_by(PAGE).map(|page| word(page).load(Ordering::Relaxed)).sum();
        assert_eq!(sum, count);
        check(&others, 0);
    });
}
