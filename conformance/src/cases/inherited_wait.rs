//! Rings that several processes use: a process waits in io_uring_enter(2) for completions of
//! another process's requests.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use usring_uapi::io_uring as u;

use crate::files;
use crate::process;
use crate::ring::Ring;
use crate::shared::{self, Shared};
use crate::sqe::{Change, nop, poll, read, read_at, timeout};
use crate::time::{self, milliseconds};
use crate::transcript::Transcript;

const GETEVENTS: u32 = u::IORING_ENTER_GETEVENTS;

/// Starts a child that submits a read of its own pipe into slot 0 of `shared`, and then sets step
/// 1. At step 2 the child writes to the pipe, and at step 3 it exits.
fn reader(ring: &mut Ring, shared: &Shared, force: bool) -> i32 {
    shared::child(|| {
        let (reader, writer) = files::pipe();
        let request = read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1);
        ring.catch_up();
        ring.push(if force { request.forced_async() } else { request });
        let submitted = ring.submit();
        shared.step(1);
        shared.until_step(2);
        files::put(&writer, b"later");
        shared.until_step(3);
        i32::from(submitted != 1)
    })
}

/// Starts a child that waits in io_uring_enter(2) for `count` CQEs. The child's exit status is 100
/// plus the result of that call. Returns once the child sleeps in the call.
fn waiter(ring: &Ring, shared: &Shared, count: u32) -> i32 {
    let before = shared.word(0).load(Ordering::SeqCst);
    let child = shared::child(|| {
        shared.word(0).fetch_add(1, Ordering::SeqCst);
        100 + ring.enter(0, count, GETEVENTS)
    });
    shared.until_word(0, before + 1);
    time::until_process_sleeps(child);
    child
}

