//! The files that a ring's requests wait for. Each is registered once in the ring's epoll set, with
//! the list of the requests behind it. `fast_poll` decides what an event means for them.
//!
//! # What keeps a file open
//! A request that waits holds its file: close(2) neither cancels it nor makes it wait for the file
//! that gets the number next. So usring needs a duplicate of the program's descriptor while a
//! request waits, and must have none otherwise:
//!
//! - usring does not see the close of an ordinary number. libc closes some files internally. The
//!   trap filter survives execve(2), so it must let close(2) pass: the next program's loader closes
//!   files before usring has a handler there. So usring cannot close its duplicate when the program
//!   closes its number.
//!
//! Hence there is one duplicate per file and wait, shared by all requests that wait. Only
//! registered files, which the ring keeps open anyway, need none.
//!
//! # Why a registration outlives its duplicate
//! An entry of an epoll set is named by an open file *and* the number under which it was
//! registered. It does not keep the file open, and the kernel drops it with the file.
//!
//! Registering the program's own number would not be safe: the program may close it and use it
//! again at any moment. Between usring's duplicate and its epoll_ctl(2) the number may come to mean
//! another file. A registration whose number is gone can no longer be deleted.
//!
//! So the entry is registered under the number of the duplicate, which only usring changes. The
//! duplicate of a file always gets the same number, a fixed distance above the program's
//! (`descriptor::hold_settled`). The next wait for the file finds the registration in place and
//! only switches it on again. EPOLL_CTL_MOD names both file and number. If the program's number
//! means another file by now, the kernel answers ENOENT, and the file is registered afresh. usring
//! remembers no identity that could become stale. It only remembers, per number, whether to try ADD
//! or MOD first.
//!
//! A wait for one event thus costs a duplicate, a MOD and a close. It is one-shot (EPOLLONESHOT),
//! so the entry that stays in the set after the duplicate's close is silent, even if other
//! processes have the file open. Where requests still wait after an event, and for multishots, the
//! registration becomes edge-triggered and needs no further call per event. It is deleted by name
//! before its number is closed.
//!
//! # Which requests share a registration
//! Requests share a registration if all of these hold:
//!
//! - They wait for the same open file; only the kernel knows, so it is asked.
//! - They wait for the same events.
//! - They are all multishot, or all not.
//!
//! Other requests have one each. epoll reports all registered events that are present, not only the
//! one that has just come. So a shared registration would show a multishot that waits for input
//! each event of output as well.

use super::expected::Expected;
pub(crate) use super::poll_slot::AssignedSlot;
use super::poll_slot::{Home, NONE, Number, Slot, Switch, tag_of};
pub(crate) use super::waiters::Waiter;
use crate::registered::registered_files::RegisteredFile;
use crate::request::conditions::Purpose;
pub(crate) use crate::request::conditions::{Interest, Registration, SharedHold, Tag, TimeSlice};
use crate::request::file::{FileUse, Hold};
use crate::request::{Request, RequestEntry};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::Errno;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::{self, HeldDescriptor, OwnedDescriptor};
use usring_sys::epoll::{self, Epoll};
use usring_sys::processor;

/// Event data of descriptors that belong to no request: they only wake the waiter.
pub(crate) const WAKE_DATA: u64 = u64::MAX;
/// Event data of devices' interrupts.
pub(crate) const DEVICE_DATA: u64 = u64::MAX - 1;
/// Event data of the timer.
pub(crate) const TIMER_DATA: u64 = u64::MAX - 2;

/// The files that a ring's requests wait for: see the head of this file.
#[derive(Default)]
pub(crate) struct PollTable {
    set: Option<Arc<Epoll>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    numbers: Vec<Number>,
    waiting: u32,
    /// Slots with a runnable request, which may be gone by now.
    runnable: VecDeque<Tag>,
    /// Files that are expected to be ready.
    pub expected: Expected,
    /// All slots below this one have no waiters.
    low: usize,
    /// Number of slots at which the next search for slots of closed files begins.
    sweep_at: usize,
    /// Timer in the set, for times when no thread is inside: it fires when the ring's next timeout
    /// is due.
    pub timer: Option<OwnedDescriptor>,
    /// Time at which the timer fires, on the monotonic clock; 0 once the event has been seen.
    pub timer_fires: Nanoseconds,
}

impl PollTable {
    /// Returns the number of requests that wait.
    #[inline]
    pub fn armed(&self) -> u32 {
        self.waiting
    }

    /// Returns the set, if it was made.
    pub fn set(&self) -> Option<&Epoll> {
        self.set.as_deref()
    }

    pub fn put_set(&mut self, set: Epoll) {
        self.set = Some(Arc::new(set));
    }

