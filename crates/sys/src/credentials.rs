//! Changes of a thread's credentials, and of its root, working directory and namespaces.
//!
//! Linux keeps all of these per thread, and clone(2) copies them to the new thread. [`change`]
//! makes such a call for a thread of the program, and lets the process's service threads make it,
//! too. So a program that has given up its user or its capabilities has no thread left that holds
//! them. If the program has other threads, the changed thread differs from them ([`differ`]).
//!
//! Neighbours: `credential_change` has the words of the protocol and its models; `own_threads` has
//! the threads that follow a change.
//!
//! - Every function may run in a signal handler that interrupts the engine. It takes no lock that a
//!   thread holds outside this file, allocates nothing, and waits a bounded time.
//! - The lock of a change is only held inside a signal handler that blocks every signal.
//! - A service thread that lags, or cannot follow, counts as a difference between threads. No
//!   request is then carried out with its rights any more.

use crate::capability::{self, Sets};
use crate::clock::{Clock, Nanoseconds};
use crate::credential_change::{Generations, Order};
#[cfg(not(loom))]
use crate::futex;
use crate::mapping::{self, private_pages};
use crate::own_threads::{self, Owner, Slot};
use crate::signals::thread_id;
use crate::thread::Credentials;
use crate::unusual::{self, Unusual};
use crate::wait::SignalInformation;
use crate::{Errno, SystemCall, program_threads, syscall};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use linux_raw_sys::general as linux;

/// Replaces the futex in models, whose words have another type. No model uses this file.
#[cfg(loom)]
mod futex {
    use super::{AtomicU32, Errno, Nanoseconds};

    pub fn wait(_: &AtomicU32, _: u32, _: Option<Nanoseconds>) -> Result<(), Errno> {
        Ok(())
    }

    pub fn wake(_: &AtomicU32, _: u32) -> u32 {
        0
    }
}

const LANDLOCK_RESTRICT_SELF: u32 = linux::__NR_landlock_restrict_self;

/// The calls by which a thread changes the rights of its requests. The file-system view that
/// CLONE_FS shares is not among them.
pub const CALLS: [u32; 13] = [
    linux::__NR_setuid,
    linux::__NR_setgid,
    linux::__NR_setreuid,
    linux::__NR_setregid,
    linux::__NR_setresuid,
    linux::__NR_setresgid,
    linux::__NR_setfsuid,
    linux::__NR_setfsgid,
    linux::__NR_setgroups,
    linux::__NR_capset,
    LANDLOCK_RESTRICT_SELF,
    linux::__NR_unshare,
    linux::__NR_setns,
];

/// Longest time that a change waits for the service threads.
pub const PATIENCE: Nanoseconds = 1_000_000_000;
const BETWEEN_LOOKS: Nanoseconds = 10_000_000;

#[cfg(not(loom))]
static GENERATIONS: Generations = Generations::new();
#[cfg(not(loom))]
static ORDER: Order = Order::new();

#[cfg(loom)]
loom::lazy_static! {
    static ref GENERATIONS: Generations = Generations::new();
    static ref ORDER: Order = Order::new();
}

/// Lock: 1 while a thread gives an order and waits for the answers.
static ORDERING: AtomicU32 = AtomicU32::new(0);
/// Counts answers; the changing thread sleeps on it.
static ANSWERS: AtomicU32 = AtomicU32::new(0);

/// The last generation in which all threads had the same credentials, if they differ now.
static LAST_ALIKE: AtomicU32 = AtomicU32::new(0);

/// Number of changes by each thread, at its thread id modulo the length. If two threads share an
/// entry, each seems to have changed more often than it has.
static CHANGES_BY_THREAD: [AtomicU32; 4096] = [const { AtomicU32::new(0) }; 4096];

/// Set by [`set_observer`]; null before.
static OBSERVER: AtomicPtr<Observer> = AtomicPtr::new(core::ptr::null_mut());

/// Whether every change by a thread of the program goes through [`change`].
static SEEN: AtomicBool = AtomicBool::new(false);

/// Notes that every change by a thread of the program goes through [`change`] from now on.
pub fn see_all() {
    SEEN.store(true, Ordering::Relaxed);
}

/// Returns whether all threads of the program are known to have the same credentials.
pub fn are_alike() -> bool {
    SEEN.load(Ordering::Relaxed) && !differ()
}

/// Functions that are called around each change, in a signal handler.
#[derive(Debug)]
pub struct Observer {
    /// Called before a thread changes. `true`: the threads' credentials are going to differ, for
    /// the first time, and a thread may keep the earlier rights.
    pub before: fn(bool),
    pub after: fn(),
}

/// Sets the functions that are called around each change.
pub fn set_observer(observer: &'static Observer) {
    OBSERVER.store(core::ptr::from_ref(observer).cast_mut(), Ordering::Release);
}

