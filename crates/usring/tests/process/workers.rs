//! Workers: how many there are, in what order they work, when they go.

use crate::alone_and_bounded;
use crate::support::*;
use std::io::Read;
use std::os::fd::AsRawFd;
use usring::{IoUring, opcode, squeue, types};

const WORKER: &str = "iou-wrk";

fn ring() -> IoUring {
    IoUring::new(64).unwrap()
}

/// A read of an empty pipe that occupies a worker.
fn blocking(file: &impl AsRawFd, buffer: &mut [u8]) -> squeue::Entry {
    read(file, buffer).flags(squeue::Flags::ASYNC)
}

/// The limits before, with these in force until dropped.
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
        const COUNT: u64 = 48;
        let mut ring = ring();
        for _ in 0..20 {
            let mut file = file_with(b"");
            let blocks: Vec<[u8; 3000]> = (0..COUNT).map(|index| [index as u8; 3000]).collect();
            let entries: Vec<_> = (0..)
                .zip(&blocks)
                .map(|(index, block)| write(&file, block).flags(squeue::Flags::ASYNC).user_data(index))
                .collect();
            assert!(run(&mut ring, &entries).iter().all(|done| done.result == 3000));
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
fn workers_come_when_they_are_needed_and_go_when_they_are_idle() {
    alone_and_bounded(|| {
        const COUNT: usize = 12;
        let mut ring = ring();
        let pipes: Vec<_> = (0..COUNT).map(|_| pipe()).collect();
        let mut buffers = vec![[0; 4]; COUNT];
        let entries: Vec<_> = pipes.iter().zip(&mut buffers).map(|(pipe, buffer)| blocking(&pipe.0, buffer)).collect();
        submit(&mut ring, &entries);
        eventually("each read has a worker", || threads_named(WORKER) >= COUNT);
        assert_eq!(result(&mut ring, blocking(&file_with(b"1234"), &mut [0; 4])), 4, "and others are not held up");
        pipes.iter().for_each(|(_, writer)| put(writer, b"data"));
        assert!(collect(&mut ring, COUNT).iter().all(|done| done.result == 4));
        eventually("the workers are gone", || threads_named(WORKER) == 0);
        assert_eq!(result(&mut ring, blocking(&file_with(b"1234"), &mut [0; 4])), 4, "and new ones come");
    });
}

#[test]
fn there_are_no_more_workers_than_the_limit() {
    alone_and_bounded(|| {
        let _limits = Limits::set([1, 2]);
        let mut ring = ring();
        eventually("older workers are gone", || threads_named(WORKER) == 0);
        let pipes: Vec<_> = (0..6).map(|_| pipe()).collect();
        let mut buffers = vec![[0; 4]; 6];
        let entries: Vec<_> = (0..)
            .zip(&pipes)
            .zip(&mut buffers)
            .map(|((index, pipe), buffer)| blocking(&pipe.0, buffer).user_data(index))
            .collect();
        submit(&mut ring, &entries);
        eventually("there are two", || threads_named(WORKER) == 2);
        for (index, (_, writer)) in (0u64..).zip(&pipes) {
            put(writer, b"data");
            assert_eq!(collect(&mut ring, 1)[0].user_data, index, "in their order, two at a time");
            assert!(threads_named(WORKER) <= 2);
        }
        let file = file_with(&[1; 4096]);
        let mut buffers = vec![[0; 64]; 32];
        let reads: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| {
                let read = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), 64).build();
                read.flags(squeue::Flags::ASYNC)
            })
            .collect();
        submit(&mut ring, &reads);
        assert!(collect(&mut ring, 32).iter().all(|done| done.result == 64));
        assert!(threads_named(WORKER) <= 3, "one more for regular files");
    });
}

#[test]
fn what_waits_for_a_worker_can_be_cancelled() {
    alone_and_bounded(|| {
        let _limits = Limits::set([0, 1]);
        let mut ring = ring();
        eventually("older workers are gone", || threads_named(WORKER) == 0);
        let (reader, writer) = pipe();
        let mut buffers = [[0; 4]; 3];
        let entries: Vec<_> =
            (0..).zip(&mut buffers).map(|(index, buffer)| blocking(&reader, buffer).user_data(index)).collect();
        submit(&mut ring, &entries);
        stays_quiet(&mut ring);
        let cancel = opcode::AsyncCancel::new(1).build().user_data(9);
        submit(&mut ring, &[cancel]);
        let mut done = collect(&mut ring, 2);
        done.sort_by_key(|done| done.user_data);
        assert_eq!((done[0].user_data, done[0].result), (1, negative(libc::ECANCELED)));
        assert_eq!(done[1].result, 0);
        put(&writer, b"12345678");
        assert_eq!(collect(&mut ring, 2).iter().map(|done| done.user_data).collect::<Vec<_>>(), [0, 2]);
    });
}
