//! Tests `OwnerLock`, the lock that becomes free when its holder dies. The holder here is a child
//! that shares its parent's memory (CLONE_VM, as after vfork).
#![cfg(not(loom))]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use usring_sys::owner_lock::OwnerLock;

/// Longest time that a test waits. It is long, because the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Data that a child and its parent share: a lock, and two flags for the child's progress.
struct Shared {
    lock: OwnerLock,
    has_it: AtomicBool,
    goes_on: AtomicBool,
}

impl Shared {
    fn leaked(goes_on: bool) -> &'static Shared {
        let shared =
            Shared { lock: OwnerLock::new(), has_it: AtomicBool::new(false), goes_on: AtomicBool::new(goes_on) };
        Box::leak(Box::new(shared))
    }
}

extern "C" fn dies_with_it(shared: *mut c_void) -> i32 {
    // SAFETY: the argument is a leaked `Shared`, which lives for ever.
    let shared = unsafe { &*shared.cast::<Shared>() };
    core::mem::forget(shared.lock.lock());
    shared.has_it.store(true, Ordering::Release);
    while !shared.goes_on.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    0
}

/// Starts a child in this process's memory, and waits until it holds the lock.
fn child(shared: &'static Shared) -> i32 {
    let stack = Box::leak(vec![0u8; 64 << 10].into_boxed_slice());
    let top = stack.as_mut_ptr_range().end.cast();
    let argument = core::ptr::from_ref(shared).cast_mut().cast();
    // SAFETY: 1. The child has a stack of its own. 2. Of the parent's data it accesses only the
    // lock and two atomic flags.
    let child = unsafe { libc::clone(dies_with_it, top, libc::CLONE_VM | libc::SIGCHLD, argument) };
    assert!(child > 0);
    while !shared.has_it.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    child
}

fn ended(child: i32, flags: i32) {
    // SAFETY: a zeroed `siginfo_t` is valid, and waitid(2) fills it.
    let waited = unsafe {
        let mut what: libc::siginfo_t = core::mem::zeroed();
        libc::waitid(libc::P_PID, child as u32, &raw mut what, libc::WEXITED | flags)
    };
    assert_eq!(waited, 0);
}

/// Acquires and releases the lock on a new thread. Returns a channel and the thread's id. The
/// channel gets a message after the release.
fn locks(shared: &'static Shared) -> (mpsc::Receiver<()>, u32) {
    let (done, waits) = mpsc::channel();
    let (says, said) = mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: gettid(2) has no arguments.
        let number = unsafe { libc::gettid() } as u32;
        says.send(number).unwrap();
        drop(shared.lock.lock());
        done.send(()).unwrap();
    });
    (waits, said.recv().unwrap())
}

#[test]
fn the_lock_of_a_dead_holder_can_be_taken_before_and_after_its_wait() {
    for is_reaped in [false, true] {
        let shared = Shared::leaked(true);
        let child = child(shared);
        ended(child, if is_reaped { 0 } else { libc::WNOWAIT });
        for _ in 0..2 {
            locks(shared).0.recv_timeout(TIMEOUT).expect("the lock of a dead holder is acquired");
        }
    }
}

#[test]
fn a_thread_that_sleeps_on_the_lock_gets_it_when_the_holder_dies() {
    let shared = Shared::leaked(false);
    let child = child(shared);
    let (waits, number) = locks(shared);
    // Waits until the thread sleeps. It then most likely waits for the lock.
    let status = format!("/proc/self/task/{number}/status");
    let sleeps = || std::fs::read_to_string(&status).is_ok_and(|status| status.contains("State:\tS"));
    let end = Instant::now() + TIMEOUT;
    while !sleeps() {
        assert!(Instant::now() < end, "the thread does not sleep");
        std::thread::yield_now();
    }
    assert!(waits.try_recv().is_err(), "the child still holds the lock");
    shared.goes_on.store(true, Ordering::Release);
    waits.recv_timeout(TIMEOUT).expect("the lock of a holder that has just died");
    ended(child, 0);
    locks(shared).0.recv_timeout(TIMEOUT).expect("the lock can be acquired again");
}

#[test]
fn only_one_thread_at_a_time_holds_the_lock() {
    let shared = Shared::leaked(true);
    let inside: &AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..2000 {
                    let _held = shared.lock.lock();
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                    std::thread::yield_now();
                    assert_eq!(inside.fetch_sub(1, Ordering::Relaxed), 1);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
