//! Links, hard links, link timeouts, drain, and requests that post no completion on success.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::os::fd::AsRawFd;
use std::time::Duration;

const LINK: squeue::Flags = squeue::Flags::IO_LINK;
const HARD: squeue::Flags = squeue::Flags::IO_HARDLINK;
const CANCELED: i32 = negative(libc::ECANCELED);

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

/// Returns pairs of user data and result, in the order of completion.
fn outcomes(done: &[Done]) -> Vec<(u64, i32)> {
    done.iter().map(|done| (done.user_data, done.result)).collect()
}

#[track_caller]
pub fn chain(ring: &mut IoUring, entries: &[squeue::Entry]) -> Vec<(u64, i32)> {
    submit(ring, entries);
    outcomes(&collect(ring, entries.len()))
}

/// Returns a read that fails.
fn failing(user_data: u64) -> squeue::Entry {
    opcode::Read::new(types::Fd(1 << 20), std::ptr::null_mut(), 0).build().user_data(user_data)
}

#[test]
fn a_chain_runs_in_order() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(b""));
        let mut buffer = [0; 3];
        let entries = [
            write(&file, b"abc").flags(LINK).user_data(1),
            opcode::Fsync::new(types::Fd(file.as_raw_fd())).build().flags(LINK).user_data(2),
            opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), 3).build().user_data(3),
        ];
        assert_eq!(chain(&mut ring, &entries), [(1, 3), (2, 0), (3, 3)]);
        assert_eq!(&buffer, b"abc");
    });
}

#[test]
fn a_failure_breaks_the_chain_and_nothing_else() {
    bounded(|| {
        let mut ring = ring();
        let entries = [nop(1).flags(LINK), failing(2).flags(LINK), nop(3).flags(LINK), nop(4), nop(5)];
        let mut found = chain(&mut ring, &entries);
        found.sort_unstable();
        assert_eq!(found, [(1, 0), (2, negative(libc::EBADF)), (3, CANCELED), (4, CANCELED), (5, 0)]);
    });
}

#[test]
fn a_hard_link_goes_on_after_a_failure() {
    bounded(|| {
        let mut ring = ring();
        let entries = [failing(1).flags(HARD), failing(2).flags(HARD), nop(3)];
        let bad = negative(libc::EBADF);
        assert_eq!(chain(&mut ring, &entries), [(1, bad), (2, bad), (3, 0)]);
    });
}

#[test]
fn a_short_read_breaks_a_link_and_no_hard_link() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(b"short"));
        let mut buffer = [0; 100];
        assert_eq!(
            chain(&mut ring, &[read(&file, &mut buffer).flags(LINK).user_data(1), nop(2)]),
            [(1, 5), (2, CANCELED)]
        );
        let at_start = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), 100).build();
        assert_eq!(chain(&mut ring, &[at_start.flags(HARD).user_data(1), nop(2)]), [(1, 5), (2, 0)]);
    });
}

#[test]
fn a_chain_waits_for_its_blocked_member() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 4];
        submit(&mut ring, &[read(&reader, &mut buffer).flags(LINK).user_data(1), nop(2), nop(3)]);
        assert_eq!(outcomes(&collect(&mut ring, 1)), [(3, 0)], "outside of the chain");
        stays_quiet(&mut ring);
        put(&writer, b"data");
        assert_eq!(outcomes(&collect(&mut ring, 2)), [(1, 4), (2, 0)]);
    });
}

#[test]
fn a_refused_member_cancels_its_chain() {
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_submit_all().build(8).unwrap();
        let bad = opcode::Timeout::new(std::ptr::null()).build().user_data(2);
        let mut found = chain(&mut ring, &[nop(1).flags(LINK), bad.flags(LINK), nop(3), nop(4)]);
        found.sort_unstable();
        assert_eq!(found, [(1, CANCELED), (2, negative(libc::EFAULT)), (3, CANCELED), (4, 0)]);
    });
}

#[test]
fn a_link_timeout_cancels_a_request_that_takes_too_long() {
    bounded(|| {
        let (mut ring, (reader, _writer)) = (ring(), pipe());
        let (mut buffer, time) = ([0; 4], timespec(Duration::from_millis(10)));
        let entries =
            [read(&reader, &mut buffer).flags(LINK).user_data(1), opcode::LinkTimeout::new(&time).build().user_data(2)];
        submit(&mut ring, &entries);
        let found = collect(&mut ring, 2);
        assert_eq!(found[0].user_data, 2, "the timeout completes first");
        let mut found = outcomes(&found);
        found.sort_unstable();
        assert_eq!(found, [(1, CANCELED), (2, negative(libc::ETIME))]);
    });
}

