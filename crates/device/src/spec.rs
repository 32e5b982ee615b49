//! The text form of a device (a SPEC). The command line parses it, and so does every process of a
//! `usring run`:
//!
//! ```text
//! SPEC    = LAYER ("," "poll=" POLICY)? ("," "overwrite=" SWITCH)?
//! LAYER   = DEVICE ":" OPTION ("," OPTION)* | WRAPPER "(" LAYER ("," OPTION)* ")"
//! OPTION  = NAME "=" VALUE
//! ```
//! - A value ends at a comma or a closing parenthesis. A parenthesized part of a value may contain
//!   commas and parentheses (`latency=uniform(5us,20us)`). Elsewhere in a value, a comma, a closing
//!   parenthesis and a backslash need a backslash before them (`path=/a\,b`).
//! - Inside a wrapper, an option that the device knows belongs to the device. Any other option
//!   belongs to the wrapper. No option name belongs to both.
//! - `poll=` and `overwrite=` belong to the whole text.
//!
//! The options of a kind of device are in that kind's file, as a [`DeviceKind`]. [`KINDS`] lists
//! all kinds.

mod error;
mod kinds;
mod parser;
mod value;

pub use error::{Problem, SpecError};
pub use kinds::KINDS;
pub use parser::parts;
pub use value::{Probability, Value, ValueKind, size};

use crate::distribution::Distribution;
use crate::driver::Driver;
use crate::policy::PollPolicy;
use crate::supply::Supply;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;

/// A kind of device or wrapper: its name, its options, and how to open it. Defined in the kind's
/// file.
pub struct DeviceKind {
    pub name: &'static str,
    pub options: &'static [OptionRow],
    /// Finds errors that no single value shows, such as a size that is not a multiple of the block.
    /// The error text completes a sentence in a message to the user.
    pub check: fn(&Layer) -> Result<(), &'static str>,
    pub open: Opening,
}

/// An option of a kind.
pub struct OptionRow {
    pub name: &'static str,
    pub value: ValueKind,
    pub required: bool,
}

/// How to open a driver of a kind.
pub enum Opening {
    Device(fn(&Layer, Box<dyn Supply>) -> Opened),
    Wrapper(fn(&Layer, Box<dyn Driver>) -> Opened),
}

pub type Opened = Result<Box<dyn Driver>, Errno>;

impl DeviceKind {
    fn row(&self, name: &str) -> Option<&'static OptionRow> {
        self.options.iter().find(|row| row.name == name)
    }

    fn is_wrapper(&self) -> bool {
        matches!(self.open, Opening::Wrapper(_))
    }
}

/// A `check` that accepts every layer.
pub fn nothing_to_check(_: &Layer) -> Result<(), &'static str> {
    Ok(())
}

/// A whole device in parsed form.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    outermost: Layer,
    poll: Option<PollPolicy>,
    overwrite: Option<bool>,
}

/// One layer of a device in parsed form, with its options: the device itself, or a wrapper around
/// the next layer.
#[derive(Clone)]
pub struct Layer {
    kind: &'static DeviceKind,
    inner: Option<Box<Layer>>,
    /// The layer's options, by name, in the order in which the SPEC has them.
    values: Vec<(&'static str, Value)>,
}

/// Parses the text of a device.
pub fn parse(text: &str) -> Result<Spec, SpecError> {
    parser::parse(text)
}

impl Spec {
    /// Opens the driver with all its wrappers. May block.
    ///
    /// Errors: those of the driver's system calls and of the supply.
    pub fn open(&self, supply: Box<dyn Supply>) -> Opened {
        self.outermost.open(supply)
    }

    /// Returns the polling policy with which the device starts: that of `poll=`, or else `Classic`.
    pub fn policy(&self) -> PollPolicy {
        self.poll.unwrap_or_default()
    }

    /// Returns whether swapped memory may overwrite data on the device (`overwrite=on`).
    pub fn overwrites(&self) -> bool {
        self.overwrite == Some(true)
    }

