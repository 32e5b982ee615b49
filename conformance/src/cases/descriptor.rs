//! Ordinary system calls on the ring's descriptor: dup(2), close(2), poll(2), reuse of the
//! descriptor number, and others.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;

use super::reg;
use crate::files;
use crate::names;
use crate::ring::Ring;
use crate::sqe::{nop, poll, read};
use crate::syscalls;
use crate::transcript::Transcript;

fn works(t: &mut Transcript, name: &str, fd: i32, ring: &mut Ring) {
    ring.push(nop(1));
    ring.forget_pending();
    let answer = syscalls::enter(fd, 1, 0, 0, std::ptr::null(), 0);
    t.result(format_args!("enter by {name}"), answer);
    t.in_order(&ring.reap());
}

fn read_and_write(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut bytes = [0u8; 8];
    for round in 0..2 {
        // SAFETY: the buffer has eight bytes, readable and writable.
        let (read, write) = unsafe {
            let read = libc::read(ring.fd, bytes.as_mut_ptr().cast(), 8);
            let read = syscalls::answer(read as i32);
            let write = libc::write(ring.fd, bytes.as_ptr().cast(), 8);
            (read, syscalls::answer(write as i32))
        };
        t.result("read", read);
        t.result("write", write);
        // The next round makes its calls while the CQ contains a CQE.
        ring.push(nop(round));
        ring.submit();
    }
    t.in_order(&ring.reap());
}
case!(read_and_write => "
    read = -EINVAL
    write = -EINVAL
    read = -EINVAL
    write = -EINVAL
    cqe 0: 0
    cqe 1: 0
", usring => "
    read = 8
    write = 8
    read = 8
    write = 8
    cqe 0: 0
    cqe 1: 0
", because
    "a ring's descriptor is an eventfd underneath: calls that usring does not stand in for reach the eventfd");

fn other_calls(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut stat: libc::stat = crate::memory::zeroed();
    // SAFETY: only fstat(2) touches memory, which is `stat`, a variable of this function.
    unsafe {
        t.outcome("lseek", i64::from(syscalls::answer(libc::lseek(ring.fd, 0, libc::SEEK_CUR) as i32)));
        t.result("fsync", syscalls::answer(libc::fsync(ring.fd)));
        t.result("ftruncate", syscalls::answer(libc::ftruncate(ring.fd, 0)));
        t.result("fstat", syscalls::answer(libc::fstat(ring.fd, &mut stat)));
        let mut byte = 0u8;
        let got = libc::pread(ring.fd, (&raw mut byte).cast(), 1, 0);
        t.result("pread", syscalls::answer(got as i32));
        t.result("listen", syscalls::answer(libc::listen(ring.fd, 1)));
    }
    t.say(format_args!("kind {:o}", stat.st_mode & libc::S_IFMT));
}
case!(other_calls => "
    lseek = -ESPIPE
    fsync = -EINVAL
    ftruncate = -EINVAL
    fstat = 0
    pread = -ESPIPE
    listen = -ENOTSOCK
    kind 0
", usring => "
    lseek = ok
    fsync = -EINVAL
    ftruncate = -EINVAL
    fstat = 0
    pread = -ESPIPE
    listen = -ENOTSOCK
    kind 0
", because
    "a ring's descriptor is an eventfd underneath: calls that usring does not stand in for reach the eventfd");

