//! Decides which fault a call gets. The decision depends only on the function's arguments, so a
//! test or a replay gets equal faults each time.
//!
//! A rule matches a call if its SET names the call and all its conditions hold. The last rule that
//! matches a call decides alone, as in strace: it hides earlier rules. Only this rule counts the
//! call for `when=` and draws a random number for `p=`.

pub use crate::set::Kind;

use crate::damage::Flip;
use crate::errors::errno_name;
use crate::names::matches_path;
use crate::rule::{Answer, Conditions, Effect, IssuePath, Rule, Short};
use crate::set::name_of;
use core::fmt;
use usring_device::random::Random;
use usring_device::spec::Probability;
use usring_device::{Distribution, span};
use usring_sys::clock::Nanoseconds;

/// The file names of a call.
pub trait Names {
    /// Returns whether `matches` accepts one of the names.
    fn any(&self, matches: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// A call without file names.
pub struct NoNames;

impl Names for NoNames {
    fn any(&self, _: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        false
    }
}

/// A call that may get a fault.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub kind: Kind,
    /// Opcode or number of the system call.
    pub number: u16,
    pub descriptor: Option<i32>,
    pub user_data: Option<u64>,
    /// Number of the ring in its process, from 1.
    pub ring: Option<u32>,
    pub thread: u32,
    pub names: &'a dyn Names,
    /// How the request is carried out. `None` for a plain call, and for a request while usring does
    /// not know that yet.
    pub issue_path: Option<IssuePath>,
}

/// Distinguishes a call from other calls of its name: its process, its number among these calls,
/// and its time.
#[derive(Clone, Copy, Debug)]
pub struct CallOccurrence {
    /// Number of the process in the run, from 1.
    pub process: u32,
    /// Number of the call among all calls of this name in the call's process, from 1.
    pub nth: u64,
    /// Time since the run began.
    pub elapsed: Nanoseconds,
    pub seed: u64,
}

/// The fault of one call. All random choices of the fault's rule are already made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Index of the rule.
    pub rule: u16,
    pub answer: Option<Answer>,
    pub effect: Effect,
    pub short: Option<Short>,
    pub delay_enter: Nanoseconds,
    pub delay_exit: Nanoseconds,
    pub signal: Option<u8>,
    pub flip: Option<Flip>,
    /// See [`crate::rule::Action`] for the last four.
    pub reorder: Option<u32>,
    pub overflow: bool,
    pub cancel: bool,
    pub spurious: bool,
    /// The rule is removed with this fault.
    pub once: bool,
}

/// Returns the fault of a call, if any. `rules` are pairs of a rule's index and the rule. `count`
/// is called with the index of the rule that matches the call. `count` counts the call for that
/// rule in this process, and returns the new count.
pub fn decide<'a>(
    rules: impl DoubleEndedIterator<Item = (u16, &'a Rule)>,
    call: &Call<'_>,
    occurrence: &CallOccurrence,
    count: impl FnOnce(u16) -> u64,
) -> Option<Fault> {
    let (index, rule) = rules.rev().find(|(_, rule)| means(rule, call, occurrence))?;
    let counted = count(index);
    if !rule.when.includes(counted) {
        return None;
    }
    let mut random = random_of_call(index, call, occurrence, counted);
    let drawn = random.below(u64::from(Probability::ALWAYS));
    let share = random.below(u64::from(Probability::ALWAYS));
    if rule.chance.is_some_and(|chance| drawn >= u64::from(chance.per_billion())) {
        return None;
    }
    let action = &rule.action;
    let mut draw = |distribution: Option<Distribution>| distribution.map_or(0, |it| it.draw(&mut random));
    let (delay_enter, delay_exit) = (draw(action.delay_enter), draw(action.delay_exit));
    Some(Fault {
        rule: index,
        answer: action.answer,
        effect: action.effect,
        short: action.short.map(|short| match short {
            Short::Random => Short::Share(Probability::from_billionths(share)),
            fixed => fixed,
        }),
        delay_enter,
        delay_exit,
        signal: action.signal,
        flip: action.flip.map(|(bits, seed)| Flip { bits, seed: seed.unwrap_or_else(|| random.draw()) }),
        reorder: action.reorder,
        overflow: action.overflow,
        cancel: action.cancel,
        spurious: action.spurious,
        once: rule.once,
    })
}

/// Returns the source of one call's random numbers. These numbers depend only on the run's seed,
/// the rule, the call's kind, its system call or opcode, the process, and `counted`. `counted`: how
/// many calls the rule has matched in this process.
fn random_of_call(rule: u16, call: &Call<'_>, occurrence: &CallOccurrence, counted: u64) -> Random {
    let place = u64::from(rule) << 16 | u64::from(call.number) << 4 | call.kind as u64;
    let seed = Random::of(occurrence.seed, place << 32 | u64::from(occurrence.process)).draw();
    Random::of(seed, counted)
}

