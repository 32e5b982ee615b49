//! Workers: their number, the order of their requests, and when they end.

use crate::alone_and_bounded;
use crate::support::*;
use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::AsRawFd;
use usring::{IoUring, opcode, squeue, types};

const WORKER: &str = "iou-wrk";

fn ring() -> IoUring {
    IoUring::new(64).unwrap()
}

/// Returns a read that the ring passes to a worker.
fn by_worker(file: &impl AsRawFd, buffer: &mut [u8]) -> squeue::Entry {
    opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), buffer.len() as u32)
        .build()
        .flags(squeue::Flags::ASYNC)
}

/// Changes the limits of workers. The value holds the previous limits and restores them when it is
/// dropped.
struct Limits([u32; 2]);

impl Limits {
    fn set(mut limits: [u32; 2]) -> Limits {
        IoUring::new(1).unwrap().submitter().register_iowq_max_workers(&mut limits).unwrap();
        Limits(limits)
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        IoUring::new(1).unwrap().submitter().register_iowq_max_workers(&mut self.0).unwrap();
    }
}

#[test]
fn buffered_writes_to_one_file_keep_their_order() {
    alone_and_bounded(|| {
        const COUNT: u64 = 60;
        let mut ring = ring();
        // Writes are out of order only if two workers take one write each and the second worker is
        // faster. That is rare, so the test makes many short rounds.
        for _ in 0..400 {
            let mut file = file_with(b"");
            let blocks: Vec<[u8; 3]> = (0..COUNT).map(|index| [index as u8; 3]).collect();
            let entries: Vec<_> = (0..)
                .zip(&blocks)
                .map(|(index, block)| write(&file, block).flags(squeue::Flags::ASYNC).user_data(index))
                .collect();
            assert!(run(&mut ring, &entries).iter().all(|done| done.result == 3));
            std::io::Seek::rewind(&mut file).unwrap();
            let mut content = Vec::new();
            file.read_to_end(&mut content).unwrap();
            assert!(content == blocks.concat(), "each at the position where the one before it ended");
        }
    });
}

#[test]
fn writes_to_several_files_are_all_done() {
    alone_and_bounded(|| {
        let mut ring = ring();
        let files: Vec<_> = (0..8).map(|_| file_with(b"")).collect();
        for round in 0..20u64 {
            let block = [round as u8; 512];
            let entries: Vec<_> = (0..64)
                .map(|index| {
                    let file = types::Fd(files[index as usize % 8].as_raw_fd());
                    let at = (round * 8 + index / 8) * 512;
                    let write = opcode::Write::new(file, block.as_ptr(), 512).offset(at).build();
                    write.flags(squeue::Flags::ASYNC).user_data(index)
                })
                .collect();
            assert!(run(&mut ring, &entries).iter().all(|done| done.result == 512));
        }
        assert!(files.iter().all(|file| file.metadata().unwrap().len() == 20 * 8 * 512));
    });
}

#[test]
fn workers_start_on_demand_and_end_when_they_are_idle() {
    alone_and_bounded(|| {
        const COUNT: usize = 6;
        let _limits = Limits::set([COUNT as u32 + 1, 0]);
        let (mut ring, fifo, file) = (ring(), Fifo::new(), file_with(b"1234"));
        submit(&mut ring, &vec![fifo.open(); COUNT]);
        eventually("each open has a worker", || threads_named(WORKER) >= COUNT);
        assert_eq!(result(&mut ring, by_worker(&file, &mut [0; 4])), 4, "and others are not held up");
        fifo.release();
        close_all(&collect(&mut ring, COUNT));
        eventually("the workers are gone", || threads_named(WORKER) == 0);
        assert_eq!(result(&mut ring, by_worker(&file, &mut [0; 4])), 4, "and new ones come");
    });
}

#[test]
fn the_number_of_workers_stays_within_its_limit() {
    alone_and_bounded(|| {
        let _limits = Limits::set([2, 0]);
        let mut ring = ring();
        eventually("older workers are gone", || threads_named(WORKER) == 0);
        let fifos: Vec<_> = (0..6).map(|_| Fifo::new()).collect();
        let entries: Vec<_> = (0..).zip(&fifos).map(|(index, fifo)| fifo.open().user_data(index)).collect();
        submit(&mut ring, &entries);
        eventually("there are two", || threads_named(WORKER) == 2);
        for (index, fifo) in (0u64..).zip(&fifos) {
            fifo.release();
            let done = collect(&mut ring, 1);
            assert_eq!(done[0].user_data, index, "in their order, two at a time");
            close_all(&done);
            assert!(threads_named(WORKER) <= 2);
        }
        let file = file_with(&[1; 4096]);
        let mut buffers = vec![[0; 64]; 32];
        let reads: Vec<_> = buffers.iter_mut().map(|buffer| by_worker(&file, buffer)).collect();
        submit(&mut ring, &reads);
        assert!(collect(&mut ring, 32).iter().all(|done| done.result == 64));
        assert!(threads_named(WORKER) <= 2);
    });
}

