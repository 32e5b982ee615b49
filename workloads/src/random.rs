//! Pseudo-random numbers for choosing blocks: Marsaglia's xorshift.

/// A generator of pseudo-random numbers, which are the same in every run.
pub struct Random(u64);

impl Default for Random {
    fn default() -> Random {
        Random(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    /// Returns a generator whose sequence depends on `number`.
    pub fn of(number: u64) -> Random {
        Random(Random::default().0 ^ (number + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    /// Returns a number below `end`.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // Takes the upper half of the product, which avoids a division.
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }
}