fn observer() -> Option<&'static Observer> {
    // SAFETY: the pointer is null, or a reference that lives for ever, stored by `set_observer`.
    unsafe { OBSERVER.load(Ordering::Acquire).as_ref() }
}

/// Returns whether threads of this process may differ in their rights.
#[inline(always)]
pub fn differ() -> bool {
    unusual::has(Unusual::Credentials)
}

/// Returns the number of changes so far, of all threads.
pub fn generation() -> u32 {
    GENERATIONS.ended()
}

/// Returns the words by which a new thread learns of changes.
pub(crate) fn words() -> (&'static Generations, &'static Order) {
    (&GENERATIONS, &ORDER)
}

/// Returns the last generation in which all threads had the same credentials, if they differ now.
pub fn last_alike() -> u32 {
    LAST_ALIKE.load(Ordering::Acquire)
}

/// Returns the generation of the credentials that the calling thread started with. The caller is a
/// thread of usring that keeps them. `None`: a change was under way at its start.
pub fn generation_of_birth() -> Option<u32> {
    own_threads::current().and_then(Slot::generation)
}

/// Returns whether the calling thread has the credentials that all threads of the program share.
/// The caller has checked that the threads' credentials do not differ ([`differ`]).
pub fn has_common() -> bool {
    let generation = generation();
    if generation == 0 {
        return true;
    }
    let is_of_spawn = |slot: &&Slot| slot.has(Credentials::OfSpawn);
    own_threads::current().filter(is_of_spawn).is_none_or(|slot| slot.generation() == Some(generation))
}

/// Returns how often a thread has changed its credentials. The number may be too high
/// (`CHANGES_BY_THREAD`).
pub fn changes_of(thread: u32) -> u32 {
    changes_word(thread).load(Ordering::Acquire)
}

fn changes_word(thread: u32) -> &'static AtomicU32 {
    &CHANGES_BY_THREAD[thread as usize % CHANGES_BY_THREAD.len()]
}

/// Whether a thread of a forked child has changed its credentials before [`forget_after_fork`] ran.
static CHANGED_EARLY: AtomicBool = AtomicBool::new(false);

/// Resets the state in a forked child, which has no thread of usring. The child's threads differ
/// only if one of several has changed by now ([`change_early`]).
pub fn forget_after_fork() {
    let differ = CHANGED_EARLY.swap(false, Ordering::Relaxed) && !is_only_thread();
    LAST_ALIKE.store(u32::MAX, Ordering::Relaxed);
    if differ {
        unusual::set(Unusual::Credentials)
    } else {
        unusual::clear(Unusual::Credentials)
    }
    ORDERING.store(0, Ordering::Relaxed);
    // A thread of the parent may have been changing at the fork. It is not in the child.
    GENERATIONS.forget_unended();
    ORDER.forget_unfinished();
    own_threads::forget();
}

/// Makes one of [`CALLS`] for a thread of a forked child before [`forget_after_fork`] has run
/// there.
pub fn change_early(number: u32, arguments: [u64; 3]) -> u64 {
    let answer = change_alone(number, arguments);
    if syscall::check(answer).is_ok() && !is_only_thread() {
        CHANGED_EARLY.store(true, Ordering::Relaxed);
    }
    answer
}

/// Makes one of [`CALLS`] for a thread of the program, and lets the service threads follow. Returns
/// the kernel's answer. For a signal handler that blocks every signal.
pub fn change(number: u32, arguments: [u64; 3]) -> u64 {
    if is_only_thread() {
        return change_alone(number, arguments);
    }
    // A service thread cannot follow a change by unshare(2) or setns(2).
    let is_followed = !matches!(number, linux::__NR_unshare | linux::__NR_setns);
    let differs = differ() || !is_followed || !is_programs_only_thread();
    if let Some(observer) = observer() {
        (observer.before)(differs && !differ() && may_be_kept(number));
    }
    let before = GENERATIONS.ended();
    GENERATIONS.begin();
    let answer = change_alone(number, arguments);
    if syscall::check(answer).is_ok() {
        if differs {
            note_difference(before);
        }
        if is_followed && !have_followed(number, arguments) && !differs {
            note_difference(before);
        }
    }
    GENERATIONS.end();
    if let Some(observer) = observer() {
        (observer.after)();
    }
    answer
}

/// Returns whether threads of usring may keep the rights that the calling thread gives up by this
/// change. `false` if the caller has effective capabilities, or restricts itself by Landlock: a
/// process that gives these up must have no thread left that holds them.
fn may_be_kept(number: u32) -> bool {
    let has_none = |[low, high]: Sets| low[0] == 0 && high[0] == 0;
    number != linux::__NR_landlock_restrict_self && capability::get().is_ok_and(has_none)
}

