//! The file by which a program names a device. It is sparse and as long as the device. Its data is
//! never read or written, because the requests go to the device.

use crate::Failure;
use crate::system_error::words;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A placeholder file. Dropping it removes the file.
pub struct Placeholder {
    path: PathBuf,
    /// The placeholder, kept open so that no other file can get its inode while the run lasts.
    file: File,
    identity: (u64, u64),
}

impl Placeholder {
    /// Makes a device's placeholder file. Fails if a file exists at `path`.
    pub fn create(path: &Path, size: u64) -> Result<Placeholder, Failure> {
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
                let name = path.display();
                Failure::new(match error.kind() {
                    ErrorKind::AlreadyExists => {
                        let refused = "a device's PATH must be new, because usring changes no existing file";
                        let remedy = if may_be_left(path) { "; if a killed run left it, remove it" } else { "" };
                        format!("{name} exists already; {refused}{remedy}")
                    }
                    _ => format!("cannot make {name} ({error})", error = words(&error)),
                })
            })?;
        let identity = file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        let identity = identity.map_err(|error| {
            Failure::new(format!("cannot examine {} ({error})", path.display(), error = words(&error)))
        })?;
        let placeholder = Placeholder { path: path.into(), file, identity };
        placeholder.file.set_len(size).map_err(|error| {
            let name = path.display();
            Failure::new(format!(
                "{name} cannot be as long as the device, {size} bytes ({error}); choose a file system that allows it",
                error = words(&error)
            ))
        })?;
        Ok(placeholder)
    }

    /// Returns the placeholder's `st_dev` and `st_ino`, by which the program's processes recognize
    /// it.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Removes the placeholder file, unless another file is now at its path.
    pub fn remove(&self) {
        let still = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if still {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns whether the file at `path` looks like the placeholder of a run that was killed: a file
/// with a length but without blocks.
fn may_be_left(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0 && found.blocks() == 0)
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        self.remove();
    }
}
