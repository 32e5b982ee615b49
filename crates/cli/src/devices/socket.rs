//! The socket by which other processes find a run. Its name is the launcher's process id, and it is
//! in a folder that only the same user can enter.

use crate::Failure;
use crate::system_error::words;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::{AccessFlags, access, getuid};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A listening socket. Dropping it removes its file.
pub struct Socket {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl Socket {
    pub fn create() -> Result<Socket, Failure> {
        let folder = folder();
        prepare(&folder)?;
        let path = folder.join(format!("{}.sock", std::process::id()));
        let failed = |error| {
            Failure::new(format!("cannot make the control socket {} ({error})", path.display(), error = words(&error)))
        };
        // A killed run with the same process id may have left its socket, and bind would then fail.
        let _ = fs::remove_file(&path);
        let descriptor =
            socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).map_err(failed)?;
        let address = UnixAddr::new(&path).map_err(failed)?;
        bind(descriptor.as_raw_fd(), &address).map_err(failed)?;
        let socket = Socket { path, descriptor };
        let failed = |error| {
            Failure::new(format!("cannot listen on {} ({error})", socket.path.display(), error = words(&error)))
        };
        listen(&socket.descriptor, Backlog::MAXCONN).map_err(failed)?;
        Ok(socket)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a duplicate of the listening socket, for the thread that accepts clients.
    pub fn listener(&self) -> Result<OwnedFd, Failure> {
        self.descriptor.try_clone().map_err(|error| {
            Failure::new(format!("cannot duplicate the control socket ({error})", error = words(&error)))
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns the folders in which this user's sockets may be. A run takes the first whose parent
/// exists and can be written to. A program that looks for runs looks in all of them, because its
/// environment may differ from that of the run.
///
/// If the user has chosen another XDG_RUNTIME_DIR than the system's, runs are only looked for
/// there.
fn folders() -> Vec<PathBuf> {
    let user = getuid();
    let of_system = PathBuf::from(format!("/run/user/{user}"));
    let chosen = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    if let Some(chosen) = chosen.filter(|chosen| *chosen != of_system) {
        return vec![chosen.join("usring")];
    }
    let of_user = format!("usring-{user}");
    let mut folders = vec![of_system.join("usring"), Path::new("/tmp").join(&of_user)];
    let temporary = std::env::temp_dir().join(of_user);
    if !folders.contains(&temporary) {
        folders.push(temporary);
    }
    folders
}

/// Returns the folder of this run's socket.
fn folder() -> PathBuf {
    let can_be_used = |folder: &PathBuf| {
        folder.parent().is_some_and(|parent| parent.is_dir() && access(parent, AccessFlags::W_OK).is_ok())
    };
    folders().into_iter().find(can_be_used).unwrap_or_else(|| std::env::temp_dir().join(format!("usring-{}", getuid())))
}

/// Makes the folder if it is missing, and fails if other users can enter it.
fn prepare(folder: &Path) -> Result<(), Failure> {
    let created = fs::DirBuilder::new().mode(0o700).create(folder);
    let metadata = match created {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => fs::symlink_metadata(folder),
    };
    let metadata = metadata.map_err(|error| {
        Failure::new(format!(
            "cannot make the folder {} for the control socket ({error})",
            folder.display(),
            error = words(&error)
        ))
    })?;
    let private = metadata.is_dir() && metadata.uid() == getuid().as_raw() && metadata.mode() & 0o077 == 0;
    if private {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} is not a folder that only you can enter; remove it, or set XDG_RUNTIME_DIR to a private folder",
        folder.display()
    )))
}

/// Returns the paths of the sockets of this user's runs. Some may be left by killed runs.
pub fn all() -> Vec<PathBuf> {
    let entries = folders().into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let mut paths: Vec<_> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    paths.sort();
    paths
}
