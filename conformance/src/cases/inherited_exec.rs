//! Rings that several processes use: one of these processes calls execve(2).

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use super::exec::become_child;
use crate::cases::INTERRUPTED_RESULTS;
use crate::files;
use crate::ring::Ring;
use crate::shared::{self, Shared};
use crate::sqe::{nop, poll, read_at, timeout};
use crate::time::{self, LONG};
use crate::transcript::Transcript;

/// Starts a child that submits the requests of `push`, and then executes this program again. The
/// executed program writes a byte to the pipe `begun`, to announce that it runs. It ends once the
/// case has closed the writing end of the pipe `end`.
fn submits_and_executes(ring: &mut Ring, begun: i32, end: i32, push: impl FnOnce(&mut Ring)) -> i32 {
    let shared = Shared::new();
    let child = shared::child(|| {
        push(ring);
        ring.submit();
        shared.step(1);
        keep_on_exec(begun);
        keep_on_exec(end);
        become_child("linger", &format!("{begun} {end}"))
    });
    shared.until_step(1);
    child
}

/// Forks a child that executes `conformance child NAME ARGUMENT`. Waits until the child ends.
fn executes(t: &mut Transcript, name: &str, argument: &str) {
    let child = shared::child(|| become_child(name, argument));
    shared::ended(t, child);
}

fn keep_on_exec(fd: i32) {
    // SAFETY: the call touches no memory.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
}

/// execve(2) cancels all requests of its process at once, while the executed program still runs.
fn requests_are_cancelled(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let fifo = files::Fifo::new();
        let (begun, begins) = files::pipe();
        let (end, ends) = files::pipe();
        let child = submits_and_executes(ring, begins.as_raw_fd(), end.as_raw_fd(), |ring| {
            crate::syscalls::close(ends.as_raw_fd());
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
            ring.push(timeout(&LONG, 0, 0, 3));
            ring.push(fifo.open(4));
            ring.submit();
            time::long_enough_to_begin();
        });
        t.say(format_args!("the program runs {}", files::take(&begun, 1).is_ok()));
        let mut entries = ring.wait(4);
        entries.sort_by_key(|entry| entry.user_data);
        for entry in entries {
            match entry.user_data {
                4 => t.say(format_args!("cqe 4: broken off {}", INTERRUPTED_RESULTS.contains(&entry.res))),
                _ => t.entry(&entry),
            }
        }
        drop(ends);
        shared::ended(t, child);
        ring.catch_up();
        t.entry(&ring.one(nop(5)));
    });
}
case!(requests_are_cancelled => "
    a mapped ring:
    the program runs true
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: broken off true
    child: exit 0
    cqe 5: 0
    a ring in shared memory:
    the program runs true
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: broken off true
    child: exit 0
    cqe 5: 0
");

/// execve(2) in one process leaves the requests of the other processes in flight.
fn requests_of_others_stay(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.submit();
        executes(t, "nop", "");
        t.in_order(&ring.reap_in_memory(0));
        files::put(&writer, b"data");
        t.in_order(&ring.wait(1));
        t.say(shared.text(0));
    });
}
case!(requests_of_others_stay => "
    a mapped ring:
    child: exit 0
    no cqe
    cqe 1: 4
    data
    a ring in shared memory:
    child: exit 0
    no cqe
    cqe 1: 4
    data
");

/// The process that made the ring calls execve(2). Its child can use the ring afterwards.
fn creator_executes(t: &mut Transcript) {
    // SAFETY: prctl(2) touches no memory. Orphaned descendants get this process as their parent.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    for kind in [shared::Kind::Mapped, shared::Kind::OwnMemory] {
        let shared = Shared::new();
        let (reader, writer) = files::pipe();
        let creator = shared::child(|| {
            let mut ring = kind.ring(8, 0);
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.submit();
            let child = shared::child(|| {
                shared.until_step(1);
                t.in_order(&ring.wait(1));
                ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 2));
                ring.submit();
                files::put(&writer, b"data");
                t.in_order(&ring.wait(1));
                0
            });
            shared.word(0).store(child as u32, Ordering::SeqCst);
            become_child("nop", "")
        });
        shared::ended(t, creator);
        shared.step(1);
        shared::ended(t, shared.word(0).load(Ordering::SeqCst) as i32);
        t.say(shared.text(0));
    }
}
case!(creator_executes => "
    child: exit 0
    cqe 1: -ECANCELED
    cqe 2: 4
    child: exit 0
    data
    child: exit 0
    cqe 1: -ECANCELED
    cqe 2: 4
    child: exit 0
    data
");

/// Submits 16 polls in each of `ROUNDS` rounds. While the polls are in flight, execve(2) fails
/// because its file is missing. Then makes the polls complete.
fn fail_to_execute(ring: &mut Ring) {
    const ROUNDS: usize = 70;
    const HALF: u64 = 8;
    for _ in 0..ROUNDS {
        let (reader, writer) = files::pipe();
        for _ in 0..2 {
            (0..HALF).for_each(|number| ring.push(poll(reader.as_raw_fd(), libc::POLLIN, number)));
            ring.submit();
        }
        let arguments = [std::ptr::null()];
        // SAFETY: the path is a C string. The array of arguments ends with null.
        assert_eq!(unsafe { libc::execv(c"/missing/file".as_ptr(), arguments.as_ptr()) }, -1);
        files::put(&writer, b"x");
        ring.wait(2 * HALF as usize);
    }
}

/// execve(2) fails 70 times in the process that made the ring, each time with other polls in
/// flight. These are more than 1,024 in total. Then the process is killed, and its child gets the
/// CQE of the killed process's last read.
fn creator_failed_to_execute(t: &mut Transcript) {
    // SAFETY: prctl(2) touches no memory. Orphaned descendants get this process as their parent.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    for kind in [shared::Kind::Mapped, shared::Kind::OwnMemory] {
        let shared = Shared::new();
        let (reader, writer) = files::pipe();
        let creator = shared::child(|| {
            let mut ring = kind.ring(8, 0);
            fail_to_execute(&mut ring);
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 21));
            ring.submit();
            let child = shared::child(|| {
                t.entry(&ring.one(nop(22)));
                shared.step(1);
                shared.until_step(2);
                files::put(&writer, b"data");
                t.in_order(&ring.wait(1));
                0
            });
            shared.word(0).store(child as u32, Ordering::SeqCst);
            shared.until_step(3);
            0
        });
        shared.until_word(0, 1);
        shared.until_step(1);
        shared::kill(t, creator);
        shared.step(2);
        shared::ended(t, shared.word(0).load(Ordering::SeqCst) as i32);
    }
}
case!(creator_failed_to_execute => "
    cqe 22: 0
    child: signal 9
    cqe 21: -ECANCELED
    child: exit 0
    cqe 22: 0
    child: signal 9
    cqe 21: -ECANCELED
    child: exit 0
");

/// An executed program inherits a ring whose descriptor has no close-on-exec flag. It maps the ring
/// and submits an SQE that was written before the execve(2). The parent reaps the CQE.
fn ring_reaches_the_program(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    keep_on_exec(ring.fd);
    let number = ring.fd.to_string();
    ring.push(nop(9));
    executes(t, "map", &number);
    t.in_order(&ring.reap());
    ring.catch_up();
    t.entry(&ring.one(nop(1)));
}
case!(ring_reaches_the_program => "
    child: exit 0
    cqe 9: 0
    cqe 1: 0
");
