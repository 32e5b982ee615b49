//! Makes a program's changes of credentials and namespaces (setuid(2), capset(2), unshare(2) and
//! others) in usring's threads, too.
//!
//! Linux keeps credentials per thread, and clone(2) copies them to the new thread. [`change`] makes
//! such a call for a thread of the program, and makes the service threads (threads of usring)
//! repeat it. So if a program gives up its user or its capabilities, no service thread keeps them.
//! If the program has several threads, their credentials may differ after such a call
//! ([`may_differ`]).
//!
//! Neighbours: `credential_change` has the shared words of the protocol; `own_threads` lists the
//! threads that have to repeat a change.
//!
//! - Every function may run in a signal handler that interrupts the engine. So it acquires no lock
//!   that a thread holds outside this file, uses no allocator, and waits a bounded time.
//! - The lock of a change (`CHANGE_LOCK`) is only held inside a signal handler that blocks every
//!   signal.
//! - If a service thread is late with a change, or fails, the threads' credentials count as
//!   different. No request is then carried out with that service thread's credentials.

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
use crate::{Errno, SystemCall, program_threads, syscall, width};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use linux_raw_sys::general as linux;

/// Replaces the futex when the loom models are built, because loom's atomics have another type. No
/// model runs this file.
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

/// Numbers of the system calls that change only the calling thread's rights. chroot(2) and similar
/// calls are not in the list: all threads, usring's too, share their effect (CLONE_FS).
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

/// Longest time that a change waits for the service threads, in nanoseconds.
pub const ANSWER_TIMEOUT_NS: Nanoseconds = 1_000_000_000;
const CHECK_INTERVAL_NS: Nanoseconds = 10_000_000;

#[cfg(not(loom))]
static GENERATIONS: Generations = Generations::new();
#[cfg(not(loom))]
static ORDER: Order = Order::new();

#[cfg(loom)]
loom::lazy_static! {
    static ref GENERATIONS: Generations = Generations::new();
    static ref ORDER: Order = Order::new();
}

/// The lock of a change of credentials: 1 while a thread gives an order to the service threads and
/// waits for their answers.
static CHANGE_LOCK: AtomicU32 = AtomicU32::new(0);
/// Number of answers that service threads have given to orders to change their credentials. A
/// futex: the thread that gave the order sleeps on it until the service threads have answered.
static ANSWERS: AtomicU32 = AtomicU32::new(0);

/// The last generation (number of changes so far) in which all threads had equal credentials. Valid
/// only while the threads' credentials differ.
static LAST_ALIKE: AtomicU32 = AtomicU32::new(0);

/// For each thread, the number of its changes after which the threads' credentials differed. The
/// index is the thread id modulo the length. If two threads share an entry, the number is too high
/// for each.
static CHANGES_BY_THREAD: [AtomicU32; 4096] = [const { AtomicU32::new(0) }; 4096];

/// The functions to call before and after each change of credentials; null before [`set_observer`].
static OBSERVER: AtomicPtr<Observer> = AtomicPtr::new(core::ptr::null_mut());

/// Whether every change of credentials by a thread of the program goes through [`change`].
static ALL_CHANGES_PASS_HERE: AtomicBool = AtomicBool::new(false);

/// Records that from now on every change of credentials by a thread of the program goes through
/// [`change`].
pub fn note_all_changes_pass_here() {
    ALL_CHANGES_PASS_HERE.store(true, Ordering::Relaxed);
}

/// Returns whether it is known that all threads of the program have equal credentials.
pub fn are_alike() -> bool {
    ALL_CHANGES_PASS_HERE.load(Ordering::Relaxed) && !may_differ()
}

/// Functions that are called before and after each change of credentials, in a signal handler.
#[derive(Debug)]
pub struct Observer {
    /// Called before a change. The argument is `true` under two conditions. First, the threads'
    /// credentials differ after this change, and did not differ before. Second, threads of usring
    /// are allowed to keep the earlier credentials.
    pub before: fn(bool),
    pub after: fn(),
}

/// Sets the functions that are called before and after each change of credentials.
pub fn set_observer(observer: &'static Observer) {
    OBSERVER.store(core::ptr::from_ref(observer).cast_mut(), Ordering::Release);
}

fn observer() -> Option<&'static Observer> {
    // SAFETY: the pointer is null, or a `&'static Observer` that `set_observer` stored.
    unsafe { OBSERVER.load(Ordering::Acquire).as_ref() }
}

/// Returns whether threads of this process may have different credentials.
#[inline(always)]
pub fn may_differ() -> bool {
    unusual::has(Unusual::Credentials)
}

/// Returns the number of changes of credentials that have ended so far, by all threads.
pub fn generation() -> u32 {
    GENERATIONS.ended()
}

