//! Who waits for a file to be ready: the ring's own epoll set and the table of
//! armed requests. A request that would block is armed here and issued again
//! when its file is ready; a POLL_ADD is armed here and completed.
//!
//! The set is made when the first request is armed. It is waited on by the
//! thread that waits in `enter` or, while nobody is inside, by the attendant.
//! Each armed request has a descriptor of its own in the set, so two requests
//! on one file never share a registration.

use crate::complete;
use crate::host;
use crate::issue;
use crate::op::Operation;
use crate::request::{Hold, Request, RequestEntry, RequestId};
use crate::ring::LockedRing;
use crate::workers;
use alloc::sync::Arc;
use alloc::vec::Vec;
use usring_sys::clock::Nanoseconds;
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::epoll::{self, Epoll, Event};
use usring_sys::{Errno, timerfd};
use usring_uapi::sqe_flags;

/// What an armed request waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interest {
    /// EPOLL* events; error and hang-up are always reported too.
    pub events: u32,
    /// Stays armed after an event.
    pub multishot: bool,
    /// Later events by level instead of by edge.
    pub level: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Issue the request again.
    Retry,
    /// Complete it with the events.
    Report,
}

struct Armed {
    request: RequestEntry,
    interest: Interest,
    purpose: Purpose,
    /// A registration of its own for a registered file.
    own: Option<OwnedDescriptor>,
}

impl Armed {
    fn number(&self) -> i32 {
        self.own.as_ref().map_or(self.request.file.number, OwnedDescriptor::number)
    }
}

/// The ring's armed requests.
#[derive(Default)]
pub(crate) struct PollTable {
    set: Option<Epoll>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    armed: u32,
    /// In the set while nobody is inside: the next timer.
    timer: Option<OwnedDescriptor>,
}

#[derive(Default)]
struct Slot {
    /// Tells a stale event from one of the slot's present request.
    generation: u32,
    armed: Option<Armed>,
}

/// Event data of descriptors that are no request: only wakes the waiter.
pub(crate) const WAKE_DATA: u64 = u64::MAX;

impl PollTable {
    pub fn armed(&self) -> u32 {
        self.armed
    }

    /// The set, if one was made.
    pub fn set(&self) -> Option<&Epoll> {
        self.set.as_ref()
    }

    fn insert(&mut self, armed: Armed) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        slot.armed = Some(armed);
        self.armed += 1;
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    fn lookup(&mut self, data: u64) -> Option<&mut Armed> {
        let slot = self.slots.get_mut(data as u32 as usize)?;
        if slot.generation != (data >> 32) as u32 {
            return None;
        }
        slot.armed.as_mut()
    }

    fn take(&mut self, index: u32) -> Option<Armed> {
        let armed = self.slots.get_mut(index as usize)?.armed.take()?;
        self.armed -= 1;
        self.free.push(index);
        Some(armed)
    }

    /// Takes out the first armed request that `matches`, and its registration.
    pub fn extract(&mut self, mut matches: impl FnMut(&Request) -> bool) -> Option<RequestEntry> {
        let index =
            self.slots.iter().position(|slot| slot.armed.as_ref().is_some_and(|armed| matches(&armed.request)))?;
        let armed = self.take(index as u32)?;
        self.unregister(&armed);
        Some(armed.request)
    }

    fn unregister(&self, armed: &Armed) {
        if let Some(set) = &self.set {
            // A duplicate in a forked child would keep the registration alive
            // after our close: it has to be deleted by name.
            let _ = set.delete(armed.number());
        }
    }

    /// Changes an armed POLL_ADD; answers whether it was found.
    pub fn update(&mut self, user_data: u64, change: impl FnOnce(&mut Request, &mut Interest)) -> bool {
        let found = self.slots.iter_mut().enumerate().find_map(|(index, slot)| {
            let generation = slot.generation;
            let armed = slot.armed.as_mut()?;
            let is_it = armed.purpose == Purpose::Report && armed.request.sqe.user_data == user_data;
            is_it.then_some((u64::from(generation) << 32 | index as u64, armed))
        });
        let Some((data, armed)) = found else { return false };
        change(&mut armed.request, &mut armed.interest);
        let (number, events) = (armed.number(), registration(armed.interest));
        if let Some(set) = &self.set {
            let _ = set.modify(number, events, data);
        }
        true
    }
}

/// The events as epoll is to be told them.
fn registration(interest: Interest) -> u32 {
    let trigger = match (interest.multishot, interest.level) {
        (false, _) => epoll::ONESHOT,
        (true, false) => epoll::EDGE,
        (true, true) => 0,
    };
    interest.events | trigger
}

/// Arms a request that would block; its file decides: what cannot be polled
/// goes to a worker.
pub(crate) fn arm_retry(locked: &mut LockedRing, request: RequestEntry, events: u32) {
    let interest = Interest { events, multishot: false, level: false };
    add(locked, request, interest, Purpose::Retry);
}

/// Arms a POLL_ADD.
pub(crate) fn arm(locked: &mut LockedRing, request: RequestEntry) {
    let Operation::Poll(interest) = request.operation else { unreachable!("only a poll waits for its own events") };
    add(locked, request, interest, Purpose::Report);
}

fn add(locked: &mut LockedRing, request: RequestEntry, interest: Interest, purpose: Purpose) {
    let prepared = ensure_set(locked).and_then(|()| match request.file.hold {
        Hold::Registered(_) => descriptor::duplicate_private(request.file.number).map(Some),
        _ => Ok(None),
    });
    let own = match prepared {
        Ok(own) => own,
        Err(error) => return complete::complete(locked, request, error.negative().into()),
    };
    let armed = Armed { request, interest, purpose, own };
    let number = armed.number();
    let data = locked.polls.insert(armed);
    let added = match &locked.polls.set {
        Some(set) => set.add(number, registration(interest), data),
        None => Err(Errno::ENOMEM),
    };
    if let Err(error) = added {
        let Some(armed) = locked.polls.take(data as u32) else { return };
        refused(locked, armed, error);
    }
}

