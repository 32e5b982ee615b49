//! Runs real programs, alone or under `usring run`, with a time limit, and reports what they did.
//!
//! - A [`Stage`] is the folder of one test, with the files that its programs use. If a program runs
//!   as another user (`nobody`, under Docker's rules), the folder also has a copy of usring for
//!   that user.
//! - A [`Run`] is one program on that stage, in one [`World`]: with or without usring.
//! - A [`Finished`] is the result of a [`Run`].
//!
//! With `USRING_TEST_ON_KERNEL=1` in the environment, every program runs without usring and uses
//! the kernel's io_uring. If a test fails then, the test is wrong.

mod debian;
mod run;
#[path = "../../../xtask/src/skipped.rs"]
pub mod skipped;
#[path = "../../../crates/interpose/soname.rs"]
mod soname;
mod stage;
mod statistics;

pub use debian::{
    CC, FIO, GO, LIBURING, MAKE, MARIADB, MUSL, PYTHON, Package, QEMU_IMG, QEMU_NBD, QEMU_STORAGE_DAEMON,
    REDIS_BENCHMARK, REDIS_SERVER, SQLITE, STRACE, STRESS_NG, VALGRIND, node, python, require,
};
pub use run::{Finished, Run, Started, kill};
pub use stage::Stage;
pub use statistics::Statistics;

/// The layers between a program and the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// Without usring: the program runs as its user would start it.
    Bare,
    /// `usring run`: for programs that use no io_uring and must behave as without usring.
    Transparent,
    /// `usring run --deny-kernel --stats`: no call reaches the kernel's io_uring, and usring counts
    /// the requests.
    Denied,
    /// `usring run --deny-kernel --stats --no-patch`: every call goes through the trap.
    Unpatched,
    /// `usring run --stats` as the user `nobody`, under no_new_privs and Docker's seccomp rules.
    Confined,
    /// Without usring, but as the user `nobody`, under no_new_privs and Docker's seccomp rules: the
    /// baseline for `Confined`.
    ConfinedBare,
}

impl World {
    fn has_usring(self) -> bool {
        matches!(self, World::Transparent | World::Denied | World::Unpatched | World::Confined) && !on_kernel()
    }

    fn is_confined(self) -> bool {
        matches!(self, World::Confined | World::ConfinedBare)
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            World::Bare | World::ConfinedBare | World::Transparent => &[],
            World::Denied => &["--deny-kernel", "--stats"],
            World::Unpatched => &["--deny-kernel", "--stats", "--no-patch"],
            World::Confined => &["--stats"],
        }
    }
}

/// Returns whether the tests run without usring, on the kernel's io_uring.
pub fn on_kernel() -> bool {
    std::env::var_os("USRING_TEST_ON_KERNEL").is_some_and(|value| value != "0" && !value.is_empty())
}

/// Returns whether programs start with every privilege.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
