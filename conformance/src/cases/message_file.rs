//! MSG_RING requests that send a direct descriptor (a registered file) to another ring.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, sqe_flags};

use super::message_ring::message;
use super::reg;
use crate::files;
use crate::ring::{self, Ring};
use crate::sqe::{Change, close, nop, read, write};
use crate::transcript::Transcript;

const ANY: u32 = u::IORING_FILE_INDEX_ALLOC as u32;

/// Returns a MSG_RING that sends the file in the sender's slot `from` to the slot `slot` of the
/// ring `target`. If `slot` is [`ANY`], the kernel chooses a free slot.
fn send(target: i32, from: u32, slot: u32, own: u64) -> Sqe {
    let index = if slot == ANY { ANY } else { slot + 1 };
    message(target, 0xf11e, 0, own).with(|sqe| {
        sqe.addr = 1;
        sqe.addr3 = u64::from(from);
        sqe.file_index = index;
    })
}

fn register(ring: &Ring, files: &[i32]) -> i32 {
    ring.register(reg::FILES, files.as_ptr(), files.len() as u32)
}

/// Makes a sender and a target. The sender's slot 0 has a pipe's reading end, and the target has
/// `slots` empty slots. Also returns the pipe's writing end.
fn pair(flags: u32, slots: usize) -> (Ring, Ring, OwnedFd) {
    let sender = Ring::new(8);
    let target = Ring::flags(8, flags);
    let (reader, writer) = files::pipe();
    assert_eq!(register(&sender, &[reader.as_raw_fd(), -1]), 0);
    if slots > 0 {
        assert_eq!(register(&target, &vec![-1; slots]), 0);
    }
    (sender, target, writer)
}

/// Writes three bytes to the pipe `writer`. Reads them by a request of `ring` on the registered
/// file in slot `slot`.
fn read_by(t: &mut Transcript, ring: &mut Ring, writer: &OwnedFd, slot: i32) {
    files::put(writer, b"abc");
    let mut bytes = [0u8; 8];
    let entry = ring.one(read(slot, &mut bytes, u64::MAX, 99).fixed());
    t.say(format_args!("read {entry}, {:?}", &bytes[..3]));
}

