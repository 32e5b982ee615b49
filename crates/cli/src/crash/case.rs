//! The case file: a tar archive that holds one state in which the check fails, and everything that
//! is needed to repeat the check. A user can list and unpack it by tar(1).
//!
//! | entry | content |
//! |---|---|
//! | `check` | the check's command |
//! | `explanation` | which operations the power loss kept, and which it lost |
//! | `output` | what the recorded command had printed before the power loss |
//! | `state/` | the folder as the power loss left it |

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use usring_crash::Tree;
use usring_crash::content::Content;
use usring_crash::tree::{Body, DirectoryEntry, Inode, Node, ROOT};

/// A state in which the check fails, with everything that is needed to repeat the check.
#[derive(Debug)]
pub struct Case {
    pub check: String,
    pub explanation: String,
    pub output: Vec<u8>,
    pub state: Tree,
}

/// Size of a tar archive's block, in bytes.
const BLOCK: usize = 512;

// Types of an entry of a tar archive, as its header has them.
const FILE: u8 = b'0';
const HARD_LINK: u8 = b'1';
const SYMBOLIC_LINK: u8 = b'2';
const FOLDER: u8 = b'5';
/// Type of an entry whose data is the next entry's long name (GNU).
const LONG_NAME: u8 = b'L';
/// Type of an entry whose data is the next entry's long link target (GNU).
const LONG_LINK: u8 = b'K';

const STATE: &str = "state";

struct Writer(Vec<u8>);

impl Writer {
    fn entry(&mut self, kind: u8, name: &[u8], target: &[u8], mode: u32, data: &[u8]) {
        for (kind, text) in [(LONG_NAME, name), (LONG_LINK, target)] {
            if text.len() >= 100 {
                self.block(kind, b"././@LongLink", b"", 0, text);
            }
        }
        self.block(kind, name, target, mode, data);
    }

    fn block(&mut self, kind: u8, name: &[u8], target: &[u8], mode: u32, data: &[u8]) {
        let mut header = [0u8; BLOCK];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, &name[..name.len().min(99)]);
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", data.len()).as_bytes());
        put(136, b"00000000000");
        put(148, b"        ");
        put(156, &[kind]);
        put(157, &target[..target.len().min(99)]);
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
    }
}

