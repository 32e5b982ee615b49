//! Messages between threads, and the number of messages that wakes a waiter. No wake-up may be
//! lost.

use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use usring_uapi::{io_uring as u, sqe_flags};

use super::message_ring::message;
use super::reg;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop};
use crate::time::long_enough_to_notice;
use crate::transcript::Transcript;
use crate::{files, syscalls};

const KINDS: [(&str, u32); 4] = [
    ("default", 0),
    ("cooperative", u::IORING_SETUP_COOP_TASKRUN),
    ("deferred", ring::DEFER),
    ("SQ thread", u::IORING_SETUP_SQPOLL),
];

fn kinds_of_rings(t: &mut Transcript) {
    for (name, flags) in KINDS {
        t.say(name);
        let mut target = Ring::flags(8, flags);
        let fd = target.fd;
        let sender = std::thread::spawn(move || {
            long_enough_to_notice();
            Ring::new(8).one(message(fd, 1, 2, 3)).res
        });
        t.result("wait", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
        t.result("sent", sender.join().unwrap_or(1));
    }
}
case!(kinds_of_rings => "
    default
    wait = 0
    cqe 1: 2
    sent = 0
    cooperative
    wait = 0
    cqe 1: 2
    sent = 0
    deferred
    wait = 0
    cqe 1: 2
    sent = 0
    SQ thread
    wait = 0
    cqe 1: 2
    sent = 0
");

/// A thread that waits for three CQEs wakes when the third message has arrived.
fn one_by_one(t: &mut Transcript) {
    for (name, flags) in KINDS {
        t.say(name);
        let mut target = Ring::flags(8, flags);
        let fd = target.fd;
        let sender = std::thread::spawn(move || {
            let mut ring = Ring::new(8);
            for number in 0..3 {
                std::thread::sleep(Duration::from_millis(10));
                ring.one(message(fd, number, 2, 3));
            }
        });
        t.result("wait for 3", target.enter(0, 3, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
        let _ = sender.join();
    }
}
case!(one_by_one => "
    default
    wait for 3 = 0
    cqe 0: 2
    cqe 1: 2
    cqe 2: 2
    cooperative
    wait for 3 = 0
    cqe 0: 2
    cqe 1: 2
    cqe 2: 2
    deferred
    wait for 3 = 0
    cqe 0: 2
    cqe 1: 2
    cqe 2: 2
    SQ thread
    wait for 3 = 0
    cqe 0: 2
    cqe 1: 2
    cqe 2: 2
");

/// A thread waits for three CQEs, and the CQ already contains two. These count for the wait, so one
/// more message ends it.
fn cqes_in_the_queue_count(t: &mut Transcript) {
    for (name, flags) in KINDS {
        t.say(name);
        let mut target = Ring::flags(8, flags);
        let fd = target.fd;
        let mut sender = Ring::new(8);
        sender.one(message(fd, 1, 0, 1));
        sender.one(message(fd, 2, 0, 2));
        target.enter(0, 2, u::IORING_ENTER_GETEVENTS);
        t.say(format_args!("ready {}", target.ready()));
        let sending = std::thread::spawn(move || {
            long_enough_to_notice();
            sender.one(message(fd, 3, 0, 3)).res
        });
        t.result("wait for 3", target.enter(0, 3, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
        t.result("sent", sending.join().unwrap_or(1));
    }
}
case!(cqes_in_the_queue_count => include_str!("message_wake/cqes_in_the_queue_count.txt"));

/// A thread waits with a timeout for two CQEs, and only one message arrives. The wait ends at the
/// timeout. The call returns 0, because the CQ contains a CQE.
fn too_few_messages(t: &mut Transcript) {
    for (name, flags) in KINDS {
        t.say(name);
        let mut target = Ring::flags(8, flags);
        let fd = target.fd;
        let sender = std::thread::spawn(move || {
            long_enough_to_notice();
            Ring::new(8).one(message(fd, 1, 2, 3)).res
        });
        t.result("wait for 2", target.enter_for(0, 2, Duration::from_millis(1000)));
        t.in_order(&target.reap());
        t.result("sent", sender.join().unwrap_or(1));
    }
}
case!(too_few_messages => "
    default
    wait for 2 = 0
    cqe 1: 2
    sent = 0
    cooperative
    wait for 2 = 0
    cqe 1: 2
    sent = 0
    deferred
    wait for 2 = 0
    cqe 1: 2
    sent = 0
    SQ thread
    wait for 2 = 0
    cqe 1: 2
    sent = 0
");

/// One thread waits on a ring for one CQE, and then a second thread waits for two. The kernel
/// checks the first thread first, so one message wakes it, and a second message wakes the other
/// thread.
fn several_wait(t: &mut Transcript) {
    let mut target = Ring::new(8);
    let fd = target.fd;
    let wait = |count| {
        std::thread::spawn(move || syscalls::enter(fd, 0, count, u::IORING_ENTER_GETEVENTS, std::ptr::null(), 0))
    };
    let one = wait(1);
    long_enough_to_notice();
    let two = wait(2);
    long_enough_to_notice();
    let mut sender = Ring::new(8);
    sender.one(message(fd, 1, 0, 1));
    t.result("who waits for one", one.join().unwrap_or(1));
    sender.one(message(fd, 2, 0, 2));
    t.result("who waits for two", two.join().unwrap_or(1));
    t.in_order(&target.reap());
}
case!(several_wait => "
    who waits for one = 0
    who waits for two = 0
    cqe 1: 0
    cqe 2: 0
");

const SENDERS: u64 = 4;
const EACH: u64 = 500;

fn senders_to(fd: i32) -> Vec<JoinHandle<()>> {
    let send = move |sender: u64| {
        let mut ring = Ring::new(8);
        for number in 0..EACH {
            assert_eq!(ring.one(message(fd, sender << 32 | number, 0, 1)).res, 0);
        }
    };
    (0..SENDERS).map(|sender| std::thread::spawn(move || send(sender))).collect()
}

/// Several threads send messages to one ring. Each sender's messages arrive exactly once and in
/// order.
fn many_senders(t: &mut Transcript) {
    for (name, flags) in KINDS {
        let mut target = Ring::flags(64, flags);
        let senders = senders_to(target.fd);
        let mut next = [0u64; SENDERS as usize];
        let mut in_order = true;
        let mut left = SENDERS * EACH;
        while left > 0 {
            let entries = target.wait(1);
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                let sender = (entry.user_data >> 32) as usize;
                in_order &= entry.user_data & 0xffff_ffff == next[sender];
                next[sender] += 1;
                left -= 1;
            }
        }
        t.say(format_args!("{name}: missing {left}, in order {in_order}"));
        senders.into_iter().for_each(|sender| drop(sender.join()));
    }
}
case!(many_senders => "
    default: missing 0, in order true
    cooperative: missing 0, in order true
    deferred: missing 0, in order true
    SQ thread: missing 0, in order true
");

/// Runs an event loop that never sleeps in io_uring_enter(2). The loop reaps when the eventfd of
/// the ring is readable. If `eventfd` registers none, the loop reaps when the ring's descriptor is
/// readable.
fn heard_by(t: &mut Transcript, eventfd: impl Fn(&Ring) -> Option<OwnedFd>) {
    for (name, flags) in [("default", 0), ("deferred", ring::DEFER)] {
        // The CQ has room for all messages, so none goes to the backlog. A move from the backlog to
        // the CQ need not signal the eventfd, so the loop might miss it.
        let mut target = Ring::flags(1024, flags);
        let eventfd = eventfd(&target);
        let watched = eventfd.as_ref().map_or(target.fd, AsRawFd::as_raw_fd);
        let senders = senders_to(target.fd);
        let mut left = SENDERS * EACH;
        while left > 0 {
            if !files::is_readable_within(watched, Duration::from_secs(30)) {
                break;
            }
            eventfd.as_ref().map(files::event_count);
            target.enter(0, 0, u::IORING_ENTER_GETEVENTS);
            left -= target.reap().len() as u64;
        }
        t.say(format_args!("{name}: missing {left}"));
        senders.into_iter().for_each(|sender| drop(sender.join()));
    }
}

fn wakes_a_reader_of_the_eventfd(t: &mut Transcript) {
    heard_by(t, |ring| {
        let eventfd = files::eventfd(0);
        let number = eventfd.as_raw_fd();
        ring.register(reg::EVENTFD, &raw const number, 1);
        Some(eventfd)
    });
}
case!(wakes_a_reader_of_the_eventfd => "
    default: missing 0
    deferred: missing 0
");

fn wakes_a_poller_of_the_ring(t: &mut Transcript) {
    heard_by(t, |_| None);
}
case!(wakes_a_poller_of_the_ring => "
    default: missing 0
    deferred: missing 0
");

/// Sends `count` messages to the ring `other`, four at a time, and reaps `count` messages. Returns
/// the number of messages that it has reaped.
fn exchange(ring: &mut Ring, other: i32, count: u32) -> u32 {
    let mut taken = 0;
    for _ in 0..count / 4 {
        for number in 0..4 {
            ring.push(message(other, number, 1, 0).flagged(sqe_flags::CQE_SKIP_SUCCESS));
        }
        ring.submit();
        taken += ring.reap().len() as u32;
    }
    while taken < count {
        let entries = ring.wait(1);
        if entries.is_empty() {
            break;
        }
        taken += entries.len() as u32;
    }
    taken
}

/// Two threads each have a ring, and send messages to each other's ring at one time.
fn messages_cross(t: &mut Transcript) {
    for (name, flags) in KINDS {
        if flags & u::IORING_SETUP_SQPOLL != 0 {
            continue;
        }
        let (to_one, from_two) = std::sync::mpsc::channel();
        let mut one = Ring::flags(8, flags);
        let fd = one.fd;
        let second = std::thread::spawn(move || {
            let mut two = Ring::flags(8, flags);
            to_one.send(two.fd).expect("the first waits for it");
            let taken = exchange(&mut two, fd, 2000);
            // The thread returns its ring. So the ring stays open until the first thread has sent
            // all of its messages to it.
            (taken, two)
        });
        let other = from_two.recv().expect("the second has made its ring");
        let taken = exchange(&mut one, other, 2000);
        let theirs = second.join().map_or(0, |(taken, _ring)| taken);
        t.say(format_args!("{name}: {taken} and {theirs}"));
    }
}
case!(messages_cross => "
    default: 2000 and 2000
    cooperative: 2000 and 2000
    deferred: 2000 and 2000
");

/// Threads form a circle: each thread forwards every message that it gets to the next thread.
fn messages_in_a_circle(t: &mut Transcript) {
    const THREADS: usize = 5;
    const ROUNDS: u64 = 200;
    for (name, flags) in KINDS {
        if flags & u::IORING_SETUP_SQPOLL != 0 {
            continue;
        }
        let (numbers, places): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| std::sync::mpsc::channel::<i32>()).unzip();
        let threads: Vec<_> = places
            .into_iter()
            .enumerate()
            .map(|(index, next)| {
                let before = numbers[(index + THREADS - 1) % THREADS].clone();
                std::thread::spawn(move || {
                    let mut ring = Ring::flags(8, flags);
                    before.send(ring.fd).expect("somebody waits for it");
                    let next = next.recv().expect("the next has made its ring");
                    if index == 0 {
                        ring.push(message(next, 1, 0, 0).flagged(sqe_flags::CQE_SKIP_SUCCESS));
                        ring.submit();
                    }
                    let mut last = 0;
                    for _ in 0..ROUNDS {
                        let Some(entry) = ring.wait(1).first().copied() else { break };
                        last = entry.user_data;
                        let sent = message(next, last + 1, 0, 0).flagged(sqe_flags::CQE_SKIP_SUCCESS);
                        ring.push(sent);
                        ring.submit();
                    }
                    (last, ring)
                })
            })
            .collect();
        let rings: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        let last = rings.iter().map(|(last, _)| *last).max().unwrap_or(0);
        t.say(format_args!("{name}: the last number {last}"));
    }
}
case!(messages_in_a_circle => "
    default: the last number 1000
    cooperative: the last number 1000
    deferred: the last number 1000
");

/// The target ring is closed while a sender sends messages to it. From then on, a message gets
/// -EBADF or -EBADFD.
fn target_closes(t: &mut Transcript) {
    for (name, flags) in KINDS {
        let mut strange = 0;
        for _ in 0..20 {
            let mut target = Ring::flags(8, flags);
            let fd = target.fd;
            let sender = std::thread::spawn(move || {
                let mut ring = Ring::new(8);
                let mut strange = 0;
                loop {
                    match ring.one(message(fd, 1, 0, 1)).res {
                        0 => {}
                        error => {
                            // EBADFD: another file, which is no ring, has got the descriptor number
                            // of the closed ring.
                            strange += i32::from(![-libc::EBADF, -libc::EBADFD].contains(&error));
                            return strange;
                        }
                    }
                }
            });
            target.enter(0, 1, u::IORING_ENTER_GETEVENTS);
            target.close();
            strange += sender.join().unwrap_or(1);
        }
        t.say(format_args!("{name}: strange answers {strange}"));
    }
}
case!(target_closes => "
    default: strange answers 0
    cooperative: strange answers 0
    deferred: strange answers 0
    SQ thread: strange answers 0
");

/// Messages arrive at a ring while the ring's own thread submits requests to it.
fn target_submits_meanwhile(t: &mut Transcript) {
    for (name, flags) in KINDS {
        if flags & u::IORING_SETUP_SQPOLL != 0 {
            continue;
        }
        let mut target = Ring::flags(64, flags);
        let fd = target.fd;
        let sender = std::thread::spawn(move || {
            let mut ring = Ring::new(8);
            for number in 0..1000 {
                assert_eq!(ring.one(message(fd, number, 0, 1)).res, 0);
            }
        });
        let (mut others, mut next) = (0, 0);
        let mut in_order = true;
        while others < 1000 {
            for _ in 0..32 {
                target.push(nop(1 << 40));
            }
            target.submit_and_wait(1);
            for entry in target.reap() {
                if entry.user_data != 1 << 40 {
                    in_order &= entry.user_data == next;
                    next += 1;
                    others += 1;
                }
            }
        }
        let _ = sender.join();
        t.say(format_args!("{name}: messages {others}, in order {in_order}"));
    }
}
case!(target_submits_meanwhile => "
    default: messages 1000, in order true
    cooperative: messages 1000, in order true
    deferred: messages 1000, in order true
");

/// The thread that made the target ring has ended. The ring still exists, so messages to it
/// succeed.
fn owner_is_gone(t: &mut Transcript) {
    let mut sender = Ring::new(8);
    for (name, flags) in KINDS {
        t.say(name);
        let mut target = std::thread::spawn(move || Ring::flags(8, flags)).join().expect("its owner");
        t.entry(&sender.one(message(target.fd, 1, 2, 3)));
        if flags & ring::DEFER == 0 {
            t.in_order(&target.wait(1));
        }
        t.result("get events", target.enter(0, 0, u::IORING_ENTER_GETEVENTS));
        for entry in target.reap() {
            t.entry(&entry);
        }
    }
}
case!(owner_is_gone => "
    default
    cqe 3: 0
    cqe 1: 2
    get events = 0
    cooperative
    cqe 3: 0
    cqe 1: 2
    get events = 0
    deferred
    cqe 3: 0
    get events = -EEXIST
    SQ thread
    cqe 3: 0
    cqe 1: 2
    get events = 0
");
