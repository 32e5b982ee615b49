//! Moves the content of pages to other pages of the region, for mremap(2).
//!
//! - The content of an evicted page moves with its slot number, and is not read from the store.
//! - The content of a resident page is copied to the target page. Then the source page is freed.
//! - If a page cannot be moved, the pages that were moved before it are moved back.

use crate::page::{IfPinned, State, TakenPage};
use crate::pager::Pager;
use alloc::vec;
use core::ops::Range;
use usring_sys::{Errno, UserAddress, page_fault, thread, user_memory};

impl Pager {
    /// Moves the content of pages to target pages, from index `to` on. The target pages hold
    /// nothing, and no other thread knows their addresses. A concurrent write to a source page may
    /// be lost, as with mremap(2). A pinned source page is copied and stays in memory. Only one
    /// thread at a time may call this function.
    ///
    /// Errors, after which nothing has moved: `EBUSY` for a source page that was released to the
    /// kernel; `EEXIST` for a target page that holds content; the kernel's (such as `ENOMEM`).
    pub fn move_pages(&self, from: Range<usize>, to: usize) -> Result<(), Errno> {
        let mut bounce = vec![0; self.unit()];
        // Signals are blocked, because this thread owns pages meanwhile. If a signal handler
        // touched such a page, this thread would wait for itself.
        let _closed = thread::close_signals();
        for (step, page) in from.clone().enumerate() {
            if let Err(error) = self.move_page(page, to + step, &mut bounce) {
                (0..step).for_each(|step| self.move_back(to + step, from.start + step, &mut bounce));
                return Err(error);
            }
        }
        Ok(())
    }

    fn move_page(&self, from: usize, to: usize, bounce: &mut [u8]) -> Result<(), Errno> {
        let page = self.page(from);
        loop {
            match page.state() {
                State::Busy => page.wait(),
                State::Untouched => return Ok(()),
                State::Unmanaged => return Err(Errno::EBUSY),
                State::Out => {
                    let Some(source) = page.take(State::Out, IfPinned::Take) else { continue };
                    let Some(target) = self.page(to).take(State::Untouched, IfPinned::Take) else {
                        source.release(State::Out);
                        return Err(Errno::EEXIST);
                    };
                    self.set_slot(&target, to, self.slot(&source, from));
                    target.release(State::Out);
                    source.release(State::Untouched);
                    return Ok(());
                }
                State::Clean | State::Dirty => {
                    // Room for the target page is reserved before the cluster is claimed. Lock
                    // order: room → claim → page.
                    self.make_room(page_fault::fault_slot());
                    match self.move_resident(from, to, bounce) {
                        Ok(MoveOutcome::Copied) => return Ok(()),
                        Ok(MoveOutcome::Moved) => self.limit.give_back(1),
                        Ok(MoveOutcome::NotMoved) => {
                            self.limit.give_back(1);
                            continue;
                        }
                        Err(error) => {
                            self.limit.give_back(1);
                            return Err(error);
                        }
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Moves the content of a resident page. The caller has reserved room for the target page.
    fn move_resident(&self, from: usize, to: usize, bounce: &mut [u8]) -> Result<MoveOutcome, Errno> {
        // This thread claims the source's cluster and does not enter that cluster's gate. Later it
        // enters the gate of the target's cluster, which may be the source's cluster, too. Entering
        // one gate twice could deadlock: an evictor that begins to shut the gate in between waits
        // for this thread, and this thread for the evictor.
        let _claim = self.claim_cluster(self.cluster_of(from));
        let page = self.page(from);
        let before = page.state();
        if !before.is_resident() {
            return Ok(MoveOutcome::NotMoved);
        }
        let Some(source) = page.take(before, IfPinned::Take) else { return Ok(MoveOutcome::NotMoved) };
        // While this thread owns the page, no thread can pin it, so this check stays valid.
        let goes = !page.is_pinned();
        let is_clean = goes && before == State::Clean;
        let slot = is_clean.then(|| self.slot(&source, from));
        if let Err(error) = self.copy_to(from, to, slot, bounce) {
            self.reopen(from, source, before);
            return Err(error);
        }
        if !goes {
            self.reopen(from, source, before);
            return Ok(MoveOutcome::Copied);
        }
        if self.mechanism.discard(self.offset(from), self.unit()).is_err() {
            // No known kernel refuses to free the source page's memory. If one does, source and
            // target both hold the content.
            self.reopen(from, source, State::Dirty);
            return Ok(MoveOutcome::Copied);
        }
        source.release(State::Untouched);
        Ok(MoveOutcome::Moved)
    }

    /// Maps a copy of page `from` at page `to`, which becomes resident. If `slot` is not `None`,
    /// the copy is clean and gets this slot. The caller owns the page `from`.
    fn copy_to(&self, from: usize, to: usize, slot: Option<u32>, bounce: &mut [u8]) -> Result<(), Errno> {
        let target = self.page(to).take(State::Untouched, IfPinned::Take).ok_or(Errno::EEXIST)?;
        let readable_address = UserAddress(self.memory.readable_address(self.offset(from), self.unit()) as u64);
        let read =
            self.close_for_reading(&(from..from + 1)).and_then(|()| user_memory::copy_in(bounce, readable_address));
        // From the mapping of the target page to its release, this thread is inside the gate. An
        // evictor that shuts the gate may free the memory of busy pages: it assumes that they have
        // none.
        let _inside = self.gate_of(to).enter();
        if let Err(error) = read.and_then(|()| self.mechanism.fill(self.offset(to), bounce, slot.is_some())) {
            target.release(State::Untouched);
            return Err(error);
        }
        match slot {
            Some(slot) => {
                self.set_slot(&target, to, slot);
                target.release(State::Clean);
            }
            None => target.release(State::Dirty),
        }
        Ok(())
    }

    /// Ends this thread's ownership of a page that stays in memory. If the page cannot be made
    /// writable now, the next write to it faults, and that fault makes it writable.
    fn reopen(&self, index: usize, taken: TakenPage, state: State) {
        if state == State::Dirty {
            let _ = self.mechanism.open(self.offset(index), self.unit());
        }
        taken.release(state);
    }

    /// Moves the content of page `from` back to page `to`, from which it came, because a later page
    /// could not be moved. Any content that another thread has written to page `to` meanwhile is
    /// lost.
    fn move_back(&self, from: usize, to: usize, bounce: &mut [u8]) {
        if self.page(from).state() == State::Untouched {
            return;
        }
        let back = match self.discard(to..to + 1) {
            Ok(()) => self.move_page(from, to, bounce),
            // Page `to` could not be discarded, so it still has the content. The copy in page
            // `from` is dropped.
            Err(_) => self.discard(from..from + 1),
        };
        assert!(back.is_ok(), "a page that was just in memory goes back there: {back:?}");
    }
}

/// Result of moving a resident page.
enum MoveOutcome {
    /// The page was moved. The number of resident pages is unchanged, so the caller gives back the
    /// room that it reserved for the target page.
    Moved,
    /// The page was copied, and the source page stays in memory. The target page uses the room that
    /// the caller reserved.
    Copied,
    /// The page was not moved: it is no longer resident, or another thread has taken it.
    NotMoved,
}
