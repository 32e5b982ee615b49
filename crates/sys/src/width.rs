//! Conversions between the widths of integers: Linux's 64-bit words, C's `int`, and Rust's `usize`.
//!
//! - The lints for lossy `as` casts are denied in every product crate. Code in which a value may
//!   lose bits uses one of these functions, or states its reason in an `expect`.
//! - No function of this file adds a branch to a release build.
//! - Some numbers are chosen by the program and must not lose bits. They are checked (`try_from`)
//!   instead, and the call fails with the errno that Linux returns.

const _: () = assert!(usize::BITS == 64, "usring serves 64-bit targets only");

/// Returns a 64-bit length or address as `usize`. Loses no bits, since all targets are 64-bit.
#[inline(always)]
pub const fn size(word: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the assertion above: usize has 64 bits")]
    let size = word as usize;
    size
}

/// Returns C's `int` as a system call's argument: sign-extended to 64 bits.
#[inline(always)]
pub const fn word(int: i32) -> u64 {
    #[expect(clippy::cast_sign_loss, reason = "the bits are meant")]
    let word = int as u64;
    word
}

/// Returns the lower 32 bits of a word, as Linux reads an argument of type `unsigned int`.
#[inline(always)]
pub const fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// Returns the lower 32 bits of a word as C's `int`, as Linux reads an argument of type `int`. A
/// value that fits, such as a descriptor or a count of bytes below 2 GiB, is unchanged.
#[inline(always)]
pub const fn int(word: u64) -> i32 {
    low(word).cast_signed()
}

/// Returns an index or count as `u32`. The caller guarantees that the index or count is below 2³²,
/// which debug builds check.
#[inline(always)]
pub const fn count(size: usize) -> u32 {
    debug_assert!(size <= u32::MAX as usize, "a count below 2^32");
    #[expect(clippy::cast_possible_truncation, reason = "the caller's bound, which debug builds check")]
    let count = size as u32;
    count
}

/// Returns a descriptor's number as an index. For a negative number, the index is beyond the end of
/// every table.
#[inline(always)]
pub const fn index(number: i32) -> usize {
    #[expect(clippy::cast_sign_loss, reason = "an index beyond every table is meant")]
    let index = number as usize;
    index
}

/// Returns the lower 16 bits of a word.
#[inline(always)]
pub const fn short(word: u64) -> u16 {
    (word & 0xffff) as u16
}

/// Returns the lower 8 bits of a word.
#[inline(always)]
pub const fn byte(word: u64) -> u8 {
    (word & 0xff) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_int_keeps_its_sign_in_a_word_and_back() {
        assert_eq!(word(-100), 0xffff_ffff_ffff_ff9c);
        assert_eq!(int(word(-100)), -100);
        assert_eq!(int(0xdead_0000_0003), 3);
        assert_eq!(low(0xdead_ffff_ffff), u32::MAX);
        assert_eq!(short(0x1234_fffe), 0xfffe);
        assert_eq!(byte(0x1234_fffe), 0xfe);
    }

    #[test]
    fn sizes_keep_all_bits() {
        assert_eq!(size(u64::MAX), usize::MAX);
        assert_eq!(count(0xffff_ffff), u32::MAX);
    }

    #[test]
    fn a_negative_descriptor_has_no_place_in_a_table() {
        assert_eq!(index(7), 7);
        assert_eq!(index(-1), usize::MAX);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a count below 2^32")]
    fn a_count_beyond_its_bound_is_found_in_debug_builds() {
        count(1 << 32);
    }
}
