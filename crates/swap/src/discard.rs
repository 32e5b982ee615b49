//! Drops the content of pages that the program no longer needs. Also evicts pages until a limited
//! number of pages is resident.

use crate::evict::{EvictionFailure, EvictionGoal, LONGEST_SLEEP_NS, MOST, MOST_FAILURES};
use crate::page::{IfPinned, State, TakenPage};
use crate::pager::Pager;
use core::ops::Range;
use usring_sys::{Errno, page_fault};

/// Result of an attempt to discard the pages of one cluster.
enum DiscardStep {
    Done,
    /// Another thread owns this page, and may be waiting for the cluster's gate, which the caller
    /// has shut. So the caller must open the gate before it waits for the page.
    WaitFor(usize),
    Pinned,
}

/// Pages of one cluster that the discarding thread owns. The element of `taken` with index 0 is for
/// the page with the number `first`.
struct PagesToDiscard<'a> {
    first: usize,
    taken: [Option<TakenPage<'a>>; MOST],
}

impl Pager {
    /// Discards pages, which then hold zeroes. Stops at the first page that cannot be discarded.
    /// Errors: `EBUSY` if that page is pinned or was released to the kernel; the kernel's errors.
    /// After `EBUSY`, the pages before that page are discarded.
    pub fn discard(&self, pages: Range<usize>) -> Result<(), Errno> {
        let mut page = pages.start;
        while page < pages.end {
            let end = self.cluster(self.cluster_of(page)).end.min(pages.end);
            self.discard_in_cluster(page..end)?;
            page = end;
        }
        Ok(())
    }

    fn discard_in_cluster(&self, mut pages: Range<usize>) -> Result<(), Errno> {
        if pages.clone().all(|page| self.page(page).state() == State::Untouched) {
            return Ok(());
        }
        let mut claim = self.claim_cluster(self.cluster_of(pages.start));
        loop {
            let step = {
                let _shut = claim.shut();
                self.discard_some(pages.clone())?
            };
            match step {
                DiscardStep::Done => return Ok(()),
                DiscardStep::Pinned => return Err(Errno::EBUSY),
                DiscardStep::WaitFor(page) => {
                    self.page(page).wait();
                    pages.start = page;
                }
            }
        }
    }

    /// Discards pages of one cluster, in order. Stops at a page that is pinned, that was released
    /// to the kernel, or that another thread owns. The caller has shut the cluster's gate.
    fn discard_some(&self, pages: Range<usize>) -> Result<DiscardStep, Errno> {
        let mut pages_to_discard = PagesToDiscard { first: pages.start, taken: [const { None }; MOST] };
        let mut step = DiscardStep::Done;
        for index in pages {
            let page = self.page(index);
            let state = page.state();
            if state == State::Untouched {
                continue;
            }
            if page.is_pinned() || state == State::Unmanaged {
                step = DiscardStep::Pinned;
                break;
            }
            let Some(taken) = page.take(state, IfPinned::Refuse) else {
                step = DiscardStep::WaitFor(index);
                break;
            };
            pages_to_discard.taken[index - pages_to_discard.first] = Some(taken);
        }
        self.give_up(pages_to_discard).map(|()| step)
    }

    fn give_up(&self, mut pages_to_discard: PagesToDiscard) -> Result<(), Errno> {
        let is_resident = |taken: &Option<TakenPage>| taken.as_ref().is_some_and(|taken| taken.before().is_resident());
        let gone = match (
            pages_to_discard.taken.iter().position(is_resident),
            pages_to_discard.taken.iter().rposition(is_resident),
        ) {
            // Between the first and the last of these resident pages, this thread owns every page
            // that has memory. So one call can cover the whole range.
            (Some(first), Some(last)) => {
                let (offset, length) = (self.offset(pages_to_discard.first + first), (last + 1 - first) * self.unit());
                self.mechanism.close(offset, length).and_then(|()| self.mechanism.discard(offset, length))
            }
            _ => Ok(()),
        };
        for (position, taken) in pages_to_discard.taken.iter_mut().enumerate() {
            let Some(taken) = taken.take() else { continue };
            let (index, before) = (pages_to_discard.first + position, taken.before());
            if gone.is_err() && before.is_resident() {
                self.keep_resident(index, taken);
                continue;
            }
            if before.is_resident() {
                self.limit.give_back(1);
            }
            if before != State::Dirty {
                self.store.slots.free(self.slot(&taken, index));
            }
            taken.release(State::Untouched);
        }
        gone
    }

    /// Keeps a page in memory that could not be discarded. Makes the page writable, and releases it
    /// as dirty. If it cannot be made writable, releases it in the state that it had before.
    pub fn keep_resident(&self, index: usize, taken: TakenPage) {
        let before = taken.before();
        let opened = self.mechanism.open(self.offset(index), self.unit());
        if before == State::Clean && opened.is_ok() {
            self.store.slots.free(self.slot(&taken, index));
        }
        taken.release(if opened.is_ok() { State::Dirty } else { before });
    }

    /// Evicts pages until at most `pages` pages are resident. Errors: `ENOSPC` if the store is
    /// full; `EBUSY` if the remaining pages are pinned; the device's errors.
    pub fn evict_down_to(&self, pages: usize) -> Result<(), Errno> {
        let fault_slot = page_fault::fault_slot();
        loop {
            // `ended` is read before `resident`. So if an eviction ends after this line, the check
            // of `any_since(ended)` below notices it.
            let ended = self.evictions.ended();
            if self.limit.resident() <= pages {
                return Ok(());
            }
            let outcome = {
                let mut queue = self.store.queue(fault_slot);
                self.evict(&mut queue, EvictionGoal { pages: 1, kept: 0, failures: MOST_FAILURES }, fault_slot)
            };
            match outcome.failure {
                _ if outcome.freed > 0 => {}
                Some(EvictionFailure::Full) => return Err(Errno::ENOSPC),
                Some(EvictionFailure::Failed(error)) => return Err(error),
                None if outcome.found_claimed || self.evictions.any_since(ended) => {
                    self.evictions.wait(ended, LONGEST_SLEEP_NS)
                }
                None if self.store.slots.are_all_taken() => return Err(Errno::ENOSPC),
                None => return Err(Errno::EBUSY),
            }
        }
    }
}
