//! A region as the threads meet that work on it: its pages' words, and the way
//! of a fault.
//!
//! # Who owns what
//! | what | whose |
//! |---|---|
//! | a page's word, slot number and mapping | who has taken the page ([`crate::page`]) |
//! | a taken slot | the page that has its number |
//! | a cluster's two moments of eviction | who has claimed its gate, with nobody inside ([`crate::gate`]) |
//! | room below the limit | who counted `resident` up; the page's, once it is in |
//! | a lane | who has its lock ([`crate::store`]) |
//!
//! In this order only: room, then a claim, then a page, then a lane, then the gate. Who evicts
//! waits for no page; who has a page waits for nothing that needs another. None of
//! it is done with signals open: a handler that touched a page would wait for its
//! own thread.
//!
//! **A page becomes resident, and one that is resident is taken and given back,
//! only inside its cluster's gate, or by who has claimed the gate.** So a busy page that
//! is not the evictor's own is not in memory while the gate is shut, and may lie in
//! a run that is dropped.

use crate::counters::{Counter, Counters};
use crate::evict::Room;
use crate::evictions::Evictions;
use crate::gate::Gate;
use crate::lane::Waiting;
use crate::mechanism::{Kind, Mechanism};
use crate::message::say;
use crate::page::{Page, Pins, State, Taken};
use crate::readahead::Streams;
use crate::store::Store;
use crate::watermarks::{Limit, Share};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;
use usring_sys::Errno;
use usring_sys::page_array::PageArray;
use usring_sys::page_fault::{self, Cause, Fault, FaultServer, Served};
use usring_sys::paged_memory::PagedMemory;
use usring_sys::set_once::SetOnce;
use usring_sys::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Bytes of a cluster: what is evicted together, if it is resident.
const CLUSTER: usize = 256 << 10;

/// Of a word of bits.
const BITS: usize = 64;

/// What a thread does that a page does not allow, or that it is not there for.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    pub write: bool,
    /// A page was there.
    pub present: bool,
    pub place: usize,
}

/// A page that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// `None`: it has none, there was no memory for it.
    pub slot: Option<u32>,
    pub error: Errno,
}

impl Lost {
    /// It is not in use.
    pub const UNUSED: Lost = Lost { slot: None, error: Errno::EFAULT };
}

pub struct Pager {
    pub kind: Kind,
    pub memory: Arc<PagedMemory>,
    pub mechanism: Box<dyn Mechanism>,
    pub store: Store,
    pub limit: Limit,
    pub counters: Counters,
    pub streams: Streams,
    pub evictions: Evictions,
    /// Writes that have failed since one did not, and what the last of them was answered.
    pub failed_writes: AtomicU32,
    pub last_failure: AtomicU32,
    /// Somebody wants all clusters: nobody begins to evict.
    pub wanted_whole: AtomicU32,
    /// The clock's hand, in clusters.
    pub hand: AtomicUsize,
    unit: usize,
    per_cluster: usize,
    pages: PageArray<AtomicU32>,
    slots: PageArray<AtomicU32>,
    gates: PageArray<AtomicU32>,
    /// Clusters from the first to the last in use.
    extent: AtomicUsize,
    /// In a forked child: has what it inherited served; `false` if that is nothing.
    heir: SetOnce<fn() -> bool>,
    /// Where not all pages are in use: which are, a bit each.
    in_use: Option<PageArray<AtomicU64>>,
}

/// What a pager is made of.
pub struct Parts {
    pub kind: Kind,
    pub memory: Arc<PagedMemory>,
    pub mechanism: Box<dyn Mechanism>,
    pub store: Store,
    /// In units.
    pub limit: usize,
    pub readahead: usize,
    pub counters: Counters,
    /// Whether no page is in use until it is said so.
    pub unused: bool,
}

impl Pager {
    pub fn new(parts: Parts) -> Result<Self, Errno> {
        let unit = parts.store.unit();
        let per_cluster = (CLUSTER / unit).max(1);
        let count = parts.memory.length() / unit;
        Ok(Pager {
            kind: parts.kind,
            memory: parts.memory,
            mechanism: parts.mechanism,
            store: parts.store,
            limit: Limit::new(parts.limit),
            counters: {
                parts.counters.tell(parts.limit, unit);
                parts.counters
            },
            streams: Streams::new(parts.readahead)?,
            evictions: Evictions::new(),
            failed_writes: AtomicU32::new(0),
            last_failure: AtomicU32::new(0),
            wanted_whole: AtomicU32::new(0),
            hand: AtomicUsize::new(0),
            unit,
            per_cluster,
            pages: PageArray::new(count)?,
            slots: PageArray::new(count)?,
            gates: PageArray::new(count.div_ceil(per_cluster))?,
            extent: AtomicUsize::new(count.div_ceil(per_cluster)),
            heir: SetOnce::new(),
            // A touch that the kernel tells a thread of ours of has no other answer than a page.
            in_use: match parts.unused && parts.kind != Kind::Thread {
                true => Some(PageArray::new(count.div_ceil(BITS))?),
                false => None,
            },
        })
    }

