//! The text about a run's findings.

use super::stacks::{Caller, Symbols, write_callers};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::Path;
use usring_check::format::{BadByte, Finding, Kind, Record};
use usring_uapi::opcode::NAMES;

/// A misuse, found one or more times.
struct Misuse {
    finding: Finding,
    submission: Vec<Caller>,
    misdeed: Vec<Caller>,
    recorded: Vec<Caller>,
    count: u64,
}

/// Returns the name of a kind of misuse, its description, and the heading of a finding's second
/// stack. The heading is empty if such findings have only one stack.
fn describe(kind: Kind) -> (&'static str, &'static str, &'static str) {
    match kind {
        Kind::Changed => ("changed", "the memory of a write changed while it was in flight", "noticed at"),
        Kind::Freed => ("freed", "the memory of a request in flight was freed", "freed at"),
        Kind::Unmapped => ("unmapped", "the memory of a request in flight was unmapped or discarded", "unmapped at"),
        Kind::DeadFrame | Kind::PerhapsDeadFrame => {
            ("dead-frame", "a request in flight uses a local variable of a function that has returned", "noticed at")
        }
        Kind::ClosedFile => ("closed-file", "a file was closed while a request on it was in flight", "closed at"),
        Kind::Unreaped => ("unreaped", "the program never took the completion of a request from the CQ", ""),
        Kind::Overflowed => ("overflowed", "the program never fetched a completion that did not fit into the CQ", ""),
        Kind::Leaked => ("leaked", "a request was in flight when its ring or its process ended", ""),
        Kind::BrokenLink => (
            "broken-link",
            "a short transfer cancelled the rest of its chain, and the program did not submit that rest again",
            "",
        ),
        Kind::BadMemory => ("bad-memory", "a request was submitted with memory that the program must not use", ""),
        Kind::Overwritten => {
            ("overwritten", "an SQE was changed after its submission, before the SQ thread took it", "")
        }
        Kind::SameUserData => {
            ("user-data", "two requests in flight have the same user_data", "the other one was submitted at")
        }
        Kind::Touched => ("touched", "the program used memory into which a request in flight reads", "used at"),
    }
}

/// Returns whether misuse of this kind is found only at the end of a ring or a process.
fn is_left_behind(kind: Kind) -> bool {
    matches!(kind, Kind::Unreaped | Kind::Overflowed | Kind::Leaked | Kind::BrokenLink)
}

