//! The files that a ring's requests wait for. Each file is registered in the ring's epoll set, with
//! a list of the requests that wait for it (a slot, `poll_slot`). An event *wakes* these requests:
//! `fast_poll` says what that means.
//!
//! # What keeps a file open
//! A file stays open while a request waits for it. If the program closes the descriptor, the
//! request is not cancelled, and does not begin to wait for the next file with this number. So
//! usring needs a duplicate of the program's descriptor while a request waits. At other times
//! usring must have no duplicate, because a duplicate would keep the file open after the program's
//! close(2). usring does not see a close(2) of an ordinary descriptor:
//!
//! - libc closes some files internally.
//! - The trap filter survives execve(2), so it must let close(2) pass: the next program's loader
//!   closes files before usring has a handler there.
//!
//! Hence there is one duplicate per file. All requests that wait for the file share the duplicate,
//! and it is closed with the last of them. Registered files need no duplicate: the ring keeps them
//! open anyway.
//!
//! # Why a registration outlives its duplicate
//! An entry of an epoll set is named by an open file *and* the descriptor number under which the
//! file was registered. The entry does not keep the file open, and the kernel drops the entry when
//! the file is closed.
//!
//! Registering the program's own number would not be safe. The program may close and reuse the
//! number at any moment, also between usring's duplication and its epoll_ctl(2): the entry would
//! then stand for another file. And an entry whose number is closed can no longer be deleted.
//!
//! So the entry is registered under the number of the duplicate, which only usring closes. All
//! duplicates of a file get one number, at a fixed distance above the program's number
//! (`descriptor::duplicate_at_preferred`). So the next wait for the file finds the entry in place
//! and only switches it on again. EPOLL_CTL_MOD names the file and the number. If the program's
//! number means another file by now, MOD fails with ENOENT, and usring adds the new file. So usring
//! need not remember which file a number meant. It only remembers, per number, whether to try ADD
//! or MOD first.
//!
//! A wait for one event thus costs three system calls: the duplication, MOD and close(2). The entry
//! is one-shot (EPOLLONESHOT). After its event the entry stays in the set, but reports nothing
//! more, even if other processes have the file open. For multishots, and if requests still wait
//! after an event, the entry becomes edge-triggered. An edge-triggered entry needs no further
//! system call per event. usring deletes such an entry before it closes the entry's number.
//!
//! # Which requests share a registration
//! Requests share a registration if all of these hold:
//!
//! - They wait for one open file. Only the kernel knows this, so usring asks the kernel.
//! - They wait for equal sets of events.
//! - All of them are multishots, or none is.
//!
//! A request that differs in one of these has a registration of its own. epoll reports all
//! registered events that are present, not only the latest one. If a multishot for input shared a
//! registration with a request for output, the multishot would therefore get each output event,
//! too.

mod slices;

use super::expected::Expected;
pub(crate) use super::poll_slot::AssignedSlot;
use super::poll_slot::{NONE, Number, Slot, SlotFile, Switch, tag_of};
pub(crate) use super::waiters::Waiter;
use crate::registered::registered_files::RegisteredFile;
use crate::request::conditions::Purpose;
pub(crate) use crate::request::conditions::{Interest, Registration, SharedDuplicate, Tag, TimeSlice};
use crate::request::file::{FileReference, FileUse};
use crate::request::{Request, RequestEntry};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::{self, HeldDescriptor, OwnedDescriptor};
use usring_sys::epoll::{self, Epoll};
use usring_sys::processor;
use usring_sys::width;

/// Event data of the ring's wake eventfd. Its event only ends the sleep on the epoll set.
pub(crate) const WAKE_DATA: u64 = u64::MAX;
/// Event data of the devices' interrupts.
pub(crate) const DEVICE_DATA: u64 = u64::MAX - 1;
/// Event data of the ring's timer ([`PollTable::timer`]).
pub(crate) const TIMER_DATA: u64 = u64::MAX - 2;

