//! The private folder of a storage daemon, with its socket. The launcher keeps the folder locked. A
//! folder that is not locked belongs to a launcher that was killed, and a later run removes it.

use crate::Failure;
use crate::devices::socket;
use crate::system_error::words;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::mkdtemp;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Beginning of the folders' names. Six random characters follow.
const PREFIX: &str = "storage-";
/// Maximum number of attempts to make a folder. An attempt fails if another run removes the new
/// folder before this run has locked it.
const MOST_ATTEMPTS: u32 = 8;

/// A folder that only this user can enter. It is removed when this value is dropped.
pub struct Folder {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Folder {
    /// Makes a folder, and removes those of launchers that were killed.
    pub fn create() -> Result<Folder, Failure> {
        let parent = socket::private_folder()?;
        remove_left(&parent);
        let failed = |error: std::io::Error| {
            Failure::new(format!(
                "cannot make a folder for the storage daemon in {} ({error})",
                parent.display(),
                error = words(&error)
            ))
        };
        for _ in 0..MOST_ATTEMPTS {
            let path = mkdtemp(&parent.join(format!("{PREFIX}XXXXXX"))).map_err(|error| failed(error.into()))?;
            if let Some(lock) = lock(&path).filter(|lock| is_at(lock, &path)) {
                return Ok(Folder { path, _lock: lock });
            }
        }
        Err(failed(std::io::ErrorKind::NotFound.into()))
    }

    /// Returns the path of the file `name` in the daemon's folder. The error is one sentence for
    /// the user.
    pub fn file(&self, name: &str) -> Result<String, Failure> {
        self.path.join(name).into_os_string().into_string().map_err(|path| {
            Failure::new(format!("{} is not UTF-8; set XDG_RUNTIME_DIR to a folder whose path is", path.display()))
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders whose launcher has ended.
pub fn remove_left(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_folder = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        let path = entry.path();
        if is_folder && lock(&path).is_some_and(|lock| is_at(&lock, &path)) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Locks a folder. `None` if it is locked already or has gone.
fn lock(folder: &Path) -> Option<Flock<File>> {
    Flock::lock(File::open(folder).ok()?, FlockArg::LockExclusiveNonblock).ok()
}

/// Returns whether the locked folder is still at `path`.
fn is_at(lock: &Flock<File>, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let locked = lock.metadata().map(identity);
    fs::metadata(path).map(identity).is_ok_and(|found| locked.is_ok_and(|locked| locked == found))
}
