//! ASYNC_CANCEL and the synchronous cancel.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::os::fd::{AsRawFd, OwnedFd};
use types::CancelBuilder;

const CANCELED: i32 = negative(libc::ECANCELED);

fn ring() -> IoUring {
    IoUring::new(64).unwrap()
}

/// Reads of empty pipes, which wait until they are cancelled.
struct Waiting {
    pipes: Vec<(OwnedFd, OwnedFd)>,
    buffers: Vec<[u8; 4]>,
}

impl Waiting {
    /// Submits `count` reads, whose user data are 0, 1 and so on.
    fn submit(ring: &mut IoUring, count: usize) -> Waiting {
        let mut waiting = Waiting { pipes: (0..count).map(|_| pipe()).collect(), buffers: vec![[0; 4]; count] };
        let entries: Vec<_> = (0..)
            .zip(&waiting.pipes)
            .zip(&mut waiting.buffers)
            .map(|((index, pipe), buffer)| read(&pipe.0, buffer).user_data(index))
            .collect();
        submit(ring, &entries);
        stays_quiet(ring);
        waiting
    }
}

fn cancel(builder: CancelBuilder) -> squeue::Entry {
    opcode::AsyncCancel2::new(builder).build().user_data(1000)
}

/// Runs a cancel request. Returns its result, and the sorted user data of the `targets` requests
/// that it cancelled.
#[track_caller]
fn cancelled(ring: &mut IoUring, builder: CancelBuilder, targets: usize) -> (i32, Vec<u64>) {
    submit(ring, &[cancel(builder)]);
    let done = collect(ring, 1 + targets);
    let (own, others): (Vec<_>, Vec<_>) = done.into_iter().partition(|done| done.user_data == 1000);
    assert!(others.iter().all(|done| was_broken_off(done.result)), "{others:?}");
    let mut targets: Vec<u64> = others.iter().map(|done| done.user_data).collect();
    targets.sort_unstable();
    (own[0].result, targets)
}

#[test]
fn a_request_is_cancelled_by_its_user_data() {
    bounded(|| {
        let mut ring = ring();
        let _waiting = Waiting::submit(&mut ring, 3);
        assert_eq!(cancelled(&mut ring, CancelBuilder::user_data(1), 1), (0, vec![1]));
        assert_eq!(cancelled(&mut ring, CancelBuilder::user_data(1), 0), (negative(libc::ENOENT), vec![]));
        let plain = opcode::AsyncCancel::new(2).build().user_data(1000);
        submit(&mut ring, &[plain]);
        assert_eq!(collect(&mut ring, 2).iter().map(|done| done.result).min(), Some(CANCELED));
        assert_eq!(cancelled(&mut ring, CancelBuilder::user_data(0), 1), (0, vec![0]));
    });
}

#[test]
fn requests_are_cancelled_by_their_file() {
    bounded(|| {
        let mut ring = ring();
        let waiting = Waiting::submit(&mut ring, 3);
        let file = types::Fd(waiting.pipes[2].0.as_raw_fd());
        let mut buffer = [0; 4];
        submit(&mut ring, &[read(&waiting.pipes[2].0, &mut buffer).user_data(3)]);
        assert_eq!(cancelled(&mut ring, CancelBuilder::fd(file).all(), 2), (2, vec![2, 3]));
        let other = types::Fd(waiting.pipes[0].0.as_raw_fd());
        assert_eq!(cancelled(&mut ring, CancelBuilder::fd(other), 1), (0, vec![0]));
        assert_eq!(cancelled(&mut ring, CancelBuilder::fd(other), 0).0, negative(libc::ENOENT));
    });
}

#[test]
fn requests_are_cancelled_by_their_registered_file() {
    bounded(|| {
        let mut ring = ring();
        let (reader, _writer) = pipe();
        ring.submitter().register_files(&[-1, reader.as_raw_fd()]).unwrap();
        let mut buffer = [0; 4];
        let fixed = opcode::Read::new(types::Fixed(1), buffer.as_mut_ptr(), 4).build().user_data(7);
        submit(&mut ring, &[fixed]);
        stays_quiet(&mut ring);
        assert_eq!(cancelled(&mut ring, CancelBuilder::fd(types::Fixed(1)), 1), (0, vec![7]));
    });
}

#[test]
fn a_request_that_blocks_in_a_worker_is_interrupted() {
    bounded(|| {
        let (mut ring, fifo) = (ring(), Fifo::new());
        for round in 0..50 {
            submit(&mut ring, &[fifo.open().user_data(1)]);
            if round % 2 == 0 {
                // In half of the rounds, the worker sleeps in its system call when the test cancels
                // the request. In the other rounds the worker may not have made the call yet.
                stays_quiet(&mut ring);
            }
            let (answer, targets) = cancelled(&mut ring, CancelBuilder::user_data(1), 1);
            assert!([0, negative(libc::EALREADY)].contains(&answer), "{answer}");
            assert_eq!(targets, [1]);
        }
        submit(&mut ring, &[fifo.open()]);
        stays_quiet(&mut ring);
        fifo.release();
        close_all(&collect(&mut ring, 1));
    });
}

#[test]
fn a_synchronous_cancel_returns_when_its_targets_have_ended() {
    bounded(|| {
        let mut ring = ring();
        let waiting = Waiting::submit(&mut ring, 4);
        let submitter = ring.submitter();
        submitter.register_sync_cancel(None, CancelBuilder::user_data(3)).unwrap();
        let file = types::Fd(waiting.pipes[0].0.as_raw_fd());
        submitter.register_sync_cancel(Some(timespec(TIMEOUT)), CancelBuilder::fd(file)).unwrap();
        let missing = submitter.register_sync_cancel(None, CancelBuilder::user_data(3)).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
        let mut done = collect(&mut ring, 2);
        done.sort_by_key(|done| done.user_data);
        assert_eq!(
            done.iter().map(|done| (done.user_data, done.result)).collect::<Vec<_>>(),
            [(0, CANCELED), (3, CANCELED)]
        );
        ring.submitter().register_sync_cancel(None, CancelBuilder::any()).unwrap();
        assert_eq!(collect(&mut ring, 2).len(), 2);
    });
}

#[test]
fn a_synchronous_cancel_interrupts_a_worker() {
    bounded(|| {
        let (mut ring, fifo) = (ring(), Fifo::new());
        submit(&mut ring, &[fifo.open().user_data(1)]);
        stays_quiet(&mut ring);
        ring.submitter().register_sync_cancel(None, CancelBuilder::user_data(1)).or_else(gone).unwrap();
        assert!(was_broken_off(collect(&mut ring, 1)[0].result));
    });
}

/// Treats ENOENT as success, because the request may have completed before the cancel.
fn gone(error: std::io::Error) -> std::io::Result<()> {
    if error.raw_os_error() == Some(libc::ENOENT) { Ok(()) } else { Err(error) }
}
