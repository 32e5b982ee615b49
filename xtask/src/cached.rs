//! Finds the cache folders, which keep files from the network between builds. So a fresh checkout
//! does not fetch these files again.
//!
//! `workloads` includes this file as a module (`#[path]`).

use std::path::PathBuf;

/// Returns the folder of PostgreSQL 18 from Debian sid, which `cargo xtask packages` makes. If root
/// made the folder, every user can read it. The folder cannot be moved: its programs name their
/// dynamic loader by this path.
#[allow(dead_code, reason = "for the tests of PostgreSQL")]
pub fn postgres_folder() -> PathBuf {
    cache_folder().join("postgresql-18")
}

/// Returns the folder of the PostgreSQL programs below [`postgres_folder`].
#[allow(dead_code, reason = "for the tests of PostgreSQL")]
pub fn postgres_programs() -> PathBuf {
    postgres_folder().join("usr/lib/postgresql/18/bin")
}

/// Returns the folder of Debian 11's glibc, to which the released launcher is linked.
#[allow(dead_code, reason = "for xtask")]
pub fn glibc_folder() -> PathBuf {
    cache_folder().join("glibc-2.31")
}

/// The releases of Debian in which tests install packages.
#[allow(dead_code, reason = "for xtask")]
pub const DEBIAN_RELEASES: [(u32, &str); 3] = [(11, "bullseye"), (12, "bookworm"), (13, "trixie")];

/// Returns the root folder of this release of Debian, in which tests install packages.
#[allow(dead_code, reason = "for tests")]
pub fn debian_root(release: u32) -> PathBuf {
    cache_folder().join(format!("debian-{release}"))
}

/// Returns `/var/cache/usring` for root, and the user's cache folder otherwise.
fn cache_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || variable("HOME").unwrap_or_else(std::env::temp_dir).join(".cache");
    match is_root() {
        true => "/var/cache/usring".into(),
        false => variable("XDG_CACHE_HOME").unwrap_or_else(home).join("usring"),
    }
}

/// Returns whether this process runs as root.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective =
        status.lines().find_map(|line| line.strip_prefix("Uid:")).and_then(|ids| ids.split_whitespace().nth(1));
    effective == Some("0")
}