/// A child's read waits for data. The parent sleeps in io_uring_enter(2) until that read completes.
fn parent_waits_for_the_childs_read(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let child = reader(ring, shared, false);
        shared.until_step(1);
        t.in_order(&ring.reap());
        // A third process sets step 2 as soon as the parent sleeps, so that the child then writes
        // the data.
        let parent = std::process::id() as i32;
        let watcher = shared::child(|| {
            shared.until_word(1, 1);
            time::until_process_sleeps(parent);
            shared.step(2);
            0
        });
        shared.word(1).store(1, Ordering::SeqCst);
        t.result("enter", ring.enter(0, 1, GETEVENTS));
        t.in_order(&ring.reap());
        t.say(shared.text(0));
        shared.step(3);
        shared::ended(t, child);
        shared::ended(t, watcher);
    });
}
case!(parent_waits_for_the_childs_read => "
    a mapped ring:
    no cqe
    enter = 0
    cqe 1: 5
    later
    child: exit 0
    child: exit 0
    a ring in shared memory:
    no cqe
    enter = 0
    cqe 1: 5
    later
    child: exit 0
    child: exit 0
");

/// A child submits a request. A second child waits for the request and reaps its CQE.
fn sibling_waits_and_reaps(t: &mut Transcript) {
    for force in [false, true] {
        shared::each_kind(t, if force { sibling_of_forced } else { sibling_of_plain });
    }
}
case!(sibling_waits_and_reaps => include_str!("inherited_wait/sibling_waits_and_reaps.txt"));

fn sibling_of_plain(t: &mut Transcript, ring: &mut Ring, shared: &Shared) {
    sibling(t, ring, shared, false);
}

fn sibling_of_forced(t: &mut Transcript, ring: &mut Ring, shared: &Shared) {
    sibling(t, ring, shared, true);
}

fn sibling(t: &mut Transcript, ring: &mut Ring, shared: &Shared, force: bool) {
    let child = reader(ring, shared, force);
    shared.until_step(1);
    let sibling = shared::child(|| {
        shared.word(1).store(1, Ordering::SeqCst);
        t.result("enter", ring.enter(0, 1, GETEVENTS));
        t.in_order(&ring.reap());
        t.say(shared.text(0));
        shared.step(3);
        0
    });
    shared.until_word(1, 1);
    time::until_process_sleeps(sibling);
    shared.step(2);
    shared::ended(t, child);
    shared::ended(t, sibling);
    t.in_order(&ring.reap());
}

/// A child has submitted a request and sleeps in some other system call. The request completes
/// nevertheless, and the other call goes on.
fn submitter_sleeps_in_another_call(t: &mut Transcript) {
    shared::each_kind(t, sleeps_in_another_call);
}
case!(submitter_sleeps_in_another_call => "
    a mapped ring:
    cqe 1: 4
    data
    child: exit 1
    a ring in shared memory:
    cqe 1: 4
    data
    child: exit 1
");

/// A child submits a read and then sleeps in read(2) of another pipe. The submitted read completes
/// during that sleep.
pub fn sleeps_in_another_call(t: &mut Transcript, ring: &mut Ring, shared: &Shared) {
    let (reader, writer) = files::pipe();
    let (stop, stops) = files::pipe();
    let child = shared::child(|| {
        ring.catch_up();
        ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
        ring.submit();
        shared.step(1);
        files::take(&stop, 1).map_or(90, |bytes| bytes.len() as i32)
    });
    shared.until_step(1);
    time::until_process_sleeps(child);
    files::put(&writer, b"data");
    t.in_order(&ring.wait(1));
    t.say(shared.text(0));
    files::put(&stops, b"x");
    shared::ended(t, child);
}

/// A child submits a read, and makes no system call until the read has completed.
fn submitter_makes_no_call(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        let child = shared::child(|| {
            ring.catch_up();
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.submit();
            shared.step(1);
            while shared.word(1).load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
            0
        });
        shared.until_step(1);
        files::put(&writer, b"data");
        t.in_order(&ring.wait(1));
        shared.word(1).store(1, Ordering::SeqCst);
        shared::ended(t, child);
    });
}
case!(submitter_makes_no_call => "
    a mapped ring:
    cqe 1: 4
    child: exit 0
    a ring in shared memory:
    cqe 1: 4
    child: exit 0
");

/// Three processes each wait for one CQE. A single CQE wakes all three.
fn one_cqe_wakes_all_waiters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let waiters = [(); 3].map(|()| waiter(ring, shared, 1));
        ring.push(nop(1));
        t.result("submit", ring.submit());
        for process in waiters {
            shared::ended(t, process);
        }
        t.in_order(&ring.reap());
    });
}
case!(one_cqe_wakes_all_waiters => "
    a mapped ring:
    submit = 1
    child: exit 100
    child: exit 100
    child: exit 100
    cqe 1: 0
    a ring in shared memory:
    submit = 1
    child: exit 100
    child: exit 100
    child: exit 100
    cqe 1: 0
");

/// Three children each wait for one CQE. The CQE of a fourth child's request wakes all three.
fn childs_cqe_wakes_all_waiters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let child = reader(ring, shared, false);
        shared.until_step(1);
        let waiters = [(); 3].map(|()| waiter(ring, shared, 1));
        shared.step(2);
        for process in waiters {
            shared::ended(t, process);
        }
        t.in_order(&ring.reap());
        shared.step(3);
        shared::ended(t, child);
    });
}
case!(childs_cqe_wakes_all_waiters => "
    a mapped ring:
    child: exit 100
    child: exit 100
    child: exit 100
    cqe 1: 5
    child: exit 0
    a ring in shared memory:
    child: exit 100
    child: exit 100
    child: exit 100
    cqe 1: 5
    child: exit 0
");

/// A process waits for two CQEs. All CQEs that are posted during its call count, even those that
/// another process has already reaped.
fn waiter_counts_reaped_cqes(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let child = waiter(ring, shared, 2);
        t.entry(&ring.one(nop(1)));
        time::long_enough_to_notice();
        t.say(format_args!("still waits {}", time::still_sleeps(child)));
        t.entry(&ring.one(nop(2)));
        shared::ended(t, child);
    });
}
case!(waiter_counts_reaped_cqes => "
    a mapped ring:
    cqe 1: 0
    still waits true
    cqe 2: 0
    child: exit 100
    a ring in shared memory:
    cqe 1: 0
    still waits true
    cqe 2: 0
    child: exit 100
");

/// When a wait begins, CQEs that are already in the CQ count for it, even those of other processes'
/// requests.
fn waiter_counts_cqes_in_the_queue(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        ring.push(nop(1));
        ring.submit();
        shared::run_child(t, |t| t.result("for one", ring.enter(0, 1, GETEVENTS)));
        let child = waiter(ring, shared, 2);
        ring.push(nop(2));
        ring.submit();
        shared::ended(t, child);
        t.in_order(&ring.reap());
    });
}
case!(waiter_counts_cqes_in_the_queue => "
    a mapped ring:
    for one = 0
    child: exit 0
    child: exit 100
    cqe 1: 0
    cqe 2: 0
    a ring in shared memory:
    for one = 0
    child: exit 0
    child: exit 100
    cqe 1: 0
    cqe 2: 0
");

/// Two processes wait for different numbers of CQEs. The wait for fewer CQEs has begun first, and
/// ends first.
fn each_waiter_has_its_count(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let one = waiter(ring, shared, 1);
        let two = waiter(ring, shared, 2);
        ring.push(nop(1));
        ring.submit();
        shared::ended(t, one);
        t.say(format_args!("the other waits {}", time::still_sleeps(two)));
        ring.push(nop(2));
        ring.submit();
        shared::ended(t, two);
    });
}
case!(each_waiter_has_its_count => "
    a mapped ring:
    child: exit 100
    the other waits true
    child: exit 100
    a ring in shared memory:
    child: exit 100
    the other waits true
    child: exit 100
");

/// The kernel checks waiters in the order in which they began to wait, and stops at the first
/// waiter that needs more CQEs. Here a waiter for two CQEs began before a waiter for one. So after
/// one CQE, both sleep on.
fn waiter_behind_a_larger_count(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let two = waiter(ring, shared, 2);
        let one = waiter(ring, shared, 1);
        ring.push(nop(1));
        ring.submit();
        time::long_enough_to_notice();
        for process in [two, one] {
            t.say(format_args!("waits {}", time::still_sleeps(process)));
        }
        ring.push(nop(2));
        ring.submit();
        shared::ended(t, two);
        shared::ended(t, one);
    });
}
case!(waiter_behind_a_larger_count => "
    a mapped ring:
    waits true
    waits true
    child: exit 100
    child: exit 100
    a ring in shared memory:
    waits true
    waits true
    child: exit 100
    child: exit 100
", usring => "
    a mapped ring:
    waits true
    waits false
    child: exit 100
    child: exit 100
    a ring in shared memory:
    waits true
    waits false
    child: exit 100
    child: exit 100
", because
    "a waiter returns once it has enough CQEs, whatever the waiters before it need");

