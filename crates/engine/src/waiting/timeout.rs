//! Requests that wait for a time: TIMEOUT and LINK_TIMEOUT. A sleeping waiter has to wake when the
//! earliest of these times comes.

use crate::request::conditions::{Deadline, RequestId};
use crate::request::operation::Operation;
use crate::request::{Request, RequestEntry};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::iter::successors;
use usring_ring::JournalSlot;
use usring_sys::Errno;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_uapi::io_uring as abi;

pub(crate) struct Timer {
    pub request: RequestEntry,
    pub deadline: Deadline,
    /// The timer ends early when [`Timeouts::count_to`] returns this number. `None`: the timer
    /// counts no completions.
    completes_at: Option<i64>,
}

/// Key of a timer: its time, and the request's id, which orders timers with equal times.
type TimerKey = (Nanoseconds, RequestId);

pub(crate) const CLOCKS: [Clock; 3] = [Clock::Monotonic, Clock::Realtime, Clock::Boottime];

/// The ring's armed timers.
#[derive(Default)]
pub(crate) struct Timeouts {
    by_clock: [BTreeMap<TimerKey, Timer>; 3],
    /// Number of timers that also count completions.
    counting: u32,
    /// Number of completions counted so far.
    completions: i64,
    /// The CQ's tail up to which completions were counted.
    counted_to: u32,
    /// The CQ's tail just before the current batch of requests was issued.
    batch_began_at: u32,
    /// Number of TIMEOUTs that have expired or reached their count of completions. Each of them
    /// ends a wait for CQEs, even if the wait still needs completions (the kernel's `cq_timeouts`).
    pub ended: i64,
    /// On a shared ring, the number of ended TIMEOUTs of all processes, as it was when `ended` was
    /// last brought up to date.
    ended_of_all: u32,
    /// Whether a TIMEOUT has ended since sleepers were last woken.
    pub just_ended: bool,
}

fn clock_index(clock: Clock) -> usize {
    match clock {
        Clock::Monotonic => 0,
        Clock::Realtime => 1,
        Clock::Boottime => 2,
    }
}

impl Timeouts {
    pub fn is_empty(&self) -> bool {
        self.by_clock.iter().all(BTreeMap::is_empty)
    }

    /// Returns whether timers of this clock are armed.
    pub fn are_any(&self, clock: Clock) -> bool {
        !self.by_clock[clock_index(clock)].is_empty()
    }

    /// Counts a TIMEOUT that has expired or reached its count of completions. `of_all`: on a shared
    /// ring, how many TIMEOUTs of all processes have ended, this one included. `None`: the ring is
    /// not shared.
    pub fn count_ended(&mut self, of_all: Option<u32>) {
        match of_all {
            Some(of_all) => self.note_ended_of_all(of_all),
            None => self.ended += 1,
        }
        self.just_ended = true;
    }

    /// Adds the TIMEOUTs of other processes that have ended since the last call. `of_all`: the
    /// number of ended TIMEOUTs of all processes.
    pub fn note_ended_of_all(&mut self, of_all: u32) {
        self.ended += i64::from(of_all.wrapping_sub(self.ended_of_all));
        self.ended_of_all = of_all;
    }

    /// Returns whether a timer counts completions.
    pub fn counts(&self) -> bool {
        self.counting != 0
    }

    /// Returns whether a timer counts completions, and the CQ has CQEs that were not counted yet.
    #[inline(always)]
    pub fn has_counted(&self, tail: u32) -> bool {
        self.counting != 0 && self.counted_to != tail
    }

    /// Returns the nanoseconds until the next timer is due; `None`: no timer is armed.
    pub fn until_next(&self) -> Option<Nanoseconds> {
        let spans = CLOCKS.iter().filter_map(|&clock| {
            let (&(at, _), _) = self.by_clock[clock_index(clock)].first_key_value()?;
            Some(at.saturating_sub(clock.now()))
        });
        spans.min()
    }

    /// Returns the time at which the next timer is due, on the monotonic clock; `None`: no timer is
    /// armed. Reads no clock if all timers use the monotonic one.
    pub fn next_due(&self) -> Option<Nanoseconds> {
        let due = CLOCKS.iter().filter_map(|&clock| {
            let (&(at, _), _) = self.by_clock[clock_index(clock)].first_key_value()?;
            match clock {
                Clock::Monotonic => Some(at),
                _ => Some(Clock::Monotonic.now().saturating_add(at.saturating_sub(clock.now()))),
            }
        });
        due.min()
    }

