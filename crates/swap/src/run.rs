//! Pages in several adjacent pages by one request. Their slots must be adjacent, too. The thread
//! that makes the request sleeps until the request completes. Used for read-ahead, and for memory
//! that a system call is about to use.

use crate::counters::Counter;
use crate::evict::EvictionGoal;
use crate::page::{IfPinned, State, TakenPage};
use crate::pager::{PageAccess, Pager};
use core::ops::Range;
use usring_sys::Errno;
use usring_sys::width;

/// Maximum number of pages that one request pages in.
pub const MOST: usize = 64;

/// Adjacent evicted pages with consecutive slots. The thread that made this value owns the pages,
/// and has reserved room for them.
pub struct PageRun<'a> {
    first: usize,
    slot: u32,
    pages: [Option<TakenPage<'a>>; MOST],
    count: usize,
}

impl PageRun<'_> {
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Pager {
    /// Takes pages from the start of a range, as long as they are evicted, their slots are
    /// consecutive, and `take_room` reserves room for each. `None` if not even the first page could
    /// be taken.
    pub fn take_run(&self, pages: Range<usize>, mut take_room: impl FnMut() -> bool) -> Option<PageRun<'_>> {
        let mut run = PageRun { first: pages.start, slot: 0, pages: [const { None }; MOST], count: 0 };
        for page in pages.take(MOST) {
            if !take_room() {
                break;
            }
            let Some(taken) = self.page(page).take(State::Out, IfPinned::Take) else {
                self.limit.give_back(1);
                break;
            };
            let slot = self.slot(&taken, page);
            if run.count == 0 {
                run.slot = slot;
            } else if slot != run.slot + width::count(run.count) {
                taken.release(State::Out);
                self.limit.give_back(1);
                break;
            }
            run.pages[run.count] = Some(taken);
            run.count += 1;
        }
        (run.count > 0).then_some(run)
    }

    /// Returns the offset on the device at which the slots of a run begin, and the length of the
    /// run in bytes.
    pub fn device_range(&self, run: &PageRun) -> (u64, usize) {
        (self.store.offset(run.slot), run.count * self.unit())
    }

    /// Maps the pages of a run with `content`, and ends the caller's ownership of the pages. Adds
    /// the mapped pages to `counter`. With `clean`, the pages are write-protected and keep their
    /// slots. Returns `false` if `content` is an error, or if a page could not be mapped. Pages
    /// that were not mapped stay evicted.
    pub fn map_run(
        &self,
        mut run: PageRun,
        content: Result<&[u8], Errno>,
        clean: bool,
        (counter, fault_slot): (Counter, usize),
    ) -> bool {
        let mut all = true;
        for position in 0..run.count {
            let Some(taken) = run.pages[position].take() else { continue };
            let page = run.first + position;
            let _inside = self.gate_of(page).enter();
            let bytes = position * self.unit()..(position + 1) * self.unit();
            let put = content.and_then(|content| self.mechanism.fill(self.offset(page), &content[bytes], clean));
            if put.is_err() {
                taken.release(State::Out);
                self.limit.give_back(1);
                all = false;
                continue;
            }
            self.finish_page_in(taken, run.slot + width::count(position), clean);
            self.counters.add(fault_slot, counter, 1);
        }
        all
    }

    /// Pages in the first pages of a range by one request. Returns `false` if fewer than two of
    /// them are evicted, if there is no room, or if a page could not be read or mapped. The caller
    /// then pages in the first page alone. If that fails, too, the caller reports the error.
    pub fn page_in_range(&self, pages: Range<usize>, access: PageAccess) -> bool {
        let is_out = |page: &usize| self.page(*page).state() == State::Out;
        let wanted = pages.clone().take(self.store.wide_pages()).take_while(is_out).count();
        let mut room = if wanted < 2 { 0 } else { self.take_room(wanted, access.fault_slot) };
        let run = self.take_run(pages, || {
            let has_room = room > 0;
            room -= usize::from(has_room);
            has_room
        });
        self.limit.give_back(room);
        self.limit.wake_evictor();
        let Some(run) = run else { return false };
        let clean = !access.write && self.mechanism.tracks_writes();
        let (from, length) = self.device_range(&run);
        let mut queue = self.store.queue(access.fault_slot);
        let mut bounce = self.store.wide_bounce(access.fault_slot);
        let content = queue.read_to(&mut bounce, self.store.device(), from, length);
        self.map_run(run, content, clean, (Counter::SwapIns, access.fault_slot))
    }

    /// Reserves room for up to `most` pages. Evicts pages if too little room is free. Returns the
    /// number of pages for which room was reserved.
    fn take_room(&self, most: usize, fault_slot: usize) -> usize {
        let mut room = 0;
        while room < most {
            if self.take_room_for_one(fault_slot) {
                room += 1;
                continue;
            }
            let mut queue = self.store.queue(fault_slot);
            let wanted = most - room;
            let goal = EvictionGoal { pages: wanted, kept: wanted, failures: self.failures_allowed() };
            let freed = self.evict(&mut queue, goal, fault_slot).freed;
            if freed == 0 {
                break;
            }
            room += freed.min(wanted);
            self.counters.add(fault_slot, Counter::DirectEvictions, 1);
        }
        room
    }
}