/// The files that a ring's requests wait for: see the head of this file.
#[derive(Default)]
pub(crate) struct PollTable {
    set: Option<Arc<Epoll>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    numbers: Vec<Number>,
    waiting: u32,
    /// Slots with a runnable request, which is due for its next time slice. An entry may be stale:
    /// the request may have been removed since.
    runnable: VecDeque<Tag>,
    /// Number of slots taken from `runnable` so far.
    slices_begun: u32,
    /// Whether the epoll set may have an event that it has not reported yet. Set when a request
    /// begins to wait for a file that it has not tried (POLL_FIRST), and when a request may have
    /// made a file ready. Cleared when a driver asks the set.
    pub may_report: bool,
    /// The files that are expected to be ready, in the order in which they are tried.
    pub expected: Expected,
    /// All slots with a lower index have no waiters.
    low: usize,
    /// When the table has this many slots, `claim_slot` frees the slots of closed registered files.
    sweep_at: usize,
    /// Timer in the epoll set. It fires when the ring's next timeout is due, and so wakes the
    /// thread that sleeps on the set. That thread completes the timeout.
    pub timer: Option<OwnedDescriptor>,
    /// Time at which the timer fires, on the monotonic clock; 0 once its event has been handled.
    pub timer_fires: Nanoseconds,
}

impl PollTable {
    /// Returns the number of requests that wait for files.
    #[inline]
    pub fn armed(&self) -> u32 {
        self.waiting
    }

    /// Returns the ring's epoll set; `None`: it has not been made yet.
    pub fn set(&self) -> Option<&Epoll> {
        self.set.as_deref()
    }

    pub fn put_set(&mut self, set: Epoll) {
        self.set = Some(Arc::new(set));
    }

    /// Returns whether a request of this ring has waited for the file of this descriptor number. If
    /// so, the file can be polled, unless the number names another file by now.
    pub fn knows(&self, number: i32) -> bool {
        self.numbers.get(width::index(number)).is_some_and(|known| known.registered || known.first != NONE)
    }

    /// Records that this descriptor number now names a file for which no request has waited.
    #[inline]
    pub fn forget_registration(&mut self, number: i32) {
        if let Some(known) = self.numbers.get_mut(width::index(number)) {
            known.registered = false;
        }
    }

    /// Returns whether a request that has waited in a slot of this table can wait there again. A
    /// registered file or a shared duplicate must keep the request's file open, and the slot's
    /// registration must be on, for the events in `interest`.
    #[inline]
    pub fn can_go_back(&mut self, request: &Request, interest: Interest) -> bool {
        let shares = matches!(request.file.reference, FileReference::Registered(_) | FileReference::WaitDuplicate(_));
        (request.poll_slot != 0 && shares)
            && self.slot(request.poll_slot).is_some_and(|slot| slot.switch == Switch::On && slot.interest == interest)
    }

    /// Finds or makes the registration for a file. Stores in `file.reference` the reference that
    /// keeps the file open. `socket`: the caller knows that the file is a socket.
    ///
    /// Errors: those of fcntl(2) and epoll_ctl(2), such as `EPERM` if the file cannot be polled. If
    /// epoll_ctl(2) fails, a duplicate replaces the program's descriptor in `file`.
    pub fn attach(&mut self, file: &mut FileUse, interest: Interest, socket: bool) -> Result<AssignedSlot, Errno> {
        match &file.reference {
            FileReference::Registered(registered) => return self.attach_registered(&registered.clone(), interest),
            FileReference::WaitDuplicate(duplicate) => {
                let tag = duplicate.tag;
                if let Some(slot) = self.slot(tag).filter(|slot| slot.interest == interest) {
                    return Ok(AssignedSlot { tag, has_reported: slot.has_reported });
                }
            }
            FileReference::Submitter | FileReference::TransferDuplicate(_) | FileReference::PrivateDuplicate(_) => {}
        }
        match self.slot_of_number(file.number, interest) {
            Some(index) => Ok(self.share(index, file)),
            None => self.register(file, interest, socket),
        }
    }

