//! One power loss: when it comes, and what it leaves of the operations that it can undo.

use crate::durability::{Durability, Model, OperationState};
use crate::history::{Change, History, Position};
use crate::ordered;
use crate::tree::Tree;
use fastrand::Rng;
use std::ops::Range;
use usring_sys::width;

/// The part of one operation that a power loss leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    Whole,
    Lost,
    /// Some sectors of a write.
    Torn(Tear),
    /// The file has the size that the write gave it, but zeroes instead of the written bytes.
    SizeOnly,
}

/// Which sectors of a write a power loss leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tear {
    /// Bytes of a sector, 512 or 4096.
    pub sector: u64,
    pub surviving: SurvivingSectors,
}

/// The sectors of a torn write that a power loss leaves, counted from the write's first sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SurvivingSectors {
    First(u64),
    Last(u64),
    /// Each sector survives with probability one half. The number is the seed of the random
    /// choices.
    Random(u64),
}

/// A power loss at position `cut`. `choices` says what the power loss leaves of each operation that
/// it can undo. An operation that is not in `choices` stays whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub cut: Position,
    /// Operations that the power loss can undo, by their indices in ascending order, each with the
    /// part that the power loss leaves.
    pub choices: Vec<(usize, Choice)>,
}

/// Returns the range of the file that each sector of a write occupies, in order.
pub fn sectors(offset: u64, length: u64, sector: u64) -> Vec<Range<u64>> {
    if length == 0 {
        return Vec::new();
    }
    let end = offset + length;
    let (first, last) = (offset / sector, end.div_ceil(sector));
    (first..last).map(|index| offset.max(index * sector)..end.min((index + 1) * sector)).collect()
}

impl Tear {
    /// Returns the ranges of the file that a torn write still changes: those of the sectors that
    /// survive.
    pub fn pieces(&self, offset: u64, length: u64) -> Vec<Range<u64>> {
        let all = sectors(offset, length, self.sector);
        let count = all.len() as u64;
        let mut random = Rng::with_seed(if let SurvivingSectors::Random(seed) = self.surviving { seed } else { 0 });
        let is_kept = |index: u64, random: &mut Rng| match self.surviving {
            SurvivingSectors::First(number) => index < number,
            SurvivingSectors::Last(number) => index + number >= count,
            SurvivingSectors::Random(_) => random.u64(..2) == 0,
        };
        all.into_iter().zip(0..).filter(|(_, index)| is_kept(*index, &mut random)).map(|(piece, _)| piece).collect()
    }
}

impl Plan {
    pub fn choice(&self, index: usize) -> Choice {
        match self.choices.binary_search_by_key(&index, |(known, _)| *known) {
            Ok(at) => self.choices[at].1,
            Err(_) => Choice::Whole,
        }
    }

    /// Returns the number of operations that are not whole.
    pub fn losses(&self) -> usize {
        self.choices.iter().filter(|(_, choice)| *choice != Choice::Whole).count()
    }

    /// Returns the plan with each choice that the model rules out replaced by the nearest choice
    /// that the model allows.
    pub fn allowed(mut self, history: &History, durability: &Durability) -> Plan {
        match durability.model {
            Model::Posix => {}
            Model::Device => {
                for (_, choice) in &mut self.choices {
                    if *choice == Choice::Lost {
                        *choice = Choice::SizeOnly;
                    }
                }
            }
            Model::Ext4Ordered => ordered::restrict(&mut self, history, durability),
        }
        self
    }

    /// Returns the folder as this power loss leaves it.
    pub fn tree(&self, history: &History, durability: &Durability) -> Tree {
        self.tree_from(history, durability, history.initial.clone(), 0)
    }

    /// Applies to `tree` what this power loss leaves of the operations from index `first` on.
    /// `tree` already has the effects of all earlier operations.
    pub fn tree_from(&self, history: &History, durability: &Durability, mut tree: Tree, first: usize) -> Tree {
        for index in first..history.operations.len() {
            match durability.state_at(history, index, self.cut) {
                OperationState::NotBegun | OperationState::Dropped => {}
                OperationState::Durable => tree.apply(&history.operations[index].change),
                OperationState::Pending => leave(&mut tree, &history.operations[index].change, self.choice(index)),
            }
        }
        tree
    }
}

