//! Values of options: sizes, times, probabilities, distributions. A value can be printed, and the
//! parser reads the printed text as an equal value.

use crate::distribution::Distribution;
use crate::policy::PollPolicy;
use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt::{self, Write};
use usring_sys::clock::Nanoseconds;

/// The kind of value that an option has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Size,
    /// Size of a logical block.
    Block,
    Span,
    Distribution,
    Probability,
    Number,
    /// Path of a file or a socket.
    Path,
    /// Address of an export of an NBD server.
    Uri,
    /// Options of QEMU's, in parentheses.
    Node,
    Switch,
    Policy,
}

/// A parsed value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// In bytes.
    Size(u64),
    Span(Nanoseconds),
    Distribution(Distribution),
    Probability(Probability),
    Number(u64),
    Text(String),
    /// Options of QEMU's, without the parentheses.
    Node(String),
    Switch(bool),
    Policy(PollPolicy),
}

impl ValueKind {
    /// Returns a description of the values of this kind. In an error message it follows the words
    /// "which is".
    pub fn description(self) -> &'static str {
        match self {
            ValueKind::Size => "a size like 4096, 64K, 1MiB, 1.5G or 1T",
            ValueKind::Block => "512 or 4096",
            ValueKind::Span => "a time like 500ns, 10us, 1ms or 2s",
            ValueKind::Distribution => {
                "a time like 10us or 1ms, or uniform(5us,20us), exponential(10us) or normal(10us,2us)"
            }
            ValueKind::Probability => "a probability like 0.01 or 1%",
            ValueKind::Number => "a whole number",
            ValueKind::Path => "a path",
            ValueKind::Uri => "an address like nbd://host/export or nbd+unix:///export?socket=/path",
            ValueKind::Node => "options of QEMU in parentheses, like (driver=raw,file.driver=file,file.filename=/path)",
            ValueKind::Switch => "on or off",
            ValueKind::Policy => "interrupt, classic, hybrid, or hybrid: and a time like 5us",
        }
    }
}

impl ValueKind {
    /// Returns an example of such a value.
    pub fn example(self) -> &'static str {
        match self {
            ValueKind::Size => "1G",
            ValueKind::Block => "512",
            ValueKind::Span | ValueKind::Distribution => "10us",
            ValueKind::Probability => "1%",
            ValueKind::Number => "4",
            ValueKind::Path => "/path/to/it",
            ValueKind::Uri => "nbd://host/export",
            ValueKind::Node => "(driver=raw,file.driver=file,file.filename=/path/to/it)",
            ValueKind::Switch => "on",
            ValueKind::Policy => "classic",
        }
    }
}

impl Value {
    /// Parses a value. `None` if the text is not a value of the kind `kind`.
    pub fn read(kind: ValueKind, text: &str) -> Option<Value> {
        match kind {
            ValueKind::Size => size(text).map(Value::Size),
            ValueKind::Block => size(text).filter(|size| matches!(size, 512 | 4096)).map(Value::Size),
            ValueKind::Span => crate::span::parse(text).map(Value::Span),
            ValueKind::Distribution => Distribution::parse(text).map(Value::Distribution),
            ValueKind::Probability => Probability::parse(text).map(Value::Probability),
            ValueKind::Number => number(text).map(Value::Number),
            ValueKind::Path | ValueKind::Uri if text.is_empty() || text.contains('\0') => None,
            ValueKind::Path | ValueKind::Uri => Some(Value::Text(text.to_owned())),
            ValueKind::Node => in_parentheses(text).map(|inside| Value::Node(inside.to_owned())),
            ValueKind::Switch => match text {
                "on" => Some(Value::Switch(true)),
                "off" => Some(Value::Switch(false)),
                _ => None,
            },
            ValueKind::Policy => PollPolicy::parse(text).map(Value::Policy),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Size(bytes) => write_size(f, *bytes),
            Value::Span(span) => crate::span::write(f, *span),
            Value::Distribution(distribution) => distribution.fmt(f),
            Value::Probability(probability) => probability.fmt(f),
            Value::Number(number) => number.fmt(f),
            Value::Switch(on) => f.write_str(if *on { "on" } else { "off" }),
            Value::Policy(policy) => policy.fmt(f),
            Value::Text(text) => write_escaped(f, text, &[',', '(', ')', '\\']),
            // A comma in parentheses ends no value.
            Value::Node(text) => {
                f.write_char('(')?;
                write_escaped(f, text, &['(', ')', '\\'])?;
                f.write_char(')')
            }
        }
    }
}

fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str, escaped: &[char]) -> fmt::Result {
    text.chars().try_for_each(|character| {
        if escaped.contains(&character) {
            f.write_char('\\')?;
        }
        f.write_char(character)
    })
}

/// Returns the text between the parentheses, if one pair encloses the whole of `text`. `None` if no
/// pair does, if the pair encloses nothing, or if the text has a NUL byte.
fn in_parentheses(text: &str) -> Option<&str> {
    let inside = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    (!inside.is_empty() && !inside.contains('\0')).then_some(inside)
}

/// Parses a number that consists of digits only; `str::parse` alone would accept a sign. `None` for
/// any other text.
fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Largest size: the greatest length of a file.
const LARGEST: u64 = i64::MAX as u64;

/// Most digits behind the point of a size.
const LONGEST_FRACTION: usize = 6;

/// Parses a number of bytes, optionally with K, M, G or T (1K is 1024). The unit may be a small
/// letter, and `iB` may follow it. A number with a unit may have a fraction, if that makes whole
/// bytes. `None` for any other text.
pub fn size(text: &str) -> Option<u64> {
    let short = text.strip_suffix("iB").unwrap_or(text);
    let unit = short.chars().next_back().map(|last| last.to_ascii_uppercase());
    let (digits, shift) = match UNITS.iter().find(|(known, _)| unit == Some(*known)) {
        Some((_, shift)) => (&short[..short.len() - 1], *shift),
        // `iB` needs a unit before it.
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > LONGEST_FRACTION {
        return None;
    }
    let parts = 10u64.pow(u32::try_from(fraction.len()).ok()?);
    let fraction = number(fraction)?.checked_mul(1 << shift)?;
    if fraction % parts != 0 {
        return None;
    }
    let bytes = number(whole)?.checked_mul(1 << shift)?.checked_add(fraction / parts)?;
    Some(bytes).filter(|bytes| *bytes <= LARGEST)
}

fn write_size(f: &mut fmt::Formatter<'_>, bytes: u64) -> fmt::Result {
    match UNITS.iter().rev().find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift) {
        Some((unit, shift)) => write!(f, "{}{unit}", bytes >> shift),
        None => write!(f, "{bytes}"),
    }
}

/// A probability from never to always, in units of 10⁻⁹.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    pub const ALWAYS: u32 = 1_000_000_000;
    const DIGITS: u32 = 9;

    /// Returns the probability in units of 10⁻⁹.
    pub fn per_billion(self) -> u32 {
        self.0
    }

    /// Makes a probability of `parts` billionths, at most [`Probability::ALWAYS`].
    pub fn from_billionths(parts: u64) -> Probability {
        Probability(u32::try_from(parts).unwrap_or(Self::ALWAYS).min(Self::ALWAYS))
    }

    /// Parses `0.01` or `1%`, with at most nine digits after the point (seven for a percentage).
    /// `None` for any other text.
    pub fn parse(text: &str) -> Option<Probability> {
        let (text, digits) = match text.strip_suffix('%') {
            Some(percent) => (percent, Self::DIGITS - 2),
            None => (text, Self::DIGITS),
        };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        if whole.is_empty() || fraction.is_empty() {
            return None;
        }
        let missing = digits.checked_sub(u32::try_from(fraction.len()).ok()?)?;
        let fraction = number(fraction)?.checked_mul(10u64.pow(missing))?;
        let parts = number(whole)?.checked_mul(10u64.pow(digits))?.checked_add(fraction)?;
        u32::try_from(parts).ok().filter(|parts| *parts <= Self::ALWAYS).map(Probability)
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, mut fraction, mut digits) = (self.0 / Self::ALWAYS, self.0 % Self::ALWAYS, Self::DIGITS as usize);
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        while fraction % 10 == 0 {
            fraction /= 10;
            digits -= 1;
        }
        write!(f, "{whole}.{fraction:0digits$}")
    }
}
