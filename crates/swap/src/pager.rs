//! The shared state of a swap region, and the path on which a page fault is served.
//!
//! # Owners
//! | thing | owner |
//! |---|---|
//! | a page's word, slot number and mapping | the thread that has taken the page ([`crate::page`]) |
//! | an allocated slot | the page that has its number |
//! | the two mapping changes of an eviction | the thread that has claimed and shut the cluster's gate ([`crate::gate`]) |
//! | room for a page below the limit | the thread that raised `resident`; then the page that it pages in |
//! | a store queue | the thread that holds its lock ([`crate::store`]) |
//!
//! Lock order: room → claim → page → store queue → gate.
//!
//! # Invariants
//! - A thread that has claimed a cluster to evict from it waits for no page. A thread that owns a
//!   page waits only for threads that need no page.
//! - A thread that owns a page has signals blocked: if a signal handler touched the page, the
//!   thread would wait for itself.
//! - A page becomes resident only inside its cluster's gate. A resident page is taken and released
//!   only inside the gate, or by the thread that has claimed the cluster.
//! - So while a gate is shut, a busy page that the evictor does not own has no memory. The evictor
//!   may free a range of addresses that includes such a page.

use crate::counters::{Counter, Counters};
use crate::evict::RoomOutcome;
use crate::evictions::Evictions;
use crate::gate::Gate;
use crate::mechanism::{Mechanism, MechanismKind};
use crate::message::say;
use crate::page::{IfPinned, Page, State, TakenPage};
use crate::readahead::Streams;
use crate::store::Store;
use crate::store_queue::Waiting;
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

/// Bytes of a cluster. The resident pages of a cluster are evicted together.
const CLUSTER: usize = 256 << 10;

/// Bits in a word of `Pager::in_use`.
const BITS: usize = 64;

/// An access to a page, for which the page is paged in. It is the access that faulted, or the
/// access that a system call makes to pinned memory.
#[derive(Clone, Copy, Debug)]
pub struct PageAccess {
    pub write: bool,
    /// Whether the page was mapped when the fault happened. If so, it was write-protected.
    pub present: bool,
    pub fault_slot: usize,
}

/// Why a page could not be paged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The slot that could not be read. `None` for [`Lost::UNUSED`], and if the kernel had no
    /// memory for the page.
    pub slot: Option<u32>,
    pub error: Errno,
}

impl Lost {
    /// No mapping of the program covers the page, so the pager must not page it in.
    pub const UNUSED: Lost = Lost { slot: None, error: Errno::EFAULT };
}

pub struct Pager {
    pub kind: MechanismKind,
    pub memory: Arc<PagedMemory>,
    pub mechanism: Box<dyn Mechanism>,
    pub store: Store,
    pub limit: Limit,
    pub counters: Counters,
    pub streams: Streams,
    pub evictions: Evictions,
    /// Number of writes to the store that have failed since the last successful write.
    pub failed_writes: AtomicU32,
    /// Errno of the last failed write to the store.
    pub last_failure: AtomicU32,
    /// Number of threads that each wait to claim all clusters for a fork. While the number is above
    /// 0, no eviction begins.
    pub waiting_forks: AtomicU32,
    /// How many clusters the hand of the eviction clock has visited so far (see the head of
    /// `evict`).
    pub hand: AtomicUsize,
    unit: usize,
    per_cluster: usize,
    pages: PageArray<AtomicU32>,
    slots: PageArray<AtomicU32>,
    gates: PageArray<AtomicU32>,
    /// Number of clusters from the region's start to the last cluster in use.
    extent: AtomicUsize,
    /// Makes the pager of a forked child. Called in the child at its first access to inherited
    /// memory. Returns `false` if the child inherited nothing.
    first_touch: SetOnce<fn() -> bool>,
    /// One bit for each page, set if a mapping of the program covers the page. `None` if all pages
    /// are in use.
    in_use: Option<PageArray<AtomicU64>>,
}

