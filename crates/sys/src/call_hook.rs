//! A hook around the system calls that usring makes, for the recorder of `usring crash`. If no hook
//! is set, each system call only loads a pointer more.

use crate::SystemCall;
use crate::set_once::SetOnce;

/// A function that makes a system call and returns the kernel's answer.
pub type Make<'a> = &'a dyn Fn(&SystemCall) -> u64;

/// The hook.
pub struct CallHook {
    /// Called in place of each system call of usring. It makes the system call by calling its
    /// second argument, or makes no system call. Returns the answer for usring.
    pub during: fn(&SystemCall, Make<'_>) -> u64,
}

static HOOK: SetOnce<CallHook> = SetOnce::new();

/// Passes all further system calls of usring to `hook`, except those by
/// [`SystemCall::run_unhooked`].
pub fn set(hook: &'static CallHook) {
    HOOK.set(hook);
}

/// Makes a system call, through the hook if one was set.
#[inline]
pub(crate) fn call_through(call: &SystemCall, make: impl Fn(&SystemCall) -> u64) -> u64 {
    match HOOK.get() {
        None => make(call),
        Some(hook) => (hook.during)(call, &make),
    }
}
