//! MSG_RING: a completion posted to another ring, and the synchronous call for programs without a
//! ring. `message_file` covers descriptors.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::case::{Case, case};
use crate::door;
use crate::files;
use crate::memory::BAD;
use crate::names;
use crate::ring::Ring;
use crate::sqe::{Change, nop, sqe};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("message_ring.data", data),
    case("message_ring.to_itself", to_itself),
    case("message_ring.flags_pass", flags_pass),
    case("message_ring.kinds_of_rings", kinds_of_rings),
    case("message_ring.from_kinds_of_rings", from_kinds_of_rings),
    case("message_ring.disabled", disabled),
    case("message_ring.full_queue", full_queue),
    case("message_ring.refused", refused),
    case("message_ring.not_a_ring", not_a_ring),
    case("message_ring.wide_entries", wide_entries),
    case("message_ring.chains", chains),
    case("message_ring.other_numbers", other_numbers),
    case("message_ring.single_issuer", single_issuer),
    case("message_ring.event_descriptor", event_descriptor),
    case("message_ring.deferred_flag", deferred_flag),
    case("message_ring.deferred_run_is_limited", deferred_run_is_limited),
    case("message_ring.deferred_run_for_many", deferred_run_for_many),
    case("message_ring.deferred_teardown", deferred_teardown),
    case("message_ring.polled_descriptor", polled_descriptor),
    case("message_ring.synchronous", synchronous),
    case("message_ring.synchronous_refused", synchronous_refused),
];

pub const DEFER: u32 = u::IORING_SETUP_SINGLE_ISSUER | u::IORING_SETUP_DEFER_TASKRUN;

/// Returns a message to the ring `target`.
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

