//! Starts real programs, bare or under `usring run`, waits for them for a
//! bounded time and tells what they did.
//!
//! A [`Stage`] is a folder that lives as long as one test: it holds the files
//! that the programs work on and, where somebody else (nobody, under Docker's
//! rules) has to reach them, a copy of usring. A [`Run`] is one program on that
//! stage, in one [`World`]; it becomes a [`Finished`].
//!
//! With `USRING_TEST_ON_KERNEL=1` in the environment no usring is put in front
//! of any program and the kernel's own io_uring answers: so a test can be seen
//! to be right before usring is blamed.

mod debian;
mod run;
#[path = "../../../xtask/src/skipped.rs"]
pub mod skipped;
mod stage;
mod statistics;

pub use debian::{
    CC, FIO, GO, LIBURING, MAKE, MARIADB, MUSL, PYTHON, Package, QEMU_IMG, QEMU_STORAGE_DAEMON, REDIS_BENCHMARK,
    REDIS_SERVER, STRESS_NG, node, python, require,
};
pub use run::{Finished, Run, Started, kill};
pub use stage::Stage;
pub use statistics::Statistics;

/// What stands between a program and the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// Nothing: the program as its user would start it.
    Bare,
    /// `usring run`: for programs that use no io_uring and must not notice.
    Transparent,
    /// `usring run --deny-kernel --stats`: nothing falls through to the
    /// kernel's io_uring, and what our engine did is counted.
    Denied,
    /// The same with `--no-patch`: every call goes through the trap.
    Unpatched,
    /// Nobody, under no_new_privs and Docker's rules, with `usring run --stats`.
    Confined,
    /// The same sandbox without usring: what `Confined` is measured against.
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

/// Whether the tests themselves are under test: no usring anywhere.
pub fn on_kernel() -> bool {
    std::env::var_os("USRING_TEST_ON_KERNEL").is_some_and(|value| value != "0" && !value.is_empty())
}

/// Whether programs start with every privilege.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
