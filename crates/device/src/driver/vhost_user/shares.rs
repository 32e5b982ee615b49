//! Memory of the program that is shared with the back end. The driver has a list of this memory.
//! Each queue pair has a copy of the list, and renews the copy when the list has changed. So
//! requests take no lock.

use alloc::vec::Vec;
use usring_sys::mutex::Mutex;
use usring_sys::plain::IoVector;
use usring_sys::sync::{AtomicU32, Ordering};

/// Whole pages of the program that are shared with the back end, and their address in the back end.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub start: u64,
    pub length: u64,
    /// Address by which requests to the back end name the memory's first byte.
    pub address: u64,
    /// Number by which the control plane knows the share.
    pub slot: u32,
}

/// The driver's list of shared memory, in order of address.
#[derive(Default)]
pub struct Shares {
    /// Counts the changes of the list. A queue pair may briefly use an older copy of the list,
    /// which does no harm. Memory is shared before it enters the list, and stays shared until the
    /// last request that uses it has completed.
    version: AtomicU32,
    list: Mutex<Vec<Share>>,
}

impl Shares {
    pub fn add(&self, share: Share) {
        let mut list = self.list.lock();
        let place = list.partition_point(|other| other.start < share.start);
        list.insert(place, share);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Removes and returns the share of exactly this memory. `None` if there is none.
    pub fn remove(&self, start: u64, length: u64) -> Option<Share> {
        let mut list = self.list.lock();
        let place = list.iter().position(|share| (share.start, share.length) == (start, length))?;
        self.version.fetch_add(1, Ordering::Release);
        Some(list.remove(place))
    }

    /// Removes and returns a share that has any byte of this memory. `None` if there is none.
    pub fn remove_overlapping(&self, start: u64, length: u64) -> Option<Share> {
        let mut list = self.list.lock();
        let overlaps = |share: &Share| share.start < start + length && start < share.start + share.length;
        let place = list.iter().position(overlaps)?;
        self.version.fetch_add(1, Ordering::Release);
        Some(list.remove(place))
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
            let list = shares.list.lock();
            self.version = shares.version.load(Ordering::Relaxed);
            self.list.clone_from(&list);
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

    #[test]
    fn a_segment_is_found_only_if_all_of_it_is_shared() {
        let (shares, mut known) = (Shares::default(), KnownShares::default());
        shares.add(Share { start: 0x8000, length: 0x2000, address: 0x1000, slot: 1 });
        shares.add(Share { start: 0x4000, length: 0x1000, address: 0x9000, slot: 0 });
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
    fn a_share_is_found_by_any_byte_of_its_memory() {
        let shares = Shares::default();
        shares.add(Share { start: 0x8000, length: 0x2000, address: 0x1000, slot: 1 });
        assert!(shares.remove_overlapping(0x7000, 0x1000).is_none());
        assert!(shares.remove_overlapping(0xa000, 0x1000).is_none());
        let slot = shares.remove_overlapping(0x9000, 0x4000).map(|share| share.slot);
        assert_eq!(slot, Some(1));
        assert!(shares.remove_overlapping(0x8000, 0x2000).is_none());
    }
}
