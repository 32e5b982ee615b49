//! How many CQEs a multishot posts in one wait on a ring with deferred task work. Each item of the
//! kernel's task work posts up to 33 CQEs.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use usring_uapi::io_uring as u;

use super::{GROUP, multishot};
use crate::buffers::{Group, group_of};
use crate::files;
use crate::memory::Pages;
use crate::ring::{self, Ring};
use crate::sqe::{CURRENT, Change, nop, read};
use crate::transcript::Transcript;

/// Number of buffers, of two bytes each.
const BUFFERS: u16 = 120;
/// Time limit of a wait. A wait ends earlier if it finds enough CQEs.
const LIMIT: Duration = Duration::from_millis(50);

struct Connection {
    ring: Ring,
    _group: Group,
    _memory: Pages,
    reader: OwnedFd,
    writer: OwnedFd,
}

/// Makes a ring with deferred task work and a CQ of `entries` entries, its buffer group, and a pair
/// of sockets.
fn stage(entries: u32) -> Connection {
    stage_with(entries, ring::DEFER)
}

fn stage_with(entries: u32, flags: u32) -> Connection {
    let memory = Pages::new(1);
    let ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE | flags;
        params.cq_entries = entries;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    for slot in 0..BUFFERS {
        group.add_at(group.buffers.at(0), 2, slot);
    }
    let (reader, writer) = files::sockets();
    Connection { ring, _group: group, _memory: memory, reader, writer }
}

impl Connection {
    fn arm(&mut self, user_data: u64) {
        self.ring.push(multishot(self.reader.as_raw_fd(), user_data));
        self.ring.submit();
    }

    /// Sends as many bytes as `receives` buffers hold.
    fn send(&self, receives: usize) {
        files::put(&self.writer, &vec![b'x'; 2 * receives]);
    }

    /// Waits `times` times for `count` CQEs. After each wait, prints how many CQEs are in the CQ,
    /// and if `reaps` is true, reaps them.
    fn waits(&mut self, t: &mut Transcript, times: u32, count: u32, reaps: bool) {
        for _ in 0..times {
            self.ring.enter_for(0, count, LIMIT);
            t.say(format_args!("wait for {count}: {}", self.ring.ready()));
            if reaps {
                self.ring.reap();
            }
        }
    }
}