/// Returns the shared words by which a new thread of usring determines the generation of its
/// credentials.
pub(crate) fn shared_words() -> (&'static Generations, &'static Order) {
    (&GENERATIONS, &ORDER)
}

/// Returns the last generation in which all threads had equal credentials. Valid only while the
/// threads' credentials differ.
pub fn last_alike() -> u32 {
    LAST_ALIKE.load(Ordering::Acquire)
}

/// Returns the generation of the credentials with which the calling thread, a thread of usring,
/// started. `None` if a change was under way at its start.
pub fn generation_of_birth() -> Option<u32> {
    own_threads::current().and_then(Slot::generation)
}

/// Returns whether the calling thread has the credentials that all threads of the program have.
/// Valid only while [`may_differ`] returns `false`.
pub fn has_common() -> bool {
    let generation = generation();
    if generation == 0 {
        return true;
    }
    let is_of_spawn = |slot: &&Slot| slot.has(Credentials::OfSpawn);
    own_threads::current().filter(is_of_spawn).is_none_or(|slot| slot.generation() == Some(generation))
}

/// Returns how often a thread has changed its credentials so that they differed from those of other
/// threads. The number may be too high, because several threads can share a counter.
pub fn changes_of(thread: u32) -> u32 {
    changes_word(thread).load(Ordering::Acquire)
}

fn changes_word(thread: u32) -> &'static AtomicU32 {
    &CHANGES_BY_THREAD[thread as usize % CHANGES_BY_THREAD.len()]
}

/// Whether a thread of a forked child has changed its credentials before [`forget_after_fork`] ran.
static CHANGED_EARLY: AtomicBool = AtomicBool::new(false);

