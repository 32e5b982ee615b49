//! Rings that several processes use: multishot requests.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use crate::buffers::{self, Group, SIZE};
use crate::files;
use crate::net::{self, Family};
use crate::ring::{Entry, Ring};
use crate::shared::{self, Partner, Shared};
use crate::sqe::{Change, cancel, poll, sqe, timeout};
use crate::time::milliseconds;
use crate::transcript::Transcript;

fn multishot_poll(fd: i32, user_data: u64) -> Sqe {
    poll(fd, libc::POLLIN, user_data).with(|sqe| sqe.len = u::IORING_POLL_ADD_MULTI)
}

/// A child submits a multishot poll. The parent gets a CQE for each event, until the parent cancels
/// the poll.
fn poll_of_a_child(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let (reader, writer) = files::pipe();
        let partner = Partner::start(ring, |ring| ring.push(multishot_poll(reader.as_raw_fd(), 1)));
        for _ in 0..3 {
            files::put(&writer, b"x");
            t.in_order(&ring.wait(1));
        }
        ring.push(cancel(1, 0, 2));
        ring.submit();
        t.sorted(&ring.wait(2));
        partner.leave(t);
    });
}
case!(poll_of_a_child => "
    a mapped ring:
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    cqe 1: -ECANCELED
    cqe 2: 0
    child: exit 0
    a ring in shared memory:
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    cqe 1: -ECANCELED
    cqe 2: 0
    child: exit 0
");

/// The parent armed a multishot poll before the fork. The poll goes on reporting events while the
/// child uses the ring.
fn poll_from_before_the_fork(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let (reader, writer) = files::pipe();
        ring.push(multishot_poll(reader.as_raw_fd(), 1));
        ring.submit();
        shared::run_child(t, |t| {
            for _ in 0..2 {
                files::put(&writer, b"x");
                t.in_order(&ring.wait(1));
            }
        });
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    });
}
case!(poll_from_before_the_fork => "
    a mapped ring:
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    child: exit 0
    cqe 1: 1 MORE
    a ring in shared memory:
    cqe 1: 1 MORE
    cqe 1: 1 MORE
    child: exit 0
    cqe 1: 1 MORE
");

/// A process with a multishot poll is killed. The next event ends the poll.
fn poll_of_a_killed_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let (reader, writer) = files::pipe();
        let partner = Partner::start(ring, |ring| ring.push(multishot_poll(reader.as_raw_fd(), 1)));
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
        partner.kill(t);
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
        files::put(&writer, b"x");
        t.in_order(&ring.reap_in_memory(0));
    });
}
case!(poll_of_a_killed_process => "
    a mapped ring:
    cqe 1: 1 MORE
    child: signal 9
    no cqe
    cqe 1: -ECANCELED
    no cqe
    a ring in shared memory:
    cqe 1: 1 MORE
    child: signal 9
    no cqe
    cqe 1: -ECANCELED
    no cqe
");

/// A child's multishot timeout with a count of three expires three times.
fn timeout_of_a_child(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let partner = Partner::start(ring, |ring| {
            let time = Box::leak(Box::new(milliseconds(5)));
            ring.push(timeout(time, 3, u::IORING_TIMEOUT_MULTISHOT, 1));
        });
        t.in_order(&ring.wait(3));
        partner.leave(t);
    });
}
case!(timeout_of_a_child => "
    a mapped ring:
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME
    child: exit 0
    a ring in shared memory:
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME
    child: exit 0
");

/// A process with a multishot timeout is killed. The timeout still expires as often as its count
/// says.
fn timeout_of_a_killed_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let partner = Partner::start(ring, |ring| {
            let time = Box::leak(Box::new(milliseconds(150)));
            ring.push(timeout(time, 3, u::IORING_TIMEOUT_MULTISHOT, 1));
        });
        partner.kill(t);
        t.in_order(&ring.wait(3));
    });
}
case!(timeout_of_a_killed_process => "
    a mapped ring:
    child: signal 9
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME
    a ring in shared memory:
    child: signal 9
    cqe 1: -ETIME MORE
    cqe 1: -ETIME MORE
    cqe 1: -ETIME
");

/// Registers a buffer ring for group 3 and adds four buffers, which are slots of `shared`. Returns
/// the shared memory in which the buffer ring itself lies.
fn provide(ring: &Ring, shared: &Shared) -> Shared {
    let memory = Shared::new();
    let entries = memory.first_page();
    assert_eq!(buffers::register(ring, &buffers::registration(entries as u64, 4, 3, 0)), 0);
    let mut group = Group::new(entries, 4);
    for slot in 0..4 {
        group.add_at(shared.slot(usize::from(slot)), SIZE, slot);
    }
    memory
}

fn receive(fd: i32, user_data: u64) -> Sqe {
    sqe(opcode::RECV, fd, user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.ioprio = u::IORING_RECV_MULTISHOT as u16;
        sqe.buf_index = 3;
    })
}

/// A child's multishot receive fills provided buffers, and the parent reaps its CQEs.
fn receive_of_a_child(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let _memory = provide(ring, shared);
        let (here, there) = files::sockets();
        let partner = Partner::start(ring, |ring| ring.push(receive(here.as_raw_fd(), 1)));
        for (slot, bytes) in [b"one", b"two"].into_iter().enumerate() {
            files::put(&there, bytes);
            t.in_order(&ring.wait(1));
            t.say(shared.text(slot));
        }
        partner.kill(t);
        files::put(&there, b"end");
        t.in_order(&ring.wait(1));
        t.say(format_args!("in the socket {}", files::take(&here, 8).map_or(0, |bytes| bytes.len())));
    });
}
case!(receive_of_a_child => "
    a mapped ring:
    cqe 1: 3 MORE|BUFFER(0)
    one
    cqe 1: 3 MORE|BUFFER(1)
    two
    child: signal 9
    cqe 1: -ECANCELED
    in the socket 3
    a ring in shared memory:
    cqe 1: 3 MORE|BUFFER(0)
    one
    cqe 1: 3 MORE|BUFFER(1)
    two
    child: signal 9
    cqe 1: -ECANCELED
    in the socket 3
");

/// A child submits a multishot ACCEPT. The new descriptors are in the child's descriptor table.
fn accepted_descriptors_are_the_submitters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let (listener, address) = net::listener(Family::V4);
        let _clients = [(); 2].map(|()| net::connected(Family::V4, &address));
        let partner = Partner::start(ring, |ring| {
            ring.push(net::accept(listener.as_raw_fd(), 1).with(|sqe| {
                sqe.ioprio = u::IORING_ACCEPT_MULTISHOT as u16;
            }));
        });
        for Entry { res, flags, .. } in ring.wait(2) {
            let more = flags & u::IORING_CQE_F_MORE != 0;
            t.say(format_args!("accepted {}, more {more}, open in the parent {}", res >= 0, files::is_open(res)));
        }
        partner.leave(t);
    });
}
case!(accepted_descriptors_are_the_submitters => "
    a mapped ring:
    accepted true, more true, open in the parent false
    accepted true, more true, open in the parent false
    child: exit 0
    a ring in shared memory:
    accepted true, more true, open in the parent false
    accepted true, more true, open in the parent false
    child: exit 0
");