#[test]
fn a_request_that_waits_for_a_worker_can_be_cancelled() {
    alone_and_bounded(|| {
        let _limits = Limits::set([1, 0]);
        let (mut ring, fifo) = (ring(), Fifo::new());
        eventually("older workers are gone", || threads_named(WORKER) == 0);
        let entries: Vec<_> = (0..3).map(|index| fifo.open().user_data(index)).collect();
        submit(&mut ring, &entries);
        stays_quiet(&mut ring);
        let cancel = opcode::AsyncCancel::new(1).build().user_data(9);
        submit(&mut ring, &[cancel]);
        let mut done = collect(&mut ring, 2);
        done.sort_by_key(|done| done.user_data);
        assert_eq!((done[0].user_data, done[0].result), (1, negative(libc::ECANCELED)));
        assert_eq!(done[1].result, 0);
        fifo.release();
        let done = collect(&mut ring, 2);
        assert_eq!(done.iter().map(|done| done.user_data).collect::<Vec<_>>(), [0, 2]);
        close_all(&done);
    });
}

#[test]
fn files_that_can_be_polled_occupy_no_worker() {
    alone_and_bounded(|| {
        let (mut ring, (reader, writer), mut buffer) = (ring(), pipe(), [0; 4]);
        eventually("older workers are gone", || threads_named(WORKER) == 0);
        submit(&mut ring, &[read(&reader, &mut buffer).flags(squeue::Flags::ASYNC)]);
        stays_quiet(&mut ring);
        assert_eq!(threads_named(WORKER), 0);
        put(&writer, b"data");
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
    });
}

#[test]
fn a_raised_limit_serves_requests_that_wait_already() {
    alone_and_bounded(|| {
        let _limits = Limits::set([1, 1]);
        let mut ring = ring();
        let (busy, free) = (Fifo::new(), Fifo::new());
        eventually("no worker of an earlier test is left", || threads_named(WORKER) == 0);
        // There is one worker, and it is busy with the first request when the second arrives.
        submit(&mut ring, &[busy.open().user_data(1), free.open().user_data(2)]);
        free.release();
        stays_quiet(&mut ring);
        ring.submitter().register_iowq_max_workers(&mut [2, 2]).unwrap();
        assert_eq!(collect(&mut ring, 1)[0].user_data, 2);
        busy.release();
        assert_eq!(collect(&mut ring, 1)[0].user_data, 1);
    });
}

/// Returns the list of processors that a thread may use, from the text of its /proc status file.
fn place(status: &str) -> Option<String> {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t").map(String::from))
}

/// Returns the different lists of processors that workers may use: a single list if all workers
/// agree.
fn places_of_workers() -> BTreeSet<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let workers = statuses.filter(|status| status.starts_with(&format!("Name:\t{WORKER}")));
    workers.filter_map(|status| place(&status)).collect()
}

/// Returns the list of all processors that this thread could be allowed to use, even if it was
/// started with fewer.
fn everywhere() -> String {
    let anywhere = || {
        // SAFETY: the set is plain numbers, with all bits set. The call concerns only this thread.
        unsafe {
            let mut all: libc::cpu_set_t = std::mem::zeroed();
            (&raw mut all).write_bytes(0xff, 1);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &all);
        }
        place(&std::fs::read_to_string("/proc/thread-self/status").unwrap()).unwrap()
    };
    std::thread::spawn(anywhere).join().unwrap()
}

#[test]
fn workers_run_on_the_processors_of_their_affinity_mask() {
    alone_and_bounded(|| {
        let (mut ring, file) = (ring(), file_with(b"1234"));
        eventually("older workers are gone", || threads_named(WORKER) == 0);
        assert_eq!(result(&mut ring, by_worker(&file, &mut [0; 4])), 4);
        // Submits a request before each check, because an idle worker may have ended meanwhile.
        let eventually_at = |ring: &mut IoUring, wanted: String| {
            eventually("each learns of it at its next request", || {
                assert_eq!(result(ring, by_worker(&file, &mut [0; 4])), 4);
                places_of_workers() == BTreeSet::from([wanted.clone()])
            });
        };
        assert_eq!(result(&mut ring, by_worker(&file, &mut [0; 4])), 4);
        let own = allowed_processor();
        // SAFETY: the set is plain numbers, and zero is an empty set.
        let mut first: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `own` is a processor's number, which is within the set.
        unsafe { libc::CPU_SET(own as usize, &mut first) };
        ring.submitter().register_iowq_aff(&first).unwrap();
        eventually_at(&mut ring, own.to_string());
        ring.submitter().unregister_iowq_aff().unwrap();
        eventually_at(&mut ring, everywhere());
    });
}
