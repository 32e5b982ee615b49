//! Changes of a thread's credentials, and of its root, working directory and namespaces.
//!
//! Linux keeps all of these per thread; clone(2) hands them to the new thread. [`change`] makes
//! such a call for a thread of the program and has the process's service threads make it, too: a
//! program that has given up its user or its capabilities is left with no thread that has them.
//! If the program has other threads, the one that has changed differs from them ([`differ`]).
//!
//! - Everything here may run in a signal handler that interrupts the engine. It takes no lock that
//!   a thread holds outside this file, allocates nothing, and waits a bounded time.
//! - The lock of a change is only held inside a signal handler that blocks every signal.
//! - The table names each thread of ours from clone(2) on (CLONE_PARENT_SETTID) to its end. So no
//!   change can fall between a thread's start and its entry, and no thread of ours is taken for one
//!   of the program's.

use crate::clock::{Clock, Nanoseconds};
#[cfg(not(loom))]
use crate::futex;
use crate::signals::thread_id;
use crate::thread::Credentials;
use crate::unusual::{self, Unusual};
use crate::wait::SignalInformation;
use crate::{Errno, SystemCall, UserAddress, program_threads, syscall, user_memory};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// Stands in for the futex of the models, whose words have another type. No model uses this file.
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

/// The calls by which a thread changes what its requests may do, other than by the file system
/// view that CLONE_FS shares.
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

/// Threads of ours in a process; more are not started.
const THREADS: usize = 4096;
/// How long a change waits for the service threads.
const PATIENCE: Nanoseconds = 1_000_000_000;
const BETWEEN_LOOKS: Nanoseconds = 10_000_000;

/// A thread of ours.
struct Slot {
    /// Thread id; [`FREE`]; or [`RESERVED`] until clone(2) has written the id. The kernel frees it
    /// when the thread has ended (CLONE_CHILD_CLEARTID).
    thread: AtomicU32,
    /// Its [`Credentials`].
    kind: AtomicU32,
    /// The last change that the thread has made.
    made: AtomicU32,
}

impl Slot {
    /// The thread, if there is one.
    fn thread(&self) -> Option<u32> {
        let thread = self.thread.load(Ordering::Acquire);
        (thread != FREE && thread != RESERVED).then_some(thread)
    }

    fn has(&self, kind: Credentials) -> bool {
        self.kind.load(Ordering::Relaxed) == kind as u32
    }

    /// The thread, if it follows.
    fn follower(&self) -> Option<u32> {
        self.thread().filter(|_| self.has(Credentials::Following))
    }

    /// The thread, if it does not count as one of the program's.
    fn servant(&self) -> Option<u32> {
        self.thread().filter(|_| !self.has(Credentials::OfSubmitter))
    }
}

const FREE: u32 = 0;
const RESERVED: u32 = u32::MAX;

static TABLE: [Slot; THREADS] =
    [const { Slot { thread: AtomicU32::new(FREE), kind: AtomicU32::new(0), made: AtomicU32::new(0) } }; THREADS];

/// The change that is being followed.
struct Change {
    lock: AtomicU32,
    /// Counts the changes that were followed.
    sequence: AtomicU32,
    number: AtomicU32,
    arguments: [AtomicU64; 3],
    /// Counts answers; the thread that changes sleeps on it.
    answers: AtomicU32,
}

static CHANGE: Change = Change {
    lock: AtomicU32::new(0),
    sequence: AtomicU32::new(0),
    number: AtomicU32::new(0),
    arguments: [const { AtomicU64::new(0) }; 3],
    answers: AtomicU32::new(0),
};

/// How often any thread has changed.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How often a thread has changed, by its id. Threads that share an entry only seem to have
/// changed more often.
static CHANGES_BY_THREAD: [AtomicU32; 4096] = [const { AtomicU32::new(0) }; 4096];

/// Called after a change, in a signal handler.
static OBSERVER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Whether every change by a thread of the program comes by here.
static SEEN: AtomicBool = AtomicBool::new(false);

/// From now on every change by a thread of the program comes by [`change`].
pub fn see_all() {
    SEEN.store(true, Ordering::Relaxed);
}

/// Whether threads of the program are known not to differ.
pub fn are_alike() -> bool {
    SEEN.load(Ordering::Relaxed) && !differ()
}

/// Names what is called after each change. It runs in a signal handler.
pub fn set_observer(observer: fn()) {
    OBSERVER.store(observer as *mut (), Ordering::Release);
}

/// Whether threads of this process may differ in what they may do.
#[inline(always)]
pub fn differ() -> bool {
    unusual::has(Unusual::Credentials)
}

/// How often any thread has changed, or none that had company.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Acquire)
}

/// How often a thread has changed.
pub fn changes_of(thread: u32) -> u32 {
    CHANGES_BY_THREAD[thread as usize % CHANGES_BY_THREAD.len()].load(Ordering::Acquire)
}

/// In a fork child, before anything else runs there: its one thread differs from none.
pub fn forget_after_fork() {
    unusual::clear(Unusual::Credentials);
    CHANGE.lock.store(0, Ordering::Relaxed);
    for slot in TABLE.iter().filter(|slot| slot.thread.load(Ordering::Relaxed) != FREE) {
        slot.thread.store(FREE, Ordering::Relaxed);
    }
}