fn dup(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    // SAFETY: the call touches no memory.
    let other = unsafe { libc::dup(ring.fd) };
    t.outcome("dup", other.into());
    works(t, "the duplicate", other, &mut ring);
    let fd = ring.fd;
    t.result("close the first", ring.close());
    t.result("enter by the first", syscalls::enter(fd, 0, 0, 0, std::ptr::null(), 0));
    works(t, "the duplicate", other, &mut ring);
    t.outcome("map by the duplicate", syscalls::map(other, 4096, 0));
    t.result("close the duplicate", syscalls::close(other));
    t.result("enter by the duplicate", syscalls::enter(other, 0, 0, 0, std::ptr::null(), 0));
}
case!(dup => "
    dup = ok
    enter by the duplicate = 1
    cqe 1: 0
    close the first = 0
    enter by the first = -EBADF
    enter by the duplicate = 1
    cqe 1: 0
    map by the duplicate = ok
    close the duplicate = 0
    enter by the duplicate = -EBADF
");

fn dup2_over_ring(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"x");
    let fd = ring.fd;
    // SAFETY: the ring's number now means the file.
    let answer = unsafe { libc::dup2(file.as_raw_fd(), fd) };
    t.say(format_args!("dup2 answers the number {}", answer == fd));
    t.result("enter", ring.enter(0, 0, 0));
    t.result("register", ring.register::<u8>(reg::PROBE, std::ptr::null(), 0));
    let mut byte = [0u8; 1];
    // SAFETY: the buffer has one byte.
    t.result("read", unsafe { libc::read(fd, byte.as_mut_ptr().cast(), 1) } as i32);
    t.result("close", ring.close());
}
case!(dup2_over_ring => "
    dup2 answers the number true
    enter = -EOPNOTSUPP
    register = -EOPNOTSUPP
    read = 1
    close = 0
");

fn dup2_ring_to_number(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = files::eventfd(0);
    // SAFETY: the eventfd's number now means the ring.
    let answer = unsafe { libc::dup2(ring.fd, event.as_raw_fd()) };
    t.say(format_args!("dup2 answers the number {}", answer == event.as_raw_fd()));
    works(t, "the number", event.as_raw_fd(), &mut ring);
    // SAFETY: the call duplicates a descriptor onto itself.
    let answer = unsafe { libc::dup2(ring.fd, ring.fd) };
    t.say(format_args!("dup2 onto itself answers the number {}", answer == ring.fd));
    works(t, "the first", ring.fd, &mut ring);
}
case!(dup2_ring_to_number => "
    dup2 answers the number true
    enter by the number = 1
    cqe 1: 0
    dup2 onto itself answers the number true
    enter by the first = 1
    cqe 1: 0
");

fn dup3_and_fcntl(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    // SAFETY: the calls touch no memory. The new descriptors are closed when the process ends.
    unsafe {
        let other = libc::dup3(fd, 700, libc::O_CLOEXEC);
        t.say(format_args!("dup3 answers the number {}", other == 700));
        t.result("F_GETFD", libc::fcntl(other, libc::F_GETFD));
        works(t, "dup3's", other, &mut ring);
        t.result("dup3 onto itself", syscalls::answer(libc::dup3(fd, fd, 0)));
        let other = libc::fcntl(fd, libc::F_DUPFD, 650);
        t.say(format_args!("F_DUPFD at least 650: {}", other >= 650));
        t.result("F_GETFD", libc::fcntl(other, libc::F_GETFD));
        works(t, "F_DUPFD's", other, &mut ring);
        let other = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
        t.result("F_GETFD", libc::fcntl(other, libc::F_GETFD));
        works(t, "F_DUPFD_CLOEXEC's", other, &mut ring);
    }
}
case!(dup3_and_fcntl => "
    dup3 answers the number true
    F_GETFD = 1
    enter by dup3's = 1
    cqe 1: 0
    dup3 onto itself = -EINVAL
    F_DUPFD at least 650: true
    F_GETFD = 0
    enter by F_DUPFD's = 1
    cqe 1: 0
    F_GETFD = 1
    enter by F_DUPFD_CLOEXEC's = 1
    cqe 1: 0
");

fn upper_half_of_the_lowest_number(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    for (name, upper) in [("one bit", 1_u64 << 32), ("all bits", u64::from(u32::MAX) << 32)] {
        // SAFETY: a descriptor is duplicated.
        let other = unsafe { libc::fcntl(ring.fd, libc::F_DUPFD, upper | 650) };
        t.say(format_args!("{name}: at least 650: {}", other >= 650));
        works(t, name, other, &mut ring);
    }
}
case!(upper_half_of_the_lowest_number => "
    one bit: at least 650: true
    enter by one bit = 1
    cqe 1: 0
    all bits: at least 650: true
    enter by all bits = 1
    cqe 1: 0
");

fn closed_number_reused(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    let file = files::memory_file(b"x");
    t.result("close", ring.close());
    // SAFETY: the number `fd` is free. dup2(2) makes it a descriptor of `file`.
    unsafe { libc::dup2(file.as_raw_fd(), fd) };
    t.result("enter", ring.enter(0, 0, 0));
    let mapped = syscalls::map(fd, 1, 0);
    t.outcome("map", mapped);
    if mapped > 0 {
        // SAFETY: the byte is the first one of the file's page, which was just mapped.
        let first = unsafe { *(mapped as *const u8) };
        t.say(format_args!("the file's byte {}", first as char));
    }
    t.result("close", syscalls::close(fd));
}
case!(closed_number_reused => "
    close = 0
    enter = -EOPNOTSUPP
    map = ok
    the file's byte x
    close = 0
");

fn close_range(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let other = Ring::new(8);
    let (first, last) = (ring.fd.min(other.fd) as u32, ring.fd.max(other.fd) as u32);
    // SAFETY: the two rings were made one after the other. So the range contains their numbers, and
    // no number of another file that the case uses.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    t.result("close_range", answer as i32);
    t.result("enter", ring.enter(0, 0, 0));
    t.result("enter the other", other.enter(0, 0, 0));
    ring.abandon();
}
case!(close_range => "
    close_range = 0
    enter = -EBADF
    enter the other = -EBADF
");

fn flags(t: &mut Transcript) {
    let ring = Ring::new(4);
    // SAFETY: the call touches no memory.
    unsafe {
        t.result("F_GETFD", libc::fcntl(ring.fd, libc::F_GETFD));
        t.result("F_SETFD 0", libc::fcntl(ring.fd, libc::F_SETFD, 0));
        t.result("F_GETFD", libc::fcntl(ring.fd, libc::F_GETFD));
        let status = libc::fcntl(ring.fd, libc::F_GETFL);
        t.say(format_args!("O_RDWR {}", status & libc::O_ACCMODE == libc::O_RDWR));
        t.result("O_NONBLOCK", libc::fcntl(ring.fd, libc::F_SETFL, libc::O_NONBLOCK));
    }
    // O_NONBLOCK on the ring's descriptor has no effect on a wait in io_uring_enter(2).
    let limit = std::time::Duration::from_millis(5);
    t.result("wait", ring.enter_for(0, 1, limit));
}
case!(flags => "
    F_GETFD = 1
    F_SETFD 0 = 0
    F_GETFD = 0
    O_RDWR true
    O_NONBLOCK = 0
    wait = -ETIME
");

/// Returns whether a request still keeps a pipe's reading end open. `writer` is the pipe's writing
/// end.
pub(super) fn held(writer: &std::os::fd::OwnedFd) -> bool {
    let mut entry = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the array has one entry.
    unsafe { libc::poll(&mut entry, 1, 50) };
    entry.revents & libc::POLLERR == 0
}

fn requests_end_with_last(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    drop(reader);
    t.say(format_args!("held {}", held(&writer)));
    drop(ring);
    t.say(format_args!("let go {}", crate::time::until(|| !held(&writer))));
}
case!(requests_end_with_last => "
    held true
    let go true
");

fn duplicate_keeps_requests(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    drop(reader);
    // SAFETY: the call touches no memory.
    let other = unsafe { libc::dup(ring.fd) };
    t.result("close", ring.close());
    t.say(format_args!("held {}", held(&writer)));
    files::put(&writer, b"x");
    t.say(format_args!("seen {}", ring.wait_in_memory(1)));
    t.in_order(&ring.reap());
    t.result("close the duplicate", syscalls::close(other));
}
case!(duplicate_keeps_requests => "
    close = 0
    held true
    seen true
    cqe 1: 1
    close the duplicate = 0
");

/// On the kernel, the mapping of a ring keeps the ring and its requests alive after the program has
/// closed the ring's descriptor.
fn mapping_keeps_requests(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    drop(reader);
    t.result("close", ring.close());
    t.say(format_args!("held {}", held(&writer)));
    drop(ring);
    t.say(format_args!("let go {}", crate::time::until(|| !held(&writer))));
}
case!(mapping_keeps_requests => "
    close = 0
    held true
    let go true
", usring => "
    close = 0
    held false
    let go true
", because
    "munmap is not seen, so the ring ends with its last descriptor, not with its last mapping");

fn as_request_target(t: &mut Transcript) {
    let (ring, mut other) = (Ring::new(8), Ring::new(8));
    let bytes = [0u8; 8];
    t.entry(&other.one(crate::sqe::write(ring.fd, &bytes, 0, 2)));
    let fsync = crate::sqe::sqe(usring_uapi::opcode::FSYNC, ring.fd, 3);
    t.entry(&other.one(fsync));
    let writable = other.one(poll(ring.fd, libc::POLLOUT, 4));
    t.say(format_args!("poll {}", names::events(writable.res)));
}
case!(as_request_target => "
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    poll OUT
", usring => "
    cqe 2: 8
    cqe 3: -EINVAL
    poll OUT
", because
    "a ring's descriptor is an eventfd underneath: calls that usring does not stand in for reach the eventfd");

fn registered_as_file(t: &mut Transcript) {
    let (ring, other) = (Ring::new(8), Ring::new(8));
    t.result("another ring", other.register(reg::FILES, &raw const ring.fd, 1));
    t.result("as eventfd", other.register(reg::EVENTFD, &raw const ring.fd, 1));
}
case!(registered_as_file => "
    another ring = -EBADF
    as eventfd = -EINVAL
", usring => "
    another ring = -EBADF
    as eventfd = 0
", because
    "a ring's descriptor is an eventfd underneath: calls that usring does not stand in for reach the eventfd");

/// On the kernel, a ring's descriptor cannot be sent over a unix socket (SCM_RIGHTS).
fn passed_over_socket(t: &mut Transcript) {
    let ring = Ring::new(8);
    let (here, _there) = files::sockets();
    let mut byte = 0u8;
    let mut vector = crate::sqe::vector(&raw mut byte as u64, 1);
    let mut control = [0u64; 4];
    // SAFETY: the message and its control data lie in variables of this function. The control data
    // has room for one descriptor.
    let answer = unsafe {
        let mut message: libc::msghdr = crate::memory::zeroed();
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(ring.fd);
        libc::sendmsg(here.as_raw_fd(), &message, 0)
    };
    t.result("sendmsg", syscalls::answer(answer as i32));
    assert_eq!(u::IORING_SETUP_SQPOLL, 2);
}
case!(passed_over_socket => "sendmsg = -EINVAL", usring => "sendmsg = 1", because
    "the socket passes the eventfd that the ring is made of, which the kernel allows");

fn link_name(t: &mut Transcript) {
    let ring = Ring::new(4);
    let name = std::fs::read_link(format!("/proc/self/fd/{}", ring.fd));
    let text = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    t.say(format_args!("anonymous inode {}", text.starts_with("anon_inode:")));
}
case!(link_name => "anonymous inode true");

fn lowest_number(t: &mut Transcript) {
    let event = files::eventfd(0);
    let number = event.as_raw_fd();
    drop(event);
    let ring = Ring::new(4);
    t.say(format_args!("the lowest free number {}", ring.fd == number));
}
case!(lowest_number => "the lowest free number true", usring => "the lowest free number false", because
    "a ring's number lies in a range of its own, which separates close, dup and mmap of rings from those of files");