/// Applies to the tree the part of a change that a power loss leaves.
fn leave(tree: &mut Tree, change: &Change, choice: Choice) {
    let Change::Write { node, offset, data } = change else {
        // Only a write can be left in part.
        if choice != Choice::Lost {
            tree.apply(change);
        }
        return;
    };
    match choice {
        Choice::Whole => tree.apply(change),
        Choice::Lost => {}
        Choice::SizeOnly => {
            let size = offset + data.len() as u64;
            tree.content_to_change(*node).into_iter().for_each(|content| content.grow(size));
        }
        Choice::Torn(tear) => {
            let Some(content) = tree.content_to_change(*node) else { return };
            for piece in tear.pieces(*offset, data.len() as u64) {
                content.write(piece.start, &data[width::size(piece.start - offset)..width::size(piece.end - offset)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{FILE, content_after, create, empty, fsync, fsync_root, rename, with_file, write};

    #[test]
    fn sectors_of_a_write_are_aligned_to_the_file() {
        assert_eq!(sectors(500, 600, 512), [500..512, 512..1024, 1024..1100]);
        assert_eq!(sectors(512, 512, 512), vec![512..1024]);
        assert_eq!(sectors(5, 0, 512), Vec::<Range<u64>>::new());
    }

    #[test]
    fn a_lost_write_leaves_the_old_bytes_and_the_old_size() {
        let mut history = with_file(b"old");
        history.push(write(FILE, 0, b"newer"));
        assert_eq!(content_after(&history, &[(0, Choice::Lost)]), b"old");
        assert_eq!(content_after(&history, &[(0, Choice::Whole)]), b"newer");
    }

    #[test]
    fn a_file_can_have_its_size_without_its_bytes() {
        let mut history = with_file(b"old");
        history.push(write(FILE, 2, b"newer"));
        assert_eq!(content_after(&history, &[(0, Choice::SizeOnly)]), b"old\0\0\0\0");
    }

    #[test]
    fn a_torn_write_leaves_some_of_its_sectors() {
        let mut history = with_file(&[1; 1024]);
        history.push(write(FILE, 0, &[2; 1024]));
        let torn = |surviving| Choice::Torn(Tear { sector: 512, surviving });
        let first = [[2; 512], [1; 512]].concat();
        assert_eq!(content_after(&history, &[(0, torn(SurvivingSectors::First(1)))]), first);
        let last = [[1; 512], [2; 512]].concat();
        assert_eq!(content_after(&history, &[(0, torn(SurvivingSectors::Last(1)))]), last);
    }

    #[test]
    fn writes_can_be_left_in_any_order() {
        let mut history = with_file(b"");
        history.push(write(FILE, 0, b"one"));
        history.push(write(FILE, 3, b"two"));
        assert_eq!(content_after(&history, &[(0, Choice::Lost)]), b"\0\0\0two");
        assert_eq!(content_after(&history, &[(1, Choice::Lost)]), b"one");
    }

    #[test]
    fn a_rename_without_fsync_of_its_folder_can_be_undone() {
        let mut history = with_file(b"old");
        let new = crate::tests::OTHER;
        history.push(create("new", new));
        history.push(write(new, 0, b"new"));
        history.push_sync(fsync(new));
        history.push(rename("new", "file", new));
        assert_eq!(content_after(&history, &[(2, Choice::Lost)]), b"old");
        // The rename can reach the disk although the file's first name, "new", does not.
        assert_eq!(content_after(&history, &[(0, Choice::Lost)]), b"new");
        history.push_sync(fsync_root());
        assert_eq!(content_after(&history, &[(2, Choice::Lost)]), b"new");
    }

    #[test]
    fn on_a_device_a_lost_write_still_lets_the_file_grow() {
        let mut history = empty();
        history.push(create("file", FILE));
        history.push(write(FILE, 0, b"abc"));
        let durability = Durability::of(&history, Model::Device);
        let plan = Plan { cut: history.length, choices: vec![(1, Choice::Lost)] };
        let tree = plan.allowed(&history, &durability).tree(&history, &durability);
        assert_eq!(tree.content(FILE).unwrap().bytes(), b"\0\0\0");
    }
}
