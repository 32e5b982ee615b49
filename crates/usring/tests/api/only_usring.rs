//! Tests of behaviour in which usring differs from the kernel or from the `io-uring` crate:
//!
//! - functions that the crate lacks;
//! - a signal mask, which the crate passes in a size that Linux refuses;
//! - a link timeout, for which the kernel posts one completion too few.

use crate::links::chain;
use crate::provided_buffers::{Buffers, GROUP, use_up};
use crate::registered::{error_of, read_slot};
use crate::support::*;
use crate::waiting::{handle, with_signals};
use std::os::fd::AsRawFd;
use std::time::Duration;
use usring::types::SubmitArgs;
use usring::{IoUring, opcode, squeue, types};

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

#[test]
fn a_signal_mask_blocks_signals_during_the_wait() {
    bounded(|| {
        let (ring, time) = (ring(), timespec(Duration::from_millis(50)));
        handle(libc::SIGUSR2, 0);
        // SAFETY: a zeroed set is valid, and the call fills it.
        let mask = unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut mask, libc::SIGUSR2);
            mask
        };
        let args = SubmitArgs::new().timespec(&time).sigmask(&mask);
        let outcome = with_signals(libc::SIGUSR2, || ring.submitter().submit_with_args(1, &args));
        assert_eq!(error_of(outcome), libc::ETIME);
    });
}

#[test]
fn file_tags_and_allocation_ranges_work() {
    bounded(|| {
        let (mut ring, (reader, writer), mut buffer) = (ring(), pipe(), [0; 8]);
        let (mut numbers, mut tags) = ([reader.as_raw_fd(), -1, -1, -1], [91u64, 0, 0, 0]);
        // The words of a `struct io_uring_rsrc_register`.
        let mut resources = [4u64, 0, numbers.as_mut_ptr() as u64, tags.as_mut_ptr() as u64];
        const FILES2: u32 = 13;
        // SAFETY: the argument is what the opcode takes, with its size.
        unsafe { ring.submitter().register(FILES2, resources.as_mut_ptr().cast(), 32).unwrap() };
        submit(&mut ring, &[read_slot(0, &mut buffer).user_data(1)]);
        stays_quiet(&mut ring);
        ring.submitter().register_files_update(0, &[-1]).unwrap();
        stays_quiet(&mut ring);
        put(&writer, b"last");
        let order: Vec<u64> = collect(&mut ring, 2).iter().map(|done| done.user_data).collect();
        assert_eq!(order, [1, 91], "the tag is posted after the last request on the file");
        ring.submitter().register_file_alloc_range(2, 2).unwrap();
        assert_eq!(error_of(ring.submitter().register_file_alloc_range(3, 2)), libc::EINVAL);
        let any = types::DestinationSlot::auto_target();
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/".as_ptr()).file_index(Some(any)).build();
        assert_eq!(result(&mut ring, open.clone()), 2);
        assert_eq!(result(&mut ring, open.clone()), 3);
        assert_eq!(result(&mut ring, open), negative(libc::ENFILE));
    });
}

#[test]
fn a_buffer_ring_may_lie_in_the_engines_memory() {
    bounded(|| {
        let mut ring = ring();
        let map = |ring: &IoUring| ring.map(0x8000_0000 | u64::from(GROUP) << 16, 4 * 16);
        assert_eq!(error_of(map(&ring)), libc::ENOMEM, "not registered yet");
        // SAFETY: with IOU_PBUF_RING_MMAP the engine allocates the ring's memory itself.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(0, 4, GROUP, types::IOU_PBUF_RING_MMAP as u16).unwrap()
        };
        let entries = map(&ring).unwrap();
        let mut buffers = Buffers::over(entries.as_ptr().cast(), 4, 4096);
        use_up(&mut ring, &mut buffers);
        drop(ring);
        buffers.add(0);
    });
}

#[test]
fn a_link_timeout_reaches_a_request_in_a_worker() {
    bounded(|| {
        let (mut ring, fifo) = (ring(), Fifo::new());
        let mut time = Duration::from_millis(50);
        loop {
            let timespec = timespec(time);
            let entries = [
                fifo.open().flags(squeue::Flags::IO_LINK).user_data(1),
                opcode::LinkTimeout::new(&timespec).build().user_data(2),
            ];
            let mut found = chain(&mut ring, &entries);
            found.sort_unstable();
            assert!(was_broken_off(found[0].1), "{found:?}");
            // As on the kernel, a link timeout does not find its request while a worker carries the
            // request out.
            if found[1] == (2, negative(libc::ENOENT)) {
                break;
            }
            // The timeout expired before a worker took the request. The test tries again with a
            // longer time.
            assert_eq!(found[1], (2, negative(libc::ETIME)));
            time *= 2;
        }
    });
}
