//! Tools for cases with several processes: shared memory, numbered steps that order the processes,
//! a lock, and rings of both kinds ([`Kind`]).
//!
//! A forked child inherits all of these. A process panics if it waits for a step or for the lock
//! for 30 seconds. SIGALRM ends a child that still runs after `CHILD_LIMIT_S`.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use usring_uapi::io_uring as u;

use crate::memory::{PAGE, zeroed};
use crate::process;
use crate::ring::{Params, Ring};
use crate::time;
use crate::transcript::Transcript;
use crate::{names, syscalls};

/// Seconds after which SIGALRM ends a child. This is longer than the waits for a step and the waits
/// of `Ring::wait`, so these report a failure first.
const CHILD_LIMIT_S: u32 = 45;
/// How long a process waits for the lock before it panics.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a slot of the shared memory.
pub const SLOT: usize = 64;

/// Index of the word with the highest step that a process has announced by [`Shared::step`].
const STEP: usize = 0;
/// Index of the lock's word. It is 1 while a process has the lock, and otherwise 0.
const LOCK: usize = 1;
/// Index of the first word that cases may use. The words before it belong to this module.
const FIRST: usize = 2;

/// Memory that this process shares with its children: 32-bit words, and slots of [`SLOT`] bytes.
pub struct Shared {
    address: *mut u8,
}

/// Bytes of the shared memory: one page with the words, and three pages with the slots.
const LENGTH: usize = 4 * PAGE;

impl Shared {
    pub fn new() -> Shared {
        Shared { address: shared_pages(LENGTH) }
    }

    fn at_word(&self, index: usize) -> &AtomicU32 {
        assert!(index < PAGE / 4);
        // SAFETY: the word lies in the first page of the mapping. All processes access it as an
        // atomic.
        unsafe { &*self.address.add(index * 4).cast::<AtomicU32>() }
    }

    /// Returns the word `index` of those that cases may use. It is 0 at first.
    pub fn word(&self, index: usize) -> &AtomicU32 {
        self.at_word(FIRST + index)
    }

    /// Announces to the other processes that step `number` is reached. Has no effect if a process
    /// has already announced a higher step.
    pub fn step(&self, number: u32) {
        self.at_word(STEP).fetch_max(number, Ordering::SeqCst);
    }

    /// Waits until a process has announced step `number` or a higher one. Panics after 30 seconds.
    pub fn until_step(&self, number: u32) {
        let reached = time::until(|| self.at_word(STEP).load(Ordering::SeqCst) >= number);
        assert!(reached, "no process reached step {number}");
    }

    /// Waits until the case's word `index` is at least `least`. Panics after 30 seconds.
    pub fn until_word(&self, index: usize, least: u32) {
        let reached = time::until(|| self.word(index).load(Ordering::SeqCst) >= least);
        assert!(reached, "word {index} did not reach {least}");
    }

    /// Runs `work` while this process has the lock that all processes share. Panics if it has not
    /// got the lock after 30 seconds.
    pub fn exclusively<T>(&self, work: impl FnOnce() -> T) -> T {
        let lock = self.at_word(LOCK);
        let deadline = Instant::now() + LOCK_LIMIT;
        while lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            assert!(Instant::now() < deadline, "the lock is never free");
            std::thread::yield_now();
        }
        let value = work();
        lock.store(0, Ordering::Release);
        value
    }

    /// Returns the address of slot `slot`.
    pub fn slot(&self, slot: usize) -> u64 {
        assert!((slot + 1) * SLOT <= LENGTH - PAGE);
        (self.address as usize + PAGE + slot * SLOT) as u64
    }

    /// Returns the address of the first page, for a case that puts a ring or a buffer ring there.
    /// Such a case must not use words, steps or the lock, which lie in that page.
    pub fn first_page(&self) -> *mut u8 {
        self.address
    }

    /// Returns the bytes of a slot as text, up to the first zero byte.
    pub fn text(&self, slot: usize) -> String {
        let mut bytes = [0u8; SLOT];
        // SAFETY: the slot lies in the mapping and has `SLOT` bytes. The case orders the accesses
        // of its processes by steps.
        unsafe { std::ptr::copy_nonoverlapping(self.slot(slot) as *const u8, bytes.as_mut_ptr(), SLOT) };
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(SLOT);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `new` has made the mapping, and nothing uses it any more.
        unsafe { libc::munmap(self.address.cast::<c_void>(), LENGTH) };
    }
}

/// Maps zeroed memory that this process shares with its children.
fn shared_pages(length: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: the mapping is new and anonymous, and replaces no other mapping.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    assert!(address != libc::MAP_FAILED, "no memory");
    address.cast()
}

