//! The ring's descriptor, watched by poll and epoll as in an event loop.

use crate::ring::{IoUring, opcode, types};
use crate::support::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

/// Returns whether poll(2) reports the descriptor readable within `milliseconds`.
fn is_readable(ring: &IoUring, milliseconds: i32) -> bool {
    let mut watched = libc::pollfd { fd: ring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array is one `pollfd`, as its count says.
    unsafe { libc::poll(&mut watched, 1, milliseconds) == 1 }
}

const LONG: i32 = 20_000;

/// Checks that the descriptor becomes unreadable. A thread that has posted a completion may signal
/// the descriptor after the test has taken that completion, so the check is repeated.
#[track_caller]
fn becomes_unreadable(ring: &mut IoUring) {
    eventually("the descriptor is not readable", || {
        assert!(ring.completion().is_empty());
        !is_readable(ring, 0)
    });
}

#[test]
fn the_descriptor_is_readable_while_there_are_completions() {
    bounded(|| {
        let mut ring = ring();
        assert!(ring.as_raw_fd() >= 0);
        assert!(!is_readable(&ring, 0));
        submit(&mut ring, &[nop(1), nop(2)]);
        assert!(is_readable(&ring, LONG));
        assert!(is_readable(&ring, LONG), "readable until the completions are taken");
        assert_eq!(ring.completion().next().unwrap().user_data(), 1);
        assert!(is_readable(&ring, LONG), "one completion is left");
        assert_eq!(ring.completion().next().unwrap().user_data(), 2);
        assert!(!is_readable(&ring, 0));
        submit(&mut ring, &[nop(3)]);
        assert!(is_readable(&ring, LONG));
    });
}

#[test]
fn an_event_loop_that_never_enters_sees_completions() {
    bounded(|| {
        let (mut ring, (reader, writer), mut buffer) = (ring(), pipe(), [0; 4]);
        for _ in 0..20 {
            submit(&mut ring, &[read(&reader, &mut buffer)]);
            assert!(!is_readable(&ring, 0));
            put(&writer, b"data");
            assert!(is_readable(&ring, LONG));
            assert_eq!(ring.completion().next().unwrap().result(), 4);
            becomes_unreadable(&mut ring);
        }
    });
}

#[test]
fn epoll_reports_each_completion_by_level_and_by_edge() {
    bounded(|| {
        for trigger in [0, libc::EPOLLET as u32] {
            let mut ring = ring();
            // SAFETY: the call names no memory, and the descriptor is new.
            let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32 | trigger, u64: 42 };
            // SAFETY: the call only reads the structure.
            let added = unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, ring.as_raw_fd(), &mut event) };
            assert_eq!(added, 0);
            for round in 0..20 {
                submit(&mut ring, &[nop(round)]);
                // SAFETY: the array is one event, as its count says.
                assert_eq!(unsafe { libc::epoll_wait(set.as_raw_fd(), &mut event, 1, LONG) }, 1);
                assert_eq!(ring.completion().map(|entry| entry.user_data()).collect::<Vec<_>>(), [round]);
                // SAFETY: the array is one event, as its count says.
                assert_eq!(unsafe { libc::epoll_wait(set.as_raw_fd(), &mut event, 1, 0) }, 0);
            }
        }
    });
}

/// The test is an edge-triggered event loop, as in tokio-uring. Far more completions are posted
/// than the CQ holds.
#[test]
fn moving_the_backlog_into_the_cq_is_an_edge_for_epoll() {
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_cqsize(4).build(2).unwrap();
        // SAFETY: the call names no memory, and the descriptor is new.
        let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: the call only reads the structure.
        let added = unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, ring.as_raw_fd(), &mut event) };
        assert_eq!(added, 0);
        for number in 0..50 {
            submit(&mut ring, &[nop(number)]);
        }
        let mut all = Vec::new();
        while all.len() < 50 {
            // SAFETY: the array is one event, as its count says.
            let count = unsafe { libc::epoll_wait(set.as_raw_fd(), &mut event, 1, LONG) };
            assert_eq!(count, 1, "{} of 50 came", all.len());
            all.extend(ring.completion().map(|entry| entry.user_data()));
            ring.submit().unwrap();
        }
        assert!(all.into_iter().eq(0..50));
    });
}

#[test]
fn a_ring_polls_another_ring() {
    bounded(|| {
        let (mut watcher, mut watched) = (ring(), ring());
        let poll = opcode::PollAdd::new(types::Fd(watched.as_raw_fd()), libc::POLLIN as u32).build();
        submit(&mut watcher, std::slice::from_ref(&poll));
        stays_quiet(&mut watcher);
        submit(&mut watched, &[nop(1)]);
        assert_eq!(collect(&mut watcher, 1)[0].result, libc::POLLIN as i32);
        assert_eq!(result(&mut watcher, poll.clone()), libc::POLLIN as i32, "the completion is still in the CQ");
        collect(&mut watched, 1);
        submit(&mut watcher, &[poll]);
        stays_quiet(&mut watcher);
    });
}

#[test]
fn rings_that_watch_each_other_do_not_deadlock() {
    bounded(|| {
        let (mut first, mut second) = (ring(), ring());
        for round in 0..50 {
            let poll = |ring: &IoUring| {
                opcode::PollAdd::new(types::Fd(ring.as_raw_fd()), libc::POLLIN as u32).build().user_data(1)
            };
            let (to_first, to_second) = (poll(&first), poll(&second));
            submit(&mut first, &[to_second]);
            submit(&mut second, &[to_first]);
            submit(&mut first, &[nop(2)]);
            // The test takes no completion before all are posted: a poll of a ring may miss a
            // completion that is taken at once.
            eventually("both polls are done", || first.completion().len() == 2 && second.completion().len() == 1);
            let mut seen = collect(&mut second, 1);
            seen.extend(collect(&mut first, 2));
            assert!(seen.iter().all(|done| done.result >= 0), "round {round}: {seen:?}");
        }
    });
}

#[test]
fn a_close_request_for_a_rings_descriptor_fails_with_ebadf() {
    bounded(|| {
        let (mut ring, other) = (ring(), ring());
        let number = other.as_raw_fd();
        let closed = result(&mut ring, opcode::Close::new(types::Fd(number)).build());
        assert_eq!(closed, negative(libc::EBADF));
        assert_eq!(ring.submitter().register_files(&[number]).unwrap_err().raw_os_error(), Some(libc::EBADF));
        drop(other);
    });
}
