//! Computes from an address or a thread pointer the row of a table at which a search begins, by
//! Fibonacci hashing. Nearby addresses get rows that are far apart.

use crate::width;

/// 2^64 divided by the golden ratio, as an odd number.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the row at which a search for `value` begins, in a table with `rows` rows. `rows` is a
/// power of two above 1.
#[inline(always)]
pub const fn row(value: usize, rows: usize) -> usize {
    debug_assert!(rows.is_power_of_two() && rows > 1);
    width::size((value as u64).wrapping_mul(GOLDEN) >> (64 - rows.trailing_zeros()))
}
