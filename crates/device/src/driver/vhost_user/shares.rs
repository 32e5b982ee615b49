//! Memory of the program that is shared with the back end. The driver has a list of this memory.
//! Each queue pair has a copy of the list, and renews the copy when the list has changed. So
//! requests take no lock.

use alloc::vec::Vec;
use usring_sys::mutex::Mutex;
use usring_sys::plain::IoVector;
use usring_sys::process_maps::Area;
use usring_sys::sync::{AtomicU32, Ordering};
use usring_sys::width;

/// Whole pages of the program that are shared with the back end, and their address in the back end.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub start: u64,
    pub length: u64,
    /// Address by which requests to the back end name the memory's first byte.
    pub address: u64,
    /// Number by which the control plane knows the share.
    pub slot: u32,
    /// Device and inode of the share's memory file in the list of mappings. `None` if the list
    /// could not be read.
    pub file: Option<FileNumbers>,
}

/// Device (major and minor number) and inode of a mapped file.
pub type FileNumbers = ((u32, u32), u64);

impl Share {
    fn is_exactly(&self, start: u64, length: u64) -> bool {
        (self.start, self.length) == (start, length)
    }

    fn overlaps(&self, memory: IoVector) -> bool {
        self.start < memory.base.saturating_add(memory.length) && memory.base < self.start + self.length
    }

    /// Returns whether the share's pages still lie at the share's addresses. Returns `false` if the
    /// mappings are not known. `area_of` returns the mapping that contains an address.
    pub fn is_mapped(&self, area_of: impl Fn(usize) -> Option<Area>) -> bool {
        let (start, end) = (width::size(self.start), width::size(self.start + self.length));
        let mut at = start;
        while at < end {
            let Some(area) = area_of(at).filter(|area| area.range.contains(&at)) else { return false };
            let is_same = area.is_shared && self.file == Some((area.device, area.inode));
            if !is_same || area.offset + (at - area.range.start) as u64 != (at - start) as u64 {
                return false;
            }
            at = area.range.end;
        }
        true
    }
}

#[derive(Default)]
struct Lists {
    /// In order of address.
    current: Vec<Share>,
    /// Shares at whose addresses the program has mapped other memory. New requests do not use them.
    /// Earlier requests may still use them.
    replaced: Vec<Share>,
}

/// The driver's list of shared memory.
#[derive(Default)]
pub struct Shares {
    /// Counts the changes of the list, so that a queue pair notices that its copy of the list is
    /// old. A queue pair may briefly use an old copy, which does no harm. Memory is shared before
    /// it enters the list, and stays shared until the last request that uses it has completed.
    version: AtomicU32,
    lists: Mutex<Lists>,
}

