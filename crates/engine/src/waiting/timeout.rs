//! Requests that wait for time: TIMEOUT, LINK_TIMEOUT, and the deadline by which a waiter has to be
//! awake.

use crate::completion::complete;
use crate::op::Operation;
use crate::request::{Request, RequestEntry, RequestId};
use crate::ring::LockedRing;
use crate::submission::issue::{self, Answer};
use crate::waiting::cancel::{self, Found};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use usring_sys::Errno;
use usring_sys::clock::{Clock, Nanoseconds};
use usring_uapi::opcode;

/// When a timeout is over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deadline {
    pub clock: Clock,
    /// On `clock`.
    pub at: Nanoseconds,
    /// The timeout ends earlier once this many more requests have completed (0: never).
    pub completions: u32,
    /// A multishot starts again after this span.
    pub repeat_every: Nanoseconds,
    /// Times that a multishot starts in all (0: until it is removed).
    pub repeats: u32,
    /// Reaching it is no failure (ETIME_SUCCESS).
    pub expiry_succeeds: bool,
    /// The request that a LINK_TIMEOUT watches.
    pub watches: Option<RequestId>,
}

struct Timer {
    request: RequestEntry,
    deadline: Deadline,
    /// Count of completions at which the timer ends early.
    completes_at: Option<i64>,
}

/// Key of a timer: its time, then the order of arming.
type TimerKey = (Nanoseconds, RequestId);

const CLOCKS: [Clock; 3] = [Clock::Monotonic, Clock::Realtime, Clock::Boottime];

/// The ring's armed timers.
#[derive(Default)]
pub(crate) struct Timeouts {
    by_clock: [BTreeMap<TimerKey, Timer>; 3],
    /// Timers that also count completions.
    counting: u32,
    /// CQEs so far, and the CQ's tail up to which they are counted.
    completions: i64,
    counted_to: u32,
    /// The CQ's tail when the present batch of requests began to be issued.
    batch_began_at: u32,
    /// Number of TIMEOUTs that ended by time or count. Each ends a wait, however many completions
    /// the wait still needs (the kernel's `cq_timeouts`).
    pub ended: i64,
    /// A TIMEOUT has ended since sleepers were last woken.
    pub just_ended: bool,
}

