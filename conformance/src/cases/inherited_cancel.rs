//! Rings that several processes use: one process cancels or changes requests of another process.

mod same_number;

use std::os::fd::AsRawFd;

use usring_uapi::{io_uring as u, opcode};

use super::sync_cancel;
use crate::cases::INTERRUPTED_RESULTS;
use crate::files;
use crate::shared::{self, Partner};
use crate::sqe::{Change, cancel, nop, poll, poll_remove, read_at, timeout, timeout_remove};
use crate::time::{self, LONG, milliseconds};
use crate::transcript::{Transcript, timed};

const ALL: u32 = u::IORING_ASYNC_CANCEL_ALL;
const ANY: u32 = u::IORING_ASYNC_CANCEL_ANY;
const FD: u32 = u::IORING_ASYNC_CANCEL_FD;

fn parent_cancels_the_childs(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let partner = Partner::start(ring, |ring| {
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
            ring.push(timeout(&LONG, 0, 0, 3));
        });
        for request in [cancel(1, 0, 11), poll_remove(2, 12), timeout_remove(3, 13), cancel(4, 0, 14)] {
            ring.push(request);
        }
        t.result("submit", ring.submit());
        t.sorted(&ring.wait(7));
        partner.leave(t);
    });
}
case!(parent_cancels_the_childs => "
    a mapped ring:
    submit = 4
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 11: 0
    cqe 12: 0
    cqe 13: 0
    cqe 14: -ENOENT
    child: exit 0
    a ring in shared memory:
    submit = 4
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 11: 0
    cqe 12: 0
    cqe 13: 0
    cqe 14: -ENOENT
    child: exit 0
");

fn child_cancels_the_parents(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
        ring.push(timeout(&LONG, 0, 0, 3));
        t.result("submit", ring.submit());
        shared::run_child(t, |t| {
            ring.push(cancel(0, ANY | ALL, 10));
            ring.submit();
            t.sorted(&ring.wait(4));
        });
    });
}
case!(child_cancels_the_parents => "
    a mapped ring:
    submit = 3
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 10: 3
    child: exit 0
    a ring in shared memory:
    submit = 3
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 10: 3
    child: exit 0
");

/// A cancel by user_data finds requests of every process. With the flag ALL, one cancel ends the
/// parent's request and the child's.
fn user_data_is_one_namespace(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let request = read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1);
        ring.push(request);
        ring.submit();
        let partner = Partner::start(ring, |ring| ring.push(request));
        ring.push(cancel(1, ALL, 10));
        ring.submit();
        t.sorted(&ring.wait(3));
        partner.leave(t);
    });
}
case!(user_data_is_one_namespace => "
    a mapped ring:
    cqe 1: -ECANCELED
    cqe 1: -ECANCELED
    cqe 10: 2
    child: exit 0
    a ring in shared memory:
    cqe 1: -ECANCELED
    cqe 1: -ECANCELED
    cqe 10: 2
    child: exit 0
");

fn any_finds_all_processes(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let request = |user_data| read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, user_data);
        ring.push(request(1));
        ring.submit();
        let partner = Partner::start(ring, |ring| ring.push(request(2)));
        let other = Partner::start(ring, |ring| {
            ring.push(request(3));
            ring.push(timeout(&LONG, 0, 0, 4));
        });
        shared::run_child(t, |_| {
            ring.push(cancel(0, ANY | ALL, 10));
            ring.submit();
        });
        t.sorted(&ring.wait(5));
        partner.leave(t);
        other.leave(t);
    });
}
case!(any_finds_all_processes => "
    a mapped ring:
    child: exit 0
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    cqe 10: 4
    child: exit 0
    child: exit 0
    a ring in shared memory:
    child: exit 0
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    cqe 10: 4
    child: exit 0
    child: exit 0
");

/// The parent cancels a child's poll by a descriptor, and prints `count` CQEs. In the child,
/// `number` becomes a duplicate of `file`, and the child polls `number`. The parent cancels with
/// the number `cancelled`, which CANCEL_FD looks up in the parent. CANCEL_FD then compares open
/// files.
fn cancel_by_number(t: &mut Transcript, number: i32, file: i32, cancelled: i32, count: usize) {
    let mut ring = shared::Kind::OwnMemory.ring(8, 0);
    let partner = Partner::start(&mut ring, |ring| {
        // SAFETY: in the child, the number is unused, or it names a descriptor that the case wants
        // to replace.
        unsafe { libc::dup2(file, number) };
        ring.push(poll(number, libc::POLLPRI, 1));
    });
    ring.push(cancel(0, FD, 2).with(|sqe| sqe.fd = cancelled));
    ring.submit();
    let mut entries = ring.wait(count);
    entries.extend(ring.reap_in_memory(0));
    t.sorted(&entries);
    partner.leave(t);
}

fn descriptor_is_the_cancellers(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let (reader, writer) = (reader.as_raw_fd(), writer.as_raw_fd());
    t.say("one number, one file:");
    cancel_by_number(t, reader, reader, reader, 2);
    t.say("another number in the child, one file:");
    cancel_by_number(t, 500, reader, reader, 2);
    t.say("one number, another file in the child:");
    cancel_by_number(t, reader, writer, reader, 1);
    t.say("the number of that file in the parent:");
    cancel_by_number(t, reader, writer, writer, 2);
    t.say("a number that only the child has:");
    cancel_by_number(t, 500, reader, 500, 1);
}
case!(descriptor_is_the_cancellers => "
    one number, one file:
    cqe 1: -ECANCELED
    cqe 2: 0
    child: exit 0
    another number in the child, one file:
    cqe 1: -ECANCELED
    cqe 2: 0
    child: exit 0
    one number, another file in the child:
    cqe 2: -ENOENT
    child: exit 0
    the number of that file in the parent:
    cqe 1: -ECANCELED
    cqe 2: 0
    child: exit 0
    a number that only the child has:
    cqe 2: -EBADF
    child: exit 0
");

fn synchronous_cancel_by_a_child(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.submit();
        shared::run_child(t, |t| {
            t.result("cancel", sync_cancel::by_user_data(ring, 1));
        });
        t.in_order(&ring.wait(1));
        shared::run_child(t, |t| t.result("again", sync_cancel::by_user_data(ring, 1)));
    });
}
case!(synchronous_cancel_by_a_child => "
    a mapped ring:
    cancel = 0
    child: exit 0
    cqe 1: -ECANCELED
    again = -ENOENT
    child: exit 0
    a ring in shared memory:
    cancel = 0
    child: exit 0
    cqe 1: -ECANCELED
    again = -ENOENT
    child: exit 0
");

/// A worker of the child executes a blocking system call for a request. The parent's cancel
/// interrupts that system call.
fn worker_of_the_child(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let fifo = files::Fifo::new();
        let partner = Partner::start(ring, |ring| {
            ring.push(fifo.open(1));
            ring.submit();
            time::long_enough_to_begin();
        });
        ring.push(cancel(1, 0, 2));
        ring.submit();
        let mut entries = ring.wait(2);
        entries.sort_by_key(|entry| entry.user_data);
        for entry in entries {
            match entry.user_data {
                1 => t.say(format_args!("cqe 1: broken off {}", INTERRUPTED_RESULTS.contains(&entry.res))),
                _ => t.entry(&entry),
            }
        }
        partner.leave(t);
    });
}
case!(worker_of_the_child => "
    a mapped ring:
    cqe 1: broken off true
    cqe 2: -EALREADY
    child: exit 0
    a ring in shared memory:
    cqe 1: broken off true
    cqe 2: -EALREADY
    child: exit 0
");

/// The parent moves the expiry of the child's timeout to an earlier time.
fn timeout_of_the_child_is_moved(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let partner = Partner::start(ring, |ring| ring.push(timeout(&LONG, 0, 0, 1)));
        let time = milliseconds(20);
        ring.push(timeout_remove(1, 2).with(|sqe| {
            sqe.off = &raw const time as u64;
            sqe.op_flags = u::IORING_TIMEOUT_UPDATE;
        }));
        ring.submit();
        t.sorted(&ring.wait(2));
        partner.leave(t);
    });
}
case!(timeout_of_the_child_is_moved => "
    a mapped ring:
    cqe 1: -ETIME
    cqe 2: 0
    child: exit 0
    a ring in shared memory:
    cqe 1: -ETIME
    cqe 2: 0
    child: exit 0
");

/// The parent changes the events for which the child's poll waits.
fn poll_of_the_child_is_changed(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let (reader, writer) = files::pipe();
        let partner = Partner::start(ring, |ring| ring.push(poll(reader.as_raw_fd(), libc::POLLPRI, 1)));
        files::put(&writer, b"x");
        t.in_order(&ring.reap_in_memory(0));
        ring.push(poll_remove(1, 2).with(|sqe| {
            sqe.len = u::IORING_POLL_UPDATE_EVENTS;
            sqe.op_flags = libc::POLLIN as u32;
        }));
        ring.submit();
        t.sorted(&ring.wait(2));
        partner.leave(t);
    });
}
case!(poll_of_the_child_is_changed => "
    a mapped ring:
    no cqe
    cqe 1: 1
    cqe 2: 0
    child: exit 0
    a ring in shared memory:
    no cqe
    cqe 1: 1
    cqe 2: 0
    child: exit 0
");

/// The parent changes the user_data of the child's poll. A second child then finds the poll by the
/// new user_data.
fn poll_of_the_child_is_renamed(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let (reader, _writer) = files::pipe();
        let partner = Partner::start(ring, |ring| ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1)));
        ring.push(poll_remove(1, 2).with(|sqe| {
            sqe.len = u::IORING_POLL_UPDATE_USER_DATA;
            sqe.off = 5;
        }));
        ring.submit();
        t.sorted(&ring.wait(1));
        shared::run_child(t, |t| {
            ring.push(poll_remove(1, 3));
            ring.push(poll_remove(5, 4));
            ring.submit();
            t.sorted(&ring.wait(3));
        });
        partner.leave(t);
    });
}
case!(poll_of_the_child_is_renamed => "
    a mapped ring:
    cqe 2: 0
    cqe 3: -ENOENT
    cqe 4: 0
    cqe 5: -ECANCELED
    child: exit 0
    child: exit 0
    a ring in shared memory:
    cqe 2: 0
    cqe 3: -ENOENT
    cqe 4: 0
    cqe 5: -ECANCELED
    child: exit 0
    child: exit 0
");

/// A cancel by the opcode TIMEOUT finds the timeouts of both processes, and no other request.
fn opcode_finds_all_processes(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        ring.push(timeout(&LONG, 0, 0, 1));
        ring.submit();
        let partner = Partner::start(ring, |ring| {
            ring.push(timeout(&LONG, 0, 0, 2));
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 3));
        });
        let by_opcode = u::IORING_ASYNC_CANCEL_OP | ALL;
        ring.push(cancel(0, by_opcode, 10).with(|sqe| sqe.len = u32::from(opcode::TIMEOUT)));
        ring.submit();
        t.sorted(&ring.wait(3));
        files::put(&writer, b"x");
        t.sorted(&ring.wait(1));
        partner.leave(t);
    });
}
case!(opcode_finds_all_processes => "
    a mapped ring:
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 10: 2
    cqe 3: 1
    child: exit 0
    a ring in shared memory:
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 10: 2
    cqe 3: 1
    child: exit 0
");

/// SIGSTOP stops the process that has submitted the requests. A cancel finds these requests at
/// once, but their CQEs come only after SIGCONT.
fn stopped_submitters_requests(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let partner = Partner::start(ring, |ring| {
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.push(timeout(&LONG, 0, 0, 2));
        });
        partner.stop();
        ring.push(cancel(1, 0, 11));
        ring.push(cancel(2, 0, 12));
        ring.submit();
        t.sorted(&ring.reap_in_memory(2));
        partner.resume();
        t.sorted(&ring.wait(2));
        partner.leave(t);
    });
}
case!(stopped_submitters_requests => "
    a mapped ring:
    cqe 11: 0
    cqe 12: 0
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    child: exit 0
    a ring in shared memory:
    cqe 11: 0
    cqe 12: 0
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    child: exit 0
");

/// A process is stopped, its requests are cancelled by another process, and then it is killed.
fn stopped_submitter_is_killed(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let partner = Partner::start(ring, |ring| {
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.push(timeout(&LONG, 0, 0, 2));
        });
        partner.stop();
        ring.push(cancel(0, ANY, 11));
        ring.submit();
        t.sorted(&ring.reap_in_memory(1));
        partner.kill(t);
        t.sorted(&ring.wait(2));
        t.entry(&ring.one(nop(12)));
    });
}
case!(stopped_submitter_is_killed => "
    a mapped ring:
    cqe 11: 2
    child: signal 9
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 12: 0
    a ring in shared memory:
    cqe 11: 2
    child: signal 9
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 12: 0
");

/// Most time, in milliseconds, that calls may take if they do not wait for the stopped process.
const PROMPT_MS: u64 = 1_000;

/// The parent cancels a request of a stopped process. The parent's further submissions do not wait
/// until that process runs again.
fn submissions_beside_a_stopped_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let partner = Partner::start(ring, |ring| {
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        });
        partner.stop();
        ring.push(cancel(1, 0, 11));
        ring.submit();
        let ((), waited) = timed(|| {
            for user_data in 100..120 {
                ring.push(nop(user_data));
                ring.submit();
                ring.reap();
            }
        });
        t.between("twenty submissions", waited, 0, PROMPT_MS);
        partner.resume();
        partner.leave(t);
    });
}
case!(submissions_beside_a_stopped_process => "
    a mapped ring:
    twenty submissions: after 0 to 1000 ms
    child: exit 0
    a ring in shared memory:
    twenty submissions: after 0 to 1000 ms
    child: exit 0
");

/// The parent cancels the request of a stopped process first, and then requests of processes that
/// run. The requests of the running processes are cancelled although the first process is still
/// stopped.
fn cancellations_beside_a_stopped_process(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let partners = [1, 2, 3].map(|number| {
            Partner::start(ring, |ring| {
                ring.push(read_at(reader.as_raw_fd(), shared.slot(number as usize), 8, 0, number));
            })
        });
        partners[0].stop();
        for number in [1, 2] {
            ring.push(cancel(number, 0, 10 + number));
            ring.submit();
        }
        let canceller = Partner::start(ring, |ring| ring.push(cancel(3, 0, 13)));
        // Request 11 cancels the stopped process's read. Its CQE may come before or after SIGCONT.
        let mut entries = Vec::new();
        let are_over = time::until(|| {
            entries.extend(ring.reap_in_memory(0));
            [2, 3, 12, 13].iter().all(|number| entries.iter().any(|entry| entry.user_data == *number))
        });
        t.say(format_args!("the others are cancelled: {are_over}"));
        partners[0].resume();
        entries.extend(ring.wait(6 - entries.len()));
        t.sorted(&entries);
        partners.into_iter().chain([canceller]).for_each(|partner| partner.leave(t));
    });
}
case!(cancellations_beside_a_stopped_process => "
    a mapped ring:
    the others are cancelled: true
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 11: 0
    cqe 12: 0
    cqe 13: 0
    child: exit 0
    child: exit 0
    child: exit 0
    child: exit 0
    a ring in shared memory:
    the others are cancelled: true
    cqe 1: -ECANCELED
    cqe 2: -ECANCELED
    cqe 3: -ECANCELED
    cqe 11: 0
    cqe 12: 0
    cqe 13: 0
    child: exit 0
    child: exit 0
    child: exit 0
    child: exit 0
");
