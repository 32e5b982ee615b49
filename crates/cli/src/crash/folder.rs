//! Folders on disk and in memory: reads a folder into a tree, writes a tree to a folder, and
//! compares two trees.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use usring_crash::Tree;
use usring_crash::content::Content;
use usring_crash::tree::{Body, DirectoryEntry, Inode, Node, ROOT};
use usring_inject::glob;

/// Maximum number of bytes that the files of a folder may have together, because they are held in
/// memory.
const MOST_BYTES: u64 = 2 << 30;
/// Least size of a file that is copied from the original folder instead of written, if the recorded
/// command has not changed the file. The file system can then let the copy share the original's
/// blocks.
const COPIED_SIZE: u64 = 1 << 20;

/// A folder that was read.
#[derive(Default)]
pub struct Snapshot {
    pub tree: Tree,
    /// The tree's node for each inode number.
    pub nodes: BTreeMap<u64, Node>,
    bytes: u64,
}

/// Reads a folder with all that is in it. Sockets, pipes and devices are left out.
pub fn read(folder: &Path) -> io::Result<Snapshot> {
    let mut snapshot = Snapshot::default();
    snapshot.nodes.insert(fs::metadata(folder)?.ino(), ROOT);
    read_below(folder, ROOT, &mut snapshot)?;
    Ok(snapshot)
}

fn read_below(folder: &Path, parent: Node, snapshot: &mut Snapshot) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, metadata) = (entry.path(), entry.metadata()?);
        let kind = metadata.file_type();
        if !kind.is_dir() && !kind.is_file() && !kind.is_symlink() {
            continue;
        }
        let entry = DirectoryEntry { folder: parent, name: entry.file_name() };
        if let Some(known) = snapshot.nodes.get(&metadata.ino()) {
            snapshot.tree.name(&entry, *known);
            continue;
        }
        let node = Node(snapshot.nodes.len() as u64);
        snapshot.nodes.insert(metadata.ino(), node);
        let body = if kind.is_dir() {
            Body::Folder(BTreeMap::new())
        } else if kind.is_symlink() {
            Body::Link(fs::read_link(&path)?.into())
        } else {
            snapshot.bytes += metadata.len();
            if snapshot.bytes > MOST_BYTES {
                return Err(io::Error::other("the folder has more than 2 GiB, which is too much for `usring crash`"));
            }
            Body::File(Arc::new(Content::of(&fs::read(&path)?)))
        };
        snapshot.tree.add(node, Inode { body, mode: metadata.mode() & 0o7777 });
        snapshot.tree.name(&entry, node);
        if kind.is_dir() {
            read_below(&path, node, snapshot)?;
        }
    }
    Ok(())
}

/// The folder as it was before the recorded command ran: a copy on disk, and a tree. `write` copies
/// large files from this copy if the command has not changed them.
pub struct Base<'a> {
    pub tree: &'a Tree,
    pub folder: &'a Path,
}

/// Writes a tree into a new folder.
pub fn write(tree: &Tree, target: &Path, base: Option<&Base<'_>>) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o755).create(target)?;
    let mut first_paths: BTreeMap<Node, PathBuf> = BTreeMap::new();
    let mut modes = Vec::new();
    for (relative, node) in tree.paths() {
        let path = target.join(&relative);
        let Some(inode) = tree.inode(node) else { continue };
        match (&inode.body, first_paths.get(&node)) {
            (Body::File(_) | Body::Link(_), Some(first)) => fs::hard_link(first, &path)?,
            (Body::File(content), None) => write_file(content, node, &relative, &path, base)?,
            (Body::Link(to), None) => symlink(to, &path)?,
            (Body::Folder(_), _) => fs::create_dir(&path)?,
        }
        if !matches!(inode.body, Body::Link(_)) {
            modes.push((path.clone(), inode.mode));
        }
        first_paths.insert(node, path);
    }
    // A folder's mode may forbid to make files in the folder, so the modes are set last.
    modes.iter().rev().try_for_each(|(path, mode)| fs::set_permissions(path, fs::Permissions::from_mode(*mode)))
}

