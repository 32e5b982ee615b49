//! Disowns, in a forked child, all that it has inherited from its parent.
//! [`process`](crate::process) notices the fork, and calls this before the child's first call is
//! served.

use crate::files::{descriptors, devices, numbers, registered};
use crate::process::{Birth, Disown, stacks};
use crate::signals::frames;
use crate::swap::region;
use core::sync::atomic::Ordering;
use usring_engine::readiness;
use usring_sys::{credentials, descriptor, eventfd, page_fault, pinned_memory, signals};

pub static DISOWN: Disown = disown;

fn disown(birth: Birth, parent: u32) {
    credentials::forget_after_fork();
    signals::forget_after_fork();
    frames::forget_after_fork();
    stacks::forget_after_fork();
    readiness::SIGNALLED.store(0, Ordering::Relaxed);
    if shares_descriptors(birth, parent) {
        descriptor::leave_to_parent();
    } else {
        descriptor::close_private_after_fork();
    }
    page_fault::forget_after_fork();
    pinned_memory::forget_after_fork();
    descriptors::disown();
    devices::disown();
    region::begin_after_fork();
    registered::disown();
}

/// Whether this child shares its parent's descriptors. If the fork was not seen, this is tested: a
/// descriptor that the child opens then exists in its parent, too.
fn shares_descriptors(birth: Birth, parent: u32) -> bool {
    match birth {
        Birth::OwnDescriptors => return false,
        Birth::SharedDescriptors => return true,
        Birth::Unknown => {}
    }
    let Ok(probe) = eventfd::create() else { return false };
    let own = numbers::eventfd_id(None, probe.number());
    own.is_some() && own == numbers::eventfd_id(Some(parent), probe.number())
}