    /// Returns whether a request has waited for the file of this number. The file can then be
    /// polled, unless the number has come to mean another file.
    pub fn knows(&self, number: i32) -> bool {
        self.numbers.get(number as usize).is_some_and(|known| known.registered || known.first != NONE)
    }

    /// Notes that the number has just been given to a file that no request has waited for.
    #[inline]
    pub fn has_new_file(&mut self, number: i32) {
        if let Some(known) = self.numbers.get_mut(number as usize) {
            known.registered = false;
        }
    }

    /// Returns whether a request that has waited can go back to its slot, because it still has its
    /// share of the hold.
    #[inline]
    pub fn can_go_back(&mut self, request: &Request, interest: Interest) -> bool {
        let waited = request.place != 0 && matches!(request.file.hold, Hold::Registered(_) | Hold::Shared(_));
        waited && self.slot(request.place).is_some_and(|slot| slot.switch == Switch::On && slot.interest == interest)
    }

    /// Finds or makes the registration for a file, and gives the request its share of the hold.
    /// `socket`: the file is known to be a socket.
    ///
    /// Errors: those of epoll_ctl(2), `EPERM` if the file cannot be polled. The request then has a
    /// hold of its own.
    pub fn attach(&mut self, file: &mut FileUse, interest: Interest, socket: bool) -> Result<AssignedSlot, Errno> {
        match &file.hold {
            Hold::Registered(registered) => return self.attach_registered(&registered.clone(), interest),
            Hold::Shared(hold) => {
                let tag = hold.tag;
                if let Some(slot) = self.slot(tag).filter(|slot| slot.interest == interest) {
                    return Ok(AssignedSlot { tag, has_reported: slot.has_reported });
                }
            }
            Hold::Submitter | Hold::Kept(_) | Hold::Duplicate(_) => {}
        }
        match self.waited_for(file.number, interest) {
            Some(index) => Ok(self.share(index, file)),
            None => self.register(file, interest, socket),
        }
    }

    /// Returns the slot in which requests wait for this file and these events; `None`: there is
    /// none. Unlinks slots of this number whose file no longer has it.
    fn waited_for(&mut self, number: i32, interest: Interest) -> Option<u32> {
        let mut index = self.numbers.get(number as usize)?.first;
        let mut before = NONE;
        while index != NONE {
            let slot = &self.slots[index as usize];
            let next = slot.next;
            if !descriptor::is_same_file(slot.number(), number) {
                self.link_over(number, before, next);
            } else if slot.interest == interest {
                return Some(index);
            } else {
                before = index;
            }
            index = next;
        }
        None
    }

    /// Takes the slot behind `before` out of its number's list. `next`: the slot behind it.
    fn link_over(&mut self, number: i32, before: u32, next: u32) {
        if before == NONE {
            self.numbers[number as usize].first = next;
        } else {
            self.slots[before as usize].next = next;
        }
    }

    fn unlink(&mut self, number: i32, index: u32) {
        let Some(known) = self.numbers.get(number as usize) else { return };
        let (mut at, mut before) = (known.first, NONE);
        while at != NONE {
            let next = self.slots[at as usize].next;
            if at == index {
                return self.link_over(number, before, next);
            }
            before = at;
            at = next;
        }
    }

    fn share(&self, index: u32, file: &mut FileUse) -> AssignedSlot {
        let slot = &self.slots[index as usize];
        if let (Hold::Submitter, Home::Duplicate { hold, .. }) = (&file.hold, &slot.home) {
            file.number = hold.descriptor.number();
            file.hold = Hold::Shared(hold.clone());
        }
        AssignedSlot { tag: tag_of(index, slot), has_reported: slot.has_reported }
    }

