//! Reads and reduces the capabilities of the calling thread (capabilities(7)).

use crate::{Errno, SystemCall};
use linux_raw_sys::general as linux;

const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// The kernel's `cap_user_data_t[2]`: the effective, permitted and inheritable set, first their
/// lower 32 bits, then their upper 32 bits.
pub type Sets = [[u32; 3]; 2];

/// Returns the calling thread's capability sets.
///
/// Errors: `EPERM` if a filter denies capget(2).
pub fn get() -> Result<Sets, Errno> {
    let header = [VERSION, 0];
    let mut sets = Sets::default();
    let arguments = [&raw const header as u64, &raw mut sets as u64, 0, 0, 0];
    SystemCall::new(linux::__NR_capget, arguments).run()?;
    Ok(sets)
}

/// Sets the calling thread's capability sets.
///
/// Errors: `EPERM` if the kernel does not permit the thread one of the capabilities.
pub fn set(sets: &Sets) -> Result<(), Errno> {
    let header = [VERSION, 0];
    let arguments = [&raw const header as u64, &raw const *sets as u64, 0, 0, 0];
    SystemCall::new(linux::__NR_capset, arguments).run().map(drop)
}

/// Removes from the calling thread's capability sets all capabilities that `most` lacks.
pub fn limit(most: &Sets) -> Result<(), Errno> {
    let mut sets = get()?;
    let mut is_less = false;
    for (set, most) in sets.iter_mut().flatten().zip(most.iter().flatten()) {
        is_less |= *set & !most != 0;
        *set &= most;
    }
    if is_less { set(&sets) } else { Ok(()) }
}

/// Removes from the calling thread all capabilities that `most` lacks. A capability that remains is
/// effective afterwards if it is effective in `most`, and otherwise not.
pub fn follow(most: &Sets) -> Result<(), Errno> {
    let own = get()?;
    let mut sets = own;
    for (set, most) in sets.iter_mut().zip(most) {
        let permitted = set[1] & most[1];
        *set = [permitted & most[0], permitted, set[2] & most[2]];
    }
    if sets == own { Ok(()) } else { self::set(&sets) }
}

/// Gives up the calling thread's capabilities that are not effective. Such a capability permits no
/// system call as it is, but the thread could make it effective.
pub fn keep_effective_only() -> Result<(), Errno> {
    let [low, high] = get()?;
    limit(&[[low[0], low[0], 0], [high[0], high[0], 0]])
}

/// Gives up all capabilities of the calling thread but CAP_SETUID and CAP_SETGID. When the program
/// changes its user and groups, a thread of usring needs these two to make this change, too.
pub fn keep_identity_only() -> Result<(), Errno> {
    let kept = 1 << CAP_SETUID | 1 << CAP_SETGID;
    limit(&[[kept, kept, 0], [0; 3]])
}

/// Returns whether the calling thread may request I/O of the realtime class (ioprio_set(2)).
pub fn may_be_realtime() -> bool {
    get().is_ok_and(|sets| sets[0][0] & (1 << CAP_SYS_ADMIN | 1 << CAP_SYS_NICE) != 0)
}
