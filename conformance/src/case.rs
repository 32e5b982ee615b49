//! Cases. A case is a function that checks one behaviour: it makes system calls and prints their
//! results. The macro `case!` stands below the function and registers it as a case. The macro also
//! has the case's transcript: the expected output on Linux 6.18.
//!
//! Each line of the output begins with the case's name. The transcript leaves that name out. A
//! transcript has one of three forms, which `conformance record` chooses:
//!
//! ```text
//! case!(one_line => "cqe 1: 0");
//! case!(lines => "
//!     cqe 1: 0
//!     cqe 2: 0
//! ");
//! case!(long => include_str!("GROUP/long.txt"));
//! ```
//!
//! If usring differs on purpose, the kernel's transcript is followed by usring's and by the reason:
//! `case!(differs => "cqe 1: 0", usring => "cqe 1: -EINVAL", because "the reason");`

use linkme::distributed_slice;

use crate::transcript::Transcript;

/// All cases, in no particular order.
#[distributed_slice]
pub static CASES: [Case];

pub struct Case {
    /// Path of the case's Rust module. Its component after `cases` is the name of the case's group.
    pub module: &'static str,
    /// The name of the case's function. If `case!` has a name after `as`, that name is the second
    /// element. The last element is the case's name.
    pub identifiers: &'static [&'static str],
    /// Path of the source file, relative to the workspace's root.
    pub file: &'static str,
    pub line: u32,
    pub run: fn(&mut Transcript),
    /// The expected output on Linux 6.18. The text is as in the source, with its indentation.
    pub kernel: &'static str,
    pub difference: Option<Difference>,
}

/// An intended difference between usring and the kernel.
pub struct Difference {
    /// The expected output on usring. The text is as in the source, with its indentation.
    pub usring: &'static str,
    pub reason: &'static str,
}

/// Registers the function `run` as a case with its transcript. The head of `case.rs` lists the
/// forms of a transcript. If there is a name after `as`, it replaces the function's name as the
/// case's name.
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

/// Returns the only element of `given`, or `None` if `given` is empty. The macro `case!` passes an
/// element only if the case has an intended difference.
pub const fn first(given: &'static [Difference]) -> Option<Difference> {
    match given {
        [Difference { usring, reason }, ..] => Some(Difference { usring, reason }),
        [] => None,
    }
}

impl Case {
    /// Returns all cases, sorted by group, file and line.
    pub fn all() -> Vec<&'static Case> {
        Case::sorted(CASES.iter().collect())
    }

    /// Returns the case with the full name `name`, or the cases of the group `name`, sorted by file
    /// and line.
    pub fn all_named(name: &str) -> Vec<&'static Case> {
        Case::sorted(CASES.iter().filter(|case| case.is_named(name)).collect())
    }

    fn sorted(mut cases: Vec<&'static Case>) -> Vec<&'static Case> {
        // The sort computes each key once: `group` searches in the module's path, and in a debug
        // build that search takes longer than most cases run.
        cases.sort_by_cached_key(|case| (case.group(), case.file, case.line));
        cases
    }

    /// Returns whether `name` is the full name of the case, or the name of its group.
    fn is_named(&self, name: &str) -> bool {
        match name.split_once('.') {
            Some((group, behaviour)) => self.behaviour() == behaviour && self.group() == group,
            None => self.group() == name,
        }
    }

    /// Returns the name of the case's group, which is a module of `cases`.
    pub fn group(&self) -> &'static str {
        let below = self.module.split("::cases::").nth(1).unwrap_or_default();
        below.split("::").next().unwrap_or_default()
    }

    pub fn behaviour(&self) -> &'static str {
        self.identifiers.last().copied().unwrap_or_default()
    }

    /// Returns the case's full name, `group.behaviour`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.group(), self.behaviour())
    }

    /// Returns the expected output on usring if `usring` is true, and otherwise that on the kernel.
    /// The text is as in the source, with its indentation.
    pub fn expected(&self, usring: bool) -> &'static str {
        match &self.difference {
            Some(difference) if usring => difference.usring,
            _ => self.kernel,
        }
    }

    /// Returns the output that usring must produce if `usring` is true, and otherwise that of the
    /// kernel. Each line begins with the case's name.
    pub fn transcript(&self, usring: bool) -> String {
        let name = self.name();
        lines(self.expected(usring)).map(|line| format!("{name}: {line}\n")).collect()
    }
}

/// Splits a transcript into lines. `text` is the string literal from the case's source. If it
/// begins with a line break, each line loses its indentation of four columns.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let block = text.starts_with('\n');
    let lines = text.lines().skip(usize::from(block));
    lines.map(move |line| if block { line.strip_prefix("    ").unwrap_or(line) } else { line })
}
