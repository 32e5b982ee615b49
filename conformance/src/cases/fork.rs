//! Rings and forked child processes.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;

use crate::files;
use crate::process;
use crate::ring::Ring;
use crate::sqe::{Change, nop, poll, read, timeout};
use crate::syscalls;
use crate::time::{LONG, milliseconds};
use crate::transcript::Transcript;

fn works(ring: &mut Ring) -> bool {
    let entries = ring.run(&[nop(5), nop(6)]);
    entries.len() == 2 && entries.iter().all(|entry| entry.res == 0)
}

fn child_closes(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    let ending = process::forked(|| i32::from(syscalls::close(fd) != 0));
    t.say(format_args!("child: {ending}"));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(child_closes => "
    child: exit 0
    parent's ring works true
");

fn child_exits(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    t.say(format_args!("child: {}", process::forked(|| 0)));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(child_exits => "
    child: exit 0
    parent's ring works true
");

fn child_makes_its_own(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let ending = process::forked(|| {
        let mut own = Ring::new(8);
        let time = milliseconds(5);
        let timed = own.run(&[timeout(&time, 0, 0, 1)]);
        i32::from(!works(&mut own) || timed.len() != 1)
    });
    t.say(format_args!("child: {ending}"));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(child_makes_its_own => "
    child: exit 0
    parent's ring works true
");

fn parent_goes_on(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    let child = process::start(|| {
        crate::time::long_enough_to_notice();
        0
    });
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    t.say(format_args!("child: {}", process::ending(child)));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(parent_goes_on => "
    cqe 1: 1
    child: exit 0
    parent's ring works true
");

/// A child closes the inherited ring. The parent's pending requests are not affected.
fn pending_request_stays(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.push(timeout(&LONG, 0, 0, 2));
    ring.submit();
    let fd = ring.fd;
    let ending = process::forked(|| i32::from(syscalls::close(fd) != 0));
    t.say(format_args!("child: {ending}"));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
}
case!(pending_request_stays as pending_request_stays_with_parent => "
    child: exit 0
    no cqe
    cqe 1: 1
");

fn child_with_own_requests_exits(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let ending = process::forked(|| {
        let mut own = Ring::new(8);
        let mut byte = [0u8; 1];
        own.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
        own.push(timeout(&LONG, 0, 0, 2));
        own.submit();
        std::mem::forget(own);
        3
    });
    t.say(format_args!("child: {ending}"));
    files::put(&writer, b"x");
    t.say(format_args!("bytes left {}", files::take(&reader, 4).map_or(0, |bytes| bytes.len())));
}
case!(child_with_own_requests_exits => "
    child: exit 3
    bytes left 1
");

fn many_children(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let children: Vec<i32> = (0..8)
        .map(|number| {
            process::start(move || {
                let mut own = Ring::new(8);
                let mut right = 0;
                for _ in 0..50 {
                    right += i32::from(works(&mut own));
                }
                if right == 50 { number } else { 99 }
            })
        })
        .collect();
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
    for child in children {
        t.say(format_args!("child: {}", process::ending(child)));
    }
}
case!(many_children => "
    parent's ring works true
    child: exit 0
    child: exit 1
    child: exit 2
    child: exit 3
    child: exit 4
    child: exit 5
    child: exit 6
    child: exit 7
");

fn grandchild(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let ending = process::forked(|| {
        let mut own = Ring::new(8);
        let ending = process::forked(|| {
            let mut third = Ring::new(8);
            i32::from(!works(&mut third))
        });
        i32::from(ending != "exit 0" || !works(&mut own))
    });
    t.say(format_args!("child: {ending}"));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(grandchild => "
    child: exit 0
    parent's ring works true
");

/// A vfork child shares the parent's memory but not its descriptors. If the child closes the ring's
/// descriptor, only the child loses the ring.
fn vfork_child_closes(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    // SAFETY: the child closes one descriptor and ends. It changes no memory of the parent, and
    // does not return from its function into this one.
    let child = unsafe {
        let child = spawn_sharing(fd);
        assert!(child > 0);
        child
    };
    t.say(format_args!("child: {}", process::ending(child)));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(vfork_child_closes => "
    child: exit 0
    parent's ring works true
");

/// Makes a child by clone(CLONE_VM | CLONE_VFORK) with a separate stack, as posix_spawn(3) does.
/// The child closes the descriptor `fd` and exits.
unsafe fn spawn_sharing(fd: i32) -> i32 {
    extern "C" fn child(argument: *mut libc::c_void) -> i32 {
        let answer = syscalls::close(argument as isize as i32);
        i32::from(answer != 0)
    }
    let stack = crate::memory::Pages::new(16);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: CLONE_VFORK makes clone(2) wait for the child's end. Until then the stack stays
    // mapped.
    unsafe {
        let top = stack.address.add(stack.length).cast();
        libc::clone(child, top, flags, fd as isize as *mut libc::c_void)
    }
}

/// Checks that a child keeps no copy of a socket for which the parent's requests wait. The child
/// that `make` makes closes its inherited descriptors and lives on. The requests are submitted by
/// `arm`. Once the parent has closed the socket, its peer must see the end of the stream.
fn peer_gets_end(t: &mut Transcript, make: impl FnOnce(&dyn Fn() -> i32) -> i32, arm: impl FnOnce(&mut Ring, i32)) {
    let mut ring = Ring::new(8);
    let (here, there) = files::sockets();
    let (begun, begins) = files::pipe();
    let (end, ends) = files::pipe();
    arm(&mut ring, there.as_raw_fd());
    let child = make(&|| {
        syscalls::close(here.as_raw_fd());
        syscalls::close(there.as_raw_fd());
        syscalls::close(ends.as_raw_fd());
        files::put(&begins, b"x");
        let mut byte = 0u8;
        // SAFETY: the buffer has one byte.
        unsafe { libc::read(end.as_raw_fd(), (&raw mut byte).cast(), 1) };
        0
    });
    t.say(format_args!("a child {}", child > 0));
    files::take(&begun, 1).expect("the child's word");
    // Cancels all requests: IORING_ASYNC_CANCEL_ALL and _ANY.
    ring.push(crate::sqe::cancel(0, 1 | 4, 9));
    ring.submit();
    ring.wait(2);
    drop(there);
    t.say(format_args!(
        "peer is signalled {}",
        files::is_readable_within(here.as_raw_fd(), std::time::Duration::from_secs(10))
    ));
    drop(ends);
    t.say(format_args!("child: {}", process::ending(child)));
}

fn receive(ring: &mut Ring, there: i32) {
    let byte = Box::leak(Box::new([0u8; 1]));
    ring.push(crate::sqe::recv(there, byte, 1));
    ring.push(poll(there, libc::POLLPRI, 2));
    ring.submit();
}

fn child_keeps_no_waiting_file(t: &mut Transcript) {
    peer_gets_end(t, |child| process::start(child), receive);
}
case!(child_keeps_no_waiting_file => "
    a child true
    peer is signalled true
    child: exit 0
");

/// The parent makes the child by `_Fork`, which runs no handlers of pthread_atfork(3).
fn bare_child_keeps_no_waiting_file(t: &mut Transcript) {
    unsafe extern "C" {
        fn _Fork() -> i32;
    }
    let make = |child: &dyn Fn() -> i32| {
        // SAFETY: this process has one thread, and the child calls only async-signal-safe
        // functions.
        let number = unsafe { _Fork() };
        if number == 0 {
            let status = child();
            // SAFETY: the call ends the child.
            unsafe { libc::_exit(status) };
        }
        number
    };
    peer_gets_end(t, make, receive);
}
case!(bare_child_keeps_no_waiting_file => "
    a child true
    peer is signalled true
    child: exit 0
");

/// Calls clone(2) with `flags` and a separate stack.
fn cloned(flags: i32, child: &dyn Fn() -> i32) -> i32 {
    extern "C" fn begin(child: *mut libc::c_void) -> i32 {
        // SAFETY: the pointer refers to a variable of the parent. The child has a copy of the
        // parent's memory, so the pointer is valid here, too.
        let status = unsafe { (*child.cast::<&dyn Fn() -> i32>())() };
        // SAFETY: _exit(2) ends the child with all its threads.
        unsafe { libc::_exit(status) }
    }
    let stack = crate::memory::Pages::new(64);
    // SAFETY: the child has a copy of the memory, including the stack. So the parent may unmap its
    // own.
    unsafe {
        // The 256 bytes above the child's first frame stay free, because libc's functions may read
        // stack arguments there.
        let top = stack.address.add(stack.length - 256).cast();
        libc::clone(begin, top, flags | libc::SIGCHLD, (&raw const child).cast_mut().cast())
    }
}

fn cloned_child_keeps_no_waiting_file(t: &mut Transcript) {
    peer_gets_end(t, |child| cloned(0, child), receive);
}
case!(cloned_child_keeps_no_waiting_file => "
    a child true
    peer is signalled true
    child: exit 0
");

fn child_of_a_request_with_a_worker(t: &mut Transcript) {
    let arm = |ring: &mut Ring, there: i32| {
        let byte = Box::leak(Box::new([0u8; 1]));
        ring.push(crate::sqe::recv(there, byte, 1).forced_async());
        ring.submit();
        crate::time::long_enough_to_notice();
    };
    peer_gets_end(t, |child| process::start(child), arm);
}
case!(child_of_a_request_with_a_worker => "
    a child true
    peer is signalled true
    child: exit 0
");

/// Checks that the end of a child does not end the parent's requests. The child, which `make`
/// creates, shares the parent's descriptor table. After its end, the requests must complete and the
/// parent's ring must work.
fn shares(t: &mut Transcript, make: impl FnOnce(&dyn Fn() -> i32) -> i32) {
    let mut ring = Ring::new(8);
    let (here, there) = files::sockets();
    receive(&mut ring, there.as_raw_fd());
    let before = files::open_numbers();
    let child = make(&|| {
        let mut own = Ring::new(8);
        let right = works(&mut own);
        own.close();
        own.abandon();
        i32::from(!right)
    });
    t.say(format_args!("child: {}", process::ending(child)));
    t.say(format_args!("no fewer numbers {}", files::open_numbers() >= before));
    files::put(&here, b"x");
    t.in_order(&ring.wait(1));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}

fn child_shares_descriptors(t: &mut Transcript) {
    shares(t, |child| cloned(libc::CLONE_FILES, child));
}
case!(child_shares_descriptors => "
    child: exit 0
    no fewer numbers true
    cqe 1: 1
    parent's ring works true
");

/// A raw clone(2) system call makes a child that shares the descriptor table. The call passes
/// through no function of libc.
fn unseen_child_shares_descriptors(t: &mut Transcript) {
    let make = |child: &dyn Fn() -> i32| {
        // SAFETY: the call names no stack. So the child continues here, on its own copy of the
        // stack.
        let number = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if number == 0 {
            let status = child();
            // SAFETY: the call ends the child.
            unsafe { libc::_exit(status) };
        }
        number
    };
    shares(t, make);
}
case!(unseen_child_shares_descriptors => "
    child: exit 0
    no fewer numbers true
    cqe 1: 1
    parent's ring works true
");

/// A child closes all its descriptors. The parent's requests complete nevertheless.
fn child_closes_all(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (here, there) = files::sockets();
    receive(&mut ring, there.as_raw_fd());
    for flags in [0, libc::CLOSE_RANGE_UNSHARE, libc::CLOSE_RANGE_CLOEXEC] {
        // SAFETY: the call closes only the child's numbers.
        let all = || syscalls::answer(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, flags) } as i32);
        t.say(format_args!("child: {}", process::forked(|| all().abs())));
    }
    let one_by_one = || (3..2000).filter(|number| syscalls::close(*number) == 0).count().min(1) as i32;
    t.say(format_args!("child: {}", process::forked(one_by_one)));
    files::put(&here, b"x");
    t.in_order(&ring.wait(1));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(child_closes_all => "
    child: exit 0
    child: exit 0
    child: exit 0
    child: exit 1
    cqe 1: 1
    parent's ring works true
");

/// A child runs in the parent's memory, but with its own descriptor table, and closes all its
/// descriptors. File actions of posix_spawn(3) do this, too.
fn vfork_child_closes_all(t: &mut Transcript) {
    extern "C" fn child(_: *mut libc::c_void) -> i32 {
        // SAFETY: the call closes only the child's numbers.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) as i32 }
    }
    let mut ring = Ring::new(8);
    let (here, there) = files::sockets();
    receive(&mut ring, there.as_raw_fd());
    let stack = crate::memory::Pages::new(64);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: CLONE_VFORK makes clone(2) wait for the child's end. Until then the stack stays
    // mapped.
    let number = unsafe {
        // The 256 bytes above the child's first frame stay free, because libc's functions may read
        // stack arguments there.
        let top = stack.address.add(stack.length - 256).cast();
        libc::clone(child, top, flags, std::ptr::null_mut())
    };
    t.say(format_args!("child: {}", process::ending(number)));
    files::put(&here, b"x");
    t.in_order(&ring.wait(1));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(vfork_child_closes_all => "
    child: exit 0
    cqe 1: 1
    parent's ring works true
");

fn child_is_killed(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let child = process::start(|| {
        let mut own = Ring::new(8);
        let mut byte = [0u8; 1];
        own.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
        own.submit_and_wait(1);
        0
    });
    crate::time::long_enough_to_notice();
    // SAFETY: the call touches no memory. The process is a child of this one.
    unsafe { libc::kill(child, libc::SIGKILL) };
    t.say(format_args!("child: {}", process::ending(child)));
    files::put(&writer, b"x");
    t.say(format_args!("bytes left {}", files::take(&reader, 4).map_or(0, |bytes| bytes.len())));
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(child_is_killed => "
    child: signal 9
    bytes left 1
    parent's ring works true
");

fn two_processes_two_rings(t: &mut Transcript) {
    let (here, there) = files::sockets();
    let child = process::start(|| {
        let mut own = Ring::new(8);
        let mut buffer = [0u8; 4];
        for round in 0..20 {
            let got = own.one(read(there.as_raw_fd(), &mut buffer, 0, round));
            if got.res != 4 || own.one(crate::sqe::write(there.as_raw_fd(), &buffer, 0, 1)).res != 4 {
                return 1;
            }
        }
        0
    });
    let mut ring = Ring::new(8);
    let mut right = 0;
    for round in 0..20u8 {
        let sent = [round; 4];
        let mut back = [0u8; 4];
        ring.one(crate::sqe::write(here.as_raw_fd(), &sent, 0, 1));
        ring.one(read(here.as_raw_fd(), &mut back, 0, 2));
        right += u32::from(sent == back);
    }
    t.say(format_args!("echoed {right}"));
    t.say(format_args!("child: {}", process::ending(child)));
}
case!(two_processes_two_rings => "
    echoed 20
    child: exit 0
");

fn with_sq_thread(t: &mut Transcript) {
    let mut ring = Ring::with(8, |params| {
        params.flags = u::IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 20;
    })
    .expect("a ring with a thread");
    let ending = process::forked(|| {
        let mut own = Ring::with(8, |params| {
            params.flags = u::IORING_SETUP_SQPOLL;
            params.sq_thread_idle = 20;
        })
        .expect("a ring with a thread");
        own.push(nop(1));
        own.forget_pending();
        own.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
        i32::from(!own.wait_in_memory(1))
    });
    t.say(format_args!("child: {ending}"));
    ring.push(nop(1));
    ring.forget_pending();
    ring.enter(1, 0, u::IORING_ENTER_SQ_WAKEUP);
    t.say(format_args!("seen {}", ring.wait_in_memory(1)));
}
case!(with_sq_thread => "
    child: exit 0
    seen true
");

fn with_workers(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"0123");
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 1).forced_async()));
    let ending = process::forked(|| {
        let mut own = Ring::new(8);
        let mut buffer = [0u8; 4];
        let entry = own.one(read(file.as_raw_fd(), &mut buffer, 0, 1).forced_async());
        entry.res
    });
    t.say(format_args!("child: {ending}"));
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 2).forced_async()));
}
case!(with_workers => "
    cqe 1: 4
    child: exit 4
    cqe 2: 4
");

/// The parent exits at once, while its poll is in flight. Its child then makes a ring of its own,
/// which works.
fn parent_exits_first(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let ending = process::forked(|| {
        let mut ring = Ring::new(8);
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
        ring.submit();
        process::start(|| {
            let mut own = Ring::new(8);
            crate::time::long_enough_to_notice();
            let done = works(&mut own);
            files::put(&writer, if done { b"y" } else { b"n" });
            0
        });
        std::mem::forget(ring);
        0
    });
    t.say(format_args!("parent: {ending}"));
    let said = files::take(&reader, 1).unwrap_or_default();
    t.say(format_args!("child said {}", String::from_utf8_lossy(&said)));
}
case!(parent_exits_first => "
    parent: exit 0
    child said y
");

fn child_enters_parents_ring(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(nop(1));
    ring.forget_pending();
    let fd = ring.fd;
    let ending = process::forked(|| {
        let answer = syscalls::enter(fd, 1, 0, 0, std::ptr::null(), 0);
        if answer < 0 { -answer } else { 100 + answer }
    });
    t.say(format_args!("child's answer (100 + submitted, or errno): {ending}"));
    ring.enter(1, 0, u::IORING_ENTER_GETEVENTS);
    t.in_order(&ring.reap());
    t.say(format_args!("parent's ring works {}", works(&mut ring)));
}
case!(child_enters_parents_ring => "
    child's answer (100 + submitted, or errno): exit 101
    cqe 1: 0
    parent's ring works true
");

fn child_maps_parents_ring(t: &mut Transcript) {
    let ring = Ring::new(8);
    let fd = ring.fd;
    let ending = process::forked(|| i32::from(syscalls::map(fd, 4096, 0) < 0));
    t.say(format_args!("child refused: {ending}"));
}
case!(child_maps_parents_ring => "child refused: exit 0");
