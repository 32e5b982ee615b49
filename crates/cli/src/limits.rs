//! Checks the limit of open files, because rings get high descriptors.

use nix::sys::resource::{Resource, getrlimit};
use usring_sys::descriptor::RESERVED_BASE;
use usring_sys::own_numbers::LEAST_HARD_LIMIT;

/// Returns advice for the user if the hard limit of open files leaves no room for rings, otherwise
/// `None`. Only the hard limit matters, because a process of the run raises its soft limit itself.
pub fn too_low() -> Option<String> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raise = "raise it (ulimit -Hn, docker run --ulimit nofile=1024)";
    (most < LEAST_HARD_LIMIT).then(|| {
        format!("rings use descriptors from {RESERVED_BASE} on, but the limit of open files is {most}: {raise}")
    })
}
