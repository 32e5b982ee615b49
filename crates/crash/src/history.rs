//! The events below the recorded folder, in one order for all processes.
//!
//! Every event has a position. A system call begins at one position and ends at another. Its effect
//! on the folder comes in between. Operations stand in the order in which they took effect.

use crate::tree::{DirectoryEntry, Node, Tree};
use std::sync::Arc;

/// Number of events before an event.
pub type Position = u64;

/// The effect of one operation on the folder.
#[derive(Clone, Debug)]
pub enum Change {
    Write {
        node: Node,
        offset: u64,
        data: Arc<[u8]>,
    },
    /// truncate(2), and open(2) with O_TRUNC.
    Resize {
        node: Node,
        size: u64,
    },
    /// fallocate(2) beyond the file's end.
    Grow {
        node: Node,
        size: u64,
    },
    /// fallocate(2) that punches a hole or writes zeroes.
    Clear {
        node: Node,
        offset: u64,
        length: u64,
    },
    /// Gives a node (file or folder) a name. The node may be new: open(2) with O_CREAT, mkdir(2),
    /// symlink(2), link(2).
    Name {
        entry: DirectoryEntry,
        node: Node,
    },
    /// unlink(2), rmdir(2).
    Remove {
        entry: DirectoryEntry,
        node: Node,
    },
    Rename {
        from: DirectoryEntry,
        to: DirectoryEntry,
        node: Node,
    },
    /// renameat2(2) with RENAME_EXCHANGE. `nodes`: the nodes that the two names had before.
    Exchange {
        first: DirectoryEntry,
        second: DirectoryEntry,
        nodes: (Node, Node),
    },
}

impl Change {
    /// Returns the file whose content or size changes. `None`: the change concerns names.
    pub fn file(&self) -> Option<Node> {
        match self {
            Change::Write { node, .. }
            | Change::Resize { node, .. }
            | Change::Grow { node, .. }
            | Change::Clear { node, .. } => Some(*node),
            _ => None,
        }
    }

    /// Returns the folders whose names change.
    pub fn folders(&self) -> Vec<Node> {
        match self {
            Change::Name { entry, .. } | Change::Remove { entry, .. } => vec![entry.folder],
            Change::Rename { from, to, .. } => vec![to.folder, from.folder],
            Change::Exchange { first, second, .. } => vec![first.folder, second.folder],
            _ => Vec::new(),
        }
    }
}

/// One change, made by a system call or by a request of a ring.
#[derive(Clone, Debug)]
pub struct Operation {
    pub change: Change,
    pub begin: Position,
    /// Position at which the operation ended. `None`: the call or request had not ended when the
    /// recording ended.
    pub end: Option<Position>,
    /// Whether the call itself asked for durability: O_SYNC, O_DSYNC, RWF_SYNC or RWF_DSYNC.
    pub is_synchronous: bool,
    /// How, and in which process, the program made the call that caused the change. Used for
    /// messages to the user.
    pub origin: Origin,
}

/// The maker of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub process: u32,
    /// The system call's name. For a request of a ring: the opcode's name with "by ring".
    pub call: String,
    /// The path by which the program knew the changed file when it made the call, relative to the
    /// recorded folder.
    pub path: String,
    /// The second path of a rename or a link.
    pub second_path: String,
}

/// The files and folders that a sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// fsync(2), or fdatasync(2) if `data_only`, of a file or a folder.
    Node { node: Node, data_only: bool },
    /// sync(2) or syncfs(2).
    Everything,
}

/// A call that makes earlier changes durable.
#[derive(Clone, Debug)]
pub struct Sync {
    pub scope: Scope,
    pub begin: Position,
    /// Position at which the sync ended. `None`: the call had not ended when the recording ended.
    pub end: Option<Position>,
    /// Whether the call failed. The system may then have dropped the data that was to be written.
    pub failed: bool,
    /// Whether the call failed and certainly lost the data that it should have written.
    pub dropped: bool,
    pub origin: Origin,
}

/// Bytes that the recorded command wrote to its standard output. By such output, the command
/// promises its user that changes are durable.
#[derive(Clone, Debug)]
pub struct Output {
    pub position: Position,
    pub data: Vec<u8>,
}

/// Everything that was recorded.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The recorded folder before the first event. It also has all files that were made later,
    /// still empty and without names.
    pub initial: Tree,
    pub operations: Vec<Operation>,
    pub syncs: Vec<Sync>,
    pub outputs: Vec<Output>,
    /// Number of events.
    pub length: Position,
}

/// An event that was appended to a history: the index of its operation or of its sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Operation(usize),
    Sync(usize),
}

impl History {
    /// Returns the folder after all operations.
    pub fn last_tree(&self) -> Tree {
        let mut tree = self.initial.clone();
        self.operations.iter().for_each(|operation| tree.apply(&operation.change));
        tree
    }

    /// Returns whether the command printed something at a position.
    pub fn has_output_at(&self, position: Position) -> bool {
        self.outputs.binary_search_by_key(&position, |output| output.position).is_ok()
    }

    /// Returns what the command had printed before a position.
    pub fn output_before(&self, position: Position) -> Vec<u8> {
        self.outputs
            .iter()
            .take_while(|output| output.position < position)
            .flat_map(|output| output.data.clone())
            .collect()
    }

    /// Appends an operation that begins now; it ends with [`History::end`].
    pub fn begin(&mut self, change: Change) -> Event {
        let begin = self.take_position();
        let origin = Origin::default();
        self.operations.push(Operation { change, begin, end: None, is_synchronous: false, origin });
        Event::Operation(self.operations.len() - 1)
    }

    /// Appends a sync that begins now; it ends with [`History::end`].
    pub fn begin_sync(&mut self, scope: Scope) -> Event {
        let begin = self.take_position();
        self.syncs.push(Sync { scope, begin, end: None, failed: false, dropped: false, origin: Origin::default() });
        Event::Sync(self.syncs.len() - 1)
    }

    pub fn end(&mut self, event: Event) {
        let position = Some(self.take_position());
        match event {
            Event::Operation(index) => self.operations[index].end = position,
            Event::Sync(index) => self.syncs[index].end = position,
        }
    }

    /// Appends an operation that begins and ends before the next event. Returns the operation's
    /// index.
    pub fn push(&mut self, change: Change) -> usize {
        let event = self.begin(change);
        self.end(event);
        self.operations.len() - 1
    }

    /// Appends a sync that nothing else overlaps.
    pub fn push_sync(&mut self, scope: Scope) {
        let event = self.begin_sync(scope);
        self.end(event);
    }

    /// Appends a sync that fails. It begins and ends before the next event.
    pub fn push_failed_sync(&mut self, scope: Scope) {
        self.push_sync(scope);
        self.syncs.iter_mut().last().into_iter().for_each(|sync| sync.failed = true);
    }

    /// Appends bytes that the command prints.
    pub fn push_output(&mut self, data: &[u8]) {
        let position = self.take_position();
        self.outputs.push(Output { position, data: data.to_vec() });
    }

    fn take_position(&mut self) -> Position {
        self.length += 1;
        self.length - 1
    }
}
