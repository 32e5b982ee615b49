//! Chains of linked requests. (The conformance cases cover single links.)

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::os::fd::AsRawFd;

const LINK: squeue::Flags = squeue::Flags::IO_LINK;
const HARD: squeue::Flags = squeue::Flags::IO_HARDLINK;
const CANCELED: i32 = negative(libc::ECANCELED);

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

/// Returns user data and result of each completion, in the order of completion.
fn outcomes(done: &[Done]) -> Vec<(u64, i32)> {
    done.iter().map(|done| (done.user_data, done.result)).collect()
}

#[track_caller]
pub fn chain(ring: &mut IoUring, entries: &[squeue::Entry]) -> Vec<(u64, i32)> {
    submit(ring, entries);
    outcomes(&collect(ring, entries.len()))
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
