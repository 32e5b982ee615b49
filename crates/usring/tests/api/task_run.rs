//! When completions become visible, and to which thread: deferred and cooperative task work, and
//! SINGLE_ISSUER.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

#[track_caller]
fn error_of<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.unwrap_err().raw_os_error().unwrap()
}

fn deferring() -> IoUring {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(16).unwrap()
}

fn read_by_worker(file: &impl AsRawFd, buffer: &mut [u8]) -> squeue::Entry {
    opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32)
        .build()
        .flags(squeue::Flags::ASYNC)
}

#[test]
fn deferred_completions_appear_when_the_owner_enters() {
    bounded(|| {
        let (mut ring, file, mut buffer) = (deferring(), file_with(b"data"), [0; 4]);
        submit(&mut ring, &[read_by_worker(&file, &mut buffer)]);
        eventually("the ring says that there is work", || ring.submission().taskrun());
        assert!(ring.completion().is_empty(), "no completion is posted yet");
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
        assert!(!ring.submission().taskrun());
    });
}

#[test]
fn deferred_completions_of_polled_files_appear_when_the_owner_enters() {
    bounded(|| {
        let (mut ring, (reader, writer), mut buffer) = (deferring(), pipe(), [0; 4]);
        for _ in 0..3 {
            submit(&mut ring, &[read(&reader, &mut buffer)]);
            put(&writer, b"data");
            eventually("the ring says that there is work", || ring.submission().taskrun());
            assert!(ring.completion().is_empty(), "no completion is posted yet");
            assert_eq!(collect(&mut ring, 1)[0].result, 4);
            assert!(!ring.submission().taskrun());
        }
    });
}

/// Returns how many times the calling thread has slept.
fn sleeps() -> i64 {
    // SAFETY: an all-zero `rusage` is valid, and the call fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_nvcsw
    }
}

#[test]
fn a_wait_for_many_separate_events_sleeps_fewer_times_than_events_come() {
    const EVENTS: usize = 64;
    const BETWEEN: Duration = Duration::from_micros(60);
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(64).unwrap();
        let pipes: Vec<_> = (0..EVENTS).map(|_| pipe()).collect();
        let mut buffers = vec![[0; 4]; EVENTS];
        let mut counts: Vec<i64> = Vec::new();
        for _ in 0..15 {
            let reads: Vec<_> =
                pipes.iter().zip(&mut buffers).map(|((reader, _), buffer)| read(reader, buffer)).collect();
            submit(&mut ring, &reads);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for (_, writer) in &pipes {
                        let start = Instant::now();
                        while start.elapsed() < BETWEEN {
                            std::hint::spin_loop();
                        }
                        put(writer, b"data");
                    }
                });
                let before = sleeps();
                ring.submitter().submit_and_wait(EVENTS).unwrap();
                counts.push(sleeps() - before);
            });
            assert_eq!(collect(&mut ring, EVENTS).len(), EVENTS);
        }
        counts.sort_unstable();
        // `counts` has the number of sleeps of each round. The check uses the median, because on
        // a busy machine the waiter of a single round may sleep more often.
        assert!(counts[counts.len() / 2] <= EVENTS as i64 * 3 / 4, "{counts:?}");
    });
}

#[test]
fn a_deferring_ring_without_taskrun_flag_completes_in_enter() {
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(16).unwrap();
        let ((reader, writer), mut buffer) = (pipe(), [0; 4]);
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        put(&writer, b"data");
        assert!(ring.completion().is_empty());
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
        assert!(!ring.submission().taskrun());
    });
}

#[test]
fn an_eventfd_signals_deferred_work() {
    bounded(|| {
        let (mut ring, event, (reader, writer), mut buffer) = (deferring(), event(), pipe(), [0; 4]);
        ring.submitter().register_eventfd(event.as_raw_fd()).unwrap();
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        assert_eq!(count(&event), 0);
        put(&writer, b"data");
        eventually("the eventfd is counted up", || count(&event) > 0);
        assert!(ring.completion().is_empty(), "before the completion is there");
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
    });
}