fn lane(clock: Clock) -> usize {
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

    fn count_ended(&mut self) {
        self.ended += 1;
        self.just_ended = true;
    }

    /// Returns whether there are new completions that a timeout may count.
    #[inline(always)]
    pub fn has_counted(&self, tail: u32) -> bool {
        self.counting != 0 && self.counted_to != tail
    }

    /// Returns the time until the next timer, if there is one.
    pub fn until_next(&self) -> Option<Nanoseconds> {
        let spans = CLOCKS.iter().filter_map(|&clock| {
            let (&(at, _), _) = self.by_clock[lane(clock)].first_key_value()?;
            Some(at.saturating_sub(clock.now()))
        });
        spans.min()
    }

    /// Returns when the next timer is due, on the monotonic clock. Reads no clock if all timers use
    /// that one.
    pub fn next_due(&self) -> Option<Nanoseconds> {
        let due = CLOCKS.iter().filter_map(|&clock| {
            let (&(at, _), _) = self.by_clock[lane(clock)].first_key_value()?;
            match clock {
                Clock::Monotonic => Some(at),
                _ => Some(Clock::Monotonic.now().saturating_add(at.saturating_sub(clock.now()))),
            }
        });
        due.min()
    }

    /// Counts the CQEs up to this tail of the CQ; returns their number less the timeouts that have
    /// ended by themselves. Timeouts with a count use this number. (A timeout that is removed or
    /// refused counts like any other request, and so does a tag.)
    fn count_to(&mut self, tail: u32) -> i64 {
        self.completions += i64::from(tail.wrapping_sub(self.counted_to) as i32);
        self.counted_to = tail;
        self.completions - self.ended
    }

    fn insert(&mut self, request: RequestEntry, deadline: Deadline, completes_at: Option<i64>) {
        self.counting += u32::from(completes_at.is_some());
        let key = (deadline.at, request.id);
        self.by_clock[lane(deadline.clock)].insert(key, Timer { request, deadline, completes_at });
    }

    fn remove(&mut self, lane: usize, key: TimerKey) -> Option<Timer> {
        let timer = self.by_clock[lane].remove(&key)?;
        self.counting -= u32::from(timer.completes_at.is_some());
        Some(timer)
    }

    fn find(&self, mut matches: impl FnMut(&Timer) -> bool) -> Option<(usize, TimerKey)> {
        self.by_clock
            .iter()
            .enumerate()
            .find_map(|(lane, timers)| timers.iter().find(|(_, timer)| matches(timer)).map(|(key, _)| (lane, *key)))
    }

    /// Takes out the first plain timeout that `matches`. A LINK_TIMEOUT goes with the request that
    /// it watches and is never taken by itself.
    pub fn extract(&mut self, mut matches: impl FnMut(&Request) -> bool) -> Option<RequestEntry> {
        let (lane, key) = self.find(|timer| timer.deadline.watches.is_none() && matches(&timer.request))?;
        self.remove(lane, key).map(|timer| timer.request)
    }

    /// Gives the timeout with this user data a new deadline (TIMEOUT_UPDATE; `linked`: searches the
    /// LINK_TIMEOUTs).
    ///
    /// Error: `ENOENT` if there is none.
    pub fn update(&mut self, user_data: u64, linked: bool, absolute: bool, time: Nanoseconds) -> Result<(), Errno> {
        let (lane, key) = self
            .find(|timer| timer.request.sqe.user_data == user_data && timer.deadline.watches.is_some() == linked)
            .ok_or(Errno::ENOENT)?;
        let Some(timer) = self.remove(lane, key) else { return Err(Errno::ENOENT) };
        let at = if absolute { time } else { timer.deadline.clock.now().saturating_add(time) };
        let mut deadline = Deadline { at, ..timer.deadline };
        if deadline.repeat_every != 0 {
            // The timeout goes on with the new span, without an end.
            deadline.repeats = 0;
            if !absolute {
                deadline.repeat_every = time.max(1);
            }
        }
        self.insert(timer.request, deadline, None);
        Ok(())
    }

    fn pop_expired(&mut self, clock: Clock, now: Nanoseconds) -> Option<Timer> {
        let lane = lane(clock);
        let (&key, _) = self.by_clock[lane].first_key_value()?;
        if key.0 <= now { self.remove(lane, key) } else { None }
    }

    /// Takes out a timer whose count has been reached, the smallest count first.
    fn pop_counted(&mut self, completions: i64) -> Option<Timer> {
        let counts = self.by_clock.iter().enumerate().flat_map(|(lane, timers)| {
            let reached = timers.iter().filter_map(|(key, timer)| Some((timer.completes_at?, *key)));
            reached.map(move |(at, key)| ((at, key.1), lane, key))
        });
        let (_, lane, key) = counts.filter(|&((at, _), ..)| at <= completions).min_by_key(|&(order, ..)| order)?;
        self.remove(lane, key)
    }
}

/// Begins a batch of issues. For a counting timeout among these requests, the completions of all of
/// them come later.
#[inline]
pub(crate) fn begin_batch(locked: &mut LockedRing) {
    locked.timeouts.batch_began_at = locked.cq.tail();
}

/// Arms a TIMEOUT. Its count begins at the CQ's tail before its own batch.
pub(crate) fn arm(locked: &mut LockedRing, request: RequestEntry) {
    let Operation::Timeout(deadline) = request.operation else { unreachable!("only a timeout waits for time") };
    let completes_at = (deadline.completions != 0).then(|| {
        let began_at = locked.timeouts.batch_began_at;
        locked.timeouts.count_to(began_at) + i64::from(deadline.completions)
    });
    locked.timeouts.insert(request, deadline, completes_at);
}

/// Arms the LINK_TIMEOUT behind a request that is about to wait.
pub(crate) fn arm_link_timeout(locked: &mut LockedRing, request: &mut Request) {
    if !request.link.as_ref().is_some_and(|next| issue::is_link_timeout(next)) {
        return;
    }
    let Some(mut watcher) = request.link.take() else { return };
    request.link = watcher.link.take();
    request.link_timeout = Some(watcher.id);
    let Some(mut deadline) = crate::op::timeout::link_deadline(&watcher) else { return };
    deadline.watches = Some(request.id);
    locked.timeouts.insert(watcher, deadline, None);
}

