//! The parser of a device's text, which works in one pass from left to right. The nesting of
//! wrappers is limited, so that no text can exhaust the stack.

use super::{DeviceKind, Layer, OptionRow, Problem, Spec, SpecError, Value, ValueKind, kinds};
use crate::policy::PollPolicy;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// Deepest nesting of wrappers.
const DEEPEST: usize = 8;
/// Names of the options that belong to the whole device.
const POLL: &str = "poll";
const OVERWRITE: &str = "overwrite";

struct Parser<'a> {
    text: &'a str,
    /// Position in the text, in bytes.
    at: usize,
    poll: Option<PollPolicy>,
    overwrite: Option<bool>,
}

/// The position of a layer in the text: the wrapper directly around the layer, and the number of
/// all wrappers around the layer.
#[derive(Clone, Copy)]
struct Nesting {
    wrapper: Option<&'static DeviceKind>,
    depth: usize,
}

/// Splits a text that has a SPEC and further options, at the commas between them. A comma in
/// parentheses, or with a backslash before it, does not split the text.
pub fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut is_escaped) = (Vec::new(), 0, 0, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

pub fn parse(text: &str) -> Result<Spec, SpecError> {
    let mut parser = Parser { text, at: 0, poll: None, overwrite: None };
    let outermost = parser.layer(Nesting { wrapper: None, depth: 0 })?;
    while parser.skip(',') {
        let start = parser.at;
        match parser.name() {
            POLL => parser.policy(start, Nesting { wrapper: None, depth: 0 })?,
            OVERWRITE => parser.overwrite(start, Nesting { wrapper: None, depth: 0 })?,
            // The unknown option follows a wrapper's closing parenthesis. For a device without a
            // wrapper, `parser.layer` has already reported an unknown option.
            found => {
                let (found, kind) = (found.to_owned(), outermost.kind);
                return Err(parser.error(start, Problem::UnknownOption { found, kind, wrapper: None }));
            }
        }
    }
    if parser.at < text.len() {
        return Err(parser.unexpected("the end"));
    }
    Ok(Spec { outermost, poll: parser.poll, overwrite: parser.overwrite })
}

impl Parser<'_> {
    fn error(&self, at: usize, problem: Problem) -> SpecError {
        SpecError { column: self.text[..at].chars().count() + 1, problem }
    }

    fn unexpected(&self, expected: &'static str) -> SpecError {
        self.error(self.at, Problem::Unexpected { found: self.next(), expected })
    }

    fn next(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn skip(&mut self, wanted: char) -> bool {
        let found = self.next() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn expect(&mut self, wanted: char, expected: &'static str) -> Result<(), SpecError> {
        if self.skip(wanted) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    /// Reads a name, which ends before `:`, `(`, `)`, `,` or `=`, or at the end of the text.
    fn name(&mut self) -> &str {
        let rest = &self.text[self.at..];
        let length = rest.find([':', '(', ')', ',', '=']).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn layer(&mut self, place: Nesting) -> Result<Layer, SpecError> {
        let start = self.at;
        let name = self.name();
        let Some(kind) = kinds::find(name) else {
            let found = name.to_owned();
            return Err(self.error(start, Problem::UnknownKind(found)));
        };
        let mut layer = Layer { kind, inner: None, values: Vec::new() };
        if kind.is_wrapper() {
            self.expect('(', "'(' and the device inside")?;
            if place.depth == DEEPEST {
                return Err(self.error(start, Problem::TooDeep));
            }
            let inside = Nesting { wrapper: Some(kind), depth: place.depth + 1 };
            layer.inner = Some(Box::new(self.layer(inside)?));
            self.options(&mut layer, ',', Nesting { wrapper: None, ..inside })?;
            self.expect(')', "',' and an option, or ')',")?;
        } else {
            if self.next() != Some(':') {
                // The colon before the options is missing. If the device has required options and
                // none follows, `finish` reports a required option as missing.
                if matches!(self.next(), None | Some(',' | ')')) {
                    self.finish(start, &layer)?;
                }
                return Err(self.unexpected("':' and an option"));
            }
            self.options(&mut layer, ':', place)?;
        }
        self.finish(start, &layer)?;
        Ok(layer)
    }

    /// Parses the options of one layer. The separator `first` precedes the first option, and a
    /// comma each later one. Stops before an option that belongs to the wrapper around the layer.
    fn options(&mut self, layer: &mut Layer, first: char, place: Nesting) -> Result<(), SpecError> {
        let mut separator = first;
        loop {
            let before = self.at;
            if !self.skip(separator) {
                return Ok(());
            }
            separator = ',';
            let start = self.at;
            let name = self.name().to_owned();
            if let Some(row) = layer.kind.row(&name) {
                self.option(layer, row, start)?;
            } else if name == POLL {
                self.policy(start, place)?;
            } else if name == OVERWRITE {
                self.overwrite(start, place)?;
            } else if place.wrapper.is_some_and(|wrapper| wrapper.row(&name).is_some()) {
                self.at = before;
                return Ok(());
            } else {
                let problem = Problem::UnknownOption { found: name, kind: layer.kind, wrapper: place.wrapper };
                return Err(self.error(start, problem));
            }
        }
    }

    fn option(&mut self, layer: &mut Layer, row: &'static OptionRow, start: usize) -> Result<(), SpecError> {
        if layer.value(row.name).is_some() {
            return Err(self.error(start, Problem::OptionTwice(row.name)));
        }
        let value = self.value(row.name, row.value, |text| Value::read(row.value, text))?;
        layer.values.push((row.name, value));
        Ok(())
    }

    fn overwrite(&mut self, start: usize, place: Nesting) -> Result<(), SpecError> {
        if place.depth > 0 {
            return Err(self.error(start, Problem::DeviceOptionInWrapper(OVERWRITE)));
        }
        if self.overwrite.is_some() {
            return Err(self.error(start, Problem::OptionTwice(OVERWRITE)));
        }
        let read = |text: &str| match Value::read(ValueKind::Switch, text) {
            Some(Value::Switch(on)) => Some(on),
            _ => None,
        };
        self.overwrite = Some(self.value(OVERWRITE, ValueKind::Switch, read)?);
        Ok(())
    }

    fn policy(&mut self, start: usize, place: Nesting) -> Result<(), SpecError> {
        if place.depth > 0 {
            return Err(self.error(start, Problem::DeviceOptionInWrapper(POLL)));
        }
        if self.poll.is_some() {
            return Err(self.error(start, Problem::OptionTwice(POLL)));
        }
        self.poll = Some(self.value(POLL, ValueKind::Policy, PollPolicy::parse)?);
        Ok(())
    }

    /// Reads `=` and a value, which `read` parses.
    fn value<T>(
        &mut self,
        option: &'static str,
        expected: ValueKind,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, SpecError> {
        self.expect('=', "'=' and a value")?;
        let start = self.at;
        let found = self.raw_value()?;
        read(&found).ok_or_else(|| self.error(start, Problem::Value { option, found, expected }))
    }

    /// Reads a value and removes its backslashes.
    fn raw_value(&mut self) -> Result<String, SpecError> {
        let mut value = String::new();
        let mut open = 0usize;
        while let Some(next) = self.next() {
            match next {
                ',' | ')' if open == 0 => break,
                '(' => open += 1,
                ')' => open -= 1,
                _ => {}
            }
            self.at += next.len_utf8();
            if next != '\\' {
                value.push(next);
                continue;
            }
            let Some(escaped) = self.next() else { return Err(self.unexpected("the character after a backslash")) };
            self.at += escaped.len_utf8();
            value.push(escaped);
        }
        if open > 0 { Err(self.unexpected("')'")) } else { Ok(value) }
    }

    /// Checks that no required option is missing, and that the values fit together.
    fn finish(&self, start: usize, layer: &Layer) -> Result<(), SpecError> {
        let kind = layer.kind;
        let missing = kind.options.iter().find(|row| row.required && layer.value(row.name).is_none());
        if let Some(row) = missing {
            return Err(self.error(start, Problem::OptionMissing { option: row.name, kind }));
        }
        (kind.check)(layer).map_err(|what| self.error(start, Problem::Together { kind, what }))
    }
}
