//! Several threads use one ring at one time: they close it, register with it and wait on it.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use usring_uapi::io_uring as u;

use super::{reg, sq_thread};
use crate::files;
use crate::process;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop, poll, read, timeout};
use crate::syscalls;
use crate::time::milliseconds;
use crate::transcript::Transcript;

fn wait_for(fd: i32, complete: u32) -> i32 {
    syscalls::enter(fd, 0, complete, u::IORING_ENTER_GETEVENTS, std::ptr::null(), 0)
}

/// While a thread waits, another thread closes the ring's descriptor. The wait ends when a CQE is
/// posted.
fn close_while_another_waits(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    let time = milliseconds(100);
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    let thread = std::thread::spawn(move || wait_for(fd, 1));
    crate::time::long_enough_to_notice();
    t.result("close", ring.close());
    let answer = thread.join().unwrap_or(1);
    // On the kernel, the wait keeps the ring open and succeeds. An errno as the result is
    // acceptable, too.
    t.say(format_args!("the wait has ended {}", answer <= 0));
    t.result("enter", ring.enter(0, 0, 0));
}
case!(close_while_another_waits => "
    close = 0
    the wait has ended true
    enter = -EBADF
");

fn register_while_another_waits(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    let thread = std::thread::spawn(move || wait_for(fd, 1));
    crate::time::long_enough_to_notice();
    let number = reader.as_raw_fd();
    t.result("files", ring.register(reg::FILES, &raw const number, 1));
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    files::put(&writer, b"x");
    t.result("waiter", thread.join().unwrap_or(1));
    t.in_order(&ring.reap());
}
case!(register_while_another_waits => "
    files = 0
    unregister = 0
    waiter = 0
    cqe 1: 1
");

/// Submits the pushed SQEs. If the ring has an SQ thread, hands them over to it.
fn submit(ring: &mut Ring) {
    if ring.params.flags & u::IORING_SETUP_SQPOLL == 0 {
        ring.submit();
    } else {
        sq_thread::hand_over(ring);
    }
}

/// Starts a thread that waits for `complete` CQEs, for at most five seconds. Returns that thread
/// once it sleeps.
fn waiter(ring: &Ring, complete: u32) -> std::thread::JoinHandle<i32> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let fd = ring.fd;
    let thread = std::thread::spawn(move || {
        let limit = milliseconds(5000);
        let argument =
            u::io_uring_getevents_arg { sigmask: 0, sigmask_sz: 0, min_wait_usec: 0, ts: &raw const limit as u64 };
        sender.send(crate::time::this_thread()).expect("the test waits for the number");
        let flags = u::IORING_ENTER_GETEVENTS | u::IORING_ENTER_EXT_ARG;
        syscalls::enter(fd, 0, complete, flags, (&raw const argument).cast(), size_of_val(&argument))
    });
    let number = receiver.recv().expect("the thread sends its number");
    assert!(crate::time::until_asleep(number), "the waiter does not sleep");
    thread
}

/// A thread waits for two CQEs. Another thread consumes each of them as soon as it is in the CQ.
/// Both CQEs count for the wait.
fn another_consumes_while_one_waits(t: &mut Transcript) {
    let by_thread = u::IORING_SETUP_SQPOLL;
    for flags in [0, u::IORING_SETUP_COOP_TASKRUN, by_thread, by_thread | u::IORING_SETUP_IOPOLL] {
        let mut ring = Ring::with(8, |params| (params.flags, params.sq_thread_idle) = (flags, 2000)).expect("a ring");
        let thread = waiter(&ring, 2);
        for data in [1, 2] {
            ring.push(nop(data));
            submit(&mut ring);
            t.in_order(&ring.reap_in_memory(1));
        }
        t.result("waiter", thread.join().unwrap_or(1));
    }
}
case!(another_consumes_while_one_waits => "
    cqe 1: 0
    cqe 2: 0
    waiter = 0
    cqe 1: 0
    cqe 2: 0
    waiter = 0
    cqe 1: 0
    cqe 2: 0
    waiter = 0
    cqe 1: 0
    cqe 2: 0
    waiter = 0
");

/// A thread begins to wait for two CQEs while one is already in the CQ. Another thread consumes
/// that CQE, and then the second one as soon as it comes. Both CQEs count for the wait.
fn another_consumes_what_was_there(t: &mut Transcript) {
    for flags in [0, u::IORING_SETUP_COOP_TASKRUN, u::IORING_SETUP_SQPOLL] {
        let mut ring = Ring::with(8, |params| (params.flags, params.sq_thread_idle) = (flags, 2000)).expect("a ring");
        let (reader, writer) = files::pipe();
        let mut byte = [0u8; 1];
        ring.push(nop(1));
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, 2));
        submit(&mut ring);
        assert!(ring.wait_in_memory(1), "the NOP does not complete");
        let thread = waiter(&ring, 2);
        t.in_order(&ring.reap());
        files::put(&writer, b"x");
        t.in_order(&ring.reap_in_memory(1));
        t.result("waiter", thread.join().unwrap_or(1));
    }
}
case!(another_consumes_what_was_there => "
    cqe 1: 0
    cqe 2: 1
    waiter = 0
    cqe 1: 0
    cqe 2: 1
    waiter = 0
    cqe 1: 0
    cqe 2: 1
    waiter = 0
");

/// The owner of a ring with deferred task work waits for two CQEs, of which one is already in the
/// CQ. Another thread consumes that CQE, and then the second one as soon as it comes. Both CQEs
/// count for the wait.
fn another_consumes_while_the_owner_waits(t: &mut Transcript) {
    let mut ring = Ring::flags(8, ring::DEFER);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(nop(1));
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 2));
    ring.submit();
    let owner = crate::time::this_thread();
    let mut second_mapping = Ring::mapped(ring.fd, ring.params);
    let thread = std::thread::spawn(move || {
        assert!(crate::time::until_asleep(owner), "the owner does not sleep");
        let mut entries = second_mapping.reap();
        files::put(&writer, b"x");
        entries.extend(second_mapping.reap_in_memory(1));
        second_mapping.abandon();
        entries
    });
    t.result("owner", ring.enter_for(0, 2, std::time::Duration::from_secs(5)));
    t.in_order(&thread.join().unwrap_or_default());
}
case!(another_consumes_while_the_owner_waits => "
    owner = 0
    cqe 1: 0
    cqe 2: 1
");

fn submit_while_another_waits(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    let thread = std::thread::spawn(move || wait_for(fd, 3));
    crate::time::long_enough_to_notice();
    for user_data in 1..=3 {
        ring.push(nop(user_data));
        t.result("submit", ring.submit());
    }
    t.result("waiter", thread.join().unwrap_or(1));
    t.in_order(&ring.reap());
}
case!(submit_while_another_waits => "
    submit = 1
    submit = 1
    submit = 1
    waiter = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
");

/// A program with several threads forks. The child can make a ring and use it.
fn fork_in_a_threaded_program(t: &mut Transcript) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let stop = &stop;
            scope.spawn(move || {
                let mut ring = Ring::new(8);
                while !stop.load(Ordering::Relaxed) {
                    ring.one(nop(1));
                    std::thread::sleep(std::time::Duration::from_micros(100));
                }
            });
        }
        let mut right = 0;
        for _ in 0..20 {
            let ending = process::forked(|| {
                let Ok(mut own) = Ring::with(8, |_| ()) else {
                    return 2;
                };
                own.push(nop(1));
                own.submit();
                i32::from(own.peek().is_none())
            });
            right += u32::from(ending == "exit 0");
        }
        stop.store(true, Ordering::Relaxed);
        t.say(format_args!("children that went well {right}"));
    });
}
case!(fork_in_a_threaded_program => "children that went well 20");

