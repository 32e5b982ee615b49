//! Eviction: selects a cluster and moves its pages to the backing store.
//!
//! A clock with a second chance runs over aligned clusters. The clock's hand skips a cluster that
//! was used since the hand's last visit. A cluster counts as used if one of its pages was paged in,
//! or was written to for the first time. (A process cannot read the accessed bits of page-table
//! entries.) All resident and unpinned pages of the selected cluster are evicted together:
//!
//! 1. The evictor shuts the cluster's gate ([`crate::gate`]), takes the pages, and write-protects
//!    them, by one system call for each run of pages.
//! 2. With the gate open, it writes the dirty pages to slots of the store: by one request if enough
//!    consecutive slots are free. Clean pages already have a slot with their content. A page of
//!    zeroes is not written and becomes `Untouched`.
//! 3. It shuts the gate again, and frees the pages' memory, by one system call for each run.
//!
//! A *run* is a series of pages for one system call. It ends before a resident page that is not
//! evicted, and before a page that was released to the kernel. A run may include pages that have no
//! memory: evicted pages, and pages that a thread is reading outside the gate. The system calls
//! have no effect on these pages.
//!
//! If the pages cannot be written, they stay in memory and become writable again. A faulting thread
//! then stops evicting, and raises the limit by many pages
//! ([`Limit::raise`](crate::watermarks::Limit::raise)). Only the background evictor tests whether
//! the store works again.

use crate::counters::Counter;
use crate::gate::Shut;
use crate::message::say;
use crate::page::{IfPinned, State, TakenPage};
use crate::pager::Pager;
use crate::slots::SlotRun;
use crate::store_queue::StoreQueue;
use crate::watermarks::LEAST_CHUNK;
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use usring_sys::Errno;
use usring_sys::plain::IoVector;
use usring_sys::sync::Ordering;

/// Maximum number of pages in a cluster.
pub const MOST: usize = 64;

/// After this number of failed writes, an eviction ends without success. If this number of writes
/// in a row has failed, the store counts as failing.
pub const MOST_FAILURES: u32 = 8;

/// Longest sleep, in nanoseconds, of a thread that has found no page to evict. It sleeps because
/// other threads evict pages meanwhile.
pub const LONGEST_SLEEP_NS: u64 = 1_000_000;

/// How often this process has reported that it cannot keep its limit. One count for each reason:
/// the store is full, writes fail, all pages are in use.
static REPORTS_MADE: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];
const MOST_REPORTS: [u32; 3] = [1, 8, 1];

/// Why pages could not be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionFailure {
    /// No slot is free.
    Full,
    /// The device or the kernel returned this error.
    Failed(Errno),
}

/// Result of making room for one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomOutcome {
    /// The caller has room for its page, because it has evicted another page. It has not lowered
    /// the count of resident pages: instead of the old page, the new page is counted. If the count
    /// were lowered while the limit is exceeded, two threads could evict each other's pages for
    /// ever.
    Made,
    /// The caller has no room yet, and should try again.
    TryAgain,
}

/// The number of pages that an eviction has to free, and how many failed writes end it earlier.
#[derive(Clone, Copy, Debug)]
pub struct EvictionGoal {
    /// The eviction ends when it has freed this number of pages.
    pub pages: usize,
    /// Up to this number of the freed pages still count as resident after the eviction. They stand
    /// for pages that the caller will page in.
    pub kept: usize,
    /// After this number of clusters whose pages could not be written, the eviction ends, even if
    /// it has freed fewer than `pages` pages. With 0, only clean pages are evicted, which need no
    /// write.
    pub failures: u32,
}

/// Result of an eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub freed: usize,
    pub failure: Option<EvictionFailure>,
    /// Whether this thread skipped a cluster, because another thread had claimed the cluster, or
    /// because a fork was waiting to claim all clusters.
    pub found_claimed: bool,
}

