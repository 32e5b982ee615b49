//! Determines whether a descriptor's file or a path lies below the recorded folder.

use crate::log::settings;
use alloc::vec::Vec;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::{Errno, SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// Longest path, with its NUL.
const PATH_LIMIT: usize = linux::PATH_MAX as usize;
/// Suffix that /proc adds to the path of a removed file. A file's own name may have this ending,
/// too.
const REMOVED: &[u8] = b" (deleted)";

/// The fields of `struct stat` that the recorder uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    pub device: u64,
    pub inode: u64,
    pub mode: u32,
    pub size: u64,
}

impl Stat {
    pub fn is(&self, kind: u32) -> bool {
        self.mode & linux::S_IFMT == kind
    }

    /// Returns whether this is the status of a file of a kind that the recorder records: a regular
    /// file, a folder or a symbolic link.
    pub fn is_known(&self) -> bool {
        self.is(linux::S_IFREG) || self.is(linux::S_IFDIR) || self.is(linux::S_IFLNK)
    }
}

/// Words of `struct stat`.
const STAT_WORDS: usize = 18;

/// Calls newfstatat(2) for a path in usring's memory, relative to the descriptor `folder`. An empty
/// path with AT_EMPTY_PATH means the file of that descriptor.
fn stat_of(folder: i32, path: u64, flags: u32) -> Result<Stat, Errno> {
    let mut words = [0u64; STAT_WORDS];
    let arguments = [width::word(folder), path, words.as_mut_ptr() as u64, u64::from(flags), 0];
    SystemCall::new(linux::__NR_newfstatat, arguments).run_unhooked()?;
    Ok(Stat { device: words[0], inode: words[1], mode: width::low(words[3]), size: words[6] })
}

/// Makes fstat(2).
pub(crate) fn stat(number: i32) -> Result<Stat, Errno> {
    stat_of(number, c"".as_ptr() as u64, linux::AT_EMPTY_PATH)
}

/// The path of an open file.
#[derive(Debug, PartialEq, Eq)]
struct OpenPath {
    path: Vec<u8>,
    /// Whether the file was removed from that path.
    is_removed: bool,
}

/// Returns the path of a descriptor's file, by /proc. `None`: it cannot be read.
fn path_of(number: i32) -> Option<OpenPath> {
    let mut path = link_of(number)?;
    let Some(name_end) = path.strip_suffix(REMOVED).map(<[u8]>::len) else {
        return Some(OpenPath { path, is_removed: false });
    };
    path.push(0);
    let at_path = stat_of(linux::AT_FDCWD, path.as_ptr() as u64, linux::AT_SYMLINK_NOFOLLOW);
    path.pop();
    let identity = |stat: Stat| (stat.device, stat.inode);
    let is_removed = at_path.ok().map(identity) != stat(number).ok().map(identity);
    if is_removed {
        path.truncate(name_end);
    }
    Some(OpenPath { path, is_removed })
}

/// Reads the link in /proc to a descriptor's file. `None`: the link cannot be read.
fn link_of(number: i32) -> Option<Vec<u8>> {
    let mut name = Vec::from(*b"/proc/thread-self/fd/");
    let digits = (0..10).rev().map(|power| width::byte(width::word(number / 10_i32.pow(power) % 10)) + b'0');
    name.extend(digits.skip_while(|digit| *digit == b'0'));
    if number == 0 {
        name.push(b'0');
    }
    name.push(0);
    let mut path = alloc::vec![0u8; PATH_LIMIT];
    let arguments =
        [width::word(linux::AT_FDCWD), name.as_ptr() as u64, path.as_mut_ptr() as u64, PATH_LIMIT as u64, 0];
    let length = SystemCall::new(linux::__NR_readlinkat, arguments).run_unhooked().ok()?;
    path.truncate(width::size(length));
    Some(path)
}

