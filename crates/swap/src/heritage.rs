//! What a forked child has of its parent's swapped memory: a copy, as of all other memory.
//!
//! 1. Before the fork everything comes to rest ([`Mappings::hold`]): all clusters are claimed, then all
//!    gates are shut. So nobody evicts, nobody changes a mapping, and a page that is busy is
//!    not in memory. The slots of pages that are out become the child's, too (`family`).
//! 2. The fork: the kernel copies what is resident, by copy-on-write, and the tables. Where it does not copy
//!    that (memory that is a file's), we have, before: each resident page is taken for it,
//!    and given back afterwards. Those that are pinned are not, so a system call of another thread may be
//!    writing to them.
//! 3. In the child touches of what is not there are told of at once ([`Held::inherit`]), before anything of
//!    the program runs. That is all for a child that soon executes or exits.
//! 4. When the child first touches what is out, or says something of such memory, it has a
//!    pager of its own made ([`Heritage::adopt`]): its lanes, its threads, and its limit.
//!
//! All clusters are claimed before a gate is shut: who has a claim may wait for a page whose
//! owner waits for a lane, and who has that for a gate. A claim that is kept for too long is a device that
//! does not answer: then there is no fork.
//!
//! Between 1 and 2 any copy of this process has the memory, with zeroes where pages are out. A kernel that does not
//! take that back afterwards leaves it so; then copies that do not inherit give it up ([`Withheld`]).

use crate::address_space::{AddressSpace, Kind};
use crate::family::Member;
use crate::gate::{Claim, Resting};
use crate::lane::Lane;
use crate::mappings::Mappings;
use crate::mechanism::{Copied, Prepared, Resident};
use crate::page::{Pins, State, Taken};
use crate::pager::{Pager, Parts};
use crate::region::{self, SwapRegion};
use crate::run;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::ticks::Ticks;

/// Swapped memory at rest, until this is dropped: a fork now gives the child a copy. In
/// the child, [`Held::inherit`].
pub struct Held {
    mappings: &'static Mappings,
    member: Option<Member>,
    /// Private descriptors that the child needs.
    descriptors: Vec<i32>,
    /// What is paged, as offsets.
    parts: Vec<Range<usize>>,
    /// Where we copy it: what is resident, in this thread's hand, and the copy.
    taken: Option<(Vec<Taken<'static>>, Resident)>,
    copy: Option<OwnedDescriptor>,
    _gates: Vec<Resting<'static>>,
    _quiet: Quiet<'static>,
    _space: Guard<'static, AddressSpace>,
}

/// A copy that nobody has touched yet where it is out.
pub struct Heritage {
    parent: &'static Mappings,
    prepared: Prepared,
    member: Member,
}

impl Mappings {
    /// Brings all to rest, for which it waits no longer than this. The caller touches nothing of the memory, runs
    /// no handler that might, and forks once.
    ///
    /// Errors: `EOPNOTSUPP` where a child cannot have a copy, by the mechanism or by the
    /// device; `EAGAIN` where as many processes have one as can; `EBUSY` where it has not come to rest, as the device
    /// has not answered; `ENOMEM`.
    pub fn hold(&'static self, patience: Nanoseconds) -> Result<Held, Errno> {
        let pager = &*self.region.pager;
        let mut descriptors = Vec::new();
        if !pager.store.device().driver().hand_down(&mut |number| descriptors.push(number)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let member = pager.store.slots.admit()?;
        descriptors.push(member.descriptor());
        descriptors.extend(self.claim.as_ref().map(HeldDescriptor::number));
        let space = self.space.lock();
        let we_copy = pager.mechanism.copies_resident();
        if we_copy && space.around((&raw const we_copy).addr()).is_some() {
            // This stack would be closed.
            return Err(Errno::EOPNOTSUPP);
        }
        let quiet = Quiet::begin(pager);
        let gates = pager.rest(patience)?;
        let parts = self.parts(&space);
        pager.lend_to(&member);
        let taken = we_copy.then(|| pager.take_resident());
        let (member, copy) = (Some(member), None);
        let mut held = Held {
            mappings: self,
            member,
            descriptors,
            parts,
            taken,
            copy,
            _gates: gates,
            _quiet: quiet,
            _space: space,
        };
        pager.mechanism.hand_down(&held.parts, true)?;
        if let Some((_, resident)) = &held.taken {
            let copy = pager.mechanism.copy(resident)?;
            held.descriptors.push(copy.number());
            held.copy = Some(copy);
        }
        Ok(held)
    }

    /// For a fork of which the child does not inherit: what it is to give up, if there is anything that it would
    /// have all the same. Nobody changes mappings until that is dropped, unless who forks borrows this memory (vfork):
    /// he may be killed meanwhile. (What is paged only then, children do not have.)
    pub fn withhold(&'static self, is_ours: bool) -> Option<Withheld> {
        if !self.exposed.load(Ordering::Relaxed) {
            return None;
        }
        let space = self.space.lock();
        let parts = self.parts(&space);
        if !is_ours {
            return Some(Withheld { mappings: self, parts, _space: None });
        }
        self.take_back(&parts);
        let withheld = Withheld { mappings: self, parts, _space: Some(space) };
        self.exposed.load(Ordering::Relaxed).then_some(withheld)
    }

    /// From now on a child that knows nothing of us finds nothing there, if the kernel can be had to do that.
    fn take_back(&self, parts: &[Range<usize>]) {
        let taken_back = self.region.pager.mechanism.hand_down(parts, false);
        self.exposed.store(taken_back.is_err(), Ordering::Relaxed);
    }

    /// What is not the kernel's.
    fn parts(&self, space: &AddressSpace) -> Vec<Range<usize>> {
        let range = self.range();
        let mut parts = Vec::new();
        let mut start = range.start;
        for given in space.all(Kind::Given) {
            parts.push(start - range.start..given.start - range.start);
            start = given.end;
        }
        parts.push(start - range.start..range.len());
        parts.retain(|part| !part.is_empty());
        parts
    }
}

impl Held {
    /// Those that have to stay open in the child.
    pub fn descriptors(&self) -> &[i32] {
        &self.descriptors
    }

