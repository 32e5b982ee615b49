//! Spans of time as people write them: `10us`, `2ms`.

use core::fmt;
use usring_sys::clock::Nanoseconds;

/// A span of time: a number with `ns`, `us`, `ms` or `s`. `None` if it is none, or too long to count.
pub fn parse(text: &str) -> Option<Nanoseconds> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(digits);
    let scale = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    // Only digits: nothing like "+5".
    (!digits.is_empty()).then_some(digits)?.parse::<u64>().ok()?.checked_mul(scale)
}

/// In the largest unit that leaves nothing over.
pub fn write(f: &mut fmt::Formatter<'_>, span: Nanoseconds) -> fmt::Result {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    match units.iter().find(|(scale, _)| span != 0 && span.is_multiple_of(*scale)) {
        Some((scale, unit)) => write!(f, "{}{unit}", span / scale),
        None => write!(f, "{span}ns"),
    }
}
