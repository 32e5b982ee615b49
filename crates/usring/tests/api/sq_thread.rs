//! Rings with an SQ thread.

use crate::ring::{EnterFlags, IoUring, opcode, squeue, types};
use crate::support::*;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Returns a ring whose SQ thread sleeps after `idle` milliseconds without work.
fn polled(entries: u32, idle: u32) -> IoUring {
    IoUring::builder().setup_sqpoll(idle).build(entries).unwrap()
}

/// Pushes requests, and wakes the SQ thread if it sleeps. Returns before the requests are
/// submitted.
#[track_caller]
fn offer(ring: &mut IoUring, entries: &[squeue::Entry]) {
    push(ring, entries);
    ring.submit().unwrap();
}

#[test]
fn pushed_requests_complete_without_a_system_call() {
    bounded(|| {
        let mut ring = polled(16, 10_000);
        offer(&mut ring, &[nop(1)]);
        assert_eq!(collect(&mut ring, 1)[0].user_data, 1);
        push(&mut ring, &[nop(2), nop(3)]);
        eventually("the completions are seen in memory", || ring.completion().len() == 2);
        assert!(ring.submission().is_empty());
        assert!(!ring.submission().need_wakeup());
    });
}

#[test]
fn the_thread_sleeps_when_it_is_idle_and_is_woken() {
    bounded(|| {
        let mut ring = polled(16, 10);
        for round in 0..5 {
            eventually("a pushed request stays in the SQ", || {
                eventually("the thread sleeps", || ring.submission().need_wakeup());
                push(&mut ring, &[nop(round)]);
                let sleeps = is_left_alone(&mut ring);
                ring.submit().unwrap();
                assert_eq!(collect(&mut ring, 1)[0].user_data, round);
                sleeps
            });
        }
    });
}

/// Returns whether the SQ thread sleeps, in which case a pushed request stays in the SQ. (An SQ
/// thread that is about to sleep checks the SQ once more, so it may still take the request.)
fn is_left_alone(ring: &mut IoUring) -> bool {
    // An SQ thread that is awake takes the pushed request within this time.
    std::thread::sleep(Duration::from_millis(1));
    // SAFETY: the call has no argument.
    unsafe { ring.submitter().enter::<u8>(0, 0, EnterFlags::GETEVENTS.bits(), None).unwrap() };
    ring.completion().is_empty() && ring.submission().len() == 1
}

#[test]
fn no_wakeup_is_lost_while_the_thread_goes_to_sleep() {
    bounded(|| {
        let mut ring = polled(16, 1);
        for round in 0..400u64 {
            // The pause is about as long as the idle time, so that some pushes come just when the
            // SQ thread is about to sleep.
            std::thread::sleep(Duration::from_micros(700 + round * 7 % 700));
            offer(&mut ring, &[nop(round)]);
            assert_eq!(collect(&mut ring, 1)[0].user_data, round);
        }
    });
}

#[test]
fn enter_submits_nothing_itself_and_returns_the_requested_count() {
    bounded(|| {
        let mut ring = polled(16, 10_000);
        push(&mut ring, &[nop(1), nop(2)]);
        // SAFETY: the call has no argument.
        let enter = |ring: &IoUring, count, flags: EnterFlags| unsafe {
            ring.submitter().enter::<u8>(count, 0, flags.bits(), None).unwrap()
        };
        assert_eq!(enter(&ring, 7, EnterFlags::SQ_WAKEUP), 7, "the number that enter was asked to submit");
        assert_eq!(enter(&ring, 0, EnterFlags::empty()), 0);
        assert_eq!(collect(&mut ring, 2).len(), 2);
    });
}

#[test]
fn many_requests_pass_through_a_small_queue() {
    bounded(|| {
        let mut ring = polled(8, 1000);
        let (mut pushed, mut seen) = (0u64, vec![false; 4_000]);
        let mut left = seen.len();
        while left > 0 {
            while pushed < seen.len() as u64 {
                // SAFETY: a NOP names no memory.
                if unsafe { ring.submission().push(&nop(pushed)) }.is_err() {
                    break;
                }
                pushed += 1;
            }
            ring.submit().unwrap();
            for entry in ring.completion() {
                assert!(!std::mem::replace(&mut seen[entry.user_data() as usize], true));
                left -= 1;
            }
            std::thread::yield_now();
        }
    });
}

#[test]
fn sq_wait_waits_for_free_sq_entries() {
    bounded(|| {
        let mut ring = polled(4, 10_000);
        for round in 0..200 {
            push(&mut ring, &[nop(round)]);
            ring.submit().unwrap();
            if ring.submission().is_full() {
                ring.submitter().squeue_wait().unwrap();
            }
            assert!(!ring.submission().is_full());
            ring.completion().for_each(drop);
        }
    });
}