    /// Counts the CQEs up to this tail of the CQ. Returns the number of CQEs so far, less the
    /// TIMEOUTs that have expired or reached their count. Timeouts that count completions compare
    /// this number with the number at which they end. (The CQE of a TIMEOUT that is removed or
    /// refused counts like any other CQE. So does the CQE for the tag of a released file or
    /// buffer.)
    pub fn count_to(&mut self, tail: u32) -> i64 {
        self.completions += i64::from(tail.wrapping_sub(self.counted_to).cast_signed());
        self.counted_to = tail;
        self.completions - self.ended
    }

    pub fn insert(&mut self, request: RequestEntry, deadline: Deadline, completes_at: Option<i64>) {
        self.counting += u32::from(completes_at.is_some());
        let key = (deadline.at, request.id);
        self.by_clock[clock_index(deadline.clock)].insert(key, Timer { request, deadline, completes_at });
    }

    fn remove(&mut self, index: usize, key: TimerKey) -> Option<Timer> {
        let timer = self.by_clock[index].remove(&key)?;
        self.counting -= u32::from(timer.completes_at.is_some());
        Some(timer)
    }

    fn find(&self, mut matches: impl FnMut(&Timer) -> bool) -> Option<(usize, TimerKey)> {
        self.by_clock
            .iter()
            .enumerate()
            .find_map(|(index, timers)| timers.iter().find(|(_, timer)| matches(timer)).map(|(key, _)| (index, *key)))
    }

    /// Removes and returns a TIMEOUT for which `matches` returns true. Skips LINK_TIMEOUTs, because
    /// a LINK_TIMEOUT cannot be cancelled alone. Skips requests that are done, but whose completion
    /// `--inject` or `--order` delays (`is_leaving`).
    pub fn extract(&mut self, mut matches: impl FnMut(&Request) -> bool) -> Option<RequestEntry> {
        let may_end = |timer: &Timer| timer.deadline.watches.is_none() && !timer.request.is_leaving();
        let (index, key) = self.find(|timer| may_end(timer) && matches(&timer.request))?;
        self.remove(index, key).map(|timer| timer.request)
    }

    /// Sets a new deadline for the timeout with this user data (TIMEOUT_UPDATE). The timeout no
    /// longer counts completions. `linked`: searches the LINK_TIMEOUTs, not the TIMEOUTs.
    /// `absolute`: `time` is a time of the timeout's clock; otherwise `time` counts from now.
    ///
    /// Returns the new state of the timeout for a shared ring's journal.
    ///
    /// Error: `ENOENT` if there is no such timeout.
    pub fn update(
        &mut self,
        user_data: u64,
        linked: bool,
        absolute: bool,
        time: Nanoseconds,
    ) -> Result<JournaledTimeout, Errno> {
        let (index, key) = self
            .find(|timer| {
                let is_it = timer.request.sqe.user_data == user_data && !timer.request.is_delayed();
                is_it && timer.deadline.watches.is_some() == linked
            })
            .ok_or(Errno::ENOENT)?;
        let Some(timer) = self.remove(index, key) else { return Err(Errno::ENOENT) };
        let at = if absolute { time } else { timer.deadline.clock.now().saturating_add(time) };
        let mut deadline = Deadline { at, ..timer.deadline };
        if deadline.repeat_every != 0 {
            // A repeating timeout continues without a limit of repeats. A relative `time` is also
            // its new interval.
            deadline.repeats = 0;
            if !absolute {
                deadline.repeat_every = time.max(1);
            }
        }
        let journaled = JournaledTimeout::new(&timer.request, deadline);
        self.insert(timer.request, deadline, None);
        Ok(journaled)
    }

    pub fn pop_expired(&mut self, clock: Clock, now: Nanoseconds) -> Option<Timer> {
        let index = clock_index(clock);
        let (&key, _) = self.by_clock[index].first_key_value()?;
        if key.0 <= now { self.remove(index, key) } else { None }
    }