/// The file is not one that epoll takes.
fn refused(locked: &mut LockedRing, armed: Armed, error: Errno) {
    match (error, armed.purpose) {
        (Errno::EPERM, Purpose::Retry) if armed.request.has_flag(sqe_flags::BUFFER_SELECT) => {
            // Neither polled nor, without its buffer, for a worker.
            complete::complete(locked, armed.request, Errno::EAGAIN.negative().into());
        }
        (Errno::EPERM, Purpose::Retry) => workers::hand_over(locked, armed.request),
        // A file that cannot be polled is always ready, as poll(2) has it.
        (Errno::EPERM, Purpose::Report) => {
            let ready = armed.interest.events & (epoll::IN | epoll::OUT | 0x40 | 0x100);
            complete::complete(locked, armed.request, (ready as i32).into());
        }
        _ => complete::complete(locked, armed.request, error.negative().into()),
    }
}

/// Makes the set on first use, with the ring's wake descriptor in it.
pub(crate) fn ensure_set(locked: &mut LockedRing) -> Result<(), Errno> {
    if locked.polls.set.is_some() {
        return Ok(());
    }
    let set = Epoll::new()?;
    locked.ring.wakers.join(&set)?;
    locked.polls.set = Some(set);
    Ok(())
}

/// Lets the set wake its watcher when the ring's next timer is due.
pub(crate) fn arm_timer(locked: &mut LockedRing, until: Option<Nanoseconds>) -> Result<(), Errno> {
    let Some(until) = until else { return Ok(()) };
    ensure_set(locked)?;
    if locked.polls.timer.is_none() {
        let timer = timerfd::create()?;
        if let Some(set) = &locked.polls.set {
            set.add(timer.number(), epoll::IN | epoll::EDGE, WAKE_DATA)?;
        }
        locked.polls.timer = Some(timer);
    }
    match &locked.polls.timer {
        Some(timer) => timerfd::arm(timer.number(), until),
        None => Ok(()),
    }
}

/// Looks which armed files are ready now, without waiting. While somebody
/// leads, that thread alone takes events from the set: among them may be the
/// one that is to wake it, and it is in the kernel or on its way here.
pub(crate) fn look(locked: &mut LockedRing) {
    if locked.ring.wakers.sleep.is_led() {
        return;
    }
    let mut events = [Event::default(); 64];
    // Also when nothing is armed: a wake event that nobody took would keep the
    // set readable, and the attendant awake.
    loop {
        let Some(set) = locked.polls.set() else { return };
        let count = set.ready(&mut events).unwrap_or(0);
        dispatch(locked, &events[..count]);
        if count < events.len() {
            return;
        }
    }
}

/// Deals with what the epoll set reported.
pub(crate) fn dispatch(locked: &mut LockedRing, events: &[Event]) {
    for event in events {
        let (data, mask) = (event.data, event.events);
        if data == WAKE_DATA {
            // It has woken us, edge-triggered: nothing to read.
            continue;
        }
        fire(locked, data, mask);
    }
    issue::run_issuable(locked);
}

fn fire(locked: &mut LockedRing, data: u64, mask: u32) {
    // An event of a request that was cancelled meanwhile finds nothing.
    let Some(armed) = locked.polls.lookup(data) else { return };
    let opcode = armed.request.sqe.opcode;
    if armed.purpose == Purpose::Report && armed.interest.multishot {
        return report_more(locked, data, mask);
    }
    locked.statistics.count_polled(opcode);
    let Some(armed) = locked.polls.take(data as u32) else { return };
    locked.polls.unregister(&armed);
    match armed.purpose {
        Purpose::Retry => issue::issue(locked, armed.request),
        Purpose::Report => complete::complete(locked, armed.request, (mask as i32).into()),
    }
}

/// One more CQE of a multishot poll; the one that does not fit is its last.
fn report_more(locked: &mut LockedRing, data: u64, mask: u32) {
    let Some(armed) = locked.polls.lookup(data) else { return };
    let (user_data, opcode) = (armed.request.sqe.user_data, armed.request.sqe.opcode);
    let (asked, number) = (armed.request.sqe.fd, armed.request.file.number);
    locked.statistics.count_polled(opcode);
    if !is_told_by(locked, asked, number) && complete::post_more(locked, user_data, mask as i32, 0) {
        return;
    }
    let Some(armed) = locked.polls.take(data as u32) else { return };
    locked.polls.unregister(&armed);
    complete::complete(locked, armed.request, (mask as i32).into());
}

/// Whether the ring's own completions make the file readable, its registered
/// eventfd or its own descriptor: a multishot on that would feed itself for
/// ever, so its first event is its last.
fn is_told_by(locked: &LockedRing, asked: i32, number: i32) -> bool {
    let by_event = locked
        .event_descriptor
        .as_ref()
        .is_some_and(|event| event.number == asked || descriptor::is_same_file(event.descriptor.number(), number));
    by_event || host::ring_of(asked).is_some_and(|ring| Arc::ptr_eq(&ring, locked.ring))
}

/// The ring is gone: no set, no timer.
pub(crate) fn dissolve(locked: &mut LockedRing) {
    locked.polls = PollTable::default();
}

/// Ends the wait of one request, found by its id (a link timeout expired).
pub(crate) fn cancel_id(locked: &mut LockedRing, id: RequestId) -> Option<RequestEntry> {
    locked.polls.extract(|request| request.id == id)
}