#[test]
fn waiting_requests_of_a_polled_ring_complete() {
    bounded(|| {
        let mut ring = polled(16, 20);
        let (reader, writer) = pipe();
        let (mut buffer, time) = ([0; 4], timespec(Duration::from_millis(100)));
        offer(&mut ring, &[read(&reader, &mut buffer).user_data(1)]);
        offer(&mut ring, &[opcode::Timeout::new(&time).build().user_data(2)]);
        eventually("the thread sleeps", || ring.submission().need_wakeup());
        put(&writer, b"data");
        let mut done = collect(&mut ring, 2);
        done.sort_by_key(|done| done.user_data);
        assert_eq!(done.iter().map(|done| done.result).collect::<Vec<_>>(), [4, negative(libc::ETIME)]);
    });
}

#[test]
fn files_are_read_and_written_by_the_thread() {
    bounded(|| {
        let mut ring = polled(64, 100);
        let file = file_with(b"");
        let target = types::Fd(file.as_raw_fd());
        let blocks: Vec<[u8; 512]> = (0..32).map(|index| [index; 512]).collect();
        let entries: Vec<_> = (0..)
            .zip(&blocks)
            .map(|(index, block)| {
                opcode::Write::new(target, block.as_ptr(), 512).offset(index * 512).build().user_data(index)
            })
            .collect();
        offer(&mut ring, &entries);
        assert!(collect(&mut ring, 32).iter().all(|done| done.result == 512));
        let mut back = vec![[0u8; 512]; 32];
        let entries: Vec<_> = (0..)
            .zip(&mut back)
            .map(|(index, block)| {
                let read = opcode::Read::new(target, block.as_mut_ptr(), 512).offset(index * 512).build();
                if index % 2 == 0 { read.flags(squeue::Flags::ASYNC) } else { read }
            })
            .collect();
        offer(&mut ring, &entries);
        assert!(collect(&mut ring, 32).iter().all(|done| done.result == 512));
        assert!(back == blocks);
    });
}

#[test]
fn a_file_is_closed_when_its_close_has_completed() {
    bounded(|| {
        let mut ring = polled(16, 100);
        let file = file_with(b"");
        // SAFETY: the call names no memory.
        let number = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 550) };
        assert!(is_open_as(number, &file));
        offer(&mut ring, &[opcode::Close::new(types::Fd(number)).build()]);
        assert_eq!(collect(&mut ring, 1)[0].result, 0);
        assert!(!is_open_as(number, &file));
    });
}

#[test]
fn rings_share_an_sq_thread_after_the_first_ring_is_dropped() {
    bounded(|| {
        let mut first = polled(16, 100);
        let mut builder = IoUring::builder();
        let mut second: IoUring = builder.setup_sqpoll(100).setup_attach_wq(first.as_raw_fd()).build(16).unwrap();
        for round in 0..50 {
            for ring in [&mut first, &mut second] {
                offer(ring, &[nop(round)]);
            }
            for ring in [&mut first, &mut second] {
                assert_eq!(collect(ring, 1)[0].user_data, round);
            }
        }
        drop(first);
        offer(&mut second, &[nop(99)]);
        assert_eq!(collect(&mut second, 1)[0].user_data, 99);
        eventually("the thread sleeps", || second.submission().need_wakeup());
        offer(&mut second, &[nop(100)]);
        assert_eq!(collect(&mut second, 1)[0].user_data, 100);
    });
}

#[test]
fn only_a_ring_can_be_attached_to() {
    bounded(|| {
        let file = file_with(b"");
        for number in [file.as_raw_fd(), 1 << 20] {
            let mut builder = IoUring::builder();
            let attached: std::io::Result<IoUring> = builder.setup_sqpoll(1).setup_attach_wq(number).build(4);
            let error = attached.map(drop).unwrap_err().raw_os_error();
            assert!([Some(libc::EINVAL), Some(libc::EBADF), Some(libc::ENXIO)].contains(&error), "{error:?}");
        }
    });
}

#[test]
fn the_thread_stays_on_its_processor() {
    bounded(|| {
        let mut builder = IoUring::builder();
        let mut ring: IoUring = builder.setup_sqpoll(1000).setup_sqpoll_cpu(allowed_processor()).build(4).unwrap();
        offer(&mut ring, &[nop(1)]);
        assert_eq!(collect(&mut ring, 1)[0].user_data, 1);
        let mut builder = IoUring::builder();
        let nowhere: std::io::Result<IoUring> = builder.setup_sqpoll(1000).setup_sqpoll_cpu(100_000).build(4);
        assert_eq!(nowhere.map(drop).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    });
}

#[test]
fn a_polled_ring_that_overflows_loses_nothing() {
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_sqpoll(1000).setup_cqsize(4).build(4).unwrap();
        let mut seen = 0;
        for round in 0..20u64 {
            offer(&mut ring, &[nop(4 * round), nop(4 * round + 1), nop(4 * round + 2), nop(4 * round + 3)]);
            eventually("the thread takes them", || ring.submission().is_empty());
        }
        for done in collect(&mut ring, 80) {
            assert_eq!(done.user_data, seen);
            seen += 1;
        }
    });
}

#[test]
fn a_disabled_polled_ring_starts_when_it_is_enabled() {
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_sqpoll(10).setup_r_disabled().build(4).unwrap();
        push(&mut ring, &[nop(1)]);
        ring.submitter().register_enable_rings().unwrap();
        assert_eq!(collect(&mut ring, 1)[0].user_data, 1);
    });
}