    /// Returns the slot in which requests wait for these events of the file that `number` names.
    /// `None`: there is no such slot. Removes slots from the number's list if `number` no longer
    /// names their files.
    fn slot_of_number(&mut self, number: i32, interest: Interest) -> Option<u32> {
        let mut index = self.numbers.get(width::index(number))?.first;
        let mut before = NONE;
        while index != NONE {
            let slot = &self.slots[index as usize];
            let next = slot.next;
            if !descriptor::is_same_file(slot.number(), number) {
                self.unlink_between(number, before, next);
            } else if slot.interest == interest {
                return Some(index);
            } else {
                before = index;
            }
            index = next;
        }
        None
    }

    /// Unlinks the slot between `before` and `next` from its number's list.
    fn unlink_between(&mut self, number: i32, before: u32, next: u32) {
        if before == NONE {
            self.numbers[width::index(number)].first = next;
        } else {
            self.slots[before as usize].next = next;
        }
    }

    fn unlink(&mut self, number: i32, index: u32) {
        let Some(known) = self.numbers.get(width::index(number)) else { return };
        let (mut at, mut before) = (known.first, NONE);
        while at != NONE {
            let next = self.slots[at as usize].next;
            if at == index {
                return self.unlink_between(number, before, next);
            }
            before = at;
            at = next;
        }
    }

    fn share(&self, index: u32, file: &mut FileUse) -> AssignedSlot {
        let slot = &self.slots[index as usize];
        if let (FileReference::Submitter, SlotFile::Duplicate { duplicate, .. }) = (&file.reference, &slot.file) {
            file.number = duplicate.descriptor.number();
            file.reference = FileReference::WaitDuplicate(duplicate.clone());
        }
        AssignedSlot { tag: tag_of(index, slot), has_reported: slot.has_reported }
    }

    fn register(&mut self, file: &mut FileUse, interest: Interest, socket: bool) -> Result<AssignedSlot, Errno> {
        let of = file.number;
        let mut descriptor = descriptor::duplicate_at_preferred(of)?;
        let is_at_preferred = descriptor.has_preferred_number(of);
        let number = descriptor.number();
        let index = self.claim_slot();
        let tag = tag_of(index, &self.slots[index as usize]);
        let switch = if interest.multishot { Switch::On } else { Switch::Once };
        let known = is_at_preferred && self.number_mut(of).registered;
        match self.switch_to(number, interest, switch, tag, known) {
            Ok(true) => {}
            Ok(false) => {
                let lockable =
                    !socket && !descriptor::identity(number).is_ok_and(|identity| identity.is_never_locked());
                self.number_mut(of).lockable |= lockable;
            }
            Err(error) => {
                self.free.push(index);
                self.number_mut(of).registered = false;
                if error == Errno::EINVAL
                    && let Some(other) = self.slot_of_same_file(number, interest)
                {
                    return Ok(self.share(other, file));
                }
                if matches!(file.reference, FileReference::Submitter) {
                    file.number = number;
                    file.reference = FileReference::PrivateDuplicate(descriptor);
                }
                return Err(error);
            }
        }
        if !self.number_mut(of).lockable {
            descriptor.assume_never_locked();
        }
        self.fill_slot(index, of, SharedDuplicate { descriptor, tag }, interest, switch);
        Ok(self.share(index, file))
    }

    /// Initialises a claimed slot for a file. `of`: the program's descriptor number of the file.
    fn fill_slot(&mut self, index: u32, of: i32, duplicate: SharedDuplicate, interest: Interest, switch: Switch) {
        let first = core::mem::replace(&mut self.number_mut(of).first, index);
        let slot = &mut self.slots[index as usize];
        let duplicate = match slot.spare.take() {
            Some(mut spare) => match Arc::get_mut(&mut spare) {
                Some(place) => {
                    *place = duplicate;
                    spare
                }
                None => Arc::new(duplicate),
            },
            None => Arc::new(duplicate),
        };
        slot.file = SlotFile::Duplicate { duplicate, of };
        slot.interest = interest;
        slot.switch = switch;
        slot.has_reported = false;
        slot.next = first;
    }

