//! The text of a rule: `[KIND:]SET:KEY=VALUE:KEY=VALUE…`. If strace has a key, too, the key has
//! strace's meaning. In a value, `\:` stands for a colon that does not end the value
//! (`path=/a\:b`).

use crate::errors;
use crate::message::{SpecError, nearest, similar};
use crate::rule::{Action, Answer, Conditions, Effect, IssuePath, Rule, Short, reads, requests, syncs, transfers};
use crate::set::{CallSet, Kind, NameError, name_of};
use crate::when::When;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::iter;
use usring_device::Distribution;
use usring_device::spec::Probability;
use usring_sys::clock::Nanoseconds;

/// Parses a rule.
pub fn parse(text: &str) -> Result<Rule, SpecError> {
    let mut fields = split(text).into_iter().peekable();
    let first = fields.next().unwrap_or(text);
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == first);
    let named = if kind.is_some() { fields.next().unwrap_or("") } else { first };
    let set = CallSet::parse(named, kind).map_err(|error| wrong_name(text, named, &error))?;
    let mut parser = Parser {
        text,
        named,
        rule: Rule {
            text: text.to_owned(),
            set,
            conditions: Conditions::default(),
            when: When::ALWAYS,
            chance: None,
            action: Action::default(),
            once: false,
        },
        given: Vec::new(),
    };
    for field in fields {
        parser.field(field)?;
    }
    parser.finish()
}

/// Splits at colons that follow no backslash.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, character) in text.char_indices() {
        match character {
            '\\' if !escaped => escaped = true,
            ':' if !escaped => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => escaped = false,
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Removes the backslashes that stand before colons and backslashes.
fn unescape(value: &str) -> String {
    let mut plain = String::new();
    let mut characters = value.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if matches!(characters.peek(), Some(':' | '\\')) => plain.extend(characters.next()),
            other => plain.push(other),
        }
    }
    plain
}

fn wrong_name(text: &str, named: &str, error: &NameError<'_>) -> SpecError {
    let name = match *error {
        NameError::Unknown(name) => name,
        NameError::OfOtherKind { name, of } => {
            let what = match of {
                Kind::Ring => "requests of rings",
                Kind::Call => "plain system calls",
                Kind::Aio => "commands of libaio",
            };
            let place = of.name();
            return SpecError::new(text, name, format!("'{name}' names {what}: write {place}: before the names"));
        }
    };
    if name.is_empty() {
        return SpecError::new(text, named, "a rule begins with the names of calls, as in read,write:error=EIO");
    }
    let hint = match similar(name) {
        Some(known) => format!("; did you mean '{known}'?"),
        None if name.starts_with('%') => "; the classes are %file, %desc, %net, %sync, %rw".into(),
        None => "; `usring ctl inject names` lists them".into(),
    };
    SpecError::new(text, name, format!("no call that can get a fault is named '{name}'{hint}"))
}

/// Keys of strace that usring lacks.
const OF_STRACE_ALONE: [&str; 3] = ["syscall", "poke_enter", "poke_exit"];

type Setter = fn(&mut Rule, &str) -> Option<()>;

/// A key of a rule's text: its name, a description of its valid values for messages, and the
/// function that stores a value in the rule.
struct Key {
    name: &'static str,
    value: &'static str,
    set: Setter,
}

const fn key(name: &'static str, value: &'static str, set: Setter) -> Key {
    Key { name, value, set }
}

const ERROR: &str = "the name of an errno (EIO) or a number from 1 to 4095";
const VALUE: &str = "a number of at least 0";
const SPAN: &str = "a time such as 100us, 1.5ms or 2s (without a unit: microseconds)";
const DISTRIBUTION: &str = "a time, or uniform(1ms,5ms), exponential(2ms), normal(2ms,1ms)";

/// The `value` of a key that has none.
const FLAG: &str = "";
/// Maximum number of bits in `flip=`, and of completions in `reorder=`.
const MOST_BITS: u32 = 4096;
const MOST_COMPLETIONS: u32 = 4096;

