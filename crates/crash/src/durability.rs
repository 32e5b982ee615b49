//! Determines the position in the history from which on no power loss can undo an operation.
//!
//! The rules of all models:
//!
//! 1. A sync covers the operations that had ended before the sync began. It does not cover
//!    operations that were in flight when it began.
//! 2. Once a sync has ended without an error, everything that it covers is durable.
//! 3. fsync(2) and fdatasync(2) of a file cover its bytes and its size.
//! 4. A write with O_SYNC, O_DSYNC, RWF_SYNC or RWF_DSYNC is durable once it has ended.
//! 5. A sync that fails may drop the bytes that it should have written, and no later sync covers
//!    them. A sync with the injected fault `effect=drop` certainly drops them.
//!
//! | model | names (new files, renames, links, removals) | sizes |
//! |---|---|---|
//! | `posix` | durable by fsync(2) of their folder | with the bytes |
//! | `ext4-ordered` | kept in their order; fsync(2) of any file covers all earlier ones | never before the bytes |
//! | `device` | durable at once | durable at once |

use crate::history::{Change, History, Operation, Position, Scope, Sync};
use crate::tree::{Node, Tree};

/// The promises of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// The promises of POSIX, and no more.
    #[default]
    Posix,
    /// The behaviour of ext4 with data=ordered, its default.
    Ext4Ordered,
    /// Each file is a fixed part of a disk. A power loss can undo writes of bytes, and no change of
    /// a name or size.
    Device,
}

impl Model {
    pub const NAMES: [(&'static str, Model); 3] =
        [("posix", Model::Posix), ("ext4-ordered", Model::Ext4Ordered), ("device", Model::Device)];

    pub fn name(self) -> &'static str {
        Model::NAMES.iter().find(|(_, model)| *model == self).map_or("", |(name, _)| name)
    }
}

/// Position of an operation that never becomes durable.
const NEVER: Position = Position::MAX;

/// The durability of each operation of a history.
pub struct Durability {
    pub model: Model,
    /// For each operation, the first position in the history at which a power loss can no longer
    /// undo it; [`NEVER`] if there is none.
    durable_at: Vec<Position>,
    /// For each operation, the first position in the history at which a power loss certainly undoes
    /// it; [`NEVER`] if there is none.
    dropped_at: Vec<Position>,
    /// Whether the operation lets its file grow.
    grows: Vec<bool>,
    /// For each operation, whether it is a rename over an existing name.
    replaces: Vec<bool>,
}

/// The effect of a power loss on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    /// The operation had not begun.
    NotBegun,
    /// A power loss can leave the operation whole, in part, or not at all.
    Pending,
    Durable,
    /// A failed sync has dropped the operation's bytes.
    Dropped,
}

impl Durability {
    pub fn of(history: &History, model: Model) -> Durability {
        let (grows, replaces) = (growing(history), replacing(history));
        let mut durable_at = Vec::with_capacity(history.operations.len());
        for operation in &history.operations {
            durable_at.push(first_durable(history, operation, model));
        }
        let undone = |(operation, durable)| first_dropped(history, operation, durable);
        let dropped_at = history.operations.iter().zip(&durable_at).map(undone).collect();
        let mut durability = Durability { model, durable_at, dropped_at, grows, replaces };
        if model == Model::Ext4Ordered {
            durability.commit_journal(history);
        }
        durability
    }

    pub fn state_at(&self, history: &History, index: usize, cut: Position) -> OperationState {
        if history.operations[index].begin >= cut {
            OperationState::NotBegun
        } else if self.durable_at[index] <= cut {
            OperationState::Durable
        } else if self.dropped_at[index] < cut {
            OperationState::Dropped
        } else {
            OperationState::Pending
        }
    }

    /// Returns the indices of the operations that a power loss at the position `cut` can undo, in
    /// ascending order.
    pub fn pending(&self, history: &History, cut: Position) -> Vec<usize> {
        let is_pending = |index: &usize| self.state_at(history, *index, cut) == OperationState::Pending;
        (0..history.operations.len()).filter(is_pending).collect()
    }

    pub fn grows(&self, index: usize) -> bool {
        self.grows[index]
    }

    /// Returns whether the operation is a rename over an existing name.
    pub fn replaces(&self, index: usize) -> bool {
        self.replaces[index]
    }

    /// Marks changes of names and sizes as durable once a later sync of any file has committed
    /// ext4's journal.
    fn commit_journal(&mut self, history: &History) {
        for sync in &history.syncs {
            let Some(end) = sync.end.filter(|_| !sync.failed) else { continue };
            if !self.commits(history, sync) {
                continue;
            }
            for (index, operation) in history.operations.iter().enumerate() {
                let is_of_journal = is_metadata(&operation.change);
                if is_of_journal && operation.end.is_some_and(|ended| ended < sync.begin) {
                    self.durable_at[index] = self.durable_at[index].min(end + 1);
                }
            }
        }
    }

