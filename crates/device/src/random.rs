//! A small generator of pseudo-random numbers, so that what a device does by
//! chance it does again under the same seed: Steele, Lea and Flood's SplitMix64
//! ("Fast splittable pseudorandom number generators", 2014). Every 64-bit value
//! comes once per period of 2⁶⁴. Not for secrets.

/// One sequence of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Odd, near 2⁶⁴ divided by the golden ratio: the step of the sequence.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The sequence number `index` of a seed's: one for each queue pair or
    /// call, which need not share one then.
    pub fn of(seed: u64, index: u64) -> Random {
        Random(mix(seed ^ mix(index.wrapping_add(1).wrapping_mul(STEP))))
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `end`, each as likely as the others (to within 2⁻⁶⁴ of `end`).
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        share_of(self.next(), end)
    }
}

/// The share `number` / 2⁶⁴ of a whole, rounded down.
#[inline]
pub fn share_of(number: u64, whole: u64) -> u64 {
    ((u128::from(number) * u128::from(whole)) >> 64) as u64
}

#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation's first numbers for the seed 1234567.
    #[test]
    fn the_sequence_is_splitmix64s() {
        let mut random = Random::new(1_234_567);
        let first: [u64; 5] = core::array::from_fn(|_| random.next());
        let reference = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(first, reference);
    }

    #[test]
    fn sequences_of_one_seed_differ() {
        assert_ne!(Random::of(7, 0).next(), Random::of(7, 1).next());
        assert_ne!(Random::of(7, 0).next(), Random::of(8, 0).next());
        assert_eq!(Random::of(7, 3).next(), Random::of(7, 3).next());
    }
}
