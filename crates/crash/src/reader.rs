//! Makes a history from the recorder's log.
//!
//! Each record has two positions: a system call begins at the first one and ends at the second one.
//! A request of a ring begins when its batch was submitted. If a link or a drain held the request
//! back, it begins when usring first carries it out. It ends when it is completed.

use crate::history::{Change, History, Operation, Origin, Output, Position, Scope, Sync};
use crate::tree::{Body, DirectoryEntry, Inode, Node, Tree};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use usring_inject::calls;
use usring_record::format::{self, Kind, Record};

/// A recording that was read.
#[derive(Debug, Default)]
pub struct Recording {
    pub history: History,
    /// The reasons why the history is incomplete, each with the path of the file that it concerns.
    pub gaps: Vec<(String, String)>,
}

/// A request of a ring for which a thread makes system calls at this point of the log.
struct Request {
    key: (u32, u64),
    begin: Position,
}

/// An operation or a sync that a ring's request has caused. Its end is set when the request
/// completes.
enum Open {
    Operation(usize),
    Sync(usize),
}

struct Reader {
    recording: Recording,
    /// The node (file or folder) to which each inode number belongs at this point of the log.
    nodes: HashMap<u64, Node>,
    next_node: u64,
    /// Positions at which batches were submitted.
    batches: HashMap<(u32, u64), Position>,
    /// For each thread that makes system calls for a request, by thread id: that request.
    requests: HashMap<u32, Request>,
    /// The positions at which a ring began requests that it had held back for a link or a drain.
    begun: HashMap<(u32, u64), Position>,
    /// For each request that has not completed, its events. They have no end yet.
    open: HashMap<(u32, u64), Vec<Open>>,
    syncs: HashMap<(u32, u64), usize>,
}

/// Bits of a file's mode: the mask of the type, and the types folder and symbolic link.
const TYPE: u64 = 0o170_000;
const FOLDER: u64 = 0o040_000;
const LINK: u64 = 0o120_000;

