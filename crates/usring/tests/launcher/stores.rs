//! Files that hold swapped memory or devices. The launcher finds a conflict over a file before the
//! program starts.

use crate::skipped::skip;
use crate::{run, text};
use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use tempfile::TempDir;

fn file(folder: &TempDir, name: &str, mode: u32) -> String {
    let path = folder.path().join(name);
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs `usring run --swap file:path=PATH…` with true(1), and returns the exit status and standard
/// error.
fn swap_to(path: &str, more: &str) -> (Option<i32>, String) {
    let output = run(&["--swap", &format!("file:path={path},limit=8M{more}"), "true"]);
    (output.status.code(), text(&output.stderr))
}

#[test]
fn a_swap_file_that_other_users_may_read_causes_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let open = file(&folder, "open", 0o644);
    let (status, said) = swap_to(&open, "");
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(&format!("{open}: insecure permissions 0644, 0600 suggested")), "{said}");
    let closed = file(&folder, "closed", 0o600);
    assert_eq!(swap_to(&closed, ""), (Some(0), String::new()));
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&closed, Some(1234), None).unwrap();
        let (status, said) = swap_to(&closed, "");
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains("insecure file owner 1234, 0 suggested"), "{said}");
    } else {
        skip("only root can give a file to another user");
    }
}

#[test]
fn a_missing_swap_file_is_made_only_with_create_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let (status, said) = swap_to(path.to_str().unwrap(), ",size=16M");
    assert!(status == Some(125) && !path.exists(), "{said}");
    assert_eq!(swap_to(path.to_str().unwrap(), ",size=16M,create=on"), (Some(0), String::new()));
    let made = std::fs::metadata(&path).unwrap();
    assert_eq!((made.len(), made.permissions().mode() & 0o777), (16 << 20, 0o600));
    let (status, said) = swap_to(path.to_str().unwrap(), ",size=32M");
    assert!(status == Some(125) && said.contains("smaller than size= says; with create=on"), "{said}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 16 << 20);
}

#[test]
fn a_swap_file_with_data_is_refused_without_overwrite_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "accounts", 0o600);
    let content = vec![b'x'; 16 << 20];
    std::fs::write(&path, &content).unwrap();
    let (status, said) = swap_to(&path, "");
    assert_eq!(status, Some(125), "{said}");
    assert!(said.contains("holds data that usring did not write (at byte 0)"), "{said}");
    assert!(std::fs::read(&path).unwrap() == content, "it has been changed");
    let (status, said) = swap_to(&path, ",overwrite=on");
    assert_eq!(status, Some(0), "{said}");
    // The file now begins with usring's header, so usring accepts it again.
    assert_eq!(swap_to(&path, ""), (Some(0), String::new()));
}

#[test]
fn a_file_cannot_back_two_devices_under_any_of_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "disk", 0o600);
    let name = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::hard_link(&path, name("hard")).unwrap();
    symlink(Path::new("disk"), name("soft")).unwrap();
    for other in [&path, &name("hard"), &name("soft")] {
        let first = format!("{}=file:path={path}", name("a"));
        let second = format!("{}=delay(file:path={other})", name("b"));
        let swap = format!("file:path={other},limit=8M");
        for options in [["--device", &first, "--device", &second], ["--device", &first, "--swap", &swap]] {
            let output = run(&[&options[..], &["true"]].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{options:?}: {said}");
            assert!(said.contains("would overwrite each other's data") && said.lines().count() == 1, "{said}");
        }
    }
}

/// Two devices name the same missing file. The launcher finds this conflict before it makes the
/// file.
#[test]
fn a_file_that_is_still_missing_cannot_back_two_devices() {
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(name("inner")).unwrap();
    symlink(folder.path(), name("same")).unwrap();
    symlink("new", name("soft")).unwrap();
    symlink("soft", name("softer")).unwrap();
    let first = format!("{}=file:path={},size=16M,create=on", name("a"), name("new"));
    for other in ["new", "./new", "inner/../new", "same/new", "soft", "softer"] {
        let file = format!("file:path={},size=16M,create=on", name(other));
        let (second, swap) = (format!("{}={file}", name("b")), format!("{file},limit=8M"));
        for options in [["--device", &first, "--device", &second], ["--device", &first, "--swap", &swap]] {
            let output = run(&[&options[..], &["true"]].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{options:?}: {said}");
            assert!(said.contains("would overwrite each other's data") && said.lines().count() == 1, "{said}");
            assert!(!Path::new(&name("new")).exists(), "{options:?}");
        }
    }
    // Equal names in two folders are two files.
    let second = format!("{}=file:path={},size=16M,create=on", name("b"), name("inner/new"));
    let output = run(&["--device", &first, "--device", &second, "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn overwrite_is_an_option_of_swap_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "disk", 0o600);
    let device = format!("{}=file:path={path},overwrite=on", folder.path().join("device").display());
    let output = run(&["--device", &device, "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("overwrite= is for --swap"), "{}", text(&output.stderr));
}
