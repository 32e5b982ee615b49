//! What a forked child has of its parent's swapped memory: a copy, as of all other memory.
//!
//! 1. Before the fork everything comes to rest ([`Mappings::hold`]): all clusters are claimed, then all
//!    gates are shut. So nobody evicts, nobody changes a mapping, and a page that is busy is
//!    not in memory. The slots of pages that are out become the child's, too (`family`).
//! 2. The fork: the kernel copies what is resident, by copy-on-write, and the tables.
//! 3. In the child touches of what is not there are told of at once ([`Held::inherit`]), before anything of
//!    the program runs. That is all for a child that soon executes or exits.
//! 4. When the child first touches what is out, or says something of such memory, it has a
//!    pager of its own made ([`Heritage::adopt`]): its lanes, its threads, and its limit.
//!
//! All clusters are claimed before a gate is shut: who has a claim may wait for a page whose
//! owner waits for a lane, and who has that for a gate.

use crate::address_space::{AddressSpace, Kind};
use crate::family::Member;
use crate::gate::{Claim, Resting};
use crate::lane::Lane;
use crate::mappings::Mappings;
use crate::mechanism::Prepared;
use crate::page::State;
use crate::pager::{Pager, Parts};
use crate::region::{self, SwapRegion};
use crate::run;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::{Errno, processor};

/// Swapped memory at rest, until this is dropped: a fork now gives the child a copy. In
/// the child, [`Held::inherit`].
pub struct Held {
    mappings: &'static Mappings,
    member: Option<Member>,
    /// Private descriptors that the child needs.
    descriptors: Vec<i32>,
    /// What is paged, as offsets.
    parts: Vec<Range<usize>>,
    _gates: Vec<Resting<'static>>,
    _space: Guard<'static, AddressSpace>,
}

/// A copy that nobody has touched yet where it is out.
pub struct Heritage {
    parent: &'static Mappings,
    prepared: Prepared,
    member: Member,
}

impl Mappings {
    /// Brings all to rest. The caller touches nothing of the memory, runs no handler that
    /// might, and forks once.
    ///
    /// Errors: `EOPNOTSUPP` where a child cannot have a copy, by the mechanism or by the
    /// device; `EAGAIN` where as many processes have one as can; `ENOMEM`.
    pub fn hold(&'static self) -> Result<Held, Errno> {
        let pager = &*self.region.pager;
        let mut descriptors = Vec::new();
        if !pager.store.device().driver().hand_down(&mut |number| descriptors.push(number)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let member = pager.store.slots.admit()?;
        descriptors.push(member.descriptor());
        descriptors.extend(self.claim.as_ref().map(HeldDescriptor::number));
        let space = self.space.lock();
        let gates = pager.rest();
        let parts = self.parts(&space);
        pager.lend_to(&member);
        let held = Held { mappings: self, member: Some(member), descriptors, parts, _gates: gates, _space: space };
        pager.mechanism.hand_down(&held.parts, true)?;
        Ok(held)
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

    /// In the child, which has the descriptors and nothing else of usring's that its parent had. If this
    /// fails it has nothing at all where the memory was.
    pub fn inherit(mut self) -> Result<Heritage, Errno> {
        let prepared = self.mappings.region.pager.mechanism.inherit(&self.parts)?;
        // What the parent undoes has been done here.
        self.parts.clear();
        let member = self.member.take().ok_or(Errno::EINVAL)?;
        Ok(Heritage { parent: self.mappings, prepared, member })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A child that knows nothing of us is to find nothing there.
        let _ = self.mappings.region.pager.mechanism.hand_down(&self.parts, false);
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
        let mappings = Mappings { region, space: Mutex::new(space), claim };
        Ok(mappings)
    }
}

impl Pager {
    /// Claims all clusters, then shuts all gates.
    fn rest(&self) -> Vec<Resting<'_>> {
        let claim = |cluster: usize| -> Claim<'_> {
            loop {
                match self.gate(cluster).claim() {
                    Some(claim) => return claim,
                    None => processor::give_way(),
                }
            }
        };
        let claims: Vec<Claim> = (0..self.clusters()).map(claim).collect();
        claims.into_iter().map(Claim::rest).collect()
    }

    fn pages_in_use(&self) -> Range<usize> {
        0..self.cluster(self.clusters() - 1).end
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
