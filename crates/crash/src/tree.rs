//! A folder in memory. Names refer to nodes, as directory entries refer to inodes. A write changes
//! a node under all its names, and a node without a name stays.

use crate::content::{Content, hash_bytes, mix};
use crate::history::Change;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A node's number, unique in a history. (The file system may give a removed file's inode number to
/// a new file, which then has another node.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u64);

/// The folder itself.
pub const ROOT: Node = Node(0);

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    pub folder: Node,
    pub name: OsString,
}

#[derive(Clone, Debug)]
pub enum Body {
    File(Arc<Content>),
    Folder(BTreeMap<OsString, Node>),
    /// A symbolic link, and its target.
    Link(OsString),
}

#[derive(Clone, Debug)]
pub struct Inode {
    pub body: Body,
    /// The permission bits.
    pub mode: u32,
}

/// The folder and everything in it.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: BTreeMap<Node, Arc<Inode>>,
}

impl Default for Tree {
    fn default() -> Tree {
        let root = Inode { body: Body::Folder(BTreeMap::new()), mode: 0o755 };
        Tree { nodes: BTreeMap::from([(ROOT, Arc::new(root))]) }
    }
}

impl Tree {
    /// Adds a node that has no name yet.
    pub fn add(&mut self, node: Node, inode: Inode) {
        self.nodes.insert(node, Arc::new(inode));
    }

    /// Makes a name refer to a node. Does nothing if the folder of the name does not exist.
    pub fn name(&mut self, entry: &DirectoryEntry, node: Node) {
        if let Some(names) = self.names(entry.folder) {
            names.insert(entry.name.clone(), node);
        }
    }

    /// Removes a name, if it leads to this node.
    pub fn remove(&mut self, entry: &DirectoryEntry, node: Node) {
        if let Some(names) = self.names(entry.folder)
            && names.get(&entry.name) == Some(&node)
        {
            names.remove(&entry.name);
        }
    }

    pub fn inode(&self, node: Node) -> Option<&Inode> {
        self.nodes.get(&node).map(|inode| &**inode)
    }

    /// Returns the content of a file. `None`: there is no such node, or it is no file.
    pub fn content(&self, node: Node) -> Option<&Content> {
        match &self.inode(node)?.body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }

    /// Returns the content of a file, to be changed. `None`: there is no such node, or it is no
    /// file.
    pub fn content_to_change(&mut self, node: Node) -> Option<&mut Content> {
        match &mut Arc::make_mut(self.nodes.get_mut(&node)?).body {
            Body::File(content) => Some(Arc::make_mut(content)),
            _ => None,
        }
    }

    /// Returns the node that a name leads to.
    pub fn node_at(&self, entry: &DirectoryEntry) -> Option<Node> {
        match &self.inode(entry.folder)?.body {
            Body::Folder(names) => names.get(&entry.name).copied(),
            _ => None,
        }
    }

    fn names(&mut self, folder: Node) -> Option<&mut BTreeMap<OsString, Node>> {
        match &mut Arc::make_mut(self.nodes.get_mut(&folder)?).body {
            Body::Folder(names) => Some(names),
            _ => None,
        }
    }

    /// Makes a change in full.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { node, offset, data } => {
                self.content_to_change(*node).into_iter().for_each(|content| content.write(*offset, data));
            }
            Change::Resize { node, size } => {
                self.content_to_change(*node).into_iter().for_each(|content| content.resize(*size));
            }
            Change::Grow { node, size } => {
                self.content_to_change(*node).into_iter().for_each(|content| content.grow(*size));
            }
            Change::Clear { node, offset, length } => {
                self.content_to_change(*node).into_iter().for_each(|content| content.clear(*offset, *length));
            }
            Change::Name { entry, node } => self.name(entry, *node),
            Change::Remove { entry, node } => self.remove(entry, *node),
            Change::Rename { from, to, node } => {
                self.remove(from, *node);
                self.name(to, *node);
            }
            Change::Exchange { first, second, nodes } => {
                self.name(first, nodes.1);
                self.name(second, nodes.0);
            }
        }
    }

    /// Returns all paths below the folder and their nodes. Each folder comes before its entries.
    pub fn paths(&self) -> Vec<(PathBuf, Node)> {
        let mut found = Vec::new();
        let mut folders = vec![(PathBuf::new(), ROOT)];
        while let Some((path, folder)) = folders.pop() {
            let Some(Inode { body: Body::Folder(names), .. }) = self.inode(folder) else { continue };
            for (name, node) in names {
                let path = path.join(name);
                if matches!(self.inode(*node), Some(Inode { body: Body::Folder(_), .. }))
                    && !found.iter().any(|(_, known)| known == node)
                {
                    folders.push((path.clone(), *node));
                }
                found.push((path, *node));
            }
        }
        found.sort();
        found
    }

    /// Returns the node to which a path below the folder refers, if there is one. Follows no
    /// symbolic links.
    pub fn find(&self, path: &Path) -> Option<Node> {
        path.iter().try_fold(ROOT, |folder, name| match &self.inode(folder)?.body {
            Body::Folder(names) => names.get(name).copied(),
            _ => None,
        })
    }

    /// Returns a hash of all paths, and of the content and mode of the nodes to which they refer.
    /// Trees that a program cannot distinguish by reading have equal hashes.
    pub fn hash(&self) -> u64 {
        let mut hash = 0;
        let mut first_path = BTreeMap::new();
        for (index, (path, node)) in self.paths().into_iter().enumerate() {
            // The index of the node's first path distinguishes a hard link from a copy of the file.
            let first = *first_path.entry(node).or_insert(index as u64);
            hash = mix(mix(hash, hash_bytes(path.as_os_str().as_bytes())), first);
            let Some(inode) = self.inode(node) else { continue };
            let body = match &inode.body {
                Body::File(content) => content.hash(),
                Body::Folder(_) => 2,
                Body::Link(target) => mix(3, hash_bytes(target.as_bytes())),
            };
            hash = mix(mix(hash, body), u64::from(inode.mode));
        }
        hash
    }
}