/// A process waits with a timeout for another process's request. The wait returns -ETIME while the
/// request is in flight.
fn wait_with_a_limit(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let child = reader(ring, shared, false);
        shared.until_step(1);
        t.result("for 20 ms", ring.enter_for(0, 1, Duration::from_millis(20)));
        shared.step(2);
        t.result("for 30 s", ring.enter_for(0, 1, Duration::from_secs(30)));
        t.in_order(&ring.reap());
        shared.step(3);
        shared::ended(t, child);
    });
}
case!(wait_with_a_limit => "
    a mapped ring:
    for 20 ms = -ETIME
    for 30 s = 0
    cqe 1: 5
    child: exit 0
    a ring in shared memory:
    for 20 ms = -ETIME
    for 30 s = 0
    cqe 1: 5
    child: exit 0
");

/// The expiry of a TIMEOUT request wakes the waiters of all processes, even waiters that need more
/// CQEs.
fn timeout_wakes_all_waiters(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let waiters = [5, 6].map(|count| waiter(ring, shared, count));
        t.entry(&ring.one(nop(1)));
        time::long_enough_to_notice();
        t.say(format_args!("still waits {}", time::still_sleeps(waiters[0])));
        let time = milliseconds(5);
        t.entry(&ring.one(timeout(&time, 0, 0, 2)));
        for process in waiters {
            shared::ended(t, process);
        }
    });
}
case!(timeout_wakes_all_waiters => "
    a mapped ring:
    cqe 1: 0
    still waits true
    cqe 2: -ETIME
    child: exit 100
    child: exit 100
    a ring in shared memory:
    cqe 1: 0
    still waits true
    cqe 2: -ETIME
    child: exit 100
    child: exit 100
");

/// The parent waits for two CQEs. They come from a poll and from a timeout of a child.
fn parent_waits_for_a_poll_and_a_timeout(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let child = shared::child(|| {
            let (reader, writer) = files::pipe();
            let time = milliseconds(30);
            ring.catch_up();
            ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 1));
            ring.push(timeout(&time, 0, 0, 2));
            ring.submit();
            shared.step(1);
            files::put(&writer, b"x");
            shared.until_step(2);
            0
        });
        shared.until_step(1);
        t.sorted(&ring.wait(2));
        shared.step(2);
        shared::ended(t, child);
    });
}
case!(parent_waits_for_a_poll_and_a_timeout => "
    a mapped ring:
    cqe 1: 1
    cqe 2: -ETIME
    child: exit 0
    a ring in shared memory:
    cqe 1: 1
    cqe 2: -ETIME
    child: exit 0
");

/// The parent submits a request and waits in one call. The wait ends by the CQE of a child's
/// request.
fn parent_submits_and_waits_for_the_childs(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, _writer) = files::pipe();
        let mut byte = [0u8; 1];
        let child = shared::child(|| {
            shared.until_step(1);
            ring.catch_up();
            ring.push(nop(7));
            i32::from(ring.submit() != 1)
        });
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
        let count = ring.forget_pending();
        let parent = std::process::id() as i32;
        let watcher = shared::child(|| {
            shared.until_word(1, 1);
            time::until_process_sleeps(parent);
            shared.step(1);
            0
        });
        shared.word(1).store(1, Ordering::SeqCst);
        t.result("submit and wait", ring.enter(count, 1, GETEVENTS));
        t.in_order(&ring.reap());
        shared::ended(t, watcher);
        shared::ended(t, child);
    });
}
case!(parent_submits_and_waits_for_the_childs => "
    a mapped ring:
    submit and wait = 1
    cqe 7: 0
    child: exit 0
    child: exit 0
    a ring in shared memory:
    submit and wait = 1
    cqe 7: 0
    child: exit 0
    child: exit 0
");

/// Several processes wait on the ring. A signal ends only the wait of the process that handles it.
fn signal_ends_one_wait(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let interrupted = shared::child(|| {
            catch(libc::SIGUSR1);
            shared.word(0).fetch_add(1, Ordering::SeqCst);
            let answer = ring.enter(0, 1, GETEVENTS);
            i32::from(answer != -libc::EINTR)
        });
        shared.until_word(0, 1);
        time::until_process_sleeps(interrupted);
        let other = waiter(ring, shared, 1);
        shared::signal(interrupted, libc::SIGUSR1);
        shared::ended(t, interrupted);
        t.say(format_args!("the other waits {}", time::still_sleeps(other)));
        t.entry(&ring.one(nop(1)));
        shared::ended(t, other);
    });
}
case!(signal_ends_one_wait => "
    a mapped ring:
    child: exit 0
    the other waits true
    cqe 1: 0
    child: exit 100
    a ring in shared memory:
    child: exit 0
    the other waits true
    cqe 1: 0
    child: exit 100
");

/// Installs a handler for `signal` that does nothing. It has no SA_RESTART, so that the signal
/// interrupts a wait.
fn catch(signal: i32) {
    extern "C" fn nothing(_: i32) {}
    let mut action: libc::sigaction = crate::memory::zeroed();
    action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
    // SAFETY: the handler touches nothing.
    assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
}

/// A process is stopped by SIGSTOP. If a request has to complete in that process, it completes only
/// after SIGCONT.
fn stopped_submitter_completes_later(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let (reader, writer) = files::pipe();
        let child = shared::child(|| {
            ring.catch_up();
            ring.push(read_at(reader.as_raw_fd(), shared.slot(0), 8, 0, 1));
            ring.submit();
            shared.step(1);
            shared.until_step(2);
            0
        });
        shared.until_step(1);
        shared::signal(child, libc::SIGSTOP);
        t.say(format_args!("stopped {}", time::until(|| time::process_state(child) == Some('T'))));
        files::put(&writer, b"data");
        t.result("for 50 ms", ring.enter_for(0, 1, Duration::from_millis(50)));
        t.in_order(&ring.reap());
        shared::signal(child, libc::SIGCONT);
        t.in_order(&ring.wait(1));
        t.say(shared.text(0));
        shared.step(2);
        t.say(format_args!("child: {}", process::ending(child)));
    });
}
case!(stopped_submitter_completes_later => "
    a mapped ring:
    stopped true
    for 50 ms = -ETIME
    no cqe
    cqe 1: 4
    data
    child: exit 0
    a ring in shared memory:
    stopped true
    for 50 ms = -ETIME
    no cqe
    cqe 1: 4
    data
    child: exit 0
");