fn to_itself(t: &mut Transcript) {
    for flags in [0, u::IORING_SETUP_COOP_TASKRUN, DEFER] {
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

fn flags_pass(t: &mut Transcript) {
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
        ("deferred", DEFER),
        ("deferred, polled", DEFER | u::IORING_SETUP_IOPOLL),
    ];
    for (name, flags) in kinds {
        t.say(name);
        let mut target = Ring::flags(8, flags);
        for number in 0..3 {
            sender.push(message(target.fd, number, 0, 1));
        }
        t.result("submit", sender.submit());
        t.in_order(&sender.reap());
        // An SQ thread may hold the ring's lock at this moment.
        let there = if flags & u::IORING_SETUP_SQPOLL != 0 { target.watch(3) } else { target.ready() == 3 };
        t.say(format_args!("there {there}"));
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
    }
}

fn from_kinds_of_rings(t: &mut Transcript) {
    let mut target = Ring::new(8);
    for (name, flags) in [("polled", u::IORING_SETUP_IOPOLL), ("deferred", DEFER)] {
        t.say(name);
        let mut sender = Ring::flags(8, flags);
        t.entry(&sender.one(message(target.fd, 1, 2, 3)));
        t.in_order(&target.reap());
    }
    for (name, flags) in [("SQ thread", 0), ("polled by its SQ thread", u::IORING_SETUP_IOPOLL)] {
        t.say(name);
        let mut sender = Ring::flags(8, flags | u::IORING_SETUP_SQPOLL);
        t.in_order(&super::sq_thread::run(&mut sender, &[message(target.fd, 1, 2, 3)]));
        t.say(format_args!("arrived {}", target.watch(1)));
        t.in_order(&target.reap());
    }
}

fn disabled(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    for flags in [0, DEFER] {
        let mut target = Ring::flags(8, flags | u::IORING_SETUP_R_DISABLED);
        t.entry(&sender.one(message(target.fd, 1, 0, 1)));
        t.result("enable", target.register::<u8>(reg::ENABLE_RINGS, std::ptr::null(), 0));
        t.entry(&sender.one(message(target.fd, 2, 0, 2)));
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
    }
}

/// A message that finds no room goes to the target's backlog.
fn full_queue(t: &mut Transcript) {
    let mut sender = Ring::new(16);
    for flags in [0, DEFER] {
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

fn refused(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    let mut target = Ring::new(8);
    let fd = target.fd;
    let base = || message(fd, 1, 2, 3);
    t.say("a command that does not exist");
    t.entry(&sender.one(base().with(|sqe| sqe.addr = 2)));
    t.entry(&sender.one(base().with(|sqe| sqe.addr = 1 << 32)));
    t.say("fields of other commands");
    t.entry(&sender.one(base().with(|sqe| sqe.addr3 = 1)));
    t.entry(&sender.one(base().with(|sqe| sqe.addr3 = 1 << 32)));
    t.entry(&sender.one(base().with(|sqe| sqe.buf_index = 1)));
    t.entry(&sender.one(base().with(|sqe| sqe.personality = 1)));
    t.entry(&sender.one(base().with(|sqe| sqe.ioprio = 1)));
    t.entry(&sender.one(base().with(|sqe| sqe.pad2 = 1)));
    t.say("flags");
    t.entry(&sender.one(base().op_flags(u::IORING_MSG_RING_CQE_SKIP)));
    t.entry(&sender.one(base().op_flags(4)));
    t.entry(&sender.one(base().op_flags(1 << 31)));
    t.entry(&sender.one(base().flagged(sqe_flags::BUFFER_SELECT)));
    for entry in target.reap() {
        t.say(format_args!("arrived {entry}"));
    }
}

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

fn wide_entries(t: &mut Transcript) {
    let mut sender = Ring::flags(8, u::IORING_SETUP_SQE128);
    for flags in [u::IORING_SETUP_CQE32, u::IORING_SETUP_CQE32 | DEFER] {
        let mut target = Ring::flags(8, flags);
        t.entry(&sender.one(message(target.fd, 1, 2, 1)));
        target.enter(0, 1, u::IORING_ENTER_GETEVENTS);
        for entry in target.reap() {
            t.say(format_args!("{entry}, {:?}", entry.extra));
        }
    }
}

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

/// The target is named by a duplicate of its descriptor, also by one with a low number.
fn other_numbers(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    let mut target = Ring::new(8);
    let other = files::eventfd(0);
    // SAFETY: the call touches no memory.
    let duplicate = unsafe { libc::dup(target.fd) };
    t.entry(&sender.one(message(duplicate, 1, 0, 1)));
    t.in_order(&target.reap());
    // SAFETY: the call replaces the eventfd, which this case owns.
    let low = unsafe { libc::dup2(target.fd, other.as_raw_fd()) };
    t.entry(&sender.one(message(low, 2, 0, 2)));
    t.in_order(&target.reap());
    door::close(duplicate);
    t.entry(&sender.one(message(duplicate, 3, 0, 3)));
    t.say("when it is a ring no more");
    drop(other);
    t.entry(&sender.one(message(low, 4, 0, 4)));
}

/// A thread that may not submit to the target may send to it.
fn single_issuer(t: &mut Transcript) {
    for flags in [u::IORING_SETUP_SINGLE_ISSUER, DEFER] {
        let mut target = Ring::flags(8, flags);
        let fd = target.fd;
        let sent = std::thread::spawn(move || Ring::new(8).one(message(fd, 1, 2, 3))).join().expect("the sender");
        t.entry(&sent);
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
    }
}

fn registered_event(ring: &Ring, opcode: u32) -> OwnedFd {
    let event = files::eventfd(0);
    let number = event.as_raw_fd();
    assert_eq!(ring.register(opcode, &raw const number, 1), 0);
    event
}

fn event_descriptor(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    for flags in [0, u::IORING_SETUP_COOP_TASKRUN, DEFER] {
        for opcode in [reg::EVENTFD, reg::EVENTFD_ASYNC] {
            let mut target = Ring::flags(8, flags);
            let event = registered_event(&target, opcode);
            t.entry(&sender.one(message(target.fd, 1, 0, 1)));
            t.say(format_args!("told {}", files::event_count(&event)));
            t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
            t.in_order(&target.reap());
        }
    }
    t.say("of several that wait on a ring that defers, once");
    let mut target = Ring::flags(8, DEFER);
    let event = registered_event(&target, reg::EVENTFD);
    for round in 0..2 {
        for number in 0..4 {
            sender.push(message(target.fd, number, round, number).flagged(sqe_flags::CQE_SKIP_SUCCESS));
        }
        sender.submit();
        t.say(format_args!("told {}", files::event_count(&event)));
        t.result("get events", target.enter(0, 4, u::IORING_ENTER_GETEVENTS));
        files::event_count(&event);
        t.in_order(&target.reap());
    }
}

fn deferred_flag(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    for flags in [DEFER | u::IORING_SETUP_TASKRUN_FLAG, u::IORING_SETUP_COOP_TASKRUN | u::IORING_SETUP_TASKRUN_FLAG] {
        let target = Ring::flags(8, flags);
        t.entry(&sender.one(message(target.fd, 1, 0, 1)));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
        t.result("enter(0, 0, 0)", target.enter(0, 0, 0));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
    }
}

fn send_many(sender: &mut Ring, target: &Ring, count: u64) {
    for number in 0..count {
        sender.push(message(target.fd, number, 0, 0).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    }
    sender.submit();
}

/// One call runs at most twenty pending items, or as many as it waits for if that is more.
fn deferred_run_is_limited(t: &mut Transcript) {
    let mut sender = Ring::new(128);
    for wanted in [0, 1, 5, 20, 25, 40] {
        let mut target = Ring::flags(128, DEFER | u::IORING_SETUP_TASKRUN_FLAG);
        send_many(&mut sender, &target, 100);
        t.result(format_args!("wait for {wanted}"), target.enter(0, wanted, u::IORING_ENTER_GETEVENTS));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
        t.result("again", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.say(format_args!("ready {}, flags {}", target.ready(), names::sq_flags(target.sq_flags())));
        t.result("for all", target.enter(0, 100, u::IORING_ENTER_GETEVENTS));
        let in_order = target.reap().iter().map(|entry| entry.user_data).eq(0..100);
        t.say(format_args!("all, in order: {in_order}, flags {}", names::sq_flags(target.sq_flags())));
    }
}

/// A call that submits and waits makes two such runs.
fn deferred_run_for_many(t: &mut Transcript) {
    let mut sender = Ring::new(128);
    for wanted in [1, 2, 30] {
        let mut target = Ring::flags(128, DEFER);
        send_many(&mut sender, &target, 100);
        target.push(nop(1000));
        t.result(format_args!("submit and wait for {wanted}"), target.submit_and_wait(wanted));
        t.say(format_args!("ready {}", target.ready()));
        target.push(nop(1001));
        t.result("submit", target.submit());
        t.say(format_args!("ready {}", target.ready()));
    }
}

/// Messages that were not reaped are freed with their ring.
fn deferred_teardown(t: &mut Transcript) {
    let mut sender = Ring::new(64);
    for _ in 0..20 {
        let target = Ring::flags(8, DEFER);
        send_many(&mut sender, &target, 50);
        drop(target);
    }
    t.entry(&sender.one(nop(1)));
}

/// A poll of the target's descriptor is woken.
fn polled_descriptor(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    for flags in [0, DEFER] {
        let mut target = Ring::flags(8, flags);
        let look = |ring: &Ring| {
            let mut entry = libc::pollfd { fd: ring.fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: the array has one entry.
            unsafe { libc::poll(&mut entry, 1, 0) }
        };
        t.result("before", look(&target));
        t.entry(&sender.one(message(target.fd, 1, 0, 1)));
        t.result("sent", look(&target));
        t.result("get events", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.result("there", look(&target));
        t.in_order(&target.reap());
        t.result("taken", look(&target));
    }
}

fn synchronous(t: &mut Transcript) {
    for flags in [0, DEFER, u::IORING_SETUP_SQPOLL, u::IORING_SETUP_IOPOLL] {
        let mut target = Ring::flags(8, flags);
        for number in 0..3 {
            let sent = message(target.fd, number, 2, 0);
            t.result("send", door::register(-1, SEND_MSG_RING, (&raw const sent).cast(), 1));
        }
        let flagged = message(target.fd, 9, 2, 0)
            .op_flags(u::IORING_MSG_RING_FLAGS_PASS)
            .with(|sqe| (sqe.file_index, sqe.user_data) = (4, 77));
        t.result("send", door::register(-1, SEND_MSG_RING, (&raw const flagged).cast(), 1));
        t.result("get events", target.enter(0, 4, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
    }
    t.say("a thread that sleeps is woken");
    let mut target = Ring::flags(8, DEFER);
    let fd = target.fd;
    let sender = std::thread::spawn(move || {
        let sent = message(fd, 5, 6, 0);
        crate::time::long_enough_to_notice();
        door::register(-1, SEND_MSG_RING, (&raw const sent).cast(), 1)
    });
    t.result("wait", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
    t.in_order(&target.reap());
    t.result("send", sender.join().unwrap_or(1));
}

const SEND_MSG_RING: u32 = 31;

fn synchronous_refused(t: &mut Transcript) {
    let target = Ring::new(8);
    let fd = target.fd;
    let send = |sqe: Sqe| door::register(-1, SEND_MSG_RING, (&raw const sqe).cast(), 1);
    let good = || message(fd, 1, 2, 3);
    t.result("descriptor", send(good().with(|sqe| sqe.addr = 1)));
    t.result("command", send(good().with(|sqe| sqe.addr = 7)));
    t.result("flags", send(good().op_flags(4)));
    t.result("skip", send(good().op_flags(1)));
    t.result("SQE flags", send(good().flagged(sqe_flags::IO_LINK)));
    t.result("fixed", send(good().fixed()));
    t.result("buffer index", send(good().with(|sqe| sqe.buf_index = 1)));
    t.result("personality", send(good().with(|sqe| sqe.personality = 1)));
    t.result("ioprio", send(good().with(|sqe| sqe.ioprio = 1)));
    t.result("index", send(good().with(|sqe| sqe.file_index = 1)));
    t.result("addr3", send(good().with(|sqe| sqe.addr3 = 1)));
    t.result("another opcode", send(nop(1)));
    let event = files::eventfd(0);
    t.result("no ring", send(message(event.as_raw_fd(), 1, 2, 3)));
    t.result("no file", send(message(-1, 1, 2, 3)));
    let disabled = Ring::flags(8, u::IORING_SETUP_R_DISABLED);
    t.result("disabled", send(message(disabled.fd, 1, 2, 3)));
    let sqe = good();
    let pointer = (&raw const sqe).cast();
    t.result("two", door::register(-1, SEND_MSG_RING, pointer, 2));
    t.result("none", door::register(-1, SEND_MSG_RING, pointer, 0));
    t.result("no entry", door::register(-1, SEND_MSG_RING, std::ptr::null(), 1));
    t.result("bad entry", door::register(-1, SEND_MSG_RING, BAD as *const _, 1));
    t.result("on a ring", door::register(fd, SEND_MSG_RING, pointer, 1));
    t.result("registered ring", door::register(-1, SEND_MSG_RING | reg::USE_REGISTERED_RING, pointer, 1));
    t.result("something else without a ring", door::register(-1, reg::PROBE, pointer, 1));
    t.say(format_args!("arrived {}", target.ready()));
}
