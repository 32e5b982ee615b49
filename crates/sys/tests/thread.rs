//! Tests threads of usring that a spawner makes with the program's libc (`set_spawner`).
#![cfg(not(loom))]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use usring_sys::{Errno, thread};

static STARTED: AtomicU32 = AtomicU32::new(0);
static REFUSE: AtomicU32 = AtomicU32::new(0);

fn spawner(entry: extern "C" fn(*mut c_void), argument: *mut c_void) -> Result<(), Errno> {
    if REFUSE.swap(0, Ordering::Relaxed) == 1 {
        return Err(Errno::EAGAIN);
    }
    let argument = argument as usize;
    STARTED.fetch_add(1, Ordering::Relaxed);
    std::thread::spawn(move || entry(argument as *mut c_void));
    Ok(())
}

/// Tests in one test a spawner that works and a spawner that refuses, because a process has only
/// one spawner.
#[test]
fn the_configured_spawner_starts_threads_and_its_refusal_frees_the_work() {
    thread::set_spawner(spawner);
    let (sender, receiver) = mpsc::channel();
    let to_main = sender.clone();
    let work = move || to_main.send((thread::current(), std::fs::read_to_string("/proc/thread-self/comm"))).unwrap();
    thread::spawn("usring-test", thread::Credentials::Following, Box::new(work)).unwrap();
    let (id, name) = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_ne!(id, thread::current());
    assert_eq!(name.unwrap(), "usring-test\n");
    assert_eq!(STARTED.load(Ordering::Relaxed), 1);

    REFUSE.store(1, Ordering::Relaxed);
    let held = sender.clone();
    drop(sender);
    let work = move || drop(held);
    assert_eq!(thread::spawn("usring-test", thread::Credentials::Following, Box::new(work)), Err(Errno::EAGAIN));
    let end = receiver.recv_timeout(Duration::from_secs(60));
    assert_eq!(end.map(drop), Err(mpsc::RecvTimeoutError::Disconnected), "the refused work was dropped");
}

#[test]
fn each_thread_has_a_distinct_identity() {
    let here = thread::current();
    assert_eq!(here, thread::current());
    assert_ne!(std::thread::spawn(thread::current).join().unwrap(), here);
}