/// Makes one of [`CALLS`] for a thread of the program and has the service threads follow. Returns
/// the kernel's answer. For a signal handler that blocks every signal.
pub fn change(number: u32, arguments: [u64; 3]) -> u64 {
    let answer = change_alone(number, arguments);
    if syscall::check(answer).is_err() || is_only_thread() {
        return answer;
    }
    // What unshare(2) and setns(2) change, a service thread cannot follow.
    let is_followed = !matches!(number, linux::__NR_unshare | linux::__NR_setns);
    if differ() || !is_followed || !is_programs_only_thread() {
        let thread = thread_id();
        CHANGES_BY_THREAD[thread as usize % CHANGES_BY_THREAD.len()].fetch_add(1, Ordering::Release);
        unusual::set(Unusual::Credentials);
    }
    match number {
        linux::__NR_capset => {
            // The caller's id may stand in its header; a thread may only name itself.
            let [version, _] = user_memory::read::<[u32; 2]>(UserAddress(arguments[0])).unwrap_or_default();
            let header = [version, 0];
            have_followed(number, [&raw const header as u64, arguments[1], 0]);
        }
        _ if is_followed => have_followed(number, arguments),
        _ => {}
    }
    GENERATION.fetch_add(1, Ordering::Release);
    let observer = OBSERVER.load(Ordering::Acquire);
    if !observer.is_null() {
        // SAFETY: only `set_observer` stores here, and it stores a `fn()`.
        unsafe { core::mem::transmute::<*mut (), fn()>(observer)() };
    }
    answer
}

/// Makes one of [`CALLS`] for the calling thread, which has its process to itself.
pub fn change_alone(number: u32, [a, b, c]: [u64; 3]) -> u64 {
    match SystemCall::new(number, [a, b, c, 0, 0]).run_once() {
        Ok(value) => value,
        Err(error) => i64::from(error.negative()) as u64,
    }
}

/// Whether the process has no thread but the caller: unshare(CLONE_THREAD) does nothing then, and
/// is refused otherwise.
fn is_only_thread() -> bool {
    SystemCall::new(linux::__NR_unshare, [u64::from(linux::CLONE_THREAD), 0, 0, 0, 0]).run_once().is_ok()
}

/// How often the list of threads is read at most: one that is just ending is in it, and not ours
/// any more.
const LOOKS: u32 = 20;

/// Whether all threads of the process are ours but the caller. `false` where that is not known.
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
    let is_ours = |thread: u32| TABLE.iter().any(|slot| slot.servant() == Some(thread));
    program_threads::find(|thread| thread != caller && !is_ours(thread)).map(|found| found.is_none())
}

/// Whether a thread of the process is ours.
pub fn is_ours(thread: u32) -> bool {
    TABLE.iter().any(|slot| slot.thread() == Some(thread))
}

/// Has the service threads make the call, and waits for them.
fn have_followed(number: u32, arguments: [u64; 3]) {
    let end = Clock::Monotonic.now() + PATIENCE;
    while CHANGE.lock.swap(1, Ordering::Acquire) != 0 {
        let _ = futex::wait(&CHANGE.lock, 1, Some(BETWEEN_LOOKS));
        if Clock::Monotonic.now() > end {
            // A service thread of another change is stuck in the kernel.
            break;
        }
    }
    CHANGE.number.store(number, Ordering::Relaxed);
    for (word, argument) in CHANGE.arguments.iter().zip(arguments) {
        word.store(argument, Ordering::Relaxed);
    }
    let sequence = CHANGE.sequence.fetch_add(1, Ordering::Release).wrapping_add(1);
    for thread in TABLE.iter().filter_map(Slot::follower) {
        SignalInformation::follow().send_to(thread);
    }
    let lags = |slot: &&Slot| slot.follower().is_some() && slot.made.load(Ordering::Acquire) != sequence;
    loop {
        let answers = CHANGE.answers.load(Ordering::Acquire);
        if TABLE.iter().find(lags).is_none() || Clock::Monotonic.now() > end {
            break;
        }
        let _ = futex::wait(&CHANGE.answers, answers, Some(BETWEEN_LOOKS));
    }
    CHANGE.lock.store(0, Ordering::Release);
    futex::wake(&CHANGE.lock, 1);
}

/// The signal of a change has come, in a handler. Any other thread than a follower has the id of
/// one that has just ended, and does nothing.
pub fn follow() {
    let thread = thread_id();
    let Some(slot) = TABLE.iter().find(|slot| slot.follower() == Some(thread)) else { return };
    let sequence = CHANGE.sequence.load(Ordering::Acquire);
    if slot.made.load(Ordering::Relaxed) == sequence {
        return;
    }
    let [a, b, c] = &CHANGE.arguments;
    let arguments = [a, b, c].map(|word| word.load(Ordering::Relaxed));
    change_alone(CHANGE.number.load(Ordering::Relaxed), arguments);
    slot.made.store(sequence, Ordering::Release);
    CHANGE.answers.fetch_add(1, Ordering::Release);
    futex::wake(&CHANGE.answers, u32::MAX);
}

/// A thread's place in the table. The kernel gives a bare thread's place up, for others it is
/// dropped.
#[derive(Debug)]
pub struct Place(usize);

impl Place {
    /// A place for a thread that is about to be made.
    ///
    /// Error: `EAGAIN` if there are too many.
    pub fn reserve(credentials: Credentials) -> Result<Place, Errno> {
        let take =
            |slot: &Slot| slot.thread.compare_exchange(FREE, RESERVED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let index = TABLE.iter().position(take).ok_or(Errno::EAGAIN)?;
        TABLE[index].kind.store(credentials as u32, Ordering::Release);
        Ok(Place(index))
    }

    /// Where clone(2) is to write the thread's id, and the kernel to clear it.
    pub fn thread_word(&self) -> *mut u32 {
        TABLE[self.0].thread.as_ptr()
    }

    /// The calling thread takes its place.
    pub fn begin(&self) {
        TABLE[self.0].thread.store(thread_id(), Ordering::Release);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        TABLE[self.0].thread.store(FREE, Ordering::Release);
    }
}
