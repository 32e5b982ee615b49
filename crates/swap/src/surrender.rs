//! Parts of a region that cease to be paged, and become so again: a user wants of memory
//! what a pager cannot give (another protection, a lock, something else mapped there), so
//! the kernel has it in its place.
//!
//! Nobody evicts from the part meanwhile: who hands it over has claimed its clusters. Nor
//! does anybody touch it, who would wait: its pages are taken, and closed if they are in
//! memory. Only when the kernel's memory is in place are they marked [`State::Given`],
//! their memory freed, and their slots. Until then nothing is lost, and whatever fails
//! leaves all as it was.
//!
//! Who touches a page that is given away a moment later touches it again; who is not
//! allowed to hears so from the kernel (`Pager::serve`).

use crate::gate::Claim;
use crate::page::{Pins, State, Taken};
use crate::pager::Pager;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use usring_sys::clock::Nanoseconds;
use usring_sys::mapping::{PAGE, private_pages, unmap};
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, UserAddress, page_fault, processor, thread, user_memory, wait};

/// How long who claims a cluster gives way to who has it, before it sleeps, in nanoseconds.
const SOON: Nanoseconds = 200_000;

/// Pages in the hand of who hands them over, from the first on.
struct Grip<'a> {
    first: usize,
    /// None of those that are the kernel's already.
    taken: Vec<Option<Taken<'a>>>,
    _claims: Vec<Claim<'a>>,
}

impl Grip<'_> {
    fn before(&self, page: usize) -> Option<State> {
        self.taken[page - self.first].as_ref().map(Taken::before)
    }

    fn is_resident(&self, page: usize) -> bool {
        self.before(page).is_some_and(State::is_resident)
    }
}

impl Pager {
    /// The kernel's from now on, with what they hold. Errors: as `SwapRegion::surrender`.
    pub fn surrender(&self, pages: Range<usize>) -> Result<(), Errno> {
        let length = pages.len() * self.unit();
        let copy = private_pages(length)?;
        let surrendered = self.give_over(pages.clone(), |grip| {
            self.copy_held(grip, &pages, copy)?;
            // (mremap(2) counts mappings before it takes the first away.)
            self.memory.replace(self.offset(pages.start), length, copy)
        });
        if surrendered.is_err() {
            let _ = unmap(copy, length);
        }
        surrendered
    }

    /// The same without what they hold, once `act` has put something of the kernel's in their place.
    pub fn replace<R>(&self, pages: Range<usize>, act: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.give_over(pages, |_| act())
    }

    fn give_over<R>(&self, pages: Range<usize>, act: impl FnOnce(&Grip) -> Result<R, Errno>) -> Result<R, Errno> {
        // A handler could touch a page that this thread has.
        let _closed = thread::close_signals();
        let grip = self.grasp(pages.clone())?;
        match act(&grip) {
            Ok(answer) => {
                // Where it fails, what is left is memory that nobody sees.
                let _ = self.mechanism.leave(self.offset(pages.start), pages.len() * self.unit());
                self.let_go(grip);
                Ok(answer)
            }
            Err(error) => {
                self.put_back(grip);
                Err(error)
            }
        }
    }

    /// Pages that were the kernel's are paged again, and hold zeroes. Errors: what the kernel says;
    /// then they are its own as before, and hold nothing that can be relied on.
    pub fn reclaim(&self, pages: Range<usize>) -> Result<(), Errno> {
        let _closed = thread::close_signals();
        let _claims = self.claim_clusters(&pages);
        let taken: Vec<_> =
            pages.clone().filter_map(|page| self.page(page).take(State::Given, Pins::Ignored)).collect();
        let reclaimed = if taken.len() == pages.len() {
            self.mechanism.reclaim(self.offset(pages.start), pages.len() * self.unit())
        } else {
            Err(Errno::EINVAL)
        };
        let next = if reclaimed.is_ok() { State::Untouched } else { State::Given };
        taken.into_iter().for_each(|taken| taken.release(next));
        reclaimed
    }

