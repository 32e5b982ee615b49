//! Decides whether this process has the memory that another process of a shared ring has
//! registered. This process has the memory if the other process is an ancestor that registered the
//! memory before the fork(2).

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering};
use usring_ring::Origin;

/// The registrations on one ring that this process has made, or whose memory it has inherited.
#[derive(Default)]
pub(crate) struct OwnRegistrations {
    /// This process's number.
    own: u32,
    /// Number of the last registration that this process has made.
    last: AtomicU32,
    /// Each ancestor of this process, with the number of the last registration that the ancestor
    /// had made before the fork. This list does not change once the process uses the ring. So a
    /// forked child may read the list in the child's copy of the memory.
    ancestors: Box<[Origin]>,
}

impl OwnRegistrations {
    /// Makes the record of the process that made the ring. `own`: the process's number.
    pub fn of_maker(own: u32) -> OwnRegistrations {
        OwnRegistrations { own, ..OwnRegistrations::default() }
    }

    /// Makes the record of a process with the number `own`, which has inherited the ring.
    /// `inherited`: the record of its parent, as it was at the fork.
    pub fn of_child(inherited: &OwnRegistrations, own: u32) -> OwnRegistrations {
        let parent = Origin { owner: inherited.own, number: inherited.last.load(Ordering::Relaxed) };
        let ancestors = inherited.ancestors.iter().copied().chain([parent]).collect();
        OwnRegistrations { own, last: AtomicU32::new(0), ancestors }
    }

    /// Notes that this process has made the registration `number`. The caller holds the ring's
    /// lock.
    pub fn note(&self, number: u32) {
        self.last.store(number, Ordering::Relaxed);
    }

    /// Returns whether this process has made the registration.
    pub fn is_own(&self, origin: Origin) -> bool {
        origin.owner == self.own
    }

    /// Returns whether this process has the memory of a registration, at the same address. After a
    /// fork, the memory may be a copy.
    pub fn has_memory_of(&self, origin: Origin) -> bool {
        let is_inherited = |ancestor: &Origin| ancestor.owner == origin.owner && origin.number <= ancestor.number;
        origin.owner == self.own || self.ancestors.iter().any(is_inherited)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_what_its_ancestors_had_registered_before_the_fork() {
        let maker = OwnRegistrations::of_maker(2);
        maker.note(5);
        let child = OwnRegistrations::of_child(&maker, 3);
        maker.note(7);
        child.note(8);
        let grandchild = OwnRegistrations::of_child(&child, 4);
        let has = |owner, number| grandchild.has_memory_of(Origin { owner, number });
        assert!(has(2, 5) && has(3, 8) && has(4, 9));
        assert!(!has(2, 7), "registered after the fork");
        assert!(!has(3, 9) && !has(9, 1));
        assert!(!maker.has_memory_of(Origin { owner: 3, number: 8 }), "a parent has no memory of its child");
    }
}