/// Notes that the calling thread's credentials differ from those of others from now on.
fn note_difference(generation_before: u32) {
    changes_word(thread_id()).fetch_add(1, Ordering::Release);
    if !differ() {
        LAST_ALIKE.store(generation_before, Ordering::Release);
    }
    unusual::set(Unusual::Credentials);
}

/// Makes one of [`CALLS`] for the calling thread, which is the only thread of its process.
pub fn change_alone(number: u32, [a, b, c]: [u64; 3]) -> u64 {
    match SystemCall::new(number, [a, b, c, 0, 0]).run_once() {
        Ok(value) => value,
        Err(error) => i64::from(error.negative()) as u64,
    }
}

/// Returns whether the caller is the process's only thread. unshare(CLONE_THREAD) succeeds, without
/// effect, only then.
fn is_only_thread() -> bool {
    SystemCall::new(linux::__NR_unshare, [u64::from(linux::CLONE_THREAD), 0, 0, 0, 0]).run_once().is_ok()
}

/// Maximum number of times that the thread list is read. A thread of usring that is being started
/// may already be in the list, but not in the table, so the list is read again.
const LOOKS: u32 = 20;

/// Returns whether the caller is the program's only thread. `false` if that is not known.
fn is_programs_only_thread() -> bool {
    (0..LOOKS).any(|look| {
        if look > 0 {
            let _ = futex::wait(&AtomicU32::new(0), 0, Some(BETWEEN_LOOKS / 100));
        }
        lists_only_ours().unwrap_or(false)
    })
}

fn lists_only_ours() -> Result<bool, Errno> {
    let caller = thread_id();
    let is_other = |thread: u32| thread != caller && own_threads::owner_of(thread) != Owner::Usring;
    program_threads::find(is_other).map(|found| found.is_none())
}

/// Arguments for followers, in place of the caller's pointers: the calling thread's credentials
/// after the call, read from the kernel. So no other thread of the program can replace them
/// meanwhile.
struct Copied {
    arguments: [u64; 3],
    /// For setgroups(2): address and length of usring's own pages, which hold the list of groups.
    pages: Option<(usize, usize)>,
}

impl Copied {
    fn of(number: u32, arguments: [u64; 3]) -> Result<Copied, Errno> {
        let mut copied = Copied { arguments, pages: None };
        match number {
            linux::__NR_capset => copied.arguments = packed(&capability::get()?),
            linux::__NR_setgroups => {
                let get = |count, list| SystemCall::new(linux::__NR_getgroups, [count, list, 0, 0, 0]).run();
                let count = get(0, 0)?;
                let length = (count as usize * size_of::<u32>()).next_multiple_of(mapping::PAGE).max(mapping::PAGE);
                let address = private_pages(length)?;
                copied.pages = Some((address, length));
                get(count, address as u64)?;
                copied.arguments = [count, address as u64, 0];
            }
            _ => {}
        }
        Ok(copied)
    }
}

/// Packs capabilities into three arguments, one for each set.
fn packed([low, high]: &Sets) -> [u64; 3] {
    core::array::from_fn(|set| u64::from(high[set]) << 32 | u64::from(low[set]))
}

fn unpacked(sets: [u64; 3]) -> Sets {
    [sets.map(|set| set as u32), sets.map(|set| (set >> 32) as u32)]
}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Some((address, length)) = self.pages {
            let _ = mapping::unmap(address, length);
        }
    }
}

/// Lets the service threads make the call, and waits for them. Returns whether each of them now has
/// the calling thread's credentials.
fn have_followed(number: u32, arguments: [u64; 3]) -> bool {
    let end = Clock::Monotonic.now() + PATIENCE;
    while ORDERING.swap(1, Ordering::Acquire) != 0 {
        if Clock::Monotonic.now() > end {
            // Another change holds the lock: one of its service threads is stuck in the kernel.
            return false;
        }
        let _ = futex::wait(&ORDERING, 1, Some(BETWEEN_LOOKS));
    }
    let followed = Copied::of(number, arguments).is_ok_and(|copied| {
        let [a, b, c] = copied.arguments;
        let order = ORDER.give([u64::from(number), a, b, c, secure_bits()]);
        let all_came = wait_for_followers(order, end);
        if !all_came {
            // A late follower still reads these pages, so they are never freed.
            core::mem::forget(copied);
        }
        all_came && are_followers_like(order, state())
    });
    ORDERING.store(0, Ordering::Release);
    futex::wake(&ORDERING, 1);
    followed
}

