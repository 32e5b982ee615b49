//! Where other processes find the memory of this process's rings.
//!
//! A process that gets a ring's descriptor by pidfd_getfd(2) reads this table in the memory of the
//! process from which it has the descriptor. So the table has a fixed place in the library.

use crate::files::numbers::NUMBERS;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_engine::Place;
use usring_sys::width;

/// For each descriptor number of a ring, the ring's place as [`word_of`] packs it; 0 if other
/// processes cannot reach the ring.
static PLACES: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// Number of bits of a descriptor number plus 1.
const NUMBER_BITS: u32 = 17;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// The offset of a ring in its file is a multiple of this number.
const OFFSET_UNIT: usize = 64;

/// Packs a place into one word, which is not 0. `None`: a number is too high.
pub fn word_of(place: Place) -> Option<u64> {
    let number = |number: i32| Some(width::word(number + 1)).filter(|number| *number <= NUMBER_MASK);
    let offset = (place.offset / OFFSET_UNIT) as u64;
    let fits = offset < 1 << (64 - 2 * NUMBER_BITS);
    fits.then_some(offset << (2 * NUMBER_BITS) | number(place.watcher)? << NUMBER_BITS | number(place.memory)?)
}

/// Unpacks a word of [`word_of`]. `None`: there is no place.
pub fn place_of(word: u64) -> Option<Place> {
    let number = |bits: u64| width::int(bits & NUMBER_MASK) - 1;
    let offset = width::size(word >> (2 * NUMBER_BITS)) * OFFSET_UNIT;
    let place = Place { memory: number(word), offset, watcher: number(word >> NUMBER_BITS) };
    (place.memory >= 0).then_some(place)
}

/// Returns the word of a number in the table; 0 if there is no place.
pub fn word(number: i32) -> u64 {
    PLACES.get(width::index(number)).map_or(0, |word| word.load(Ordering::Acquire))
}

/// Sets the word of a number in the table. A number beyond the table is ignored.
pub fn set(number: i32, word: u64) {
    PLACES.get(width::index(number)).into_iter().for_each(|place| place.store(word, Ordering::Release));
}

/// Returns the address of a number's word. `None`: the number is beyond the table.
pub fn address_of(number: i32) -> Option<usize> {
    PLACES.get(width::index(number)).map(|word| core::ptr::from_ref(word) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_fits_in_a_word() {
        for (memory, offset, watcher) in [(0, 0, -1), (65_535, 1 << 30, 65_535), (1024, 4096 + 64, 1030)] {
            let place = place_of(word_of(Place { memory, offset, watcher }).unwrap()).unwrap();
            assert_eq!((place.memory, place.offset, place.watcher), (memory, offset, watcher));
        }
        assert!(place_of(0).is_none());
    }
}