/// A program forks while other threads are inside io_uring_enter(2). None of usring's locks may be
/// held in the child, so the child can use rings.
fn fork_while_others_enter(t: &mut Transcript) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                let mut ring = Ring::new(8);
                while !stop.load(Ordering::Relaxed) {
                    ring.push(nop(1));
                    ring.submit();
                    ring.reap();
                }
            });
        }
        let mut right = 0;
        for _ in 0..50 {
            let ending = process::forked(|| {
                let Ok(mut own) = Ring::with(8, |_| ()) else {
                    return 2;
                };
                let time = milliseconds(1);
                own.push(timeout(&time, 0, 0, 1));
                own.submit_and_wait(1);
                i32::from(own.peek().is_none())
            });
            right += u32::from(ending == "exit 0");
        }
        stop.store(true, Ordering::Relaxed);
        t.say(format_args!("children that went well {right}"));
    });
}
case!(fork_while_others_enter => "children that went well 50");

fn ring_per_thread(t: &mut Transcript) {
    let right = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let right = &right;
            scope.spawn(move || {
                let mut ring = Ring::new(8);
                let (reader, writer) = files::pipe();
                for _ in 0..100 {
                    let mut byte = [0u8; 1];
                    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
                    ring.submit();
                    files::put(&writer, b"x");
                    right.fetch_add(ring.wait(1).len() as u32, Ordering::Relaxed);
                }
            });
        }
    });
    t.say(format_args!("completions {}", right.load(Ordering::Relaxed)));
}
case!(ring_per_thread => "completions 800");