    fn register(&mut self, file: &mut FileUse, interest: Interest, socket: bool) -> Result<AssignedSlot, Errno> {
        let of = file.number;
        let mut descriptor = descriptor::hold_settled(of)?;
        let settled = descriptor.is_settled(of);
        let number = descriptor.number();
        let index = self.claim_slot();
        let tag = tag_of(index, &self.slots[index as usize]);
        let switch = if interest.multishot { Switch::On } else { Switch::Once };
        let known = settled && self.number_mut(of).registered;
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
                    && let Some(other) = self.waited_for_elsewhere(number, interest)
                {
                    return Ok(self.share(other, file));
                }
                if matches!(file.hold, Hold::Submitter) {
                    file.number = number;
                    file.hold = Hold::Duplicate(descriptor);
                }
                return Err(error);
            }
        }
        if !self.number_mut(of).lockable {
            descriptor.assume_never_locked();
        }
        self.settle_in(index, of, SharedHold { descriptor, tag }, interest, switch);
        Ok(self.share(index, file))
    }

    /// Sets a claimed slot up for a file.
    fn settle_in(&mut self, index: u32, of: i32, hold: SharedHold, interest: Interest, switch: Switch) {
        let first = core::mem::replace(&mut self.number_mut(of).first, index);
        let slot = &mut self.slots[index as usize];
        let hold = match slot.spare.take() {
            Some(mut spare) => match Arc::get_mut(&mut spare) {
                Some(place) => {
                    *place = hold;
                    spare
                }
                None => Arc::new(hold),
            },
            None => Arc::new(hold),
        };
        slot.home = Home::Duplicate { hold, of };
        slot.interest = interest;
        slot.switch = switch;
        slot.has_reported = false;
        slot.next = first;
    }

    /// Returns a slot in which requests wait for the same file under another of its numbers. A set
    /// takes one file under at most 500 numbers, so the slot is shared.
    #[cold]
    fn waited_for_elsewhere(&self, number: i32, interest: Interest) -> Option<u32> {
        let is_it = |slot: &Slot| {
            matches!(slot.home, Home::Duplicate { .. })
                && slot.interest == interest
                && descriptor::is_same_file(slot.number(), number)
        };
        self.slots.iter().position(is_it).map(|index| index as u32)
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
        slot.home = Home::Registered { file: Arc::downgrade(file), number };
        slot.interest = interest;
        slot.switch = Switch::On;
        slot.has_reported = false;
        Ok(AssignedSlot { tag, has_reported: false })
    }

    /// Switches a registration in the epoll set. `known`: the registration is probably there, so
    /// MOD is tried before ADD. Returns whether it was there.
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
        let index = number as usize;
        if index >= self.numbers.len() {
            self.numbers.resize(index + 1, Number { first: NONE, registered: false, lockable: false });
        }
        &mut self.numbers[index]
    }

    /// Claims a free slot, with a generation that no pending event names.
    fn claim_slot(&mut self) -> u32 {
        if self.free.is_empty() && self.slots.len() >= self.sweep_at {
            self.sweep();
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::new());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        index
    }

    /// Frees the slots of registered files that no longer exist.
    fn sweep(&mut self) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let gone = matches!(&slot.home, Home::Registered { file, .. } if file.strong_count() == 0);
            if gone && slot.waiters.is_empty() && !slot.firing {
                slot.home = Home::Free;
                self.free.push(index as u32);
            }
        }
        self.sweep_at = 2 * (self.slots.len() - self.free.len()).max(32);
    }

    fn slot(&mut self, tag: Tag) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(tag as u32 as usize)?;
        (slot.generation == (tag >> 32) as u32 && !matches!(slot.home, Home::Free)).then_some(slot)
    }

    /// Adds a request to the slot that [`PollTable::attach`] returned.
    pub fn push(&mut self, tag: Tag, mut request: RequestEntry, purpose: Purpose, slice: TimeSlice) {
        request.place = tag;
        let slot = &mut self.slots[tag as u32 as usize];
        debug_assert!(tag == tag_of(tag as u32, slot), "attached just now");
        slot.waiters.push_back(Waiter { request, purpose, slice, round: slot.round });
        if slice == TimeSlice::Runnable {
            self.runnable.push_back(tag);
        }
        self.waiting += 1;
        self.low = self.low.min(tag as u32 as usize);
    }

    /// Begins a round after an event: the requests that wait now are to be called. Returns `false`
    /// if none waits.
    pub fn begin_round(&mut self, tag: Tag) -> bool {
        let Some(slot) = self.slot(tag) else { return false };
        if slot.waiters.is_empty() {
            self.rest(tag);
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

    /// Handles an event of a registered file that no request waits for. The first such event
    /// switches the registration off. Error and hang-up cannot be switched off, so they are
    /// reported once more; then the registration reports nothing.
    #[cold]
    fn rest(&mut self, tag: Tag) {
        let Some(slot) = self.slot(tag) else { return };
        let Home::Registered { file, number } = &slot.home else { return };
        // If the file is gone, the number may mean another file by now, and is left alone.
        let (Some(_held), number) = (file.upgrade(), *number) else { return };
        if slot.switch != Switch::Off {
            slot.switch = Switch::Off;
            let interest = slot.interest;
            let _ = self.switch_to(number, interest, Switch::Off, tag, true);
        }
    }

    /// Returns the next request to be called in this round.
    pub fn next_of_round(&mut self, tag: Tag) -> Option<Waiter> {
        let slot = self.slot(tag)?;
        if slot.waiters.front()?.round == slot.round {
            return None;
        }
        let waiter = slot.waiters.pop_front();
        self.waiting -= u32::from(waiter.is_some());
        waiter
    }

    /// Returns whether a request may be runnable. `false` is certain.
    #[inline]
    pub fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    pub fn runnable_count(&self) -> usize {
        self.runnable.len()
    }

    /// Takes the request that has been runnable for longest. `None`: there is none, or it is gone.
    /// The caller calls it and then ends the slot's round.
    pub fn begin_slice(&mut self) -> Option<(Tag, Waiter)> {
        let tag = self.runnable.pop_front()?;
        let slot = self.slot(tag)?;
        let waiter = slot.waiters.take(|waiter| waiter.slice == TimeSlice::Runnable)?;
        slot.firing = true;
        self.waiting -= 1;
        Some((tag, waiter))
    }

    /// Queues the file of a multishot that has been called among those expected to be ready. If the
    /// call found `nothing`, the file gets one more try behind all others, and no third.
    #[inline]
    pub fn expect(&mut self, tag: Tag, nothing: bool) {
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

    /// Returns whether there are files that may be ready.
    #[inline]
    pub fn expects(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Takes a multishot whose file may be ready. The caller calls it and then ends the slot's
    /// round.
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

    /// Prefetches the next request to be tried. A system call lies between two tries, which pushes
    /// the request out of the near caches.
    #[inline]
    fn prefetch_expected(&self) {
        if let Some(tag) = self.expected.next() {
            self.prefetch_waiter(tag);
        }
    }

    /// Prefetches the slot of an event that has come.
    #[inline]
    pub fn prefetch_slot(&self, tag: Tag) {
        if let Some(slot) = self.slots.get(tag as u32 as usize) {
            processor::prefetch(slot);
        }
    }

    /// Prefetches the request that is about to be called.
    #[inline]
    pub fn prefetch_waiter(&self, tag: Tag) {
        let Some(slot) = self.slots.get(tag as u32 as usize) else { return };
        if let Some(waiter) = slot.waiters.front() {
            processor::prefetch::<Request>(&waiter.request);
        }
        if let Home::Duplicate { hold, .. } = &slot.home {
            processor::prefetch::<SharedHold>(hold);
        }
    }

    /// Puts a multishot back that was called in a round, at the position that it had.
    #[inline]
    pub fn waits_on(&mut self, tag: Tag, request: RequestEntry) {
        let index = tag as u32 as usize;
        let slot = &mut self.slots[index];
        debug_assert!(slot.firing && tag == tag_of(tag as u32, slot) && slot.switch == Switch::On);
        slot.waiters.push_back(Waiter { request, purpose: Purpose::Retry, slice: TimeSlice::Over, round: slot.round });
        self.waiting += 1;
        self.low = self.low.min(index);
    }

    #[inline]
    pub fn end_round(&mut self, tag: Tag) {
        let Some(slot) = self.slot(tag) else { return };
        slot.firing = false;
        if slot.waiters.is_empty() || slot.switch == Switch::Off {
            self.after_change(tag as u32);
        }
    }

    /// Switches the registration on if requests wait in the slot. Closes the duplicate if none
    /// waits.
    fn after_change(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.firing || !matches!(slot.home, Home::Duplicate { .. }) {
            return;
        }
        if slot.waiters.is_empty() {
            self.close(index);
        } else if slot.switch == Switch::Off {
            slot.switch = Switch::On;
            slot.has_reported = false;
            let (number, interest, tag) = (slot.number(), slot.interest, tag_of(index, slot));
            // This cannot fail, because only usring deletes the registration.
            let _ = self.switch_to(number, interest, Switch::On, tag, true);
        }
    }

    /// Releases the file of a slot where no request waits any more.
    fn close(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Home::Duplicate { mut hold, of } = core::mem::replace(&mut slot.home, Home::Free) else { return };
        let fired = slot.switch == Switch::Off;
        self.unlink(of, index);
        let stays = fired && hold.descriptor.is_settled(of);
        self.number_mut(of).registered = stays;
        if !stays && let Some(set) = &self.set {
            let _ = set.delete(hold.descriptor.number());
        }
        // If a worker still has a share of the hold, the worker closes the file.
        if let Some(sole) = Arc::get_mut(&mut hold) {
            sole.descriptor = HeldDescriptor::default();
            self.slots[index as usize].spare = Some(hold);
        }
        self.free.push(index);
    }

    /// Takes out the first request that `matches`.
    pub fn extract(&mut self, mut matches: impl FnMut(&Request) -> bool) -> Option<RequestEntry> {
        while self.slots.get(self.low).is_some_and(|slot| slot.waiters.is_empty()) {
            self.low += 1;
        }
        for index in self.low..self.slots.len() {
            let waiter = self.slots[index].waiters.take(|waiter| matches(&waiter.request));
            let Some(waiter) = waiter else { continue };
            self.waiting -= 1;
            self.after_change(index as u32);
            return Some(waiter.request);
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