/// The pages that the evictor has taken in one cluster.
struct Batch<'a> {
    cluster: Range<usize>,
    /// For each position in the cluster, the page there if the evictor has taken it. `None` for any
    /// other page.
    taken: [Option<TakenPage<'a>>; MOST],
    /// The state that each page gets at the end of the eviction, indexed by position in the
    /// cluster.
    next: [State; MOST],
}

impl Batch<'_> {
    fn leaves_memory(&self, position: usize) -> bool {
        self.taken[position].is_some() && !self.next[position].is_resident()
    }

    fn is_dirty(&self, position: usize) -> bool {
        self.taken[position].as_ref().is_some_and(|taken| taken.before() == State::Dirty)
    }
}

impl Pager {
    /// Makes room for the page of a faulting thread: evicts pages, or waits for other threads'
    /// evictions. Raises the limit by many pages in three cases:
    /// - Nothing can be evicted.
    /// - The store became full during the eviction.
    /// - Before the eviction, the store was full or failing, and now fewer than [`LEAST_CHUNK`]
    ///   clean pages were evicted. These may be too few: one instruction can touch more pages.
    pub fn evict_directly(&self, fault_slot: usize) -> RoomOutcome {
        let ended = self.evictions.ended();
        let pages = if self.takes_no_dirty_pages() { LEAST_CHUNK } else { 1 };
        let outcome = {
            let mut queue = self.store.queue(fault_slot);
            self.evict(&mut queue, EvictionGoal { pages, kept: 1, failures: self.failures_allowed() }, fault_slot)
        };
        if outcome.freed > 0 {
            self.counters.add(fault_slot, Counter::DirectEvictions, 1);
            let is_too_little = outcome.freed < pages && !outcome.found_claimed;
            if is_too_little || outcome.failure == Some(EvictionFailure::Full) {
                self.exceed_limit(outcome.failure);
            }
            return RoomOutcome::Made;
        }
        if outcome.failure.is_none() && (outcome.found_claimed || self.evictions.any_since(ended)) {
            self.evictions.wait(ended, LONGEST_SLEEP_NS);
            return RoomOutcome::TryAgain;
        }
        // Another thread may have released room meanwhile.
        if !self.limit.has_room() {
            self.exceed_limit(outcome.failure);
        }
        RoomOutcome::TryAgain
    }

    fn exceed_limit(&self, failure: Option<EvictionFailure>) {
        let full = self.store.slots.are_all_taken().then_some(EvictionFailure::Full);
        let failed = || EvictionFailure::Failed(Errno::new(self.last_failure.load(Ordering::Relaxed)));
        self.report(failure.or(full).or_else(|| self.store_fails().then(failed)));
        self.limit.raise();
    }

    /// Returns whether the last [`MOST_FAILURES`] writes have all failed.
    pub fn store_fails(&self) -> bool {
        self.failed_writes.load(Ordering::Relaxed) >= MOST_FAILURES
    }

    /// Returns whether the store fails or is full, so that only clean pages can be evicted.
    pub fn takes_no_dirty_pages(&self) -> bool {
        self.store_fails() || self.store.slots.are_all_taken()
    }

    /// Returns the number of failed writes after which a faulting thread's eviction ends. 0 (write
    /// nothing) while the store fails: only the evictor tests whether the store works again.
    pub fn failures_allowed(&self) -> u32 {
        if self.store_fails() { 0 } else { MOST_FAILURES }
    }

    fn note_failure(&self, error: Errno) {
        self.last_failure.store(error.negative().unsigned_abs(), Ordering::Relaxed);
        self.failed_writes.fetch_add(1, Ordering::Relaxed);
    }

    fn note_success(&self) {
        if self.failed_writes.load(Ordering::Relaxed) != 0 {
            self.failed_writes.store(0, Ordering::Relaxed);
        }
    }