#[test]
fn a_link_timeout_that_is_not_needed_is_cancelled() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let (mut buffer, time) = ([0; 4], timespec(Duration::from_secs(100)));
        let timed = |user_data| opcode::LinkTimeout::new(&time).build().user_data(user_data);
        submit(&mut ring, &[read(&reader, &mut buffer).flags(LINK).user_data(1), timed(2).flags(LINK), nop(3)]);
        stays_quiet(&mut ring);
        put(&writer, b"data");
        let mut found = outcomes(&collect(&mut ring, 3));
        found.sort_unstable();
        assert_eq!(found, [(1, 4), (2, CANCELED), (3, 0)]);
        let mut found = chain(&mut ring, &[nop(4).flags(LINK), timed(5)]);
        found.sort_unstable();
        assert_eq!(found, [(4, 0), (5, CANCELED)]);
    });
}

#[test]
fn a_link_timeout_without_a_request_before_it_is_refused() {
    bounded(|| {
        let (mut ring, time) = (ring(), timespec(Duration::from_secs(1)));
        let alone = opcode::LinkTimeout::new(&time).build();
        assert_eq!(result(&mut ring, alone), negative(libc::EINVAL));
    });
}

#[test]
fn a_drain_waits_for_earlier_requests_and_holds_back_later_requests() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 4];
        let drain = nop(2).flags(squeue::Flags::IO_DRAIN);
        submit(&mut ring, &[read(&reader, &mut buffer).user_data(1), drain, nop(3)]);
        submit(&mut ring, &[nop(4)]);
        stays_quiet(&mut ring);
        put(&writer, b"data");
        let found = outcomes(&collect(&mut ring, 4));
        assert_eq!(found[..2], [(1, 4), (2, 0)]);
        assert_eq!(found.len(), 4);
        assert_eq!(result(&mut ring, nop(5)), 0, "and nothing is held from then on");
    });
}

#[test]
fn a_drain_in_a_chain_holds_the_whole_chain() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 4];
        let entries = [
            read(&reader, &mut buffer).user_data(1),
            nop(2).flags(LINK),
            nop(3).flags(squeue::Flags::IO_DRAIN),
            nop(4),
        ];
        submit(&mut ring, &entries);
        stays_quiet(&mut ring);
        put(&writer, b"data");
        assert_eq!(outcomes(&collect(&mut ring, 3)), [(1, 4), (2, 0), (3, 0)]);
        assert_eq!(outcomes(&collect(&mut ring, 1)), [(4, 0)]);
    });
}

#[test]
fn cqe_skip_success_suppresses_successful_completions() {
    bounded(|| {
        let mut ring = ring();
        let silent = |entry: squeue::Entry| entry.flags(squeue::Flags::SKIP_SUCCESS);
        let entries = [silent(nop(1)), silent(failing(2)), silent(nop(3)).flags(LINK), nop(4)];
        submit(&mut ring, &entries);
        let mut found = outcomes(&collect(&mut ring, 2));
        found.sort_unstable();
        assert_eq!(found, [(2, negative(libc::EBADF)), (4, 0)]);
        stays_quiet(&mut ring);
    });
}

#[test]
fn long_chains_of_all_kinds_lose_nothing() {
    bounded(|| {
        let mut ring = IoUring::new(256).unwrap();
        let file = file_with(&[1; 4096]);
        let mut buffers = vec![[0; 16]; 256];
        for round in 0..50u64 {
            let entries: Vec<_> = (0..)
                .zip(&mut buffers)
                .map(|(index, buffer)| {
                    let at = index * 16 % 4096;
                    let entry = match (index + round) % 3 {
                        0 => nop(index),
                        _ => opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), 16).offset(at).build(),
                    };
                    let flags = match (index * 7 + round) % 5 {
                        0 => squeue::Flags::empty(),
                        1 => LINK | squeue::Flags::ASYNC,
                        2 => HARD,
                        _ => LINK,
                    };
                    entry.flags(flags).user_data(index)
                })
                .collect();
            assert!(run(&mut ring, &entries).iter().map(|done| done.user_data).eq(0..256));
        }
    });
}