/// Returns a path relative to the recorded folder. `None` if the path lies outside the recorded
/// folder.
fn relative(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(settings()?.folder.as_slice())?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

/// An open file: the recorded folder itself, or a file or folder below it.
pub(crate) struct File {
    pub stat: Stat,
    /// Relative to the recorded folder.
    pub path: Vec<u8>,
}

/// Returns the file that the descriptor `number` refers to. `None`: the file is outside the
/// recorded folder, or is neither a regular file nor a folder.
pub(crate) fn file(number: i32) -> Option<File> {
    let stat = stat(number).ok()?;
    if !stat.is(linux::S_IFREG) && !stat.is(linux::S_IFDIR) {
        return None;
    }
    let path = path_of(number)?.path;
    Some(File { stat, path: relative(&path)?.into() })
}

/// Returns whether a descriptor is the command's standard output, by the status of the descriptor's
/// file.
pub(crate) fn is_output(stat: &Stat) -> bool {
    settings().is_some_and(|it| it.output_inode == stat.inode && it.output_device == stat.device)
}

/// A name in the recorded folder, or in a folder below it.
pub(crate) struct DirectoryEntry {
    folder: OwnedDescriptor,
    pub folder_inode: u64,
    /// Relative to the recorded folder.
    pub path: Vec<u8>,
    /// With a NUL.
    name: Vec<u8>,
}

impl DirectoryEntry {
    /// Resolves a path that the program passes in a call. `None` if the path is outside the
    /// recorded folder, or if its last part is empty, `.` or `..`.
    pub fn of(directory: i32, path: u64) -> Option<DirectoryEntry> {
        let mut path = user_memory::read_c_string(UserAddress(path), PATH_LIMIT).ok()?;
        path.pop();
        while path.len() > 1 && path.last() == Some(&b'/') {
            path.pop();
        }
        let split = path.iter().rposition(|byte| *byte == b'/');
        let (folder, name) = match split {
            Some(at) => (&path[..=at], &path[at + 1..]),
            None => (&b"."[..], &path[..]),
        };
        if matches!(name, b"" | b"." | b"..") {
            return None;
        }
        let (folder, name) = ([folder, b"\0"].concat(), [name, b"\0"].concat());
        let flags = u64::from(linux::O_PATH | linux::O_DIRECTORY | linux::O_CLOEXEC);
        let arguments = [width::word(directory), folder.as_ptr() as u64, flags, 0, 0];
        let number = SystemCall::new(linux::__NR_openat, arguments).run_unhooked().ok()?;
        let folder = OwnedDescriptor::from_raw(width::int(number));
        let full = path_of(folder.number())?.path;
        let mut path: Vec<u8> = relative(&full)?.into();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name[..name.len() - 1]);
        let folder_inode = stat(folder.number()).ok()?.inode;
        Some(DirectoryEntry { folder, folder_inode, path, name })
    }

    /// Returns the status of the file to which the name refers. If the name is a symbolic link,
    /// `follows` selects the link's target instead of the link.
    pub fn stat(&self, follows: bool) -> Option<Stat> {
        let flags = if follows { 0 } else { linux::AT_SYMLINK_NOFOLLOW };
        stat_of(self.folder.number(), self.name.as_ptr() as u64, flags).ok()
    }

    /// Returns the target of the symbolic link.
    pub fn target(&self) -> Option<Vec<u8>> {
        let mut target = alloc::vec![0u8; PATH_LIMIT];
        let arguments = [
            width::word(self.folder.number()),
            self.name.as_ptr() as u64,
            target.as_mut_ptr() as u64,
            PATH_LIMIT as u64,
            0,
        ];
        let length = SystemCall::new(linux::__NR_readlinkat, arguments).run_unhooked().ok()?;
        target.truncate(width::size(length));
        Some(target)
    }
}

/// Opens a descriptor's file once more, for reading, because the program's own descriptor may allow
/// only writes. `None` if the file was removed or cannot be opened.
pub(crate) fn reopen(number: i32) -> Option<OwnedDescriptor> {
    let path = path_to_reopen(number)?;
    let flags = u64::from(linux::O_RDONLY | linux::O_CLOEXEC);
    let opened = SystemCall::new(linux::__NR_openat, [width::word(linux::AT_FDCWD), path.as_ptr() as u64, flags, 0, 0])
        .run_unhooked();
    opened.ok().map(|number| OwnedDescriptor::from_raw(width::int(number)))
}

fn path_to_reopen(number: i32) -> Option<Vec<u8>> {
    let OpenPath { mut path, is_removed } = path_of(number)?;
    path.push(0);
    (!is_removed).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_file_whose_name_looks_like_that_of_a_removed_file_is_still_there() {
        let folder = std::env::temp_dir().canonicalize().unwrap();
        let path = folder.join(format!("usring-record-{} (deleted)", std::process::id()));
        let file = File::create(&path).unwrap();
        let found = || path_of(file.as_raw_fd()).unwrap();
        assert_eq!(found(), OpenPath { path: path.as_os_str().as_bytes().into(), is_removed: false });
        fs::remove_file(&path).unwrap();
        assert_eq!(found(), OpenPath { path: path.as_os_str().as_bytes().into(), is_removed: true });
    }
}