fn means(rule: &Rule, call: &Call<'_>, occurrence: &CallOccurrence) -> bool {
    let Conditions { path, descriptor, user_data, ring, thread, process, nth, after, by } = &rule.conditions;
    rule.set.contains(call.kind, call.number)
        && *by == call.issue_path
        && descriptor.is_none_or(|wanted| call.descriptor == Some(wanted))
        && user_data.is_none_or(|wanted| call.user_data == Some(wanted))
        && ring.is_none_or(|wanted| call.ring == Some(wanted))
        && thread.is_none_or(|wanted| call.thread == wanted)
        && process.is_none_or(|wanted| occurrence.process == wanted)
        && nth.is_none_or(|wanted| occurrence.nth == wanted)
        && occurrence.elapsed >= *after
        && path.as_ref().is_none_or(|pattern| call.names.any(&mut |name| matches_path(pattern, name)))
}

impl Fault {
    /// A fault that changes nothing.
    pub const NOTHING: Fault = Fault {
        rule: 0,
        answer: None,
        effect: Effect::None,
        short: None,
        delay_enter: 0,
        delay_exit: 0,
        signal: None,
        flip: None,
        reorder: None,
        overflow: false,
        cancel: false,
        spurious: false,
        once: false,
    };

    /// Returns whether the call is to be made.
    pub fn makes_call(&self) -> bool {
        self.answer.is_none() || matches!(self.effect, Effect::Done | Effect::Partial)
    }

    /// Returns the most bytes that a transfer of `total` bytes may transfer; `None`: no limit. At
    /// least one byte is transferred, because a result of 0 would mean the end of the file.
    pub fn limit(&self, total: u64) -> Option<u64> {
        let most = match self.short? {
            Short::Bytes(bytes) => bytes,
            Short::Share(share) => part_of(total, share),
            Short::Random => total,
        };
        (total > 1 && most < total).then_some(most.max(1))
    }

    /// Writes the rule that makes this fault again, and no other fault.
    pub fn write(&self, f: &mut dyn fmt::Write, call: &Call<'_>, occurrence: &CallOccurrence) -> fmt::Result {
        let (kind, name) = (call.kind.name(), name_of(call.kind, call.number));
        write!(f, "{kind}:{name}:process={}:nth={}", occurrence.process, occurrence.nth)?;
        if let Some(issue_path) = call.issue_path {
            write!(f, ":by={}", issue_path.name())?;
        }
        match self.answer {
            Some(Answer::Error(number)) => match errno_name(number) {
                Some(name) => write!(f, ":error={name}")?,
                None => write!(f, ":error={number}")?,
            },
            Some(Answer::Value(value)) => write!(f, ":retval={value}")?,
            None => {}
        }
        match self.effect {
            Effect::None => {}
            Effect::Done => f.write_str(":effect=done")?,
            Effect::Partial => f.write_str(":effect=partial")?,
            Effect::Drop => f.write_str(":effect=drop")?,
        }
        match self.short {
            Some(Short::Bytes(bytes)) => write!(f, ":short={bytes}")?,
            Some(Short::Share(share)) => write!(f, ":short={}%", Percent(share))?,
            Some(Short::Random) => f.write_str(":short=random")?,
            None => {}
        }
        for (name, time) in [("delay_enter", self.delay_enter), ("delay_exit", self.delay_exit)] {
            if time != 0 {
                write!(f, ":{name}={}", Time(time))?;
            }
        }
        if let Some(signal) = self.signal {
            write!(f, ":signal={signal}")?;
        }
        if let Some(Flip { bits, seed }) = self.flip {
            write!(f, ":flip={bits}@{seed}")?;
        }
        if let Some(count) = self.reorder {
            write!(f, ":reorder={count}")?;
        }
        let flags = [(":overflow", self.overflow), (":cancel", self.cancel), (":spurious", self.spurious)];
        flags.iter().filter(|(_, is_given)| *is_given).try_for_each(|(name, _)| f.write_str(name))
    }
}

/// Returns this share of a number, rounded down.
fn part_of(total: u64, share: Probability) -> u64 {
    let billionth = u128::from(total) * u128::from(share.per_billion()) / u128::from(Probability::ALWAYS);
    u64::try_from(billionth).unwrap_or(total)
}

struct Time(Nanoseconds);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        span::write(f, self.0)
    }
}

/// Formats a probability as a percentage, with all its digits.
struct Percent(Probability);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PER_CENT: u32 = Probability::ALWAYS / 100;
        let parts = self.0.per_billion();
        write!(f, "{}.{:07}", parts / PER_CENT, parts % PER_CENT)
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
