//! A small generator of pseudo-random numbers. With an equal seed, a device repeats its random
//! behaviour. The algorithm is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
//! number generators", 2014). Each 64-bit value appears once in the period of 2⁶⁴. The numbers are
//! not for secrets.

/// A sequence of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// Step of the sequence: odd, and near 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// Makes the sequence that belongs to a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Makes sequence number `index` of a seed. Each queue pair and each blocking call gets a
    /// sequence of its own, so that no two of them share the state of a generator.
    pub fn of(seed: u64, index: u64) -> Random {
        Random(mix(seed ^ mix(index.wrapping_add(1).wrapping_mul(STEP))))
    }

    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number below `end`. All numbers are equally likely, to within `end` · 2⁻⁶⁴.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        share_of(self.draw(), end)
    }
}

/// Returns `whole` × `number` / 2⁶⁴, rounded down.
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

    /// The first numbers of the reference implementation for the seed 1234567.
    #[test]
    fn random_numbers_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first: [u64; 5] = core::array::from_fn(|_| random.draw());
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
    fn sequences_of_one_seed_differ_by_their_stream_number() {
        assert_ne!(Random::of(7, 0).draw(), Random::of(7, 1).draw());
        assert_ne!(Random::of(7, 0).draw(), Random::of(8, 0).draw());
        assert_eq!(Random::of(7, 3).draw(), Random::of(7, 3).draw());
    }
}
