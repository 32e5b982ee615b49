//! A rule in parsed form: the calls that it applies to, and what happens to them.

use crate::calls::{self, Moves};
use crate::set::{CallSet, Kind};
use crate::when::When;
use alloc::string::String;
use alloc::vec::Vec;
use usring_device::Distribution;
use usring_device::spec::Probability;
use usring_sys::clock::Nanoseconds;
use usring_uapi::general as linux;
use usring_uapi::opcode;

/// A rule of `--inject`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The text that was parsed.
    pub text: String,
    pub set: CallSet,
    pub conditions: Conditions,
    pub when: When,
    /// Probability of the fault in a call that `when` includes; `None`: always.
    pub chance: Option<Probability>,
    pub action: Action,
    /// The rule makes one fault, and is then removed.
    pub once: bool,
}

/// The conditions on a call, apart from its name. `None` is no condition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Pattern of the file's name.
    pub path: Option<Vec<u8>>,
    pub descriptor: Option<i32>,
    pub user_data: Option<u64>,
    /// Number of the call's ring, in the order in which the process has made its rings; from 1.
    pub ring: Option<u32>,
    pub thread: Option<u32>,
    /// Number of the call's process, in the order in which the run's processes made their first
    /// call that a rule names; from 1.
    pub process: Option<u32>,
    /// Number of the call among all calls of its name in its process; from 1.
    pub nth: Option<u64>,
    /// Least time since the run began; 0 is no condition.
    pub after: Nanoseconds,
    /// The path on which a request is carried out. A rule without this condition decides before
    /// usring knows the path.
    pub by: Option<IssuePath>,
}

/// The path on which a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IssuePath {
    /// The request's first attempt, in the submitting thread, completes the request. usring knows
    /// this only after the attempt.
    Inline,
    /// The request waits until its file is ready.
    Poll,
    /// A worker carries the request out.
    Worker,
}

impl IssuePath {
    const NAMES: [(&'static str, IssuePath); 3] =
        [("inline", IssuePath::Inline), ("poll", IssuePath::Poll), ("worker", IssuePath::Worker)];

    pub fn parse(name: &str) -> Option<IssuePath> {
        IssuePath::NAMES.iter().find(|(known, _)| *known == name).map(|(_, issue_path)| *issue_path)
    }

    pub fn name(self) -> &'static str {
        IssuePath::NAMES.iter().find(|(_, issue_path)| *issue_path == self).map_or("", |(name, _)| *name)
    }
}

/// An answer in place of a call's own result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Error(u16),
    Value(i64),
}

/// How much of a call is carried out although the rule replaces the call's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// The call is not made.
    #[default]
    None,
    /// The call is made.
    Done,
    /// The call transfers a part of its bytes.
    Partial,
    /// The call is not made. `usring crash` then assumes that the data which the call should have
    /// made durable are lost.
    Drop,
}

/// How many bytes of a transfer are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    Bytes(u64),
    Share(Probability),
    /// A share that is drawn for each call.
    Random,
}

/// The fault that a rule makes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Action {
    pub answer: Option<Answer>,
    pub effect: Effect,
    pub short: Option<Short>,
    pub delay_enter: Option<Distribution>,
    pub delay_exit: Option<Distribution>,
    pub signal: Option<u8>,
    /// Number of bits to flip, and the seed of their positions if the rule gives one.
    pub flip: Option<(u32, Option<u64>)>,
    /// usring holds the completion back until this number of later completions have come.
    pub reorder: Option<u32>,
    /// The CQE goes to the backlog, as if the CQ were full.
    pub overflow: bool,
    /// The request is cancelled if it has to wait.
    pub cancel: bool,
    /// The ring's eventfd and descriptor are signalled without a completion.
    pub spurious: bool,
}

impl Action {
    pub fn is_any(&self) -> bool {
        *self != Action::default()
    }
}

/// Returns the calls whose bytes `short=` can limit.
pub fn transfers() -> CallSet {
    let mut set = CallSet::default();
    let moving = calls::CALLS.iter().filter(|call| call.moves != Moves::Nothing);
    moving.for_each(|call| set.add_call(call.number));
    let opcodes = [
        opcode::READ,
        opcode::READV,
        opcode::READ_FIXED,
        opcode::WRITE,
        opcode::WRITEV,
        opcode::WRITE_FIXED,
        opcode::SEND,
        opcode::RECV,
    ];
    opcodes.iter().for_each(|opcode| set.add_opcode(*opcode));
    set
}

/// Returns the transfers that go into the program's memory.
pub fn reads() -> CallSet {
    let mut set = CallSet::default();
    let moving = calls::CALLS.iter().filter(|call| call.reads && call.moves != Moves::Nothing);
    moving.for_each(|call| set.add_call(call.number));
    let opcodes = [opcode::READ, opcode::READV, opcode::READ_FIXED, opcode::RECV];
    opcodes.iter().for_each(|opcode| set.add_opcode(*opcode));
    set
}

/// Returns the calls (fsync(2) and the like) that should make data durable. A rule can make such a
/// call fail and drop that data.
pub fn syncs() -> CallSet {
    let mut set = CallSet::default();
    [linux::__NR_fsync, linux::__NR_fdatasync, linux::__NR_sync, linux::__NR_syncfs]
        .iter()
        .for_each(|number| set.add_call(*number));
    set.add_opcode(opcode::FSYNC);
    set
}

/// Returns the requests of rings and libaio.
pub fn requests() -> CallSet {
    CallSet::all().of_kind(Kind::Ring).union(&CallSet::all().of_kind(Kind::Aio))
}
