//! Checks the limit of open files, because rings get high descriptors.

use nix::sys::resource::{Resource, getrlimit};
use usring_sys::descriptor::RESERVED_BASE;

/// Descriptors that a program with one ring needs from `RESERVED_BASE` on.
const DESCRIPTORS_OF_RING: u64 = 8;

/// Returns advice for the user if the hard limit of open files leaves no room for rings, otherwise
/// `None`. Only the hard limit matters, because a process of the run raises its soft limit itself.
pub fn too_low() -> Option<String> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raise = "raise it (ulimit -Hn, docker run --ulimit nofile=1024)";
    (most < RESERVED_BASE as u64 + DESCRIPTORS_OF_RING).then(|| {
        format!("rings use descriptors from {RESERVED_BASE} on, but the limit of open files is {most}: {raise}")
    })
}
