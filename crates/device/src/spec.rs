//! A device in words, as the command line takes it and every process of a run
//! reads it again:
//!
//! ```text
//! SPEC    = KIND ":" OPTION ("," OPTION)* | WRAPPER "(" SPEC ("," OPTION)* ")" ["," "poll=" POLICY]
//! OPTION  = NAME "=" VALUE
//! ```

use usring_sys::clock::Nanoseconds;

/// A span of time: a number with `ns`, `us`, `ms` or `s`. `None` if it is none, or too long to count.
pub fn span(text: &str) -> Option<Nanoseconds> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}