fn slices_of_data_that_is_there(t: &mut Transcript) {
    let mut stage = stage(256);
    stage.send(110);
    stage.arm(1);
    t.say(format_args!("submitted: {}", stage.ring.ready()));
    stage.waits(t, 5, 1, true);
}
case!(slices_of_data_that_is_there => "
    submitted: 33
    wait for 1: 66
    wait for 1: 33
    wait for 1: 11
    wait for 1: 0
    wait for 1: 0
");

fn slices_of_data_that_comes(t: &mut Transcript) {
    for reaps in [true, false] {
        let mut stage = stage(256);
        stage.arm(1);
        stage.send(110);
        stage.waits(t, 5, 1, reaps);
    }
}
case!(slices_of_data_that_comes => "
    wait for 1: 33
    wait for 1: 33
    wait for 1: 33
    wait for 1: 11
    wait for 1: 0
    wait for 1: 33
    wait for 1: 66
    wait for 1: 99
    wait for 1: 110
    wait for 1: 110
");

fn slices_for_more_completions(t: &mut Transcript) {
    for wanted in [2, 3, 10, 34, 70, 100] {
        let mut stage = stage(256);
        stage.arm(1);
        stage.send(110);
        stage.waits(t, 2, wanted, true);
    }
}
case!(slices_for_more_completions => "
    wait for 2: 66
    wait for 2: 44
    wait for 3: 99
    wait for 3: 11
    wait for 10: 110
    wait for 10: 0
    wait for 34: 110
    wait for 34: 0
    wait for 70: 110
    wait for 70: 0
    wait for 100: 110
    wait for 100: 0
");

fn slices_for_no_completion(t: &mut Transcript) {
    let mut stage = stage(256);
    stage.arm(1);
    stage.send(110);
    stage.waits(t, 5, 0, true);
}
case!(slices_for_no_completion => "
    wait for 0: 33
    wait for 0: 33
    wait for 0: 33
    wait for 0: 11
    wait for 0: 0
");

fn slices_while_submitting(t: &mut Transcript) {
    for wanted in [1, 40] {
        let mut stage = stage(256);
        stage.send(110);
        stage.ring.push(multishot(stage.reader.as_raw_fd(), 1));
        stage.ring.submit_and_wait(wanted);
        t.say(format_args!("submitted: {}", stage.ring.ready()));
        stage.waits(t, 2, 1, false);
    }
}
case!(slices_while_submitting => "
    submitted: 99
    wait for 1: 110
    wait for 1: 110
    submitted: 110
    wait for 1: 110
    wait for 1: 110
");

fn slices_of_two_sockets(t: &mut Transcript) {
    for wanted in [1, 2, 40] {
        let mut first = stage(256);
        let (reader, writer) = files::sockets();
        first.arm(1);
        first.ring.push(multishot(reader.as_raw_fd(), 2));
        first.ring.submit();
        first.send(50);
        files::put(&writer, &[b'y'; 100]);
        for _ in 0..4 {
            first.ring.enter_for(0, wanted, LIMIT);
            let entries = first.ring.reap();
            let of = |which: u64| entries.iter().filter(|entry| entry.user_data == which).count();
            t.say(format_args!("wait for {wanted}: {} {}", of(1), of(2)));
        }
    }
}
case!(slices_of_two_sockets => "
    wait for 1: 33 33
    wait for 1: 17 17
    wait for 1: 0 0
    wait for 1: 0 0
    wait for 2: 33 33
    wait for 2: 17 17
    wait for 2: 0 0
    wait for 2: 0 0
    wait for 40: 50 50
    wait for 40: 0 0
    wait for 40: 0 0
    wait for 40: 0 0
");

/// On a ring without deferred task work, task work runs at the end of the submitting call. It posts
/// as many CQEs as the CQ has room for. This also holds for a bundle with a length.
fn slices_at_the_return_of_a_submission(t: &mut Transcript) {
    for flags in [0, u::IORING_SETUP_COOP_TASKRUN] {
        for (entries, length) in [(256, 0), (64, 0), (256, 2), (64, 2)] {
            let mut stage = stage_with(entries, flags);
            stage.send(110);
            let bundle = if length == 0 { 0 } else { u::IORING_RECVSEND_BUNDLE as u16 };
            stage.ring.push(multishot(stage.reader.as_raw_fd(), 1).with(|sqe| {
                sqe.ioprio |= bundle;
                sqe.len = length;
            }));
            stage.ring.submit();
            let reaped = stage.ring.reap();
            let more = reaped.iter().filter(|entry| entry.flags & u::IORING_CQE_F_MORE != 0).count();
            t.say(format_args!("{entries} entries, length {length}: {} there, {more} with more", reaped.len()));
            stage.waits(t, 2, 0, true);
        }
    }
}
case!(slices_at_the_return_of_a_submission => "
    256 entries, length 0: 110 there, 110 with more
    wait for 0: 0
    wait for 0: 0
    64 entries, length 0: 64 there, 64 with more
    wait for 0: 1
    wait for 0: 0
    256 entries, length 2: 110 there, 110 with more
    wait for 0: 0
    wait for 0: 0
    64 entries, length 2: 64 there, 64 with more
    wait for 0: 1
    wait for 0: 0
    256 entries, length 0: 110 there, 110 with more
    wait for 0: 0
    wait for 0: 0
    64 entries, length 0: 64 there, 64 with more
    wait for 0: 1
    wait for 0: 0
    256 entries, length 2: 110 there, 110 with more
    wait for 0: 0
    wait for 0: 0
    64 entries, length 2: 64 there, 64 with more
    wait for 0: 1
    wait for 0: 0
");

/// More sockets are ready than usring takes events from its epoll set in one call. For all sockets
/// but the first, the case prints only sums: one wait in the kernel runs at most 20 items of task
/// work.
fn slices_beside_many_sockets(t: &mut Transcript) {
    const OTHERS: u64 = 40;
    let mut first = stage(256);
    let pairs: Vec<_> = (0..OTHERS).map(|_| files::sockets()).collect();
    first.arm(0);
    for ((reader, _), user_data) in pairs.iter().zip(1..) {
        first.ring.push(multishot(reader.as_raw_fd(), user_data));
        first.ring.submit();
    }
    first.send(50);
    for (_, writer) in &pairs {
        files::put(writer, b"y");
    }
    let mut counts = Vec::new();
    for _ in 0..6 {
        first.ring.enter_for(0, 0, LIMIT);
        let entries = first.ring.reap();
        let of_first = entries.iter().filter(|entry| entry.user_data == 0).count();
        counts.push((of_first, entries.len() - of_first));
    }
    let total = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    t.say(format_args!("first wait: {}, all waits: {} {}", counts[0].0, total.0, total.1));
}
case!(slices_beside_many_sockets => "first wait: 33, all waits: 50 40");

fn slices_into_a_small_queue(t: &mut Transcript) {
    for there in [false, true] {
        let mut stage = stage(64);
        if there {
            stage.send(110);
        }
        stage.arm(1);
        if !there {
            stage.send(110);
        }
        for _ in 0..5 {
            stage.ring.enter_for(0, 1, LIMIT);
            let entries = stage.ring.reap();
            t.say(format_args!("{} completions", entries.len()));
            t.in_order(&entries[entries.len().saturating_sub(1)..]);
        }
    }
}
case!(slices_into_a_small_queue => "
    33 completions
    cqe 1: 2 MORE|SOCK_NONEMPTY|BUFFER(32)
    33 completions
    cqe 1: 2 MORE|SOCK_NONEMPTY|BUFFER(65)
    33 completions
    cqe 1: 2 MORE|SOCK_NONEMPTY|BUFFER(98)
    11 completions
    cqe 1: 2 MORE|BUFFER(109)
    0 completions
    no cqe
    64 completions
    cqe 1: 2 MORE|SOCK_NONEMPTY|BUFFER(63)
    1 completions
    cqe 1: 2 SOCK_NONEMPTY|BUFFER(64)
    0 completions
    no cqe
    0 completions
    no cqe
    0 completions
    no cqe
");

/// A multishot posts 33 CQEs in each wait. This number does not change when an earlier chain starts
/// its next request during a wait. Prints how many CQEs of the multishot each wait finds.
fn slices_beside_a_chain(t: &mut Transcript) {
    let mut stage = stage(256);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 8];
    stage.ring.push(read(reader.as_raw_fd(), &mut buffer, CURRENT, 2).linked());
    stage.ring.push(nop(3));
    stage.ring.submit();
    stage.arm(1);
    stage.send(110);
    for round in 0..3 {
        if round == 1 {
            files::put(&writer, b"12345678");
        }
        stage.ring.enter_for(0, 1, LIMIT);
        let found = stage.ring.reap();
        t.say(format_args!("{}", found.iter().filter(|cqe| cqe.user_data == 1).count()));
    }
}
case!(slices_beside_a_chain => "
    33
    33
    33
");
