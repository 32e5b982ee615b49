//! Threads increment counters all over a region that is larger than its limit. At the end, the sum
//! of the counters shows whether an increment was lost.

use crate::common::{MIB, PAGE, device, factor, mechanisms, region, word};
use crate::switch;
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use usring_device::PollPolicy;
use usring_swap::{Access, SwapRegion};

/// Bytes of the region for each counter. Devices have no smaller blocks, so the loss of any block
/// changes the sum.
const PART: usize = 512;

/// Returns the counter in the part of the region with this number. The offset of the counter in its
/// part differs from part to part.
fn counter(region: &SwapRegion, part: usize) -> &AtomicU64 {
    word(region, part * PART + part * 8 % PART)
}

fn sum(region: &SwapRegion) -> u64 {
    (0..region.size() / PART).map(|part| counter(region, part).load(Ordering::Relaxed)).sum()
}

/// Increments random counters in several threads. Checks that the sum of all counters grows by the
/// number of increments.
fn increment(region: &SwapRegion, threads: usize, rounds: usize) {
    let parts = region.size() / PART;
    let before = sum(region);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut random = Rng::with_seed(thread as u64 + 1);
                for _ in 0..rounds {
                    counter(region, random.usize(..parts)).fetch_add(1, Ordering::Relaxed);
                    // A page that a thread only reads stays clean.
                    let _ = counter(region, random.usize(..parts)).load(Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(sum(region) - before, (threads * rounds) as u64, "{:?}", region.statistics());
}

fn check(region: &SwapRegion) {
    let statistics = region.statistics();
    assert!(statistics.resident <= statistics.limit, "{statistics:?}");
    assert_eq!(statistics.over_limit, 0, "{statistics:?}");
    assert!(statistics.evicted > 0 && statistics.swap_ins > 0, "{statistics:?}");
}

#[test]
fn no_increment_is_lost_by_any_mechanism_with_any_number_of_threads() {
    for mechanism in mechanisms() {
        let factor = factor(mechanism);
        for (threads, times) in [(1, 4), (2, 8), (4, 16), (8, 6)] {
            let limit = MIB / 2 * factor;
            let size = limit * times;
            let region = region(size, limit, &format!("ram:size={}", size + MIB)).mechanism(mechanism).build().unwrap();
            increment(&region, threads, 10_000 / threads / factor);
            check(&region);
        }
    }
}

#[test]
fn no_increment_is_lost_when_the_poll_policy_changes() {
    for mechanism in mechanisms() {
        let limit = MIB / 2 * factor(mechanism);
        let (device, policy) = device("delay(ram:size=64M,read=20us,write=50us)");
        let builder = SwapRegion::builder().size(4 * limit).limit(limit).device(device);
        let region = builder.mechanism(mechanism).build().unwrap();
        let policies =
            [PollPolicy::Interrupt, PollPolicy::HybridAdaptive, PollPolicy::HybridFixed(5000), PollPolicy::Classic];
        for now in policies {
            policy.set(now);
            for threads in [1, 2, 4, 8] {
                increment(&region, threads, 600 / threads / factor(mechanism));
            }
        }
        // The policy also changes while other threads increment.
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for now in policies.into_iter().cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    policy.set(now);
                    std::thread::yield_now();
                }
            });
            increment(&region, 4, 300 / factor(mechanism));
            done.store(true, Ordering::Relaxed);
        });
        check(&region);
    }
}

/// In a new region, one thread often evicts a cluster while another thread pages in a neighbouring
/// cluster. In a region that was used for a long time, this is much rarer.
#[test]
fn no_increment_is_lost_in_short_lived_regions() {
    for mechanism in mechanisms().into_iter().filter(|mechanism| factor(*mechanism) == 1) {
        for _ in 0..5 {
            let region = region(4 * MIB, MIB / 2, "ram:size=8M").mechanism(mechanism).build().unwrap();
            increment(&region, 4, 2000);
        }
    }
}

#[test]
fn no_increment_is_lost_while_some_writes_fail() {
    for mechanism in mechanisms() {
        let limit = MIB / 2 * factor(mechanism);
        let (device, switch) = switch::device(8 * limit);
        switch.fails_each.store(3, Ordering::Relaxed);
        let builder = SwapRegion::builder().size(4 * limit).limit(limit).device(device);
        let region = builder.mechanism(mechanism).build().unwrap();
        increment(&region, 4, 3000 / factor(mechanism));
        let statistics = region.statistics();
        assert!(statistics.write_errors > 0 && statistics.swap_ins > 0, "{statistics:?}");
    }
}

