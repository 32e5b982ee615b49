//! Resets, in a forked child, the state of usring that the child has inherited from its parent.
//! Closes the parent's private descriptors. Empties or marks the tables, such as those of rings and
//! devices. [`process`](crate::process) notices the fork, and calls [`RESET`] before it serves the
//! child's first call.

use crate::files::{self, devices, numbers, registered};
use crate::process::{ChildDescriptors, ChildReset, stacks};
use crate::signals::frames;
use crate::swap::region;
use core::sync::atomic::Ordering;
use usring_engine::readiness;
use usring_sys::{credentials, descriptor, eventfd, page_fault, pinned_memory, process_number, signals};

pub static RESET: ChildReset = reset_in_child;

fn reset_in_child(descriptors: ChildDescriptors, parent: u32) {
    credentials::forget_after_fork();
    signals::forget_after_fork();
    frames::forget_after_fork();
    stacks::forget_after_fork();
    readiness::POLLED.store(0, Ordering::Relaxed);
    let shares = shares_descriptors(descriptors, parent);
    process_number::begin_child(shares);
    if shares {
        descriptor::leave_to_parent();
    } else {
        descriptor::close_private_after_fork();
    }
    page_fault::forget_after_fork();
    pinned_memory::forget_after_fork();
    files::descriptors::reset_in_child();
    devices::reset_in_child();
    region::begin_after_fork();
    registered::reset_in_child();
}

/// Returns whether this child shares its parent's descriptors (CLONE_FILES). If usring did not see
/// the fork, this function opens an eventfd in the child. If the parent has this eventfd as well,
/// the descriptors are shared.
fn shares_descriptors(known: ChildDescriptors, parent: u32) -> bool {
    match known {
        ChildDescriptors::Own => return false,
        ChildDescriptors::Shared => return true,
        ChildDescriptors::Unknown => {}
    }
    let Ok(probe) = eventfd::create() else { return false };
    let own = numbers::eventfd_id(None, probe.number());
    own.is_some() && own == numbers::eventfd_id(Some(parent), probe.number())
}
