//! A request uses the working directory, the descriptor table and the children of the process that
//! submits it. Here the submitting processes are forked children, processes with threads, vfork
//! children, and processes that share descriptors.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use usring_uapi::{Sqe, io_uring as u, opcode};

use crate::files::{self, Scratch};
use crate::memory::{Pages, zeroed};
use crate::process;
use crate::ring::Ring;
use crate::shared::{self, Shared};
use crate::sqe::{Change, nop, read_at, sqe};
use crate::time;
use crate::transcript::Transcript;

fn open_relative(user_data: u64) -> Sqe {
    sqe(opcode::OPENAT, libc::AT_FDCWD, user_data).with(|sqe| sqe.addr = c"file".as_ptr() as u64)
}

/// A relative path begins at the working directory of the process that submits the request. The
/// parent made the ring in another directory.
fn directory_is_the_submitters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let scratch = Scratch::new();
        drop(scratch.file("file", b"data"));
        shared::run_child(t, |t| {
            std::env::set_current_dir(&scratch.path).expect("the directory is there");
            for request in [open_relative(1), open_relative(2).forced_async()] {
                t.outcome("in the child", i64::from(ring.one(request).res));
            }
        });
        ring.catch_up();
        t.outcome("in the parent", i64::from(ring.one(open_relative(3)).res));
    });
}
case!(directory_is_the_submitters => "
    a mapped ring:
    in the child = ok
    in the child = ok
    child: exit 0
    in the parent = -ENOENT
    a ring in shared memory:
    in the child = ok
    in the child = ok
    child: exit 0
    in the parent = -ENOENT
");

/// A child opens a file by a request. The new descriptor is in the child's descriptor table, and
/// not in the parent's.
fn opened_number_is_the_submitters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        shared::run_child(t, |t| {
            let path = sqe(opcode::OPENAT, libc::AT_FDCWD, 1).with(|sqe| sqe.addr = c"/dev/zero".as_ptr() as u64);
            let number = ring.one(path).res;
            t.entry(&ring.one(read_at(number, shared.slot(0), 8, 0, 2)));
            shared.word(0).store(number as u32, Ordering::SeqCst);
        });
        let number = shared.word(0).load(Ordering::SeqCst) as i32;
        ring.catch_up();
        t.entry(&ring.one(read_at(number, shared.slot(0), 8, 0, 3)));
        shared::run_child(t, |t| {
            let copy = files::eventfd(0);
            t.entry(&ring.one(sqe(opcode::CLOSE, copy.as_raw_fd(), 4)));
            t.say(format_args!("closed in the child {}", !files::is_open(copy.as_raw_fd())));
            std::mem::forget(copy);
        });
    });
}
case!(opened_number_is_the_submitters => "
    a mapped ring:
    cqe 2: 8
    child: exit 0
    cqe 3: -EBADF
    cqe 4: 0
    closed in the child true
    child: exit 0
    a ring in shared memory:
    cqe 2: 8
    child: exit 0
    cqe 3: -EBADF
    cqe 4: 0
    closed in the child true
    child: exit 0
");

/// WAITID waits for children of the process that submits it. So a child's WAITID for another child
/// of its parent gets -ECHILD.
fn children_are_the_submitters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let child = process::start(|| 3);
        let mut info: libc::siginfo_t = zeroed();
        let mut request = sqe(opcode::WAITID, child, 1);
        request.len = libc::P_PID;
        request.file_index = libc::WEXITED as u32;
        request.off = &raw mut info as u64;
        shared::run_child(t, |t| t.entry(&ring.one(request)));
        ring.catch_up();
        t.entry(&ring.one(request));
        // SAFETY: all bytes of the siginfo are initialised: they are zero, or the request has
        // written them.
        t.say(format_args!("status {}", unsafe { info.si_status() }));
    });
}
case!(children_are_the_submitters => "
    a mapped ring:
    cqe 1: -ECHILD
    child: exit 0
    cqe 1: 0
    status 3
    a ring in shared memory:
    cqe 1: -ECHILD
    child: exit 0
    cqe 1: 0
    status 3
");

/// A thread of the parent sleeps in io_uring_enter(2) during the fork. A completion of a child's
/// request wakes that thread.
fn thread_waits_at_the_fork(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let fd = ring.fd;
        let (number, thread) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            number.send(time::this_thread()).expect("the case waits for the number");
            crate::syscalls::enter(fd, 0, 1, u::IORING_ENTER_GETEVENTS, std::ptr::null(), 0)
        });
        time::until_asleep(thread.recv().expect("the thread sends it"));
        let child = shared::child(|| {
            ring.push(nop(1));
            let submitted = ring.submit();
            shared.until_step(1);
            i32::from(submitted != 1)
        });
        t.result("enter in the thread", waiter.join().unwrap_or(i32::MIN));
        shared.step(1);
        shared::ended(t, child);
        t.in_order(&ring.reap());
    });
}
case!(thread_waits_at_the_fork => "
    a mapped ring:
    enter in the thread = 0
    child: exit 0
    cqe 1: 0
    a ring in shared memory:
    enter in the thread = 0
    child: exit 0
    cqe 1: 0
");

/// Makes a child by clone(2) with `flags` and a separate stack, and runs `work` in it. Prints how
/// the child ended.
fn run_clone(t: &mut Transcript, flags: i32, work: &mut dyn FnMut() -> i32) {
    extern "C" fn begin(work: *mut libc::c_void) -> i32 {
        // SAFETY: the pointer refers to a variable of the parent, which waits for the child's end.
        let status = unsafe { (*work.cast::<&mut dyn FnMut() -> i32>())() };
        // SAFETY: _exit(2) ends the child with all its threads. If only this thread ended, the
        // child's workers would live on, and their exit status would count.
        unsafe { libc::_exit(status) }
    }
    let mut work = work;
    let stack = Pages::new(64);
    // SAFETY: the parent keeps the stack mapped until the child has ended.
    let child = unsafe {
        // The 256 bytes above the child's first frame stay free, because libc's functions may read
        // stack arguments there.
        let top = stack.address.add(stack.length - 256).cast();
        libc::clone(begin, top, flags | libc::SIGCHLD, (&raw mut work).cast())
    };
    shared::ended(t, child);
}

/// Submits a read into `buffer` and waits for its CQE. Allocates no memory, because the child may
/// share its parent's memory. Returns the result of the read.
fn read_in_clone(ring: &mut Ring, fd: i32, buffer: u64) -> i32 {
    ring.push(read_at(fd, buffer, 4, 0, 1));
    let answer = ring.submit_and_wait(1);
    if answer == 1 { ring.peek().map_or(90, |entry| entry.res) } else { 91 }
}

/// A vfork child submits a request and waits for it. The child shares the parent's memory and has a
/// copy of its descriptors.
fn vfork_child_submits(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let file = files::memory_file(b"data");
        let mut buffer = *b"----";
        let address = buffer.as_mut_ptr() as u64;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK;
        run_clone(t, flags, &mut || read_in_clone(ring, file.as_raw_fd(), address));
        t.say(format_args!("in the parent {}", String::from_utf8_lossy(&buffer)));
        ring.catch_up();
        t.entry(&ring.one(nop(2)));
    });
}
case!(vfork_child_submits => "
    a mapped ring:
    child: exit 4
    in the parent data
    cqe 2: 0
    a ring in shared memory:
    child: exit 4
    in the parent data
    cqe 2: 0
");

/// A child made with CLONE_FILES submits a request and waits for it. The child shares the parent's
/// descriptors and has a copy of its memory.
fn child_that_shares_descriptors_submits(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let file = files::memory_file(b"data");
        let mut buffer = *b"----";
        let address = buffer.as_mut_ptr() as u64;
        run_clone(t, libc::CLONE_FILES, &mut || read_in_clone(ring, file.as_raw_fd(), address));
        t.say(format_args!("in the parent {}", String::from_utf8_lossy(&buffer)));
        ring.catch_up();
        t.entry(&ring.one(nop(2)));
    });
}
case!(child_that_shares_descriptors_submits => "
    a mapped ring:
    child: exit 4
    in the parent ----
    cqe 2: 0
    a ring in shared memory:
    child: exit 4
    in the parent ----
    cqe 2: 0
");

/// A process is killed and remains a zombie: its parent has not called waitpid(2) yet. The requests
/// of the killed process nevertheless end, and the ring works.
fn killed_process_is_a_zombie(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared: &Shared| {
        let fifo = files::Fifo::new();
        let child = shared::child(|| {
            ring.push(fifo.open(1));
            ring.submit();
            time::long_enough_to_begin();
            shared.step(1);
            shared.until_step(2);
            0
        });
        shared.until_step(1);
        shared::signal(child, libc::SIGKILL);
        let entries = ring.wait(1);
        let broken = entries.iter().all(|entry| super::super::INTERRUPTED_RESULTS.contains(&entry.res));
        t.say(format_args!("cqes {}, broken off {broken}", entries.len()));
        t.say(format_args!("a zombie {}", time::until(|| time::process_state(child) == Some('Z'))));
        ring.catch_up();
        t.entry(&ring.one(nop(2)));
        shared::ended(t, child);
    });
}
case!(killed_process_is_a_zombie => "
    a mapped ring:
    cqes 1, broken off true
    a zombie true
    cqe 2: 0
    child: signal 9
    a ring in shared memory:
    cqes 1, broken off true
    a zombie true
    cqe 2: 0
    child: signal 9
");