/// Resets this file's state in a forked child, which has no thread of usring. If a thread has
/// called [`change_early`] and the child has another thread, the threads' credentials then count as
/// different. Otherwise they count as equal.
pub fn forget_after_fork() {
    let differ = CHANGED_EARLY.swap(false, Ordering::Relaxed) && !is_only_thread();
    LAST_ALIKE.store(u32::MAX, Ordering::Relaxed);
    if differ {
        unusual::set(Unusual::Credentials)
    } else {
        unusual::clear(Unusual::Credentials)
    }
    CHANGE_LOCK.store(0, Ordering::Relaxed);
    // At the fork, a thread of the parent may have been changing its credentials. That thread does
    // not exist in the child.
    GENERATIONS.forget_unfinished();
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

/// Makes one of [`CALLS`] for a thread of the program. Then makes the service threads repeat the
/// call. Returns the kernel's answer. Called in a signal handler that blocks every signal.
pub fn change(number: u32, arguments: [u64; 3]) -> u64 {
    if is_only_thread() {
        return change_alone(number, arguments);
    }
    // A service thread cannot repeat unshare(2) or setns(2) with the same effect.
    let is_followed = !matches!(number, linux::__NR_unshare | linux::__NR_setns);
    let differs = may_differ() || !is_followed || !is_programs_only_thread();
    if let Some(observer) = observer() {
        (observer.before)(differs && !may_differ() && may_be_kept(number));
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

/// Returns whether threads of usring are allowed to keep the credentials that the calling thread
/// gives up by the call `number`. They are not if the calling thread has effective capabilities, or
/// if the call restricts it by Landlock. In both cases no thread may keep the old rights.
fn may_be_kept(number: u32) -> bool {
    let has_none = |[low, high]: Sets| low[0] == 0 && high[0] == 0;
    number != linux::__NR_landlock_restrict_self && capability::get().is_ok_and(has_none)
}

/// Records that from now on the calling thread's credentials differ from those of other threads.
fn note_difference(generation_before: u32) {
    changes_word(thread_id()).fetch_add(1, Ordering::Release);
    if !may_differ() {
        LAST_ALIKE.store(generation_before, Ordering::Release);
    }
    unusual::set(Unusual::Credentials);
}

/// Makes one of [`CALLS`] for the calling thread only. No other thread repeats it.
pub fn change_alone(number: u32, [a, b, c]: [u64; 3]) -> u64 {
    match SystemCall::new(number, [a, b, c, 0, 0]).run_once() {
        Ok(value) => value,
        Err(error) => i64::from(error.negative()).cast_unsigned(),
    }
}

/// Returns whether the caller is the process's only thread. unshare(CLONE_THREAD) succeeds only for
/// such a thread, and then has no effect.
fn is_only_thread() -> bool {
    SystemCall::new(linux::__NR_unshare, [u64::from(linux::CLONE_THREAD), 0, 0, 0, 0]).run_once().is_ok()
}

/// Maximum number of times that the /proc/self/task directory is read. It is read again if it lists
/// a thread that may be a thread of usring which is just starting or about to end.
const MOST_READS: u32 = 20;

/// Returns whether the caller is the program's only thread. Returns `false`, too, if that cannot be
/// determined.
fn is_programs_only_thread() -> bool {
    is_only_thread_by(other_thread)
}

/// Calls `find` until its answer is certain, but at most [`MOST_READS`] times, with pauses. Returns
/// `true` only if the last answer was that there is no other thread.
fn is_only_thread_by(find: impl Fn() -> Result<OtherThread, Errno>) -> bool {
    for _ in 0..MOST_READS {
        match find() {
            Ok(OtherThread::Nothing) => return true,
            Ok(OtherThread::Certain) => return false,
            Ok(OtherThread::Possible) | Err(_) => {
                let _ = futex::wait(&AtomicU32::new(0), 0, Some(CHECK_INTERVAL_NS / 100));
            }
        }
    }
    false
}

/// Whether /proc/self/task lists a thread that is neither the caller nor usring's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherThread {
    Nothing,
    /// /proc/self/task lists a thread that may be the program's or usring's.
    Possible,
    /// /proc/self/task lists a thread that is certainly the program's.
    Certain,
}

fn other_thread() -> Result<OtherThread, Errno> {
    let caller = thread_id();
    let found = Cell::new(OtherThread::Nothing);
    program_threads::find(|thread| {
        if thread != caller && own_threads::owner_of(thread) != Owner::Usring {
            let is_certain = own_threads::is_certainly_programs(thread);
            found.set(if is_certain { OtherThread::Certain } else { OtherThread::Possible });
        }
        found.get() == OtherThread::Certain
    })?;
    Ok(found.get())
}

/// Arguments with which the service threads repeat the call, in place of the caller's pointers.
/// They are made from the credentials that the calling thread has after its call. The caller's
/// memory is not read again, because another thread of the program could change it.
struct CopiedArguments {
    arguments: [u64; 3],
    /// For setgroups(2): address and length of the pages in which usring holds the list of groups.
    pages: Option<(usize, usize)>,
}

impl CopiedArguments {
    fn of(number: u32, arguments: [u64; 3]) -> Result<CopiedArguments, Errno> {
        let mut copied = CopiedArguments { arguments, pages: None };
        match number {
            linux::__NR_capset => copied.arguments = packed(&capability::get()?),
            linux::__NR_setgroups => {
                let get = |count, list| SystemCall::new(linux::__NR_getgroups, [count, list, 0, 0, 0]).run();
                let count = get(0, 0)?;
                let length = (width::size(count) * size_of::<u32>()).next_multiple_of(mapping::PAGE).max(mapping::PAGE);
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

/// Packs capability sets into three arguments: effective, permitted and inheritable.
fn packed([low, high]: &Sets) -> [u64; 3] {
    core::array::from_fn(|set| u64::from(high[set]) << 32 | u64::from(low[set]))
}

fn unpacked(sets: [u64; 3]) -> Sets {
    [sets.map(width::low), sets.map(|set| (set >> 32) as u32)]
}

impl Drop for CopiedArguments {
    fn drop(&mut self) {
        if let Some((address, length)) = self.pages {
            let _ = mapping::unmap(address, length);
        }
    }
}

/// Makes the service threads repeat a call, and waits for their answers. Returns whether each
/// service thread now has the calling thread's credentials.
fn have_followed(number: u32, arguments: [u64; 3]) -> bool {
    let end = Clock::Monotonic.now() + ANSWER_TIMEOUT_NS;
    while CHANGE_LOCK.swap(1, Ordering::Acquire) != 0 {
        if Clock::Monotonic.now() > end {
            // Another change of credentials has held `CHANGE_LOCK` for `ANSWER_TIMEOUT_NS`. It is
            // waiting for a service thread that is stuck in the kernel.
            return false;
        }
        let _ = futex::wait(&CHANGE_LOCK, 1, Some(CHECK_INTERVAL_NS));
    }
    let followed = CopiedArguments::of(number, arguments).is_ok_and(|copied| {
        let [a, b, c] = copied.arguments;
        let order = ORDER.publish([u64::from(number), a, b, c, secure_bits()]);
        let all_came = wait_for_followers(order, end);
        if !all_came {
            // The list of groups lies in pages that a late service thread may still read. So usring
            // never frees these pages.
            core::mem::forget(copied);
        }
        all_came && are_followers_like(order, state())
    });
    CHANGE_LOCK.store(0, Ordering::Release);
    futex::wake(&CHANGE_LOCK, 1);
    followed
}

/// Signals the service threads until each has carried out the order `order`, or until the time
/// `end`. Returns whether each service thread has carried out the order.
fn wait_for_followers(order: u32, end: Nanoseconds) -> bool {
    let lags = |slot: &&Slot| slot.following().is_some() && slot.follower.state_after(order).is_none();
    loop {
        let answers = ANSWERS.load(Ordering::Acquire);
        // Each iteration sends the signal again, because a signal can be lost (limit of queued
        // signals).
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
        let _ = futex::wait(&ANSWERS, answers, Some(CHECK_INTERVAL_NS));
    }
}

fn are_followers_like(order: u32, caller: u64) -> bool {
    own_threads::all().filter(|slot| slot.following().is_some()).all(|slot| {
        let mask = if slot.has(Credentials::Service) { IDENTITY } else { u64::MAX };
        slot.follower.state_after(order).is_none_or(|state| state & mask == caller & mask)
    })
}

/// Repeats the system call that the last [`Order`] names. Does nothing if the calling thread is no
/// service thread, or has repeated the call before. Called in a signal handler, for a SIGSYS that
/// usring sent.
pub fn follow() {
    if ORDER.last() == 0 {
        return;
    }
    let Some(slot) = own_threads::current_by_id().filter(|slot| slot.following().is_some()) else { return };
    let Some((order, [number, a, b, c, bits])) = ORDER.take(slot.follower.last_made()) else { return };
    let number = width::low(number);
    assume_secure_bits(bits);
    let refused = if number == linux::__NR_capset {
        let sets = unpacked([a, b, c]);
        if slot.has(Credentials::Service) { capability::follow(&sets) } else { capability::set(&sets) }.is_err()
    } else {
        syscall::check(change_alone(number, [a, b, c])).is_err()
    };
    // The service thread's answer is normally the hash of its credentials, which shows whether the
    // call had its effect. The hash does not cover Landlock and the groups of setgroups(2). So for
    // these two calls the kernel's answer decides, and the inverted hash reports a failure.
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

/// Returns the calling thread's securebits. They decide how a change of the user affects
/// capabilities. A program sets them by prctl(2), which usring does not trap.
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

/// Mask of the upper half of the result of [`state`]: the hash of users and groups. If a service
/// thread has reduced capabilities, it has only this half in common with the program.
const IDENTITY: u64 = u64::MAX << 32;

/// Returns two hashes of 32 bits. The upper half of the result is the hash of the calling thread's
/// users and groups. The lower half is the hash of its capabilities.
fn state() -> u64 {
    let mut identity = [0u32; 8];
    let [a, b, c, d, e, f, ..] = &mut identity;
    let users = [&raw mut *a as u64, &raw mut *b as u64, &raw mut *c as u64, 0, 0];
    let groups = [&raw mut *d as u64, &raw mut *e as u64, &raw mut *f as u64, 0, 0];
    let _ = SystemCall::new(linux::__NR_getresuid, users).run_once();
    let _ = SystemCall::new(linux::__NR_getresgid, groups).run_once();
    // setfsuid(2) and setfsgid(2) return the id that was in force before the call. −1 is no valid
    // id, so these calls only read the id.
    let current = |number| SystemCall::new(number, [u64::from(u32::MAX), 0, 0, 0, 0]).run_once().unwrap_or(0);
    (identity[6], identity[7]) = (width::low(current(linux::__NR_setfsuid)), width::low(current(linux::__NR_setfsgid)));
    let capabilities = capability::get().unwrap_or_default();
    let [low, high] = capabilities;
    let capabilities = [low[0], low[1], high[0], high[1]];
    u64::from(hash(&identity)) << 32 | u64::from(hash(&capabilities))
}

/// Returns the FNV-1a hash of the bytes of `words`.
fn hash(words: &[u32]) -> u32 {
    words.iter().fold(0x811c_9dc5, |hash: u32, word| {
        word.to_le_bytes().iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_certainly_the_programs_ends_the_search() {
        let reads = Cell::new(0);
        let answering = |answers: &[OtherThread]| {
            reads.set(0);
            let is_only = is_only_thread_by(|| {
                let answer = answers[(reads.get() as usize).min(answers.len() - 1)];
                reads.set(reads.get() + 1);
                Ok(answer)
            });
            (is_only, reads.get())
        };
        assert_eq!(answering(&[OtherThread::Possible, OtherThread::Nothing]), (true, 2));
        assert_eq!(answering(&[OtherThread::Possible, OtherThread::Certain]), (false, 2));
        assert_eq!(answering(&[OtherThread::Possible]), (false, MOST_READS));
    }

    #[test]
    fn another_thread_of_the_program_is_recognised_at_once() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv().is_err());
        // Another test may be starting a thread of usring. At that moment the answer is not
        // certain, so it is asked for again.
        assert!((0..1000).any(|_| other_thread() == Ok(OtherThread::Certain)));
        drop(end);
        assert!(other.join().unwrap());
    }
}
