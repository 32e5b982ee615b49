//! Releases parts of a region to the kernel, and takes them back. This serves a program that wants
//! something of its memory that a pager cannot provide: another protection, a lock, another
//! mapping.
//!
//! A release has these steps. If a step fails, the steps before it are undone.
//! 1. Claim the clusters of the part, so that no other thread evicts from them.
//! 2. Take the pages. If their content is to be copied, write-protect those in memory: a thread
//!    that then writes to such a page waits.
//! 3. Map other memory in their place: ordinary memory with a copy of the content, or any memory
//!    that the caller maps there.
//! 4. Free the pages' old memory and their slots, and set their state to [`State::Unmanaged`].
//!
//! A fault may happen during the release. The faulting thread then repeats its access. If the
//! kernel forbids the access in the new memory, it raises SIGSEGV (`Pager::serve`).

use crate::gate::Claim;
use crate::page::{IfPinned, State, TakenPage};
use crate::pager::Pager;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use usring_sys::clock::Nanoseconds;
use usring_sys::mapping::{PAGE, private_pages, unmap};
use usring_sys::ticks::Ticks;
use usring_sys::{Errno, UserAddress, page_fault, processor, thread, user_memory, wait};

/// Time in nanoseconds for two waits of a thread that wants the claim of a cluster from another
/// thread. First the thread yields the processor for this time. Then it sleeps for this time before
/// each further attempt.
const RETRY_INTERVAL_NS: Nanoseconds = 200_000;

/// The pages to release. The first of them is page `first`. The calling thread owns them, and has
/// claimed their clusters.
struct PagesToRelease<'a> {
    first: usize,
    /// The element with index 0 is for page `first`. `None` for a page that was released before.
    taken: Vec<Option<TakenPage<'a>>>,
    _claims: Vec<Claim<'a>>,
}

impl PagesToRelease<'_> {
    fn before(&self, page: usize) -> Option<State> {
        self.taken[page - self.first].as_ref().map(TakenPage::before)
    }

    fn is_resident(&self, page: usize) -> bool {
        self.before(page).is_some_and(State::is_resident)
    }
}

impl Pager {
    /// Releases pages to the kernel with their content. Errors: those of
    /// `SwapRegion::release_to_kernel`.
    pub fn release_to_kernel(&self, pages: Range<usize>) -> Result<(), Errno> {
        let length = pages.len() * self.unit();
        let copy = private_pages(length)?;
        let released = self.release_range(pages.clone(), |pages_to_release| {
            self.copy_content_of(pages_to_release, &pages, copy)?;
            // `replace` uses mremap(2). That call fails if the process has almost as many mappings
            // as vm.max_map_count allows, even if it would add none.
            self.memory.replace(self.offset(pages.start), length, copy)
        });
        if released.is_err() {
            let _ = unmap(copy, length);
        }
        released
    }

    /// Releases pages to the kernel, and discards their content. `act` maps other memory at their
    /// addresses. Returns the result of `act`.
    pub fn replace<R>(&self, pages: Range<usize>, act: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        self.release_range(pages, |_| act())
    }

    fn release_range<R>(
        &self,
        pages: Range<usize>,
        act: impl FnOnce(&PagesToRelease) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        // Signals are blocked, because this thread owns pages meanwhile. If a signal handler
        // touched such a page, this thread would wait for itself.
        let _closed = thread::close_signals();
        let pages_to_release = self.take_pages(pages.clone())?;
        match act(&pages_to_release) {
            Ok(answer) => {
                // The error is ignored: without `leave`, the region keeps the pages' old memory,
                // which the program no longer sees.
                let _ = self.mechanism.leave(self.offset(pages.start), pages.len() * self.unit());
                self.finish_release(pages_to_release);
                Ok(answer)
            }
            Err(error) => {
                self.put_back(pages_to_release);
                Err(error)
            }
        }
    }

    /// Takes pages back into the region that were released to the kernel. They then hold zeroes.
    /// Errors, after which the pages stay released, with unspecified content: `EINVAL` for a page
    /// that was not released; the kernel's errors.
    pub fn reclaim(&self, pages: Range<usize>) -> Result<(), Errno> {
        let _closed = thread::close_signals();
        let _claims = self.claim_clusters(&pages);
        let taken: Vec<_> =
            pages.clone().filter_map(|page| self.page(page).take(State::Unmanaged, IfPinned::Take)).collect();
        let reclaimed = if taken.len() == pages.len() {
            self.mechanism.reclaim(self.offset(pages.start), pages.len() * self.unit())
        } else {
            Err(Errno::EINVAL)
        };
        let next = if reclaimed.is_ok() { State::Untouched } else { State::Unmanaged };
        taken.into_iter().for_each(|taken| taken.release(next));
        reclaimed
    }

    /// Claims the clusters of the pages. Waits for each cluster that another thread has claimed.
    /// Lock order: claim → page.
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

