//! The socket by which other processes find a run. Its name is the launcher's process id. It is in
//! a folder that only the user of the run can enter.

use crate::Failure;
use crate::system_error::words;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::{AccessFlags, access, getuid};
use std::fs;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use usring_device::control::Control;
use usring_sys::Errno;

/// Time that `usring ctl` waits for an answer on the socket of a `usring run`.
const ANSWER_TIMEOUT_SECONDS: u64 = 5;

/// A listening socket. Dropping it removes its file.
pub struct Socket {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl Socket {
    pub fn create() -> Result<Socket, Failure> {
        let path = private_folder()?.join(format!("{}.sock", std::process::id()));
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

/// Returns the folders in which this user's sockets may be. A run uses the first folder whose
/// parent exists and can be written to. `usring ctl` searches all of these folders, because its
/// environment may differ from that of the run.
///
/// If XDG_RUNTIME_DIR names an existing folder other than the system's /run/user/UID, the result is
/// only the folder `usring` in it.
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

/// Returns the folder of this run's files, which only this user can enter. Makes it if it is
/// missing.
pub fn private_folder() -> Result<PathBuf, Failure> {
    let folder = folder();
    prepare(&folder)?;
    Ok(folder)
}

/// Makes the folder if it is missing, and fails if other users can enter it.
fn prepare(folder: &Path) -> Result<(), Failure> {
    let created = fs::DirBuilder::new().mode(0o700).create(folder);
    let private = match created {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => is_private(folder),
    };
    let private = private.map_err(|error| {
        Failure::new(format!(
            "cannot make the folder {} for the control socket ({error})",
            folder.display(),
            error = words(&error)
        ))
    })?;
    if private {
        return Ok(());
    }
    Err(Failure::new(format!("{}; remove it, or set XDG_RUNTIME_DIR to a private folder", not_private(folder))))
}

/// Returns whether only this user can enter the folder. A symbolic link is no such folder.
fn is_private(folder: &Path) -> std::io::Result<bool> {
    let metadata = fs::symlink_metadata(folder)?;
    Ok(metadata.is_dir() && metadata.uid() == getuid().as_raw() && metadata.mode() & 0o077 == 0)
}

fn not_private(folder: &Path) -> String {
    format!("{} is not a folder that only you can enter", folder.display())
}

/// Returns the existing folders in which this user's runs have their sockets. A folder that another
/// user could have made is left out, and named on standard error.
pub fn private_folders() -> Vec<PathBuf> {
    let mut private = folders();
    private.retain(|folder| {
        let is_private = is_private(folder);
        if is_private.as_ref().is_ok_and(|is_private| !is_private) {
            let _ = writeln!(std::io::stderr(), "usring ctl: {}, so it is not searched for runs", not_private(folder));
        }
        is_private.unwrap_or(false)
    });
    private
}

/// Returns the paths of the sockets of this user's runs. Some may belong to runs that were killed.
pub fn all() -> Vec<PathBuf> {
    all_in(&private_folders())
}

/// Returns the paths of the sockets in these folders.
pub fn all_in(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for folder in folders {
        paths.extend(fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    paths.sort();
    paths
}

/// Returns a client by which a process outside a run asks questions on the run's socket.
pub fn control(socket: &Path) -> Control {
    Control::at(socket.as_os_str().as_bytes()).within(ANSWER_TIMEOUT_SECONDS)
}

/// Returns the process id of the launcher to which a socket belongs.
pub fn run_of(socket: &Path) -> String {
    socket.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Says on standard error that a run has not answered a question.
pub fn say_unanswered(socket: &Path, error: Errno) {
    let run = run_of(socket);
    let _ = match error {
        Errno::EAGAIN => writeln!(
            std::io::stderr(),
            "usring ctl: the run {run} does not answer within {ANSWER_TIMEOUT_SECONDS} s; is its process stopped?"
        ),
        _ => writeln!(std::io::stderr(), "usring ctl: the run {run} does not answer ({error})", error = words(&error)),
    };
}
