//! This process's view of the page that all processes of a `usring run` share ([`crate::page`]).
//! This file has the rules in parsed form, and the numbers under which the page counts this
//! process's calls.
//!
//! The page identifies a process by a hash of its id and of the time at which it was forked. So a
//! process's counts continue after execve(2). The counts of a later process that gets its id begin
//! anew.

use crate::decide::{Call, CallOccurrence, Fault, decide};
use crate::page::{Counter, Key, OrderEvent, Page};
use crate::rule::Rule;
use crate::set::{CallSet, name_of};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use usring_device::random::Random;
use usring_sys::clock::Clock;
use usring_sys::mutex::Mutex;
use usring_sys::per_process::PerProcess;
use usring_sys::set_once::SetOnce;
use usring_sys::spread::GOLDEN;
use usring_sys::unusual::{self, Unusual};
use usring_sys::{SystemCall, width};
use usring_uapi::general as linux;

static PAGE: SetOnce<Page> = SetOnce::new();
static STATE: PerProcess<State> = PerProcess::new();
/// The rules that [`add_once`] has added.
static OWN: PerProcess<Mutex<Vec<u16>>> = PerProcess::new();
/// Faults that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// One process's view of the page.
struct State {
    /// The number that stands for this process in the keys of the page's counters.
    identity: u32,
    /// Number of this process among the processes of the run, from 1. The number is 0 until this
    /// process first makes a call that a rule names.
    number: Mutex<u32>,
    rules: Mutex<Arc<Rules>>,
}

/// The active rules of one generation.
#[derive(Default)]
struct Rules {
    generation: u64,
    /// With their indices in the page.
    active: Vec<(u16, Rule)>,
    /// The calls that any of these rules names.
    named: CallSet,
    /// Whether any rule has a condition on how a request is carried out (`by=`).
    has_issue_paths: bool,
}

/// Makes this process apply the page's rules from now on.
pub fn arm(page: Page) {
    if page.order().is_some() {
        unusual::set(Unusual::Order);
    }
    PAGE.set(Box::leak(Box::new(page)));
    unusual::set(Unusual::Faults);
}

/// Returns the page, if this process has one.
#[inline]
pub fn page() -> Option<&'static Page> {
    PAGE.get()
}

/// Returns how many faults this process has made.
pub fn made() -> u64 {
    MADE.load(Ordering::Relaxed)
}

impl Rules {
    fn read(page: &Page) -> Rules {
        let generation = page.generation();
        let entries = page.rules().into_iter().filter(|entry| entry.is_active);
        // Every rule's text in the page is valid, because a process parses a rule before it stores
        // the text.
        let active: Vec<_> = entries.filter_map(|entry| Some((entry.index, crate::parse(&entry.text).ok()?))).collect();
        let named = active.iter().fold(CallSet::default(), |named, (_, rule)| named.union(&rule.set));
        let has_issue_paths = active.iter().any(|(_, rule)| rule.conditions.by.is_some());
        Rules { generation, active, named, has_issue_paths }
    }
}

impl State {
    fn new(page: &Page) -> State {
        let (identity, number) = (identity(), Mutex::new(0));
        State { identity, number, rules: Mutex::new(Arc::new(Rules::read(page))) }
    }

    /// Returns the rules, parsed again if they have changed.
    fn rules(&self, page: &Page) -> Arc<Rules> {
        let mut rules = self.rules.lock();
        if rules.generation != page.generation() {
            *rules = Arc::new(Rules::read(page));
        }
        rules.clone()
    }

    fn number(&self, page: &Page) -> u32 {
        let mut number = self.number.lock();
        if *number == 0 {
            *number = page.number_of_process(self.identity);
        }
        *number
    }
}

/// Returns the fault that a call gets, if any. If a rule names the call, counts the call. If the
/// call gets a fault, counts the fault.
pub fn fault_of_call(call: &Call<'_>) -> Option<Fault> {
    fault_of_request(call, &mut 0)
}

