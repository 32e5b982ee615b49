//! Devices served by a vhost-user-blk back end: Debian's qemu-storage-daemon. The driver and its
//! control plane are in one process.

#![cfg(feature = "vhost-user")]

mod backend;
mod plain;
mod resending;
mod swap;
mod user;

use backend::{Backend, LIMIT};
use std::io::{Read, Seek, SeekFrom};
use std::time::Instant;
use user::{Pages, Traffic, read, request, run, vector, wait, wait_asleep};
use usring_device::{DeviceRequest, Operation, QueueOptions, QueuePair, Submission};
use usring_sys::Errno;

const MEGABYTE: u64 = 1 << 20;

#[test]
fn written_blocks_are_read_back_at_every_queue_depth() {
    for format in ["raw", "qcow2"] {
        let backend = Backend::start(format, 16 * MEGABYTE, 1);
        let device = backend.connect("");
        assert_eq!(device.driver.geometry().size, 16 * MEGABYTE);
        for depth in [1, 2, 8, 32, 128] {
            let mut queue = device.queue(false);
            // The traffic below expects a device of zeroes.
            let whole = DeviceRequest { length: 16 * MEGABYTE, ..request(0, Operation::WriteZeroes, 0, &[]) };
            assert_eq!(run(&mut *queue, &whole), 0);
            let mut traffic = Traffic::new(MEGABYTE, 512, depth);
            traffic.run(&mut *queue, 2000);
            traffic.verify(&mut *queue);
        }
    }
}

#[test]
fn the_file_behind_a_raw_device_has_its_blocks() {
    let backend = Backend::start("raw", 4 * MEGABYTE, 1);
    let device = backend.connect("");
    let mut queue = device.queue(false);
    let bytes: Vec<u8> = (0..300 * 1024u32).map(|at| (at / 7) as u8).collect();
    // Three segments with data, at odd addresses, and one empty segment.
    let (first, rest) = bytes.split_at(4097);
    let (second, third) = rest.split_at(100_001);
    let segments = [vector(first), vector(second), vector(&[]), vector(third)];
    let written = DeviceRequest { durable: true, ..request(9, Operation::Write, 512, &segments) };
    assert_eq!(run(&mut *queue, &written), bytes.len() as i32);
    let mut file = std::fs::File::open(backend.image()).unwrap();
    let mut there = vec![0; bytes.len()];
    file.seek(SeekFrom::Start(512)).unwrap();
    file.read_exact(&mut there).unwrap();
    assert_eq!(there, bytes);
    let mut into = vec![0u8; bytes.len()];
    let (head, tail) = into.split_at_mut(12_345);
    assert_eq!(run(&mut *queue, &request(3, Operation::Read, 512, &[vector(head), vector(tail)])), there.len() as i32);
    assert_eq!(into, bytes);
}

#[test]
fn discarded_and_zeroed_blocks_read_as_zeroes() {
    for format in ["raw", "qcow2"] {
        // The device is larger than what the back end clears in one request.
        let backend = Backend::start(format, 64 * MEGABYTE, 1);
        let device = backend.connect("");
        let mut queue = device.queue(false);
        let ones = vec![1u8; 65536];
        for operation in [Operation::Discard, Operation::WriteZeroes] {
            let places = [0, 20 * MEGABYTE, 50 * MEGABYTE, 60 * MEGABYTE];
            for offset in places {
                assert_eq!(run(&mut *queue, &request(1, Operation::Write, offset, &[vector(&ones)])), 65536);
            }
            let whole = DeviceRequest { length: 60 * MEGABYTE, ..request(1, operation, 0, &[]) };
            assert_eq!(run(&mut *queue, &whole), 0);
            assert_eq!(run(&mut *queue, &request(1, Operation::Flush, 0, &[])), 0);
            for offset in &places[..3] {
                assert!(read(&mut *queue, *offset, 65536).iter().all(|byte| *byte == 0), "{operation:?} at {offset}");
            }
            assert_eq!(read(&mut *queue, places[3], 65536), ones);
        }
    }
}

