//! Checks the files and NBD exports that hold devices and swapped memory. No two devices may use
//! one file or export, nor may a device and swapped memory. No other user should have access to
//! pages of the program's memory.

use super::Failure;
use super::devices::DeviceOption;
use super::storage::{NbdUri, parse_nbd_uri};
use super::swap::SwapOption;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use usring_device::Spec;

/// Options of a SPEC that name a file or a socket.
const PATHS: [&str; 2] = ["path", "socket"];
/// Maximum number of symbolic links that the kernel follows in one path (`MAXSYMLINKS`).
const MOST_LINKS: u32 = 40;

/// Fails if two devices, or a device and swapped memory, use one file or NBD export, because each
/// would overwrite the other's blocks. Two links to a file count as one file, and two device nodes
/// of one block device as one device. The file need not exist yet.
pub fn check_distinct(devices: &[DeviceOption], swap: Option<&SwapOption>) -> Result<(), Failure> {
    let of_devices = devices.iter().map(|option| (option.name(), option.spec()));
    let of_swap = swap.map(|option| ("--swap".to_owned(), option.spec()));
    let mut known: Vec<(Identity, String)> = Vec::new();
    for (user, spec) in of_devices.chain(of_swap) {
        let Some((name, identity)) = identity(spec) else { continue };
        if let Some((_, other)) = known.iter().find(|(known, _)| *known == identity) {
            return Err(Failure::new(format!(
                "{name} is used by {other} and by {user}, which would overwrite each other's data; use a separate {} for each",
                if matches!(identity, Identity::Export(..) | Identity::SocketExport(..)) { "export" } else { "file" }
            )));
        }
        known.push((identity, user));
    }
    Ok(())
}

/// Identity of a file or an NBD export, independent of the name by which a SPEC names it.
#[derive(PartialEq, Eq)]
enum Identity {
    /// A block device: its device number.
    Device(u64),
    /// A file that is no block device: the numbers of its file system and inode.
    File(u64, u64),
    /// A missing file that open(2) may make (`create=on`): the numbers of its folder's file system
    /// and inode, and its name.
    Missing(u64, u64, OsString),
    /// An export of the NBD server that listens on this socket.
    SocketExport(Box<Identity>, String),
    /// An export of the NBD server with this address, in the text form of QEMU and in lower case.
    Export(String, String),
}

/// Returns the name and the identity of the file or NBD export that a SPEC uses. `None` if it uses
/// neither.
fn identity(spec: &Spec) -> Option<(&str, Identity)> {
    let layer = spec.device();
    if let Some(uri) = layer.text("uri") {
        return Some((uri, export(parse_nbd_uri(uri).ok()?)));
    }
    let path = PATHS.iter().find_map(|name| layer.text(name))?;
    Some((path, of_file(path)?))
}

fn of_file(path: &str) -> Option<Identity> {
    match std::fs::metadata(path) {
        Ok(found) if is_block(&found) => Some(Identity::Device(found.rdev())),
        Ok(found) => Some(Identity::File(found.dev(), found.ino())),
        Err(_) => missing(path),
    }
}

/// Returns the identity of an NBD export. Two names of one host count as two servers, because host
/// names are not resolved.
fn export(NbdUri { server, export }: NbdUri) -> Identity {
    match server["path"].as_str().and_then(of_file) {
        Some(socket) => Identity::SocketExport(Box::new(socket), export),
        None => Identity::Export(server.to_string().to_lowercase(), export),
    }
}

/// Returns the identity of the file that open(2) with O_CREAT would make. A symbolic link whose
/// target is missing leads to that target. `None` if there is no such folder: then open(2) fails,
/// and its error is reported.
fn missing(path: &str) -> Option<Identity> {
    let mut path = PathBuf::from(path);
    for _ in 0..MOST_LINKS {
        let Ok(target) = std::fs::read_link(&path) else { break };
        path = path.parent()?.join(target);
    }
    let folder = std::fs::metadata(path.parent()?).ok()?;
    Some(Identity::Missing(folder.dev(), folder.ino(), path.file_name()?.to_owned()))
}

fn is_block(found: &Metadata) -> bool {
    found.file_type().is_block_device()
}

/// Warns on standard error if the mode or the owner of swap's file lets other users read or change
/// pages of the program's memory. The wording is that of swapon(8).
pub fn warn_of_modes(swap: &SwapOption) {
    let Some(path) = swap.spec().device().text("path") else { return };
    let Ok(found) = std::fs::metadata(path) else { return };
    let mode = found.mode() & 0o7777;
    // A block device may be accessible to its group.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(first: &str, second: &str) -> Result<(), Failure> {
        let device = |name, spec| crate::devices::parse(&format!("{name}=nbd:uri={spec}")).unwrap();
        check_distinct(&[device("a", first), device("b", second)], None)
    }

    #[test]
    fn an_export_has_one_device() {
        let folder = tempfile::tempdir().unwrap();
        let [socket, link] = ["socket", "link"].map(|name| folder.path().join(name).display().to_string());
        std::fs::write(&socket, "").unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let unix = |export: &str, path: &str| format!("nbd+unix:///{export}?socket={path}");
        for (first, second) in [
            ("nbd://host/e", "nbd+tcp://HOST:10809/%65"),
            (&unix("e", &socket), &unix("e", &link)),
            (&unix("e", "/missing/socket"), &unix("e", "/missing/socket")),
        ] {
            let failure = check(first, second).expect_err("one export");
            assert!(failure.sentence.contains("is used by --device a and by --device b"), "{}", failure.sentence);
            assert!(failure.sentence.ends_with("use a separate export for each"), "{}", failure.sentence);
        }
        for (first, second) in [
            ("nbd://host/e", "nbd://host/E"),
            ("nbd://host/e", "nbd://host:1/e"),
            (&unix("e", &socket), &unix("f", &link)),
        ] {
            check(first, second).unwrap();
        }
    }
}
