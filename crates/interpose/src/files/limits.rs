//! The program's limit of open files. Answers getrlimit(2), setrlimit(2) and prlimit(2) if usring
//! has raised the kernel's limit to make room for its own descriptors ([`own_numbers`]).

use crate::call::{Call, Outcome};
use crate::process;
use usring_sys::{Errno, UserAddress, own_numbers, user_memory, width};
use usring_uapi::general as linux;

/// Answers a call on the limit of open files, if it is for this process.
pub fn serve(call: &mut Call) -> Outcome {
    let [first, second, third, fourth, ..] = call.arguments;
    let (process, resource, new, old) = match width::low(call.number) {
        linux::__NR_getrlimit => (0, first, 0, second),
        linux::__NR_setrlimit => (0, first, second, 0),
        _ => (width::low(first), second, third, fourth),
    };
    let is_this = process == 0 || process == process::id();
    // A vfork child has limits of its own, but the recorded limits in this memory are its parent's.
    // So the child sets its limits in the kernel.
    if width::low(resource) != linux::RLIMIT_NOFILE || !is_this || new != 0 && !process::is_own() {
        return call.pass();
    }
    change(UserAddress(new), UserAddress(old)).map(|()| 0u64).into()
}

/// Sets the program's limits of open files to the pair at `new`, and writes the previous pair to
/// `old`. An address that is 0 is skipped.
fn change(new: UserAddress, old: UserAddress) -> Result<(), Errno> {
    let wanted = if new.0 == 0 { None } else { Some(user_memory::read::<[u64; 2]>(new)?) };
    let before = own_numbers::limits()?;
    if let Some(wanted) = wanted {
        own_numbers::set_limits(wanted)?;
    }
    if old.0 == 0 { Ok(()) } else { user_memory::write(old, before) }
}