    pub fn unit(&self) -> usize {
        self.unit
    }

    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Those that can have pages in memory.
    pub fn clusters(&self) -> usize {
        self.extent.load(Ordering::Relaxed)
    }

    /// Pages behind these are not in use. (Some may still be in memory; that they are
    /// not evicted any more does no harm, for whoever gives pages up discards them.)
    pub fn set_extent(&self, pages: usize) {
        let clusters = pages.div_ceil(self.per_cluster).clamp(1, self.gates.len());
        self.extent.store(clusters, Ordering::Relaxed);
    }

    /// Says of which pages a touch is one of memory. Those that are no longer in use are given up afterwards: who has
    /// touched one before is waited for then, and who comes later sees this.
    pub fn set_in_use(&self, pages: Range<usize>, in_use: bool) {
        let Some(words) = &self.in_use else { return };
        let mut page = pages.start;
        while page < pages.end {
            let end = (page / BITS + 1) * BITS;
            let count = end.min(pages.end) - page;
            let bits = (u64::MAX >> (BITS - count)) << (page % BITS);
            let word = &words[page / BITS];
            let _ =
                if in_use { word.fetch_or(bits, Ordering::Relaxed) } else { word.fetch_and(!bits, Ordering::Relaxed) };
            page += count;
        }
        fence(Ordering::SeqCst);
    }

    fn is_in_use(&self, _: &Taken, page: usize) -> bool {
        self.in_use.as_ref().is_none_or(|words| {
            fence(Ordering::SeqCst);
            words[page / BITS].load(Ordering::Relaxed) & 1 << (page % BITS) != 0
        })
    }

    pub fn cluster_of(&self, page: usize) -> usize {
        page / self.per_cluster
    }

    /// The pages of a cluster.
    pub fn cluster(&self, index: usize) -> Range<usize> {
        let first = index * self.per_cluster;
        first..(first + self.per_cluster).min(self.pages())
    }