fn rings_come_and_go(t: &mut Transcript) {
    let right = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let right = &right;
            scope.spawn(move || {
                for round in 0..50 {
                    let mut ring = Ring::new(8);
                    let (reader, _writer) = files::pipe();
                    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 9));
                    ring.push(nop(round));
                    ring.submit();
                    let entries = ring.reap();
                    let found = entries.iter().any(|entry| entry.user_data == round && entry.res == 0);
                    right.fetch_add(u32::from(found), Ordering::Relaxed);
                }
            });
        }
    });
    t.say(format_args!("right {}", right.load(Ordering::Relaxed)));
}
case!(rings_come_and_go => "right 200");

/// A process exits while several of its threads wait in io_uring_enter(2).
fn waiter_ends_by_exit(t: &mut Transcript) {
    let ending = process::forked(|| {
        for _ in 0..3 {
            std::thread::spawn(|| {
                let ring = Ring::new(8);
                wait_for(ring.fd, 1)
            });
        }
        crate::time::long_enough_to_notice();
        // SAFETY: exit(3) ends this child, and first runs its exit handlers.
        unsafe { libc::exit(8) }
    });
    t.say(format_args!("child: {ending}"));
}
case!(waiter_ends_by_exit => "child: exit 8");

/// A ring is in thread-local storage. When its thread ends, the destructor closes the ring.
fn thread_local_rings(t: &mut Transcript) {
    thread_local! {
        static RING: std::cell::RefCell<Ring> = std::cell::RefCell::new(Ring::new(8));
    }
    let mut right = 0;
    for _ in 0..10 {
        let thread = std::thread::spawn(|| RING.with(|ring| ring.borrow_mut().one(nop(1)).res));
        right += u32::from(thread.join().is_ok_and(|answer| answer == 0));
    }
    t.say(format_args!("right {right}"));
}
case!(thread_local_rings => "right 10");

/// The main thread ends first. Another thread goes on using its ring, and then ends the process.
fn main_thread_ends_first(t: &mut Transcript) {
    let ending = process::forked(|| {
        std::thread::spawn(|| {
            crate::time::long_enough_to_notice();
            let mut ring = Ring::new(8);
            let time = milliseconds(5);
            let done = ring.run(&[nop(1), timeout(&time, 0, 0, 2)]).len() == 2;
            // SAFETY: the call ends this child.
            unsafe { libc::_exit(if done { 4 } else { 5 }) }
        });
        // SAFETY: the call ends only this thread.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        6
    });
    t.say(format_args!("child: {ending}"));
}
case!(main_thread_ends_first => "child: exit 4");

/// The program starts other programs while its threads are inside io_uring_enter(2).
fn spawned_programs_meanwhile(t: &mut Transcript) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            let mut ring = Ring::new(8);
            while !stop.load(Ordering::Relaxed) {
                ring.one(nop(1));
            }
        });
        let path = std::env::current_exe().expect("this program has a path");
        let mut right = 0;
        for _ in 0..10 {
            let status = std::process::Command::new(&path).args(["child", "nop"]).status();
            right += u32::from(status.is_ok_and(|status| status.success()));
        }
        stop.store(true, Ordering::Relaxed);
        t.say(format_args!("programs that went well {right}"));
    });
}
case!(spawned_programs_meanwhile => "programs that went well 10");

