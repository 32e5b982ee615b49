//! MSG_RING, which posts a CQE to another ring, and the synchronous call that does this for
//! programs without a ring. `message_file` covers the sending of direct descriptors.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::files;
use crate::names;
use crate::ring::{self, Ring};
use crate::sqe::{Change, fields, nop, sqe};
use crate::syscalls;
use crate::transcript::Transcript;

mod deferred;
mod synchronous;

/// Returns a MSG_RING with the user_data `own`. It posts a CQE with `user_data` and `result` to the
/// ring `target`.
pub fn message(target: i32, user_data: u64, result: u32, own: u64) -> Sqe {
    Sqe { off: user_data, len: result, ..sqe(opcode::MSG_RING, target, own) }
}

fn data(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    let mut target = Ring::new(8);
    t.entry(&sender.one(message(target.fd, 0xfeed, 0x1234, 1)));
    t.in_order(&target.reap());
    t.say("a negative result, and all of user_data");
    t.entry(&sender.one(message(target.fd, u64::MAX, -22i32 as u32, 2)));
    t.in_order(&target.reap());
    t.say("several in one submission");
    for number in 0..4 {
        sender.push(message(target.fd, 10 + number, number as u32, number));
    }
    t.result("submit", sender.submit());
    t.in_order(&sender.reap());
    t.in_order(&target.reap());
    t.say("forced to a worker");
    t.entry(&sender.one(message(target.fd, 20, 0, 3).forced_async()));
    t.in_order(&target.wait(1));
}
case!(data => "
    cqe 1: 0
    cqe 65261: 4660
    a negative result, and all of user_data
    cqe 2: 0
    cqe 18446744073709551615: -EINVAL
    several in one submission
    submit = 4
    cqe 0: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 10: 0
    cqe 11: 1
    cqe 12: 2
    cqe 13: 3
    forced to a worker
    cqe 3: 0
    cqe 20: 0
");

fn to_itself(t: &mut Transcript) {
    for flags in [0, u::IORING_SETUP_COOP_TASKRUN, ring::DEFER] {
        let mut ring = Ring::flags(8, flags);
        ring.push(message(ring.fd, 7, 8, 1));
        t.result("submit", ring.submit());
        t.in_order(&ring.reap());
        t.result("get events", ring.enter(0, 0, u::IORING_ENTER_GETEVENTS));
        for entry in ring.reap() {
            t.entry(&entry);
        }
    }
}
case!(to_itself => "
    submit = 1
    cqe 7: 8
    cqe 1: 0
    get events = 0
    submit = 1
    cqe 7: 8
    cqe 1: 0
    get events = 0
    submit = 1
    cqe 1: 0
    get events = 0
    cqe 7: 8
");

fn passes_cqe_flags(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    let mut target = Ring::new(8);
    let flagged = |fd, value: u32, flags| message(fd, 5, 6, 1).op_flags(flags).with(|sqe| sqe.file_index = value);
    for value in [0, 1, u::IORING_CQE_F_MORE, 0x0005_0001, 0x80] {
        t.entry(&sender.one(flagged(target.fd, value, u::IORING_MSG_RING_FLAGS_PASS)));
        t.in_order(&target.reap());
    }
    t.say("without the flag that passes them");
    t.entry(&sender.one(flagged(target.fd, 2, 0)));
    t.in_order(&target.reap());
}
case!(passes_cqe_flags => "
    cqe 1: 0
    cqe 5: 6
    cqe 1: 0
    cqe 5: 6 BUFFER(0)
    cqe 1: 0
    cqe 5: 6 MORE
    cqe 1: 0
    cqe 5: 6 BUFFER(5)
    cqe 1: 0
    cqe 5: 6 0x80
    without the flag that passes them
    cqe 1: -EINVAL
    no cqe
");

fn kinds_of_rings(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    let kinds = [
        ("default", 0),
        ("cooperative", u::IORING_SETUP_COOP_TASKRUN),
        ("cooperative, flag", u::IORING_SETUP_COOP_TASKRUN | u::IORING_SETUP_TASKRUN_FLAG),
        ("single issuer", u::IORING_SETUP_SINGLE_ISSUER),
        ("SQ thread", u::IORING_SETUP_SQPOLL),
        ("polled", u::IORING_SETUP_IOPOLL),
        ("polled, SQ thread", u::IORING_SETUP_IOPOLL | u::IORING_SETUP_SQPOLL),
        ("deferred", ring::DEFER),
        ("deferred, polled", ring::DEFER | u::IORING_SETUP_IOPOLL),
    ];
    for (name, flags) in kinds {
        t.say(name);
        let mut target = Ring::flags(8, flags);
        for number in 0..3 {
            sender.push(message(target.fd, number, 0, 1));
        }
        t.result("submit", sender.submit());
        t.in_order(&sender.reap());
        // If the target's SQ thread holds the lock of the target ring at this moment, the CQEs come
        // later.
        let there = if flags & u::IORING_SETUP_SQPOLL != 0 { target.wait_in_memory(3) } else { target.ready() == 3 };
        t.say(format_args!("there {there}"));
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
    }
}
case!(kinds_of_rings => include_str!("message_ring/kinds_of_rings.txt"));

fn from_kinds_of_rings(t: &mut Transcript) {
    let mut target = Ring::new(8);
    for (name, flags) in [("polled", u::IORING_SETUP_IOPOLL), ("deferred", ring::DEFER)] {
        t.say(name);
        let mut sender = Ring::flags(8, flags);
        t.entry(&sender.one(message(target.fd, 1, 2, 3)));
        t.in_order(&target.reap());
    }
    for (name, flags) in [("SQ thread", 0), ("polled by its SQ thread", u::IORING_SETUP_IOPOLL)] {
        t.say(name);
        let mut sender = Ring::flags(8, flags | u::IORING_SETUP_SQPOLL);
        t.in_order(&super::sq_thread::run(&mut sender, &[message(target.fd, 1, 2, 3)]));
        t.say(format_args!("arrived {}", target.wait_in_memory(1)));
        t.in_order(&target.reap());
    }
}
case!(from_kinds_of_rings => "
    polled
    cqe 3: 0
    cqe 1: 2
    deferred
    cqe 3: 0
    cqe 1: 2
    SQ thread
    cqe 3: 0
    arrived true
    cqe 1: 2
    polled by its SQ thread
    cqe 3: 0
    arrived true
    cqe 1: 2
");

fn disabled(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    for flags in ring::BOTH {
        let mut target = Ring::flags(8, flags | u::IORING_SETUP_R_DISABLED);
        t.entry(&sender.one(message(target.fd, 1, 0, 1)));
        t.result("enable", target.register::<u8>(reg::ENABLE_RINGS, std::ptr::null(), 0));
        t.entry(&sender.one(message(target.fd, 2, 0, 2)));
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
    }
}
case!(disabled => "
    cqe 1: -EBADFD
    enable = 0
    cqe 2: 0
    get events = 0
    cqe 2: 0
    cqe 1: -EBADFD
    enable = 0
    cqe 2: 0
    get events = 0
    cqe 2: 0
");

/// If the target's CQ is full, the CQE of a message goes to the target's backlog.
fn full_queue(t: &mut Transcript) {
    let mut sender = Ring::new(16);
    for flags in ring::BOTH {
        let mut target =
            Ring::with(2, |params| (params.flags, params.cq_entries) = (flags | u::IORING_SETUP_CQSIZE, 2))
                .expect("a small ring");
        for number in 0..5 {
            sender.push(message(target.fd, number, 0, number));
        }
        t.result("submit", sender.submit());
        t.in_order(&sender.reap());
        t.result("get events", target.enter(0, 0, u::IORING_ENTER_GETEVENTS));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
        while target.ready() > 0 {
            t.in_order(&target.reap());
            t.result("get events", target.enter(0, 0, u::IORING_ENTER_GETEVENTS));
        }
        t.say(format_args!("flags {}", names::sq_flags(target.sq_flags())));
    }
}
case!(full_queue => include_str!("message_ring/full_queue.txt"));

fn refused(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    let mut target = Ring::new(8);
    let fd = target.fd;
    let base = || message(fd, 1, 2, 3);
    t.say("a command that does not exist");
    t.entry(&sender.one(base().with(|sqe| sqe.addr = 2)));
    t.entry(&sender.one(base().with(|sqe| sqe.addr = 1 << 32)));
    t.say("fields of other commands");
    let wrong = fields! {
        addr3 = 1, addr3 = 1 << 32, buf_index = 1, personality = 1, ioprio = 1, pad2 = 1,
    };
    t.each(&mut sender, base(), &wrong);
    t.say("flags");
    t.entry(&sender.one(base().op_flags(u::IORING_MSG_RING_CQE_SKIP)));
    t.entry(&sender.one(base().op_flags(4)));
    t.entry(&sender.one(base().op_flags(1 << 31)));
    t.entry(&sender.one(base().flagged(sqe_flags::BUFFER_SELECT)));
    for entry in target.reap() {
        t.say(format_args!("arrived {entry}"));
    }
}
case!(refused => "
    a command that does not exist
    cqe 3: -EINVAL
    cqe 3: 0
    fields of other commands
    cqe 3: -EINVAL
    cqe 3: 0
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: 0
    flags
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EOPNOTSUPP
    arrived 1: 2
    arrived 1: 2
    arrived 1: 2
");

fn not_a_ring(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    let target = Ring::new(8);
    let (reader, _writer) = files::pipe();
    let event = files::eventfd(0);
    t.entry(&sender.one(message(reader.as_raw_fd(), 1, 2, 1)));
    t.entry(&sender.one(message(event.as_raw_fd(), 1, 2, 2)));
    t.entry(&sender.one(message(-1, 1, 2, 3)));
    t.entry(&sender.one(message(9999, 1, 2, 4)));
    t.say("nor a command");
    t.entry(&sender.one(message(event.as_raw_fd(), 1, 2, 5).with(|sqe| sqe.addr = 9)));
    t.say("closed");
    let fd = target.fd;
    drop(target);
    t.entry(&sender.one(message(fd, 1, 2, 6)));
    t.say("registered files");
    t.entry(&sender.one(message(0, 1, 2, 7).fixed()));
    let number = reader.as_raw_fd();
    t.result("register", sender.register(reg::FILES, &raw const number, 1));
    t.entry(&sender.one(message(0, 1, 2, 8).fixed()));
    t.entry(&sender.one(message(1, 1, 2, 9).fixed()));
}
case!(not_a_ring => "
    cqe 1: -EBADFD
    cqe 2: -EBADFD
    cqe 3: -EBADF
    cqe 4: -EBADF
    nor a command
    cqe 5: -EBADFD
    closed
    cqe 6: -EBADF
    registered files
    cqe 7: -EBADF
    register = 0
    cqe 8: -EBADFD
    cqe 9: -EBADF
");

fn wide_entries(t: &mut Transcript) {
    let mut sender = Ring::flags(8, u::IORING_SETUP_SQE128);
    for flags in [u::IORING_SETUP_CQE32, u::IORING_SETUP_CQE32 | ring::DEFER] {
        let mut target = Ring::flags(8, flags);
        t.entry(&sender.one(message(target.fd, 1, 2, 1)));
        target.enter(0, 1, u::IORING_ENTER_GETEVENTS);
        for entry in target.reap() {
            t.say(format_args!("{entry}, {:?}", entry.extra));
        }
    }
}
case!(wide_entries => "
    cqe 1: 0
    1: 2, [0, 0]
    cqe 1: 0
    1: 2, [0, 0]
");

fn chains(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    let mut target = Ring::new(8);
    t.say("goes on");
    sender.push(message(target.fd, 1, 0, 1).linked());
    sender.push(message(target.fd, 2, 0, 2).linked());
    sender.push(nop(3));
    sender.submit();
    t.in_order(&sender.reap());
    t.in_order(&target.reap());
    t.say("broken by one that is refused");
    sender.push(message(target.fd, 1, 0, 4).linked().op_flags(u::IORING_MSG_RING_CQE_SKIP));
    sender.push(nop(5));
    sender.submit();
    t.in_order(&sender.reap());
    t.say("broken before it");
    sender.push(message(-1, 1, 0, 6).linked());
    sender.push(message(target.fd, 3, 0, 7));
    sender.submit();
    t.in_order(&sender.reap());
    t.in_order(&target.reap());
    t.say("silent");
    sender.push(message(target.fd, 4, 0, 8).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    sender.push(message(-1, 5, 0, 9).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    sender.submit();
    t.in_order(&sender.reap());
    t.in_order(&target.reap());
    let mut sender = Ring::new(8);
    t.say("behind a drain");
    sender.push(message(target.fd, 6, 0, 1));
    sender.push(message(target.fd, 7, 0, 2).flagged(sqe_flags::IO_DRAIN));
    sender.submit();
    t.in_order(&sender.wait(2));
    t.in_order(&target.wait(2));
}
case!(chains => "
    goes on
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 1: 0
    cqe 2: 0
    broken by one that is refused
    cqe 4: -EINVAL
    cqe 5: -ECANCELED
    broken before it
    cqe 6: -EBADF
    cqe 7: -ECANCELED
    no cqe
    silent
    cqe 9: -EBADF
    cqe 4: 0
    behind a drain
    cqe 1: 0
    cqe 2: 0
    cqe 6: 0
    cqe 7: 0
");

/// The sender can name the target by any duplicate of the target's descriptor. On usring, this
/// includes a duplicate whose number lies among the program's own files.
fn target_by_a_duplicate(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    let mut target = Ring::new(8);
    let other = files::eventfd(0);
    // SAFETY: the call touches no memory.
    let duplicate = unsafe { libc::dup(target.fd) };
    t.entry(&sender.one(message(duplicate, 1, 0, 1)));
    t.in_order(&target.reap());
    // SAFETY: dup2(2) replaces the descriptor of the eventfd, which this case owns.
    let low = unsafe { libc::dup2(target.fd, other.as_raw_fd()) };
    t.entry(&sender.one(message(low, 2, 0, 2)));
    t.in_order(&target.reap());
    syscalls::close(duplicate);
    t.entry(&sender.one(message(duplicate, 3, 0, 3)));
    t.say("when it is a ring no more");
    drop(other);
    t.entry(&sender.one(message(low, 4, 0, 4)));
}
case!(target_by_a_duplicate => "
    cqe 1: 0
    cqe 1: 0
    cqe 2: 0
    cqe 2: 0
    cqe 3: -EBADF
    when it is a ring no more
    cqe 4: -EBADF
");

/// A thread that is not the issuer of a SINGLE_ISSUER ring may nevertheless send messages to that
/// ring.
fn single_issuer(t: &mut Transcript) {
    for flags in [u::IORING_SETUP_SINGLE_ISSUER, ring::DEFER] {
        let mut target = Ring::flags(8, flags);
        let fd = target.fd;
        let sent = std::thread::spawn(move || Ring::new(8).one(message(fd, 1, 2, 3))).join().expect("the sender");
        t.entry(&sent);
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
    }
}
case!(single_issuer => "
    cqe 3: 0
    get events = 0
    cqe 1: 2
    cqe 3: 0
    get events = 0
    cqe 1: 2
");

fn registered_event(ring: &Ring, opcode: u32) -> OwnedFd {
    let event = files::eventfd(0);
    let number = event.as_raw_fd();
    assert_eq!(ring.register(opcode, &raw const number, 1), 0);
    event
}

fn event_descriptor(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    for flags in [0, u::IORING_SETUP_COOP_TASKRUN, ring::DEFER] {
        for opcode in [reg::EVENTFD, reg::EVENTFD_ASYNC] {
            let mut target = Ring::flags(8, flags);
            let event = registered_event(&target, opcode);
            t.entry(&sender.one(message(target.fd, 1, 0, 1)));
            t.say(format_args!("signalled {}", files::event_count(&event)));
            t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
            t.in_order(&target.reap());
        }
    }
    t.say("of several that wait on a ring that defers, once");
    let mut target = Ring::flags(8, ring::DEFER);
    let event = registered_event(&target, reg::EVENTFD);
    for round in 0..2 {
        for number in 0..4 {
            sender.push(message(target.fd, number, round, number).flagged(sqe_flags::CQE_SKIP_SUCCESS));
        }
        sender.submit();
        t.say(format_args!("signalled {}", files::event_count(&event)));
        t.result("get events", target.enter(0, 4, u::IORING_ENTER_GETEVENTS));
        files::event_count(&event);
        t.in_order(&target.reap());
    }
}
case!(event_descriptor => include_str!("message_ring/event_descriptor.txt"));

/// A message makes the target's descriptor readable for poll(2).
fn polled_descriptor(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    for flags in ring::BOTH {
        let mut target = Ring::flags(8, flags);
        let state = |ring: &Ring| {
            let mut entry = libc::pollfd { fd: ring.fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: the array has one entry.
            unsafe { libc::poll(&mut entry, 1, 0) }
        };
        t.result("before", state(&target));
        t.entry(&sender.one(message(target.fd, 1, 0, 1)));
        t.result("sent", state(&target));
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.result("there", state(&target));
        t.in_order(&target.reap());
        t.result("taken", state(&target));
    }
}
case!(polled_descriptor => "
    before = 0
    cqe 1: 0
    sent = 1
    get events = 0
    there = 1
    cqe 1: 0
    taken = 0
    before = 0
    cqe 1: 0
    sent = 1
    get events = 0
    there = 1
    cqe 1: 0
    taken = 0
");