impl Case {
    /// Writes the case into a new file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut archive = Writer(Vec::new());
        for (name, data) in
            [("check", self.check.as_bytes()), ("explanation", self.explanation.as_bytes()), ("output", &self.output)]
        {
            archive.entry(FILE, name.as_bytes(), b"", 0o644, data);
        }
        archive.entry(FOLDER, STATE.as_bytes(), b"", 0o755, b"");
        let mut first_paths: Vec<(Node, PathBuf)> = Vec::new();
        for (path, node) in self.state.paths() {
            let path = Path::new(STATE).join(path);
            let name = path.as_os_str().as_bytes();
            let Some(inode) = self.state.inode(node) else { continue };
            let first = first_paths.iter().find(|(known, _)| *known == node);
            match (&inode.body, first) {
                (Body::Folder(_), _) => archive.entry(FOLDER, name, b"", inode.mode, b""),
                (_, Some((_, first))) => archive.entry(HARD_LINK, name, first.as_os_str().as_bytes(), inode.mode, b""),
                (Body::File(content), None) => archive.entry(FILE, name, b"", inode.mode, &content.bytes()),
                (Body::Link(to), None) => archive.entry(SYMBOLIC_LINK, name, to.as_bytes(), 0o777, b""),
            }
            first_paths.push((node, path));
        }
        archive.0.extend_from_slice(&[0; 2 * BLOCK]);
        std::fs::write(path, archive.0)
    }

    /// Reads a case.
    pub fn read(path: &Path) -> io::Result<Case> {
        let bytes = std::fs::read(path)?;
        let mut case =
            Case { check: String::new(), explanation: String::new(), output: Vec::new(), state: Tree::default() };
        let (mut rest, mut long) = (bytes.as_slice(), [None, None]);
        let mut number = 0;
        while rest.len() >= BLOCK && rest[0] != 0 {
            let (header, behind) = rest.split_at(BLOCK);
            let size = octal(&header[124..136])?;
            let data = behind.get(..size).ok_or_else(damaged)?;
            rest = behind.get(size.next_multiple_of(BLOCK)..).ok_or_else(damaged)?;
            match header[156] {
                LONG_NAME => long[0] = Some(data.to_vec()),
                LONG_LINK => long[1] = Some(data.to_vec()),
                kind => {
                    let name = long[0].take().unwrap_or_else(|| text(&header[..100]));
                    let target = long[1].take().unwrap_or_else(|| text(&header[157..257]));
                    number += 1;
                    let mode = u32::try_from(octal(&header[100..108])?).unwrap_or(0);
                    case.take(kind, &name, &target, mode, data, Node(number))?;
                }
            }
        }
        if case.check.is_empty() { Err(damaged()) } else { Ok(case) }
    }

    fn take(&mut self, kind: u8, name: &[u8], target: &[u8], mode: u32, data: &[u8], node: Node) -> io::Result<()> {
        let as_text = || String::from_utf8_lossy(data).into_owned();
        match name {
            b"check" => self.check = as_text(),
            b"explanation" => self.explanation = as_text(),
            b"output" => self.output = data.to_vec(),
            _ => {
                let below = |path: &[u8]| {
                    Path::new(std::ffi::OsStr::from_bytes(path)).strip_prefix(STATE).map(Path::to_owned).ok()
                };
                let path = below(name).ok_or_else(damaged)?;
                let Some(file_name) = path.file_name() else { return Ok(()) };
                let folder = self.state.find(path.parent().unwrap_or(Path::new(""))).unwrap_or(ROOT);
                let entry = DirectoryEntry { folder, name: file_name.to_owned() };
                let body = match kind {
                    FOLDER => Body::Folder(Default::default()),
                    SYMBOLIC_LINK => Body::Link(std::ffi::OsStr::from_bytes(target).to_owned()),
                    HARD_LINK => {
                        let first = below(target).and_then(|path| self.state.find(&path)).ok_or_else(damaged)?;
                        self.state.name(&entry, first);
                        return Ok(());
                    }
                    _ => Body::File(Arc::new(Content::of(data))),
                };
                self.state.add(node, Inode { body, mode });
                self.state.name(&entry, node);
            }
        }
        Ok(())
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not a case file of `usring crash`")
}

fn text(field: &[u8]) -> Vec<u8> {
    field.iter().copied().take_while(|byte| *byte != 0).collect()
}

fn octal(field: &[u8]) -> io::Result<usize> {
    let digits = field.iter().filter(|byte| byte.is_ascii_digit());
    let digits: String = digits.map(|byte| char::from(*byte)).collect();
    usize::from_str_radix(&digits, 8).map_err(|_| damaged())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_was_written() {
        let work = tempfile::tempdir().unwrap();
        let mut state = Tree::default();
        let long = "x".repeat(150);
        let add = |state: &mut Tree, folder: Node, name: &str, number: u64, body: Body| {
            state.add(Node(number), Inode { body, mode: 0o600 });
            state.name(&DirectoryEntry { folder, name: name.into() }, Node(number));
        };
        add(&mut state, ROOT, "folder", 1, Body::Folder(Default::default()));
        add(&mut state, Node(1), &long, 2, Body::File(Arc::new(Content::of(&[5; 1000]))));
        add(&mut state, ROOT, "link", 3, Body::Link("folder/x".into()));
        state.name(&DirectoryEntry { folder: ROOT, name: "other".into() }, Node(2));
        let case = Case { check: "true".into(), explanation: "why\n".into(), output: b"ok\n".to_vec(), state };
        let path = work.path().join("case");
        case.write(&path).unwrap();
        let read = Case::read(&path).unwrap();
        assert_eq!((read.check, read.explanation, read.output), (case.check, case.explanation, case.output));
        assert_eq!(read.state.paths().len(), 4);
        let at = |tree: &Tree, path: &str| tree.content(tree.find(path.as_ref()).unwrap()).unwrap().bytes();
        assert_eq!(at(&read.state, "other"), at(&read.state, &format!("folder/{long}")));
        assert!(Case::read(Path::new("/dev/null")).is_err());
        let listed = std::process::Command::new("tar").arg("tf").arg(&path).output().unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains("state/folder/xxx"), "{listed:?}");
    }
}
