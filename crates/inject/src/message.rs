//! Errors in a rule's text, as messages to the user: the reason, and a caret below the mistake.

use crate::calls::CALLS;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use usring_uapi::opcode;

/// A mistake in a text: the text, the position of the mistake, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    text: String,
    /// In characters.
    at: usize,
    length: usize,
    reason: String,
}

impl SpecError {
    /// Makes an error about `part`, which is a slice of `text`.
    pub fn new(text: &str, part: &str, reason: impl Into<String>) -> SpecError {
        let start = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize).min(text.len());
        let at = text.get(..start).map_or(0, |before| before.chars().count());
        SpecError { text: text.into(), at, length: part.chars().count().max(1), reason: reason.into() }
    }

    /// Returns the reason without the text and the caret.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.reason)?;
        writeln!(f, "  {}", self.text)?;
        write!(f, "  {:at$}{:^<length$}", "", "", at = self.at, length = self.length)
    }
}

impl core::error::Error for SpecError {}

/// Returns the known name that is most like `name`. `None` if no known name is like it.
pub fn similar(name: &str) -> Option<&'static str> {
    let names = opcode::NAMES.into_iter().chain(CALLS.iter().map(|call| call.name));
    nearest(name, names)
}

/// Returns the name of `names` that needs the fewest changes to become `name`. `None` if every name
/// needs more than two changes, or more changes than half the bytes of `name`.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = 2.min(name.len() / 2);
    let ranked = names.map(|known| (distance(name.as_bytes(), known.as_bytes()), known));
    ranked.filter(|(changes, _)| *changes <= most).min_by_key(|(changes, _)| *changes).map(|(_, known)| known)
}

/// Returns how many characters must be added, dropped or replaced to make one name the other
/// (Levenshtein); two swapped characters count as two.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, character) in one.iter().enumerate() {
        let mut next = vec![index + 1];
        for (place, candidate) in other.iter().enumerate() {
            let replaced = row[place] + usize::from(character != candidate);
            next.push(replaced.min(row[place + 1] + 1).min(next[place] + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caret_stands_below_the_place_of_the_error() {
        let text = "read:when=x";
        let error = SpecError::new(text, &text[10..], "not a when= expression");
        assert_eq!(error.to_string(), "not a when= expression\n  read:when=x\n            ^");
        let whole = SpecError::new(text, &text[..4], "unknown");
        assert_eq!(whole.to_string(), "unknown\n  read:when=x\n  ^^^^");
    }

    #[test]
    fn a_misspelt_name_is_recognised() {
        assert_eq!(similar("raed"), Some("read"));
        assert_eq!(similar("fsyncc"), Some("fsync"));
        assert_eq!(similar("xyzzy"), None);
        assert_eq!(similar("a"), None);
    }
}