    /// Returns a slot in which requests wait for this file under another descriptor number.
    /// Requests share such a slot because an epoll set takes one file under at most 500 numbers.
    #[cold]
    fn slot_of_same_file(&self, number: i32, interest: Interest) -> Option<u32> {
        let is_it = |slot: &Slot| {
            matches!(slot.file, SlotFile::Duplicate { .. })
                && slot.interest == interest
                && descriptor::is_same_file(slot.number(), number)
        };
        self.slots.iter().position(is_it).map(width::count)
    }

    fn attach_registered(&mut self, file: &Arc<RegisteredFile>, interest: Interest) -> Result<AssignedSlot, Errno> {
        let mut registrations = file.registrations.lock();
        if let Some(known) = registrations.iter().find(|known| known.interest == interest) {
            let (number, tag) = (known.number, known.tag);
            let Some(slot) = self.slot(tag) else { return Err(Errno::ENOENT) };
            let has_reported = slot.has_reported && slot.switch == Switch::On;
            if slot.switch != Switch::On {
                slot.switch = Switch::On;
                slot.has_reported = false;
                self.switch_to(number, interest, Switch::On, tag, true)?;
            }
            return Ok(AssignedSlot { tag, has_reported });
        }
        let own = if registrations.is_empty() { None } else { Some(descriptor::duplicate_private(file.number())?) };
        let number = own.as_ref().map_or(file.number(), OwnedDescriptor::number);
        let Some(set) = self.set.clone() else { return Err(Errno::ENOMEM) };
        let index = self.claim_slot();
        let tag = tag_of(index, &self.slots[index as usize]);
        if let Err(error) = self.switch_to(number, interest, Switch::On, tag, false) {
            self.free.push(index);
            return Err(error);
        }
        registrations.push(Registration { set, number, _own: own, interest, tag });
        let slot = &mut self.slots[index as usize];
        slot.file = SlotFile::Registered { file: Arc::downgrade(file), number };
        slot.interest = interest;
        slot.switch = Switch::On;
        slot.has_reported = false;
        Ok(AssignedSlot { tag, has_reported: false })
    }

    /// Changes a registration's state in the epoll set. `known`: the registration probably exists,
    /// so usring tries MOD before ADD. Returns whether the registration existed.
    fn switch_to(&self, number: i32, interest: Interest, to: Switch, tag: Tag, known: bool) -> Result<bool, Errno> {
        let Some(set) = &self.set else { return Err(Errno::ENOMEM) };
        let events = match to {
            Switch::Off => epoll::ONESHOT,
            Switch::Once => interest.events | epoll::ONESHOT,
            Switch::On => interest.events | epoll::EDGE,
        };
        if known {
            match set.modify(number, events, tag) {
                Err(Errno::ENOENT) => set.add(number, events, tag).map(|()| false),
                attached => attached.map(|()| true),
            }
        } else {
            match set.add(number, events, tag) {
                Err(Errno::EEXIST) => set.modify(number, events, tag).map(|()| true),
                attached => attached.map(|()| false),
            }
        }
    }

    fn number_mut(&mut self, number: i32) -> &mut Number {
        let index = width::index(number);
        if index >= self.numbers.len() {
            self.numbers.resize(index + 1, Number { first: NONE, registered: false, lockable: false });
        }
        &mut self.numbers[index]
    }

    /// Claims a free slot. Gives it a new generation, so that late events of its earlier file are
    /// ignored.
    fn claim_slot(&mut self) -> u32 {
        if self.free.is_empty() && self.slots.len() >= self.sweep_at {
            self.free_stale_slots();
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::new());
            width::count(self.slots.len() - 1)
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        index
    }

