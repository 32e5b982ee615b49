//! The programs of Debian that the tests drive. One that is missing fails the
//! test that needs it, by name: a test that silently did nothing would be
//! counted as a promise kept.

use std::path::Path;

/// A file by which a package is recognised, and how to come by it.
pub struct Package {
    pub path: &'static str,
    pub install: &'static str,
}

const fn debian(path: &'static str, install: &'static str) -> Package {
    Package { path, install }
}

pub const FIO: Package = debian("/usr/bin/fio", "apt-get install fio");
pub const QEMU_IMG: Package = debian("/usr/bin/qemu-img", "apt-get install qemu-utils");
pub const STRESS_NG: Package = debian("/usr/bin/stress-ng", "apt-get install stress-ng");
pub const CC: Package = debian("/usr/bin/cc", "apt-get install gcc libc6-dev");
pub const MAKE: Package = debian("/usr/bin/make", "apt-get install make");
pub const LIBURING: Package = debian("/usr/include/liburing.h", "apt-get install liburing-dev");
pub const MARIADB: Package = debian("/usr/sbin/mariadbd", "apt-get install mariadb-server");
/// Debian's own interpreter: it is the one that its test suite belongs to.
pub const PYTHON: Package =
    debian("/usr/lib/python3.11/test/test_subprocess.py", "apt-get install python3.11 libpython3.11-testsuite");
/// libuv speaks io_uring from 1.45 on, which Node has from version 20 on.
pub const NODE: Package = debian("/usr/bin/node", "apt-get install nodejs (version 20 or later, from nodesource.com)");

/// Fails the test if the package is not there.
pub fn require(package: &Package) -> &'static str {
    assert!(Path::new(package.path).exists(), "{} is missing; as root: {}", package.path, package.install);
    package.path
}