/// Returns the report about the records in a file of findings. `failed` is the program's first
/// process, if it has ended with a failure. That process's unfinished requests do not count as
/// misuse.
pub fn text(bytes: &[u8], failed: Option<u32>) -> String {
    let misuses = misuses(bytes, failed);
    let total: u64 = misuses.iter().map(|misuse| misuse.count).sum();
    let mut text = match misuses.len() {
        0 => "usring: --check found no misuse of the rings\n".to_owned(),
        1 => format!("usring: --check found 1 misuse of the rings, {}\n", times(total)),
        several => format!("usring: --check found {several} misuses of the rings, {}\n", times(total)),
    };
    misuses.iter().for_each(|misuse| misuse.write(&mut text));
    text
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn misuses(mut bytes: &[u8], failed: Option<u32>) -> Vec<Misuse> {
    let mut found: Vec<(Finding, u64)> = Vec::new();
    let mut places: HashMap<(u32, u64), usize> = HashMap::new();
    while let Some(record) = Record::decode(&mut bytes) {
        match record {
            Record::Finding(finding) => {
                if failed == Some(finding.process) && is_left_behind(finding.kind) {
                    continue;
                }
                places.insert((finding.process, finding.key), found.len());
                found.push((*finding, 1));
            }
            Record::Again { process, key, count } => {
                if let Some(place) = places.get(&(process, key)) {
                    found[*place].1 = count.max(found[*place].1);
                }
            }
        }
    }
    merge(found)
}

/// Joins the findings that have the same kind and the same callers.
fn merge(found: Vec<(Finding, u64)>) -> Vec<Misuse> {
    let mut symbols = Symbols::default();
    let mut order = BTreeMap::new();
    let mut misuses: Vec<Misuse> = Vec::new();
    for (mut finding, count) in found {
        if finding.kind == Kind::PerhapsDeadFrame {
            let Finding { address, submission, misdeed, maps, .. } = &finding;
            if !symbols.has_frame_ended(*address, submission, misdeed, maps) {
                continue;
            }
            finding.kind = Kind::DeadFrame;
        }
        let submission = symbols.callers(&finding.submission, &finding.maps);
        let misdeed = symbols.callers(&finding.misdeed, &finding.maps);
        let lines = |callers: &[Caller]| callers.iter().map(|it| format!("{} {}", it.function, it.place)).collect();
        let key: (Kind, u8, Vec<String>, Vec<String>) =
            (finding.kind, finding.opcode, lines(&submission), lines(&misdeed));
        match order.get(&key) {
            Some(index) => {
                let known: &mut Misuse = &mut misuses[*index];
                known.count += count;
            }
            None => {
                order.insert(key, misuses.len());
                let recorded = symbols.named(&finding.recorded, &finding.maps);
                misuses.push(Misuse { finding, submission, misdeed, recorded, count });
            }
        }
    }
    misuses
}

impl Misuse {
    fn write(&self, text: &mut String) {
        let Finding { kind, process, ring, user_data, opcode, descriptor, result, length, address, age_ns, .. } =
            self.finding;
        let (name, what, place) = describe(kind);
        let opcode = NAMES.get(usize::from(opcode)).copied().unwrap_or("?");
        let _ = writeln!(text, "\n{name}: {what} ({})", times(self.count));
        let program = String::from_utf8_lossy(&self.finding.program).into_owned();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let _ = write!(text, "  {opcode}, user_data {user_data:#x}, ring {ring}");
        if descriptor >= 0 {
            let _ = write!(text, ", fd {descriptor}");
        }
        if length != 0 {
            let _ = write!(text, ", {length} bytes at {address:#x}");
        }
        if matches!(kind, Kind::Unreaped | Kind::Overflowed | Kind::BrokenLink | Kind::Changed | Kind::ClosedFile) {
            let _ = write!(text, ", result {result}");
        }
        let _ = writeln!(text, ", process {process} ({program})");
        if let Some(bad) = self.finding.bad {
            let _ = writeln!(text, "  byte {} of this memory {}", bad.offset, condition(bad));
        }
        if self.submission.is_empty() {
            let _ = writeln!(text, "  submitted by the ring's SQ thread");
        } else {
            let age = age_ns as f64 / 1e6;
            let _ = writeln!(text, "  submitted {age:.3} ms before, at");
            write_callers(text, &self.submission);
        }
        if !self.recorded.is_empty() {
            let is_freed = self.finding.bad.is_some_and(|bad| bad.shadow == BadByte::FREED);
            let _ = writeln!(text, "  {}", if is_freed { "freed at" } else { "allocated at" });
            write_callers(text, &self.recorded);
        }
        if !self.misdeed.is_empty() {
            let _ = writeln!(text, "  {place}");
            write_callers(text, &self.misdeed);
        } else if kind == Kind::Changed {
            let _ = writeln!(text, "  noticed when it completed");
        }
    }
}

/// Describes the condition of a byte, from its value in AddressSanitizer's shadow memory. The
/// "Shadow byte legend" in AddressSanitizer's reports lists these values.
fn condition(bad: BadByte) -> &'static str {
    match bad.shadow {
        BadByte::FREED => "was freed",
        0x01..=0x07 => "lies past the end of its block or variable",
        0xfa => "is outside of any block of malloc's",
        0xf1..=0xf3 => "is outside of a local variable",
        0xf5 => "belongs to a function that has returned",
        0xf8 => "belongs to a local variable whose scope has ended",
        0xf9 => "is outside of a global variable",
        0xf7 => "was poisoned by the program",
        0xfc => "is in a container, but behind its last element",
        _ => "must not be used",
    }
}