impl Shares {
    pub fn add(&self, share: Share) {
        let list = &mut self.lists.lock().current;
        let place = list.partition_point(|other| other.start < share.start);
        list.insert(place, share);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Removes and returns a share of exactly this memory, preferably a replaced one. `None` if
    /// there is none.
    pub fn remove(&self, start: u64, length: u64) -> Option<Share> {
        let mut lists = self.lists.lock();
        if let Some(place) = lists.replaced.iter().position(|share| share.is_exactly(start, length)) {
            return Some(lists.replaced.swap_remove(place));
        }
        let place = lists.current.iter().position(|share| share.is_exactly(start, length))?;
        self.version.fetch_add(1, Ordering::Release);
        Some(lists.current.remove(place))
    }

    /// Hides shares from new requests: those that overlap this memory. A share for which
    /// `is_mapped` returns true stays visible.
    pub fn replace(&self, memory: IoVector, is_mapped: impl Fn(&Share) -> bool) {
        let Lists { current, replaced } = &mut *self.lists.lock();
        let count = current.len();
        current.retain(|share| {
            let is_kept = !share.overlaps(memory) || is_mapped(share);
            if !is_kept {
                replaced.push(*share);
            }
            is_kept
        });
        if current.len() != count {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Removes and returns a replaced share that has any byte of this memory. `None` if there is
    /// none.
    pub fn remove_replaced(&self, memory: IoVector) -> Option<Share> {
        let replaced = &mut self.lists.lock().replaced;
        let place = replaced.iter().position(|share| share.overlaps(memory))?;
        Some(replaced.swap_remove(place))
    }
}

/// A queue pair's copy of the driver's list.
#[derive(Default)]
pub struct KnownShares {
    version: u32,
    list: Vec<Share>,
}

impl KnownShares {
    #[inline]
    pub fn renew(&mut self, shares: &Shares) {
        if shares.version.load(Ordering::Acquire) != self.version {
            let lists = shares.lists.lock();
            self.version = shares.version.load(Ordering::Relaxed);
            self.list.clone_from(&lists.current);
        }
    }

    /// Returns the address by which requests to the back end name a segment. `None` unless all of
    /// the segment is shared.
    #[inline]
    pub fn find(&self, segment: IoVector) -> Option<u64> {
        let after = self.list.partition_point(|share| share.start <= segment.base);
        let share = self.list.get(after.checked_sub(1)?)?;
        let inside = segment.base - share.start;
        (inside <= share.length && segment.length <= share.length - inside).then(|| share.address + inside)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn share(start: u64, length: u64, address: u64, slot: u32) -> Share {
        Share { start, length, address, slot, file: Some(((0, 1), 7)) }
    }

    #[test]
    fn a_segment_is_found_only_if_all_of_it_is_shared() {
        let (shares, mut known) = (Shares::default(), KnownShares::default());
        shares.add(share(0x8000, 0x2000, 0x1000, 1));
        shares.add(share(0x4000, 0x1000, 0x9000, 0));
        known.renew(&shares);
        let find = |known: &KnownShares, base, length| known.find(IoVector { base, length });
        assert_eq!(find(&known, 0x4000, 0x1000), Some(0x9000));
        assert_eq!(find(&known, 0x4200, 0xe00), Some(0x9200));
        assert_eq!(find(&known, 0x4200, 0xe01), None);
        assert_eq!(find(&known, 0x3fff, 2), None);
        assert_eq!(find(&known, 0x9ff0, 16), Some(0x2ff0));
        assert_eq!(find(&known, 0x9ff0, u64::MAX), None);
        assert!(shares.remove(0x4000, 0x1000).is_some());
        assert!(shares.remove(0x8000, 0x1000).is_none());
        known.renew(&shares);
        assert_eq!(find(&known, 0x4000, 0x1000), None);
    }

    #[test]
    fn a_replaced_share_is_hidden_from_new_requests_until_it_is_removed() {
        let (shares, mut known) = (Shares::default(), KnownShares::default());
        let memory = |base, length| IoVector { base, length };
        shares.add(share(0x8000, 0x2000, 0x1000, 1));
        shares.replace(memory(0x7000, 0x1000), |_| false);
        shares.replace(memory(0xa000, 0x1000), |_| false);
        shares.replace(memory(0x9200, 8), |_| true);
        known.renew(&shares);
        assert_eq!(known.find(memory(0x9000, 8)), Some(0x2000));
        shares.replace(memory(0x9200, 8), |_| false);
        known.renew(&shares);
        assert_eq!(known.find(memory(0x9000, 8)), None);
        shares.add(share(0x8000, 0x2000, 0x5000, 2));
        assert!(shares.remove_replaced(memory(0xa000, 8)).is_none());
        assert_eq!([(); 3].map(|()| shares.remove(0x8000, 0x2000).map(|share| share.slot)), [Some(1), Some(2), None]);
    }

    #[test]
    fn a_share_is_mapped_if_all_its_pages_lie_at_its_addresses() {
        let area = |start, end, offset, inode| Area {
            range: start..end,
            protection: 3,
            is_shared: true,
            offset,
            device: (0, 1),
            inode,
        };
        let is_mapped = |areas: &[Area]| {
            let area_of = |at: usize| areas.iter().find(|area| area.range.contains(&at)).cloned();
            share(0x8000, 0x2000, 0x1000, 1).is_mapped(area_of)
        };
        assert!(is_mapped(&[area(0x8000, 0xa000, 0, 7)]));
        assert!(is_mapped(&[area(0x8000, 0x9000, 0, 7), area(0x9000, 0xa000, 0x1000, 7)]));
        assert!(!is_mapped(&[area(0x8000, 0x9000, 0, 7), area(0x9000, 0xa000, 0, 8)]));
        assert!(!is_mapped(&[area(0x8000, 0x9000, 0, 7), area(0x9000, 0xa000, 0, 7)]));
        assert!(!is_mapped(&[area(0x8000, 0x9000, 0, 7)]));
        assert!(!is_mapped(&[Area { is_shared: false, ..area(0x8000, 0xa000, 0, 7) }]));
    }
}
