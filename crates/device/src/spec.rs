//! A device in words, as the command line takes it and every process of a run
//! reads it again:
//!
//! ```text
//! SPEC    = LAYER ("," "poll=" POLICY)? ("," "overwrite=" SWITCH)?
//! LAYER   = DEVICE ":" OPTION ("," OPTION)* | WRAPPER "(" LAYER ("," OPTION)* ")"
//! OPTION  = NAME "=" VALUE
//! ```
//! A value ends at a comma or a closing parenthesis, unless that stands within
//! parentheses of the value (`latency=uniform(5us,20us)`) or behind a backslash
//! (`path=/a\,b`); a backslash itself is written twice. Inside a wrapper an
//! option that the device knows is the device's, any other is the wrapper's: the
//! names of the two never meet. `poll=` and `overwrite=` belong to the whole.
//!
//! What a kind of device takes stands beside that kind, as a [`Kind`]; the list
//! of them is [`KINDS`].

mod error;
mod kinds;
mod parser;
mod value;

pub use error::{Problem, SpecError};
pub use kinds::KINDS;
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

/// A kind of device or of wrapper: its name, what it takes, and how it is
/// opened. Each stands in the file of its kind.
pub struct Kind {
    pub name: &'static str,
    pub options: &'static [OptionRow],
    /// What no single value shows to be wrong (a size that is not whole blocks).
    pub check: fn(&Layer) -> Result<(), &'static str>,
    pub open: Opening,
}

/// An option of a kind.
pub struct OptionRow {
    pub name: &'static str,
    pub value: ValueKind,
    pub required: bool,
}

/// How a driver comes about.
pub enum Opening {
    Device(fn(&Layer, Box<dyn Supply>) -> Opened),
    Wrapper(fn(&Layer, Box<dyn Driver>) -> Opened),
}

pub type Opened = Result<Box<dyn Driver>, Errno>;

impl Kind {
    fn row(&self, name: &str) -> Option<&'static OptionRow> {
        self.options.iter().find(|row| row.name == name)
    }

    fn is_wrapper(&self) -> bool {
        matches!(self.open, Opening::Wrapper(_))
    }
}

/// For a kind's `check`.
pub fn nothing_to_check(_: &Layer) -> Result<(), &'static str> {
    Ok(())
}

/// A whole device, as the text has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    outermost: Layer,
    poll: Option<PollPolicy>,
    overwrite: Option<bool>,
}

/// A device, or one wrapper of it with what is inside, and its options.
#[derive(Clone)]
pub struct Layer {
    kind: &'static Kind,
    inner: Option<Box<Layer>>,
    /// In the order of the text.
    values: Vec<(&'static str, Value)>,
}

/// Reads a device's text.
pub fn parse(text: &str) -> Result<Spec, SpecError> {
    parser::parse(text)
}

impl Spec {
    /// Makes the driver, wrappers and all. May block: it is the control path.
    ///
    /// Errors: what the driver's system calls or the supply answer.
    pub fn open(&self, supply: Box<dyn Supply>) -> Opened {
        self.outermost.open(supply)
    }

    /// How the device is waited for until somebody changes it.
    pub fn policy(&self) -> PollPolicy {
        self.poll.unwrap_or_default()
    }

    /// Whether swapped memory may go there whatever the device holds.
    pub fn overwrites(&self) -> bool {
        self.overwrite == Some(true)
    }

    /// Whether the text says anything of that, which only swapped memory asks for.
    pub fn is_for_swap(&self) -> bool {
        self.overwrite.is_some()
    }

    /// The same device for a process in another folder: `absolute` is given each
    /// path of the text.
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

    /// The device itself, inside all wrappers.
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

    /// The name of its kind (`ram`).
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

    /// The logical block, of the option `block`, which every device of ours that
    /// may choose has.
    pub fn block(&self) -> u32 {
        self.size("block").map_or(512, |bytes| bytes as u32)
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
            Some(Value::Text(text)) => Some(text),
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

/// For a kind's `check`: a device's size is whole blocks, and one at least.
pub fn check_size(layer: &Layer) -> Result<(), &'static str> {
    match layer.size("size") {
        Some(0) => Err("a device has one block at least"),
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

/// A text that is read as the same layer.
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

/// A text that is read as the same device.
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
