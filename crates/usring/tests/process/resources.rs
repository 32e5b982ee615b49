//! What rings cost, and that they give it back.

use crate::alone_and_bounded;
use crate::support::*;
use std::os::fd::AsRawFd;
use std::time::Duration;
use usring::{IoUring, opcode, squeue, types};

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Memory in use, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A ring with something of everything in flight, which its drop has to end.
fn busy_ring(reader: &impl AsRawFd, fifo: &Fifo, buffer: &mut [u8; 4]) -> IoUring {
    let mut ring = IoUring::new(16).unwrap();
    let far = timespec(Duration::from_secs(1000));
    ring.as_raw_fd();
    ring.submitter().register_files(&[reader.as_raw_fd(), -1]).unwrap();
    let entries = [
        read(reader, buffer).flags(squeue::Flags::IO_LINK),
        opcode::LinkTimeout::new(&far).build().flags(squeue::Flags::IO_LINK),
        nop(2),
        fifo.open(),
        opcode::Timeout::new(&far).build(),
        opcode::PollAdd::new(types::Fixed(0), libc::POLLIN as u32).multi(true).build(),
        nop(6).flags(squeue::Flags::IO_DRAIN),
        nop(7),
    ];
    submit(&mut ring, &entries);
    ring
}

#[test]
fn rings_give_back_their_descriptors_and_memory() {
    alone_and_bounded(|| {
        let ((reader, _writer), fifo, mut buffer) = (pipe(), Fifo::new(), [0; 4]);
        drop(busy_ring(&reader, &fifo, &mut buffer));
        let before = (open_descriptors(), mappings());
        for _ in 0..100 {
            drop(busy_ring(&reader, &fifo, &mut buffer));
        }
        eventually("descriptors are as before", || open_descriptors() <= before.0);
        // The allocator may keep a few for its threads.
        eventually("mappings are as before", || mappings() <= before.1 + 16);
    });
}

#[test]
fn an_idle_ring_is_small() {
    alone_and_bounded(|| {
        let before = resident();
        let mut rings: Vec<_> = (0..100).map(|_| IoUring::new(256).unwrap()).collect();
        for ring in &mut rings {
            assert_eq!(result(ring, nop(1)), 0);
        }
        let each = resident().saturating_sub(before) / rings.len();
        assert!(each < 256 * 1024, "{each} bytes for each ring of 256 entries");
    });
}

#[test]
fn nothing_spins_while_nothing_happens() {
    alone_and_bounded(|| {
        let ((reader, _writer), fifo, mut buffers) = (pipe(), Fifo::new(), [[0; 4]; 6]);
        let mut rings: Vec<_> = buffers.iter_mut().map(|buffer| busy_ring(&reader, &fifo, buffer)).collect();
        let mut polled: IoUring = IoUring::builder().setup_sqpoll(1).build(4).unwrap();
        eventually("the SQ thread sleeps", || polled.submission().need_wakeup());
        rings[0].completion().sync();
        let before = processor_time();
        std::thread::sleep(Duration::from_millis(300));
        let used = processor_time() - before;
        assert!(used < Duration::from_millis(60), "{used:?} of processor time");
    });
}

#[test]
fn one_attendant_serves_all_rings_and_sq_threads_go_with_theirs() {
    alone_and_bounded(|| {
        const SQ_THREAD: &str = "iou-sqp";
        eventually("no SQ thread of another test", || threads_named(SQ_THREAD) == 0);
        let rings: Vec<_> = (0..50).map(|_| IoUring::new(4).unwrap()).collect();
        assert_eq!(threads_named("usring-attend"), 1);
        let polled = |attach: Option<&IoUring>| -> IoUring {
            let mut builder = IoUring::builder();
            builder.setup_sqpoll(10_000);
            if let Some(ring) = attach {
                builder.setup_attach_wq(ring.as_raw_fd());
            }
            builder.build(4).unwrap()
        };
        let first = polled(None);
        let attached = [polled(Some(&first)), polled(Some(&first))];
        let other = polled(None);
        eventually("there are two threads for four rings", || threads_named(SQ_THREAD) == 2);
        drop(first);
        drop(other);
        eventually("one is left", || threads_named(SQ_THREAD) == 1);
        drop(attached);
        eventually("none is left", || threads_named(SQ_THREAD) == 0);
        drop(rings);
    });
}
