//! The file names of a call: the names among its arguments, and the name of its descriptor's file.

use crate::calls::PlainCall;
use crate::decide::Names;
use alloc::format;
use alloc::vec::Vec;
use usring_sys::{SystemCall, UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// Maximum length of a path, in bytes, with its NUL.
const PATH_LIMIT: usize = linux::PATH_MAX as usize;

/// The file names of a plain system call, or of a request that a plain system call carries out.
pub struct OfCall<'a> {
    pub call: &'a PlainCall,
    pub arguments: &'a [u64; 6],
}

impl Names for OfCall<'_> {
    fn any(&self, matches: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let argument = |index: u8| self.arguments.get(usize::from(index)).copied().unwrap_or(0);
        if let Some(descriptor) = self.call.descriptor
            && matches_descriptor(width::int(argument(descriptor)), matches)
        {
            return true;
        }
        self.call.paths.iter().any(|(folder, path)| {
            let folder = folder.map_or(linux::AT_FDCWD, |folder| width::int(argument(folder)));
            read_path(UserAddress(argument(*path))).is_some_and(|path| matches(&absolute(folder, path)))
        })
    }
}

/// The name of a request's file.
pub struct OfDescriptor(pub i32);

impl Names for OfDescriptor {
    fn any(&self, matches: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        matches_descriptor(self.0, matches)
    }
}

/// The name of a file that a request opens, relative to a folder.
pub struct OfPath<'a> {
    pub folder: i32,
    pub path: &'a [u8],
}

impl Names for OfPath<'_> {
    fn any(&self, matches: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let path = self.path.split(|byte| *byte == 0).next().unwrap_or_default();
        matches(&absolute(self.folder, path.into()))
    }
}

fn matches_descriptor(number: i32, matches: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    number >= 0 && link_target(&format!("/proc/self/fd/{number}\0")).is_some_and(|path| matches(&path))
}

/// Returns the target of the symbolic link at `path`, which ends with a NUL. `None`: it cannot be
/// read.
fn link_target(path: &str) -> Option<Vec<u8>> {
    let mut target = alloc::vec![0u8; PATH_LIMIT];
    let arguments = [path.as_ptr() as u64, target.as_mut_ptr() as u64, target.len() as u64, 0, 0];
    let length = SystemCall::new(linux::__NR_readlink, arguments).run().ok()?;
    target.truncate(width::size(length));
    Some(target)
}

/// Puts the folder's path in front of a relative path. Without /proc the path stays as it is.
fn absolute(folder: i32, path: Vec<u8>) -> Vec<u8> {
    if path.starts_with(b"/") {
        return path;
    }
    let parent = match folder {
        linux::AT_FDCWD => link_target("/proc/self/cwd\0"),
        number => link_target(&format!("/proc/self/fd/{number}\0")),
    };
    let path = path.strip_prefix(b"./").map(Vec::from).unwrap_or(path);
    match parent {
        Some(parent) if path.is_empty() => parent,
        Some(parent) if parent == b"/" => [b"/", path.as_slice()].concat(),
        Some(parent) => [parent.as_slice(), b"/", path.as_slice()].concat(),
        None => path,
    }
}

/// Copies a path from the program's memory. `None` if that memory cannot be read, or if the path is
/// too long.
fn read_path(address: UserAddress) -> Option<Vec<u8>> {
    const PIECE: usize = 64;
    let mut path = Vec::new();
    while path.len() < PATH_LIMIT {
        // Copies the path in pieces. No piece crosses a page boundary, because the next page is
        // perhaps not mapped.
        let at = address.offset(path.len() as u64);
        let mut piece = [0u8; PIECE];
        let length = PIECE.min(PATH_LIMIT - width::size(at.0 % PATH_LIMIT as u64));
        user_memory::copy_in(&mut piece[..length], at).ok()?;
        match piece[..length].iter().position(|byte| *byte == 0) {
            Some(end) => {
                path.extend_from_slice(&piece[..end]);
                return Some(path);
            }
            None => path.extend_from_slice(&piece[..length]),
        }
    }
    None
}

/// Returns whether a pattern matches a file name. A pattern without a slash may also match the last
/// part of the name alone.
pub fn matches_path(pattern: &[u8], path: &[u8]) -> bool {
    let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    crate::glob::matches(pattern, path) || !pattern.contains(&b'/') && crate::glob::matches(pattern, last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn names(names: &dyn Names) -> Vec<String> {
        let mut all = Vec::new();
        names.any(&mut |name| {
            all.push(String::from_utf8_lossy(name).into_owned());
            false
        });
        all
    }

    #[test]
    fn names_of_descriptors_and_folders_are_absolute() {
        let folder = std::fs::File::open("/usr/lib").unwrap();
        let number = folder.as_raw_fd();
        assert_eq!(names(&OfDescriptor(number)), ["/usr/lib"]);
        assert_eq!(names(&OfPath { folder: number, path: b"x.so\0" }), ["/usr/lib/x.so"]);
        assert_eq!(names(&OfPath { folder: number, path: b"/etc/passwd\0" }), ["/etc/passwd"]);
        let here = std::env::current_dir().unwrap();
        assert_eq!(names(&OfPath { folder: linux::AT_FDCWD, path: b"./a" }), [here.join("a").to_str().unwrap()]);
    }

    #[test]
    fn a_call_has_the_names_of_all_its_arguments() {
        let call = crate::calls::by_name("rename").unwrap();
        let arguments = [c"/a".as_ptr() as u64, c"/b".as_ptr() as u64, 0, 0, 0, 0];
        assert_eq!(names(&OfCall { call, arguments: &arguments }), ["/a", "/b"]);
    }

    #[test]
    fn a_pattern_without_a_slash_means_the_last_part() {
        assert!(
            matches_path(b"x.db", b"/srv/x.db")
                && matches_path(b"*.db", b"/srv/x.db")
                && matches_path(b"/srv/*", b"/srv/x")
        );
        assert!(!matches_path(b"srv", b"/srv/x.db") && !matches_path(b"/x.db", b"/srv/x.db"));
    }
}
