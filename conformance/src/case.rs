//! Cases. A case is one behaviour: a function that prints the kernel's answers. The macro `case!`
//! stands below the function, registers it, and holds the transcript of Linux 6.18.
//!
//! A transcript is written without the case's name, which begins each line of the output. Three
//! forms are possible, and `conformance record` chooses between them:
//!
//! ```text
//! case!(one_line => "cqe 1: 0");
//! case!(lines => "
//!     cqe 1: 0
//!     cqe 2: 0
//! ");
//! case!(long => include_str!("ROOM/long.txt"));
//! ```
//!
//! Where usring differs on purpose, its transcript and the reason follow:
//! `case!(differs => "cqe 1: 0", usring => "cqe 1: -EINVAL", because "the reason");`

use linkme::distributed_slice;

use crate::transcript::Transcript;

/// All cases, in no particular order.
#[distributed_slice]
pub static CASES: [Case];

pub struct Case {
    /// The path of the case's module. Its first component below `cases` is the case's room.
    pub module: &'static str,
    /// The identifiers of `case!`: the function's, and the case's if that differs.
    pub identifiers: &'static [&'static str],
    /// The source file, from the workspace's root.
    pub file: &'static str,
    pub line: u32,
    pub run: fn(&mut Transcript),
    /// The answers of Linux 6.18, as the source has them.
    pub kernel: &'static str,
    pub difference: Option<Difference>,
}

/// How usring differs on purpose.
pub struct Difference {
    /// The answers of usring, as the source has them.
    pub usring: &'static str,
    pub reason: &'static str,
}

/// Registers the function above it as a case, and holds its transcript (see the head of `case.rs`).
/// `as` gives the case a name other than the function's.
macro_rules! case {
    ($run:ident $(as $name:ident)? => $kernel:expr $(, usring => $usring:expr, because $reason:expr)?) => {
        const _: () = {
            #[linkme::distributed_slice($crate::case::CASES)]
            static CASE: $crate::case::Case = $crate::case::Case {
                module: module_path!(),
                identifiers: &[stringify!($run) $(, stringify!($name))?],
                file: file!(),
                line: line!(),
                run: $run,
                kernel: $kernel,
                difference: $crate::case::first(&[
                    $($crate::case::Difference { usring: $usring, reason: $reason })?
                ]),
            };
        };
    };
}

/// Returns what an optional part of `case!` gave.
pub const fn first(given: &'static [Difference]) -> Option<Difference> {
    match given {
        [Difference { usring, reason }, ..] => Some(Difference { usring, reason }),
        [] => None,
    }
}

impl Case {
    /// Returns all cases, room by room, in the order of the source.
    pub fn all() -> Vec<&'static Case> {
        let mut cases: Vec<&Case> = CASES.iter().collect();
        cases.sort_by_key(|case| (case.room(), case.file, case.line));
        cases
    }

    /// Returns the module of `cases` that the case is in.
    pub fn room(&self) -> &'static str {
        let below = self.module.split("::cases::").nth(1).unwrap_or_default();
        below.split("::").next().unwrap_or_default()
    }

    pub fn behaviour(&self) -> &'static str {
        self.identifiers.last().copied().unwrap_or_default()
    }

    /// Returns `room.behaviour`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.room(), self.behaviour())
    }

    /// Returns the answers expected of usring or of the kernel, as the source has them.
    pub fn expected(&self, usring: bool) -> &'static str {
        match &self.difference {
            Some(difference) if usring => difference.usring,
            _ => self.kernel,
        }
    }

    /// Returns the output expected of usring or of the kernel.
    pub fn transcript(&self, usring: bool) -> String {
        let name = self.name();
        lines(self.expected(usring)).map(|line| format!("{name}: {line}\n")).collect()
    }
}

/// Returns the lines of a transcript in the source. A text that begins with a line break is
/// indented by four columns.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let block = text.starts_with('\n');
    let lines = text.lines().skip(usize::from(block));
    lines.map(move |line| if block { line.strip_prefix("    ").unwrap_or(line) } else { line })
}
