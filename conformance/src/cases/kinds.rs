//! READ, WRITE and POLL_ADD on each kind of file.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use super::poll::events;
use crate::files;
use crate::memory::zeroed;
use crate::ring::Ring;
use crate::sqe::{Change, cancel, poll, read, write};
use crate::transcript::Transcript;

const IN: i16 = libc::POLLIN;

fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Waits for one completion of a poll, and prints its result as event names.
fn next_events(t: &mut Transcript, ring: &mut Ring) {
    for entry in ring.wait(1) {
        events(t, &entry);
    }
}

fn epoll(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    // SAFETY: the call touches no memory.
    let set = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    let event = files::eventfd(0);
    let mut wanted = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
    // SAFETY: the event is a variable of this function.
    let added = unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, event.as_raw_fd(), &mut wanted) };
    t.result("add", added);
    ring.push(poll(set.as_raw_fd(), IN, 1));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&event, &1u64.to_ne_bytes());
    next_events(t, &mut ring);
    let mut byte = [0u8; 8];
    t.entry(&ring.one(read(set.as_raw_fd(), &mut byte, 0, 2)));
}
case!(epoll => "
    add = 0
    no cqe
    cqe 1: IN -
    cqe 2: -EINVAL
");

fn signalfd(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    // SAFETY: the signal set is a variable of this function. Only this thread's signal mask
    // changes.
    let fd = unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        owned(libc::signalfd(-1, &set, libc::SFD_CLOEXEC))
    };
    let mut buffer = [0u8; 128];
    ring.push(poll(fd.as_raw_fd(), IN, 1));
    ring.submit();
    t.in_order(&ring.reap());
    // Sends the signal to the process. A poll of a signalfd sees a signal to a thread only if that
    // thread polls.
    // SAFETY: the signal is blocked in this process and read from the signalfd.
    unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
    next_events(t, &mut ring);
    t.entry(&ring.one(read(fd.as_raw_fd(), &mut buffer, 0, 2)));
    t.say(format_args!("signal {}", buffer[0]));
}
case!(signalfd => "
    no cqe
    cqe 1: IN -
    cqe 2: 128
    signal 10
");

fn inotify(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = files::Scratch::new();
    // SAFETY: the path is a C string.
    let fd = unsafe {
        let fd = owned(libc::inotify_init1(libc::IN_CLOEXEC));
        let path = scratch.path_of(".");
        libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), libc::IN_CREATE);
        fd
    };
    let mut buffer = [0u8; 256];
    ring.push(read(fd.as_raw_fd(), &mut buffer, 0, 1));
    ring.submit();
    t.in_order(&ring.reap());
    drop(scratch.file("new", b""));
    t.say(format_args!("something read {}", ring.wait(1).first().is_some_and(|entry| entry.res > 0)));
    let name = buffer[16..].split(|byte| *byte == 0).next().unwrap_or_default();
    t.say(String::from_utf8_lossy(name).into_owned());
}
case!(inotify => "
    no cqe
    something read true
    new
");

fn periodic_timerfd(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    // SAFETY: the timer's time is a variable of this function. The descriptor is new, and nothing
    // else owns it.
    let fd = unsafe {
        let fd = owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC));
        let mut time: libc::itimerspec = zeroed();
        time.it_value.tv_nsec = 2_000_000;
        time.it_interval.tv_nsec = 2_000_000;
        libc::timerfd_settime(fd.as_raw_fd(), 0, &time, std::ptr::null_mut());
        fd
    };
    let mut expired = 0;
    for round in 0..5 {
        let mut count = [0u8; 8];
        let entry = ring.one(read(fd.as_raw_fd(), &mut count, 0, round));
        t.entry(&entry);
        expired += u64::from_ne_bytes(count);
    }
    t.say(format_args!("expired at least five times {}", expired >= 5));
}
case!(periodic_timerfd => "
    cqe 0: 8
    cqe 1: 8
    cqe 2: 8
    cqe 3: 8
    cqe 4: 8
    expired at least five times true
");

/// A pidfd becomes readable when its process ends.
fn process(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let child = crate::process::start(|| {
        let _ = files::take(&reader, 1);
        3
    });
    // SAFETY: the call touches no memory. The process is a child of this one.
    let fd = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, child, 0) } as i32);
    ring.push(poll(fd.as_raw_fd(), IN, 1));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    // The poll completes when the child ends, whether the parent ignores SIGCHLD or not.
    let seen = ring.wait(1).first().is_some_and(|entry| entry.res & i32::from(IN) != 0);
    t.say(format_args!("ended {seen}"));
    t.say(format_args!("child: {}", crate::process::ending(child)));
}
case!(process => "
    no cqe
    ended true
    child: exit 3
");

fn terminal_pair() -> (OwnedFd, OwnedFd) {
    // SAFETY: of all memory, the calls touch only the name, a C string in a buffer of this
    // function.
    unsafe {
        let main = owned(libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC));
        libc::grantpt(main.as_raw_fd());
        libc::unlockpt(main.as_raw_fd());
        let mut name = [0; 64];
        libc::ptsname_r(main.as_raw_fd(), name.as_mut_ptr(), name.len());
        let other = owned(libc::open(name.as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC));
        (main, other)
    }
}