const KEYS: [Key; 26] = [
    key("error", ERROR, |rule, value| put(&mut rule.action.answer, Answer::Error(errors::errno(value)?))),
    key("retval", VALUE, |rule, value| put(&mut rule.action.answer, Answer::Value(number(value)?))),
    key("res", VALUE, |rule, value| put(&mut rule.action.answer, Answer::Value(number(value)?))),
    key("effect", "none, done, partial or drop", |rule, value| {
        rule.action.effect = match value {
            "none" => Effect::None,
            "done" => Effect::Done,
            "partial" => Effect::Partial,
            "drop" => Effect::Drop,
            _ => return None,
        };
        Some(())
    }),
    key("short", "a number of bytes, a share such as 50%, or random", |rule, value| {
        put(&mut rule.action.short, short(value)?)
    }),
    key("delay", DISTRIBUTION, |rule, value| put(&mut rule.action.delay_enter, distribution(value)?)),
    key("delay_enter", DISTRIBUTION, |rule, value| put(&mut rule.action.delay_enter, distribution(value)?)),
    key("delay_exit", DISTRIBUTION, |rule, value| put(&mut rule.action.delay_exit, distribution(value)?)),
    key("signal", "the name of a signal (SIGTERM) or a number from 1 to 64", |rule, value| {
        put(&mut rule.action.signal, errors::signal(value)?)
    }),
    key("flip", "a number of bits from 1 to 4096", |rule, value| put(&mut rule.action.flip, flip(value)?)),
    key("reorder", "a number of completions from 1 to 4096", |rule, value| {
        put(&mut rule.action.reorder, number(value).filter(|count| (1..=MOST_COMPLETIONS).contains(count))?)
    }),
    key("overflow", FLAG, |rule, _| {
        rule.action.overflow = true;
        Some(())
    }),
    key("cancel", FLAG, |rule, _| {
        rule.action.cancel = true;
        Some(())
    }),
    key("spurious", FLAG, |rule, _| {
        rule.action.spurious = true;
        Some(())
    }),
    key("when", "first[..last][+[step]], such as 3, 3..9, 3+ or 3+2", |rule, value| {
        rule.when = When::parse(value)?;
        Some(())
    }),
    key("p", "a probability such as 1% or 0.01", |rule, value| put(&mut rule.chance, Probability::parse(value)?)),
    key("path", "a file name, in which * and ? stand for other characters", |rule, value| {
        put(&mut rule.conditions.path, unescape(value).into_bytes()).filter(|()| !value.is_empty())
    }),
    key("fd", VALUE, |rule, value| put(&mut rule.conditions.descriptor, number(value)?)),
    key("user_data", "a number, also as 0x1f", |rule, value| put(&mut rule.conditions.user_data, number(value)?)),
    key("ring", "the number of a ring in its process, from 1", |rule, value| {
        put(&mut rule.conditions.ring, number(value).filter(|ring| *ring != 0)?)
    }),
    key("tid", "the number of a thread", |rule, value| put(&mut rule.conditions.thread, number(value)?)),
    key("process", "the number of a process in the run, from 1", |rule, value| {
        put(&mut rule.conditions.process, number(value).filter(|process| *process != 0)?)
    }),
    key("nth", "the number of the call, from 1", |rule, value| {
        put(&mut rule.conditions.nth, number(value).filter(|nth| *nth != 0)?)
    }),
    key("after", SPAN, |rule, value| {
        rule.conditions.after = span(value)?;
        Some(())
    }),
    key("by", "inline, poll or worker", |rule, value| put(&mut rule.conditions.by, IssuePath::parse(value)?)),
    key("once", FLAG, |rule, _| {
        rule.once = true;
        Some(())
    }),
];

/// Keys that a rule may repeat. The last field with such a key is valid, as in strace.
const REPEATABLE: [&str; 1] = ["when"];

/// Keys with the same meaning.
const SAME: [(&str, &str); 2] = [("res", "retval"), ("delay", "delay_enter")];

fn put<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    *slot = Some(value);
    Some(())
}

struct Parser<'a> {
    text: &'a str,
    /// The SET.
    named: &'a str,
    rule: Rule,
    /// The keys parsed so far, each with its whole field (`KEY=VALUE`).
    given: Vec<(&'static str, &'a str)>,
}

impl<'a> Parser<'a> {
    fn wrong(&self, part: &str, reason: impl Into<String>) -> SpecError {
        SpecError::new(self.text, part, reason)
    }

