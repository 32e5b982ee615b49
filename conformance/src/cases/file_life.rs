//! A request keeps its file open. So it has no effect on the request if the program closes the
//! descriptor or reuses its number.

use std::os::fd::{AsRawFd, IntoRawFd};

use usring_uapi::io_uring as u;

use super::reg;
use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, close, poll, read, write};
use crate::syscalls;
use crate::transcript::Transcript;

fn close_does_not_cancel(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::sockets();
    let mut buffer = [0u8; 4];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    t.result("close", syscalls::close(reader.into_raw_fd()));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    t.say(format_args!("written {}", files::put(&writer, b"late")));
    t.in_order(&ring.wait(1));
    t.say(String::from_utf8_lossy(&buffer).into_owned());
}
case!(close_does_not_cancel => "
    close = 0
    no cqe
    written 4
    cqe 1: 4
    late
");

fn closed_in_the_same_batch(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 4];
    let fd = reader.into_raw_fd();
    ring.push(read(fd, &mut buffer, 0, 1));
    ring.push(close(fd, 2));
    ring.push(read(fd, &mut buffer, 0, 3));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    files::put(&writer, b"late");
    t.in_order(&ring.wait(1));
}
case!(closed_in_the_same_batch => "
    submit = 3
    cqe 2: 0
    cqe 3: -EBADF
    cqe 1: 4
");

fn number_reused_by_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let file = files::memory_file(b"not this");
    let mut buffer = [0u8; 8];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    // SAFETY: this case owns both descriptors. dup2(2) makes the first number a descriptor of the
    // regular file.
    unsafe { libc::dup2(file.as_raw_fd(), reader.as_raw_fd()) };
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&writer, b"but this");
    t.in_order(&ring.wait(1));
    t.say(String::from_utf8_lossy(&buffer).into_owned());
    t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, 0, 2)));
    t.say(String::from_utf8_lossy(&buffer).into_owned());
}
case!(number_reused_by_file => "
    no cqe
    cqe 1: 8
    but this
    cqe 2: 8
    not this
");

fn number_reused_by_pipe(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let (other, elsewhere) = files::pipe();
    let (mut a, mut b) = ([0u8; 4], [0u8; 4]);
    ring.push(read(reader.as_raw_fd(), &mut a, 0, 1));
    ring.submit();
    // SAFETY: this case owns both descriptors. dup2(2) makes the first number a descriptor of the
    // other pipe.
    unsafe { libc::dup2(other.as_raw_fd(), reader.as_raw_fd()) };
    ring.push(read(reader.as_raw_fd(), &mut b, 0, 2));
    ring.submit();
    files::put(&elsewhere, b"new");
    t.in_order(&ring.wait(1));
    files::put(&writer, b"old");
    t.in_order(&ring.wait(1));
    t.say(format_args!("{} {}", String::from_utf8_lossy(&a[..3]), String::from_utf8_lossy(&b[..3])));
}
case!(number_reused_by_pipe => "
    cqe 2: 3
    cqe 1: 3
    old new
");

fn poll_survives_close(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
    ring.submit();
    drop(reader);
    t.say(format_args!("written {}", files::put(&writer, b"x")));
    t.in_order(&ring.wait(1));
}
case!(poll_survives_close => "
    written 1
    cqe 1: 1
");

fn write_survives_close(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    files::fill(&writer);
    ring.push(write(writer.as_raw_fd(), b"tail", 0, 1));
    ring.submit();
    drop(writer);
    let mut total = 0;
    let mut last = Vec::new();
    loop {
        match files::take(&reader, 4096) {
            Ok(bytes) if !bytes.is_empty() => {
                total += bytes.len();
                last = bytes;
            }
            _ => break,
        }
    }
    t.in_order(&ring.wait(1));
    let tail = last.ends_with(b"tail");
    t.say(format_args!("all read {} tail {tail}", total % 4096 == 4));
}
case!(write_survives_close => "
    cqe 1: 4
    all read true tail true
");

/// For a request with IOSQE_ASYNC, the worker looks up the descriptor, although the manual page
/// says that the submission does. So the case closes the descriptor only after the worker has
/// started.
fn worker_survives_close(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 4];
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1).forced_async());
    ring.submit();
    crate::time::long_enough_to_begin();
    drop(reader);
    t.say(format_args!("written {}", files::put(&writer, b"late")));
    t.in_order(&ring.wait(1));
}
case!(worker_survives_close => "
    written 4
    cqe 1: 4
");

fn pipe_end_held_open(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    files::fill(&writer);
    ring.push(write(writer.as_raw_fd(), b"x", 0, 1));
    ring.submit();
    drop(writer);
    // The write request keeps the writing end open. So a read of the empty pipe does not see the
    // end of the pipe.
    files::set_nonblocking(&reader, true);
    let mut ended = false;
    let seen = crate::time::until(|| match files::take(&reader, 65536) {
        Ok(bytes) => {
            ended |= bytes.is_empty();
            ring.ready() > 0
        }
        Err(_) => ring.ready() > 0,
    });
    t.say(format_args!("completed {seen} ended before {}", ended && ring.ready() == 0));
    t.in_order(&ring.reap());
}
case!(pipe_end_held_open => "
    completed true ended before false
    cqe 1: 1
");

/// Returns whether the last reading end of a pipe is closed. `writer` is the pipe's writing end.
fn reader_gone(writer: &std::os::fd::OwnedFd) -> bool {
    let mut entry = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the array has one entry.
    unsafe { libc::poll(&mut entry, 1, 30_000) };
    entry.revents & libc::POLLERR != 0
}

fn released_when_done(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    drop(reader);
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    t.say(format_args!("reader gone {}", reader_gone(&writer)));
}
case!(released_when_done => "
    cqe 1: 1
    reader gone true
");

fn released_when_cancelled(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    drop(reader);
    ring.push(crate::sqe::cancel(1, 0, 2));
    ring.submit();
    t.sorted(&ring.wait(2));
    t.say(format_args!("reader gone {}", reader_gone(&writer)));
}
case!(released_when_cancelled => "
    cqe 1: -ECANCELED
    cqe 2: 0
    reader gone true
");

fn released_when_ring_closes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    drop(reader);
    drop(ring);
    t.say(format_args!("reader gone {}", reader_gone(&writer)));
}
case!(released_when_ring_closes => "reader gone true");

fn unregistered_while_in_use(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let number = reader.as_raw_fd();
    let mut buffer = [0u8; 4];
    t.result("register", ring.register(reg::FILES, &raw const number, 1));
    ring.push(read(0, &mut buffer, 0, 1).fixed());
    ring.submit();
    drop(reader);
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    files::put(&writer, b"late");
    t.in_order(&ring.wait(1));
    t.say(format_args!("reader gone {}", reader_gone(&writer)));
}
case!(unregistered_while_in_use => "
    register = 0
    unregister = 0
    cqe 1: 4
    reader gone true
");

fn looked_up_at_submit(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"first");
    let second = files::memory_file(b"other");
    let mut buffer = [0u8; 5];
    ring.push(read(file.as_raw_fd(), &mut buffer, 0, 1));
    // The number becomes that of another file between the writing of the SQE and the submission.
    // The request uses the file at the submission.
    // SAFETY: this case owns both descriptors.
    unsafe { libc::dup2(second.as_raw_fd(), file.as_raw_fd()) };
    t.result("submit", ring.enter(1, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&ring.reap());
    t.say(String::from_utf8_lossy(&buffer).into_owned());
}
case!(looked_up_at_submit => "
    submit = 1
    cqe 1: 5
    other
");

/// A waiting request occupies none of the program's descriptor numbers.
fn lowest_number_is_free(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let fd = reader.as_raw_fd();
    let mut byte = [0u8; 1];
    ring.push(read(fd, &mut byte, 0, 1));
    ring.submit();
    drop(reader);
    let next = files::eventfd(0);
    t.say(format_args!("the number just freed: {}", next.as_raw_fd() == fd));
}
case!(lowest_number_is_free => "the number just freed: true");

fn record_lock(kind: i32) -> libc::flock {
    let mut lock: libc::flock = crate::memory::zeroed();
    lock.l_type = kind as i16;
    lock
}

/// Returns whether a record lock of this process keeps another process from locking the file.
fn locked(fd: i32) -> bool {
    let ending = crate::process::forked(|| {
        let mut lock = record_lock(libc::F_WRLCK);
        // SAFETY: the lock is a variable of this function.
        unsafe { libc::fcntl(fd, libc::F_GETLK, &mut lock) };
        i32::from(i32::from(lock.l_type) != libc::F_UNLCK)
    });
    ending == "exit 1"
}

/// If a process closes any descriptor of a file, the kernel drops the process's record locks on the
/// file. The end of a request must not drop them.
fn record_locks_are_kept(t: &mut Transcript) {
    let scratch = files::Scratch::new();
    let file = scratch.file("locked", b"0123456789");
    let fd = file.as_raw_fd();
    let lock = record_lock(libc::F_WRLCK);
    // SAFETY: the lock is a variable of this function.
    t.result("lock", unsafe { libc::fcntl(fd, libc::F_SETLK, &lock) });
    t.say(format_args!("locked {}", locked(fd)));
    let mut ring = Ring::new(8);
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(fd, &mut buffer, 0, 1)));
    t.entry(&ring.one(read(fd, &mut buffer, 0, 2).forced_async()));
    t.say(format_args!("after a worker's read: {}", locked(fd)));
    t.entry(&ring.one(write(fd, b"abcd", 0, 3).forced_async()));
    t.say(format_args!("after a worker's write: {}", locked(fd)));
    t.result("register", ring.register(reg::FILES, &raw const fd, 1));
    t.entry(&ring.one(read(0, &mut buffer, 0, 4).fixed()));
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    t.say(format_args!("after the table: {}", locked(fd)));
    t.result("register", ring.register(reg::FILES, &raw const fd, 1));
    drop(ring);
    t.say(format_args!("after the ring: {}", locked(fd)));
}
case!(record_locks_are_kept => "
    lock = 0
    locked true
    cqe 1: 4
    cqe 2: 4
    after a worker's read: true
    cqe 3: 4
    after a worker's write: true
    register = 0
    cqe 4: 4
    unregister = 0
    after the table: true
    register = 0
    after the ring: true
");