/// Returns the fault that a request gets, if any. The caller may ask several times for one request,
/// at first with an `nth` of 0. Once a rule names the request, this function counts the request and
/// stores its number in `nth`. So a later call with that `nth` does not count the request again.
pub fn fault_of_request(call: &Call<'_>, nth: &mut u64) -> Option<Fault> {
    let page = PAGE.get()?;
    let state = STATE.get_or_make(|| State::new(page));
    let rules = state.rules(page);
    if !rules.named.contains(call.kind, call.number) {
        return None;
    }
    if call.issue_path.is_some() && !rules.has_issue_paths {
        return None;
    }
    let key = |counter, process, rule| Key { counter, process, rule, kind: call.kind, number: call.number };
    if *nth == 0 {
        *nth = page.count(key(Counter::Calls, state.identity, 0));
    }
    let occurrence = CallOccurrence {
        process: state.number(page),
        nth: *nth,
        elapsed: Clock::Monotonic.now().saturating_sub(page.begin_time()),
        seed: page.seed(),
    };
    let active = rules.active.iter().map(|(index, rule)| (*index, rule));
    let fault = decide(active, call, &occurrence, |rule| page.count(key(Counter::Matched, state.identity, rule)))?;
    if fault.once && !page.remove(fault.rule) {
        // Another call has just had this fault.
        return None;
    }
    page.count(key(Counter::Faults, 0, fault.rule));
    MADE.fetch_add(1, Ordering::Relaxed);
    if let Some(path) = page.log() {
        log(path, &fault, call, &occurrence);
    }
    Some(fault)
}

/// Adds a rule that applies to this process alone, makes one fault, and is then removed. Returns
/// the rule's index, or `None` if this process has no page or the page has no room.
pub fn add_once(rule: &Rule) -> Option<u16> {
    let page = PAGE.get()?;
    let number = STATE.get_or_make(|| State::new(page)).number(page);
    let mut own = rule.clone();
    // The rule applies to this process only.
    if rule.conditions.process.is_none() {
        let _ = write!(own.text, ":process={number}");
    }
    if !rule.once {
        own.text.push_str(":once");
    }
    let index = page.add(&own)?;
    OWN.get_or_make(|| Mutex::new(Vec::new())).lock().push(index);
    Some(index)
}

/// Returns whether a rule that [`add_once`] has added is still waiting to make its fault.
pub fn is_active(index: u16) -> bool {
    PAGE.get().is_some_and(|page| page.is_active(index))
}

/// Removes a rule that [`add_once`] has added. Returns `false` if the rule has made its fault
/// already.
pub fn remove_once(index: u16) -> bool {
    PAGE.get().is_some_and(|page| page.remove(index))
}

/// Removes the rules of [`add_once`] in this process that have made no fault yet.
pub fn remove_all_once() {
    let Some(own) = OWN.get() else { return };
    let own = core::mem::take(&mut *own.lock());
    own.into_iter().for_each(|index| {
        remove_once(index);
    });
}

/// Returns random numbers for the order of a ring's completions. `None` if the run has no
/// `--order`.
pub fn order_of_ring(ring: u32) -> Option<Random> {
    let page = PAGE.get()?;
    let process = STATE.get_or_make(|| State::new(page)).number(page);
    if process != 1 {
        page.note_unsure_order();
    }
    Some(Random::of(page.order()?.seed, u64::from(process) << 32 | u64::from(ring)))
}

/// Returns whether the seed of `--order` also chooses completions that find no room in the CQ.
pub fn order_overflows() -> bool {
    PAGE.get().and_then(Page::order).is_some_and(|order| order.overflows)
}

/// Counts something that the order of completions did.
pub fn count_order(event: OrderEvent) {
    PAGE.get().into_iter().for_each(|page| page.count_order(event));
}