    /// Returns whether a sync commits ext4's journal. fdatasync(2) does so only if the file's name
    /// or size is not durable yet.
    fn commits(&self, history: &History, sync: &Sync) -> bool {
        let Scope::Node { node, data_only: true } = sync.scope else { return true };
        let is_due = |(index, operation): (usize, &Operation)| {
            let is_of_node = match &operation.change {
                Change::Name { node: named, .. } | Change::Rename { node: named, .. } => *named == node,
                change => change.file() == Some(node) && (self.grows[index] || is_metadata(change)),
            };
            is_of_node && operation.begin < sync.begin && self.durable_at[index] > sync.begin
        };
        history.operations.iter().enumerate().any(is_due)
    }
}

/// Returns whether the change concerns a name or a size, which ext4 writes to its journal.
pub(crate) fn is_metadata(change: &Change) -> bool {
    !matches!(change, Change::Write { .. } | Change::Clear { .. })
}

/// Returns the first position at which an operation is durable, by rules 1 to 5 at the head of this
/// file. In the model `Device`, changes of names and sizes are durable at once.
fn first_durable(history: &History, operation: &Operation, model: Model) -> Position {
    let Some(ended) = operation.end else { return NEVER };
    let is_of_names = operation.change.file().is_none();
    let is_size = matches!(operation.change, Change::Resize { .. } | Change::Grow { .. });
    if operation.is_synchronous || model == Model::Device && (is_of_names || is_size) {
        return ended + 1;
    }
    let mut durable_at = NEVER;
    for sync in history.syncs.iter().filter(|sync| covers(sync.scope, &operation.change)) {
        if sync.failed {
            // If an earlier sync has made the operation's bytes durable, the failed sync cannot
            // drop them.
            let is_dirty = durable_at > sync.begin;
            if operation.begin < sync.begin && is_dirty && !is_of_names {
                return NEVER;
            }
        } else if ended < sync.begin
            && let Some(end) = sync.end
        {
            durable_at = durable_at.min(end + 1);
        }
    }
    durable_at
}

/// Returns the first position at which the bytes of an operation are certainly dropped (rule 5 at
/// the head of this file).
fn first_dropped(history: &History, operation: &Operation, durable_at: &Position) -> Position {
    let Some(ended) = operation.end else { return NEVER };
    let drops = |sync: &&Sync| {
        let comes_first = ended < sync.begin && *durable_at > sync.begin;
        sync.dropped && comes_first && !is_metadata(&operation.change) && covers(sync.scope, &operation.change)
    };
    history.syncs.iter().find(drops).map_or(NEVER, |sync| sync.begin)
}

/// Returns whether a sync with this scope can cover the change: it is a sync of everything, of the
/// file that changes, or of the folder whose names change.
fn covers(scope: Scope, change: &Change) -> bool {
    match (scope, change.file()) {
        (Scope::Everything, _) => true,
        (Scope::Node { node, .. }, Some(file)) => node == file,
        // A rename takes effect in both folders or in neither, so a sync of its new folder
        // suffices.
        (Scope::Node { node, .. }, None) => change.folders().first() == Some(&node),
    }
}

/// Returns for each operation whether it lets its file grow.
fn growing(history: &History) -> Vec<bool> {
    let mut tree = history.initial.clone();
    let size = |tree: &Tree, node: Node| tree.content(node).map_or(0, |content| content.size());
    let grows = |operation: &Operation| {
        let node = operation.change.file();
        let before = node.map(|node| size(&tree, node));
        tree.apply(&operation.change);
        before < node.map(|node| size(&tree, node))
    };
    history.operations.iter().map(grows).collect()
}