    /// Claims a cluster. `None` if another thread keeps the claim of this cluster for longer than
    /// `timeout` nanoseconds.
    pub fn claim_within(&self, cluster: usize, timeout: Nanoseconds) -> Option<Claim<'_>> {
        let gate = self.gate(cluster);
        if let Some(claim) = gate.claim() {
            return Some(claim);
        }
        let start = Ticks::now();
        loop {
            let waited = Ticks::now().since(start);
            if waited < RETRY_INTERVAL_NS {
                processor::yield_now();
            } else {
                let _ = wait::nanosleep(RETRY_INTERVAL_NS);
            }
            if let Some(claim) = gate.claim() {
                return Some(claim);
            }
            if waited >= timeout {
                return None;
            }
        }
    }

    fn take_pages(&self, pages: Range<usize>) -> Result<PagesToRelease<'_>, Errno> {
        let claims = self.claim_clusters(&pages);
        let mut pages_to_release =
            PagesToRelease { first: pages.start, taken: Vec::with_capacity(pages.len()), _claims: claims };
        for index in pages {
            let page = self.page(index);
            let taken = loop {
                match page.state() {
                    State::Unmanaged => break None,
                    State::Busy => page.wait(),
                    state => match page.take(state, IfPinned::Refuse) {
                        Some(taken) => break Some(taken),
                        None if page.is_pinned() => {
                            self.put_back(pages_to_release);
                            return Err(Errno::EBUSY);
                        }
                        None => {}
                    },
                }
            };
            pages_to_release.taken.push(taken);
        }
        Ok(pages_to_release)
    }

    /// Ends this thread's ownership of the pages, and puts each page into the state that it had
    /// before. If a page cannot be made writable now, the next write to it faults, and that fault
    /// makes it writable.
    fn put_back(&self, pages_to_release: PagesToRelease) {
        for (step, taken) in pages_to_release.taken.into_iter().enumerate() {
            let Some(taken) = taken else { continue };
            if taken.before() == State::Dirty {
                let _ = self.mechanism.open(self.offset(pages_to_release.first + step), self.unit());
            }
            let before = taken.before();
            taken.release(before);
        }
    }

    fn finish_release(&self, pages_to_release: PagesToRelease) {
        for (step, taken) in pages_to_release.taken.into_iter().enumerate() {
            let Some(taken) = taken else { continue };
            let before = taken.before();
            if before.is_resident() {
                self.limit.give_back(1);
            }
            if matches!(before, State::Clean | State::Out) {
                self.store.slots.free(self.slot(&taken, pages_to_release.first + step));
            }
            taken.release(State::Unmanaged);
        }
    }

    /// Copies the content of pages to memory at the address `copy`, which holds zeroes. Errors:
    /// `EBUSY` for a page that was released to the kernel before; errors of reading the content.
    fn copy_content_of(
        &self,
        pages_to_release: &PagesToRelease,
        pages: &Range<usize>,
        copy: usize,
    ) -> Result<(), Errno> {
        let target = |page: usize| UserAddress((copy + (page - pages.start) * self.unit()) as u64);
        let mut bounce = vec![0; PAGE];
        let mut page = pages.start;
        while page < pages.end {
            let run = match pages_to_release.before(page) {
                None => return Err(Errno::EBUSY),
                Some(State::Out) => self.copy_slots(pages_to_release, page..pages.end, target(page))?,
                Some(before) if before.is_resident() => {
                    let run = self.run_of(pages_to_release, page..pages.end);
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

    /// Returns the longest range at the start of `pages` whose pages are all resident and lie in
    /// one cluster.
    fn run_of(&self, pages_to_release: &PagesToRelease, pages: Range<usize>) -> Range<usize> {
        let end = self.cluster(self.cluster_of(pages.start)).end.min(pages.end);
        let count = (pages.start..end).take_while(|page| pages_to_release.is_resident(*page)).count();
        pages.start..pages.start + count
    }

    /// Write-protects resident pages of one cluster, and makes them readable through the pager's
    /// own mapping. The caller owns these pages.
    pub fn close_for_reading(&self, pages: &Range<usize>) -> Result<(), Errno> {
        let (offset, length) = (self.offset(pages.start), pages.len() * self.unit());
        self.mechanism.close(offset, length)?;
        self.mechanism.prepare_reading(offset, length)
    }

    fn copy_content(&self, page: usize, target: UserAddress, bounce: &mut [u8]) -> Result<(), Errno> {
        let content = self.memory.readable_address(self.offset(page), self.unit());
        for offset in (0..self.unit()).step_by(PAGE) {
            user_memory::copy_in(bounce, UserAddress((content + offset) as u64))?;
            user_memory::copy_out(target.offset(offset as u64), bounce)?;
        }
        Ok(())
    }

    /// Copies evicted pages at the start of the range to `target`, as long as their slots are
    /// consecutive. Returns the number of these pages.
    fn copy_slots(
        &self,
        pages_to_release: &PagesToRelease,
        pages: Range<usize>,
        target: UserAddress,
    ) -> Result<usize, Errno> {
        let slot = |page: usize| match &pages_to_release.taken[page - pages_to_release.first] {
            Some(taken) if taken.before() == State::Out => Some(self.slot(taken, page)),
            _ => None,
        };
        let Some(first) = slot(pages.start) else { return Err(Errno::EBUSY) };
        let most = pages.clone().take(self.store.wide_pages());
        let count = most.zip(first..).take_while(|(page, next)| slot(*page) == Some(*next)).count();
        let fault_slot = page_fault::fault_slot();
        let mut queue = self.store.queue(fault_slot);
        let mut bounce = self.store.wide_bounce(fault_slot);
        let (from, length) = (self.store.offset(first), count * self.unit());
        let content = queue.read_to(&mut bounce, self.store.device(), from, length)?;
        user_memory::copy_out(target, content)?;
        Ok(count)
    }
}
