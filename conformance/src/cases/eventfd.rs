//! The registered eventfd: the ring signals it for every CQE. With EVENTFD_ASYNC, the ring does not
//! signal it for CQEs that the submitting call itself posts.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;

use super::reg;
use crate::files;
use crate::memory::BAD;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop, poll, read, timeout};
use crate::time::milliseconds;
use crate::transcript::Transcript;

fn register(ring: &Ring, opcode: u32, number: i32) -> i32 {
    ring.register(opcode, &raw const number, 1)
}

fn signals_completions(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = files::eventfd(0);
    t.result("register", register(&ring, reg::EVENTFD, event.as_raw_fd()));
    t.say(format_args!("count {}", files::event_count(&event)));
    t.entry(&ring.one(nop(1)));
    t.say(format_args!("signalled {}", files::event_count(&event) > 0));
    t.say(format_args!("count {}", files::event_count(&event)));
    // For several CQEs of one batch, the kernel may signal the eventfd only once.
    for user_data in 1..=4 {
        ring.push(nop(user_data));
    }
    ring.submit();
    let count = files::event_count(&event);
    t.say(format_args!("signalled {}", (1..=4).contains(&count)));
}
case!(signals_completions => "
    register = 0
    count 0
    cqe 1: 0
    signalled true
    count 0
    signalled true
");

fn signals_late_completions(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = files::eventfd(0);
    let (reader, writer) = files::pipe();
    t.result("register", register(&ring, reg::EVENTFD, event.as_raw_fd()));
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    t.say(format_args!("count {}", files::event_count(&event)));
    files::put(&writer, b"x");
    let signalled = crate::time::until(|| files::event_count(&event) > 0);
    t.say(format_args!("signalled {signalled}"));
    t.in_order(&ring.reap());
}
case!(signals_late_completions => "
    register = 0
    count 0
    signalled true
    cqe 1: 1
");

fn only_async(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = files::eventfd(0);
    let (reader, writer) = files::pipe();
    t.result("register", register(&ring, reg::EVENTFD_ASYNC, event.as_raw_fd()));
    t.entry(&ring.one(nop(1)));
    t.say(format_args!("inline: count {}", files::event_count(&event)));
    ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
    ring.submit();
    files::put(&writer, b"x");
    let entries = ring.wait(1);
    t.in_order(&entries);
    t.say(format_args!("task work: count {}", files::event_count(&event)));
    // With EVENTFD_ASYNC, the kernel signals only completions by workers. According to the manual
    // page, only requests that complete inline, within the submitting call, cause no signal.
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 3).forced_async());
    ring.submit();
    t.in_order(&ring.wait(1));
    t.say(format_args!("worker: signalled {}", crate::time::until(|| files::event_count(&event) > 0)));
}
case!(only_async => "
    register = 0
    cqe 1: 0
    inline: count 0
    cqe 2: 1
    task work: count 0
    cqe 3: 1
    worker: signalled true
");

/// The eventfd's count is at its maximum, where a write(2) would block. The ring completes requests
/// nevertheless. The kernel raises the count beyond the maximum of write(2), so the case does not
/// print it.
fn full_and_blocking(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let event = files::eventfd(0);
    files::set_nonblocking(&event, false);
    files::put(&event, &(u64::MAX - 1).to_ne_bytes());
    t.result("register", register(&ring, reg::EVENTFD, event.as_raw_fd()));
    t.entry(&ring.one(nop(1)));
    t.entry(&ring.one(nop(2)));
    t.say(format_args!("full still {}", files::event_count(&event) >= u64::MAX - 1));
    t.entry(&ring.one(nop(3)));
    t.say(format_args!("signalled {}", files::event_count(&event) > 0));
}
case!(full_and_blocking => "
    register = 0
    cqe 1: 0
    cqe 2: 0
    full still true
    cqe 3: 0
    signalled true
");

fn register_wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    let file = files::memory_file(b"x");
    for opcode in [reg::EVENTFD, reg::EVENTFD_ASYNC] {
        t.result("bad number", register(&ring, opcode, 9999));
        t.result("-1", register(&ring, opcode, -1));
        t.result("a pipe", register(&ring, opcode, reader.as_raw_fd()));
        t.result("a file", register(&ring, opcode, file.as_raw_fd()));
        t.result("null", ring.register::<i32>(opcode, std::ptr::null(), 1));
        t.result("unmapped", ring.register(opcode, BAD as *const i32, 1));
        let event = files::eventfd(0);
        let number = event.as_raw_fd();
        t.result("count 0", ring.register(opcode, &raw const number, 0));
        t.result("count 2", ring.register(opcode, &raw const number, 2));
    }
}
case!(register_wrong => "
    bad number = -EBADF
    -1 = -EBADF
    a pipe = -EINVAL
    a file = -EINVAL
    null = -EFAULT
    unmapped = -EFAULT
    count 0 = -EINVAL
    count 2 = -EINVAL
    bad number = -EBADF
    -1 = -EBADF
    a pipe = -EINVAL
    a file = -EINVAL
    null = -EFAULT
    unmapped = -EFAULT
    count 0 = -EINVAL
    count 2 = -EINVAL
");

fn register_twice(t: &mut Transcript) {
    let ring = Ring::new(4);
    let (first, second) = (files::eventfd(0), files::eventfd(0));
    t.result("register", register(&ring, reg::EVENTFD, first.as_raw_fd()));
    t.result("again", register(&ring, reg::EVENTFD, second.as_raw_fd()));
    t.result("async", register(&ring, reg::EVENTFD_ASYNC, second.as_raw_fd()));
}
case!(register_twice => "
    register = 0
    again = -EBUSY
    async = -EBUSY
");

fn unregister(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let event = files::eventfd(0);
    let none: *const u8 = std::ptr::null();
    t.result("none", ring.register(reg::UNREGISTER_EVENTFD, none, 0));
    t.result("register", register(&ring, reg::EVENTFD, event.as_raw_fd()));
    t.result("argument", ring.register(reg::UNREGISTER_EVENTFD, BAD as *const u8, 0));
    t.result("unregister", ring.register(reg::UNREGISTER_EVENTFD, none, 0));
    t.entry(&ring.one(nop(1)));
    t.say(format_args!("count {}", files::event_count(&event)));
    t.result("register", register(&ring, reg::EVENTFD_ASYNC, event.as_raw_fd()));
}
case!(unregister => "
    none = -ENXIO
    register = 0
    argument = -EINVAL
    unregister = 0
    cqe 1: 0
    count 0
    register = 0
");

/// If the program sets IORING_CQ_EVENTFD_DISABLED in the flags of the CQ ring, the ring does not
/// signal its eventfd.
fn disabled_by_flag(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let event = files::eventfd(0);
    t.result("register", register(&ring, reg::EVENTFD, event.as_raw_fd()));
    ring.set_cq_flags(u::IORING_CQ_EVENTFD_DISABLED);
    t.entry(&ring.one(nop(1)));
    t.say(format_args!("count {}", files::event_count(&event)));
    ring.set_cq_flags(0);
    t.entry(&ring.one(nop(2)));
    t.say(format_args!("signalled {}", files::event_count(&event) > 0));
}
case!(disabled_by_flag => "
    register = 0
    cqe 1: 0
    count 0
    cqe 2: 0
    signalled true
");

fn held_after_close(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let event = files::eventfd(0);
    let other = event.try_clone().expect("a duplicate");
    t.result("register", register(&ring, reg::EVENTFD, event.as_raw_fd()));
    drop(event);
    t.entry(&ring.one(nop(1)));
    t.say(format_args!("signalled {}", files::event_count(&other) > 0));
}
case!(held_after_close => "
    register = 0
    cqe 1: 0
    signalled true
");

fn signals_the_backlog(t: &mut Transcript) {
    let mut ring = Ring::with(4, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 4;
    })
    .expect("a ring with a small CQ");
    let event = files::eventfd(0);
    t.result("register", register(&ring, reg::EVENTFD, event.as_raw_fd()));
    for user_data in 1..=4 {
        ring.push(nop(user_data));
    }
    ring.submit();
    t.say(format_args!("signalled {}", files::event_count(&event) > 0));
    ring.push(nop(5));
    ring.submit();
    // The fifth CQE goes to the backlog. It is not in the CQ, so the ring does not signal the
    // eventfd.
    t.say(format_args!("signalled for the fifth {}", files::event_count(&event) > 0));
    t.say(format_args!("in the queue {}", ring.reap().len()));
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    t.say(format_args!("flushed {}", ring.reap().len()));
}
case!(signals_the_backlog => "
    register = 0
    signalled true
    signalled for the fifth false
    in the queue 4
    flushed 1
");

fn signals_no_skipped_cqes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let event = files::eventfd(0);
    t.result("register", register(&ring, reg::EVENTFD, event.as_raw_fd()));
    let skip = usring_uapi::sqe_flags::CQE_SKIP_SUCCESS;
    ring.push(nop(1).flagged(skip));
    ring.submit();
    t.in_order(&ring.reap());
    t.say(format_args!("count {}", files::event_count(&event)));
}
case!(signals_no_skipped_cqes => "
    register = 0
    no cqe
    count 0
");

fn semaphore(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    // SAFETY: the call touches no memory. The descriptor stays open until the process ends.
    let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK) };
    t.result("register", register(&ring, reg::EVENTFD, fd));
    for user_data in 1..=3 {
        t.entry(&ring.one(nop(user_data)));
    }
    let mut count = [0u8; 8];
    let mut times = 0;
    // SAFETY: the buffer has eight writable bytes.
    while unsafe { libc::read(fd, count.as_mut_ptr().cast(), 8) } == 8 {
        times += 1;
    }
    t.say(format_args!("times {times}"));
}
case!(semaphore => "
    register = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    times 3
");

fn sleeper_is_woken(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let event = files::eventfd(0);
    t.result("register", register(&ring, reg::EVENTFD, event.as_raw_fd()));
    let time = milliseconds(20);
    ring.push(timeout(&time, 0, 0, 1));
    ring.submit();
    let mut entry = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry.
    let answer = unsafe { libc::poll(&mut entry, 1, 30_000) };
    t.say(format_args!("poll {answer} {}", crate::names::events(entry.revents.into())));
    t.in_order(&ring.reap());
}
case!(sleeper_is_woken => "
    register = 0
    poll 1 IN
    cqe 1: -ETIME
");

fn shared_by_two_rings(t: &mut Transcript) {
    let (mut first, mut second) = (Ring::new(4), Ring::new(4));
    let event = files::eventfd(0);
    t.result("register", register(&first, reg::EVENTFD, event.as_raw_fd()));
    t.result("register", register(&second, reg::EVENTFD, event.as_raw_fd()));
    t.entry(&first.one(nop(1)));
    t.say(format_args!("signalled {}", files::event_count(&event) > 0));
    t.entry(&second.one(nop(2)));
    t.say(format_args!("signalled {}", files::event_count(&event) > 0));
}
case!(shared_by_two_rings => "
    register = 0
    register = 0
    cqe 1: 0
    signalled true
    cqe 2: 0
    signalled true
");

fn count(t: &mut Transcript, event: &std::os::fd::OwnedFd) {
    crate::time::long_enough_to_notice();
    t.say(format_args!("count {}", files::event_count(event)));
}

/// A request reads the eventfd that is registered with the request's own ring. The completion of
/// that read signals the eventfd once.
fn read_by_its_own_ring(t: &mut Transcript) {
    for opcode in [reg::EVENTFD, reg::EVENTFD_ASYNC] {
        for flags in [0, ring::DEFER, u::IORING_SETUP_COOP_TASKRUN] {
            for vectored in [false, true] {
                let mut ring = Ring::flags(8, flags);
                let event = files::eventfd(0);
                t.result("register", register(&ring, opcode, event.as_raw_fd()));
                let mut bytes = [0u8; 8];
                let parts = [crate::sqe::vector(bytes.as_mut_ptr() as u64, 8)];
                for (user_data, value) in [(1, 1u64), (2, 1), (3, 5), (4, 2)] {
                    let request = match vectored {
                        true => crate::sqe::readv(event.as_raw_fd(), &parts, 0, user_data),
                        false => read(event.as_raw_fd(), &mut bytes, 0, user_data),
                    };
                    ring.push(request);
                    ring.submit();
                    crate::time::long_enough_to_notice();
                    files::put(&event, &value.to_ne_bytes());
                    let entries = ring.wait(1);
                    if user_data <= 2 {
                        // The kernel may signal the completion of the first read twice. On a busy
                        // machine the second signal comes during the second read, or after it. So
                        // the case prints no count for the first two reads.
                        crate::time::long_enough_to_notice();
                        files::event_count(&event);
                        continue;
                    }
                    t.in_order(&entries);
                    t.say(format_args!("read {}", u64::from_ne_bytes(bytes)));
                    count(t, &event);
                }
            }
        }
    }
}
case!(read_by_its_own_ring => include_str!("eventfd/read_by_its_own_ring.txt"));

/// A request of one ring reads the eventfd that is registered with a second ring.
fn read_by_another_ring(t: &mut Transcript) {
    for flags in ring::BOTH {
        let (mut ring, mut other) = (Ring::flags(8, flags), Ring::flags(8, flags));
        let (event, answer) = (files::eventfd(0), files::eventfd(0));
        t.result("register", register(&other, reg::EVENTFD, event.as_raw_fd()));
        t.result("register", register(&ring, reg::EVENTFD, answer.as_raw_fd()));
        let mut bytes = [0u8; 8];
        ring.push(read(event.as_raw_fd(), &mut bytes, 0, 1));
        ring.submit();
        other.push(nop(2));
        other.submit();
        t.in_order(&ring.wait(1));
        t.say(format_args!("read {}", u64::from_ne_bytes(bytes)));
        t.in_order(&other.reap());
        count(t, &event);
        // The first ring may signal its eventfd once for the queued task work and once for the
        // completion, or only once in total. So the case does not print that count.
        t.say(format_args!("signalled {}", files::event_count(&answer) > 0));
    }
}
case!(read_by_another_ring => "
    register = 0
    register = 0
    cqe 1: 8
    read 1
    cqe 2: 0
    count 0
    signalled true
    register = 0
    register = 0
    cqe 1: 8
    read 1
    cqe 2: 0
    count 0
    signalled true
");