fn into_a_slot(t: &mut Transcript) {
    let (mut sender, mut target, writer) = pair(0, 4);
    t.entry(&sender.one(send(target.fd, 0, 2, 1)));
    t.in_order(&target.reap());
    read_by(t, &mut target, &writer, 2);
    t.say("and the sender has it still");
    read_by(t, &mut sender, &writer, 0);
}
case!(into_a_slot => "
    cqe 1: 0
    cqe 61726: 0
    read 99: 3, [97, 98, 99]
    and the sender has it still
    read 99: 3, [97, 98, 99]
");

fn into_any_slot(t: &mut Transcript) {
    let (mut sender, mut target, writer) = pair(0, 3);
    for number in 0..4 {
        t.entry(&sender.one(send(target.fd, 0, ANY, number)));
        for entry in target.reap() {
            t.entry(&entry);
        }
    }
    read_by(t, &mut target, &writer, 1);
    t.say("within a range");
    let (mut sender, mut target, _writer) = pair(0, 4);
    let range = u::io_uring_file_index_range { off: 2, len: 1, resv: 0 };
    t.result("range", target.register(reg::FILE_ALLOC_RANGE, &raw const range, 0));
    for number in 0..2 {
        t.entry(&sender.one(send(target.fd, 0, ANY, number)));
        for entry in target.reap() {
            t.entry(&entry);
        }
    }
}
case!(into_any_slot => "
    cqe 0: 0
    cqe 61726: 0
    cqe 1: 1
    cqe 61726: 1
    cqe 2: 2
    cqe 61726: 2
    cqe 3: -ENFILE
    read 99: 3, [97, 98, 99]
    within a range
    range = 0
    cqe 0: 2
    cqe 61726: 2
    cqe 1: -ENFILE
");

fn without_a_message(t: &mut Transcript) {
    for flags in ring::BOTH {
        let (mut sender, mut target, writer) = pair(flags, 4);
        t.entry(&sender.one(send(target.fd, 0, ANY, 1).op_flags(u::IORING_MSG_RING_CQE_SKIP)));
        t.result("get events", target.enter(0, 0, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
        read_by(t, &mut target, &writer, 0);
    }
    t.say("with the flag that passes flags");
    let (mut sender, mut target, _writer) = pair(0, 4);
    t.entry(&sender.one(send(target.fd, 0, 3, 1).op_flags(u::IORING_MSG_RING_FLAGS_PASS)));
    t.in_order(&target.reap());
    t.entry(&sender.one(send(target.fd, 0, 3, 1).op_flags(3)));
    t.in_order(&target.reap());
}
case!(without_a_message => "
    cqe 1: 0
    get events = 0
    no cqe
    read 99: 3, [97, 98, 99]
    cqe 1: 0
    get events = 0
    no cqe
    read 99: 3, [97, 98, 99]
    with the flag that passes flags
    cqe 1: 0
    cqe 61726: 0
    cqe 1: 0
    no cqe
");

fn kinds_of_rings(t: &mut Transcript) {
    let kinds = [
        ("cooperative", u::IORING_SETUP_COOP_TASKRUN),
        ("SQ thread", u::IORING_SETUP_SQPOLL),
        ("polled", u::IORING_SETUP_IOPOLL),
        ("deferred, polled", ring::DEFER | u::IORING_SETUP_IOPOLL),
    ];
    for (name, flags) in kinds {
        t.say(name);
        let (mut sender, mut target, _writer) = pair(flags, 2);
        t.entry(&sender.one(send(target.fd, 0, 1, 1)));
        t.in_order(&target.wait(1));
    }
}
case!(kinds_of_rings => "
    cooperative
    cqe 1: 0
    cqe 61726: 0
    SQ thread
    cqe 1: 0
    cqe 61726: 0
    polled
    cqe 1: 0
    cqe 61726: 0
    deferred, polled
    cqe 1: 0
    cqe 61726: 0
");

/// The target ring has deferred task work. The sent file is in its table at once, before the
/// target's owner calls io_uring_enter(2).
fn deferred(t: &mut Transcript) {
    let (mut sender, mut target, writer) = pair(ring::DEFER, 4);
    t.entry(&sender.one(send(target.fd, 0, 2, 1)));
    t.in_order(&target.reap());
    t.entry(&sender.one(send(target.fd, 0, ANY, 2)));
    t.in_order(&target.reap());
    read_by(t, &mut target, &writer, 2);
    t.say("from a ring that defers");
    let mut other = Ring::flags(8, ring::DEFER);
    t.result("register", register(&other, &[writer.as_raw_fd()]));
    t.entry(&other.one(send(target.fd, 0, 3, 3)));
    t.in_order(&target.reap());
    t.entry(&target.one(write(3, b"xyz", u64::MAX, 4).fixed()));
}
case!(deferred => "
    cqe 1: 0
    cqe 61726: 0
    cqe 2: 3
    cqe 61726: 3
    read 99: 3, [97, 98, 99]
    from a ring that defers
    register = 0
    cqe 3: 0
    cqe 61726: 0
    cqe 4: 3
");

fn refused(t: &mut Transcript) {
    let (mut sender, mut target, _writer) = pair(0, 4);
    let fd = target.fd;
    let good = || send(fd, 0, 1, 1);
    t.say("fields");
    t.entry(&sender.one(good().with(|sqe| sqe.len = 1)));
    t.entry(&sender.one(good().with(|sqe| sqe.buf_index = 1)));
    t.entry(&sender.one(good().op_flags(4)));
    t.say("to itself");
    t.entry(&sender.one(send(sender.fd, 0, 1, 1)));
    t.say("no such file");
    t.entry(&sender.one(send(fd, 1, 1, 1)));
    t.entry(&sender.one(send(fd, 9, 1, 1)));
    t.entry(&Ring::new(2).one(good()));
    t.say("no such slot");
    t.entry(&sender.one(send(fd, 0, 4, 1)));
    t.entry(&sender.one(send(fd, 0, 1 << 30, 1)));
    t.entry(&sender.one(good().with(|sqe| sqe.file_index = 0)));
    t.say("disabled");
    let disabled = Ring::flags(8, u::IORING_SETUP_R_DISABLED);
    t.entry(&sender.one(send(disabled.fd, 0, 1, 1)));
    t.entry(&sender.one(send(disabled.fd, 9, 1, 1)));
    t.say("no ring");
    let event = files::eventfd(0);
    t.entry(&sender.one(send(event.as_raw_fd(), 0, 1, 1)));
    for entry in target.reap() {
        t.say(format_args!("arrived {entry}"));
    }
}
case!(refused => "
    fields
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    to itself
    cqe 1: -EINVAL
    no such file
    cqe 1: -EBADF
    cqe 1: -EBADF
    cqe 1: -EBADF
    no such slot
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    disabled
    cqe 1: -EBADFD
    cqe 1: -EBADFD
    no ring
    cqe 1: -EBADFD
");

/// A target ring that has not registered any files refuses the file that MSG_RING sends.
fn tables(t: &mut Transcript) {
    for flags in ring::BOTH {
        let (mut sender, mut target, _writer) = pair(flags, 0);
        t.entry(&sender.one(send(target.fd, 0, 1, 1)));
        t.entry(&sender.one(send(target.fd, 0, ANY, 2)));
        t.entry(&sender.one(send(target.fd, 0, 1, 3).with(|sqe| sqe.file_index = 0)));
        target.enter(0, 0, u::IORING_ENTER_GETEVENTS);
        t.in_order(&target.reap());
    }
}
case!(tables => "
    cqe 1: -ENXIO
    cqe 2: -ENFILE
    cqe 3: -ENXIO
    no cqe
    cqe 1: -ENXIO
    cqe 2: -ENFILE
    cqe 3: -ENXIO
    no cqe
");

fn replaces(t: &mut Transcript) {
    let (mut sender, mut target, writer) = pair(0, 0);
    let (other, deserted) = files::pipe();
    t.result("register", register(&target, &[other.as_raw_fd()]));
    drop(other);
    t.entry(&sender.one(send(target.fd, 0, 0, 1)));
    t.in_order(&target.reap());
    let mut entry = libc::pollfd { fd: deserted.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the array has one entry.
    unsafe { libc::poll(&mut entry, 1, 30_000) };
    t.say(format_args!("the replaced file is closed {}", entry.revents & libc::POLLERR != 0));
    read_by(t, &mut target, &writer, 0);
}
case!(replaces => "
    register = 0
    cqe 1: 0
    cqe 61726: 0
    the replaced file is closed true
    read 99: 3, [97, 98, 99]
");

fn outlives_the_sender(t: &mut Transcript) {
    let (mut sender, mut target, writer) = pair(0, 2);
    t.entry(&sender.one(send(target.fd, 0, 1, 1)));
    t.in_order(&target.reap());
    drop(sender);
    read_by(t, &mut target, &writer, 1);
    drop(target);
    let mut entry = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the array has one entry.
    unsafe { libc::poll(&mut entry, 1, 30_000) };
    t.say(format_args!("closed with its last ring {}", entry.revents & libc::POLLERR != 0));
}
case!(outlives_the_sender => "
    cqe 1: 0
    cqe 61726: 0
    read 99: 3, [97, 98, 99]
    closed with its last ring true
");

fn closed_on_both_sides(t: &mut Transcript) {
    let (mut sender, mut target, writer) = pair(0, 2);
    t.entry(&sender.one(send(target.fd, 0, 1, 1)));
    t.in_order(&target.reap());
    t.entry(&sender.one(close(0, 2).with(|sqe| sqe.file_index = 1)));
    read_by(t, &mut target, &writer, 1);
    t.entry(&target.one(close(0, 3).with(|sqe| sqe.file_index = 2)));
    let mut entry = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the array has one entry.
    unsafe { libc::poll(&mut entry, 1, 30_000) };
    t.say(format_args!("closed {}", entry.revents & libc::POLLERR != 0));
}
case!(closed_on_both_sides => "
    cqe 1: 0
    cqe 61726: 0
    cqe 2: 0
    read 99: 3, [97, 98, 99]
    cqe 3: 0
    closed true
");

/// MSG_RING sends a file to a ring whose CQ is full. The file is in that ring's table at once. The
/// CQE for the target goes to the backlog.
fn full_queue(t: &mut Transcript) {
    let (mut sender, _, writer) = pair(0, 0);
    let mut target =
        Ring::with(2, |params| (params.flags, params.cq_entries) = (u::IORING_SETUP_CQSIZE, 2)).expect("a small ring");
    t.result("register", register(&target, &[-1; 4]));
    for number in 0..4 {
        t.entry(&sender.one(send(target.fd, 0, ANY, number)));
    }
    t.in_order(&target.reap());
    t.in_order(&target.wait(2));
    read_by(t, &mut target, &writer, 3);
}
case!(full_queue => "
    register = 0
    cqe 0: 0
    cqe 1: 1
    cqe 2: 2
    cqe 3: 3
    cqe 61726: 0
    cqe 61726: 1
    cqe 61726: 2
    cqe 61726: 3
    read 99: 3, [97, 98, 99]
");

fn chains(t: &mut Transcript) {
    let (mut sender, mut target, _writer) = pair(0, 2);
    sender.push(send(target.fd, 0, 1, 1).linked());
    sender.push(nop(2));
    sender.push(send(target.fd, 0, 7, 3).linked());
    sender.push(nop(4));
    sender.push(send(target.fd, 0, 0, 5).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    t.result("submit", sender.submit());
    t.sorted(&sender.reap());
    t.in_order(&target.reap());
}
case!(chains => "
    submit = 5
    cqe 1: 0
    cqe 2: 0
    cqe 3: -EINVAL
    cqe 4: -ECANCELED
    cqe 61726: 0
    cqe 61726: 0
");

/// The target's thread sleeps in io_uring_enter(2). The message with the file wakes that thread.
fn to_a_thread_that_sleeps(t: &mut Transcript) {
    for flags in ring::BOTH {
        let (mut sender, mut target, writer) = pair(flags, 2);
        let fd = target.fd;
        let sending = std::thread::spawn(move || {
            crate::time::long_enough_to_notice();
            sender.one(send(fd, 0, 1, 1)).res
        });
        t.result("wait", target.enter(0, 1, u::IORING_ENTER_GETEVENTS));
        t.in_order(&target.reap());
        t.result("sent", sending.join().unwrap_or(1));
        read_by(t, &mut target, &writer, 1);
    }
}
case!(to_a_thread_that_sleeps => "
    wait = 0
    cqe 61726: 0
    sent = 0
    read 99: 3, [97, 98, 99]
    wait = 0
    cqe 61726: 0
    sent = 0
    read 99: 3, [97, 98, 99]
");
