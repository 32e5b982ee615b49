//! Sets of descriptor numbers.

use crate::width;
use core::sync::atomic::{AtomicU64, Ordering};

/// Upper bound: every descriptor number of usring is below this one.
pub(crate) const NUMBERS: i32 = 65536;

/// A set of descriptor numbers, as a bitmap. Only the current owner of a number changes its bit.
pub(crate) struct Numbers([AtomicU64; NUMBERS as usize / 64]);

impl Numbers {
    pub const fn none() -> Numbers {
        Numbers([const { AtomicU64::new(0) }; NUMBERS as usize / 64])
    }

    fn word(&self, number: i32) -> Option<(&AtomicU64, u64)> {
        self.0.get(width::index(number) / 64).map(|word| (word, 1 << (number % 64)))
    }

    #[inline]
    pub fn has(&self, number: i32) -> bool {
        number >= 0 && self.word(number).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    pub fn insert(&self, number: i32) {
        if let Some((word, bit)) = self.word(number) {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Removes a number from the set. Returns whether this call removed it: `false` if it was not
    /// in the set.
    pub fn remove(&self, number: i32) -> bool {
        self.has(number)
            && self.word(number).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Acquire) & bit != 0)
    }

    /// Returns the numbers in the set from `first` to `last`, in order.
    pub fn between(&self, first: u32, last: u32) -> impl Iterator<Item = i32> {
        let end = (last as usize).saturating_add(1).min(NUMBERS as usize);
        let words = first as usize / 64..end.div_ceil(64).max(first as usize / 64);
        let bits = words.flat_map(move |index| {
            let mut bits = self.0[index].load(Ordering::Relaxed);
            core::iter::from_fn(move || {
                let number = (bits != 0).then(|| index * 64 + bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(number)
            })
        });
        bits.filter(move |number| (first as usize..end).contains(number)).map(|number| width::int(number as u64))
    }

    /// Removes all numbers. Writes only to memory that has numbers.
    pub fn clear(&self) {
        let used = self.0.iter().filter(|word| word.load(Ordering::Relaxed) != 0);
        used.for_each(|word| word.store(0, Ordering::Relaxed));
    }
}
