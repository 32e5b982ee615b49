//! Tests threads that usring makes without libc: their name, signal mask and thread pointer. Also
//! tests that a thread's stack is unmapped at its end. Such threads must not use libc's allocator
//! or thread-local variables. So this test has an allocator of its own, as usring has in a program.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use usring_sys::{SystemCall, UserAddress, capability, futex, mapping, signals, thread, thread_ids, user_memory};
use usring_uapi::general as linux;

#[path = "../../../xtask/src/skipped.rs"]
mod skipped;

/// An allocator that takes each allocation from one large mapping, and frees nothing.
struct Bump(AtomicUsize);

const ROOM: usize = 1 << 30;

// SAFETY: every part is mapped, aligned, and allocated once.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.0.load(Ordering::Acquire) == 0 {
            let start = mapping::private_pages(ROOM).expect("address space");
            let _ = self.0.compare_exchange(0, start, Ordering::AcqRel, Ordering::Acquire);
        }
        let piece = layout.size().next_multiple_of(64) + layout.align();
        self.0.fetch_add(piece, Ordering::AcqRel).next_multiple_of(layout.align()) as *mut u8
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Bump = Bump(AtomicUsize::new(0));

/// A thread's report about its identity, signal mask and name.
#[derive(Default)]
struct Report {
    id: AtomicUsize,
    mask: AtomicU64,
    /// The thread's name, or its effective and permitted capabilities.
    name: [AtomicU64; 2],
    done: AtomicU32,
}

fn signal_mask() -> u64 {
    let mut mask = 0u64;
    let arguments = [0, 0, &raw mut mask as u64, 8, 0];
    SystemCall::new(linux::__NR_rt_sigprocmask, arguments).run().unwrap();
    mask
}

fn thread_name() -> [u64; 2] {
    const PR_GET_NAME: u64 = 16;
    let mut name = [0u64; 2];
    SystemCall::new(linux::__NR_prctl, [PR_GET_NAME, &raw mut name as u64, 0, 0, 0]).run().unwrap();
    name
}

fn start(name: &str) -> Arc<Report> {
    let report = Arc::new(Report::default());
    let theirs = report.clone();
    let work = move || {
        theirs.id.store(thread::current().0, Ordering::Relaxed);
        theirs.mask.store(signal_mask(), Ordering::Relaxed);
        theirs.name.iter().zip(thread_name()).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        theirs.done.store(1, Ordering::Release);
        futex::wake(&theirs.done, 1);
    };
    thread::spawn(name, thread::Credentials::Following, Box::new(work)).unwrap();
    report
}

#[test]
fn a_service_thread_keeps_only_the_capabilities_to_change_its_user() {
    const KEPT: u32 = 1 << 6 | 1 << 7; // CAP_SETGID and CAP_SETUID
    let own = capability::get().unwrap();
    if own[0][0] & !KEPT == 0 {
        return skipped::skip("the user has no capability to give up");
    }
    let report = Arc::new(Report::default());
    let theirs = report.clone();
    let work = move || {
        let [low, high] = capability::get().unwrap();
        theirs.name[0].store(u64::from(low[0]) << 32 | u64::from(high[0]), Ordering::Relaxed);
        theirs.name[1].store(u64::from(low[1]) << 32 | u64::from(high[1]), Ordering::Relaxed);
        theirs.done.store(1, Ordering::Release);
        futex::wake(&theirs.done, 1);
    };
    thread::spawn("usring-test", thread::Credentials::Service, Box::new(work)).unwrap();
    finished(&report);
    let [in_force, permitted] = [0, 1].map(|set| u64::from(own[0][set] & KEPT) << 32);
    assert_eq!(report.name.each_ref().map(|word| word.load(Ordering::Relaxed)), [in_force, permitted]);
    assert_eq!(capability::get(), Ok(own), "the creator keeps all capabilities");
}

fn finished(report: &Report) {
    let limit = Some(60_000_000_000);
    while report.done.load(Ordering::Acquire) == 0 {
        futex::wait(&report.done, 0, limit).expect("a thread runs within a minute");
    }
}

/// Waits, for at most a minute, until `condition` returns `true`. Returns whether it did.
fn eventually(condition: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if condition() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// Returns the number of guard pages in the process. Below the stack of each thread there is one.
fn guard_pages() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(" ---p 00000000 00:00 0")).count()
}

fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.trim_end() == name).count()
}

#[test]
fn a_bare_thread_has_a_name_a_thread_id_and_blocked_signals() {
    let before = signal_mask();
    let report = start("usring-a-long-name");
    finished(&report);
    let name: Vec<u8> = report.name.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    assert_eq!(name, b"usring-a-long-n\0");
    let id = report.id.load(Ordering::Relaxed);
    assert!(id != 0 && id != thread::current().0);
    // A thread of usring does not block these signals. SIGSEGV and SIGBUS are for the thread's own
    // faults. SIGKILL and SIGSTOP cannot be blocked. By signal 33, libc changes a thread's user.
    let open = [linux::SIGSYS, linux::SIGSEGV, linux::SIGBUS, linux::SIGKILL, linux::SIGSTOP, 33];
    let open = open.iter().fold(0u64, |mask, signal| mask | 1 << (signal - 1));
    assert_eq!(report.mask.load(Ordering::Relaxed), !open);
    assert_eq!(signal_mask(), before, "the creator's mask is unchanged");
}

#[cfg(target_env = "gnu")]
#[test]
fn a_bare_thread_has_its_id_where_libc_keeps_that_of_its_threads() {
    const GLIBC_OFFSET: u64 = 0x2d0;
    thread_ids::find_word();
    let report = Arc::new(Report::default());
    let theirs = report.clone();
    let work = move || {
        let word = UserAddress(thread::current().0 as u64).offset(GLIBC_OFFSET);
        theirs.name[0].store(user_memory::read::<u32>(word).unwrap_or(0).into(), Ordering::Relaxed);
        theirs.name[1].store(signals::thread_id().into(), Ordering::Relaxed);
        theirs.done.store(1, Ordering::Release);
        futex::wake(&theirs.done, 1);
    };
    thread::spawn("usring-test", thread::Credentials::Following, Box::new(work)).unwrap();
    finished(&report);
    let [word, id] = report.name.each_ref().map(|word| word.load(Ordering::Relaxed));
    assert_eq!(word, id);
}

#[test]
fn a_bare_thread_unmaps_its_stack_when_it_ends() {
    let before = guard_pages();
    let reports: Vec<_> = (0..50).map(|_| start("usring-gone")).collect();
    reports.iter().for_each(|report| finished(report));
    assert!(eventually(|| threads_named("usring-gone") == 0), "threads are left");
    // Other tests of this process may have a few threads, too.
    assert!(guard_pages() < before + 10, "stacks are left: {before} before, {} now", guard_pages());
}
