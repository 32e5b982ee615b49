//! POLL_ADD and POLL_REMOVE. (The conformance cases cover single polls and updates.)

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::os::fd::AsRawFd;

const IN: i32 = libc::POLLIN as i32;

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

fn poll(file: &impl AsRawFd, events: i32) -> opcode::PollAdd {
    opcode::PollAdd::new(types::Fd(file.as_raw_fd()), events as u32)
}

#[test]
fn a_multishot_poll_reports_each_wake_until_it_is_removed() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        submit(&mut ring, &[poll(&reader, IN).multi(true).build().user_data(1)]);
        for _ in 0..3 {
            put(&writer, b"x");
            let done = collect(&mut ring, 1)[0];
            assert_eq!((done.user_data, done.result, done.has_more()), (1, IN, true));
            stays_quiet(&mut ring);
        }
        let done = run(&mut ring, &[opcode::PollRemove::new(1).build().user_data(2)]);
        let rest = collect(&mut ring, 1);
        let mut both = [done[0], rest[0]];
        both.sort_by_key(|done| done.user_data);
        assert_eq!((both[0].result, both[0].has_more(), both[1].result), (negative(libc::ECANCELED), false, 0));
        put(&writer, b"x");
        stays_quiet(&mut ring);
    });
}

#[test]
fn a_poll_outlives_its_descriptor() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        submit(&mut ring, &[poll(&reader, IN).build()]);
        drop(reader);
        put(&writer, b"x");
        assert_eq!(collect(&mut ring, 1)[0].result, IN);
    });
}

#[test]
fn many_polls_of_one_file_and_of_many_files_all_fire() {
    bounded(|| {
        let mut ring = IoUring::new(256).unwrap();
        let pipes: Vec<_> = (0..64).map(|_| pipe()).collect();
        let entries: Vec<_> =
            (0..128).map(|index| poll(&pipes[index % 64].0, IN).build().user_data(index as u64)).collect();
        submit(&mut ring, &entries);
        stays_quiet(&mut ring);
        for (_, writer) in &pipes {
            put(writer, b"x");
        }
        let mut seen: Vec<u64> = collect(&mut ring, 128).iter().map(|done| done.user_data).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..128));
    });
}

#[test]
fn a_linked_read_follows_its_poll() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 4];
        let chain = [
            poll(&reader, IN).build().flags(squeue::Flags::IO_LINK).user_data(1),
            read(&reader, &mut buffer).user_data(2),
        ];
        submit(&mut ring, &chain);
        stays_quiet(&mut ring);
        put(&writer, b"data");
        let results: Vec<_> = collect(&mut ring, 2).iter().map(|done| (done.user_data, done.result)).collect();
        assert_eq!(results, [(1, IN), (2, 4)]);
    });
}