    fn field(&mut self, field: &'a str) -> Result<(), SpecError> {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        let Some(key) = KEYS.iter().find(|key| key.name == name) else { return Err(self.unknown_key(name)) };
        if key.value == FLAG && field.contains('=') {
            return Err(self.wrong(field, format!("'{name}' takes no value")));
        }
        if key.value != FLAG && !field.contains('=') {
            return Err(self.wrong(field, format!("'{name}' needs a value: {}", key.value)));
        }
        let is_same = |given| given == name || SAME.contains(&(given, name)) || SAME.contains(&(name, given));
        if !REPEATABLE.contains(&name) && self.given.iter().any(|(given, _)| is_same(*given)) {
            return Err(self.wrong(field, format!("a rule may have '{name}' only once; add a second rule instead")));
        }
        (key.set)(&mut self.rule, value).ok_or_else(|| {
            self.wrong(value, format!("'{value}' is not a value of '{name}', which is {}", key.value))
        })?;
        self.given.push((key.name, field));
        Ok(())
    }

    fn unknown_key(&self, name: &str) -> SpecError {
        if name.is_empty() {
            return self.wrong(name, "an action or a condition is missing between colons, such as error=EIO");
        }
        if OF_STRACE_ALONE.contains(&name) {
            return self.wrong(name, format!("usring does not support '{name}'; use strace(1) for it"));
        }
        let hint = match nearest(name, KEYS.iter().map(|key| key.name)) {
            Some(known) => format!("did you mean '{known}'?"),
            None => {
                let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
                format!("there are: {}", names.join(", "))
            }
        };
        self.wrong(name, format!("unknown key '{name}'; {hint}"))
    }

    /// Returns the rule's first field (`KEY=VALUE`) whose key is one of `names`, for a message.
    fn given(&self, names: &[&str]) -> Option<&'a str> {
        self.given.iter().find(|(name, _)| names.contains(name)).map(|(_, field)| *field)
    }

    /// Finds errors that no single field shows.
    fn finish(mut self) -> Result<Rule, SpecError> {
        let action = self.rule.action.clone();
        let (error, value) = (self.given(&["error"]), self.given(&["retval", "res"]));
        if let (Some(_), Some(value)) = (error, value) {
            return Err(self.wrong(value, "a call answers either an error or a value; drop one of the two"));
        }
        if !action.is_any() {
            let field = self.text.get(self.text.len()..).unwrap_or("");
            let reason = "a rule needs an action, such as error=, retval=, short=, delay= or signal=";
            return Err(self.wrong(field, reason));
        }
        if let Some(effect) = self.given(&["effect"])
            && action.answer.is_none()
        {
            return Err(self.wrong(effect, "effect= says what happens beside an error; add error= or retval="));
        }
        if let Some(short) = self.given(&["short"])
            && action.answer.is_some()
            && action.effect != Effect::Partial
        {
            let reason = "error= and retval= replace the call, so nothing is shortened; add effect=partial";
            return Err(self.wrong(short, reason));
        }
        if action.short.is_some() || action.effect == Effect::Partial {
            let field = self.given(&["short", "effect"]).unwrap_or(self.named);
            self.narrow(&transfers(), field, "transfers no bytes that could be shortened")?;
        }
        if action.effect == Effect::Drop {
            let field = self.given(&["effect"]).unwrap_or(self.named);
            self.narrow(&syncs(), field, "makes no data durable that it could drop")?;
            if let Some(value) = value {
                return Err(self.wrong(value, "a sync that drops its data fails: give error= in place of the value"));
            }
        }
        if let Some(field) = self.given(&["flip"]) {
            if action.answer.is_some() {
                return Err(self.wrong(field, "error= and retval= leave no data in which bits could be flipped"));
            }
            self.narrow(&reads(), field, "reads nothing in which bits could be flipped")?;
        }
        if let Some(field) = self.given(&["cancel"])
            && action.answer.is_some()
        {
            return Err(self.wrong(field, "cancel always answers -ECANCELED; drop error= and retval="));
        }
        if let Some(field) = self.given(&["overflow", "spurious"]) {
            let text = "is no request of a ring: write ring: before the names";
            self.narrow_kinds(&requests().of_kind(Kind::Ring), field, text)?;
        }
        self.check_issue_path(&action)?;
        if let Some(field) = self.given(&["user_data", "ring", "reorder", "cancel", "by"]) {
            let text = "is a plain system call: write ring: before the names";
            self.narrow_kinds(&requests(), field, text)?;
        }
        if self.rule.action.effect == Effect::Partial && self.rule.action.short.is_none() {
            self.rule.action.short = Probability::parse("50%").map(Short::Share);
        }
        Ok(self.rule)
    }

    /// Refuses actions that contradict the rule's `by=`. `cancel` is refused with every `by=`. With
    /// `by=inline`, `short`, delays before the request, and results without `effect=done` are
    /// refused: usring knows that a request was done inline only after the request.
    fn check_issue_path(&self, action: &Action) -> Result<(), SpecError> {
        let Some(by) = self.given(&["by"]) else { return Ok(()) };
        if let Some(cancel) = self.given(&["cancel"]) {
            return Err(self.wrong(cancel, "cancel ends a request that would have to wait; drop by="));
        }
        if self.rule.conditions.by != Some(IssuePath::Inline) {
            return Ok(());
        }
        if action.answer.is_some() && action.effect != Effect::Done {
            let reason = "usring knows only afterwards that a request was done inline; add effect=done";
            return Err(self.wrong(by, reason));
        }
        match self.given(&["short", "delay", "delay_enter"]) {
            Some(late) => Err(self.wrong(late, "usring knows only afterwards that a request was done inline")),
            None => Ok(()),
        }
    }

    /// Limits the rule to the calls in `to`, for which `field` has a meaning. Another call in the
    /// SET is an error if the SET has the call's own name. If only a class or `all` includes the
    /// call, it is removed from the SET.
    fn narrow(&mut self, to: &CallSet, field: &str, why: &str) -> Result<(), SpecError> {
        let is_list = !self.named.contains(['%', '!']) && !self.named.split(',').any(|name| name == "all");
        let lost = self.rule.set.without(to);
        let named = self.named.split(',').filter(|_| is_list);
        for name in named {
            let Ok(set) = CallSet::parse(name, None) else { continue };
            if set.intersection(&self.rule.set).intersection(to).is_empty() && !set.intersection(&lost).is_empty() {
                let name = name.trim_start_matches('?');
                return Err(self.wrong(field, format!("{field} cannot work on '{name}', which {why}")));
            }
        }
        self.narrow_kinds(to, field, why)
    }

    fn narrow_kinds(&mut self, to: &CallSet, field: &str, why: &str) -> Result<(), SpecError> {
        let left = self.rule.set.intersection(to);
        if left.is_empty() && !self.rule.set.is_empty() {
            let first = Kind::ALL
                .into_iter()
                .find_map(|kind| self.rule.set.members(kind).next().map(|number| name_of(kind, number)));
            let name = first.unwrap_or(self.named);
            return Err(self.wrong(field, format!("{field} cannot work on '{name}', which {why}")));
        }
        self.rule.set = left;
        Ok(())
    }
}