fn terminal(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (main, other) = terminal_pair();
    let mut line = [0u8; 16];
    ring.push(read(other.as_raw_fd(), &mut line, 0, 1));
    ring.submit();
    t.in_order(&ring.reap());
    t.entry(&ring.one(write(main.as_raw_fd(), b"no end", 0, 2)));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&main, b" yet\n");
    t.in_order(&ring.wait(1));
    t.say(String::from_utf8_lossy(&line[..10]).into_owned());
}
case!(terminal => "
    no cqe
    cqe 2: 6
    no cqe
    cqe 1: 11
    no end yet
");

fn terminal_hangs_up(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (main, other) = terminal_pair();
    let mut byte = [0u8; 1];
    ring.push(read(main.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    drop(other);
    t.in_order(&ring.wait(1));
    let entry = ring.one(poll(main.as_raw_fd(), IN, 2));
    t.say(format_args!("hung up {}", entry.res & i32::from(libc::POLLHUP) != 0));
}
case!(terminal_hangs_up => "
    cqe 1: -EIO
    hung up true
");

fn listening_socket(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    ring.push(poll(listener.as_raw_fd(), IN, 1));
    ring.submit();
    t.in_order(&ring.reap());
    let _client = std::net::TcpStream::connect(address).expect("a connection");
    next_events(t, &mut ring);
    let mut byte = [0u8; 1];
    t.entry(&ring.one(read(listener.as_raw_fd(), &mut byte, 0, 2)));
}
case!(listening_socket => "
    no cqe
    cqe 1: IN -
    cqe 2: -ENOTCONN
");

fn connecting_socket(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let entry = ring.one(poll(client.as_raw_fd(), libc::POLLOUT, 1));
    events(t, &entry);
    let (mut server, _) = listener.accept().expect("a connection");
    let mut buffer = [0u8; 8];
    ring.push(read(client.as_raw_fd(), &mut buffer, 0, 2));
    ring.submit();
    std::io::Write::write_all(&mut server, b"over tcp").expect("a send");
    t.in_order(&ring.wait(1));
    t.say(String::from_utf8_lossy(&buffer).into_owned());
    drop(server);
    t.entry(&ring.one(read(client.as_raw_fd(), &mut buffer, 0, 3)));
}
case!(connecting_socket => "
    cqe 1: OUT -
    cqe 2: 8
    over tcp
    cqe 3: 0
");

fn reset_connection(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (server, _) = listener.accept().expect("a connection");
    let mut byte = [0u8; 1];
    ring.push(read(client.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option's value lives through the call.
    unsafe {
        let size = size_of::<libc::linger>() as u32;
        let place = (&raw const linger).cast();
        libc::setsockopt(server.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, place, size);
    }
    drop(server);
    t.in_order(&ring.wait(1));
    t.entry(&ring.one(read(client.as_raw_fd(), &mut byte, 0, 2)));
}
case!(reset_connection => "
    cqe 1: -ECONNRESET
    cqe 2: 0
");

fn datagram_socket(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (here, there) = files::sockets_of(libc::SOCK_DGRAM);
    let mut small = [0u8; 2];
    ring.push(read(here.as_raw_fd(), &mut small, 0, 1));
    ring.submit();
    files::put(&there, b"cut off");
    t.in_order(&ring.wait(1));
    ring.push(read(here.as_raw_fd(), &mut small, 0, 2));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    drop(there);
    // On a datagram socket, the close of the peer need not complete a read. So the case cancels the
    // read.
    ring.push(cancel(2, 0, 3));
    ring.submit();
    t.say(format_args!("ended {}", !ring.wait(2).is_empty()));
}
case!(datagram_socket => "
    cqe 1: 2
    no cqe
    ended true
");

fn sequenced_packets(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (here, there) = files::sockets_of(libc::SOCK_SEQPACKET);
    let mut buffer = [0u8; 16];
    t.entry(&ring.one(write(there.as_raw_fd(), b"first", 0, 1)));
    t.entry(&ring.one(write(there.as_raw_fd(), b"second", 0, 2)));
    t.entry(&ring.one(read(here.as_raw_fd(), &mut buffer, 0, 3)));
    t.entry(&ring.one(read(here.as_raw_fd(), &mut buffer, 0, 4)));
    drop(there);
    t.entry(&ring.one(read(here.as_raw_fd(), &mut buffer, 0, 5)));
}
case!(sequenced_packets => "
    cqe 1: 5
    cqe 2: 6
    cqe 3: 5
    cqe 4: 6
    cqe 5: 0
");

fn proc_file(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = std::fs::File::open("/proc/self/comm").expect("/proc");
    let mut buffer = [0u8; 32];
    let entry = ring.one(read(file.as_raw_fd(), &mut buffer, 0, 1));
    t.say(format_args!("{} bytes", if entry.res > 0 { "some" } else { "no" }));
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 100, 2)));
    let entry = ring.one(read(file.as_raw_fd(), &mut buffer, 0, 3).forced_async());
    t.say(format_args!("{} bytes", if entry.res > 0 { "some" } else { "no" }));
}
case!(proc_file => "
    some bytes
    cqe 2: 0
    some bytes
");

fn random(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = std::fs::File::open("/dev/urandom").expect("/dev/urandom");
    let mut buffer = vec![0u8; 1000];
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 1)));
    t.say(format_args!("all zero {}", buffer.iter().all(|byte| *byte == 0)));
}
case!(random => "
    cqe 1: 1000
    all zero false
");

fn full_socket(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (here, there) = files::sockets();
    files::fill(&here);
    ring.push(write(here.as_raw_fd(), b"tail", 0, 1));
    ring.push(poll(here.as_raw_fd(), libc::POLLOUT, 2));
    ring.submit();
    t.in_order(&ring.reap());
    files::set_nonblocking(&there, true);
    crate::time::until(|| {
        while files::take(&there, 65536).is_ok() {}
        ring.ready() == 2
    });
    t.sorted(&ring.reap());
}
case!(full_socket => "
    no cqe
    cqe 1: 4
    cqe 2: 4
");

/// SO_RCVTIMEO limits blocking calls only: a RECV request waits longer than that limit.
fn receive_timeout(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (here, there) = files::sockets();
    let time = libc::timeval { tv_sec: 0, tv_usec: 10_000 };
    // SAFETY: the option's value lives through the call.
    unsafe {
        let size = size_of::<libc::timeval>() as u32;
        let place = (&raw const time).cast();
        libc::setsockopt(here.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, place, size);
    }
    let mut byte = [0u8; 1];
    ring.push(read(here.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&there, b"x");
    t.in_order(&ring.wait(1));
}
case!(receive_timeout => "
    no cqe
    cqe 1: 1
");

fn path_only(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    // SAFETY: the path is a C string.
    let fd = owned(unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) });
    events(t, &ring.one(poll(fd.as_raw_fd(), IN, 1)));
    let number = fd.as_raw_fd();
    t.result("register", ring.register(super::reg::FILES, &raw const number, 1));
}
case!(path_only => "
    cqe 1: -EBADF -
    register = -EBADF
");

/// An epoll set contains a ring's descriptor. The epoll set is readable while the ring has CQEs.
fn epoll_with_ring_in_it(t: &mut Transcript) {
    let (mut ring, mut other) = (Ring::new(8), Ring::new(8));
    // SAFETY: the call touches no memory.
    let set = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    let mut wanted = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
    // SAFETY: the event is a variable of this function.
    t.result("add", unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, ring.fd, &mut wanted) });
    let poll_once = |set: &OwnedFd, time: i32| {
        let mut entry = libc::pollfd { fd: set.as_raw_fd(), events: IN, revents: 0 };
        // SAFETY: the array has one entry.
        unsafe { libc::poll(&mut entry, 1, time) }
    };
    t.result("poll", poll_once(&set, 0));
    ring.push(crate::sqe::nop(1));
    ring.submit();
    t.result("poll", poll_once(&set, 5000));
    ring.reap();
    t.result("poll", poll_once(&set, 0));
    other.push(poll(set.as_raw_fd(), IN, 5));
    other.submit();
    ring.push(crate::sqe::nop(2));
    ring.submit();
    t.in_order(&other.wait(1));
    t.say(format_args!("there {}", ring.ready()));
    assert_eq!(u::IORING_SETUP_CQSIZE, 8);
}
case!(epoll_with_ring_in_it => "
    add = 0
    poll = 0
    poll = 1
    poll = 0
    cqe 5: 1
    there 1
");

/// The process has opened a FIFO for reading and writing, so it is a writer itself. A read of the
/// FIFO therefore waits, and does not see the end of the file.
fn fifo_without_writer(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fifo = files::Fifo::new();
    let both = fifo.release();
    let mut byte = [0u8; 1];
    ring.push(read(both.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&both, b"x");
    t.in_order(&ring.wait(1));
}
case!(fifo_without_writer => "
    no cqe
    cqe 1: 1
");

/// A pipe with O_DIRECT is in packet mode: each read returns the bytes of one write.
fn pipe_packets(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe_with(libc::O_DIRECT);
    let mut buffer = [0u8; 16];
    t.entry(&ring.one(write(writer.as_raw_fd(), b"first", 0, 1)));
    t.entry(&ring.one(write(writer.as_raw_fd(), b"second", 0, 2)));
    t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer, 0, 3)));
    t.entry(&ring.one(read(reader.as_raw_fd(), &mut buffer[..3], 0, 4)));
    ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 5));
    ring.submit();
    t.in_order(&ring.reap());
    files::put(&writer, b"third");
    t.in_order(&ring.wait(1));
}
case!(pipe_packets => "
    cqe 1: 5
    cqe 2: 6
    cqe 3: 5
    cqe 4: 3
    no cqe
    cqe 5: 5
");