#[test]
fn no_increment_is_lost_with_short_and_late_transfers() {
    for mechanism in mechanisms() {
        let limit = MIB / 2 * factor(mechanism);
        let backing =
            "error(delay(ram:size=64M,block=512,read=exponential(20us)),seed=7,short=0.2,late=0.01,late-by=2ms)";
        let region = region(4 * limit, limit, backing).mechanism(mechanism).build().unwrap();
        increment(&region, 4, 1000 / factor(mechanism));
        check(&region);
    }
}

#[test]
fn no_increment_is_lost_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for mechanism in mechanisms() {
        let limit = MIB / 2 * factor(mechanism);
        let path = folder.path().join(mechanism.name());
        std::fs::File::create(&path).unwrap();
        let backing = format!("file:path={},size=64M,create=on", path.display());
        let region = region(4 * limit, limit, &backing).mechanism(mechanism).build().unwrap();
        increment(&region, 2, 1000 / factor(mechanism));
        check(&region);
    }
}

#[test]
fn no_increment_is_lost_during_limit_changes_pins_and_discards() {
    for mechanism in mechanisms() {
        let limit = MIB * factor(mechanism);
        let region = region(8 * limit, limit, "ram:size=128M").mechanism(mechanism).build().unwrap();
        let done = AtomicBool::new(false);
        // One thread discards and writes pages of the upper half, and pins pages of the lower half.
        // Two threads increment counters of the lower half.
        let half = region.size() / 2;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Rng::with_seed(99);
                while !done.load(Ordering::Relaxed) {
                    region.set_limit([limit / 2, limit, limit / 4 * 3][random.usize(..3)]).unwrap();
                    let start = half + random.usize(..half / region.page_size()) * region.page_size();
                    let end = (start + 16 * region.page_size()).min(region.size());
                    word(&region, start).store(1, Ordering::Relaxed);
                    region.discard_shared(start..end).unwrap();
                    let length = 1 + random.usize(..20 * region.page_size());
                    let pinned = random.usize(..half - length);
                    let access = [Access::Read, Access::Write][random.usize(..2)];
                    let pin = region.pin(pinned..pinned + length, access).unwrap();
                    drop(pin);
                }
            });
            let add = || {
                let mut random = Rng::with_seed(5);
                for _ in 0..5000 / factor(mechanism) {
                    counter(&region, random.usize(..half / PART)).fetch_add(1, Ordering::Relaxed);
                }
            };
            let other = scope.spawn(add);
            add();
            other.join().unwrap();
            done.store(true, Ordering::Relaxed);
        });
        let sum: u64 = (0..half / PART).map(|part| counter(&region, part).load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 2 * (5000 / factor(mechanism)) as u64, "{mechanism} {:?}", region.statistics());
    }
}

#[test]
fn a_region_can_be_dropped_at_any_moment_after_its_last_use() {
    for mechanism in mechanisms() {
        let limit = MIB / 4 * factor(mechanism);
        for round in 0..20 {
            let backing = "delay(ram:size=16M,write=uniform(0us,300us))";
            let mut region = region(2 * limit, limit, backing).mechanism(mechanism).build().unwrap();
            let size = region.size();
            let end = size / 2 + size / 40 * round;
            region.as_mut_slice()[..end].iter_mut().step_by(512).for_each(|byte| *byte = 1);
        }
    }
}

#[test]
fn a_new_region_reads_as_zeroes_and_keeps_written_data() {
    for mechanism in mechanisms() {
        let mut region = region(16 * MIB, 4 * MIB, "ram:size=16M").mechanism(mechanism).build().unwrap();
        assert!(region.as_slice().iter().all(|byte| *byte == 0));
        for (index, page) in region.as_mut_slice().chunks_exact_mut(PAGE).enumerate() {
            page.fill(index as u8 | 1);
        }
        for _ in 0..2 {
            for (index, page) in region.as_slice().chunks_exact(PAGE).enumerate() {
                assert!(page.iter().all(|byte| *byte == index as u8 | 1), "{mechanism}: page {index}");
            }
        }
        let statistics = region.statistics();
        assert!(statistics.read_ahead > 0, "{statistics:?}");
    }
}
