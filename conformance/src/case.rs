//! A named case. Cases are grouped in modules (`rooms`).

use crate::transcript::Transcript;

/// One behaviour: a small program that prints the kernel's answers.
#[derive(Clone, Copy)]
pub struct Case {
    /// `room.behaviour`, where `room` is the case's module. It is also the name of the recorded
    /// transcript.
    pub name: &'static str,
    pub run: fn(&mut Transcript),
    /// The reason if usring differs on purpose. usring's transcript is then recorded beside the
    /// kernel's.
    pub intended: Option<&'static str>,
}

/// Makes a case whose transcripts must agree.
pub const fn case(name: &'static str, run: fn(&mut Transcript)) -> Case {
    Case { name, run, intended: None }
}

/// Makes a case in which usring differs on purpose, with the reason.
pub const fn differs(name: &'static str, run: fn(&mut Transcript), reason: &'static str) -> Case {
    Case { name, run, intended: Some(reason) }
}