    pub fn page(&self, index: usize) -> Page<'_> {
        Page::new(&self.pages[index])
    }

    /// Of the cluster that a page is in.
    pub fn gate_of(&self, page: usize) -> Gate<'_> {
        self.gate(self.cluster_of(page))
    }

    pub fn gate(&self, cluster: usize) -> Gate<'_> {
        Gate::new(&self.gates[cluster])
    }

    /// The slot of a page, for who has taken it.
    pub fn slot(&self, _: &Taken, page: usize) -> u32 {
        self.slots[page].load(Ordering::Relaxed)
    }

    pub fn set_slot(&self, _: &Taken, page: usize, slot: u32) {
        self.slots[page].store(slot, Ordering::Relaxed);
    }

    /// The same while all gates are shut, or nobody uses the pager.
    pub fn slot_at_rest(&self, page: usize) -> u32 {
        self.slots[page].load(Ordering::Relaxed)
    }

    /// Has a page be what another pager's is, whose gates are shut. Nobody uses this one yet.
    pub fn copy_at_rest(&self, other: &Pager, page: usize) {
        self.page(page).copy_at_rest(other.page(page));
        self.slots[page].store(other.slot_at_rest(page), Ordering::Relaxed);
    }

    /// Who is asked, in a forked child, to have what it inherited served.
    pub fn set_heir(&self, heir: &'static fn() -> bool) {
        self.heir.set(heir);
    }

    pub fn offset(&self, page: usize) -> usize {
        page * self.unit
    }

    /// Makes a page resident, and writable if that is wanted: the way of a fault.
    pub fn bring_in(&self, index: usize, touch: Touch) -> Result<(), Lost> {
        let page = self.page(index);
        let mut has_room = false;
        let outcome = loop {
            match page.state() {
                State::Busy => page.wait(),
                // It finds what is there now.
                State::Given => break Ok(()),
                state @ (State::Clean | State::Dirty) => {
                    if let Some(outcome) = self.let_in(index, state, touch) {
                        break outcome;
                    }
                }
                state @ (State::Untouched | State::Out) => {
                    if !has_room {
                        self.make_room(touch.place);
                        has_room = true;
                    }
                    let Some(taken) = page.take(state, Pins::Ignored) else { continue };
                    let outcome = if state == State::Out {
                        self.swap_in(index, taken, touch)
                    } else {
                        self.first_touch(index, taken, touch)
                    };
                    if outcome.is_ok() {
                        return outcome;
                    }
                    break outcome;
                }
            }
        };
        if has_room {
            self.limit.give_back(1);
        }
        outcome
    }

    /// The page is resident; its toucher wants to write, or came late.
    fn let_in(&self, index: usize, state: State, touch: Touch) -> Option<Result<(), Lost>> {
        if state == State::Clean && !touch.write && touch.present {
            return Some(Ok(()));
        }
        let (offset, unit) = (self.offset(index), self.unit);
        let _inside = self.gate_of(index).enter();
        let taken = self.page(index).take(state, Pins::Ignored)?;
        let mut next = state;
        let mended = if touch.present { Ok(false) } else { self.mechanism.mend(offset, unit) };
        let opened = mended.and_then(|lost| {
            if lost || touch.write {
                next = State::Dirty;
            }
            if next == State::Dirty { self.mechanism.open(offset, unit) } else { Ok(()) }
        });
        if let Err(error) = opened {
            taken.release(state);
            return Some(Err(Lost { slot: None, error }));
        }
        if state == State::Clean && next == State::Dirty {
            self.store.slots.free(self.slot(&taken, index));
            self.counters.add(touch.place, Counter::WriteFaults, 1);
        } else {
            self.counters.add(touch.place, Counter::LateFaults, 1);
        }
        taken.release(next);
        Some(Ok(()))
    }

    fn first_touch(&self, index: usize, taken: Taken, touch: Touch) -> Result<(), Lost> {
        if !self.is_in_use(&taken, index) {
            taken.release(State::Untouched);
            return Err(Lost::UNUSED);
        }
        let _inside = self.gate_of(index).enter();
        if let Err(error) = self.mechanism.fill_zero(self.offset(index), self.unit) {
            taken.release(State::Untouched);
            return Err(Lost { slot: None, error });
        }
        taken.release(State::Dirty);
        self.counters.add(touch.place, Counter::FirstTouches, 1);
        Ok(())
    }

    fn swap_in(&self, index: usize, taken: Taken, touch: Touch) -> Result<(), Lost> {
        let slot = self.slot(&taken, index);
        let clean = !touch.write && self.mechanism.tracks_writes();
        let mut lane = self.store.lane(touch.place);
        let content = match lane.read(self.store.device(), self.store.offset(slot), self.unit, Waiting::ByPolicy) {
            Ok(content) => content,
            Err(error) => {
                taken.release(State::Out);
                self.counters.add(touch.place, Counter::ReadErrors, 1);
                return Err(Lost { slot: Some(slot), error });
            }
        };
        let inside = self.gate_of(index).enter();
        if let Err(error) = self.mechanism.fill(self.offset(index), content, clean) {
            taken.release(State::Out);
            return Err(Lost { slot: None, error });
        }
        self.settle(taken, slot, clean);
        drop(inside);
        drop(lane);
        self.counters.add(touch.place, Counter::SwapIns, 1);
        self.follow(index, touch.place);
        Ok(())
    }

    /// A page has been put in place out of its slot. Its owner is still inside
    /// the gate.
    pub fn settle(&self, taken: Taken, slot: u32, clean: bool) {
        if clean {
            taken.release(State::Clean);
        } else {
            self.store.slots.free(slot);
            taken.release(State::Dirty);
        }
    }

    /// Takes room for one page, evicting for it if there is none.
    pub fn make_room(&self, place: usize) {
        while !self.take_one(place) && self.evict_directly(place) == Room::Perhaps {}
        self.limit.wake_evictor();
    }

    /// Takes room for one page, if there is.
    #[inline]
    pub fn take_one(&self, place: usize) -> bool {
        match self.limit.take(1) {
            Share::Within(resident) => self.counters.raise_peak(resident),
            Share::Beyond(resident) => {
                self.counters.raise_peak(resident);
                self.counters.add(place, Counter::OverLimit, 1);
            }
            Share::None => return false,
        }
        true
    }

    /// Says what became of a page, on standard error.
    pub fn complain(&self, index: usize, lost: Lost) {
        let offset = self.offset(index);
        match lost.slot {
            Some(slot) => say(format_args!(
                "swap: the page at {:#x} cannot be read back: slot {slot} (byte {}) of the backing store answers {}",
                self.memory.address() + offset,
                self.store.offset(slot),
                lost.error
            )),
            None => {
                say(format_args!("swap: no page can be had for {:#x}: {}", self.memory.address() + offset, lost.error))
            }
        }
    }
}

impl FaultServer for Pager {
    fn serve(&self, fault: Fault) -> Served {
        if !self.memory.is_ours() {
            if self.heir.get().is_some_and(|serves| serves()) {
                return Served::Again;
            }
            // The child may have something else there by now.
            if page_fault::is_mapped(fault.address) {
                return Served::Foreign;
            }
            say(format_args!(
                "swap: a forked child touched {:#x}, which is swapped memory of its parent and not inherited",
                fault.address
            ));
            return Served::Refused;
        }
        match fault.cause {
            cause if Some(cause) == self.kind.cause() => {}
            Cause::Unmapped | Cause::Forbidden => return Served::Foreign,
            Cause::Missing | Cause::Broken => {
                say(format_args!("swap: the kernel has no memory for {:#x}, or it is broken", fault.address));
                return Served::Refused;
            }
        }
        let index = (fault.address - self.memory.address()) / self.unit;
        if self.page(index).state() == State::Given {
            // Either it was touched before it was given away, or this is the kernel's answer.
            let is_allowed = page_fault::allows(fault.address, fault.write);
            return if is_allowed { Served::Again } else { Served::Foreign };
        }
        let touch = Touch { write: fault.write, present: fault.present, place: fault.place };
        match self.bring_in(index, touch) {
            Ok(()) => Served::Again,
            Err(Lost::UNUSED) => Served::Unmapped,
            Err(lost) => {
                self.complain(index, lost);
                Served::Refused
            }
        }
    }
}