    /// In the child, which has the descriptors and nothing else of usring's that its parent had.
    ///
    /// Errors: what the kernel says; and what it says where the child cannot even give the memory up ([`Withheld::renounce`]).
    pub fn inherit(mut self) -> Result<Heritage, (Errno, Result<(), Errno>)> {
        // What the parent undoes is not to be undone here.
        let parts = core::mem::take(&mut self.parts);
        let mechanism = &self.mappings.region.pager.mechanism;
        // Nor is what it has in its hand in this one's.
        let taken = self.taken.take();
        let copy = self.copy.take().zip(taken).map(|(file, (_, resident))| Copied { file, resident });
        let inherited = mechanism.inherit(&parts, copy).and_then(|prepared| {
            let member = self.member.take().ok_or(Errno::EINVAL)?;
            Ok(Heritage { parent: self.mappings, prepared, member })
        });
        inherited.map_err(|error| (error, mechanism.renounce(&parts)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.parts.is_empty() {
            self.mappings.take_back(&self.parts);
        }
        if let Some((taken, resident)) = self.taken.take() {
            self.mappings.region.pager.give_back_resident(taken, &resident);
        }
    }
}

/// Nobody begins to evict: they would take clusters again and again, of which there are fewer and fewer left. Who needs room
/// waits until this is dropped, as for an eviction.
struct Quiet<'a>(&'a Pager);

impl<'a> Quiet<'a> {
    fn begin(pager: &'a Pager) -> Self {
        pager.evictions.begin();
        pager.wanted_whole.fetch_add(1, Ordering::Relaxed);
        Quiet(pager)
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.0.wanted_whole.fetch_sub(1, Ordering::Relaxed);
        self.0.evictions.end(true);
    }
}

/// Memory that a child would have without knowing what of it is out.
pub struct Withheld {
    mappings: &'static Mappings,
    parts: Vec<Range<usize>>,
    _space: Option<Guard<'static, AddressSpace>>,
}

impl Withheld {
    /// In the child: nothing is there any more.
    ///
    /// Errors: what the kernel says. Such a child reads zeroes where its parent has something else.
    pub fn renounce(self) -> Result<(), Errno> {
        self.mappings.region.pager.mechanism.renounce(&self.parts)
    }
}

impl Heritage {
    /// The memory with a pager of its own, which counts in this file.
    ///
    /// Errors: what opening queue pairs of the device answers; `ENOMEM`.
    pub fn adopt(self, statistics: Option<&CStr>) -> Result<Mappings, Errno> {
        let Heritage { parent, prepared: Prepared { window, mechanism, .. }, member } = self;
        let old = &*parent.region.pager;
        let unit = old.unit();
        let device = old.store.device();
        let lanes = [Lane::new(device, unit)?, Lane::new(device, run::MOST * unit)?];
        let pager = Pager::new(Parts {
            kind: old.kind,
            memory: window.memory().clone(),
            mechanism,
            store: old.store.inherit(old.store.slots.inherit(member))?,
            limit: old.limit.get(),
            readahead: old.streams.most(),
            counters: region::counters_in(statistics)?,
            unused: true,
        })?;
        pager.copy_pages(old);
        let space = parent.space.lock().clone();
        for part in space.all(Kind::Mapped) {
            let offset = |address: usize| address - pager.memory.address();
            pager.set_in_use(offset(part.start) / unit..offset(part.end).div_ceil(unit), true);
        }
        let region = SwapRegion::start(window, pager, lanes, true)?;
        let claim = parent.claim.as_ref().map(|claim| {
            // The parent's, of which this process has the number.
            HeldDescriptor::new(OwnedDescriptor::from_raw(claim.number()))
        });
        let mappings = Mappings { region, space: Mutex::new(space), claim, exposed: AtomicBool::new(false) };
        Ok(mappings)
    }
}

impl Pager {
    /// Claims all clusters, then shuts all gates. Errors: `EBUSY` where somebody keeps one of them for longer.
    fn rest(&self, patience: Nanoseconds) -> Result<Vec<Resting<'_>>, Errno> {
        let start = Ticks::now();
        let left = || patience.saturating_sub(Ticks::now().since(start));
        let claim = |cluster| self.claim_within(cluster, left()).ok_or(Errno::EBUSY);
        let claims = (0..self.clusters()).map(claim).collect::<Result<Vec<_>, _>>()?;
        Ok(claims.into_iter().map(Claim::rest).collect())
    }