    /// Removes and returns a timer that has reached its number of completions. If several have,
    /// takes the one with the smallest number. `completions`: the result of [`Timeouts::count_to`].
    pub fn pop_counted(&mut self, completions: i64) -> Option<Timer> {
        let counts = self.by_clock.iter().enumerate().flat_map(|(index, timers)| {
            let reached = timers.iter().filter_map(|(key, timer)| Some((timer.completes_at?, *key)));
            reached.map(move |(at, key)| ((at, key.1), index, key))
        });
        let (_, index, key) = counts.filter(|&((at, _), ..)| at <= completions).min_by_key(|&(order, ..)| order)?;
        self.remove(index, key)
    }

    /// Begins a batch of requests that are to be issued, at this tail of the CQ. A timeout of the
    /// batch that counts completions counts from this tail, so it counts the completions of the
    /// whole batch.
    #[inline]
    pub fn begin_batch(&mut self, tail: u32) {
        self.batch_began_at = tail;
    }

    /// Returns the count at which a timeout of the current batch ends, if it waits for
    /// `completions` completions. Such a count is a tail of the CQ less the number of ended
    /// TIMEOUTs. So the count has one meaning in all processes of a shared ring.
    pub fn shared_count(&self, completions: u32) -> u32 {
        self.batch_began_at.wrapping_sub(self.ended_of_all).wrapping_add(completions)
    }

    /// Arms a timeout of a process that has died. `count`: the result of [`Timeouts::shared_count`]
    /// in the dead process. `tail`: the CQ's tail. The timeout may have reached its count already.
    pub fn adopt(&mut self, request: RequestEntry, deadline: Deadline, count: Option<u32>, tail: u32) {
        let completes_at = count.map(|count| {
            let left = count.wrapping_sub(tail.wrapping_sub(self.ended_of_all)).cast_signed();
            self.count_to(tail) + i64::from(left)
        });
        self.insert(request, deadline, completes_at);
    }

    /// Arms a TIMEOUT. If the TIMEOUT counts completions, it counts from the tail that the CQ had
    /// when the current batch of requests began.
    pub fn arm(&mut self, request: RequestEntry) {
        let Operation::Timeout(deadline) = request.operation else { unreachable!("only a timeout waits for time") };
        let completes_at = (deadline.completions != 0).then(|| {
            let began_at = self.batch_began_at;
            self.count_to(began_at) + i64::from(deadline.completions)
        });
        self.insert(request, deadline, completes_at);
    }

    /// If a LINK_TIMEOUT follows the request in its chain, arms the LINK_TIMEOUT. The request is
    /// about to wait.
    pub fn arm_link_timeout(&mut self, request: &mut Request) {
        if !request.link.as_ref().is_some_and(|next| next.is_link_timeout()) {
            return;
        }
        let Some(mut watcher) = request.link.take() else { return };
        request.link = watcher.link.take();
        request.link_timeout = Some(watcher.id);
        let Some(mut deadline) = link_deadline(&watcher) else { return };
        deadline.watches = Some(request.id);
        self.insert(watcher, deadline, None);
    }

    /// Returns all timers' requests.
    pub fn requests_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.by_clock.iter_mut().flat_map(|timers| timers.values_mut()).map(|timer| &mut *timer.request)
    }

    /// Returns what a shared ring's journal says about each TIMEOUT: its state, and the number of
    /// completions at which it ends ([`Timeouts::shared_count`]). `tail`: the CQ's tail.
    pub fn journaled(&mut self, tail: u32) -> Vec<(JournaledTimeout, Option<u32>)> {
        let (counted, base) = (self.count_to(tail), tail.wrapping_sub(self.ended_of_all));
        let timers = self.by_clock.iter().flat_map(BTreeMap::values);
        let timeouts = timers.filter(|timer| timer.deadline.watches.is_none() && !timer.request.is_delayed());
        let count_of = |at: i64| base.wrapping_add(u32::try_from(at - counted).unwrap_or(0));
        timeouts
            .map(|timer| (JournaledTimeout::new(&timer.request, timer.deadline), timer.completes_at.map(count_of)))
            .collect()
    }

    /// Removes all timers and returns their requests, because the ring is closed.
    pub fn take_all(&mut self) -> Vec<RequestEntry> {
        let timers_by_clock = core::mem::take(&mut self.by_clock);
        self.counting = 0;
        timers_by_clock.into_iter().flat_map(BTreeMap::into_values).map(|timer| timer.request).collect()
    }

    /// Removes the timer with this id and returns its request; `None`: no such timer is armed.
    pub fn take(&mut self, id: RequestId) -> Option<RequestEntry> {
        let (index, key) = self.find(|timer| timer.request.id == id)?;
        self.remove(index, key).map(|timer| timer.request)
    }
}

