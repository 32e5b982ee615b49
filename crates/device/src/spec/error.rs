//! Errors in a device's text, as messages to the user. A message has the position, the text found
//! there, and the texts or values that could stand there.

use super::{DeviceKind, KINDS, OptionRow, ValueKind};
use alloc::format;
use alloc::string::String;
use core::fmt;

/// An error in a text, and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct SpecError {
    /// Column of the error, counted from 1.
    pub column: usize,
    pub problem: Problem,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Problem {
    /// No device or wrapper has this name.
    UnknownKind(String),
    UnknownOption {
        found: String,
        kind: &'static DeviceKind,
        /// The wrapper around the device, if there is one. The device and this wrapper have no
        /// option of this name.
        wrapper: Option<&'static DeviceKind>,
    },
    OptionTwice(&'static str),
    OptionMissing {
        option: &'static str,
        kind: &'static DeviceKind,
    },
    /// The text is not a value of the kind that the option takes.
    Value {
        option: &'static str,
        found: String,
        expected: ValueKind,
    },
    /// An unexpected character. `found` is `None` at the end of the text.
    Unexpected {
        found: Option<char>,
        expected: &'static str,
    },
    /// An option that applies to the whole device (`poll` or `overwrite`) is inside the parentheses
    /// of a wrapper (a device around another one), as in
    /// `delay(ram:size=1G,poll=classic,read=1us)`.
    DeviceOptionInWrapper(&'static str),
    TooDeep,
    /// The values of a layer contradict each other.
    Together {
        kind: &'static DeviceKind,
        what: &'static str,
    },
}

impl PartialEq for DeviceKind {
    fn eq(&self, other: &DeviceKind) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl SpecError {
    /// Returns two lines to print below the message: `text`, and a caret below the error. `text` is
    /// the user's whole argument, in which the SPEC begins after `before` characters.
    pub fn caret(&self, text: &str, before: usize) -> String {
        // A control character would move the caret.
        let shown: String = text.chars().map(|one| if one.is_control() { '?' } else { one }).collect();
        format!("\n  {shown}\n  {}^", " ".repeat(before + self.column - 1))
    }
}

fn list<'a>(f: &mut fmt::Formatter<'_>, names: impl Iterator<Item = &'a str>) -> fmt::Result {
    for (index, name) in names.enumerate() {
        write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
    }
    Ok(())
}

/// Writes the names of a kind's options, such as "ram takes: size, block".
fn takes(f: &mut fmt::Formatter<'_>, kind: &DeviceKind) -> fmt::Result {
    write!(f, "; {} takes: ", kind.name)?;
    list(f, kind.options.iter().map(|row: &OptionRow| row.name))
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column = self.column;
        match &self.problem {
            Problem::UnknownKind(found) => {
                write!(f, "unknown device '{}' at column {column}; there are: ", found.escape_debug())?;
                list(f, KINDS.iter().filter(|kind| !kind.is_wrapper()).map(|kind| kind.name))?;
                let mut wrappers = KINDS.iter().filter(|kind| kind.is_wrapper()).map(|kind| kind.name).peekable();
                if wrappers.peek().is_some() {
                    f.write_str("; wrappers of another device: ")?;
                    list(f, wrappers)?;
                }
                Ok(())
            }
            Problem::UnknownOption { found, kind, wrapper } => {
                write!(f, "unknown option '{}' of {} at column {column}", found.escape_debug(), kind.name)?;
                takes(f, kind)?;
                wrapper.map_or(Ok(()), |wrapper| takes(f, wrapper))
            }
            Problem::OptionTwice(option) => write!(f, "option '{option}' at column {column} is repeated"),
            Problem::OptionMissing { option, kind } => {
                let example = kind.row(option).map_or("", |row| row.value.example());
                let name = kind.name;
                write!(f, "{name} at column {column} needs {option}=, for example {name}:{option}={example}")
            }
            Problem::Value { option, found, expected } => write!(
                f,
                "'{}' at column {column} is not a value of '{option}', which is {}",
                found.escape_debug(),
                expected.description()
            ),
            Problem::Unexpected { found: Some(found), expected } => {
                write!(f, "'{}' at column {column}, where {expected} should be", found.escape_debug())
            }
            Problem::Unexpected { found: None, expected } => {
                write!(f, "the text ends at column {column}, where {expected} should be")
            }
            Problem::DeviceOptionInWrapper(option) => {
                write!(
                    f,
                    "'{option}' at column {column} applies to the whole device: put it after the last parenthesis"
                )
            }
            Problem::TooDeep => write!(f, "too many nested wrappers at column {column}"),
            Problem::Together { kind, what } => write!(f, "{} at column {column}: {what}", kind.name),
        }
    }
}

impl core::error::Error for SpecError {}
