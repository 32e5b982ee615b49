//! Giving pages up: what they hold is not wanted any more.

use crate::evict::Obstacle;
use crate::page::{Pins, State};
use crate::pager::Pager;
use core::ops::Range;
use usring_sys::{Errno, page_fault, processor};

/// What a look at the pages of a cluster has brought.
enum Look {
    Done,
    /// Somebody has this page, and needs the gate to get on.
    WaitFor(usize),
}

impl Pager {
    /// The pages hold zeroes from now on.
    pub fn discard(&self, pages: Range<usize>) -> Result<(), Errno> {
        let mut page = pages.start;
        while page < pages.end {
            let end = self.cluster(self.cluster_of(page)).end.min(pages.end);
            self.discard_in_cluster(page..end)?;
            page = end;
        }
        Ok(())
    }

    fn discard_in_cluster(&self, pages: Range<usize>) -> Result<(), Errno> {
        let mut claim = loop {
            match self.gate_of(pages.start).claim() {
                Some(claim) => break claim,
                None => processor::give_way(),
            }
        };
        for page in pages {
            loop {
                let look = {
                    let _shut = claim.shut();
                    self.discard_one(page)?
                };
                match look {
                    Look::Done => break,
                    Look::WaitFor(page) => self.page(page).wait(),
                }
            }
        }
        Ok(())
    }

    /// With the gate shut.
    fn discard_one(&self, index: usize) -> Result<Look, Errno> {
        let page = self.page(index);
        let state = page.state();
        if state == State::Untouched {
            return Ok(Look::Done);
        }
        if page.is_pinned() {
            return Err(Errno::EBUSY);
        }
        let Some(taken) = page.take(state, Pins::Respected) else { return Ok(Look::WaitFor(index)) };
        if state.is_resident() {
            let (offset, unit) = (self.offset(index), self.unit());
            let gone = self.mechanism.close(offset, unit).and_then(|()| self.mechanism.discard(offset, unit));
            if let Err(error) = gone {
                // Open it is dirty.
                let opened = self.mechanism.open(offset, unit);
                if state == State::Clean && opened.is_ok() {
                    self.store.slots.free(self.slot(&taken, index));
                }
                taken.release(if opened.is_ok() { State::Dirty } else { state });
                return Err(error);
            }
            self.limit.give_back(1);
        }
        if state != State::Dirty {
            self.store.slots.free(self.slot(&taken, index));
        }
        taken.release(State::Untouched);
        Ok(Look::Done)
    }

    /// Brings the number of resident pages down.
    pub fn evict_down_to(&self, pages: usize) -> Result<(), Errno> {
        let place = page_fault::place();
        loop {
            // Before the count is read: what others evict after that is seen below.
            let ended = self.evictions_ended();
            if self.limit.resident() <= pages {
                return Ok(());
            }
            let outcome = {
                let mut lane = self.store.lane(place);
                self.evict(&mut lane, 1, place)
            };
            match outcome.obstacle {
                _ if outcome.freed > 0 => {}
                Some(Obstacle::Full) => return Err(Errno::ENOSPC),
                Some(Obstacle::Failed(error)) => return Err(error),
                None if outcome.met_others || self.others_evict_since(ended) => self.wait_for_others(ended),
                None if self.store.slots.are_all_taken() => return Err(Errno::ENOSPC),
                None => return Err(Errno::EBUSY),
            }
        }
    }
}
