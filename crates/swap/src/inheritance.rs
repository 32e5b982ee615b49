//! Fork of a process with swapped memory: the child gets a copy of this memory, as of all other
//! memory.
//!
//! 1. Before the fork, [`Mappings::freeze`] claims all clusters and then shuts all gates. So no
//!    thread evicts or maps a page. The child becomes a user of the slots of evicted pages
//!    (`slot_users`).
//! 2. At the fork, the kernel copies the pager's tables. How the child gets the resident pages
//!    depends on the memory:
//!    - Anonymous memory: the kernel copies the pages by copy-on-write.
//!    - Memory file: the kernel copies nothing, so the parent copies the pages to a second file
//!      before the fork. Until the fork is done, the forking thread owns the copied pages, so that
//!      no other thread changes them. The forking thread cannot own pinned pages. It copies them,
//!      too, but a system call may be writing to them meanwhile.
//! 3. In the child, [`FrozenMemory::inherit`] registers the memory for faults before the program
//!    continues. A child that only calls execve or exit needs nothing else.
//! 4. At its first touch of an evicted page, or its first system call on swapped memory, the child
//!    makes a pager with queues and threads of its own ([`Inheritance::adopt`]).
//!
//! Lock order: claim → page → store queue → gate. So all clusters are claimed before any gate is
//! shut. The wait for a claim has a time limit, because the thread that holds the claim may be
//! waiting for a device that does not answer. After the time limit the fork fails.
//!
//! Some children get no copy ([`Mappings::without_pager`]), such as those that have a stack of
//! their own. In such a child, evicted pages would read as zeroes, so it must not have the memory.
//! Normally MADV_DONTFORK keeps anonymous memory out of all children. `freeze` switches this off,
//! and the parent switches it on again after the fork. If the parent cannot do so, each later child
//! without a copy unmaps the memory itself ([`UnpagedMemory`]).

use crate::address_space::{AddressSpace, ExtentKind};
use crate::gate::{Claim, ShutGate};
use crate::mappings::Mappings;
use crate::mechanism::{Copied, Prepared, Resident};
use crate::page::{IfPinned, State, TakenPage};
use crate::pager::{Pager, Parts};
use crate::region::{self, SwapRegion};
use crate::run;
use crate::slot_users::SlotUser;
use crate::store_queue::StoreQueue;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::{HeldDescriptor, OwnedDescriptor};
use usring_sys::mutex::{Guard, Mutex};
use usring_sys::ticks::Ticks;

