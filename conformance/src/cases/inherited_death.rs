//! Rings that several processes use: one of these processes ends while its requests are in flight.

mod survivors;

use std::os::fd::AsRawFd;

use crate::cases::INTERRUPTED_RESULTS;
use crate::files;
use crate::ring::Ring;
use crate::shared::{self, Shared};
use crate::sqe::{Change, cancel, nop, poll, read_at, timeout, timeout_remove};
use crate::time::{self, milliseconds};
use crate::transcript::Transcript;
use usring_uapi::io_uring as u;

/// How the child ends: by SIGKILL or by exit.
#[derive(Clone, Copy)]
enum End {
    Kill,
    Exit,
}

const ENDS: [(End, &str); 2] = [(End::Kill, "killed:"), (End::Exit, "exits:")];

/// Forks a child. The child pushes requests by `push`, submits them, and ends as `end` says.
/// Returns after the child has ended.
fn submit_and_end(t: &mut Transcript, ring: &mut Ring, shared: &Shared, end: End, push: impl FnOnce(&mut Ring)) {
    let child = shared::child(|| {
        ring.catch_up();
        push(ring);
        ring.submit();
        shared.step(1);
        if let End::Kill = end {
            shared.until_step(2);
        }
        0
    });
    shared.until_step(1);
    match end {
        End::Kill => shared::kill(t, child),
        End::Exit => shared::ended(t, child),
    }
    ring.catch_up();
}

/// Runs `case` for each way in which the child can end, each time on a ring of each kind.
fn each_end(t: &mut Transcript, case: fn(&mut Transcript, &mut Ring, &Shared, End)) {
    for (end, name) in ENDS {
        for kind in [shared::Kind::Mapped, shared::Kind::OwnMemory] {
            t.say(name);
            case(t, &mut kind.ring(8, 0), &Shared::new(), end);
        }
    }
}

/// A poll stays armed after its process has ended. When its event comes, the poll gets -ECANCELED.
fn poll_stays_armed(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        let (reader, writer) = files::pipe();
        submit_and_end(t, ring, shared, end, |ring| ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1)));
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
        t.entry(&ring.one(nop(2)));
    });
}
case!(poll_stays_armed => "
    killed:
    child: signal 9
    no cqe
    cqe 1: -ECANCELED
    cqe 2: 0
    killed:
    child: signal 9
    no cqe
    cqe 1: -ECANCELED
    cqe 2: 0
    exits:
    child: exit 0
    no cqe
    cqe 1: -ECANCELED
    cqe 2: 0
    exits:
    child: exit 0
    no cqe
    cqe 1: -ECANCELED
    cqe 2: 0
");

/// A read stays armed after its process has ended. When data comes, the read gets -ECANCELED, and
/// the data stays in the pipe.
fn read_stays_armed(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        let (reader, writer) = files::pipe();
        let address = shared.slot(0);
        submit_and_end(t, ring, shared, end, |ring| ring.push(read_at(reader.as_raw_fd(), address, 8, 0, 1)));
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"data");
        t.in_order(&ring.wait(1));
        t.say(format_args!("read {:?}", shared.text(0)));
        t.say(format_args!("in the pipe {}", files::take(&reader, 8).map_or(0, |bytes| bytes.len())));
    });
}
case!(read_stays_armed => "
    killed:
    child: signal 9
    no cqe
    cqe 1: -ECANCELED
    read \"\"
    in the pipe 4
    killed:
    child: signal 9
    no cqe
    cqe 1: -ECANCELED
    read \"\"
    in the pipe 4
    exits:
    child: exit 0
    no cqe
    cqe 1: -ECANCELED
    read \"\"
    in the pipe 4
    exits:
    child: exit 0
    no cqe
    cqe 1: -ECANCELED
    read \"\"
    in the pipe 4
");

/// The pipe's only writing end belongs to the child, so the child's end closes the pipe. The
/// child's read of that pipe then gets -ECANCELED.
fn end_closes_the_pipe(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        let address = shared.slot(0);
        submit_and_end(t, ring, shared, end, |ring| {
            let (reader, writer) = files::pipe();
            ring.push(read_at(reader.as_raw_fd(), address, 8, 0, 1));
            std::mem::forget((reader, writer));
        });
        t.in_order(&ring.wait(1));
    });
}
case!(end_closes_the_pipe => "
    killed:
    child: signal 9
    cqe 1: -ECANCELED
    killed:
    child: signal 9
    cqe 1: -ECANCELED
    exits:
    child: exit 0
    cqe 1: -ECANCELED
    exits:
    child: exit 0
    cqe 1: -ECANCELED
");

/// A timeout whose process has ended still expires at its time, with -ETIME.
fn timeout_keeps_its_time(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        let time = milliseconds(500);
        submit_and_end(t, ring, shared, end, |ring| ring.push(timeout(&time, 0, 0, 1)));
        t.in_order(&ring.wait(1));
    });
}
case!(timeout_keeps_its_time => "
    killed:
    child: signal 9
    cqe 1: -ETIME
    killed:
    child: signal 9
    cqe 1: -ETIME
    exits:
    child: exit 0
    cqe 1: -ETIME
    exits:
    child: exit 0
    cqe 1: -ETIME
");

/// A process has ended. Cancels and TIMEOUT_REMOVE requests of other processes still find its
/// timeouts.
fn timeouts_are_cancelled(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        submit_and_end(t, ring, shared, end, |ring| {
            (1..=4).for_each(|number| ring.push(timeout(&time::LONG, 0, 0, number)));
        });
        ring.push(timeout_remove(1, 5));
        ring.push(cancel(2, u::IORING_ASYNC_CANCEL_ALL, 6));
        ring.push(cancel(0, u::IORING_ASYNC_CANCEL_ANY, 7));
        ring.submit();
        t.sorted(&ring.wait(7));
    });
}
case!(timeouts_are_cancelled => include_str!("inherited_death/timeouts_are_cancelled.txt"));