/// Returns for each operation whether it is a rename over an existing name.
fn replacing(history: &History) -> Vec<bool> {
    let mut tree = history.initial.clone();
    let replaces = |operation: &Operation| {
        let replaces = match &operation.change {
            Change::Rename { to, .. } => tree.node_at(to).is_some(),
            _ => false,
        };
        if operation.change.file().is_none() {
            tree.apply(&operation.change);
        }
        replaces
    };
    history.operations.iter().map(replaces).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{FILE, OTHER, create, empty, fsync, fsync_root, rename, write};

    fn state(history: &History, model: Model, index: usize) -> OperationState {
        Durability::of(history, model).state_at(history, index, history.length)
    }

    #[test]
    fn fsync_covers_a_write_that_ended_before_the_fsync_began() {
        let mut history = empty();
        let written = history.push(write(FILE, 0, b"a"));
        assert_eq!(state(&history, Model::Posix, written), OperationState::Pending);
        history.push_sync(fsync(FILE));
        assert_eq!(state(&history, Model::Posix, written), OperationState::Durable);
    }

    #[test]
    fn fsync_does_not_cover_a_write_in_flight_beside_it() {
        let mut history = empty();
        let writing = history.begin(write(FILE, 0, b"a"));
        let syncing = history.begin_sync(fsync(FILE));
        history.end(writing);
        history.end(syncing);
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Pending);
        history.push_sync(fsync(FILE));
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Durable);
    }

    #[test]
    fn nothing_is_durable_before_the_fsync_has_ended() {
        let mut history = empty();
        history.push(write(FILE, 0, b"a"));
        let syncing = history.begin_sync(fsync(FILE));
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Pending);
        history.end(syncing);
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Durable);
    }

    #[test]
    fn fsync_of_one_file_does_not_cover_another() {
        let mut history = empty();
        history.push(write(FILE, 0, b"a"));
        history.push_sync(fsync(OTHER));
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Pending);
        history.push_sync(Scope::Everything);
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Durable);
    }

    #[test]
    fn a_name_is_durable_by_fsync_of_its_folder_and_not_of_its_file() {
        let mut history = empty();
        history.push(create("new", FILE));
        history.push_sync(fsync(FILE));
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Pending);
        assert_eq!(state(&history, Model::Ext4Ordered, 0), OperationState::Durable);
        history.push_sync(fsync_root());
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Durable);
    }

    #[test]
    fn on_ext4_fdatasync_commits_the_journal_only_for_a_file_with_a_new_name_or_size() {
        let data_only = |node| Scope::Node { node, data_only: true };
        let mut history = empty();
        history.push(rename("a", "b", OTHER));
        history.push_sync(data_only(FILE));
        assert_eq!(state(&history, Model::Ext4Ordered, 0), OperationState::Pending);
        history.push(write(FILE, 0, b"the file grows"));
        history.push_sync(data_only(FILE));
        assert_eq!(state(&history, Model::Ext4Ordered, 0), OperationState::Durable);
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Pending);
    }

    #[test]
    fn a_failed_fsync_loses_its_bytes_for_later_syncs_too() {
        let mut history = empty();
        history.push(write(FILE, 0, b"lost"));
        history.push_failed_sync(fsync(FILE));
        history.push_sync(fsync(FILE));
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Pending);
        history.push(write(FILE, 0, b"again"));
        history.push_sync(fsync(FILE));
        assert_eq!(state(&history, Model::Posix, 1), OperationState::Durable);
    }

    #[test]
    fn an_fsync_that_drops_its_bytes_leaves_none_of_them() {
        let mut history = empty();
        history.push(write(FILE, 0, b"kept"));
        history.push_sync(fsync(FILE));
        history.push(write(FILE, 4, b"lost"));
        history.push_failed_sync(fsync(FILE));
        history.syncs[1].dropped = true;
        history.push(write(FILE, 8, b"later"));
        history.push_sync(fsync(FILE));
        let states = [0, 1, 2].map(|index| state(&history, Model::Posix, index));
        assert_eq!(states, [OperationState::Durable, OperationState::Dropped, OperationState::Durable]);
    }

    #[test]
    fn a_failed_fsync_takes_nothing_that_an_earlier_fsync_covered() {
        let mut history = empty();
        history.push(write(FILE, 0, b"kept"));
        history.push_sync(fsync(FILE));
        history.push_failed_sync(fsync(FILE));
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Durable);
    }

    #[test]
    fn a_synchronous_write_is_durable_once_it_has_ended() {
        let mut history = empty();
        let writing = history.begin(write(FILE, 0, b"a"));
        history.operations[0].is_synchronous = true;
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Pending);
        history.end(writing);
        assert_eq!(state(&history, Model::Posix, 0), OperationState::Durable);
    }

    #[test]
    fn on_a_device_names_and_sizes_are_durable_at_once_and_bytes_are_not() {
        let mut history = empty();
        history.push(create("new", FILE));
        history.push(Change::Grow { node: FILE, size: 100 });
        history.push(write(FILE, 0, b"a"));
        assert_eq!(state(&history, Model::Device, 0), OperationState::Durable);
        assert_eq!(state(&history, Model::Device, 1), OperationState::Durable);
        assert_eq!(state(&history, Model::Device, 2), OperationState::Pending);
    }
}
