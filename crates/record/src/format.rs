//! The log: a page of words, and then records. A record is a header, two paths, and data.
//!
//! The writers are processes of one build, so a change of the layout needs no version.

use alloc::vec::Vec;
use usring_sys::width;

/// Environment variable that names the log.
pub const ENVIRONMENT: &str = "USRING_CRASH";

/// Bytes before the first record.
pub const PAGE: usize = 4096;

/// Words of the log's first page, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Set if a record could not be written.
    Lost = 0,
    /// Device and inode of the pipe that is the command's standard output.
    OutputDevice = 1,
    OutputInode = 2,
    /// Length of the recorded folder's path, in bytes. The path begins at the next word.
    FolderLength = 3,
    Folder = 4,
}

/// Maximum length of the recorded folder's path, in bytes.
pub const MOST_FOLDER: usize = PAGE - 8 * Page::Folder as usize;

/// The event that a record of the log describes, and the meaning of the record's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// `node`, `offset`, and the data.
    Write = 1,
    /// `node`, `size`.
    Resize = 2,
    /// `node`, `size`.
    Grow = 3,
    /// `node`, `offset`, `size`: the number of bytes.
    Clear = 4,
    /// A new inode `node` with a name in `folder`. `size`: the inode's mode. The second path is the
    /// target of a symbolic link.
    Create = 5,
    /// A new file `node` without a name (O_TMPFILE). `size`: the file's mode.
    CreateUnnamed = 6,
    /// A call such as link(2) gives `node` one more name in `folder`: the second path. The first
    /// path is the old name, or empty if the old name is outside the recorded folder.
    Link = 7,
    /// A name in `folder` for `node` is gone.
    Remove = 8,
    /// `node` gets another name. The old name is the first path, in `folder`. The new name is the
    /// second path, in `second_folder`.
    Rename = 9,
    /// Two names are exchanged: the name of `node` in `folder`, and a name in `second_folder`.
    /// `size`: the number of the inode that had the second name.
    Exchange = 10,
    /// fsync(2) of `node` begins. `id` is the number that the process has given to this sync. Node
    /// 0 stands for all files (sync(2), syncfs(2)).
    SyncBegin = 11,
    /// The sync `id` of the process has ended. With [`FAILED`], the sync ended with an error.
    SyncEnd = 12,
    /// The data goes to the command's standard output.
    Output = 13,
    /// The log lacks some changes of the recorded folder. The path of the record holds the reason,
    /// and the second path the file that the reason concerns.
    Unknown = 14,
    /// The requests of a batch are submitted; `id` is the batch.
    Batch = 15,
    /// From this record on, the thread's calls belong to request `id` of batch `size`. If `size` is
    /// 0, a link or a drain has held the request back, and the request begins now.
    Request = 16,
    /// From this record on, the thread's calls belong to no request.
    RequestLeft = 17,
    /// The request `id` is completed.
    Completed = 18,
}

const KINDS: [Kind; 18] = [
    Kind::Write,
    Kind::Resize,
    Kind::Grow,
    Kind::Clear,
    Kind::Create,
    Kind::CreateUnnamed,
    Kind::Link,
    Kind::Remove,
    Kind::Rename,
    Kind::Exchange,
    Kind::SyncBegin,
    Kind::SyncEnd,
    Kind::Output,
    Kind::Unknown,
    Kind::Batch,
    Kind::Request,
    Kind::RequestLeft,
    Kind::Completed,
];

/// Flag: the call asked for durability itself.
pub const SYNCHRONOUS: u32 = 1 << 0;
/// Flag: fdatasync(2).
pub const DATA_ONLY: u32 = 1 << 1;
/// Flag: the sync failed.
pub const FAILED: u32 = 1 << 2;
/// Flag of a sync's end: the sync failed and certainly lost the data that it should have made
/// durable.
pub const DROPPED: u32 = 1 << 3;

/// A record without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub kind: Kind,
    /// Number of the system call.
    pub call: u16,
    pub process: u32,
    pub thread: u32,
    pub flags: u32,
    pub node: u64,
    pub folder: u64,
    pub second_folder: u64,
    pub offset: u64,
    pub size: u64,
    pub id: u64,
    /// Relative to the folder.
    pub path: &'a [u8],
    pub second_path: &'a [u8],
    /// Bytes that follow the paths.
    pub data_length: u64,
}

/// Bytes of a header.
const HEADER: usize = 16 + 7 * 8 + 8;

impl Record<'_> {
    pub fn new(kind: Kind) -> Record<'static> {
        Record {
            kind,
            call: 0,
            process: 0,
            thread: 0,
            flags: 0,
            node: 0,
            folder: 0,
            second_folder: 0,
            offset: 0,
            size: 0,
            id: 0,
            path: b"",
            second_path: b"",
            data_length: 0,
        }
    }

    /// Returns the bytes of the header and the paths. In the log, the data follows these bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.path.len() + self.second_path.len());
        bytes.extend_from_slice(&(self.kind as u16).to_le_bytes());
        bytes.extend_from_slice(&self.call.to_le_bytes());
        for word in [self.process, self.thread, self.flags] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let words = [self.node, self.folder, self.second_folder, self.offset, self.size, self.id, self.data_length];
        for word in words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for length in [self.path.len(), self.second_path.len()] {
            bytes.extend_from_slice(&width::count(length).to_le_bytes());
        }
        bytes.extend_from_slice(self.path);
        bytes.extend_from_slice(self.second_path);
        bytes
    }
}

/// Returns the first record in `bytes`, its data, and the bytes behind it. `None` if `bytes` begins
/// with no whole record.
pub fn decode(bytes: &[u8]) -> Option<(Record<'_>, &[u8], &[u8])> {
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
    let long = |index: usize| header[16 + 8 * index..24 + 8 * index].try_into().map_or(0, u64::from_le_bytes);
    let kind = KINDS.into_iter().find(|kind| *kind as u16 == half(0))?;
    let (path, rest) = rest.split_at_checked(word(HEADER - 8) as usize)?;
    let (second_path, rest) = rest.split_at_checked(word(HEADER - 4) as usize)?;
    let (data, rest) = rest.split_at_checked(usize::try_from(long(6)).ok()?)?;
    let record = Record {
        kind,
        call: half(2),
        process: word(4),
        thread: word(8),
        flags: word(12),
        node: long(0),
        folder: long(1),
        second_folder: long(2),
        offset: long(3),
        size: long(4),
        id: long(5),
        path,
        second_path,
        data_length: data.len() as u64,
    };
    Some((record, data, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record {
            call: 77,
            process: 1,
            thread: 2,
            flags: SYNCHRONOUS,
            node: 3,
            folder: 4,
            second_folder: 5,
            offset: u64::MAX,
            size: 7,
            id: 8,
            path: b"path",
            second_path: b"second",
            data_length: 4,
            ..Record::new(Kind::Rename)
        };
        let mut bytes = record.encode();
        bytes.extend_from_slice(b"datarest");
        assert_eq!(decode(&bytes), Some((record, &b"data"[..], &b"rest"[..])));
        assert_eq!(decode(&bytes[..bytes.len() - 5]), None);
    }

    #[test]
    fn every_kind_has_its_number() {
        for kind in KINDS {
            let bytes = Record::new(kind).encode();
            assert_eq!(decode(&bytes).map(|(record, ..)| record.kind), Some(kind));
        }
    }
}
