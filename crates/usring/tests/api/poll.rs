//! POLL_ADD, POLL_REMOVE and updates.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::os::fd::AsRawFd;

const IN: i32 = libc::POLLIN as i32;
const OUT: i32 = libc::POLLOUT as i32;
const HANG_UP: i32 = libc::POLLHUP as i32;

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

fn poll(file: &impl AsRawFd, events: i32) -> opcode::PollAdd {
    opcode::PollAdd::new(types::Fd(file.as_raw_fd()), events as u32)
}

/// Returns a POLL_REMOVE that updates the poll `target`. In its SQE, `len` holds the flags of what
/// changes and `off` the new user data.
fn update(target: u64, new_user_data: Option<u64>, new_events: Option<i32>, multi: bool) -> squeue::Entry {
    let mut entry = opcode::PollRemove::new(target).build();
    let mut flags = u32::from(multi);
    let bytes = (&raw mut entry).cast::<u8>();
    // SAFETY: an entry is a `struct io_uring_sqe` of 64 bytes, with `off` at 8, `len` at 24, and
    // `poll32_events` at 28.
    unsafe {
        if let Some(events) = new_events {
            flags |= 1 << 1;
            bytes.add(28).cast::<u32>().write(events as u32);
        }
        if let Some(user_data) = new_user_data {
            flags |= 1 << 2;
            bytes.add(8).cast::<u64>().write(user_data);
        }
        bytes.add(24).cast::<u32>().write(flags);
    }
    entry
}

#[test]
fn a_ready_file_is_reported_at_once() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        assert_eq!(result(&mut ring, poll(&writer, OUT).build()), OUT);
        put(&writer, b"x");
        assert_eq!(result(&mut ring, poll(&reader, IN | OUT).build()), IN);
        drop(writer);
        get(&reader, 1);
        assert_eq!(result(&mut ring, poll(&reader, IN).build()), HANG_UP, "always reported");
        assert_eq!(result(&mut ring, poll(&file_with(b""), IN | OUT).build()), IN | OUT, "a regular file is ready");
        assert_eq!(result(&mut ring, opcode::PollAdd::new(types::Fd(1 << 20), 1).build()), negative(libc::EBADF));
    });
}

#[test]
fn a_file_is_reported_when_it_becomes_ready() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        submit(&mut ring, &[poll(&reader, IN).build()]);
        stays_quiet(&mut ring);
        put(&writer, b"x");
        let done = collect(&mut ring, 1)[0];
        assert_eq!((done.result, done.has_more()), (IN, false));
        put(&writer, b"x");
        stays_quiet(&mut ring);
    });
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
fn removal_or_update_of_an_unknown_poll_fails_with_enoent() {
    bounded(|| {
        let mut ring = ring();
        assert_eq!(result(&mut ring, opcode::PollRemove::new(99).build()), negative(libc::ENOENT));
        assert_eq!(result(&mut ring, update(99, Some(1), None, false)), negative(libc::ENOENT));
    });
}

#[test]
fn an_armed_poll_is_updated() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        submit(&mut ring, &[poll(&reader, libc::POLLPRI as i32).build().user_data(1)]);
        put(&writer, b"x");
        stays_quiet(&mut ring);
        assert_eq!(result(&mut ring, update(1, Some(2), None, false).user_data(9)), 0);
        stays_quiet(&mut ring);
        submit(&mut ring, &[update(2, None, Some(IN), false).user_data(9)]);
        let mut done = collect(&mut ring, 2);
        done.sort_by_key(|done| done.user_data);
        assert_eq!((done[0].user_data, done[0].result), (2, IN), "the new events are there already");
        assert_eq!((done[1].user_data, done[1].result), (9, 0));
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
