//! The registrations of a ring that several processes use: when a process publishes its own
//! registrations, and when it takes over those of other processes. The shared memory for them is in
//! `usring_ring::Registrations`.
//!
//! 1. While one process uses the ring, its registrations are in its own tables. They count as
//!    unpublished.
//! 2. That process publishes them when it notices that the ring is shared
//!    ([`LockedRing::take_part`]). A child that begins to use the ring waits for the publication
//!    ([`Ring::await_registrations`]).
//! 3. From then on each process publishes each change before it releases the ring's lock. A driver
//!    follows the changes of the other processes when it gets the lock from one of them.
//!
//! A process may register something while a child begins to use the ring: see `sys::sharing`.
//!
//! A process puts registered files and the registered eventfd into a deposit (`sys::deposit`). Each
//! other process takes duplicates of the files from the deposit. So a file that has left the table
//! stays open until every process has dropped its duplicate. A process that changes the table posts
//! a notice, so that the other processes soon exchange their duplicates.

use crate::completion::event_descriptor::EventDescriptor;
use crate::ring::{LockedRing, Ring, RingState};
use alloc::sync::Arc;
use usring_ring::{Deposit, Origin, Registrations};
use usring_sys::clock::{Clock, Nanoseconds};
use usring_sys::deposit::{self, Contents, DepositedFile, Key, TakenFile};
use usring_sys::process_number;

/// Longest time, in nanoseconds, that a child waits until the process that made the ring has
/// published its registrations. Without this limit, the child would hang while that process is
/// stopped.
const LONGEST_WAIT: Nanoseconds = 1_000_000_000;
/// Longest single sleep, in nanoseconds, of a child that waits until registrations are published.
/// After each sleep, the child checks whether the publishing process is alive.
const CHECK_INTERVAL_NS: Nanoseconds = 5_000_000;

impl Ring {
    /// Waits until the process that made the ring has published its registrations, or has ended.
    /// The caller is a child that has just marked the ring as shared.
    pub(crate) fn await_registrations(&self) {
        let Some(registrations) = self.registrations.as_ref().filter(|all| all.are_unpublished()) else { return };
        let end = Clock::Monotonic.now() + LONGEST_WAIT;
        while registrations.are_unpublished()
            && self.control.maker().is_some_and(process_number::is_alive)
            && Clock::Monotonic.now() < end
        {
            registrations.await_publication(CHECK_INTERVAL_NS);
        }
    }

    /// Publishes this process's registrations, unless this process has published them before. The
    /// caller holds the lock of a shared ring.
    pub(crate) fn publish_registrations(&self, state: &mut RingState) {
        let Some(registrations) = &self.registrations else { return };
        if core::mem::replace(&mut state.registered.sharing.is_published, true) {
            return;
        }
        let registered = &mut state.registered;
        registered.buffers.publish(registrations, true);
        registered.buffer_groups.publish(registrations);
        registered.restrictions.publish(registrations);
        registered.files.begin_publishing();
        registered.sharing.is_event_changed = state.notify.event_descriptor.is_some();
        self.deposit_files(registrations, state);
        self.deposit_event(registrations, state);
        if !self.is_adopted() {
            registrations.note_published();
        }
    }

    fn key(&self, kind: Deposit, number: u32) -> Key {
        let kind = match kind {
            Deposit::Files => 0,
            Deposit::Event => 1,
        };
        Key { object: [self.control.maker_number(), self.number], kind, number }
    }

    /// Puts files into a new deposit, from which other processes take duplicates, and removes the
    /// earlier deposit. Returns the new deposit's number. If the deposit fails, the other processes
    /// find no registered files. If `files` is `None`, only removes the earlier deposit, and
    /// returns 0.
    fn deposit(
        &self,
        registrations: &Registrations,
        kind: Deposit,
        files: Option<([u64; 2], &[DepositedFile])>,
    ) -> u32 {
        let number = files.map_or(0, |_| registrations.new_number());
        if let Some((words, items)) = files {
            let _ = deposit::put(self.key(kind, number), words, items);
        }
        registrations.set_deposit(kind, number);
        registrations.count_change();
        deposit::keep_only(self.key(kind, number));
        self.control.post_notice();
        process_number::wake_all();
        number
    }

    fn deposit_files(&self, registrations: &Registrations, state: &mut RingState) {
        if let Some(table) = state.registered.files.take_change() {
            let files = table.as_ref().map(|table| (table.words, &table.items[..]));
            state.registered.sharing.files = self.deposit(registrations, Deposit::Files, files);
        }
    }

    fn deposit_event(&self, registrations: &Registrations, state: &mut RingState) {
        if !core::mem::take(&mut state.registered.sharing.is_event_changed) {
            return;
        }
        let item = |event: &Arc<EventDescriptor>| {
            ([u64::from(event.only_async), 0], [DepositedFile { file: event.descriptor.number(), words: [0; 2] }])
        };
        let event = state.notify.event_descriptor.as_ref().map(item);
        let files = event.as_ref().map(|(words, items)| (*words, &items[..]));
        state.registered.sharing.event = self.deposit(registrations, Deposit::Event, files);
    }

