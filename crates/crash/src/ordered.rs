//! Determines which power losses a journal in ext4's ordered mode rules out.
//!
//! 1. The journal keeps the order of changes of names and sizes: if one of these changes is lost,
//!    all later ones are lost.
//! 2. New bytes reach the disk before the size that includes them. So a file that grew has no
//!    zeroes in place of bytes.
//! 3. A rename over an existing file writes the bytes of the new file first (auto_da_alloc).
//!
//! Bytes that replace other bytes are not ordered.

use crate::durability::{Durability, OperationState, is_metadata};
use crate::history::{Change, History};
use crate::plan::{Choice, Plan, SurvivingSectors, sectors};
use crate::tree::Node;
use std::collections::BTreeSet;

/// Replaces the choices of a plan that ext4's journal rules out. A choice says what the power loss
/// leaves of an operation. The rules 1 to 3 are at the head of this file.
pub fn restrict(plan: &mut Plan, history: &History, durability: &Durability) {
    let mut is_cut_off = false;
    let mut short_files = BTreeSet::new();
    for (index, choice) in &mut plan.choices {
        let change = &history.operations[*index].change;
        if is_metadata(change) {
            is_cut_off |= *choice != Choice::Whole;
            *choice = if is_cut_off { Choice::Lost } else { Choice::Whole };
        } else if let Some(file) = change.file()
            && durability.grows(*index)
        {
            *choice = grown(change, *choice, short_files.contains(&file));
            if *choice != Choice::Whole {
                short_files.insert(file);
            }
        }
    }
    write_renamed(plan, history, durability);
}

/// Returns the choice that rule 2 at the head of this file allows for a write that lets its file
/// grow. A choice says what a power loss leaves of the write. `is_short`: an earlier write that let
/// the file grow is lost, in whole or in part.
fn grown(change: &Change, choice: Choice, is_short: bool) -> Choice {
    match (change, choice) {
        _ if is_short => Choice::Lost,
        (_, Choice::SizeOnly) => Choice::Lost,
        (Change::Write { offset, data, .. }, Choice::Torn(mut tear)) => {
            let kept = tear.pieces(*offset, data.len() as u64).len() as u64;
            let all = sectors(*offset, data.len() as u64, tear.sector).len() as u64;
            tear.surviving = SurvivingSectors::First(kept);
            if kept == 0 || kept == all { Choice::Lost } else { Choice::Torn(tear) }
        }
        _ => choice,
    }
}

/// Makes earlier changes of a file whole if the plan keeps a later rename of that file over another
/// file (rule 3 at the head of this file).
fn write_renamed(plan: &mut Plan, history: &History, durability: &Durability) {
    let mut written: Vec<(usize, Node)> = Vec::new();
    for (index, operation) in history.operations.iter().enumerate() {
        if let Change::Rename { node, .. } = &operation.change
            && durability.replaces(index)
            && durability.state_at(history, index, plan.cut) != OperationState::NotBegun
            && plan.choice(index) == Choice::Whole
        {
            written.push((index, *node));
        }
    }
    for (index, choice) in &mut plan.choices {
        let file = history.operations[*index].change.file();
        if written.iter().any(|(rename, node)| rename > index && Some(*node) == file) {
            *choice = Choice::Whole;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::Model;
    use crate::plan::Tear;
    use crate::tests::{FILE, OTHER, create, empty, rename, with_file, write};

    fn restricted(history: &History, choices: &[(usize, Choice)]) -> Vec<Choice> {
        let durability = Durability::of(history, Model::Ext4Ordered);
        let plan = Plan { cut: history.length, choices: choices.to_vec() };
        plan.allowed(history, &durability).choices.into_iter().map(|(_, choice)| choice).collect()
    }

    #[test]
    fn a_lost_name_takes_all_later_names_with_it() {
        let mut history = empty();
        history.push(create("a", FILE));
        history.push(create("b", OTHER));
        let choices = [(0, Choice::Lost), (1, Choice::Whole)];
        assert_eq!(restricted(&history, &choices), [Choice::Lost, Choice::Lost]);
        let choices = [(0, Choice::Whole), (1, Choice::Lost)];
        assert_eq!(restricted(&history, &choices), [Choice::Whole, Choice::Lost]);
    }

    #[test]
    fn a_file_that_grew_has_no_zeroes_and_no_holes() {
        let mut history = with_file(b"");
        history.push(write(FILE, 0, &[1; 2048]));
        history.push(write(FILE, 2048, &[2; 2048]));
        let choices = [(0, Choice::SizeOnly), (1, Choice::Whole)];
        assert_eq!(restricted(&history, &choices), [Choice::Lost, Choice::Lost]);
        let torn = |surviving| Choice::Torn(Tear { sector: 512, surviving });
        let choices = [(0, Choice::Whole), (1, torn(SurvivingSectors::Last(2)))];
        assert_eq!(restricted(&history, &choices), [Choice::Whole, torn(SurvivingSectors::First(2))]);
    }

    #[test]
    fn bytes_that_replace_others_are_not_ordered() {
        let mut history = with_file(&[0; 4096]);
        history.push(write(FILE, 0, &[1; 512]));
        history.push(write(FILE, 512, &[2; 512]));
        let choices = [(0, Choice::Lost), (1, Choice::Whole)];
        assert_eq!(restricted(&history, &choices), [Choice::Lost, Choice::Whole]);
    }

    #[test]
    fn a_rename_over_a_file_keeps_the_new_files_bytes() {
        let mut history = with_file(b"old");
        history.push(create("new", OTHER));
        history.push(write(OTHER, 0, b"new"));
        history.push(rename("new", "file", OTHER));
        let choices = [(0, Choice::Whole), (1, Choice::Lost), (2, Choice::Whole)];
        assert_eq!(restricted(&history, &choices), [Choice::Whole; 3]);
        let choices = [(0, Choice::Whole), (1, Choice::Lost), (2, Choice::Lost)];
        assert_eq!(restricted(&history, &choices), [Choice::Whole, Choice::Lost, Choice::Lost]);
        // The sync makes the rename durable, and with it the bytes.
        history.push_sync(crate::tests::fsync_root());
        assert_eq!(restricted(&history, &[(1, Choice::Lost)]), [Choice::Whole]);
    }
}