    /// Frees the slots of registered files that no longer exist.
    fn free_stale_slots(&mut self) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let gone = matches!(&slot.file, SlotFile::Registered { file, .. } if file.strong_count() == 0);
            if gone && slot.waiters.is_empty() && !slot.firing {
                slot.file = SlotFile::Free;
                self.free.push(width::count(index));
            }
        }
        self.sweep_at = 2 * (self.slots.len() - self.free.len()).max(32);
    }

    pub(super) fn slot(&mut self, tag: Tag) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(width::low(tag) as usize)?;
        (slot.generation == (tag >> 32) as u32 && !matches!(slot.file, SlotFile::Free)).then_some(slot)
    }

    /// Adds a request to the slot `tag`, which [`PollTable::attach`] has returned.
    pub fn push(&mut self, tag: Tag, mut request: RequestEntry, purpose: Purpose, slice: TimeSlice) {
        request.poll_slot = tag;
        let slot = &mut self.slots[width::low(tag) as usize];
        debug_assert!(tag == tag_of(width::low(tag), slot), "the caller has just attached the request to this slot");
        slot.waiters.push_back(Waiter { request, purpose, slice, round: slot.round });
        if slice == TimeSlice::Runnable {
            self.runnable.push_back(tag);
        }
        self.waiting += 1;
        self.low = self.low.min(width::low(tag) as usize);
    }

    /// Begins a round, the handling of one event of the slot. The event wakes the requests that
    /// wait in the slot now. Returns `false` if no request waits there.
    pub fn begin_round(&mut self, tag: Tag) -> bool {
        let Some(slot) = self.slot(tag) else { return false };
        if slot.waiters.is_empty() {
            self.switch_off_registration(tag);
            return false;
        }
        slot.round = slot.round.wrapping_add(1);
        slot.firing = true;
        slot.has_reported = true;
        if slot.switch == Switch::Once {
            slot.switch = Switch::Off;
        }
        true
    }

    /// Switches off the registration of a file whose event came while no request waited for the
    /// file. The epoll set reports an error or a hang-up once more, because these cannot be masked.
    #[cold]
    fn switch_off_registration(&mut self, tag: Tag) {
        let Some(slot) = self.slot(tag) else { return };
        let SlotFile::Registered { file, number } = &slot.file else { return };
        // If the file is closed, its number may name another file by now, whose registration must
        // not change.
        let (Some(_held), number) = (file.upgrade(), *number) else { return };
        if slot.switch != Switch::Off {
            slot.switch = Switch::Off;
            let interest = slot.interest;
            let _ = self.switch_to(number, interest, Switch::Off, tag, true);
        }
    }

    /// Removes and returns the next request that the slot's last event wakes. `None`: the event has
    /// woken all of them.
    pub fn next_of_round(&mut self, tag: Tag) -> Option<Waiter> {
        let slot = self.slot(tag)?;
        if slot.waiters.front()?.round == slot.round {
            return None;
        }
        let waiter = slot.waiters.pop_front();
        self.waiting -= u32::from(waiter.is_some());
        waiter
    }

    /// Appends a file to the queue of files that are expected to be ready, unless two tries in a
    /// row have found no data. The caller has just tried a multishot on the file. `nothing`: the
    /// try found no data.
    #[inline]
    pub fn expect_ready(&mut self, tag: Tag, nothing: bool) {
        let Some(slot) = self.slot(tag) else { return };
        if core::mem::replace(&mut slot.had_nothing, nothing) && nothing {
            return;
        }
        if let Some(time) = self.expected.put(tag)
            && let Some(slot) = self.slot(tag)
        {
            slot.expected = time;
        }
    }

    /// Returns whether there are files that are expected to be ready.
    #[inline]
    pub fn has_expected(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Removes and returns a multishot whose file is expected to be ready. The caller tries the
    /// request, and then calls [`Self::end_round`].
    pub fn begin_expected(&mut self) -> Option<(Tag, Waiter)> {
        loop {
            let (tag, time) = self.expected.take()?;
            let Some(slot) = self.slot(tag).filter(|slot| slot.expected == time) else { continue };
            let Some(waiter) = slot.waiters.take(Waiter::can_be_tried) else { continue };
            slot.firing = true;
            self.waiting -= 1;
            self.prefetch_expected();
            return Some((tag, waiter));
        }
    }

    /// Prefetches the request that the driver tries next. The request's memory has probably left
    /// the near caches during the system calls of earlier tries.
    #[inline]
    fn prefetch_expected(&self) {
        if let Some(tag) = self.expected.next() {
            self.prefetch_waiter(tag);
        }
    }

    /// Prefetches the slot that an event names.
    #[inline]
    pub fn prefetch_slot(&self, tag: Tag) {
        if let Some(slot) = self.slots.get(width::low(tag) as usize) {
            processor::prefetch(slot);
        }
    }

    /// Prefetches the request that is about to be woken.
    #[inline]
    pub fn prefetch_waiter(&self, tag: Tag) {
        let Some(slot) = self.slots.get(width::low(tag) as usize) else { return };
        if let Some(waiter) = slot.waiters.front() {
            processor::prefetch::<Request>(&waiter.request);
        }
        if let SlotFile::Duplicate { duplicate, .. } = &slot.file {
            processor::prefetch::<SharedDuplicate>(duplicate);
        }
    }

    /// Puts a multishot that the driver has taken out of its slot back into that slot, behind the
    /// slot's other requests. `slice`: `Runnable` if the queue `runnable` still has the slot for
    /// this request.
    #[inline]
    pub fn wait_again(&mut self, tag: Tag, request: RequestEntry, slice: TimeSlice) {
        let index = width::low(tag) as usize;
        let slot = &mut self.slots[index];
        debug_assert!(slot.firing && tag == tag_of(width::low(tag), slot) && slot.switch == Switch::On);
        slot.waiters.push_back(Waiter { request, purpose: Purpose::Retry, slice, round: slot.round });
        self.waiting += 1;
        self.low = self.low.min(index);
    }

    #[inline]
    pub fn end_round(&mut self, tag: Tag) {
        let Some(slot) = self.slot(tag) else { return };
        slot.firing = false;
        if slot.waiters.is_empty() || slot.switch == Switch::Off {
            self.after_change(width::low(tag));
        }
    }

    /// Adapts a slot's registration after requests have left the slot. If other requests still wait
    /// there, switches the registration on. If none waits, closes the duplicate.
    fn after_change(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.firing || !matches!(slot.file, SlotFile::Duplicate { .. }) {
            return;
        }
        if slot.waiters.is_empty() {
            self.close(index);
        } else if slot.switch == Switch::Off {
            slot.switch = Switch::On;
            slot.has_reported = false;
            let (number, interest, tag) = (slot.number(), slot.interest, tag_of(index, slot));
            // MOD cannot fail, because only usring deletes the registration.
            let _ = self.switch_to(number, interest, Switch::On, tag, true);
        }
    }

    /// Releases the file of a slot in which no request waits any more.
    fn close(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let SlotFile::Duplicate { mut duplicate, of } = slot.take_file() else { return };
        let fired = slot.switch == Switch::Off;
        self.unlink(of, index);
        let stays = fired && duplicate.descriptor.has_preferred_number(of);
        self.number_mut(of).registered = stays;
        if !stays && let Some(set) = &self.set {
            let _ = set.delete(duplicate.descriptor.number());
        }
        // If a worker still shares the duplicate, the file is closed when the worker drops the
        // duplicate.
        if let Some(sole) = Arc::get_mut(&mut duplicate) {
            sole.descriptor = HeldDescriptor::default();
            self.slots[index as usize].spare = Some(duplicate);
        }
        self.free.push(index);
    }

    /// Returns all requests that wait for files.
    pub fn requests_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.slots.iter_mut().flat_map(|slot| slot.waiters.requests_mut())
    }

    /// Removes and returns the first request for which `matches` returns true.
    pub fn extract(&mut self, mut matches: impl FnMut(&Request) -> bool) -> Option<RequestEntry> {
        while self.slots.get(self.low).is_some_and(|slot| slot.waiters.is_empty()) {
            self.low += 1;
        }
        for index in self.low..self.slots.len() {
            let waiter = self.slots[index].waiters.take(|waiter| matches(&waiter.request));
            let Some(waiter) = waiter else { continue };
            self.waiting -= 1;
            self.after_change(width::count(index));
            return Some(waiter.request);
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
