//! The Debian packages whose programs the tests drive.

use crate::{Outcome, step};
use std::path::Path;
use std::process::{Command, ExitStatus};

/// A package, and a file by which it is recognised (however it was
/// installed); `*` stands for what may differ within one name.
const PACKAGES: [(&str, &str); 10] = [
    ("fio", "/usr/bin/fio"),
    ("gcc", "/usr/bin/cc"),
    ("liburing-dev", "/usr/include/liburing.h"),
    ("libpython3-testsuite", "/usr/lib/python3.*/test/test_subprocess.py"),
    ("make", "/usr/bin/make"),
    ("mariadb-server", "/usr/sbin/mariadbd"),
    ("nodejs", "/usr/bin/node"),
    ("python3", "/usr/bin/python3"),
    ("qemu-utils", "/usr/bin/qemu-img"),
    ("stress-ng", "/usr/bin/stress-ng"),
];

/// Installs what is missing if we may, else says what to install.
pub fn provide() -> Outcome {
    let missing: Vec<_> = PACKAGES.iter().filter(|(_, file)| !exists(file)).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        println!("packages: all {} that the tests drive are there", PACKAGES.len());
        return Ok(());
    }
    let list = missing.join(" ");
    if !is_root() || !Path::new("/usr/bin/apt-get").exists() {
        return Err(format!("the tests drive programs that are missing; as root: apt-get install {list}"));
    }
    println!("packages: installing {list}");
    // The lists of a fresh image are empty or old; if they cannot be renewed
    // the installation itself says what is wrong.
    let _ = apt_get(&["update", "-qq"]);
    let arguments = [&["install", "-y", "-qq", "--no-install-recommends"], &missing[..]].concat();
    match apt_get(&arguments) {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("apt-get could not install {list} ({status})")),
        Err(error) => Err(format!("cannot start apt-get ({error})")),
    }
}

fn apt_get(arguments: &[&str]) -> std::io::Result<ExitStatus> {
    Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").current_dir(step::root()).status()
}

/// Whether the file is there; at most one `*`, in the name of a folder.
fn exists(pattern: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return Path::new(pattern).exists() };
    let (Some((folder, prefix)), Some((_, rest))) = (before.rsplit_once('/'), after.split_once('/')) else {
        return false;
    };
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let mut names = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    names.any(|entry| entry.path().join(rest).exists())
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective =
        status.lines().find_map(|line| line.strip_prefix("Uid:")).and_then(|ids| ids.split_whitespace().nth(1));
    effective == Some("0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_the_rest_of_a_folders_name() {
        assert!(exists("/proc/self/status"));
        assert!(exists("/proc/sel*/status"));
        assert!(!exists("/proc/sel*/no-such-file"));
        assert!(!exists("/no/such*/status"));
    }
}
