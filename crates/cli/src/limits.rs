//! The limit of open files that rings need.

use nix::sys::resource::{Resource, getrlimit};
use usring_sys::descriptor::RESERVED_BASE;

/// Descriptors from the base on that a program with one ring needs.
const DESCRIPTORS_OF_RING: u64 = 8;

/// Returns advice if the hard limit of open files leaves no room for rings. (A process of the run
/// raises the soft limit by itself.)
pub fn too_low() -> Option<String> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raise = "raise the limit of open files (ulimit -Hn, docker run --ulimit nofile=1024)";
    (most < RESERVED_BASE as u64 + DESCRIPTORS_OF_RING)
        .then(|| format!("rings have descriptors from {RESERVED_BASE} on, and {most} is the limit: {raise}"))
}