    fn pages_in_use(&self) -> Range<usize> {
        0..self.cluster(self.clusters() - 1).end
    }

    /// Takes all that is in memory, and nobody has pinned.
    fn take_resident(&self) -> (Vec<Taken<'_>>, Resident) {
        let (mut all, mut resident) = (Vec::new(), Resident::default());
        let extend = |runs: &mut Vec<Range<usize>>, start: usize, end: usize| match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        };
        // Where the span ends to which the next page may belong.
        let mut span_end = None;
        for index in self.pages_in_use() {
            let (page, offset) = (self.page(index), self.offset(index));
            let end = offset + self.unit();
            let state = page.at_rest();
            if !state.has_memory() {
                continue;
            }
            let taken = if state.is_resident() { page.take(state, Pins::Respected) } else { None };
            if let Some(taken) = taken {
                extend(&mut resident.taken, offset, end);
                extend(&mut resident.spans, span_end.unwrap_or(offset), end);
                all.push(taken);
                span_end = Some(end);
                continue;
            }
            span_end = None;
            if state.is_resident() {
                extend(&mut resident.pinned, offset, end);
            }
        }
        (all, resident)
    }

    /// Opens it again, and gives it back. (What cannot be opened, who touches it opens.)
    fn give_back_resident(&self, all: Vec<Taken>, resident: &Resident) {
        for run in &resident.taken {
            let _ = self.mechanism.open(run.start, run.len());
        }
        for taken in all {
            let before = taken.before();
            taken.release(before);
        }
    }

    /// What is out is the child's, too. (What is in memory besides its slot, the child has in
    /// memory alone.)
    fn lend_to(&self, member: &Member) {
        let is_out = |page: &usize| self.page(*page).at_rest() == State::Out;
        self.store.slots.lend(member, self.pages_in_use().filter(is_out).map(|page| self.slot_at_rest(page)));
    }

    /// Has all pages be what another pager's are, whose gates were shut.
    fn copy_pages(&self, other: &Pager) {
        self.set_extent(other.pages_in_use().end);
        let mut resident = 0;
        for index in other.pages_in_use() {
            if other.page(index).at_rest() == State::Untouched {
                continue;
            }
            self.copy_at_rest(other, index);
            resident += usize::from(self.page(index).state().is_resident());
        }
        self.limit.exceed(resident);
    }
}