/// Swapped memory that is frozen while its process forks. Until this value is dropped, no mapping
/// changes, and a forked child gets a copy of the memory. The child calls
/// [`FrozenMemory::inherit`].
pub struct FrozenMemory {
    mappings: &'static Mappings,
    user: Option<SlotUser>,
    /// usring's own descriptors that must stay open in the child.
    descriptors: Vec<i32>,
    /// The parts of the region that the pager manages, as ranges of offsets. They are all its
    /// memory except the memory that was released to the kernel.
    parts: Vec<Range<usize>>,
    /// The resident pages that this thread owns during the fork, because it has copied them. `None`
    /// if the kernel copies the resident pages.
    taken: Option<(Vec<TakenPage<'static>>, Resident)>,
    /// The memory file with the parent's copy of the resident pages.
    copy: Option<OwnedDescriptor>,
    _gates: Vec<ShutGate<'static>>,
    _pause: EvictionPause<'static>,
    _space: Guard<'static, AddressSpace>,
}

/// The swapped memory in a forked child, before the child has made a pager.
pub struct Inheritance {
    parent: &'static Mappings,
    prepared: Prepared,
    user: SlotUser,
}

impl Mappings {
    /// Stops evictions and faults before a fork that gives the child a copy of the memory. Waits at
    /// most `timeout` nanoseconds for running evictions. Until the result is dropped, the caller
    /// may fork once. Until then the caller must not touch the memory, nor run a signal handler
    /// that can touch it.
    ///
    /// Errors:
    ///
    /// - `EOPNOTSUPP`: the mechanism or the device allows no copy, the slots cannot be shared, or
    ///   the parent has to copy the memory in which the caller's stack lies.
    /// - `EBUSY`: another thread keeps the claim of a cluster for longer than `timeout`, because
    ///   its device does not answer.
    /// - `ENOMEM`.
    pub fn freeze(&'static self, timeout: Nanoseconds) -> Result<FrozenMemory, Errno> {
        let pager = &*self.region.pager;
        let mut descriptors = Vec::new();
        if !pager.store.device().driver().keep_after_fork(&mut |number| descriptors.push(number)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let user = pager.store.slots.admit()?;
        descriptors.push(user.descriptor());
        descriptors.extend(self.claim.as_ref().map(HeldDescriptor::number));
        let space = self.space.lock();
        let we_copy = pager.mechanism.copies_resident();
        if we_copy && space.mapped_extent_at((&raw const we_copy).addr()).is_some() {
            // This thread's stack lies in the swapped memory. To copy the memory, the parent makes
            // it inaccessible for a time. Without its stack, this thread could not run meanwhile.
            return Err(Errno::EOPNOTSUPP);
        }
        let pause = EvictionPause::begin(pager);
        let gates = pager.shut_all_gates(timeout)?;
        let parts = self.parts(&space);
        pager.lend_to(&user);
        let taken = we_copy.then(|| pager.take_resident());
        let (user, copy) = (Some(user), None);
        let mut frozen = FrozenMemory {
            mappings: self,
            user,
            descriptors,
            parts,
            taken,
            copy,
            _gates: gates,
            _pause: pause,
            _space: space,
        };
        pager.mechanism.set_inherited(&frozen.parts, true)?;
        if let Some((_, resident)) = &frozen.taken {
            let copy = pager.mechanism.copy(resident)?;
            frozen.descriptors.push(copy.number());
            frozen.copy = Some(copy);
        }
        Ok(frozen)
    }

    /// Prepares a fork whose child gets no pager. Evicted pages would read as zeroes in the child,
    /// so the child must not keep the memory. If the kernel copies memory to the child
    /// nevertheless, returns this memory, which the child then unmaps. `None`: the kernel copies
    /// none.
    ///
    /// `is_ours`: whether the forking process owns this memory. If so, the mappings stay locked
    /// until the result is dropped. Otherwise the forking process is a vfork child, which borrows
    /// its parent's memory. A vfork child releases the lock at once, because it could be killed
    /// while it holds the lock.
    pub fn without_pager(&'static self, is_ours: bool) -> Option<UnpagedMemory> {
        if !self.exposed.load(Ordering::Relaxed) {
            return None;
        }
        let space = self.space.lock();
        let parts = self.parts(&space);
        if !is_ours {
            return Some(UnpagedMemory { mappings: self, parts, _space: None });
        }
        self.take_back(&parts);
        let unpaged = UnpagedMemory { mappings: self, parts, _space: Some(space) };
        self.exposed.load(Ordering::Relaxed).then_some(unpaged)
    }

    /// Asks the kernel not to copy the memory to later forked children (MADV_DONTFORK). Stores in
    /// `exposed` whether the kernel has refused.
    fn take_back(&self, parts: &[Range<usize>]) {
        let taken_back = self.region.pager.mechanism.set_inherited(parts, false);
        self.exposed.store(taken_back.is_err(), Ordering::Relaxed);
    }

    /// Returns the offsets of all memory of the region, without the memory that was released to the
    /// kernel.
    fn parts(&self, space: &AddressSpace) -> Vec<Range<usize>> {
        let range = self.range();
        let mut parts = Vec::new();
        let mut start = range.start;
        for unmanaged in space.extents_of(ExtentKind::Unmanaged) {
            parts.push(start - range.start..unmanaged.start - range.start);
            start = unmanaged.end;
        }
        parts.push(start - range.start..range.len());
        parts.retain(|part| !part.is_empty());
        parts
    }
}

impl FrozenMemory {
    /// Returns usring's own descriptors that must stay open in the child.
    pub fn descriptors(&self) -> &[i32] {
        &self.descriptors
    }

    /// Registers the memory for faults in the forked child. The child has the descriptors of
    /// [`FrozenMemory::descriptors`] and none of the parent's threads.
    ///
    /// Errors: the kernel's. After an error this function unmaps the memory
    /// ([`UnpagedMemory::unmap_in_child`]), and also returns the result of that.
    pub fn inherit(mut self) -> Result<Inheritance, (Errno, Result<(), Errno>)> {
        // The drop of this value undoes the work of [`Mappings::freeze`], which only the parent may
        // do. With `parts` empty and `taken` removed, the drop in the child does nothing.
        let parts = core::mem::take(&mut self.parts);
        let mechanism = &self.mappings.region.pager.mechanism;
        // The pages in `taken` belong to the parent's thread. So the drop of this value in the
        // child must not release them.
        let taken = self.taken.take();
        let copy = self.copy.take().zip(taken).map(|(file, (_, resident))| Copied { file, resident });
        let inherited = mechanism.inherit(&parts, copy).and_then(|prepared| {
            let user = self.user.take().ok_or(Errno::EINVAL)?;
            Ok(Inheritance { parent: self.mappings, prepared, user })
        });
        inherited.map_err(|error| (error, mechanism.unmap_in_child(&parts)))
    }
}

impl Drop for FrozenMemory {
    fn drop(&mut self) {
        if !self.parts.is_empty() {
            self.mappings.take_back(&self.parts);
        }
        if let Some((taken, resident)) = self.taken.take() {
            self.mappings.region.pager.give_back_resident(taken, &resident);
        }
    }
}

/// Keeps threads from beginning an eviction while a fork claims all clusters: each eviction claims
/// a cluster that the fork still needs. A thread that has no room for its page waits until this
/// value is dropped, as it would wait for another thread's eviction.
struct EvictionPause<'a>(&'a Pager);

impl<'a> EvictionPause<'a> {
    fn begin(pager: &'a Pager) -> Self {
        pager.evictions.begin();
        pager.waiting_forks.fetch_add(1, Ordering::Relaxed);
        EvictionPause(pager)
    }
}

impl Drop for EvictionPause<'_> {
    fn drop(&mut self) {
        self.0.waiting_forks.fetch_sub(1, Ordering::Relaxed);
        self.0.evictions.end(true);
    }
}

