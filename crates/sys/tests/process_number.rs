//! Numbers of processes: each forked child gets another one, and a process's end is seen.

use std::io::Read;
use std::os::fd::AsRawFd;
use usring_sys::process_mutex::{ProcessMutex, Since};
use usring_sys::{per_process, process_number};

/// Forks a child that reports its number by a pipe, and ends when a byte comes by `end`.
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
    // SAFETY: the status is not asked for.
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
    // SAFETY: it is this test's own child.
    unsafe { libc::kill(killed, libc::SIGKILL) };
    wait_for(killed);
    assert!(!process_number::is_alive(first));
    assert!(process_number::is_alive(second));
    // One byte ends the other child. (Its own copy of `open` keeps the pipe from being closed.)
    // SAFETY: one byte of a local.
    unsafe { libc::write(open.as_raw_fd(), [0u8].as_ptr().cast(), 1) };
    wait_for(ends);
    assert!(!process_number::is_alive(second));
}

#[test]
fn a_lock_of_a_killed_process_is_taken_from_it() {
    per_process::prepare().unwrap();
    let own = process_number::own().unwrap();
    // SAFETY: new memory, shared with the child.
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
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    wait_for(child);
    let mut caught_up = false;
    let start = std::time::Instant::now();
    drop(lock.lock(|(), since| caught_up = since == Since::HolderDied));
    assert!(caught_up, "the holder of the lock has died");
    assert!(start.elapsed().as_millis() < 1000, "{:?}", start.elapsed());
}