/// The two kinds of rings, which differ in their memory. Programs can share rings of either kind
/// with their children.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Memory of the kernel, which the program maps.
    Mapped,
    /// The ring lies in memory that the program has mapped with MAP_SHARED. It has the setup flags
    /// NO_MMAP and NO_SQARRAY.
    OwnMemory,
}

impl Kind {
    /// Makes a ring of this kind with `entries` SQEs, 16 at most. `flags` are added to the setup
    /// flags.
    pub fn ring(self, entries: u32, flags: u32) -> Ring {
        match self {
            Kind::Mapped => Ring::flags(entries, flags),
            Kind::OwnMemory => ring_in_shared_memory(entries, flags),
        }
    }
}

/// Makes a ring in memory that this process shares with its children. The memory stays mapped until
/// the process ends.
fn ring_in_shared_memory(entries: u32, flags: u32) -> Ring {
    let (rings, sqes) = (shared_pages(PAGE), shared_pages(PAGE));
    let mut params: Params = zeroed();
    params.flags = u::IORING_SETUP_NO_MMAP | u::IORING_SETUP_NO_SQARRAY | flags;
    params.cq_off.user_addr = rings as u64;
    params.sq_off.user_addr = sqes as u64;
    let fd = syscalls::setup(entries, &mut params);
    assert!(fd >= 0, "setup in shared memory: {}", names::result(fd));
    Ring::over_memory(fd, params, rings, sqes)
}

/// Runs `case` once for each kind of ring. Each run gets a new ring and new shared memory.
pub fn each_kind(t: &mut Transcript, case: fn(&mut Transcript, &mut Ring, &Shared)) {
    for (kind, name) in [(Kind::Mapped, "a mapped ring"), (Kind::OwnMemory, "a ring in shared memory")] {
        t.say(format_args!("{name}:"));
        let mut ring = kind.ring(8, 0);
        case(t, &mut ring, &Shared::new());
    }
}

/// Returns the process id of this process's parent.
pub fn parent() -> i32 {
    // SAFETY: the call touches no memory.
    unsafe { libc::getppid() }
}

/// Starts `work` in a forked child. SIGALRM ends the child after [`CHILD_LIMIT_S`]. Returns the
/// child's process id.
pub fn child(work: impl FnOnce() -> i32) -> i32 {
    process::start(|| {
        // SAFETY: the call touches no memory.
        unsafe { libc::alarm(CHILD_LIMIT_S) };
        work()
    })
}

/// Runs `work` in a forked child, waits for the child's end, and prints how the child has ended.
pub fn run_child(t: &mut Transcript, work: impl FnOnce(&mut Transcript)) {
    let process = child(|| {
        work(t);
        0
    });
    ended(t, process);
}

/// Waits until a child ends, and prints how the child has ended.
pub fn ended(t: &mut Transcript, process: i32) {
    t.say(format_args!("child: {}", process::ending(process)));
}

/// Kills a child and waits until it has ended. Prints how it has ended.
pub fn kill(t: &mut Transcript, process: i32) {
    signal(process, libc::SIGKILL);
    ended(t, process);
}

/// Sends a signal to a child.
pub fn signal(process: i32, signal: i32) {
    // SAFETY: the call touches no memory. The process is a child of this one, and nothing has
    // waited for it yet.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0);
}

/// A child that has submitted requests to an inherited ring, and lives until the case ends it.
pub struct Partner {
    process: i32,
    steps: Shared,
}

impl Partner {
    /// Starts a child that pushes SQEs by `push` and submits them. Returns after that submission.
    pub fn start(ring: &mut Ring, push: impl FnOnce(&mut Ring)) -> Partner {
        let steps = Shared::new();
        let process = child(|| {
            ring.catch_up();
            push(ring);
            ring.submit();
            steps.step(1);
            steps.until_step(2);
            0
        });
        steps.until_step(1);
        ring.catch_up();
        Partner { process, steps }
    }

    /// Stops the child by SIGSTOP. Returns once the child is stopped.
    pub fn stop(&self) {
        signal(self.process, libc::SIGSTOP);
        assert!(time::until(|| time::process_state(self.process) == Some('T')), "the child did not stop");
    }

    pub fn resume(&self) {
        signal(self.process, libc::SIGCONT);
    }

    /// Makes the child exit, and prints how the child has ended.
    pub fn leave(self, t: &mut Transcript) {
        self.steps.step(2);
        ended(t, self.process);
    }

    /// Kills the child, and prints how it ended.
    pub fn kill(self, t: &mut Transcript) {
        kill(t, self.process);
    }
}
