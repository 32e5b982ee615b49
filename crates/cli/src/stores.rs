//! Checks the files in which devices and swapped memory lie: each has one user, and only the user
//! may read a file with pages of the program's memory.

use super::Failure;
use super::devices::DeviceOption;
use super::swap::SwapOption;
use std::fs::Metadata;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use usring_device::Spec;

/// Options by which a device names a file or a socket.
const PATHS: [&str; 2] = ["path", "socket"];

/// Refuses two devices, or a device and swapped memory, in one file: each would overwrite the
/// other's blocks. Two links to a file count as one file, and so do two nodes of a block device.
pub fn check_distinct(devices: &[DeviceOption], swap: Option<&SwapOption>) -> Result<(), Failure> {
    let of_devices = devices.iter().map(|option| (option.name(), option.spec()));
    let of_swap = swap.map(|option| ("--swap".to_owned(), option.spec()));
    let mut known: Vec<(Identity, String)> = Vec::new();
    for (user, spec) in of_devices.chain(of_swap) {
        let Some((path, identity)) = identity(spec) else { continue };
        if let Some((_, other)) = known.iter().find(|(known, _)| *known == identity) {
            return Err(Failure::new(format!(
                "{path} is given to {other} and to {user}, which would overwrite each other's data; give each a file of its own"
            )));
        }
        known.push((identity, user));
    }
    Ok(())
}

/// Identity of a file: whether it is a block device, and the device's number; otherwise the numbers
/// of its file system and its inode.
type Identity = (bool, u64, u64);

fn identity(spec: &Spec) -> Option<(&str, Identity)> {
    let path = PATHS.iter().find_map(|name| spec.device().text(name))?;
    // A missing file is reported when it is opened.
    let found = std::fs::metadata(path).ok()?;
    Some((path, if is_block(&found) { (true, found.rdev(), 0) } else { (false, found.dev(), found.ino()) }))
}

fn is_block(found: &Metadata) -> bool {
    found.file_type().is_block_device()
}

/// Warns on standard error, in the words of swapon(8), of modes and owners that let other users
/// read or change pages of the program's memory.
pub fn warn_of_modes(swap: &SwapOption) {
    let Some(path) = swap.spec().device().text("path") else { return };
    let Ok(found) = std::fs::metadata(path) else { return };
    let mode = found.mode() & 0o7777;
    // The group of a disk may have access to it.
    let (open, suggested) = if is_block(&found) { (0o007, 0o660) } else { (0o077, 0o600) };
    let mut errors = std::io::stderr();
    if mode & open != 0 {
        let _ = writeln!(
            errors,
            "usring run: {path}: insecure permissions {mode:04o}, {suggested:04o} suggested (`chmod {suggested:o} {path}`): \
             it will hold the program's memory"
        );
    }
    let own = nix::unistd::geteuid().as_raw();
    if !is_block(&found) && found.uid() != own && found.uid() != 0 {
        let owner = found.uid();
        let _ = writeln!(
            errors,
            "usring run: {path}: insecure file owner {owner}, {own} suggested (`chown {own} {path}`): it will hold the \
             program's memory"
        );
    }
}
