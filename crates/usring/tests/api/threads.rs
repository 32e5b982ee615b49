//! Several threads with one ring, several rings, or both.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn threads_with_a_ring_each_talk_through_pipes() {
    bounded(|| {
        const THREADS: usize = 6;
        const ROUNDS: u32 = 300;
        let (readers, mut writers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| pipe()).unzip();
        // Gives each thread the reading end of its own pipe, and the writing end of the next
        // thread's pipe.
        writers.rotate_left(1);
        let threads = readers.into_iter().zip(writers).enumerate().map(|(index, (reader, writer))| {
            // The pipes connect the threads in a circle. Each thread adds 1 to the number that it
            // reads, and sends the sum to the next thread. The first thread also sends the first
            // number, so the last number stays in the second thread's pipe.
            std::thread::spawn(move || {
                let mut ring = IoUring::new(8).unwrap();
                if index == 0 {
                    put(&writer, &0u32.to_ne_bytes());
                }
                for _ in 0..ROUNDS {
                    let mut buffer = [0; 4];
                    assert_eq!(result(&mut ring, read(&reader, &mut buffer)), 4);
                    let next = u32::from_ne_bytes(buffer) + 1;
                    assert_eq!(result(&mut ring, write(&writer, &next.to_ne_bytes())), 4);
                }
                (reader, writer)
            })
        });
        // `collect` starts all threads before the test joins the first, because the threads wait
        // for each other.
        let threads: Vec<_> = threads.collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(get(&ends[1].0, 4), (THREADS as u32 * ROUNDS).to_ne_bytes());
    });
}

/// A ring that several threads share. A lock lets one thread at a time use the queues.
struct Shared {
    ring: IoUring,
    pushing: Mutex<()>,
    taking: Mutex<()>,
}

impl Shared {
    fn push(&self, entry: &squeue::Entry) {
        let _turn = self.pushing.lock().unwrap();
        // SAFETY: the lock ensures that only this thread uses the queue. The callers keep the
        // requests' memory alive.
        while unsafe { self.ring.submission_shared().push(entry) }.is_err() {
            self.ring.submit().unwrap();
        }
    }

    fn take(&self) -> Vec<Done> {
        let _turn = self.taking.lock().unwrap();
        // SAFETY: the lock ensures that only this thread uses the queue.
        unsafe { self.ring.completion_shared() }.map(Done::from).collect()
    }
}

fn shared(entries: u32) -> Arc<Shared> {
    let ring = IoUring::new(entries).unwrap();
    Arc::new(Shared { ring, pushing: Mutex::new(()), taking: Mutex::new(()) })
}