#[test]
fn a_deferring_ring_waits_for_several_completions() {
    bounded(|| {
        let (mut ring, file, mut buffers) = (deferring(), file_with(&[1; 64]), vec![[0; 8]; 16]);
        for _ in 0..100 {
            let entries: Vec<_> =
                (0..).zip(&mut buffers).map(|(index, buffer)| read_by_worker(&file, buffer).user_data(index)).collect();
            push(&mut ring, &entries);
            assert_eq!(ring.submit_and_wait(16).unwrap(), 16);
            assert_eq!(ring.completion().len(), 16);
            assert!(ring.completion().all(|entry| entry.result() == 8));
        }
    });
}

#[test]
fn only_the_single_issuer_may_submit() {
    bounded(|| {
        for mut ring in [deferring(), IoUring::builder().setup_single_issuer().build(16).unwrap()] {
            push(&mut ring, &[nop(1)]);
            let ring = std::thread::spawn(move || {
                assert_eq!(error_of(ring.submit()), libc::EEXIST);
                assert_eq!(error_of(ring.submitter().register_personality()), libc::EEXIST);
                ring
            });
            let mut ring = ring.join().unwrap();
            assert_eq!(ring.submit().unwrap(), 1);
            assert_eq!(collect(&mut ring, 1)[0].user_data, 1);
        }
    });
}

#[test]
fn the_thread_that_enables_a_ring_is_its_single_issuer() {
    bounded(|| {
        let mut builder = IoUring::builder();
        let ring: IoUring = builder.setup_single_issuer().setup_r_disabled().build(16).unwrap();
        let ring = std::thread::spawn(move || {
            let mut ring = ring;
            ring.submitter().register_enable_rings().unwrap();
            assert_eq!(result(&mut ring, nop(1)), 0);
            ring
        });
        let mut ring = ring.join().unwrap();
        push(&mut ring, &[nop(2)]);
        assert_eq!(error_of(ring.submit()), libc::EEXIST);
    });
}

#[test]
fn cooperative_rings_complete_at_the_next_call() {
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(16).unwrap();
        let ((reader, writer), file, mut buffers) = (pipe(), file_with(b"data"), ([0; 4], [0; 4]));
        submit(&mut ring, &[read(&reader, &mut buffers.0).user_data(1)]);
        submit(&mut ring, &[read_by_worker(&file, &mut buffers.1).user_data(2)]);
        put(&writer, b"data");
        let mut done = collect(&mut ring, 2);
        done.sort_by_key(|done| done.user_data);
        assert!(done.iter().all(|done| done.result == 4), "{done:?}");
    });
}

#[test]
fn completions_are_seen_in_memory_without_a_call_to_the_ring() {
    bounded(|| {
        let mut ring = IoUring::new(16).unwrap();
        let ((reader, writer), file, mut buffers) = (pipe(), file_with(b"data"), ([0; 4], [0; 4]));
        submit(&mut ring, &[read_by_worker(&file, &mut buffers.1).user_data(1)]);
        eventually("the worker's completion is visible", || ring.completion().len() == 1);
        submit(&mut ring, &[read(&reader, &mut buffers.0).user_data(2)]);
        put(&writer, b"data");
        eventually("the polled read's completion is visible", || ring.completion().len() == 2);
    });
}

#[test]
fn a_chain_continues_while_no_thread_is_in_enter() {
    bounded(|| {
        let mut ring = IoUring::new(16).unwrap();
        let ((reader, writer), file, mut buffers) = (pipe(), file_with(b"data"), ([0; 4], [0; 4]));
        let link = squeue::Flags::IO_LINK;
        let chain = [
            read(&reader, &mut buffers.0).flags(link).user_data(1),
            read_by_worker(&file, &mut buffers.1).flags(link).user_data(2),
            nop(3),
        ];
        submit(&mut ring, &chain);
        put(&writer, b"data");
        eventually("all of it is seen", || ring.completion().len() == 3);
        assert!(collect(&mut ring, 3).iter().map(|done| (done.user_data, done.result)).eq([(1, 4), (2, 4), (3, 0)]));
    });
}
