//! Finds `libusring.so`, and makes sure that the dynamic loader will load it.

use super::{Failure, executable};
use crate::system_error::words;
use nix::sys::statvfs::{FsFlags, statvfs};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the file, as cargo builds it.
const NAME: &str = "libusring.so";

/// Name and type of the ELF note with the identity of the library's build
/// (`usring_interpose::identity`).
const NOTE: &[u8] = b"usring";
const NOTE_KIND: u32 = 1;
/// Identity of this executable's build.
const IDENTITY: &str = env!("USRING_BUILD_IDENTITY");

/// Returns the absolute path of the library. In a build tree or an archive the library is in the
/// folder of this executable. In an installed package it is in `../lib/usring`, relative to that
/// folder.
pub fn find() -> Result<PathBuf, Failure> {
    let executable = std::env::current_exe().map_err(|error| {
        Failure::new(format!(
            "cannot find the path of this executable ({error}); is /proc mounted?",
            error = words(&error)
        ))
    })?;
    let folder = folder_of(&executable);
    let candidates = [folder.join(NAME), folder.join("../lib/usring").join(NAME)];
    let Some(found) = candidates.iter().find(|path| path.is_file()) else {
        return Err(Failure::new(format!(
            "cannot find {NAME} beside {} or in ../lib/usring; copy it there, or build it with `cargo xtask build`",
            executable.display()
        )));
    };
    // Resolves symbolic links in the folder's path, but not in the file's name. In a package, the
    // file `libusring.so` is a symbolic link, and the library's own file name has the version.
    let library = folder_of(found).canonicalize().map_or_else(|_| found.clone(), |folder| folder.join(NAME));
    check(&library)?;
    Ok(library)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Fails if anything would keep the loader from loading the library. The loader itself would only
/// warn, and would run the program without usring.
fn check(library: &Path) -> Result<(), Failure> {
    let unreadable =
        |error| Failure::new(format!("cannot read {} ({error})", library.display(), error = words(&error)));
    let file = std::fs::File::open(library).map_err(unreadable)?;
    if !executable::is_library(&file) {
        return Err(Failure::new(format!(
            "{} is damaged or built for another machine; install usring again, or build it with `cargo xtask build`",
            library.display()
        )));
    }
    check_identity(library, executable::note(&file, NOTE, NOTE_KIND).as_deref())?;
    if let Some(byte) = separator_in(library.as_os_str()) {
        return Err(Failure::new(format!(
            "the path {} contains `{}`, which the dynamic loader takes for a separator; install usring under a path without it",
            library.display(),
            byte.escape_ascii()
        )));
    }
    let no_exec = statvfs(library).is_ok_and(|file_system| file_system.flags().contains(FsFlags::ST_NOEXEC));
    if no_exec {
        return Err(Failure::new(format!(
            "{} lies on a file system mounted noexec, from which no library can be loaded; install usring elsewhere",
            library.display()
        )));
    }
    Ok(())
}

/// Refuses a library of another build. Such a library could misread the variables that this
/// executable sets, and leave the program's io_uring calls to the kernel.
fn check_identity(library: &Path, found: Option<&[u8]>) -> Result<(), Failure> {
    let library = library.display();
    match found {
        Some(found) if found == IDENTITY.as_bytes() => Ok(()),
        Some(found) => Err(Failure::new(format!(
            "{library} is of another build ({}) than this usring ({IDENTITY}); build both with `cargo xtask build`, or \
             install both of one release",
            String::from_utf8_lossy(found)
        ))),
        None => Err(Failure::new(format!(
            "{library} is not usring's library, or an old one; build it with `cargo xtask build`, or install both of one \
             release"
        ))),
    }
}

/// Returns the first byte of the library's path that has a meaning in LD_PRELOAD, or `None`. At a
/// blank or a colon the loader would split LD_PRELOAD. A `$` begins a token such as `$ORIGIN`.
fn separator_in(path: &OsStr) -> Option<u8> {
    path.as_bytes().iter().copied().find(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n' | b'$'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_the_loader_would_split_is_recognised() {
        assert_eq!(separator_in(OsStr::new("/usr/lib/libusring.so")), None);
        assert_eq!(separator_in(OsStr::new("/my lib/libusring.so")), Some(b' '));
        assert_eq!(separator_in(OsStr::new("/a:b/libusring.so")), Some(b':'));
        assert_eq!(separator_in(OsStr::new("/$LIB/libusring.so")), Some(b'$'));
    }
}
