//! Processes and threads that end while their requests are in flight.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use crate::files;
use crate::process;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop, poll, read, timeout};
use crate::time::{LONG, milliseconds};
use crate::transcript::Transcript;

/// Returns whether the last reading end of the pipe is closed.
fn has_no_reader(writer: &OwnedFd) -> bool {
    let mut entry = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the array has one entry.
    unsafe { libc::poll(&mut entry, 1, 30_000) };
    entry.revents & libc::POLLERR != 0
}

fn with_reads(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let ending = process::forked(|| {
        let mut ring = Ring::new(8);
        let mut buffers = [[0u8; 4]; 4];
        for (index, buffer) in buffers.iter_mut().enumerate() {
            ring.push(read(reader.as_raw_fd(), buffer, 0, index as u64));
        }
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 9));
        ring.submit();
        std::mem::forget(ring);
        5
    });
    t.say(format_args!("child: {ending}"));
    drop(reader);
    t.say(format_args!("deserted {}", has_no_reader(&writer)));
}
case!(with_reads => "
    child: exit 5
    deserted true
");

fn with_timeouts(t: &mut Transcript) {
    let ending = process::forked(|| {
        let mut ring = Ring::new(8);
        ring.push(timeout(&LONG, 0, 0, 1));
        ring.push(timeout(&milliseconds(1), 0, u::IORING_TIMEOUT_MULTISHOT, 2));
        ring.submit();
        std::mem::forget(ring);
        5
    });
    t.say(format_args!("child: {ending}"));
}
case!(with_timeouts => "child: exit 5");

/// A process can end although one of its workers is blocked in a system call.
fn with_worker(t: &mut Transcript) {
    let fifo = files::Fifo::new();
    let ending = process::forked(|| {
        let mut ring = Ring::new(8);
        ring.push(fifo.open(1));
        ring.push(fifo.open(2));
        ring.submit();
        crate::time::long_enough_to_notice();
        std::mem::forget(ring);
        5
    });
    t.say(format_args!("child: {ending}"));
    t.say(format_args!("deserted {}", fifo.has_no_reader()));
}
case!(with_worker => "
    child: exit 5
    deserted true
");

fn with_sq_thread(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let ending = process::forked(|| {
        let mut ring = Ring::with(8, |params| {
            params.flags = u::IORING_SETUP_SQPOLL;
            params.sq_thread_idle = 1000;
        })
        .expect("a ring with a thread");
        let mut byte = [0u8; 1];
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
        ring.forget_pending();
        ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
        crate::time::until(|| ring.sq_head() == 1);
        std::mem::forget(ring);
        5
    });
    t.say(format_args!("child: {ending}"));
    drop(reader);
    t.say(format_args!("deserted {}", has_no_reader(&writer)));
}
case!(with_sq_thread => "
    child: exit 5
    deserted true
");

fn with_deferred_work(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let ending = process::forked(|| {
        let flags = ring::DEFER;
        let mut ring = Ring::flags(8, flags);
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
        ring.submit();
        files::put(&writer, b"x");
        std::mem::forget(ring);
        5
    });
    t.say(format_args!("child: {ending}"));
    drop(reader);
    t.say(format_args!("deserted {}", has_no_reader(&writer)));
}
case!(with_deferred_work => "
    child: exit 5
    deserted true
");

fn with_backlog(t: &mut Transcript) {
    let ending = process::forked(|| {
        let mut ring = Ring::new(4);
        for user_data in 0..50 {
            ring.push(nop(user_data));
            ring.submit();
        }
        std::mem::forget(ring);
        5
    });
    t.say(format_args!("child: {ending}"));
}
case!(with_backlog => "child: exit 5");

/// A child ends by exit(3), which runs atexit handlers.
fn by_return(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let ending = process::forked(|| {
        let mut ring = Ring::new(8);
        let mut byte = [0u8; 1];
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
        ring.submit();
        std::mem::forget(ring);
        // SAFETY: the call ends this child. The parent has registered no atexit handler that could
        // run in the child.
        unsafe { libc::exit(6) }
    });
    t.say(format_args!("child: {ending}"));
    drop(reader);
    t.say(format_args!("deserted {}", has_no_reader(&writer)));
}
case!(by_return => "
    child: exit 6
    deserted true
");

fn by_signal(t: &mut Transcript) {
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGUSR1] {
        let (reader, writer) = files::pipe();
        let child = process::start(|| {
            let mut ring = Ring::new(8);
            let mut byte = [0u8; 1];
            ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
            ring.submit_and_wait(1);
            5
        });
        crate::time::long_enough_to_notice();
        // SAFETY: the call touches no memory. The process is a child of this one.
        unsafe { libc::kill(child, signal) };
        t.say(format_args!("child: {}", process::ending(child)));
        drop(reader);
        t.say(format_args!("deserted {}", has_no_reader(&writer)));
    }
}
case!(by_signal => "
    child: signal 15
    deserted true
    child: signal 9
    deserted true
    child: signal 10
    deserted true
");

fn by_abort(t: &mut Transcript) {
    let ending = process::forked(|| {
        let mut ring = Ring::new(8);
        ring.push(timeout(&LONG, 0, 0, 1));
        ring.submit();
        // SAFETY: the call ends this child.
        unsafe { libc::abort() }
    });
    t.say(format_args!("child: {ending}"));
}
case!(by_abort => "child: signal 6");

fn while_another_thread_waits(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let ending = process::forked(|| {
        let mut ring = Ring::new(8);
        let mut byte = Box::new([0u8; 1]);
        ring.push(read(reader.as_raw_fd(), &mut byte[..], 0, 1));
        ring.submit();
        let fd = ring.fd;
        std::thread::spawn(move || {
            let flags = u::IORING_ENTER_GETEVENTS;
            crate::syscalls::enter(fd, 0, 1, flags, std::ptr::null(), 0)
        });
        crate::time::long_enough_to_notice();
        std::mem::forget(ring);
        std::mem::forget(byte);
        5
    });
    t.say(format_args!("child: {ending}"));
    drop(reader);
    t.say(format_args!("deserted {}", has_no_reader(&writer)));
}
case!(while_another_thread_waits => "
    child: exit 5
    deserted true
");

/// On the kernel, the end of the thread that submitted a request cancels the request. The ring
/// continues to exist.
fn of_submitting_thread(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = Box::new([0u8; 1]);
    ring.push(read(reader.as_raw_fd(), &mut byte[..], 0, 1));
    ring.forget_pending();
    let fd = ring.fd;
    let answer = std::thread::spawn(move || crate::syscalls::enter(fd, 1, 0, 0, std::ptr::null(), 0)).join();
    t.result("submitted there", answer.unwrap_or(-1));
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    t.entry(&ring.one(nop(2)));
    files::set_nonblocking(&reader, true);
    t.say(format_args!("bytes left {}", files::take(&reader, 4).map_or(0, |bytes| bytes.len())));
}
case!(of_submitting_thread => "
    submitted there = 1
    cqe 1: -ECANCELED
    cqe 2: 0
    bytes left 1
", usring => "
    submitted there = 1
    cqe 1: 1
    cqe 2: 0
    bytes left 0
", because
    "a request belongs to its ring, not to the thread that submitted it, and goes on when that ends");

fn of_creating_thread(t: &mut Transcript) {
    let made = std::thread::spawn(|| Ring::new(8)).join();
    let Ok(mut ring) = made else {
        return;
    };
    t.sorted(&ring.run(&[nop(1), nop(2)]));
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 3).forced_async());
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
}
case!(of_creating_thread => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 1
");

extern "C" fn wait_in_enter(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the call changes only this thread's cancellation type. The thread owns nothing that a
    // cancellation would leak.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, std::ptr::null_mut()) };
    let fd = argument as isize as i32;
    crate::syscalls::enter(fd, 0, 1, u::IORING_ENTER_GETEVENTS, std::ptr::null(), 0);
    std::ptr::null_mut()
}

extern "C" fn wait_in_pause(_argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: pause(2) touches no memory. It is a cancellation point, at which pthread_cancel(3)
    // ends this thread.
    unsafe { libc::pause() };
    std::ptr::null_mut()
}

const PTHREAD_CANCEL_ASYNCHRONOUS: i32 = 1;
const PTHREAD_CANCELED: *mut libc::c_void = usize::MAX as *mut libc::c_void;

unsafe extern "C" {
    fn pthread_setcanceltype(kind: i32, before: *mut i32) -> i32;
}

/// Starts a thread that runs `body`, and cancels it by pthread_cancel(3). Returns whether the
/// cancellation ended the thread.
fn cancelled(body: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void, fd: i32) -> bool {
    // SAFETY: the new thread gets a number instead of a pointer. This function joins the thread.
    unsafe {
        let mut thread: libc::pthread_t = 0;
        let argument = fd as isize as *mut libc::c_void;
        assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), body, argument), 0);
        crate::time::long_enough_to_notice();
        libc::pthread_cancel(thread);
        let mut answer = std::ptr::null_mut();
        libc::pthread_join(thread, &mut answer);
        answer == PTHREAD_CANCELED
    }
}

/// pthread_cancel(3) ends a thread that waits in io_uring_enter.
fn by_thread_cancel(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    t.say(format_args!("in enter: cancelled {}", cancelled(wait_in_enter, ring.fd)));
    t.entry(&ring.one(nop(1)));
    t.say(format_args!("in pause: cancelled {}", cancelled(wait_in_pause, ring.fd)));
    t.entry(&ring.one(nop(2)));
}
case!(by_thread_cancel => "
    in enter: cancelled true
    cqe 1: 0
    in pause: cancelled true
    cqe 2: 0
");

fn status_is_kept(t: &mut Transcript) {
    for status in [0, 1, 42, 255] {
        let ending = process::forked(|| {
            let mut ring = Ring::new(8);
            ring.one(nop(1));
            status
        });
        t.say(format_args!("child: {ending}"));
    }
}
case!(status_is_kept => "
    child: exit 0
    child: exit 1
    child: exit 42
    child: exit 255
");