/// Parses a number, also in hexadecimal with 0x.
fn number<T: TryFrom<u64>>(text: &str) -> Option<T> {
    let number = match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok()?,
        Some(_) => return None,
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok()?,
        None => return None,
    };
    T::try_from(number).ok()
}

fn short(text: &str) -> Option<Short> {
    match text {
        "random" => Some(Short::Random),
        _ if text.ends_with('%') => Probability::parse(text).map(Short::Share),
        _ => usring_device::spec::size(text).map(Short::Bytes),
    }
}

/// Parses `BITS` or `BITS@SEED`.
fn flip(text: &str) -> Option<(u32, Option<u64>)> {
    let (bits, seed) = match text.split_once('@') {
        Some((bits, seed)) => (bits, Some(number(seed)?)),
        None => (text, None),
    };
    number(bits).filter(|bits| (1..=MOST_BITS).contains(bits)).map(|bits| (bits, seed))
}

fn distribution(text: &str) -> Option<Distribution> {
    span(text).map(Distribution::Constant).or_else(|| Distribution::parse(text))
}

/// Maximum number of digits after the point of a time. Further digits would be less than a
/// nanosecond.
const MOST_DIGITS: usize = 9;

/// Parses a time as strace does: a number, perhaps with a point, and s, ms, us or ns. Without a
/// unit, the number is in microseconds. `None` for any other text.
pub fn span(text: &str) -> Option<Nanoseconds> {
    let units = [("ms", 1_000_000), ("us", 1_000), ("ns", 1), ("s", 1_000_000_000), ("", 1_000)];
    let (digits, scale) = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)))?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && fraction.is_empty() || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: String = fraction.chars().chain(iter::repeat('0')).take(MOST_DIGITS).collect();
    let part = fraction.parse::<u64>().ok()?.checked_mul(scale)? / 1_000_000_000;
    whole.checked_mul(scale)?.checked_add(part)
}

#[cfg(test)]
#[path = "parser_tests.rs"]
mod tests;
