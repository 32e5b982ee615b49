//! Time spans in text form: `10us`, `2ms`.

use core::fmt;
use usring_sys::clock::Nanoseconds;

/// Parses a number followed by `ns`, `us`, `ms` or `s`. `None` if the text has another form, or if
/// the number of nanoseconds overflows.
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
    // `parse` alone would accept a sign, as in "+5".
    (!digits.is_empty()).then_some(digits)?.parse::<u64>().ok()?.checked_mul(scale)
}

/// Writes a span in the largest unit that makes it a whole number.
pub fn write(f: &mut fmt::Formatter<'_>, span: Nanoseconds) -> fmt::Result {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    match units.iter().find(|(scale, _)| span != 0 && span.is_multiple_of(*scale)) {
        Some((scale, unit)) => write!(f, "{}{unit}", span / scale),
        None => write!(f, "{span}ns"),
    }
}