    fn report(&self, failure: Option<EvictionFailure>) {
        let reason = match failure {
            Some(EvictionFailure::Full) => 0,
            Some(EvictionFailure::Failed(_)) => 1,
            None => 2,
        };
        if REPORTS_MADE[reason].fetch_add(1, Ordering::Relaxed) >= MOST_REPORTS[reason] {
            return;
        }
        let limit = (self.limit.get() * self.unit()) >> 10;
        match failure {
            Some(EvictionFailure::Full) => say(format_args!(
                "swap: the backing store is full ({} KiB): pages without room in it stay in memory, above the limit of \
                 {limit} KiB; give a larger store",
                (self.store.slots.count() as usize * self.unit()) >> 10
            )),
            Some(EvictionFailure::Failed(error)) => say(format_args!(
                "swap: pages cannot be written ({error}) and stay in memory, above the limit of {limit} KiB"
            )),
            None => say(format_args!("swap: all pages are in use, so the limit of {limit} KiB cannot be kept")),
        }
    }

    /// Evicts pages. Moves the hand of the eviction clock from cluster to cluster, until `goal` is
    /// reached, or three times around all clusters. In the first two rounds, the hand spares
    /// clusters that were used since its last visit. Other threads may use every cluster between
    /// two visits, so the third round spares none.
    pub fn evict(&self, queue: &mut StoreQueue, goal: EvictionGoal, fault_slot: usize) -> Outcome {
        let mut outcome = Outcome::default();
        let mut failures = 0;
        if self.store.slots.are_all_taken() {
            self.store.slots.reap();
        }
        for step in 0..3 * self.clusters() + 1 {
            let cluster = self.hand.fetch_add(1, Ordering::Relaxed) % self.clusters();
            let is_spared = || self.gate(cluster).second_chance() && step <= 2 * self.clusters();
            if !self.has_victim(cluster, goal) || is_spared() {
                continue;
            }
            let kept = goal.kept.saturating_sub(outcome.freed);
            let Some(eviction) = self.evict_cluster(cluster, queue, EvictionGoal { kept, ..goal }, fault_slot) else {
                outcome.found_claimed = true;
                continue;
            };
            outcome.freed += eviction.freed;
            outcome.failure = eviction.failure.or(outcome.failure);
            failures += u32::from(eviction.failure.is_some());
            if outcome.freed >= goal.pages || (failures > 0 && failures >= goal.failures) {
                break;
            }
        }
        outcome
    }

    /// Returns whether a page of the cluster can be evicted. If not, the evictor does not shut the
    /// cluster's gate, because faulting threads would wait at the gate for nothing.
    fn has_victim(&self, cluster: usize, goal: EvictionGoal) -> bool {
        let victims = self.victim_states(goal);
        self.cluster(cluster)
            .map(|page| self.page(page))
            .any(|page| victims.contains(&page.state()) && !page.is_pinned())
    }

