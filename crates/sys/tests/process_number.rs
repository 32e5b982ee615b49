//! Tests the numbers of processes: each forked child gets a number of its own, other processes see
//! the child's end, and each process can wake all others.

use std::io::Read;
use std::os::fd::AsRawFd;
use usring_sys::epoll::{Epoll, Event};
use usring_sys::process_mutex::{ProcessMutex, Since};
use usring_sys::{per_process, process_number};

/// Forks a child that reports its number through a pipe, and ends when it can read a byte from
/// `end`. Returns the child's process id and its number.
fn child(end: &std::io::PipeReader) -> (libc::pid_t, u32) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child makes system calls only, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let number = process_number::own().unwrap_or(0);
        let mut byte = 0u8;
        // SAFETY: both buffers are locals of these lengths.
        unsafe {
            libc::write(writer.as_raw_fd(), (&raw const number).cast(), 4);
            libc::read(end.as_raw_fd(), (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    drop(writer);
    let mut number = [0; 4];
    reader.read_exact(&mut number).unwrap();
    (child, u32::from_ne_bytes(number))
}

fn wait_for(child: libc::pid_t) {
    // SAFETY: a null pointer for the status is allowed.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

#[test]
fn each_process_has_its_own_number_until_it_ends() {
    per_process::prepare().unwrap();
    let own = process_number::own().unwrap();
    assert_eq!(process_number::own(), Ok(own), "the number stays");
    let (end, open) = std::io::pipe().unwrap();
    let (killed, first) = child(&end);
    let (ends, second) = child(&end);
    assert!(own != first && first != second && own != second);
    assert!(process_number::is_alive(first) && process_number::is_alive(second));
    // SAFETY: kill(2) accesses no memory. `killed` is this test's own child.
    unsafe { libc::kill(killed, libc::SIGKILL) };
    wait_for(killed);
    assert!(!process_number::is_alive(first));
    assert!(process_number::is_alive(second));
    // One byte ends the other child. (Closing `open` would not, because the child has a copy of
    // it.) SAFETY: the buffer is one byte of a local variable.
    unsafe { libc::write(open.as_raw_fd(), [0u8].as_ptr().cast(), 1) };
    wait_for(ends);
    assert!(!process_number::is_alive(second));
}

#[test]
fn a_stopped_process_is_known_as_stopped() {
    per_process::prepare().unwrap();
    process_number::own().unwrap();
    let (end, _open) = std::io::pipe().unwrap();
    let (child, number) = child(&end);
    assert_eq!(process_number::process_id(number), Some(child.cast_unsigned()));
    assert!(!process_number::is_stopped(number));
    let mut status = 0;
    // SAFETY: kill(2) accesses no memory, waitpid(2) only `status`. `child` is this test's own.
    unsafe {
        libc::kill(child, libc::SIGSTOP);
        assert_eq!(libc::waitpid(child, &raw mut status, libc::WUNTRACED), child);
    }
    assert!(process_number::is_stopped(number) && process_number::is_alive(number));
    // SAFETY: kill(2) accesses no memory.
    unsafe { libc::kill(child, libc::SIGKILL) };
    wait_for(child);
    assert!(!process_number::is_stopped(number));
    assert_eq!(process_number::process_id(number), None);
}

#[test]
fn a_lock_of_a_killed_process_is_taken_from_it() {
    per_process::prepare().unwrap();
    let own = process_number::own().unwrap();
    // SAFETY: mmap(2) without an address replaces no existing mapping.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, 3, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) };
    assert!(page != libc::MAP_FAILED);
    // SAFETY: the page stays mapped, and every process uses the word as an atomic.
    let word: &'static std::sync::atomic::AtomicU32 = unsafe { &*page.cast() };
    let lock = ProcessMutex::new(word, own, process_number::is_alive, ());
    // SAFETY: the child makes system calls only, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let own = process_number::own().unwrap_or(0);
        std::mem::forget(ProcessMutex::join(word, own, process_number::is_alive, ()).lock(|(), _| {}));
        // SAFETY: `_exit` has no requirement. It ends the child.
        unsafe { libc::_exit(0) };
    }
    wait_for(child);
    let mut caught_up = false;
    drop(lock.lock(|(), since| caught_up = since == Since::HolderDied));
    assert!(caught_up, "the holder of the lock has died");
}

/// Waits for an event of the set, for 10 s at most. Returns the event's data.
fn event_of(set: &Epoll) -> Option<u64> {
    let mut events = [Event::default(); 4];
    (set.wait(&mut events, Some(10_000)) == Ok(1)).then(|| events[0].data)
}

/// Forks a child that watches wake-ups, and ends with status 0 after two wake-ups. Before it waits
/// for each wake-up, it writes a byte to `ready`.
fn sleeping_child(ready: &std::io::PipeWriter) -> libc::pid_t {
    // SAFETY: the child makes system calls only, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let set = Epoll::new();
        let watches = set.as_ref().is_ok_and(|set| process_number::watch_wake_ups(set, 7).is_ok());
        let mut seen = 0;
        // SAFETY: the buffer is one byte of a local variable.
        let tell = || unsafe { libc::write(ready.as_raw_fd(), [0u8].as_ptr().cast(), 1) };
        while watches && seen < 2 && tell() == 1 && set.as_ref().is_ok_and(|set| event_of(set) == Some(7)) {
            seen += 1;
        }
        // SAFETY: `_exit` has no requirement. It ends the child.
        unsafe { libc::_exit(2 - seen) };
    }
    child
}

#[test]
fn a_process_wakes_its_parent_and_its_siblings_each_time() {
    per_process::prepare().unwrap();
    process_number::own().unwrap();
    let set = Epoll::new().unwrap();
    process_number::watch_wake_ups(&set, 9).unwrap();
    let (mut reader, ready) = std::io::pipe().unwrap();
    let sleepers = [sleeping_child(&ready), sleeping_child(&ready)];
    for _ in 0..2 {
        reader.read_exact(&mut [0; 2]).unwrap();
        // SAFETY: the child makes system calls only, and ends by _exit.
        let caller = unsafe { libc::fork() };
        if caller == 0 {
            process_number::wake_all();
            // SAFETY: `_exit` has no requirement. It ends the child.
            unsafe { libc::_exit(0) };
        }
        wait_for(caller);
        assert_eq!(event_of(&set), Some(9), "the parent of the waking process is woken, too");
        assert_eq!(set.ready(&mut [Event::default()]), Ok(0), "a wake-up is reported once");
    }
    for sleeper in sleepers {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result.
        assert_eq!(unsafe { libc::waitpid(sleeper, &raw mut status, 0) }, sleeper);
        assert_eq!(status, 0, "the child has seen both wake-ups");
    }
}