fn write_file(
    content: &Arc<Content>,
    node: Node,
    relative: &Path,
    path: &Path,
    base: Option<&Base<'_>>,
) -> io::Result<()> {
    if let Some(base) = base.filter(|_| content.size() >= COPIED_SIZE) {
        let is_unchanged = |inode: &Inode| matches!(&inode.body, Body::File(old) if Arc::ptr_eq(old, content));
        if base.tree.find(relative) == Some(node) && base.tree.inode(node).is_some_and(is_unchanged) {
            return fs::copy(base.folder.join(relative), path).map(drop);
        }
    }
    let file = File::create(path)?;
    file.set_len(content.size())?;
    content.pieces().try_for_each(|(offset, piece)| file.write_all_at(piece, offset))
}

/// Copies what is in a folder into a new folder.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let snapshot = read(from)?;
    write(&snapshot.tree, to, Some(&Base { tree: &snapshot.tree, folder: from }))
}

/// Removes a folder that a check may have left in any state.
pub fn remove(folder: &Path) {
    if fs::remove_dir_all(folder).is_err() {
        open_folders(folder);
        let _ = fs::remove_dir_all(folder);
    }
}

/// Makes all folders writable, so that what is in them can be removed.
fn open_folders(folder: &Path) {
    let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_folders(&entry.path());
        }
    }
}

/// Patterns of files whose bytes do not matter after a power loss.
#[derive(Clone, Debug, Default)]
pub struct Scratch(pub Vec<String>);

impl Scratch {
    pub fn has(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.0.iter().any(|pattern| {
            let subject = if pattern.contains('/') { path } else { name };
            glob::matches(pattern.as_bytes(), subject.as_bytes())
        })
    }
}

/// Returns how the folder differs from the tree that the recorded changes produce. `None` if it
/// does not differ.
pub fn difference(expected: &Tree, found: &Tree, scratch: &Scratch) -> Option<String> {
    let paths = |tree: &Tree| -> BTreeMap<PathBuf, Node> {
        tree.paths().into_iter().filter(|(path, _)| !scratch.has(&path.to_string_lossy())).collect()
    };
    let (wanted, real) = (paths(expected), paths(found));
    for (path, node) in &real {
        let name = path.display();
        let Some(recorded) = wanted.get(path) else {
            return Some(format!("\"{name}\" appeared without a recorded change"));
        };
        let differs = match (expected.inode(*recorded).map(|it| &it.body), found.inode(*node).map(|it| &it.body)) {
            (Some(Body::File(recorded)), Some(Body::File(real))) => recorded.first_difference(real),
            (Some(Body::Folder(_)), Some(Body::Folder(_))) => None,
            (Some(Body::Link(recorded)), Some(Body::Link(real))) if recorded == real => None,
            _ => Some(0),
        };
        if let Some(offset) = differs {
            return Some(format!("\"{name}\" changed without a recorded change, at byte {offset}"));
        }
    }
    let gone = wanted.keys().find(|path| !real.contains_key(*path))?;
    Some(format!("\"{}\" disappeared without a recorded change", gone.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_written_as_it_was_read() {
        let work = tempfile::tempdir().unwrap();
        let (first, second) = (work.path().join("first"), work.path().join("second"));
        fs::create_dir_all(first.join("inner")).unwrap();
        fs::write(first.join("inner/file"), [7; 5000]).unwrap();
        fs::write(first.join("empty"), b"").unwrap();
        fs::hard_link(first.join("empty"), first.join("inner/other name")).unwrap();
        symlink("inner/file", first.join("link")).unwrap();
        fs::set_permissions(first.join("inner/file"), fs::Permissions::from_mode(0o600)).unwrap();
        copy(&first, &second).unwrap();
        let (one, two) = (read(&first).unwrap(), read(&second).unwrap());
        assert_eq!(one.tree.hash(), two.tree.hash());
        assert_eq!(difference(&one.tree, &two.tree, &Scratch::default()), None);
        assert_eq!(one.tree.paths().len(), 5);
        fs::write(second.join("empty"), b"x").unwrap();
        let two = read(&second).unwrap();
        let differs = difference(&one.tree, &two.tree, &Scratch::default());
        assert_eq!(differs.as_deref(), Some("\"empty\" changed without a recorded change, at byte 0"));
        let ignored = Scratch(vec!["empty".into(), "inner/other*".into()]);
        assert_eq!(difference(&one.tree, &two.tree, &ignored), None);
        remove(&second);
        assert!(!second.exists());
    }
}