/// The parts from which [`Pager::new`] makes a pager.
pub struct Parts {
    pub kind: MechanismKind,
    pub memory: Arc<PagedMemory>,
    pub mechanism: Box<dyn Mechanism>,
    pub store: Store,
    /// The region's limit, in units.
    pub limit: usize,
    pub readahead: usize,
    pub counters: Counters,
    /// Whether all pages of the new pager are unused at first. [`Pager::set_in_use`] then marks
    /// pages as used. Otherwise all pages are used.
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
                parts.counters.set_sizes(parts.limit, unit);
                parts.counters
            },
            streams: Streams::new(parts.readahead)?,
            evictions: Evictions::new(),
            failed_writes: AtomicU32::new(0),
            last_failure: AtomicU32::new(0),
            waiting_forks: AtomicU32::new(0),
            hand: AtomicUsize::new(0),
            unit,
            per_cluster,
            pages: PageArray::new(count)?,
            slots: PageArray::new(count)?,
            gates: PageArray::new(count.div_ceil(per_cluster))?,
            extent: AtomicUsize::new(count.div_ceil(per_cluster)),
            first_touch: SetOnce::new(),
            // With `MechanismKind::Thread`, the pager thread cannot refuse a fault: it can only map
            // the page. So all pages count as used.
            in_use: match parts.unused && parts.kind != MechanismKind::Thread {
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

    /// Returns the number of clusters in use, counted from the region's start. The evictor searches
    /// only these clusters ([`Pager::set_extent`]).
    pub fn clusters(&self) -> usize {
        self.extent.load(Ordering::Relaxed)
    }

    /// Declares that only the first `pages` pages are in use. Later pages may still be in memory,
    /// but the evictor ignores them. The thread that unmaps such a page also discards it.
    pub fn set_extent(&self, pages: usize) {
        let clusters = pages.div_ceil(self.per_cluster).clamp(1, self.gates.len());
        self.extent.store(clusters, Ordering::Relaxed);
    }

    /// Marks pages as used or unused. The caller then discards the pages that became unused. Faults
    /// that begin after this call see the mark. Faults that began before may not have seen it: the
    /// discard waits for these faults.
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

    fn is_in_use(&self, _: &TakenPage, page: usize) -> bool {
        self.in_use.as_ref().is_none_or(|words| {
            fence(Ordering::SeqCst);
            words[page / BITS].load(Ordering::Relaxed) & 1 << (page % BITS) != 0
        })
    }

    pub fn cluster_of(&self, page: usize) -> usize {
        page / self.per_cluster
    }

    /// Returns the pages of a cluster.
    pub fn cluster(&self, index: usize) -> Range<usize> {
        let first = index * self.per_cluster;
        first..(first + self.per_cluster).min(self.pages())
    }

    pub fn page(&self, index: usize) -> Page<'_> {
        Page::new(&self.pages[index])
    }

    /// Returns the gate of the cluster that contains the page.
    pub fn gate_of(&self, page: usize) -> Gate<'_> {
        self.gate(self.cluster_of(page))
    }

    pub fn gate(&self, cluster: usize) -> Gate<'_> {
        Gate::new(&self.gates[cluster])
    }

    /// Returns the slot number of a page that the caller owns.
    pub fn slot(&self, _: &TakenPage, page: usize) -> u32 {
        self.slots[page].load(Ordering::Relaxed)
    }

    pub fn set_slot(&self, _: &TakenPage, page: usize, slot: u32) {
        self.slots[page].store(slot, Ordering::Relaxed);
    }

    /// Returns the slot number of a page. The caller guarantees that all gates are shut, or that no
    /// thread uses the pager.
    pub fn slot_at_rest(&self, page: usize) -> u32 {
        self.slots[page].load(Ordering::Relaxed)
    }

    /// Copies a page's state and slot number from `other`, the pager of the parent. The parent shut
    /// all gates for the fork, so no thread of the parent changes the page meanwhile. No thread
    /// uses the pager `self` yet.
    pub fn copy_at_rest(&self, other: &Pager, page: usize) {
        self.page(page).copy_at_rest(other.page(page));
        self.slots[page].store(other.slot_at_rest(page), Ordering::Relaxed);
    }

    /// Sets the function that a forked child calls at its first access to inherited memory. The
    /// function makes the child's pager, and returns `false` if the child inherited nothing.
    pub fn set_first_touch(&self, first_touch: &'static fn() -> bool) {
        self.first_touch.set(first_touch);
    }

    pub fn offset(&self, page: usize) -> usize {
        page * self.unit
    }

    /// Serves a fault: pages a page in. If the access was a write, also makes the page writable.
    pub fn page_in(&self, index: usize, access: PageAccess) -> Result<(), Lost> {
        let page = self.page(index);
        let mut has_room = false;
        let outcome = loop {
            match page.state() {
                State::Busy => page.wait(),
                // The page was released to the kernel. The faulting thread repeats its access. The
                // repeated access reaches the memory that the kernel has mapped at this address.
                State::Unmanaged => break Ok(()),
                state @ (State::Clean | State::Dirty) => {
                    if let Some(outcome) = self.serve_resident(index, state, access) {
                        break outcome;
                    }
                }
                state @ (State::Untouched | State::Out) => {
                    if !has_room {
                        self.make_room(access.fault_slot);
                        has_room = true;
                    }
                    let Some(taken) = page.take(state, IfPinned::Take) else { continue };
                    let outcome = if state == State::Out {
                        self.swap_in(index, taken, access)
                    } else {
                        self.first_touch(index, taken, access)
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

    /// Serves a fault on a resident page. The fault is a write to a clean page, or another thread
    /// has paged the page in before this call. `None` if the page's state has changed meanwhile.
    fn serve_resident(&self, index: usize, state: State, access: PageAccess) -> Option<Result<(), Lost>> {
        if state == State::Clean && !access.write && access.present {
            return Some(Ok(()));
        }
        let (offset, unit) = (self.offset(index), self.unit);
        let _inside = self.gate_of(index).enter();
        let taken = self.page(index).take(state, IfPinned::Take)?;
        let mut next = state;
        let mended = if access.present { Ok(false) } else { self.mechanism.mend(offset, unit) };
        let opened = mended.and_then(|lost| {
            if lost || access.write {
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
            self.counters.add(access.fault_slot, Counter::WriteFaults, 1);
        } else {
            self.counters.add(access.fault_slot, Counter::LateFaults, 1);
        }
        taken.release(next);
        Some(Ok(()))
    }

    fn first_touch(&self, index: usize, taken: TakenPage, access: PageAccess) -> Result<(), Lost> {
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
        self.counters.add(access.fault_slot, Counter::FirstTouches, 1);
        Ok(())
    }

    fn swap_in(&self, index: usize, taken: TakenPage, access: PageAccess) -> Result<(), Lost> {
        let slot = self.slot(&taken, index);
        let clean = !access.write && self.mechanism.tracks_writes();
        let mut queue = self.store.queue(access.fault_slot);
        let content = match queue.read(self.store.device(), self.store.offset(slot), self.unit, Waiting::ByPolicy) {
            Ok(content) => content,
            Err(error) => {
                taken.release(State::Out);
                self.counters.add(access.fault_slot, Counter::ReadErrors, 1);
                return Err(Lost { slot: Some(slot), error });
            }
        };
        let inside = self.gate_of(index).enter();
        if let Err(error) = self.mechanism.fill(self.offset(index), content, clean) {
            taken.release(State::Out);
            return Err(Lost { slot: None, error });
        }
        self.finish_page_in(taken, slot, clean);
        drop(inside);
        drop(queue);
        self.counters.add(access.fault_slot, Counter::SwapIns, 1);
        self.note_page_in(index, access.fault_slot);
        Ok(())
    }

    /// Makes resident a page into which the caller has read the content of `slot`, and ends the
    /// caller's ownership. Frees the slot unless the page is clean. The caller is inside the gate
    /// of the page's cluster.
    pub fn finish_page_in(&self, taken: TakenPage, slot: u32, clean: bool) {
        if clean {
            taken.release(State::Clean);
        } else {
            self.store.slots.free(slot);
            taken.release(State::Dirty);
        }
    }

    /// Reserves room for one page below the region's limit. If there is no room, evicts pages
    /// first.
    pub fn make_room(&self, fault_slot: usize) {
        while !self.take_room_for_one(fault_slot) && self.evict_directly(fault_slot) == RoomOutcome::TryAgain {}
        self.limit.wake_evictor();
    }

    /// Reserves room for one page below the region's limit, or in the excess that `Limit::raise`
    /// has added to the limit. Returns `false` if there is no room.
    #[inline]
    pub fn take_room_for_one(&self, fault_slot: usize) -> bool {
        match self.limit.take(1) {
            Share::Within(resident) => self.counters.raise_peak(resident),
            Share::Beyond(resident) => {
                self.counters.raise_peak(resident);
                self.counters.add(fault_slot, Counter::OverLimit, 1);
            }
            Share::None => return false,
        }
        true
    }

    /// Reports on standard error why a page could not be paged in.
    pub fn report_lost(&self, index: usize, lost: Lost) {
        let offset = self.offset(index);
        match lost.slot {
            Some(slot) => say(format_args!(
                "swap: the page at {:#x} cannot be read back: slot {slot} (byte {}) of the backing store fails with {}",
                self.memory.address() + offset,
                self.store.offset(slot),
                lost.error
            )),
            None => say(format_args!(
                "swap: there is no free page for {:#x}: {}",
                self.memory.address() + offset,
                lost.error
            )),
        }
    }
}

impl FaultServer for Pager {
    fn serve(&self, fault: Fault) -> Served {
        if !self.memory.is_ours() {
            if self.first_touch.get().is_some_and(|serves| serves()) {
                return Served::Again;
            }
            // The child may itself have mapped other memory at this address. Then the fault is the
            // program's.
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
                say(format_args!("swap: the kernel has no memory for {:#x}, or the memory is faulty", fault.address));
                return Served::Refused;
            }
        }
        let index = (fault.address - self.memory.address()) / self.unit;
        if self.page(index).state() == State::Unmanaged {
            // The page was released to the kernel. If the kernel allows the access now, the fault
            // happened before the release, so the thread repeats its access. Otherwise the program
            // has to handle the fault.
            let is_allowed = page_fault::allows(fault.address, fault.write);
            return if is_allowed { Served::Again } else { Served::Foreign };
        }
        let access = PageAccess { write: fault.write, present: fault.present, fault_slot: fault.slot };
        match self.page_in(index, access) {
            Ok(()) => Served::Again,
            Err(Lost::UNUSED) => Served::Unmapped,
            Err(lost) => {
                self.report_lost(index, lost);
                Served::Refused
            }
        }
    }
}