/// Signals the followers until each has answered, or until `end`.
fn wait_for_followers(order: u32, end: Nanoseconds) -> bool {
    let lags = |slot: &&Slot| slot.following().is_some() && slot.follower.state_after(order).is_none();
    loop {
        let answers = ANSWERS.load(Ordering::Acquire);
        // Each round signals again, because a signal can be lost (limit of queued signals, mask).
        let mut lagging = own_threads::all().filter(lags).filter_map(Slot::following).peekable();
        if lagging.peek().is_none() {
            return true;
        }
        if Clock::Monotonic.now() > end {
            return false;
        }
        for thread in lagging {
            SignalInformation::follow().send_to(thread);
        }
        let _ = futex::wait(&ANSWERS, answers, Some(BETWEEN_LOOKS));
    }
}

fn are_followers_like(order: u32, caller: u64) -> bool {
    own_threads::all().filter(|slot| slot.following().is_some()).all(|slot| {
        let mask = if slot.has(Credentials::Service) { IDENTITY } else { u64::MAX };
        slot.follower.state_after(order).is_none_or(|state| state & mask == caller & mask)
    })
}

/// Follows a change, if the calling thread is a service thread and has not followed it yet. Called
/// in a handler, for a signal that usring sent.
pub fn follow() {
    if ORDER.last() == 0 {
        return;
    }
    let Some(slot) = own_threads::current_by_id().filter(|slot| slot.following().is_some()) else { return };
    let Some((order, [number, a, b, c, bits])) = ORDER.take(slot.follower.made()) else { return };
    let number = number as u32;
    assume_secure_bits(bits);
    let refused = if number == linux::__NR_capset {
        let sets = unpacked([a, b, c]);
        if slot.has(Credentials::Service) { capability::follow(&sets) } else { capability::set(&sets) }.is_err()
    } else {
        syscall::check(change_alone(number, [a, b, c])).is_err()
    };
    // A state shows the effect of all other calls.
    let has_failed = matches!(number, LANDLOCK_RESTRICT_SELF | linux::__NR_setgroups) && refused;
    slot.follower.answer(order, if has_failed { !state() } else { state() });
    ANSWERS.fetch_add(1, Ordering::Release);
    futex::wake(&ANSWERS, u32::MAX);
}

/// Options of prctl(2), which `linux-raw-sys` has only in another module.
const PR_SET_KEEPCAPS: u64 = 8;
const PR_GET_SECUREBITS: u64 = 27;
const PR_SET_SECUREBITS: u64 = 28;
/// `SECBIT_KEEP_CAPS`.
const KEEP_CAPABILITIES: u64 = 1 << 4;

/// Returns the calling thread's securebits. They decide the effect of a change of user on its
/// capabilities. prctl(2), which sets them, is not trapped.
fn secure_bits() -> u64 {
    SystemCall::new(linux::__NR_prctl, [PR_GET_SECUREBITS, 0, 0, 0, 0]).run_once().unwrap_or(0)
}

fn assume_secure_bits(wanted: u64) {
    let own = secure_bits();
    if (own ^ wanted) & KEEP_CAPABILITIES != 0 {
        let keeps = u64::from(wanted & KEEP_CAPABILITIES != 0);
        let _ = SystemCall::new(linux::__NR_prctl, [PR_SET_KEEPCAPS, keeps, 0, 0, 0]).run_once();
    }
    if (own ^ wanted) & !KEEP_CAPABILITIES != 0 {
        let _ = SystemCall::new(linux::__NR_prctl, [PR_SET_SECUREBITS, wanted, 0, 0, 0]).run_once();
    }
}

/// The part of a [`state`] that a service thread without capabilities shares with the program.
const IDENTITY: u64 = u64::MAX << 32;

/// Returns the calling thread's users and groups, and its capabilities, as hashes of 32 bits each.
fn state() -> u64 {
    let mut identity = [0u32; 8];
    let [a, b, c, d, e, f, ..] = &mut identity;
    let users = [&raw mut *a as u64, &raw mut *b as u64, &raw mut *c as u64, 0, 0];
    let groups = [&raw mut *d as u64, &raw mut *e as u64, &raw mut *f as u64, 0, 0];
    let _ = SystemCall::new(linux::__NR_getresuid, users).run_once();
    let _ = SystemCall::new(linux::__NR_getresgid, groups).run_once();
    // setfsuid(2) and setfsgid(2) return the number in force. −1 is no valid id, so they change
    // nothing.
    let current = |number| SystemCall::new(number, [u64::from(u32::MAX), 0, 0, 0, 0]).run_once().unwrap_or(0);
    (identity[6], identity[7]) = (current(linux::__NR_setfsuid) as u32, current(linux::__NR_setfsgid) as u32);
    let capabilities = capability::get().unwrap_or_default();
    let [low, high] = capabilities;
    let capabilities = [low[0], low[1], high[0], high[1]];
    u64::from(hash(&identity)) << 32 | u64::from(hash(&capabilities))
}

/// FNV-1a, over the bytes of each word.
fn hash(words: &[u32]) -> u32 {
    words.iter().fold(0x811c_9dc5, |hash: u32, word| {
        word.to_le_bytes().iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
    })
}