    /// Takes duplicates of the files in the latest deposit, which another process has made. Returns
    /// `None` if this process has taken duplicates from this deposit before: the deposit's number
    /// is `known`. Returns `Some(None)` if nothing is registered.
    fn taken(&self, registrations: &Registrations, kind: Deposit, known: &mut u32) -> Option<Option<Contents>> {
        let number = registrations.deposit(kind);
        if core::mem::replace(known, number) == number {
            return None;
        }
        if number == 0 {
            return Some(None);
        }
        Some(Some(deposit::take(self.key(kind, number)).ok().flatten().unwrap_or_default()))
    }

    fn follow_deposits(&self, registrations: &Registrations, state: &mut RingState) {
        if let Some(table) = self.taken(registrations, Deposit::Files, &mut state.registered.sharing.files) {
            state.registered.files.follow(table);
        }
        if let Some(deposit) = self.taken(registrations, Deposit::Event, &mut state.registered.sharing.event) {
            let event = deposit.and_then(|Contents { words: [only_async, _], mut files }| {
                let TakenFile { file, .. } = files.pop()?;
                Some(Arc::new(EventDescriptor::of_other_process(file, only_async != 0)))
            });
            self.use_event(state, event);
        }
    }

    /// Makes `event` the registered eventfd. Returns the eventfd that was registered before.
    fn use_event(&self, state: &mut RingState, event: Option<Arc<EventDescriptor>>) -> Option<Arc<EventDescriptor>> {
        if self.defers_task_work() {
            *self.work_event.lock() = event.clone();
        }
        core::mem::replace(&mut state.notify.event_descriptor, event)
    }

    /// Removes the deposits of a ring that no other process uses any more. Otherwise a deposit
    /// would keep its files open.
    pub(crate) fn forget_deposits(&self) {
        let Some(registrations) = &self.registrations else { return };
        for kind in [Deposit::Files, Deposit::Event] {
            if registrations.deposit(kind) != 0 {
                deposit::keep_only(self.key(kind, 0));
            }
        }
    }

    /// Applies the changes that other processes have made to the registrations since this process
    /// last had the ring's lock. The caller holds the lock.
    pub(crate) fn follow_registrations(&self, state: &mut RingState) {
        self.publish_registrations(state);
        let Some(registrations) = &self.registrations else { return };
        let generation = registrations.generation();
        let registered = &mut state.registered;
        if generation == registered.sharing.generation {
            return;
        }
        registered.sharing.generation = generation;
        registered.buffers.follow(registrations, &self.own_registrations);
        registered.buffer_groups.follow(registrations, &self.own_registrations);
        registered.restrictions.follow(registrations);
        self.follow_deposits(registrations, state);
    }
}

impl LockedRing<'_> {
    /// Returns an origin for the registration that this process is about to make. The origin
    /// consists of this process's number, and of a number that no other registration of this
    /// process has. After the registration, the caller calls [`LockedRing::note_registration`].
    pub fn new_origin(&self) -> Origin {
        let number = self.ring.registrations.as_ref().map_or(0, |registrations| registrations.new_number());
        Origin { owner: self.ring.process_number(), number }
    }

    /// Publishes, for the other processes of the ring, what this process has just registered or
    /// removed. `origin`: the result of [`LockedRing::new_origin`], if memory was registered.
    pub fn note_registration(&mut self, origin: Option<Origin>) {
        let ring = self.ring;
        let Some(registrations) = &ring.registrations else { return };
        if let Some(origin) = origin {
            ring.own_registrations.note(origin.number);
        }
        if !self.registered.sharing.is_published {
            let is_noted = core::mem::replace(&mut self.registered.sharing.is_noted, true);
            if is_noted && !ring.is_shared() || ring.control.sharing().keep_private(registrations.unpublished()) {
                return;
            }
            return ring.publish_registrations(self);
        }
        self.registered.buffers.publish(registrations, false);
        self.registered.restrictions.publish(registrations);
        ring.deposit_event(registrations, self);
        self.registered.sharing.generation = registrations.generation();
    }

    /// If this process has changed the table of registered files, publishes the table for the other
    /// processes of the ring.
    #[cold]
    pub fn publish_files(&mut self) {
        if let Some(registrations) = &self.ring.registrations {
            self.ring.deposit_files(registrations, self);
            self.registered.sharing.generation = registrations.generation();
        }
    }

    /// Registers `event`. `None`: removes the registered eventfd. Returns the eventfd that was
    /// registered before.
    pub fn set_event(&mut self, event: Option<Arc<EventDescriptor>>) -> Option<Arc<EventDescriptor>> {
        self.registered.sharing.is_event_changed = true;
        self.ring.use_event(self, event)
    }
}
