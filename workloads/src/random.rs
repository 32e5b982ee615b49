//! Marsaglia's xorshift: which block is next.

/// Pseudo-random numbers, the same in every run.
pub struct Random(u64);

impl Default for Random {
    fn default() -> Random {
        Random(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    /// Others for each number.
    pub fn of(number: u64) -> Random {
        Random(Random::default().0 ^ (number + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    /// A number below `end`.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper half of the product: no division.
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }
}