/// Returns a connection with SO_LINGER on its first end. A close(2) of that end blocks until the
/// peer has received all data.
fn lingering() -> (std::net::TcpStream, std::net::TcpStream) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut ours = std::net::TcpStream::connect(address).expect("a connection");
    let (peer, _) = listener.accept().expect("a connection");
    let linger = libc::linger { l_onoff: 1, l_linger: 1000 };
    let size = size_of::<libc::linger>() as u32;
    // SAFETY: the option's value lives through the call.
    let set = unsafe {
        libc::setsockopt(ours.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size)
    };
    assert_eq!(set, 0);
    ours.set_nonblocking(true).expect("a flag");
    while ours.write(&[0; 65536]).is_ok() {}
    ours.set_nonblocking(false).expect("a flag");
    (ours, peer)
}

/// A thread is blocked in a call on one ring. It must not delay a second ring, on which no thread
/// makes a call, even if the first ring has had an event shortly before.
fn slow_close_delays_no_other_ring(t: &mut Transcript) {
    use std::os::fd::IntoRawFd;
    let (mut slow, mut other) = (Ring::new(4), Ring::new(4));
    let (first, to_first) = files::pipe();
    let (second, to_second) = files::pipe();
    slow.push(poll(first.as_raw_fd(), libc::POLLIN, 1));
    slow.submit();
    other.push(poll(second.as_raw_fd(), libc::POLLIN, 2));
    other.submit();
    let (ours, mut peer) = lingering();
    let number = ours.into_raw_fd();
    std::thread::scope(|scope| {
        let closer = scope.spawn(|| {
            slow.push(crate::sqe::close(number, 3));
            slow.submit()
        });
        crate::time::until(|| !files::is_open(number));
        files::put(&to_first, b"x");
        crate::time::long_enough_to_notice();
        files::put(&to_second, b"x");
        t.say(format_args!("the other ring completes {}", other.wait_in_memory(1)));
        t.say(format_args!("while the slow one is held up {}", !closer.is_finished()));
        std::io::copy(&mut peer, &mut std::io::sink()).expect("the bytes sent, and their end");
        t.result("submit", closer.join().expect("no panic"));
    });
    t.sorted(&slow.wait(2));
}
case!(slow_close_delays_no_other_ring => "
    the other ring completes true
    while the slow one is held up true
    submit = 1
    cqe 1: 1
    cqe 3: 0
");

/// A thread ends while its requests wait. On the kernel, the requests remain until their files
/// become ready, and are then cancelled.
fn requests_of_an_ended_thread(t: &mut Transcript) {
    let mut ring = Ring::new(16);
    let pipes: Vec<_> = (0..4).map(|_| files::pipe()).collect();
    let (socket, other) = files::sockets();
    let mut bytes = [[0u8; 4]; 3];
    let [first, second, third] = &mut bytes;
    let number = |index: usize| pipes[index].0.as_raw_fd();
    ring.push(read(number(0), first, 0, 1));
    ring.push(poll(number(1), libc::POLLIN, 2));
    ring.push(poll(number(2), libc::POLLIN, 3).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI));
    ring.push(crate::sqe::recv(socket.as_raw_fd(), second, 4));
    ring.push(read(number(3), third, 0, 5).linked());
    ring.push(nop(6));
    let mut ring = std::thread::spawn(move || {
        ring.submit();
        crate::time::long_enough_to_begin();
        ring
    })
    .join()
    .expect("it ends well");
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    for (_, writer) in &pipes {
        files::put(writer, b"abcd");
    }
    files::put(&other, b"abcd");
    t.sorted(&ring.wait(6));
}
case!(requests_of_an_ended_thread => "
    no cqe
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    cqe 5: -ECANCELED
    cqe 6: -ECANCELED
", usring => "
    no cqe
    cqe 1: 4
    cqe 2: 1
    cqe 3: 1 MORE
    cqe 4: 4
    cqe 5: 4
    cqe 6: 0
", because "requests outlive the thread that submitted them");