    /// Returns whether the text has the option `overwrite`, which only swapped memory uses.
    pub fn is_for_swap(&self) -> bool {
        self.overwrite.is_some()
    }

    /// Returns the device with absolute paths in its options: each path is replaced by
    /// `absolute(path)`. A process with another working directory can then use the device.
    pub fn with_paths<E>(mut self, absolute: impl Fn(&str) -> Result<String, E>) -> Result<Spec, E> {
        let mut layer = Some(&mut self.outermost);
        while let Some(Layer { kind, inner, values }) = layer {
            for (name, value) in values {
                if let (Some(ValueKind::Path), Value::Text(path)) = (kind.row(name).map(|row| row.value), value) {
                    *path = absolute(path)?;
                }
            }
            layer = inner.as_deref_mut();
        }
        Ok(self)
    }

    /// Returns the device inside all wrappers.
    pub fn device(&self) -> &Layer {
        let mut layer = &self.outermost;
        while let Some(inner) = &layer.inner {
            layer = inner;
        }
        layer
    }
}

impl Layer {
    fn open(&self, supply: Box<dyn Supply>) -> Opened {
        match (&self.kind.open, &self.inner) {
            (Opening::Device(open), _) => open(self, supply),
            (Opening::Wrapper(open), Some(inner)) => open(self, inner.open(supply)?),
            (Opening::Wrapper(_), None) => Err(Errno::EINVAL),
        }
    }

    /// Returns the name of the layer's kind (`ram`).
    pub fn kind(&self) -> &'static str {
        self.kind.name
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(given, _)| *given == name).map(|(_, value)| value)
    }

    pub fn size(&self, name: &str) -> Option<u64> {
        match self.value(name) {
            Some(Value::Size(bytes)) => Some(*bytes),
            _ => None,
        }
    }

    /// Returns the logical block in bytes: the option `block`, or 512.
    pub fn block(&self) -> u32 {
        self.size("block").and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(512)
    }

    pub fn span(&self, name: &str) -> Option<Nanoseconds> {
        match self.value(name) {
            Some(Value::Span(span)) => Some(*span),
            _ => None,
        }
    }

    pub fn distribution(&self, name: &str) -> Option<Distribution> {
        match self.value(name) {
            Some(Value::Distribution(distribution)) => Some(*distribution),
            _ => None,
        }
    }

    pub fn probability(&self, name: &str) -> Option<Probability> {
        match self.value(name) {
            Some(Value::Probability(probability)) => Some(*probability),
            _ => None,
        }
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        match self.value(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Some(Value::Text(text) | Value::Node(text)) => Some(text),
            _ => None,
        }
    }

    pub fn switch(&self, name: &str) -> Option<bool> {
        match self.value(name) {
            Some(Value::Switch(on)) => Some(*on),
            _ => None,
        }
    }
}

/// A `check` of a device kind: the size must be a multiple of the block, and at least one block.
pub fn check_size(layer: &Layer) -> Result<(), &'static str> {
    match layer.size("size") {
        Some(0) => Err("a device must have at least one block"),
        Some(size) if size % u64::from(layer.block()) != 0 => Err("the size is not a whole number of blocks"),
        _ => Ok(()),
    }
}

impl PartialEq for Layer {
    fn eq(&self, other: &Layer) -> bool {
        self.kind.name == other.kind.name && self.inner == other.inner && self.values == other.values
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Writes a text that the parser reads as an equal layer.
impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name)?;
        let mut separator = match &self.inner {
            Some(inner) => {
                write!(f, "({inner}")?;
                ","
            }
            None => ":",
        };
        for (name, value) in &self.values {
            write!(f, "{separator}{name}={value}")?;
            separator = ",";
        }
        if self.inner.is_some() { f.write_str(")") } else { Ok(()) }
    }
}

/// Writes a text that the parser reads as an equal device.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.outermost)?;
        if let Some(policy) = &self.poll {
            write!(f, ",poll={policy}")?;
        }
        match self.overwrite {
            Some(on) => write!(f, ",overwrite={}", Value::Switch(on)),
            None => Ok(()),
        }
    }
}