/// The part of an armed timeout that is written to a shared ring's journal.
pub(crate) struct JournaledTimeout {
    pub slot: Option<JournalSlot>,
    /// The slots of the later requests of the timeout's chain, in order.
    pub members: Vec<JournalSlot>,
    pub sqe_flags: u8,
    pub deadline: Deadline,
}

impl JournaledTimeout {
    pub fn new(request: &Request, deadline: Deadline) -> JournaledTimeout {
        let members = match request.journal {
            Some(_) => successors(request.link.as_deref(), |member| member.link.as_deref())
                .map_while(|member| member.journal)
                .collect(),
            None => Vec::new(),
        };
        JournaledTimeout { slot: request.journal, members, sqe_flags: request.sqe.flags, deadline }
    }

    /// Returns the journaled part of a TIMEOUT; `None` for any other request.
    pub fn of(request: &Request) -> Option<JournaledTimeout> {
        match request.operation {
            Operation::Timeout(deadline) => Some(JournaledTimeout::new(request, deadline)),
            _ => None,
        }
    }
}

/// Returns the deadline of a LINK_TIMEOUT. A relative time counts from now. `None`: the request is
/// no LINK_TIMEOUT.
fn link_deadline(request: &Request) -> Option<Deadline> {
    let Operation::LinkTimeout(deadline) = request.operation else { return None };
    Some(Deadline { at: absolute_time(request.sqe.op_flags, deadline.clock, deadline.at), ..deadline })
}

/// Returns the absolute time of a timeout. Without `IORING_TIMEOUT_ABS`, `span` counts from now,
/// when the timeout is issued.
pub(crate) fn absolute_time(flags: u32, clock: Clock, span: Nanoseconds) -> Nanoseconds {
    if flags & abi::IORING_TIMEOUT_ABS != 0 { span } else { clock.now().saturating_add(span) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::request::pool::new_entry;

    fn timeout(id: u64, deadline: Deadline) -> RequestEntry {
        let mut request = new_entry();
        request.id = RequestId(id);
        request.sqe.user_data = id;
        request.operation = Operation::Timeout(deadline);
        request
    }

    fn at(at: Nanoseconds) -> RequestEntry {
        timeout(at, Deadline { at, ..Deadline::default() })
    }

    #[test]
    fn timers_expire_in_the_order_of_their_times() {
        let mut timeouts = Timeouts::default();
        [30, 10, 20].into_iter().for_each(|time| timeouts.arm(at(time)));
        let expired = core::iter::from_fn(|| timeouts.pop_expired(Clock::Monotonic, 25));
        assert_eq!(expired.map(|timer| timer.request.id.0).collect::<Vec<_>>(), [10, 20]);
        assert_eq!(timeouts.next_due(), Some(30));
    }

    #[test]
    fn a_count_begins_at_the_tail_of_the_timeouts_own_batch() {
        let mut timeouts = Timeouts::default();
        timeouts.begin_batch(5);
        timeouts.arm(timeout(1, Deadline { at: 100, completions: 2, ..Deadline::default() }));
        let count = timeouts.count_to(6);
        assert!(timeouts.pop_counted(count).is_none());
        let count = timeouts.count_to(7);
        assert!(timeouts.pop_counted(count).is_some());
        assert!(timeouts.is_empty());
    }

    #[test]
    fn a_link_timeout_goes_with_its_request_alone() {
        let mut timeouts = Timeouts::default();
        let deadline = Deadline { at: 10, watches: Some(RequestId(7)), ..Deadline::default() };
        timeouts.arm(timeout(1, deadline));
        assert!(timeouts.extract(|_| true).is_none());
        assert!(timeouts.take(RequestId(1)).is_some());
    }

    #[test]
    fn an_update_gives_the_timeout_with_this_user_data_its_new_time() {
        let mut timeouts = Timeouts::default();
        timeouts.arm(at(10));
        assert_eq!(timeouts.update(11, false, true, 50).err(), Some(Errno::ENOENT));
        assert!(timeouts.update(10, false, true, 50).is_ok());
        assert_eq!(timeouts.next_due(), Some(50));
    }
}