/// Detaches the LINK_TIMEOUT behind a request that has ended without waiting. The LINK_TIMEOUT
/// completes by itself. Returns the request behind it, which follows the ended one.
pub(crate) fn let_go(locked: &mut LockedRing, mut watcher: RequestEntry) -> Option<RequestEntry> {
    let next = watcher.link.take();
    locked.successors.push_back(watcher);
    next
}

/// Makes a LINK_TIMEOUT's answer. Its result is an errno but never a failure: a LINK_TIMEOUT with
/// CQE_SKIP_SUCCESS is silent.
fn watcher_answer(error: Errno) -> Answer {
    Answer { result: error.negative(), failed: false }
}

/// Disarms the LINK_TIMEOUT of a request that completed in time.
pub(crate) fn disarm_link_timeout(locked: &mut LockedRing, request: &mut Request) {
    let Some(id) = request.link_timeout.take() else { return };
    let Some((lane, key)) = locked.timeouts.find(|timer| timer.request.id == id) else { return };
    if let Some(timer) = locked.timeouts.remove(lane, key) {
        complete::complete(locked, timer.request, watcher_answer(Errno::ECANCELED));
    }
}

/// Completes the timeouts whose count has been reached.
pub(crate) fn flush_counted(locked: &mut LockedRing) {
    let tail = locked.cq.tail();
    if !locked.timeouts.has_counted(tail) {
        return;
    }
    let completions = locked.timeouts.count_to(tail);
    while let Some(timer) = locked.timeouts.pop_counted(completions) {
        locked.timeouts.count_ended();
        complete::complete(locked, timer.request, 0.into());
    }
}

/// Completes what has expired. Each clock is read once, so a repeating timeout repeats at most once
/// per call, however short its span is.
pub(crate) fn expire(locked: &mut LockedRing) {
    if locked.timeouts.is_empty() {
        return;
    }
    for clock in CLOCKS {
        if locked.timeouts.by_clock[lane(clock)].is_empty() {
            continue;
        }
        let now = clock.now();
        while let Some(timer) = locked.timeouts.pop_expired(clock, now) {
            match timer.deadline.watches {
                Some(target) => expire_link(locked, timer.request, target),
                None => expire_timeout(locked, timer.request, timer.deadline, now),
            }
        }
    }
    issue::run_issuable(locked);
}

fn expire_timeout(locked: &mut LockedRing, request: RequestEntry, deadline: Deadline, now: Nanoseconds) {
    locked.timeouts.count_ended();
    let result = Errno::ETIME.negative();
    let goes_on = deadline.repeat_every != 0 && deadline.repeats != 1;
    if goes_on && complete::post_more(locked, request.sqe.user_data, result, 0) {
        // The span begins anew, as on the kernel: missed repetitions are not made up for.
        let at = now.saturating_add(deadline.repeat_every);
        let repeats = deadline.repeats.saturating_sub(1);
        locked.timeouts.insert(request, Deadline { at, repeats, ..deadline }, None);
        return;
    }
    complete::complete(locked, request, Answer { result, failed: !deadline.expiry_succeeds });
}

/// Handles a watched request that is too late. The timeout's CQE comes first, then the request's
/// −ECANCELED. If a worker has the request, its system call is ended if possible, but the request
/// counts as not found.
fn expire_link(locked: &mut LockedRing, mut watcher: RequestEntry, target: RequestId) {
    let answer = match cancel::cancel_id(locked, target) {
        Found::Cancelled => watcher_answer(Errno::ETIME),
        // WAITID occupies no worker in the kernel, whose search returns the number of requests that
        // it found.
        Found::Running(opcode::WAITID) => 1.into(),
        Found::Running(_) | Found::Nothing => watcher_answer(Errno::ENOENT),
    };
    watcher.link = None;
    complete::complete(locked, watcher, answer);
}

/// Takes the requests of all armed timers, for a ring that goes away.
pub(crate) fn take_all(locked: &mut LockedRing) -> Vec<RequestEntry> {
    let lanes = core::mem::take(&mut locked.timeouts.by_clock);
    locked.timeouts.counting = 0;
    lanes.into_iter().flat_map(BTreeMap::into_values).map(|timer| timer.request).collect()
}