/// Swapped memory that a child without a pager would inherit. In the child, evicted pages would
/// read as zeroes, so the child unmaps the memory.
pub struct UnpagedMemory {
    mappings: &'static Mappings,
    parts: Vec<Range<usize>>,
    _space: Option<Guard<'static, AddressSpace>>,
}

impl UnpagedMemory {
    /// Unmaps the memory in the child.
    ///
    /// Errors: the kernel's. After an error, the child reads zeroes in place of the evicted pages.
    pub fn unmap_in_child(self) -> Result<(), Errno> {
        self.mappings.region.pager.mechanism.unmap_in_child(&self.parts)
    }
}

impl Inheritance {
    /// Makes the child's pager, with threads and queues of its own. `statistics`: the file for the
    /// pager's counters.
    ///
    /// Errors: those of opening queue pairs of the device; `ENOMEM`.
    pub fn adopt(self, statistics: Option<&CStr>) -> Result<Mappings, Errno> {
        let Inheritance { parent, prepared: Prepared { window, mechanism, .. }, user } = self;
        let old = &*parent.region.pager;
        let unit = old.unit();
        let device = old.store.device();
        let queues = [StoreQueue::new(device, unit)?, StoreQueue::new(device, run::MOST * unit)?];
        let pager = Pager::new(Parts {
            kind: old.kind,
            memory: window.memory().clone(),
            mechanism,
            store: old.store.inherit(old.store.slots.inherit(user))?,
            limit: old.limit.get(),
            readahead: old.streams.most(),
            counters: region::counters_in(statistics)?,
            unused: true,
        })?;
        pager.copy_pages(old);
        let space = parent.space.lock().clone();
        for part in space.extents_of(ExtentKind::Mapped) {
            let offset = |address: usize| address - pager.memory.address();
            pager.set_in_use(offset(part.start) / unit..offset(part.end).div_ceil(unit), true);
        }
        let region = SwapRegion::start(window, pager, queues, true)?;
        let claim = parent.claim.as_ref().map(|claim| {
            // The backing store's file is locked by an open file description, which the child has
            // inherited. The child has it under the parent's descriptor number. From now on, this
            // number belongs to the child's `Mappings`.
            HeldDescriptor::new(OwnedDescriptor::from_raw(claim.number()))
        });
        let mappings = Mappings { region, space: Mutex::new(space), claim, exposed: AtomicBool::new(false) };
        Ok(mappings)
    }
}

impl Pager {
    /// Claims all clusters, and then shuts all gates. Errors: `EBUSY` if another thread keeps the
    /// claim of a cluster for longer than `timeout`.
    fn shut_all_gates(&self, timeout: Nanoseconds) -> Result<Vec<ShutGate<'_>>, Errno> {
        let start = Ticks::now();
        let left = || timeout.saturating_sub(Ticks::now().since(start));
        let claim = |cluster| self.claim_within(cluster, left()).ok_or(Errno::EBUSY);
        let claims = (0..self.clusters()).map(claim).collect::<Result<Vec<_>, _>>()?;
        Ok(claims.into_iter().map(Claim::into_shut).collect())
    }

    fn pages_in_use(&self) -> Range<usize> {
        0..self.cluster(self.clusters() - 1).end
    }

    /// Becomes the owner of all resident pages that are not pinned. The caller has shut all gates.
    fn take_resident(&self) -> (Vec<TakenPage<'_>>, Resident) {
        let (mut all, mut resident) = (Vec::new(), Resident::default());
        let extend = |runs: &mut Vec<Range<usize>>, start: usize, end: usize| match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        };
        // End of the last element of `resident.spans`. The next page that this thread takes extends
        // this element. `None` if a page in between has memory and was not taken.
        let mut span_end = None;
        for index in self.pages_in_use() {
            let (page, offset) = (self.page(index), self.offset(index));
            let end = offset + self.unit();
            let state = page.at_rest();
            if !state.has_memory() {
                continue;
            }
            let taken = if state.is_resident() { page.take(state, IfPinned::Refuse) } else { None };
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

    /// Makes the pages that were copied writable again, and ends this thread's ownership of them.
    /// If a page cannot be made writable now, the next write to it faults, and that fault makes it
    /// writable.
    fn give_back_resident(&self, all: Vec<TakenPage>, resident: &Resident) {
        for run in &resident.taken {
            let _ = self.mechanism.open(run.start, run.len());
        }
        for taken in all {
            let before = taken.before();
            taken.release(before);
        }
    }

    /// Makes the child a user of the slots of evicted pages. The child does not need the slots of
    /// clean pages, because it gets these pages in memory.
    fn lend_to(&self, user: &SlotUser) {
        let is_out = |page: &usize| self.page(*page).at_rest() == State::Out;
        self.store.slots.lend(user, self.pages_in_use().filter(is_out).map(|page| self.slot_at_rest(page)));
    }

    /// Copies the states and slot numbers of all pages from `other`, the pager of the parent. The
    /// parent had shut all gates before it forked.
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