#[test]
fn a_sleeping_user_is_woken_and_a_polling_user_has_no_interrupt() {
    let backend = Backend::start("raw", MEGABYTE, 1);
    let device = backend.connect("");
    assert_eq!(device.queue(false).interrupt(), None);
    let mut queue = device.queue(true);
    let buffer = vec![7u8; 4096];
    for round in 0..500u64 {
        let durable = round % 3 == 0;
        let write = request(5, Operation::Write, round % 256 * 4096, &[]);
        let segments = [vector(&buffer)];
        let write = DeviceRequest { durable, length: 4096, segments: &segments, ..write };
        assert_eq!(queue.submit(&write), Submission::Accepted);
        queue.ring_doorbell();
        assert_eq!(wait_asleep(&mut *queue, 1)[0].result, 4096);
    }
}

#[test]
fn two_queues_serve_two_threads() {
    let backend = Backend::start("raw", 16 * MEGABYTE, 2);
    let device = backend.connect("");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let mut queue = device.queue(false);
            scope.spawn(move || {
                let mut traffic = Traffic::new(thread * 8 * MEGABYTE, 1024, 32);
                traffic.run(&mut *queue, 10_000);
                traffic.verify(&mut *queue);
            });
        }
    });
}

#[test]
fn users_beyond_the_queues_get_ebusy_until_a_queue_is_returned() {
    let backend = Backend::start("raw", MEGABYTE, 1);
    let device = backend.connect("");
    let options = QueueOptions { depth: 8, interrupts: false };
    let mut queue = device.queue(false);
    for _ in 0..3 {
        assert_eq!(device.driver.open_queue(options).err(), Some(Errno::EBUSY));
    }
    let messages: Vec<_> = device.messages.try_iter().collect();
    assert_eq!(messages.len(), 1);
    assert!(messages[0].ends_with("offers 1 queue, all in use; start it with num-queues=… for more"), "{messages:?}");
    // The drop returns the queue while requests are in flight, and waits until they have completed.
    let buffer = vec![3u8; 4096];
    for token in 0..8 {
        let segments = [vector(&buffer)];
        let write = request(token, Operation::Write, u64::from(token) * 4096, &segments);
        assert_eq!(queue.submit(&write), Submission::Accepted);
    }
    queue.ring_doorbell();
    drop(queue);
    let mut next = device.queue(false);
    assert_eq!(read(&mut *next, 7 * 4096, 4096), buffer);
}

#[test]
fn registered_memory_reaches_the_back_end_without_a_copy() {
    let backend = Backend::start("raw", MEGABYTE, 1);
    let device = backend.connect(",zero-copy=on");
    let pages = Pages::new(64 * 1024, 0x5a);
    // The buffer begins and ends in the middle of a page. Only the whole pages inside it are
    // shared.
    let buffer = &pages[100..60 * 1024];
    let mut queue = device.queue(false);
    device.driver.share_memory(vector(buffer));
    assert!(pages.iter().all(|byte| *byte == 0x5a), "sharing changed the memory");
    let inside = &pages[8192..][..32 * 1024];
    let segments = [vector(&inside[..4096]), vector(&inside[8192..12288])];
    let registered = |operation, registered| DeviceRequest { registered, ..request(1, operation, 4096, &segments) };
    assert_eq!(run(&mut *queue, &registered(Operation::Write, true)), 8192);
    assert_eq!(device.control.counts(), (0, 1));
    assert_eq!(read(&mut *queue, 4096, 8192), vec![0x5a; 8192]);
    assert_eq!(run(&mut *queue, &request(1, Operation::Write, 4096, &[vector(&[1; 8192])])), 8192);
    assert_eq!(run(&mut *queue, &registered(Operation::Read, true)), 8192);
    assert_eq!(device.control.counts(), (2, 2));
    assert!(inside[..4096].iter().chain(&inside[8192..12288]).all(|byte| *byte == 1));
    assert!(inside[4096..8192].iter().all(|byte| *byte == 0x5a));
    // The driver uses shared memory only for a request that says that its memory is registered, and
    // only until that memory is unregistered.
    assert_eq!(run(&mut *queue, &registered(Operation::Read, false)), 8192);
    assert_eq!(device.control.counts(), (3, 2));
    device.driver.unshare_memory(vector(buffer));
    assert_eq!(run(&mut *queue, &registered(Operation::Read, true)), 8192);
    assert_eq!(device.control.counts(), (4, 2));
}