    /// Claims come before pages: who has one may wait for a page.
    fn claim_clusters(&self, pages: &Range<usize>) -> Vec<Claim<'_>> {
        let clusters = self.cluster_of(pages.start)..self.cluster_of(pages.end - 1) + 1;
        clusters.map(|cluster| self.claim_cluster(cluster)).collect()
    }

    pub fn claim_cluster(&self, cluster: usize) -> Claim<'_> {
        loop {
            if let Some(claim) = self.claim_within(cluster, Nanoseconds::MAX) {
                return claim;
            }
        }
    }

    /// Claims a cluster that somebody else has for less than this long.
    pub fn claim_within(&self, cluster: usize, patience: Nanoseconds) -> Option<Claim<'_>> {
        let gate = self.gate(cluster);
        if let Some(claim) = gate.claim() {
            return Some(claim);
        }
        let start = Ticks::now();
        loop {
            let waited = Ticks::now().since(start);
            if waited < SOON {
                processor::give_way();
            } else {
                let _ = wait::nanosleep(SOON);
            }
            if let Some(claim) = gate.claim() {
                return Some(claim);
            }
            if waited >= patience {
                return None;
            }
        }
    }

    fn grasp(&self, pages: Range<usize>) -> Result<Grip<'_>, Errno> {
        let claims = self.claim_clusters(&pages);
        let mut grip = Grip { first: pages.start, taken: Vec::with_capacity(pages.len()), _claims: claims };
        for index in pages {
            let page = self.page(index);
            let taken = loop {
                match page.state() {
                    State::Given => break None,
                    State::Busy => page.wait(),
                    state => match page.take(state, Pins::Respected) {
                        Some(taken) => break Some(taken),
                        None if page.is_pinned() => {
                            self.put_back(grip);
                            return Err(Errno::EBUSY);
                        }
                        None => {}
                    },
                }
            };
            grip.taken.push(taken);
        }
        Ok(grip)
    }

    /// As it was. (What was closed and stays so is opened by who touches it next.)
    fn put_back(&self, grip: Grip) {
        for (step, taken) in grip.taken.into_iter().enumerate() {
            let Some(taken) = taken else { continue };
            if taken.before() == State::Dirty {
                let _ = self.mechanism.open(self.offset(grip.first + step), self.unit());
            }
            let before = taken.before();
            taken.release(before);
        }
    }

    fn let_go(&self, grip: Grip) {
        for (step, taken) in grip.taken.into_iter().enumerate() {
            let Some(taken) = taken else { continue };
            let before = taken.before();
            if before.is_resident() {
                self.limit.give_back(1);
            }
            if matches!(before, State::Clean | State::Out) {
                self.store.slots.free(self.slot(&taken, grip.first + step));
            }
            taken.release(State::Given);
        }
    }

    /// Copies what pages hold to memory that holds zeroes. Errors: `EBUSY` where one is the
    /// kernel's already.
    fn copy_held(&self, grip: &Grip, pages: &Range<usize>, copy: usize) -> Result<(), Errno> {
        let target = |page: usize| UserAddress((copy + (page - pages.start) * self.unit()) as u64);
        let mut bounce = vec![0; PAGE];
        let mut page = pages.start;
        while page < pages.end {
            let run = match grip.before(page) {
                None => return Err(Errno::EBUSY),
                Some(State::Out) => self.copy_slots(grip, page..pages.end, target(page))?,
                Some(before) if before.is_resident() => {
                    let run = self.run_of(grip, page..pages.end);
                    self.close_for_reading(&run)?;
                    run.clone().try_for_each(|page| self.copy_content(page, target(page), &mut bounce))?;
                    run.len()
                }
                Some(_) => 1,
            };
            page += run;
        }
        Ok(())
    }

    /// Resident pages of one cluster.
    fn run_of(&self, grip: &Grip, pages: Range<usize>) -> Range<usize> {
        let end = self.cluster(self.cluster_of(pages.start)).end.min(pages.end);
        let count = (pages.start..end).take_while(|page| grip.is_resident(*page)).count();
        pages.start..pages.start + count
    }

    /// Ends writes to taken pages of one cluster that are resident, and has what they hold where it can be
    /// read.
    pub fn close_for_reading(&self, pages: &Range<usize>) -> Result<(), Errno> {
        let (offset, length) = (self.offset(pages.start), pages.len() * self.unit());
        self.mechanism.close(offset, length)?;
        self.mechanism.prepare_reading(offset, length)
    }

    fn copy_content(&self, page: usize, target: UserAddress, bounce: &mut [u8]) -> Result<(), Errno> {
        let content = self.memory.content(self.offset(page), self.unit());
        for offset in (0..self.unit()).step_by(PAGE) {
            user_memory::copy_in(bounce, UserAddress((content + offset) as u64))?;
            user_memory::copy_out(target.offset(offset as u64), bounce)?;
        }
        Ok(())
    }

    /// Of pages that are out, while their slots follow each other; says how many.
    fn copy_slots(&self, grip: &Grip, pages: Range<usize>, target: UserAddress) -> Result<usize, Errno> {
        let slot = |page: usize| match &grip.taken[page - grip.first] {
            Some(taken) if taken.before() == State::Out => Some(self.slot(taken, page)),
            _ => None,
        };
        let Some(first) = slot(pages.start) else { return Err(Errno::EBUSY) };
        let most = pages.clone().take(self.store.wide_pages());
        let count = most.zip(first..).take_while(|(page, next)| slot(*page) == Some(*next)).count();
        let place = page_fault::place();
        let mut lane = self.store.lane(place);
        let mut bounce = self.store.wide_bounce(place);
        let (from, length) = (self.store.offset(first), count * self.unit());
        let content = lane.read_to(&mut bounce, self.store.device(), from, length)?;
        user_memory::copy_out(target, content)?;
        Ok(count)
    }
}
