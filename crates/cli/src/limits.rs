//! Checks two resource limits. The limit of open files matters because rings get high descriptor
//! numbers. The limit of address space matters because the loader must find room for the library.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use usring_sys::descriptor::RESERVED_BASE;
use usring_sys::own_numbers::LEAST_HARD_LIMIT;

/// Returns advice for the user if the hard limit of open files leaves no room for rings, otherwise
/// `None`. Only the hard limit matters, because a process of the run raises its soft limit itself.
pub fn too_low() -> Option<String> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raise = "raise the hard limit to 1024 (`ulimit -Hn 1024` as root, `docker run --ulimit nofile=1024`)";
    (most < LEAST_HARD_LIMIT).then(|| {
        format!("rings use descriptors from {RESERVED_BASE} on, but the limit of open files is {most}: {raise}")
    })
}

/// Returns whether the address space is limited (`ulimit -v`). The loader may then find no room for
/// the library, and starts the program without it.
pub fn addresses_are_limited() -> bool {
    getrlimit(Resource::RLIMIT_AS).is_ok_and(|(limit, _)| limit != RLIM_INFINITY)
}
