//! Memory of the program that the back end sees as well. The driver keeps the
//! list; each queue pair keeps a copy, renewed when the list has changed, so
//! that no lock stands on the way of a request.

use alloc::vec::Vec;
use usring_sys::mutex::Mutex;
use usring_sys::plain::IoVector;
use usring_sys::sync::{AtomicU32, Ordering};

/// Whole pages of the program, and where the back end sees them.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub start: u64,
    pub length: u64,
    /// As the back end knows the start.
    pub address: u64,
    /// By which the control plane knows it.
    pub slot: u32,
}

/// The driver's list.
#[derive(Default)]
pub struct Shares {
    /// Counts the changes. A queue that reads an older one for a moment more
    /// is right as well: a share begins before the first request that needs it
    /// and ends after the last.
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

    /// The share of exactly this memory, which is one no more.
    pub fn remove(&self, start: u64, length: u64) -> Option<Share> {
        let mut list = self.list.lock();
        let place = list.iter().position(|share| (share.start, share.length) == (start, length))?;
        self.version.fetch_add(1, Ordering::Release);
        Some(list.remove(place))
    }
}

/// A queue pair's copy.
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

    /// Where the back end sees all of a segment, if it does.
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
    fn a_segment_is_found_where_all_of_it_is_shared() {
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
}