#[test]
fn one_ring_serves_many_threads() {
    bounded(|| {
        const THREADS: u64 = 6;
        const EACH: u64 = 2_000;
        let shared = shared(64);
        let seen = Arc::new(AtomicU64::new(0));
        let sum = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let (shared, seen, sum) = (shared.clone(), seen.clone(), sum.clone());
                std::thread::spawn(move || {
                    for round in 0..EACH {
                        shared.push(&nop(index * EACH + round));
                        shared.ring.submit().unwrap();
                        for done in shared.take() {
                            sum.fetch_add(done.user_data, Ordering::SeqCst);
                            seen.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for done in shared.take() {
            sum.fetch_add(done.user_data, Ordering::SeqCst);
            seen.fetch_add(1, Ordering::SeqCst);
        }
        let all = THREADS * EACH;
        assert_eq!((seen.load(Ordering::SeqCst), sum.load(Ordering::SeqCst)), (all, all * (all - 1) / 2));
    });
}

#[test]
fn several_threads_wait_on_one_ring_and_each_wakes() {
    bounded(|| {
        for round in 0..200u64 {
            let shared = shared(16);
            let ((reader, writer), mut buffer) = (pipe(), [0; 4]);
            // Because this read waits for its file, one of the waiting threads sleeps in the ring's
            // epoll set.
            shared.push(&read(&reader, &mut buffer).user_data(100));
            shared.ring.submit().unwrap();
            let waiters: Vec<_> = (1..=4)
                .map(|want| {
                    let shared = shared.clone();
                    std::thread::spawn(move || shared.ring.submit_and_wait(want).unwrap())
                })
                .collect();
            std::thread::sleep(Duration::from_micros(round * 37 % 2000));
            for user_data in 0..3 {
                shared.push(&nop(user_data));
                shared.ring.submit().unwrap();
            }
            put(&writer, b"data");
            waiters.into_iter().for_each(|waiter| assert!(waiter.join().unwrap() <= 3));
            assert_eq!(shared.take().len(), 4);
        }
    });
}

#[test]
fn a_submitter_wakes_a_waiting_thread() {
    bounded(|| {
        let shared = shared(16);
        for round in 0..200 {
            let waiter = {
                let shared = shared.clone();
                std::thread::spawn(move || shared.ring.submit_and_wait(1).unwrap())
            };
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            shared.push(&nop(round));
            shared.ring.submit().unwrap();
            waiter.join().unwrap();
            assert_eq!(shared.take()[0].user_data, round);
        }
    });
}

#[test]
fn a_ring_moves_between_threads_with_requests_in_flight() {
    bounded(|| {
        let (reader, writer) = pipe();
        let mut buffer = Box::new([0; 4]);
        let mut ring = IoUring::new(8).unwrap();
        submit(&mut ring, &[read(&reader, &mut *buffer)]);
        let ring = std::thread::spawn(move || {
            put(&writer, b"data");
            let mut ring = ring;
            assert_eq!(collect(&mut ring, 1)[0].result, 4);
            ring
        });
        let mut ring = ring.join().unwrap();
        assert_eq!(result(&mut ring, nop(1)), 0);
        drop(reader);
        assert_eq!(&*buffer, b"data");
    });
}

#[test]
fn mixed_work_from_many_threads_is_all_done() {
    bounded(|| {
        let threads: Vec<_> = (0..4u64)
            .map(|index| {
                std::thread::spawn(move || {
                    let mut ring = IoUring::new(32).unwrap();
                    let file = file_with(&[index as u8; 4096]);
                    let (reader, writer) = pipe();
                    let time = timespec(Duration::from_micros(300));
                    for _ in 0..150 {
                        let (mut from_file, mut from_worker, mut from_pipe) = ([0; 64], [0; 64], [0; 4]);
                        let at = types::Fd(file.as_raw_fd());
                        let entries = [
                            opcode::Read::new(at, from_file.as_mut_ptr(), 64).offset(index).build(),
                            opcode::Read::new(at, from_worker.as_mut_ptr(), 64).build().flags(squeue::Flags::ASYNC),
                            read(&reader, &mut from_pipe),
                            opcode::Timeout::new(&time).build(),
                            write(&writer, b"pipe"),
                            nop(0),
                        ];
                        let entries: Vec<_> = (0..).zip(entries).map(|(at, entry)| entry.user_data(at)).collect();
                        let results: Vec<i32> = run(&mut ring, &entries).iter().map(|done| done.result).collect();
                        assert_eq!(results, [64, 64, 4, negative(libc::ETIME), 4, 0]);
                        assert_eq!((from_file[9], from_worker[63], &from_pipe), (index as u8, index as u8, b"pipe"));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A worker that finds the ring locked leaves its completion to the thread that holds the lock.
/// That thread posts the completion even if its own call is refused.
#[test]
fn a_completion_during_another_threads_refused_call_is_not_lost() {
    bounded(|| {
        let ring = IoUring::builder().setup_single_issuer().build(8).unwrap();
        let shared = Arc::new(Shared { ring, pushing: Mutex::new(()), taking: Mutex::new(()) });
        let stop = Arc::new(AtomicU64::new(0));
        let stranger = std::thread::spawn({
            let (shared, stop) = (shared.clone(), stop.clone());
            move || {
                while stop.load(Ordering::SeqCst) == 0 {
                    // SAFETY: the call has no argument.
                    let refused = unsafe { shared.ring.submitter().enter::<libc::sigset_t>(1, 0, 0, None) };
                    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EEXIST));
                }
            }
        });
        let (file, mut buffer) = (file_with(b"data"), [0; 4]);
        for round in 0..2_000 {
            let read = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), 4).build();
            shared.push(&read.flags(squeue::Flags::ASYNC).user_data(round));
            shared.ring.submit().unwrap();
            // This thread does not enter the ring again. It only reads the CQ in memory.
            eventually("a completion", || shared.take().iter().any(|done| done.user_data == round));
        }
        stop.store(1, Ordering::SeqCst);
        stranger.join().unwrap();
    });
}