/// A timeout whose process has ended still counts the completions of other processes.
fn counted_timeout_keeps_counting(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        submit_and_end(t, ring, shared, end, |ring| ring.push(timeout(&time::LONG, 2, 0, 1)));
        t.entry(&ring.one(nop(2)));
        t.in_order(&ring.reap_in_memory(0));
        ring.push(nop(3));
        ring.submit();
        t.sorted(&ring.wait(2));
    });
}
case!(counted_timeout_keeps_counting => "
    killed:
    child: signal 9
    cqe 2: 0
    no cqe
    cqe 1: 0
    cqe 3: 0
    killed:
    child: signal 9
    cqe 2: 0
    no cqe
    cqe 1: 0
    cqe 3: 0
    exits:
    child: exit 0
    cqe 2: 0
    no cqe
    cqe 1: 0
    cqe 3: 0
    exits:
    child: exit 0
    cqe 2: 0
    no cqe
    cqe 1: 0
    cqe 3: 0
");

/// A process ends while its worker executes a blocking call for a request. That call is interrupted
/// at once, and the linked request is cancelled.
fn worker_is_interrupted(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        let fifo = files::Fifo::new();
        submit_and_end(t, ring, shared, end, |ring| {
            ring.push(fifo.open(1).linked());
            ring.push(nop(2));
            ring.submit();
            time::long_enough_to_begin();
        });
        for entry in ring.wait(2) {
            match entry.user_data {
                1 => t.say(format_args!("cqe 1: broken off {}", INTERRUPTED_RESULTS.contains(&entry.res))),
                _ => t.entry(&entry),
            }
        }
        t.say(format_args!("no worker in the open {}", time::until(|| fifo.has_no_reader())));
    });
}
case!(worker_is_interrupted => "
    killed:
    child: signal 9
    cqe 1: broken off true
    cqe 2: -ECANCELED
    no worker in the open true
    killed:
    child: signal 9
    cqe 1: broken off true
    cqe 2: -ECANCELED
    no worker in the open true
    exits:
    child: exit 0
    cqe 1: broken off true
    cqe 2: -ECANCELED
    no worker in the open true
    exits:
    child: exit 0
    cqe 1: broken off true
    cqe 2: -ECANCELED
    no worker in the open true
");

/// A read stays armed after its process has ended. When the read is cancelled, the requests that
/// are linked to it are cancelled too.
fn chain_behind_an_armed_read(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        let (reader, writer) = files::pipe();
        let address = shared.slot(0);
        submit_and_end(t, ring, shared, end, |ring| {
            ring.push(read_at(reader.as_raw_fd(), address, 8, 0, 1).linked());
            ring.push(nop(2).linked());
            ring.push(nop(3));
        });
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"x");
        t.sorted(&ring.wait(3));
    });
}
case!(chain_behind_an_armed_read => "
    killed:
    child: signal 9
    no cqe
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    killed:
    child: signal 9
    no cqe
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    exits:
    child: exit 0
    no cqe
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    exits:
    child: exit 0
    no cqe
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
");

/// A process ends after it has written SQEs, but before it has submitted them. The next
/// io_uring_enter(2) of another process submits them as that other process's requests.
fn unsubmitted_entries_stay(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let file = files::memory_file(b"data");
        let child = shared::child(|| {
            ring.push(nop(1));
            ring.push(read_at(file.as_raw_fd(), shared.slot(0), 4, 0, 2));
            shared.step(1);
            shared.until_step(2);
            0
        });
        shared.until_step(1);
        shared::kill(t, child);
        t.result("enter", ring.enter(8, 0, 0));
        t.sorted(&ring.wait(2));
        t.say(shared.text(0));
    });
}
case!(unsubmitted_entries_stay => "
    a mapped ring:
    child: signal 9
    enter = 2
    cqe 1: 0
    cqe 2: 4
    data
    a ring in shared memory:
    child: signal 9
    enter = 2
    cqe 1: 0
    cqe 2: 4
    data
");

/// CQEs for a process's requests stay in the CQ after that process has ended.
fn unreaped_completions_stay(t: &mut Transcript) {
    each_end(t, |t, ring, shared, end| {
        submit_and_end(t, ring, shared, end, |ring| {
            ring.push(nop(1));
            ring.push(nop(2));
        });
        t.in_order(&ring.reap());
    });
}
case!(unreaped_completions_stay => "
    killed:
    child: signal 9
    cqe 1: 0
    cqe 2: 0
    killed:
    child: signal 9
    cqe 1: 0
    cqe 2: 0
    exits:
    child: exit 0
    cqe 1: 0
    cqe 2: 0
    exits:
    child: exit 0
    cqe 1: 0
    cqe 2: 0
");