/// Reads a log. `initial`: the folder at the beginning, and the node of each inode in it.
pub fn read(initial: Tree, nodes: &BTreeMap<u64, Node>, log: &[u8]) -> Recording {
    let next_node = nodes.values().map(|node| node.0 + 1).max().unwrap_or(1).max(1);
    let mut reader = Reader {
        recording: Recording { history: History { initial, ..History::default() }, gaps: Vec::new() },
        nodes: nodes.iter().map(|(inode, node)| (*inode, *node)).collect(),
        next_node,
        batches: HashMap::new(),
        requests: HashMap::new(),
        begun: HashMap::new(),
        open: HashMap::new(),
        syncs: HashMap::new(),
    };
    let Some((page, mut rest)) = log.split_at_checked(format::PAGE) else {
        reader.gap("the log of the recording was cut off", "");
        return reader.recording;
    };
    if page[..8] != [0; 8] {
        reader.gap("a process could not write to the log of the recording", "");
    }
    let mut position = 0;
    while !rest.is_empty() {
        let Some((record, data, behind)) = format::decode(rest) else {
            reader.gap("the log of the recording is damaged", "");
            break;
        };
        reader.take(&record, data, position);
        position += 2;
        rest = behind;
    }
    reader.recording.history.length = position;
    reader.recording
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Reader {
    fn gap(&mut self, reason: &str, path: &str) {
        let gap = (reason.to_owned(), path.to_owned());
        if !self.recording.gaps.contains(&gap) {
            self.recording.gaps.push(gap);
        }
    }

    /// Returns the node (file or folder) of an inode. If the history does not know the file,
    /// records a gap and returns `None`.
    fn node(&mut self, inode: u64, path: &[u8]) -> Option<Node> {
        let node = self.nodes.get(&inode).copied();
        if node.is_none() {
            self.gap("a file that nothing created is changed", &text(path));
        }
        node
    }

    /// Makes a node for a new inode. A removed file may have had this inode's number, so the number
    /// alone does not identify a file.
    fn new_node(&mut self, record: &Record<'_>) -> Node {
        let node = Node(self.next_node);
        self.next_node += 1;
        self.nodes.insert(record.node, node);
        let body = match record.size & TYPE {
            FOLDER => Body::Folder(BTreeMap::new()),
            LINK => Body::Link(OsStr::from_bytes(record.second_path).to_owned()),
            _ => Body::File(Arc::default()),
        };
        let mode = (record.size & 0o7777) as u32;
        self.recording.history.initial.add(node, Inode { body, mode });
        node
    }

    fn entry(&mut self, folder: u64, path: &[u8]) -> Option<DirectoryEntry> {
        let folder = self.node(folder, path)?;
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        Some(DirectoryEntry { folder, name: OsStr::from_bytes(name).to_owned() })
    }

    fn take(&mut self, record: &Record<'_>, data: &[u8], position: Position) {
        let key = (record.process, record.id);
        match record.kind {
            Kind::Output => {
                self.recording.history.outputs.push(Output { position, data: data.to_vec() });
            }
            Kind::Unknown => self.gap(&text(record.path), &text(record.second_path)),
            Kind::SyncBegin => self.begin_sync(record, position),
            Kind::SyncEnd => self.end_sync(record, position),
            Kind::Batch => {
                self.batches.insert(key, position);
            }
            Kind::Request => {
                let batch = self.batches.get(&(record.process, record.size)).copied();
                let begin = batch.unwrap_or_else(|| *self.begun.entry(key).or_insert(position));
                self.requests.insert(record.thread, Request { key, begin });
            }
            Kind::RequestLeft => {
                self.requests.remove(&record.thread);
            }
            Kind::Completed => self.complete(key, position),
            _ => {
                if let Some(change) = self.change(record, data) {
                    self.operation(record, change, position);
                }
            }
        }
    }

    fn change(&mut self, record: &Record<'_>, data: &[u8]) -> Option<Change> {
        let Record { path, second_path, offset, size, .. } = *record;
        let change = match record.kind {
            Kind::CreateUnnamed => {
                self.new_node(record);
                return None;
            }
            Kind::Create => {
                let node = self.new_node(record);
                Change::Name { entry: self.entry(record.folder, path)?, node }
            }
            Kind::Link => {
                let node = self.node(record.node, second_path)?;
                Change::Name { entry: self.entry(record.folder, second_path)?, node }
            }
            kind => {
                let node = self.node(record.node, path)?;
                match kind {
                    Kind::Write => Change::Write { node, offset, data: Arc::from(data) },
                    Kind::Resize => Change::Resize { node, size },
                    Kind::Grow => Change::Grow { node, size },
                    Kind::Clear => Change::Clear { node, offset, length: size },
                    Kind::Remove => Change::Remove { entry: self.entry(record.folder, path)?, node },
                    Kind::Rename => {
                        let (from, to) =
                            (self.entry(record.folder, path)?, self.entry(record.second_folder, second_path)?);
                        Change::Rename { from, to, node }
                    }
                    _ => {
                        let (first, second) =
                            (self.entry(record.folder, path)?, self.entry(record.second_folder, second_path)?);
                        Change::Exchange { first, second, nodes: (node, self.node(size, second_path)?) }
                    }
                }
            }
        };
        Some(change)
    }

    fn origin(&self, record: &Record<'_>) -> Origin {
        let name = calls::by_number(record.call.into()).map_or("a system call", |call| call.name);
        let by_ring = if self.requests.contains_key(&record.thread) { " by ring" } else { "" };
        let is_link = record.kind == Kind::Create;
        Origin {
            process: record.process,
            call: format!("{name}{by_ring}"),
            path: text(record.path),
            second_path: if is_link { String::new() } else { text(record.second_path) },
        }
    }

    /// Returns the positions at which an event of a record begins and ends. If a request made the
    /// call, the end is unknown (`None`) until the request's completion is read. The reader keeps
    /// `open`, and sets the end when it reads that completion.
    fn span(&mut self, record: &Record<'_>, position: Position, open: Open) -> (Position, Option<Position>) {
        match self.requests.get(&record.thread) {
            Some(request) => {
                self.open.entry(request.key).or_default().push(open);
                (request.begin, None)
            }
            None => (position, Some(position + 1)),
        }
    }

    fn operation(&mut self, record: &Record<'_>, change: Change, position: Position) {
        let origin = self.origin(record);
        let index = self.recording.history.operations.len();
        let (begin, end) = self.span(record, position, Open::Operation(index));
        let is_synchronous = record.flags & format::SYNCHRONOUS != 0;
        self.recording.history.operations.push(Operation { change, begin, end, is_synchronous, origin });
    }

    fn begin_sync(&mut self, record: &Record<'_>, position: Position) {
        let scope = match record.node {
            0 => Scope::Everything,
            inode => match self.node(inode, record.path) {
                Some(node) => Scope::Node { node, data_only: record.flags & format::DATA_ONLY != 0 },
                None => return,
            },
        };
        let index = self.recording.history.syncs.len();
        self.syncs.insert((record.process, record.id), index);
        let begin = self.requests.get(&record.thread).map_or(position, |request| request.begin);
        let origin = self.origin(record);
        self.recording.history.syncs.push(Sync { scope, begin, end: None, failed: false, dropped: false, origin });
    }

    fn end_sync(&mut self, record: &Record<'_>, position: Position) {
        let Some(index) = self.syncs.remove(&(record.process, record.id)) else { return };
        let (_, end) = self.span(record, position, Open::Sync(index));
        let sync = &mut self.recording.history.syncs[index];
        sync.failed = record.flags & format::FAILED != 0;
        sync.dropped = record.flags & format::DROPPED != 0;
        sync.end = end;
    }

    fn complete(&mut self, key: (u32, u64), position: Position) {
        for open in self.open.remove(&key).unwrap_or_default() {
            match open {
                Open::Operation(index) => self.recording.history.operations[index].end = Some(position),
                Open::Sync(index) => self.recording.history.syncs[index].end = Some(position),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::{Durability, Model};

    const FOLDER_INODE: u64 = 100;

    fn log(records: &[(Record<'_>, &[u8])]) -> Vec<u8> {
        let mut log = vec![0; format::PAGE];
        for (record, data) in records {
            log.extend(Record { data_length: data.len() as u64, ..record.clone() }.encode());
            log.extend_from_slice(data);
        }
        log
    }

    fn read_log(records: &[(Record<'_>, &[u8])]) -> Recording {
        read(Tree::default(), &BTreeMap::from([(FOLDER_INODE, crate::tree::ROOT)]), &log(records))
    }

    fn create(inode: u64, path: &'static str) -> (Record<'static>, &'static [u8]) {
        let path = path.as_bytes();
        (Record { node: inode, folder: FOLDER_INODE, path, size: 0o100_644, ..Record::new(Kind::Create) }, b"")
    }

    fn write(inode: u64, data: &'static [u8]) -> (Record<'static>, &'static [u8]) {
        (Record { node: inode, path: b"a", ..Record::new(Kind::Write) }, data)
    }

    fn plain(kind: Kind, id: u64) -> (Record<'static>, &'static [u8]) {
        (Record { id, node: 7, ..Record::new(kind) }, b"")
    }

    #[test]
    fn a_new_file_with_the_inode_of_a_removed_one_is_another_file() {
        let remove = Record { node: 7, folder: FOLDER_INODE, path: b"a", ..Record::new(Kind::Remove) };
        let records = [create(7, "a"), write(7, b"old"), (remove, b""), create(7, "b"), write(7, b"n")];
        let Recording { history, gaps } = read_log(&records);
        assert_eq!(gaps, []);
        let tree = history.last_tree();
        assert_eq!(tree.find("a".as_ref()), None);
        assert_eq!(tree.content(tree.find("b".as_ref()).unwrap()).unwrap().bytes(), b"n");
    }

    #[test]
    fn an_fsync_in_the_batch_of_a_write_does_not_cover_it() {
        let request = |id, batch| (Record { id, size: batch, ..Record::new(Kind::Request) }, &b""[..]);
        let records = [
            create(7, "a"),
            plain(Kind::Batch, 1),
            request(2, 1),
            write(7, b"x"),
            plain(Kind::RequestLeft, 0),
            plain(Kind::Completed, 2),
            request(3, 1),
            plain(Kind::SyncBegin, 1),
            plain(Kind::SyncEnd, 1),
            plain(Kind::RequestLeft, 0),
            plain(Kind::Completed, 3),
        ];
        let pending = |records: &[(Record<'_>, &[u8])]| {
            let history = read_log(records).history;
            Durability::of(&history, Model::Posix).pending(&history, history.length).contains(&1)
        };
        assert!(pending(&records));
        // A linked fsync begins only when the write before it has ended.
        let mut linked = records.clone();
        linked[6] = request(3, 0);
        assert!(!pending(&linked));
    }

    #[test]
    fn a_damaged_log_and_an_unknown_file_are_gaps() {
        assert_eq!(read_log(&[write(9, b"x")]).gaps[0].0, "a file that nothing created is changed");
        let whole = log(&[create(7, "a")]);
        let cut =
            read(Tree::default(), &BTreeMap::from([(FOLDER_INODE, crate::tree::ROOT)]), &whole[..whole.len() - 1]);
        assert_eq!(cut.gaps[0].0, "the log of the recording is damaged");
        let mut lost = whole;
        lost[0] = 1;
        let lost = read(Tree::default(), &BTreeMap::new(), &lost);
        assert_eq!(lost.gaps[0].0, "a process could not write to the log of the recording");
    }
}
