//! Sentences about operations and about why a power loss can undo them.

use crate::durability::{Durability, OperationState};
use crate::history::{Change, History, Operation, Origin, Position, Scope};
use crate::plan::{Choice, Plan, SurvivingSectors};
use crate::tree::ROOT;
use usring_sys::width;

/// Maximum number of kept operations that an explanation lists.
const MOST_KEPT: usize = 3;

fn quoted(path: &str) -> String {
    if path.is_empty() { "the folder itself".into() } else { format!("\"{path}\"") }
}

fn bytes(number: usize) -> String {
    if number == 1 { "1 byte".into() } else { format!("{number} bytes") }
}

/// Describes an operation, as in `write of 12 bytes at 0 of "log"`.
pub fn operation(operation: &Operation) -> String {
    let Origin { path, second_path, .. } = &operation.origin;
    let (path, second) = (quoted(path), quoted(second_path));
    match &operation.change {
        Change::Write { offset, data, .. } => format!("write of {} at {offset} of {path}", bytes(data.len())),
        Change::Resize { size, .. } => format!("truncation of {path} to {}", bytes(width::size(*size))),
        Change::Grow { size, .. } => format!("allocation of {path} up to {}", bytes(width::size(*size))),
        Change::Clear { offset, length, .. } => {
            format!("clearing of {} at {offset} of {path}", bytes(width::size(*length)))
        }
        Change::Name { .. } if second_path.is_empty() => format!("creation of {path}"),
        Change::Name { .. } => format!("link from {path} to {second}"),
        Change::Remove { .. } => format!("removal of {path}"),
        Change::Rename { .. } => format!("rename of {path} to {second}"),
        Change::Exchange { .. } => format!("exchange of {path} and {second}"),
    }
}

/// Describes an operation with its number, call and process.
pub fn operation_with_origin(history: &History, index: usize) -> String {
    let change = &history.operations[index];
    let text = operation(change);
    match &change.origin {
        Origin { call, .. } if call.is_empty() => format!("#{} {text}", index + 1),
        Origin { call, process, .. } => format!("#{} {text} ({call}, process {process})", index + 1),
    }
}

/// Says why a power loss at the position `cut` can undo the operation with this index.
pub fn reason(history: &History, index: usize, cut: Position) -> String {
    let change = &history.operations[index];
    let Some(end) = change.end.filter(|end| *end < cut) else {
        return "it was still in flight".into();
    };
    let (target, is_of_names) = match change.change.file() {
        Some(_) => (quoted(&change.origin.path), false),
        None => (folder_of(change), true),
    };
    let covers = |scope: Scope| match scope {
        Scope::Everything => true,
        Scope::Node { node, .. } => {
            change.change.file() == Some(node) || is_of_names && change.change.folders().first() == Some(&node)
        }
    };
    let syncs = || history.syncs.iter().filter(|sync| sync.begin < cut && covers(sync.scope));
    if syncs().any(|sync| sync.dropped && sync.begin > end) {
        return format!("an fsync of {target} failed after it and dropped its bytes");
    }
    if syncs().any(|sync| sync.failed && sync.begin > change.begin) {
        return format!("an fsync of {target} failed after it; the system may have dropped its bytes");
    }
    if syncs().any(|sync| sync.begin > end) {
        return format!("the fsync of {target} had not ended");
    }
    if syncs().any(|sync| sync.begin > change.begin || sync.end.is_none_or(|synced| synced > change.begin)) {
        return format!("the fsync of {target} was submitted while it was in flight, and does not cover it");
    }
    format!("no fsync of {target} came after it")
}

/// Names the folder whose fsync makes a change of names durable.
fn folder_of(operation: &Operation) -> String {
    if operation.change.folders().first() == Some(&ROOT) {
        return "the folder itself".into();
    }
    let Origin { path, second_path, .. } = &operation.origin;
    let path = if second_path.is_empty() { path } else { second_path };
    quoted(path.rsplit_once('/').map_or("", |(folder, _)| folder))
}

/// Says what is left of an operation.
fn left(choice: Choice) -> String {
    match choice {
        Choice::Whole => "kept".into(),
        Choice::Lost => "lost".into(),
        Choice::SizeOnly => "lost but for the file's new size (zeroes)".into(),
        Choice::Torn(tear) => {
            let which = match tear.surviving {
                SurvivingSectors::First(number) => format!("the first {number}"),
                SurvivingSectors::Last(number) => format!("the last {number}"),
                SurvivingSectors::Random(_) => "some".into(),
            };
            format!("torn: {which} of its {}-byte sectors are there", tear.sector)
        }
    }
}

/// Describes a power loss: when it came, and each operation that is not whole, with the reason.
/// Then lists the newest operations that stayed whole although the power loss could have undone
/// them.
pub fn plan(history: &History, durability: &Durability, plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    let begun = |operation: &&Operation| operation.begin < plan.cut;
    let count = history.operations.iter().filter(begun).count();
    let last = history.operations.iter().rposition(|operation| operation.begin < plan.cut);
    lines.push(match last {
        Some(last) => {
            format!("power loss after {count} operations, the last being {}", operation_with_origin(history, last))
        }
        None => "power loss before the first operation".into(),
    });
    let is_dropped = |index: &usize| durability.state_at(history, *index, plan.cut) == OperationState::Dropped;
    for index in (0..history.operations.len()).filter(is_dropped) {
        let reason = reason(history, index, plan.cut);
        lines.push(format!("lost: {}; {reason}", operation_with_origin(history, index)));
    }
    for (index, choice) in &plan.choices {
        if *choice != Choice::Whole {
            let reason = reason(history, *index, plan.cut);
            lines.push(format!("{}: {}; {reason}", left(*choice), operation_with_origin(history, *index)));
        }
    }
    let kept = plan.choices.iter().rev().filter(|(_, choice)| *choice == Choice::Whole);
    for (index, _) in kept.take(MOST_KEPT) {
        lines.push(format!("kept: {}", operation_with_origin(history, *index)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::Model;
    use crate::tests::{FILE, OTHER, empty, fsync, rename, write};

    fn named(mut history: History, index: usize, path: &str, second_path: &str) -> History {
        let origin = &mut history.operations[index].origin;
        (origin.path, origin.second_path) = (path.into(), second_path.into());
        history
    }

    #[test]
    fn a_rename_without_fsync_of_its_folder_is_described_by_its_paths() {
        let mut history = empty();
        history.push(rename("new", "file", OTHER));
        let history = named(history, 0, "new", "file");
        let plan_ = Plan { cut: history.length, choices: vec![(0, Choice::Lost)] };
        let lines = plan(&history, &Durability::of(&history, Model::Posix), &plan_);
        assert_eq!(lines[1], "lost: #1 rename of \"new\" to \"file\"; no fsync of the folder itself came after it");
    }

    #[test]
    fn the_reason_names_what_is_missing() {
        let mut history = empty();
        let writing = history.begin(write(FILE, 0, b"abc"));
        let mut history = named(history, 0, "log", "");
        assert_eq!(operation(&history.operations[0]), "write of 3 bytes at 0 of \"log\"");
        assert_eq!(reason(&history, 0, history.length), "it was still in flight");
        history.push_sync(fsync(FILE));
        history.end(writing);
        let beside = "the fsync of \"log\" was submitted while it was in flight, and does not cover it";
        assert_eq!(reason(&history, 0, history.length), beside);
        history.push_failed_sync(fsync(FILE));
        let failed = "an fsync of \"log\" failed after it; the system may have dropped its bytes";
        assert_eq!(reason(&history, 0, history.length), failed);
    }
}
