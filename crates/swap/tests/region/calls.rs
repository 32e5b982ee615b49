//! System calls whose memory lies in a region: on evicted pages, and on pages that the caller keeps
//! resident.

use crate::common::{MIB, PAGE, factor, mechanisms, region, word};
use crate::switch;
use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use usring_swap::{Access, Mechanism, SwapRegion};
use usring_sys::Errno;

/// Returns a region whose pages were all written in ascending order. So the last pages are
/// resident, and the first pages are evicted.
fn used(mechanism: Mechanism) -> SwapRegion {
    let limit = MIB * factor(mechanism);
    let mut region = region(8 * limit, limit, "ram:size=128M").mechanism(mechanism).readahead(0).build().unwrap();
    region.as_mut_slice().iter_mut().step_by(PAGE).for_each(|byte| *byte = 7);
    region
}

#[test]
fn resident_pages_can_be_read_and_written_by_system_calls() {
    for mechanism in mechanisms() {
        let mut region = used(mechanism);
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let range = 10..10 + 40_000;
        let content = region.as_slice()[range.clone()].to_vec();
        for round in 0..3 {
            // Evicts the pages of the range again.
            region.as_mut_slice()[MIB..].iter_mut().step_by(PAGE).for_each(|byte| *byte = 8 + round);
            let written = region.with_resident(range.clone(), Access::Read, |bytes| writer.write_all(bytes));
            written.unwrap().unwrap();
            region.as_mut_slice()[MIB..].iter_mut().step_by(PAGE).for_each(|byte| *byte = 9 + round);
            let read = region.with_resident(range.clone(), Access::Write, |bytes| {
                bytes.fill(0);
                reader.read_exact(bytes)
            });
            read.unwrap().unwrap();
            assert!(region.as_slice()[range.clone()] == content, "{mechanism}");
        }
        assert_eq!(region.statistics().pinned, 0);
    }
}

#[test]
fn a_system_call_on_an_evicted_page_fails_unless_a_thread_serves_it() {
    for mechanism in mechanisms() {
        let region = used(mechanism);
        let (_reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the 100 bytes are within the region. The kernel checks each access to them, and
        // no reference to them is used during the call.
        let answer = unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&writer), region.as_ptr().cast(), 100) };
        match mechanism {
            Mechanism::Thread => assert_eq!(answer, 100),
            _ => assert_eq!((answer, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT))),
        }
    }
}

#[test]
fn pinned_pages_stay_resident_and_at_most_half_the_limit_can_be_pinned() {
    for mechanism in mechanisms() {
        let region = used(mechanism);
        let limit = region.statistics().limit as usize * region.page_size();
        let pin = region.pin(0..limit / 4, Access::Write).unwrap();
        let again = region.pin(5..limit / 4 - 5, Access::Read).unwrap();
        let faults = region.statistics().swap_ins;
        for page in 0..limit / 4 / region.page_size() {
            word(&region, page * region.page_size()).store(3, Ordering::Relaxed);
        }
        assert_eq!(region.statistics().swap_ins, faults, "{mechanism}: a pinned page was evicted");
        assert_eq!(region.pin(0..limit, Access::Read).err(), Some(Errno::ENOMEM));
        assert_eq!(region.statistics().pinned as usize, limit / 4 / region.page_size());
        drop(pin);
        drop(again);
        assert_eq!(region.statistics().pinned, 0);
        assert_eq!(region.pin(0..region.size() + 1, Access::Read).err(), Some(Errno::EINVAL));
    }
}

#[test]
fn discarded_pages_read_as_zeroes_and_occupy_no_slots() {
    for mechanism in mechanisms() {
        let mut region = used(mechanism);
        let unit = region.page_size();
        let before = region.statistics();
        let half = region.size() / 2;
        region.discard(half..region.size()).unwrap();
        let after = region.statistics();
        assert!(after.slots_taken <= before.slots / 2 && after.slots_taken < before.slots_taken, "{after:?}");
        assert!(region.as_slice()[half..].iter().all(|byte| *byte == 0));
        assert!(region.as_slice()[..half].iter().step_by(PAGE).all(|byte| *byte == 7));
        assert_eq!(region.discard(1..unit), Err(Errno::EINVAL));
        let pin = region.pin(0..1, Access::Read).unwrap();
        assert_eq!(region.discard_shared(0..unit), Err(Errno::EBUSY));
        drop(pin);
        region.discard(0..unit).unwrap();
        assert_eq!(region.as_slice()[0], 0);
    }
}

#[test]
fn pages_that_are_pinned_together_are_read_together() {
    for mechanism in mechanisms() {
        let limit = MIB / 2 * factor(mechanism);
        let (device, switch) = switch::device(16 * limit);
        let builder = SwapRegion::builder().size(4 * limit).limit(limit).device(device).readahead(0);
        let region = builder.mechanism(mechanism).build().unwrap();
        let unit = region.page_size();
        let fill = |from: usize| {
            (from..region.size() / unit)
                .for_each(|page| word(&region, page * unit).store(page as u64, Ordering::Relaxed));
        };
        let pinned = limit / 2 / unit;
        for access in [Access::Read, Access::Write] {
            // `fill` writes the pages in ascending order. So the last pages are resident, and the
            // first pages are evicted.
            fill(0);
            let before = (switch.reads.load(Ordering::Relaxed), region.statistics());
            let pin = region.pin(0..pinned * unit, access).unwrap();
            let reads = switch.reads.load(Ordering::Relaxed) - before.0;
            let statistics = region.statistics();
            assert!(statistics.swap_ins - before.1.swap_ins >= pinned as u64 * 3 / 4, "{mechanism}: {statistics:?}");
            let least = (pinned * unit).div_ceil(128 << 10) as u64;
            assert!((least / 2..=4 * least).contains(&reads), "{mechanism}: {reads} requests for {pinned} pages");
            assert!(statistics.resident <= statistics.limit && statistics.over_limit == 0, "{statistics:?}");
            (0..pinned).for_each(|page| assert_eq!(word(&region, page * unit).load(Ordering::Relaxed), page as u64));
            drop(pin);
        }
        // A failed read must not lose a page.
        fill(0);
        switch.fails_reads.store(true, Ordering::Relaxed);
        assert_eq!(region.pin(0..pinned * unit, Access::Read).err(), Some(Errno::EIO), "{mechanism}");
        switch.fails_reads.store(false, Ordering::Relaxed);
        assert_eq!(region.statistics().pinned, 0);
        (0..region.size() / unit).for_each(|page| {
            assert_eq!(word(&region, page * unit).load(Ordering::Relaxed), page as u64, "{mechanism}");
        });
        let statistics = region.statistics();
        assert!(statistics.resident <= statistics.limit, "{statistics:?}");
    }
}
