//! Rings that several processes use: children inherit a ring and submit requests to it. The
//! requests use the children's own descriptors and memory.
//!
//! Neighbours: `inherited_wait` waits for completions of other processes, and `inherited_close`
//! closes rings. In `inherited_death`, processes end while their requests are in flight.

mod operations;
mod rounds;
mod surroundings;

use std::os::fd::AsRawFd;

use crate::files;
use crate::process;
use crate::ring::Ring;
use crate::shared::{self, Shared};
use crate::sqe::{nop, read, read_at, readv, vector, write_at, writev};
use crate::transcript::Transcript;

/// A child that has inherited the ring opens a file. Its requests transfer data between that file
/// and memory that the child shares with its parent.
fn child_reads_and_writes(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        shared::run_child(t, |t| {
            let file = files::memory_file(b"of the child");
            let fd = file.as_raw_fd();
            t.entry(&ring.one(read_at(fd, shared.slot(0), 12, 0, 1)));
            t.entry(&ring.one(write_at(fd, shared.slot(0), 6, 12, 2)));
            let vectors = [vector(shared.slot(1), 3), vector(shared.slot(2), 64)];
            t.entry(&ring.one(readv(fd, &vectors, 0, 3)));
            let vectors = [vector(shared.slot(1), 3), vector(shared.slot(0), 2)];
            t.entry(&ring.one(writev(fd, &vectors, 0, 4)));
            t.say(files::text(&file));
        });
        for slot in 0..3 {
            t.say(shared.text(slot));
        }
    });
}
case!(child_reads_and_writes => "
    a mapped ring:
    cqe 1: 12
    cqe 2: 6
    cqe 3: 18
    cqe 4: 5
    of ofe childof the
    child: exit 0
    of the child
    of\x20
    the childof the
    a ring in shared memory:
    cqe 1: 12
    cqe 2: 6
    cqe 3: 18
    cqe 4: 5
    of ofe childof the
    child: exit 0
    of the child
    of\x20
    the childof the
");

/// The buffer lies in private memory, of which parent and child have separate copies. A request
/// fills the copy of the process that submits it.
fn private_buffer_is_the_submitters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let file = files::memory_file(b"data");
        let mut buffer = *b"----";
        shared::run_child(t, |t| {
            t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 1)));
            t.say(format_args!("in the child {}", String::from_utf8_lossy(&buffer)));
        });
        t.say(format_args!("in the parent {}", String::from_utf8_lossy(&buffer)));
        ring.catch_up();
        t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 0, 2)));
        t.say(format_args!("in the parent {}", String::from_utf8_lossy(&buffer)));
    });
}
case!(private_buffer_is_the_submitters => "
    a mapped ring:
    cqe 1: 4
    in the child data
    child: exit 0
    in the parent ----
    cqe 2: 4
    in the parent data
    a ring in shared memory:
    cqe 1: 4
    in the child data
    child: exit 0
    in the parent ----
    cqe 2: 4
    in the parent data
");

/// A descriptor number names different files in parent and child. A request uses the file of the
/// process that submits it.
fn number_is_the_submitters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let file = files::memory_file(b"of the parent");
        let fd = file.as_raw_fd();
        shared::run_child(t, |t| {
            let other = files::memory_file(b"of the child");
            // SAFETY: both descriptors are open and belong to this case. dup2(2) replaces the
            // child's `fd` only.
            unsafe { libc::dup2(other.as_raw_fd(), fd) };
            t.entry(&ring.one(read_at(fd, shared.slot(0), 64, 0, 1)));
        });
        ring.catch_up();
        t.entry(&ring.one(read_at(fd, shared.slot(1), 64, 0, 2)));
        t.say(shared.text(0));
        t.say(shared.text(1));
    });
}
case!(number_is_the_submitters => "
    a mapped ring:
    cqe 1: 12
    child: exit 0
    cqe 2: 13
    of the child
    of the parent
    a ring in shared memory:
    cqe 1: 12
    child: exit 0
    cqe 2: 13
    of the child
    of the parent
");

/// The parent writes an SQE, and the child submits it by io_uring_enter(2). So the request uses the
/// child's descriptors and memory.
fn submitter_is_the_process_that_enters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let file = files::memory_file(b"of the parent");
        let fd = file.as_raw_fd();
        let mut buffer = [b'-'; 13];
        ring.push(read(fd, &mut buffer, 0, 1));
        ring.forget_pending();
        shared::run_child(t, |t| {
            let other = files::memory_file(b"of the child!");
            // SAFETY: both descriptors are open and belong to this case. dup2(2) replaces the
            // child's `fd` only.
            unsafe { libc::dup2(other.as_raw_fd(), fd) };
            t.result("submit", ring.enter(1, 0, 0));
            t.in_order(&ring.wait(1));
            t.say(format_args!("in the child {}", String::from_utf8_lossy(&buffer)));
        });
        t.say(format_args!("in the parent {}", String::from_utf8_lossy(&buffer)));
        t.result("submit again", ring.enter(1, 0, 0));
    });
}
case!(submitter_is_the_process_that_enters => "
    a mapped ring:
    submit = 1
    cqe 1: 13
    in the child of the child!
    child: exit 0
    in the parent -------------
    submit again = 0
    a ring in shared memory:
    submit = 1
    cqe 1: 13
    in the child of the child!
    child: exit 0
    in the parent -------------
    submit again = 0
");

/// The child has closed a descriptor. A child's request with that number gets -EBADF, and a
/// parent's request with it succeeds.
fn closed_number_fails_for_its_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let file = files::memory_file(b"data");
        let fd = file.as_raw_fd();
        shared::run_child(t, |t| {
            crate::syscalls::close(fd);
            t.entry(&ring.one(read_at(fd, shared.slot(0), 4, 0, 1)));
        });
        ring.catch_up();
        t.entry(&ring.one(read_at(fd, shared.slot(0), 4, 0, 2)));
    });
}
case!(closed_number_fails_for_its_process => "
    a mapped ring:
    cqe 1: -EBADF
    child: exit 0
    cqe 2: 4
    a ring in shared memory:
    cqe 1: -EBADF
    child: exit 0
    cqe 2: 4
");

fn works(t: &mut Transcript, ring: &mut Ring, who: &str, first: u64) {
    ring.catch_up();
    let entries = ring.run(&[nop(first), nop(first + 1)]);
    let right = entries.len() == 2 && entries.iter().all(|entry| entry.res == 0);
    t.say(format_args!("{who}: works {right}"));
}

fn fork_before_the_first_use(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        shared::run_child(t, |t| works(t, ring, "child", 1));
        works(t, ring, "parent", 3);
    });
}
case!(fork_before_the_first_use => "
    a mapped ring:
    child: works true
    child: exit 0
    parent: works true
    a ring in shared memory:
    child: works true
    child: exit 0
    parent: works true
");

fn fork_after_use(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        works(t, ring, "parent", 1);
        shared::run_child(t, |t| works(t, ring, "child", 3));
        works(t, ring, "parent", 5);
        shared::run_child(t, |t| works(t, ring, "second child", 7));
        works(t, ring, "parent", 9);
    });
}
case!(fork_after_use => "
    a mapped ring:
    parent: works true
    child: works true
    child: exit 0
    parent: works true
    second child: works true
    child: exit 0
    parent: works true
    a ring in shared memory:
    parent: works true
    child: works true
    child: exit 0
    parent: works true
    second child: works true
    child: exit 0
    parent: works true
");

/// All processes share the CQ: a child reaps the CQE of a parent's request, and the parent reaps
/// the CQE of a child's request.
fn cqes_are_the_rings(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        ring.push(nop(1));
        t.result("submit", ring.submit());
        shared::run_child(t, |t| {
            t.in_order(&ring.reap());
            ring.push(nop(2));
            t.result("submit in the child", ring.submit());
        });
        t.in_order(&ring.reap());
    });
}
case!(cqes_are_the_rings => "
    a mapped ring:
    submit = 1
    cqe 1: 0
    submit in the child = 1
    child: exit 0
    cqe 2: 0
    a ring in shared memory:
    submit = 1
    cqe 1: 0
    submit in the child = 1
    child: exit 0
    cqe 2: 0
");

/// A request is in flight at the fork. It still belongs to the parent, so it fills the parent's
/// copy of the buffer.
fn request_before_the_fork_is_the_parents(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let (reader, writer) = files::pipe();
        let mut buffer = [b'-'; 4];
        ring.push(read(reader.as_raw_fd(), &mut buffer, 0, 1));
        t.result("submit", ring.submit());
        shared::run_child(t, |t| {
            t.entry(&ring.one(nop(2)));
            files::put(&writer, b"data");
            t.in_order(&ring.wait(1));
            t.say(format_args!("in the child {}", String::from_utf8_lossy(&buffer)));
        });
        t.say(format_args!("in the parent {}", String::from_utf8_lossy(&buffer)));
    });
}
case!(request_before_the_fork_is_the_parents => "
    a mapped ring:
    submit = 1
    cqe 2: 0
    cqe 1: 4
    in the child ----
    child: exit 0
    in the parent data
    a ring in shared memory:
    submit = 1
    cqe 2: 0
    cqe 1: 4
    in the child ----
    child: exit 0
    in the parent data
");

/// Parent and children call io_uring_enter(2) in turn. Each call submits at most the requested
/// number of SQEs. The next call begins with the first SQE that is left.
fn enter_takes_its_count(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        for user_data in 1..=5 {
            ring.push(nop(user_data));
        }
        ring.forget_pending();
        shared::run_child(t, |t| t.result("two of five, in the child", ring.enter(2, 0, 0)));
        t.result("two", ring.enter(2, 0, 0));
        shared::run_child(t, |t| t.result("eight, in another child", ring.enter(8, 0, 0)));
        t.result("one more", ring.enter(1, 0, 0));
        t.in_order(&ring.reap());
    });
}
case!(enter_takes_its_count => "
    a mapped ring:
    two of five, in the child = 2
    child: exit 0
    two = 2
    eight, in another child = 1
    child: exit 0
    one more = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    a ring in shared memory:
    two of five, in the child = 2
    child: exit 0
    two = 2
    eight, in another child = 1
    child: exit 0
    one more = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
");

/// The process that made the ring ends. Its child can use the ring afterwards.
fn child_goes_on_after_the_creator(t: &mut Transcript) {
    // SAFETY: prctl(2) touches no memory. This process becomes the new parent of its orphaned
    // descendants.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    for kind in [shared::Kind::Mapped, shared::Kind::OwnMemory] {
        let shared = Shared::new();
        let creator = shared::child(|| {
            let mut ring = kind.ring(8, 0);
            works(t, &mut ring, "creator", 1);
            let child = shared::child(|| {
                shared.until_step(1);
                works(t, &mut ring, "child", 3);
                shared::run_child(t, |t| works(t, &mut ring, "grandchild", 5));
                works(t, &mut ring, "child", 7);
                0
            });
            shared.word(0).store(child as u32, std::sync::atomic::Ordering::SeqCst);
            std::mem::forget(ring);
            0
        });
        t.say(format_args!("creator: {}", process::ending(creator)));
        shared.step(1);
        shared::ended(t, shared.word(0).load(std::sync::atomic::Ordering::SeqCst) as i32);
    }
}
case!(child_goes_on_after_the_creator => "
    creator: works true
    creator: exit 0
    child: works true
    grandchild: works true
    child: exit 0
    child: works true
    child: exit 0
    creator: works true
    creator: exit 0
    child: works true
    grandchild: works true
    child: exit 0
    child: works true
    child: exit 0
");

/// Five processes use one ring. Each process but the last forks the next one. Each process uses the
/// ring before it forks, and again after its child's end.
fn five_generations(t: &mut Transcript) {
    fn generation(t: &mut Transcript, ring: &mut Ring, number: u64) {
        works(t, ring, &format!("generation {number}"), number);
        if number < 5 {
            shared::run_child(t, |t| generation(t, ring, number + 1));
            works(t, ring, &format!("generation {number} again"), number);
        }
    }
    let mut ring = shared::Kind::OwnMemory.ring(8, 0);
    generation(t, &mut ring, 1);
}
case!(five_generations => "
    generation 1: works true
    generation 2: works true
    generation 3: works true
    generation 4: works true
    generation 5: works true
    child: exit 0
    generation 4 again: works true
    child: exit 0
    generation 3 again: works true
    child: exit 0
    generation 2 again: works true
    child: exit 0
    generation 1 again: works true
");
