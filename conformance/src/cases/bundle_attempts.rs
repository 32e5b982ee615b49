//! Bundles that need more than one attempt. If an attempt finds no data, it has nevertheless
//! counted the buffers in the group: the next attempt fills at most that number. A bundle fails if
//! a message does not fit into its buffers.

use std::os::fd::OwnedFd;
use std::time::Duration;

use usring_uapi::io_uring as u;

use super::bundle::{GROUP, MANY, receiving};
use crate::buffers::{group_of, incremental_group_of};
use crate::files;
use crate::memory::Pages;
use crate::ring::{self, Ring};
use crate::sqe::{Change, nop};
use crate::transcript::Transcript;

/// Prints CQEs until `bytes` bytes have arrived or the multishot has ended. Returns whether the
/// multishot goes on.
fn receive(t: &mut Transcript, ring: &mut Ring, mut bytes: i32) -> bool {
    loop {
        let entries = ring.wait(1);
        t.in_order(&entries);
        bytes -= entries.iter().map(|entry| entry.res).sum::<i32>();
        let goes_on = entries.last().is_some_and(|entry| entry.flags & u::IORING_CQE_F_MORE != 0);
        if !goes_on || bytes <= 0 {
            return goes_on;
        }
    }
}

/// At its first attempt a receive sees `buffers` buffers in its group, finds no data, and waits.
/// Then the group gets three more buffers, and data arrives. The next CQE covers at most `buffers`
/// buffers. That number also decides whether this CQE is the multishot's last.
fn first_empties_group(t: &mut Transcript) {
    for is_incremental in [false, true] {
        let make = if is_incremental { incremental_group_of } else { group_of };
        let which = u8::from(is_incremental);
        for (flags, length, buffers, amount) in [
            (0, 0, 1, 19),
            (0, 40, 1, 37),
            (0, 40, 2, 37),
            (MANY, 0, 1, 1),
            (MANY, 0, 2, 37),
            (MANY, 20, 1, 19),
            (MANY, 40, 1, 37),
            (MANY, 40, 3, 37),
        ] {
            t.say(format_args!("group {which} flags {flags:#x} length {length} buffers {buffers} bytes {amount}"));
            let memory = Pages::new(1);
            let mut ring = Ring::flags(8, ring::DEFER);
            let mut group = make(&ring, &memory, 8, GROUP);
            group.add_slots(0..buffers);
            let (reader, writer) = files::sockets();
            ring.push(receiving(&reader, length, 1).with(|sqe| sqe.ioprio |= flags));
            t.result("submit", ring.submit());
            group.add_slots(buffers..buffers + 3);
            files::put(&writer, &vec![b'x'; amount as usize]);
            if receive(t, &mut ring, amount) {
                files::put(&writer, b"y");
                receive(t, &mut ring, 1);
            }
        }
    }
}
case!(first_empties_group => include_str!("bundle_attempts/first_empties_group.txt"));

/// A multishot with length 32 has received 32 bytes. It makes no further attempt until more data
/// comes. By then the group has new buffers, so the multishot goes on. `waits`: the first data
/// comes only after the submission.
fn waits_after_its_length(t: &mut Transcript) {
    for (kind, waits) in
        [libc::SOCK_STREAM, libc::SOCK_DGRAM].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        t.say(format_args!("kind {kind} waits {waits}"));
        let memory = Pages::new(1);
        let mut ring = Ring::flags(8, ring::DEFER);
        let mut group = group_of(&ring, &memory, 8, GROUP);
        group.add_slots(0..3);
        let (reader, writer): (OwnedFd, OwnedFd) = files::sockets_of(kind);
        if !waits {
            files::put(&writer, &[b'x'; 32]);
        }
        ring.push(receiving(&reader, 32, 1).with(|sqe| sqe.ioprio |= MANY));
        t.result("submit", ring.submit());
        if waits {
            files::put(&writer, &[b'x'; 32]);
        }
        receive(t, &mut ring, 32);
        // The wait lets the multishot make another attempt.
        ring.enter_for(0, 1, Duration::from_millis(1));
        group.add_slots(3..5);
        files::put(&writer, &[b'y'; 5]);
        receive(t, &mut ring, 5);
    }
}
case!(waits_after_its_length => "
    kind 1 waits false
    submit = 1
    cqe 1: 32 MORE|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(2)
    kind 1 waits true
    submit = 1
    cqe 1: 32 MORE|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(2)
    kind 2 waits false
    submit = 1
    cqe 1: 32 MORE|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(2)
    kind 2 waits true
    submit = 1
    cqe 1: 32 MORE|BUFFER(0)
    cqe 1: 5 MORE|BUFFER(2)
");

/// With MSG_WAITALL, a receive of a truncated message breaks its chain of links, although the
/// message has filled all buffers.
fn cut_message_breaks_chain(t: &mut Transcript) {
    for kind in [libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        for length in [16, 40, 64, 0] {
            t.say(format_args!("kind {kind} length {length}"));
            let memory = Pages::new(1);
            let mut ring = Ring::new(8);
            let mut group = group_of(&ring, &memory, 8, GROUP);
            group.add_slots(0..4);
            let (reader, writer): (OwnedFd, OwnedFd) = files::sockets_of(kind);
            for _ in 0..2 {
                files::put(&writer, &[b'x'; 40]);
            }
            ring.push(receiving(&reader, length, 1).with(|sqe| sqe.op_flags = libc::MSG_WAITALL as u32).linked());
            ring.push(nop(2));
            t.result("submit", ring.submit());
            t.sorted(&ring.wait(2));
        }
    }
}
case!(cut_message_breaks_chain => include_str!("bundle_attempts/cut_message_breaks_chain.txt"));
