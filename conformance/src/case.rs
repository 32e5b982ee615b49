//! A named case, and the rooms in which cases live.

use crate::transcript::Transcript;

/// One behaviour: a small program that prints what the kernel answered.
#[derive(Clone, Copy)]
pub struct Case {
    /// `room.behaviour`; also the name of its recorded transcript.
    pub name: &'static str,
    pub run: fn(&mut Transcript),
    /// Why usring's transcript differs on purpose, if it does. Its transcript
    /// is then recorded beside the kernel's.
    pub intended: Option<&'static str>,
}

/// A case whose transcripts must agree.
pub const fn case(name: &'static str, run: fn(&mut Transcript)) -> Case {
    Case { name, run, intended: None }
}

/// A case in which usring differs on purpose, and why.
pub const fn differs(name: &'static str, run: fn(&mut Transcript), reason: &'static str) -> Case {
    Case { name, run, intended: Some(reason) }
}