    fn victim_states(&self, goal: EvictionGoal) -> &'static [State] {
        if goal.failures == 0 || self.store.slots.are_all_taken() {
            &[State::Clean]
        } else {
            &[State::Clean, State::Dirty]
        }
    }

    /// Evicts the clean and dirty pages of a cluster that are not pinned. `None` if another thread
    /// has claimed the cluster, or if a fork waits to claim all clusters.
    fn evict_cluster(
        &self,
        cluster: usize,
        queue: &mut StoreQueue,
        goal: EvictionGoal,
        fault_slot: usize,
    ) -> Option<Outcome> {
        if self.waiting_forks.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let mut claim = self.gate(cluster).claim()?;
        self.evictions.begin();
        let cluster = self.cluster(cluster);
        let mut batch = Batch { cluster, taken: [const { None }; MOST], next: [State::Dirty; MOST] };
        let closed = self.protect_victims(&mut batch, goal, &claim.shut());
        let written = closed.and_then(|()| self.write_out(&mut batch, queue, fault_slot));
        let dropped = self.drop_pages(&mut batch, &claim.shut());
        let freed = self.release(batch);
        drop(claim);
        self.limit.give_back(freed.saturating_sub(goal.kept));
        self.counters.add(fault_slot, Counter::Evicted, freed as u64);
        self.evictions.end(freed > 0);
        Some(Outcome { freed, failure: written.and(dropped).err(), found_claimed: false })
    }

    /// Takes the pages to evict, and write-protects them.
    fn protect_victims<'a>(
        &'a self,
        batch: &mut Batch<'a>,
        goal: EvictionGoal,
        _: &Shut,
    ) -> Result<(), EvictionFailure> {
        let mut any_dirty = false;
        let victims = self.victim_states(goal);
        for (position, page) in batch.cluster.clone().enumerate() {
            let page = self.page(page);
            let state = page.state();
            if victims.contains(&state)
                && let Some(taken) = page.take(state, IfPinned::Refuse)
            {
                batch.taken[position] = Some(taken);
                batch.next[position] = state;
                any_dirty |= state == State::Dirty;
            }
        }
        // Clean pages are write-protected already.
        if !any_dirty {
            return Ok(());
        }
        let is_taken = |position: usize| batch.taken[position].is_some();
        self.for_runs(batch, is_taken, |offset, length| self.mechanism.close(offset, length))
    }

    /// Calls `act` with the offset and length of each run of pages for which `in_run` returns
    /// `true`. `in_run` gets a page's position in the cluster. A run may also include pages without
    /// memory.
    fn for_runs(
        &self,
        batch: &Batch,
        in_run: impl Fn(usize) -> bool,
        mut act: impl FnMut(usize, usize) -> Result<(), Errno>,
    ) -> Result<(), EvictionFailure> {
        let mut run: Option<Range<usize>> = None;
        let mut act =
            |run: Range<usize>| act(self.offset(run.start), run.len() * self.unit()).map_err(EvictionFailure::Failed);
        for (position, page) in batch.cluster.clone().enumerate() {
            if in_run(position) {
                run = Some(run.map_or(page, |run| run.start)..page + 1);
            } else if (batch.taken[position].is_some() || self.page(page).state().has_memory())
                && let Some(run) = run.take()
            {
                act(run)?;
            }
        }
        run.map_or(Ok(()), act)
    }

    /// Makes the dirty pages of the batch readable through the pager's own mapping. Leaves out the
    /// pages between the dirty pages: a page without memory would get memory as soon as it is read.
    fn prepare_reading(&self, batch: &Batch) -> Result<(), EvictionFailure> {
        let is_dirty = |position: usize| batch.is_dirty(position);
        self.for_adjacent_runs(batch, is_dirty, |offset, length| self.mechanism.prepare_reading(offset, length))
    }

    /// Calls `act` with the offset and length of each run of adjacent pages for which `in_run`
    /// returns `true`.
    fn for_adjacent_runs(
        &self,
        batch: &Batch,
        in_run: impl Fn(usize) -> bool,
        act: impl Fn(usize, usize) -> Result<(), Errno>,
    ) -> Result<(), EvictionFailure> {
        let mut position = 0;
        while position < batch.cluster.len() {
            let count = (position..batch.cluster.len()).take_while(|position| in_run(*position)).count();
            if count > 0 {
                let offset = self.offset(batch.cluster.start + position);
                act(offset, count * self.unit()).map_err(EvictionFailure::Failed)?;
            }
            position += count + 1;
        }
        Ok(())
    }

    /// Allocates slots for the dirty pages of the batch, and writes each page to its slot. A page
    /// of zeroes needs no slot.
    fn write_out(&self, batch: &mut Batch, queue: &mut StoreQueue, fault_slot: usize) -> Result<(), EvictionFailure> {
        self.prepare_reading(batch)?;
        let mut wanted = 0;
        for position in 0..batch.cluster.len() {
            if batch.taken[position].is_none() {
                continue;
            }
            if !batch.is_dirty(position) {
                batch.next[position] = State::Out;
            } else if self.memory.is_zero(self.offset(batch.cluster.start + position), self.unit()) {
                batch.next[position] = State::Untouched;
            } else {
                wanted += 1;
            }
        }
        let mut position = 0;
        while wanted > 0 {
            let run = self.store.slots.take(wanted).ok_or_else(|| {
                self.note_failure(Errno::ENOSPC);
                EvictionFailure::Full
            })?;
            let end = self.write_run(batch, position, run, queue);
            position = end.map_err(|error| {
                self.note_failure(error);
                self.counters.add(fault_slot, Counter::WriteErrors, 1);
                EvictionFailure::Failed(error)
            })?;
            self.note_success();
            wanted -= run.length;
            self.counters.add(fault_slot, Counter::Written, u64::from(run.length));
            self.counters.add(fault_slot, Counter::WriteRequests, 1);
        }
        Ok(())
    }

    /// Writes the next dirty pages of the batch, from position `start` on, to the consecutive slots
    /// of `run`. Returns the position after the last of these pages.
    fn write_run(&self, batch: &mut Batch, start: usize, run: SlotRun, queue: &mut StoreQueue) -> Result<usize, Errno> {
        let mut segments = [IoVector { base: 0, length: 0 }; MOST];
        let (mut count, mut placed, mut position) = (0, 0, start);
        let mut written = 0u64;
        while placed < run.length {
            if batch.is_dirty(position) && batch.next[position] == State::Dirty {
                let page = batch.cluster.start + position;
                if let Some(taken) = &batch.taken[position] {
                    self.set_slot(taken, page, run.first + placed);
                }
                written |= 1 << position;
                placed += 1;
                let base = self.memory.readable_address(self.offset(page), self.unit()) as u64;
                let length = self.unit() as u64;
                match segments[..count].last_mut() {
                    Some(last) if last.base + last.length == base => last.length += length,
                    _ => {
                        segments[count] = IoVector { base, length };
                        count += 1;
                    }
                }
            }
            position += 1;
        }
        let answer = queue.write(self.store.device(), self.store.offset(run.first), &mut segments[..count]);
        if let Err(error) = answer {
            (run.first..run.first + run.length).for_each(|slot| self.store.slots.free(slot));
            return Err(error);
        }
        for position in bits(written) {
            batch.next[position] = State::Out;
        }
        Ok(position)
    }

    /// Frees the memory of the evicted pages. Makes the dirty pages that stay in memory writable
    /// again.
    fn drop_pages(&self, batch: &mut Batch, _: &Shut) -> Result<(), EvictionFailure> {
        let goes = |position: usize| batch.leaves_memory(position);
        let dropped = self.for_runs(batch, goes, |offset, length| self.mechanism.discard(offset, length));
        if let Err(failure) = dropped {
            // No known kernel refuses to free the memory. If one does, it is unknown which pages
            // have lost their memory. No data is lost: the content of each page is in its slot, or
            // is zeroes.
            say(format_args!("swap: the memory of evicted pages cannot be freed ({failure:?})"));
        }
        let stays = |position: usize| batch.is_dirty(position) && !batch.leaves_memory(position);
        // A page that stays may still be write-protected if this call fails. Then the next write to
        // it faults, and that fault makes it writable.
        self.for_adjacent_runs(batch, stays, |offset, length| self.mechanism.open(offset, length))?;
        dropped
    }

    /// Ends this thread's ownership of all pages of the batch. Returns how many of them were
    /// evicted.
    fn release(&self, mut batch: Batch) -> usize {
        let mut freed = 0;
        for (taken, next) in batch.taken.iter_mut().zip(batch.next) {
            if let Some(taken) = taken.take() {
                freed += usize::from(!next.is_resident());
                taken.release(next);
            }
        }
        freed
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let next = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(next)
    })
}