/// Notes that the seed of `--order` alone does not determine the order of completions.
pub fn note_unsure_order() {
    PAGE.get().into_iter().for_each(Page::note_unsure_order);
}

/// Notes that this thread submits requests to a ring in a run with `--order`. If another thread has
/// done so before, the seed alone does not determine the order of completions.
pub fn note_submitter(thread: u32) {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    let known = FIRST.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed);
    if known.is_err_and(|first| first != thread) {
        PAGE.get().into_iter().for_each(Page::note_unsure_order);
    }
}

/// Returns whether any active rule names this call.
pub fn names(kind: crate::Kind, number: u16) -> bool {
    let Some(page) = PAGE.get() else { return false };
    let state = STATE.get_or_make(|| State::new(page));
    state.rules(page).named.contains(kind, number)
}

/// Appends a fault to the log: the rule that repeats it, and behind `#` further facts for the
/// reader. If the log cannot be written, the line is lost, but the call still gets the fault.
fn log(mut path: Vec<u8>, fault: &Fault, call: &Call<'_>, occurrence: &CallOccurrence) {
    let mut line = String::new();
    if fault.write(&mut line, call, occurrence).is_err() {
        return;
    }
    let _ = write!(line, " # rule {}", u32::from(fault.rule) + 1);
    if let Some(descriptor) = call.descriptor {
        let _ = write!(line, ", fd {descriptor}");
    }
    if let Some(user_data) = call.user_data {
        let _ = write!(line, ", user_data {user_data:#x}");
    }
    line.push('\n');
    path.push(0);
    let flags = linux::O_WRONLY | linux::O_APPEND | linux::O_CLOEXEC;
    let arguments = [width::word(linux::AT_FDCWD), path.as_ptr() as u64, u64::from(flags), 0, 0];
    let Ok(number) = SystemCall::new(linux::__NR_openat, arguments).run() else { return };
    let text = [number, line.as_ptr() as u64, line.len() as u64, 0, 0];
    let _ = SystemCall::new(linux::__NR_write, text).run();
    let _ = SystemCall::new(linux::__NR_close, [number, 0, 0, 0, 0]).run_once();
}

/// Returns a hash of this process's id and of the time at which this process was forked; never 0.
fn identity() -> u32 {
    let process = SystemCall::new(linux::__NR_getpid, [0; 5]).run_once().unwrap_or(0);
    let hash = (process << 40 ^ start_time().unwrap_or(0)).wrapping_mul(GOLDEN);
    width::low(hash >> 32).max(1)
}

/// Returns when this process was forked, in clock ticks since the system's start. `None`: there is
/// no /proc.
fn start_time() -> Option<u64> {
    /// Index of the process's start time in /proc/PID/stat, among the fields behind the process's
    /// name. The first of these fields, the state, has the index 0.
    const FIELD: usize = 19;
    let flags = u64::from(linux::O_RDONLY | linux::O_CLOEXEC);
    let path = [width::word(linux::AT_FDCWD), c"/proc/self/stat".as_ptr() as u64, flags, 0, 0];
    let number = SystemCall::new(linux::__NR_openat, path).run().ok()?;
    let mut text = [0u8; 1024];
    let read = [number, text.as_mut_ptr() as u64, text.len() as u64, 0, 0];
    let length = SystemCall::new(linux::__NR_read, read).run();
    let _ = SystemCall::new(linux::__NR_close, [number, 0, 0, 0, 0]).run_once();
    let text = core::str::from_utf8(text.get(..width::size(length.ok()?))?).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(FIELD)?.parse().ok()
}

/// Returns the words by which the summary names the calls of a counter, such as `ring read`.
pub fn describe(key: &Key) -> String {
    alloc::format!("{} {}", key.kind.name(), name_of(key.kind, key.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_id_and_its_start() {
        assert_eq!(identity(), identity());
        assert!(start_time().is_some_and(|ticks| ticks > 0));
    }
}