#[test]
fn a_back_end_that_dies_ends_every_request_with_an_error() {
    for asleep in [false, true] {
        let mut backend = Backend::start("raw", MEGABYTE, 1);
        let device = backend.connect("");
        let mut queue = device.queue(asleep);
        let buffers = vec![vec![1u8; 4096]; 64];
        let mut tokens: Vec<u32> = Vec::new();
        let submit = |queue: &mut dyn QueuePair| {
            for (token, buffer) in buffers.iter().enumerate() {
                let segments = [vector(buffer)];
                let write = request(token as u32, Operation::Write, token as u64 * 4096, &segments);
                assert_eq!(queue.submit(&write), Submission::Accepted);
            }
        };
        submit(&mut *queue);
        queue.ring_doorbell();
        wait(&mut *queue, 64);
        // The stopped back end completes none of the requests that the test now submits. When it is
        // killed, the control plane must complete them with EIO.
        backend.stop();
        submit(&mut *queue);
        queue.ring_doorbell();
        backend.kill();
        let ended = if asleep { wait_asleep(&mut *queue, 64) } else { wait(&mut *queue, 64) };
        for completion in ended {
            assert_eq!(completion.result, Errno::EIO.negative());
            tokens.push(completion.token);
        }
        tokens.sort_unstable();
        assert_eq!(tokens, (0..64).collect::<Vec<_>>());
        let segments = [vector(&buffers[0])];
        assert_eq!(queue.submit(&request(0, Operation::Read, 0, &segments)), Submission::Refused(Errno::EIO));
        assert!(device.messages.try_iter().any(|sentence| sentence.contains("has gone")));
        drop(queue);
        let options = QueueOptions { depth: 8, interrupts: false };
        assert_eq!(device.driver.open_queue(options).err(), Some(Errno::EIO));
    }
}

#[test]
fn requests_survive_a_back_end_that_is_killed_and_started_again() {
    for format in ["raw", "qcow2"] {
        let mut backend = Backend::start(format, 16 * MEGABYTE, 2);
        let device = backend.connect(",reconnect=on");
        let mut queue = device.queue(false);
        let mut traffic = Traffic::new(0, 1024, 64);
        let mut idle = device.queue(true);
        let mut quiet = Traffic::new(8 * MEGABYTE, 256, 16);
        quiet.run(&mut *idle, 500);
        for _ in 0..4 {
            traffic.run(&mut *queue, 3000);
            // When the back end is killed, it has taken some of the requests, and others are only
            // published.
            traffic.submit(&mut *queue);
            backend.kill();
            traffic.submit(&mut *queue);
            backend.restart();
            traffic.run(&mut *queue, 3000);
            // The user of the queue `idle` slept while the back end was restarted. The queue must
            // work afterwards.
            quiet.submit(&mut *idle);
            let ended = wait_asleep(&mut *idle, quiet.out());
            quiet.take(&ended);
        }
        traffic.verify(&mut *queue);
        quiet.verify(&mut *idle);
    }
}

#[test]
fn a_queue_that_is_opened_while_the_back_end_is_away_waits_for_it() {
    let mut backend = Backend::start("raw", MEGABYTE, 1);
    let device = backend.connect(",reconnect=on");
    backend.kill();
    let start = Instant::now();
    while !device.messages.try_iter().any(|sentence| sentence.contains("wait until it returns")) {
        assert!(start.elapsed() < LIMIT, "no message says that the back end has gone");
        std::thread::yield_now();
    }
    let mut queue = device.queue(false);
    let buffer = vec![9u8; 4096];
    let segments = [vector(&buffer)];
    assert_eq!(queue.submit(&request(0, Operation::Write, 0, &segments)), Submission::Accepted);
    queue.ring_doorbell();
    backend.restart();
    assert_eq!(wait(&mut *queue, 1)[0].result, 4096);
    assert_eq!(read(&mut *queue, 0, 4096), buffer);
}
