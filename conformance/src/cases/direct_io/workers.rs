//! O_DIRECT transfers that usring passes to a worker, or issues only after the submitting call.

use super::in_flight::ring_closes;
use super::{BLOCK, at, block, content, deferring_ring, length, numbered, uncache, whole};
use crate::files::Scratch;
use crate::memory::Pages;
use crate::process;
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, cancel, read_at, timeout, write_at};
use crate::transcript::Transcript;
use std::os::fd::{AsRawFd, OwnedFd};
use usring_uapi::{Timespec, io_uring as u, sqe_flags};

pub(super) fn seek(file: &OwnedFd, position: u64) {
    // SAFETY: the call touches no memory.
    unsafe { libc::lseek(file.as_raw_fd(), position as i64, libc::SEEK_SET) };
}

/// A write at the current position extends the file and moves the position. The submitting thread
/// makes the first write, and a worker the second.
fn longer_at_the_position(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(2));
    block(&mut pages, 0, 8);
    block(&mut pages, 1, 9);
    for (last, flags) in [(3, 0), (4, sqe_flags::ASYNC)] {
        seek(&file, at(last));
        t.entry(&ring.one(write_at(fd, pages.at(0), 2 * BLOCK as u32, CURRENT, 1).flagged(flags)));
        t.say(format_args!("position {} length {}", crate::files::position(&file), length(&scratch)));
    }
    t.say(format_args!("{:?}", content(&scratch)));
}
case!(longer_at_the_position => "
    cqe 1: 8192
    position 20480 length 20480
    cqe 1: 8192
    position 24576 length 24576
    [0, 1, 2, 8, 8, 9]
");

/// A linked request uses the file that its descriptor number names when the request starts, not
/// when the request is submitted.
fn number_reused_behind_a_link(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let pages = Pages::new(2);
    let (mut ends, number) = ([0; 2], file.as_raw_fd());
    // SAFETY: the array has room for both numbers.
    unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    let span = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    ring.push(read_at(number, pages.at(0), BLOCK as u32, 0, 1));
    ring.push(timeout(&span, 0, u::IORING_TIMEOUT_ETIME_SUCCESS, 2).linked());
    ring.push(read_at(number, pages.at(BLOCK), BLOCK as u32, 0, 3));
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(1));
    // SAFETY: the number belongs to `file`. From here on, `file` owns a descriptor of the pipe's
    // reading end.
    unsafe { libc::dup2(ends[0], number) };
    t.sorted(&ring.wait(1));
    // -ECANCELED shows that the read waits for the pipe by a poll. A read that waits in a worker's
    // system call would get -EINTR.
    ring.push(cancel(3, 0, 4));
    ring.submit();
    t.sorted(&ring.wait(2));
    // SAFETY: both descriptors of the pipe are open, and only this function uses them.
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
}
case!(number_reused_behind_a_link => "
    submit = 3
    cqe 1: 4096
    cqe 2: -ETIME
    cqe 3: -ECANCELED
    cqe 4: 0
");

/// io_setup(2) fails, as in a sandbox or at the limit fs.aio-max-nr. Submitted writes nevertheless
/// reach the file when the ring closes.
fn ring_closes_without_a_context(t: &mut Transcript) {
    process::deny(libc::SYS_io_setup);
    ring_closes(t);
}
case!(ring_closes_without_a_context => "
    written true
    written true
    written true
    written true
    written true
    written true
    written true
    written true
    written true
    written true
");

/// Reads and writes a whole file several times by a ring with deferred task work. In each round,
/// one call submits all transfers and waits for `wanted` of them.
fn read_and_write_deferred(t: &mut Transcript, ring: &mut Ring, scratch: &Scratch, file: &OwnedFd) {
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(32));
    for (writes, wanted) in [(false, 1), (true, 16), (false, 7), (true, 1)] {
        for index in 0..16 {
            let address = block(&mut pages, index, 100 + index as u8);
            let transfer = if writes { write_at } else { read_at };
            ring.push(transfer(fd, address, BLOCK as u32, at(index), index as u64));
        }
        t.result("submit", ring.submit_and_wait(wanted));
        t.say(format_args!("whole {}", whole(&ring.wait(16))));
    }
    t.say(format_args!("{:?}", content(scratch)));
    uncache(file);
}

fn contexts_denied(t: &mut Transcript) {
    process::deny(libc::SYS_io_setup);
    denied_from_here_on(t, None);
}
case!(contexts_denied => include_str!("contexts_denied.txt"));

/// io_setup(2) fails with EAGAIN, as if the limit fs.aio-max-nr were reached. The ring's transfers
/// still work.
fn contexts_exhausted(t: &mut Transcript) {
    process::deny_with(libc::SYS_io_setup, libc::EAGAIN);
    denied_from_here_on(t, None);
}
case!(contexts_exhausted => include_str!("contexts_exhausted.txt"));

fn submission_denied_later(t: &mut Transcript) {
    denied_from_here_on(t, Some(libc::SYS_io_submit));
}
case!(submission_denied_later => include_str!("submission_denied_later.txt"));

fn waiting_denied_later(t: &mut Transcript) {
    denied_from_here_on(t, Some(libc::SYS_io_getevents));
}
case!(waiting_denied_later => include_str!("waiting_denied_later.txt"));

/// Reads and writes in three rounds. If `call` names one of libaio's system calls, the program
/// denies that call by a seccomp filter after the first round. The ring's transfers still work.
fn denied_from_here_on(t: &mut Transcript, call: Option<i64>) {
    let mut ring = deferring_ring();
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    for round in 0..3 {
        if round == 1
            && let Some(call) = call
        {
            process::deny(call);
        }
        read_and_write_deferred(t, &mut ring, &scratch, &file);
    }
}
