//! Tests of a device as a file. The expected results are those of a Linux block device (each
//! measured on a loop device). They do not depend on the operations that the device under test
//! supports.
#![cfg(not(loom))]

mod test_device;

use fastrand::Rng;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use test_device::wait_limit::repeat_until_good;
use test_device::{BLOCK, HalfUsable, TestDriver, driver};
use usring_device::{BlockFile, Operation, PollPolicy, Route, Transfer};
use usring_sys::Errno;
use usring_sys::plain::IoVector;

const SIZE: u64 = 64 << 10;
const CLASSIC: PollPolicy = PollPolicy::Classic;

fn memory(bytes: &mut [u8]) -> IoVector {
    IoVector { base: bytes.as_mut_ptr().expose_provenance() as u64, length: bytes.len() as u64 }
}

fn read(file: BlockFile, offset: u64, length: usize, direct: bool) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0xee; length];
    let count = file.read(offset, &[memory(&mut bytes)], direct)?;
    assert!(bytes[count as usize..].iter().all(|byte| *byte == 0xee), "no byte behind the returned length is written");
    bytes.truncate(count as usize);
    Ok(bytes)
}

fn write(file: BlockFile, offset: u64, bytes: &[u8], direct: bool) -> Result<u64, Errno> {
    file.write(offset, &[memory(&mut bytes.to_vec())], direct, false)
}

fn random_bytes(random: &mut Rng, length: u64) -> Vec<u8> {
    (0..length).map(|_| random.u8(..)).collect()
}

/// Splits memory into segments, some of them empty.
fn cut(random: &mut Rng, whole: IoVector) -> Vec<IoVector> {
    let (mut parts, mut at) = (vec![], 0);
    while at < whole.length {
        let most = if random.u64(..2) == 0 { 40 } else { whole.length - at };
        let length = random.u64(..most + 1).min(whole.length - at);
        parts.push(IoVector { base: whole.base + at, length });
        at += length;
    }
    parts
}

/// Makes random reads and writes on a device and on a vector, at any offset and of any length.
/// Checks that the results on the device equal those on the vector.
fn compare_with_a_vector(driver: TestDriver, seed: u64) {
    let (device, controls, _) = driver.device(CLASSIC);
    let (file, mut random) = (device.as_file(), Rng::with_seed(seed));
    let mut model = vec![0u8; SIZE as usize];
    for _ in 0..3000 {
        let offset = random.u64(..SIZE + 600);
        let longest = [1_500, 30_000][usize::from(random.u64(..4) == 0)];
        let length = random.u64(..longest);
        let within = length.min(SIZE.saturating_sub(offset));
        let range = (offset.min(SIZE) as usize)..(offset.min(SIZE) + within) as usize;
        let mut bytes = random_bytes(&mut random, length);
        let segments = cut(&mut random, memory(&mut bytes));
        if random.u64(..2) == 0 {
            let answer = file.write(offset, &segments, false, false);
            let full = offset >= SIZE && length > 0;
            assert_eq!(answer, if full { Err(Errno::ENOSPC) } else { Ok(within) });
            model[range.clone()].copy_from_slice(&bytes[..range.len()]);
        } else {
            assert_eq!(file.read(offset, &segments, false), Ok(within));
            assert_eq!(bytes[..within as usize], model[range], "{length} bytes at {offset}");
        }
    }
    assert!(*controls.bytes.lock().unwrap() == model);
}

#[test]
fn byte_ranges_are_read_and_written_like_those_of_a_vector() {
    compare_with_a_vector(driver(SIZE), 1);
}

#[test]
fn memory_that_a_device_cannot_reach_uses_a_bounce_buffer() {
    let mut driver = driver(SIZE);
    driver.geometry.alignment = 64;
    compare_with_a_vector(driver, 2);
}

#[test]
fn transfers_work_with_one_segment_per_request_and_two_queue_entries() {
    let mut driver = driver(SIZE);
    driver.geometry.segments = 1;
    driver.geometry.transfer = BLOCK;
    driver.controls.room.store(2, Relaxed);
    driver.controls.worker_every.store(3, Relaxed);
    compare_with_a_vector(driver, 3);
}

#[test]
fn parts_of_large_blocks_are_read_and_written() {
    let mut driver = driver(SIZE);
    driver.geometry.block = 4096;
    compare_with_a_vector(driver, 4);
}

#[test]
fn pieces_of_a_long_transfer_are_in_flight_together() {
    let (device, controls, _) = driver(SIZE).device(CLASSIC);
    assert_eq!(read(device.as_file(), 0, SIZE as usize, true).map(|bytes| bytes.len()), Ok(SIZE as usize));
    assert_eq!(controls.get(|c| &c.requests), 8);
    assert_eq!(controls.get(|c| &c.most_in_flight), 8);
}

#[test]
fn a_transfer_ends_at_the_end_of_the_device() {
    let (device, ..) = driver(SIZE).device(CLASSIC);
    let file = device.as_file();
    for direct in [false, true] {
        for past in [0, 1, 512, 1 << 40, i64::MAX as u64 - SIZE - 100] {
            assert_eq!(read(file, SIZE + past, 100, direct), Ok(vec![]));
            assert_eq!(write(file, SIZE + past, &[1; 100], direct), Err(Errno::ENOSPC));
            assert_eq!(write(file, SIZE + past, &[], direct), Ok(0));
        }
        assert_eq!(read(file, SIZE - 512, 4096, direct), Ok(vec![0; 512]));
        assert_eq!(write(file, SIZE - 512, &[0; 4096], direct), Ok(512));
        // If a transfer crosses the device's end, only its part within the device has to be a
        // number of whole blocks.
        assert_eq!(read(file, SIZE - 512, 700, direct), Ok(vec![0; 512]));
        assert_eq!(write(file, SIZE - 512, &[0; 700], direct), Ok(512));
        for offset in [i64::MAX as u64, 1 << 63, u64::MAX] {
            assert_eq!(read(file, offset, 4096, direct), Err(Errno::EINVAL));
            assert_eq!(write(file, offset, &[1; 4096], direct), Err(Errno::EINVAL));
        }
    }
}

#[test]
fn direct_transfers_of_partial_blocks_or_unaligned_memory_are_refused() {
    let mut driver = driver(SIZE);
    driver.geometry.alignment = 4;
    let (device, ..) = driver.device(CLASSIC);
    let file = device.as_file();
    let mut bytes = vec![0u64; 512];
    let base = bytes.as_mut_ptr().expose_provenance() as u64;
    let both = |offset, base, length| {
        let segments = [IoVector { base, length }];
        let answer = file.read(offset, &segments, true);
        assert_eq!(file.write(offset, &segments, true, false), answer);
        answer
    };
    assert_eq!(both(512, base, 1024), Ok(1024));
    assert_eq!(both(512, base + 4, 1024), Ok(1024));
    for (offset, base, length) in [(100, base, 512), (0, base, 100), (0, base + 1, 512), (0, base + 2, 512)] {
        assert_eq!(both(offset, base, length), Err(Errno::EINVAL));
    }
    assert_eq!(both(100, base, 0), Ok(0));
    let parts = |first| [IoVector { base, length: first }, IoVector { base: base + first, length: 512 - first }];
    assert_eq!(file.read(0, &parts(100), true), Ok(512), "the sum of the lengths must be whole blocks");
    assert_eq!(file.read(0, &parts(101), true), Err(Errno::EINVAL));
    assert_eq!(file.read(0, &parts(101), false), Ok(512));
}

#[test]
fn a_transfer_ends_where_invalid_memory_begins() {
    let (device, controls, _) = driver(SIZE).device(CLASSIC);
    let (file, half) = (device.as_file(), HalfUsable::new());
    controls.bytes.lock().unwrap().fill(7);
    for (good, direct, answer) in [
        (4096, true, Ok(4096)),
        (4096, false, Ok(4096)),
        (600, false, Ok(600)),
        (100, false, Ok(100)),
        (0, false, Err(Errno::EFAULT)),
        (0, true, Err(Errno::EFAULT)),
    ] {
        let segments = [IoVector { base: half.before_end(good), length: 20 << 10 }];
        assert_eq!(file.read(0, &segments, direct), answer);
        assert_eq!(file.write(0, &segments, direct, false), answer);
        if !direct {
            assert_eq!(file.write(300, &segments, false, false), answer);
        }
        assert!(controls.bytes.lock().unwrap().iter().all(|byte| *byte == 7), "the bytes read are the bytes written");
    }
    let segment = |base, length| [IoVector { base, length }];
    let end = usring_sys::user_memory::END;
    assert_eq!(file.read(0, &segment(0x1000, 4096), true), Err(Errno::EFAULT));
    assert_eq!(file.read(0, &segment(end - 512, 1024), true), Err(Errno::EFAULT));
    assert_eq!(file.read(0, &segment(0x1000, 1 << 63), true), Err(Errno::EINVAL));
    assert_eq!(file.read(SIZE, &segment(0x1000, 4096), true), Ok(0), "at the device's end the memory is not checked");
    let direct = half.before_end(700);
    assert_eq!(file.write(0, &segment(direct, 2048), true, false), Ok(512), "only whole blocks are written");
}

#[test]
fn a_transfer_longer_than_linux_allows_is_truncated() {
    let transfer = |segments: &[IoVector], size| {
        let mut driver = driver(512);
        driver.geometry.size = size;
        driver.geometry.transfer = 1 << 30;
        let (operation, durable, registered) = (Operation::Read, false, false);
        Transfer { operation, durable, registered, direct: true, offset: 0, segments }.route(&driver.geometry)
    };
    let page = IoVector { base: 0x1000, length: 1 << 30 };
    assert_eq!(transfer(&[page], 1 << 40), Route::QueuePair { length: 1 << 30 });
    assert_eq!(transfer(&[page, page, page], 1 << 40), Route::BlockFile);
    // The three segments are longer than 2 GiB minus a page, the kernel's limit. So the transfer is
    // shortened to the limit, which is a number of whole blocks.
    let rest = IoVector { base: 0x1000, length: 100 };
    assert_eq!(transfer(&[page, page, rest], 1 << 40), Route::BlockFile);
    assert_eq!(transfer(&[rest], 1 << 40), Route::Refused(Errno::EINVAL));
}

#[test]
fn a_transfer_uses_the_queue_pair_only_if_it_fits_one_request() {
    let mut driver = driver(SIZE);
    driver.geometry.alignment = 4;
    let geometry = driver.geometry;
    let route = |operation, offset, lengths: &[u64], direct| {
        let segments: Vec<_> = lengths.iter().map(|length| IoVector { base: 0x1000, length: *length }).collect();
        Transfer { operation, durable: false, registered: false, direct, offset, segments: &segments }.route(&geometry)
    };
    use Operation::{Read, Write};
    for direct in [false, true] {
        assert_eq!(route(Read, 0, &[512], direct), Route::QueuePair { length: 512 });
        assert_eq!(route(Write, SIZE - 1024, &[512, 100, 412], direct), Route::QueuePair { length: 1024 });
        assert_eq!(route(Read, 0, &[8192], direct), Route::QueuePair { length: 8192 });
        assert_eq!(route(Read, 0, &[8192, 512], direct), Route::BlockFile, "longer than a request may be");
        assert_eq!(route(Read, 0, &[512; 5], direct), Route::BlockFile, "too many segments");
        assert_eq!(route(Read, SIZE - 512, &[1024], direct), Route::BlockFile, "cut at the end");
        assert_eq!(route(Read, SIZE, &[512], direct), Route::Nothing);
        assert_eq!(route(Write, SIZE, &[512], direct), Route::Refused(Errno::ENOSPC));
        assert_eq!(route(Write, 0, &[], direct), Route::Nothing);
        assert_eq!(route(Write, 0, &[0, 0], direct), Route::Nothing);
    }
    assert_eq!(route(Read, 100, &[512], false), Route::BlockFile);
    assert_eq!(route(Read, 100, &[512], true), Route::Refused(Errno::EINVAL));
}

#[test]
fn a_transfer_with_an_error_in_the_middle_returns_the_bytes_before_it() {
    let (device, controls, _) = driver(SIZE).device(CLASSIC);
    let file = device.as_file();
    controls.bad_byte.store(20_000, Relaxed);
    // The call has several requests in flight. So the device may also have read blocks after the
    // bad block, but the result ends before the bad block.
    assert_eq!(file.read(0, &[memory(&mut [0; SIZE as usize])], true), Ok(16 << 10));
    assert_eq!(read(file, 16 << 10, 8192, true), Err(Errno::EIO));
    assert_eq!(write(file, 19_500, &[1; 600], false), Ok(19_968 - 19_500), "bytes up to the bad block");
    assert_eq!(write(file, 20_010, &[1; 10], false), Err(Errno::EIO));
    assert_eq!(read(file, 24 << 10, 8192, true).map(|bytes| bytes.len()), Ok(8192));
}

#[test]
fn concurrent_writes_to_parts_of_one_block_are_all_kept() {
    let (device, controls, _) = driver(SIZE).device(CLASSIC);
    controls.latency.store(2_000, Relaxed);
    const THREADS: u64 = 4;
    const PART: u64 = 96;
    // Each thread writes to a part of the device. The parts are adjacent, and some cross a block
    // boundary.
    thread::scope(|scope| {
        for number in 0..THREADS {
            let file = device.as_file();
            scope.spawn(move || {
                for round in 0..300u64 {
                    let value = [(round + number) as u8; PART as usize];
                    let offset = 300 + number * PART;
                    assert_eq!(write(file, offset, &value, false), Ok(PART));
                    assert_eq!(read(file, offset, PART as usize, false), Ok(value.to_vec()), "round {round}");
                }
            });
        }
    });
    let bytes = controls.bytes.lock().unwrap();
    assert!(bytes[..300].iter().chain(&bytes[(300 + THREADS * PART) as usize..]).all(|byte| *byte == 0));
}

#[test]
fn more_threads_than_queue_pairs_take_turns() {
    let (device, controls, _) = driver(SIZE).device(CLASSIC);
    controls.most_queues.store(1, Relaxed);
    thread::scope(|scope| {
        for number in 0..6u64 {
            let file = device.as_file();
            scope.spawn(move || {
                for _ in 0..200 {
                    assert_eq!(write(file, number * 8192, &[number as u8; 8192], true), Ok(8192));
                    assert_eq!(read(file, number * 8192, 8192, true), Ok(vec![number as u8; 8192]));
                }
            });
        }
    });
    assert_eq!(controls.queues.load(Relaxed), 1);
    drop(device);
    assert_eq!(controls.queues.load(Relaxed), 0, "the queue pairs are closed with the device");
}

#[test]
fn a_call_on_a_device_without_queue_pairs_fails_with_ebusy() {
    let (device, controls, _) = driver(SIZE).device(CLASSIC);
    controls.most_queues.store(0, Relaxed);
    assert_eq!(read(device.as_file(), 0, 512, true), Err(Errno::EBUSY));
    controls.most_queues.store(1, Relaxed);
    assert_eq!(read(device.as_file(), 0, 512, true), Ok(vec![0; 512]));
}

#[test]
fn a_call_waits_as_the_current_poll_policy_says() {
    let (device, controls, policy) = driver(SIZE).device(CLASSIC);
    const LATENCY: u64 = 3_000_000;
    controls.latency.store(LATENCY, Relaxed);
    let polls = || {
        let before = controls.get(|c| &c.polls);
        assert_eq!(read(device.as_file(), 0, 512, true), Ok(vec![0; 512]));
        controls.get(|c| &c.polls) - before
    };
    // On a busy machine, this thread may get no processor until the device has completed the
    // request. Then the attempt fails and is repeated.
    let spins = || repeat_until_good(polls, |polls| *polls > 50);
    spins();
    policy.set(PollPolicy::Interrupt);
    for _ in 0..20 {
        assert!(polls() <= 4, "a wait for an interrupt polls only before and after");
    }
    assert!(controls.get(|c| &c.interrupts) >= 20);
    policy.set(PollPolicy::HybridFixed(2 * LATENCY));
    polls();
    for _ in 0..20 {
        assert!(polls() <= 3, "the wait sleeps for the fixed time");
    }
    let interrupts = controls.get(|c| &c.interrupts);
    policy.set(CLASSIC);
    polls();
    spins();
    assert_eq!(controls.get(|c| &c.interrupts), interrupts);
}

#[test]
fn flush_discard_and_zeroes_reach_the_device() {
    let (device, controls, _) = driver(SIZE).device(CLASSIC);
    let file = device.as_file();
    controls.bytes.lock().unwrap().fill(7);
    assert_eq!(file.flush(), Ok(()));
    assert_eq!(controls.get(|c| &c.flushes), 1);
    assert_eq!(file.write(0, &[memory(&mut [7; 700])], false, true), Ok(700));
    assert_eq!(controls.get(|c| &c.durable_writes), 2, "the whole block and the part");
    assert_eq!(file.discard(512, 1024), Ok(()));
    assert_eq!(file.write_zeroes(SIZE - 512, 512, false), Ok(()));
    let zeroes = |range: std::ops::Range<u64>| {
        let bytes = controls.bytes.lock().unwrap();
        (0..SIZE).all(|at| (bytes[at as usize] == 0) == (range.contains(&at) || at >= SIZE - 512))
    };
    assert!(zeroes(512..1536));
    for (offset, length) in [(0, 0), (100, 512), (0, 100), (SIZE - 512, 1024), (SIZE, 512), (u64::MAX - 511, 1024)] {
        assert_eq!(file.discard(offset, length), Err(Errno::EINVAL));
        assert_eq!(file.write_zeroes(offset, length, true), Err(Errno::EINVAL));
    }
}

#[test]
fn missing_device_features_are_emulated_or_refused() {
    let mut driver = driver(SIZE);
    driver.geometry.features = Default::default();
    let (device, controls, _) = driver.device(CLASSIC);
    let file = device.as_file();
    controls.bytes.lock().unwrap().fill(7);
    assert_eq!(file.flush(), Ok(()), "without a cache, written data is durable");
    assert_eq!(controls.get(|c| &c.requests), 0);
    assert_eq!(file.discard(0, 512), Err(Errno::EOPNOTSUPP));
    assert_eq!(file.write_zeroes(0, 512, false), Err(Errno::EOPNOTSUPP));
    assert_eq!(file.write_zeroes(512, 30 << 10, true), Ok(()));
    let bytes = controls.bytes.lock().unwrap();
    assert!((0..SIZE).all(|at| (bytes[at as usize] == 0) == (512..512 + (30 << 10)).contains(&at)));
}

#[test]
fn writes_to_a_read_only_device_fail_with_eperm() {
    let mut driver = driver(SIZE);
    driver.geometry.features.read_only = true;
    let (device, ..) = driver.device(CLASSIC);
    let file = device.as_file();
    assert_eq!(read(file, 10, 700, false), Ok(vec![0; 700]));
    for direct in [false, true] {
        assert_eq!(write(file, 0, &[1; 512], direct), Err(Errno::EPERM));
        assert_eq!(write(file, SIZE, &[1; 512], direct), Err(Errno::EPERM));
    }
    assert_eq!(file.discard(0, 512), Err(Errno::EPERM));
    assert_eq!(file.write_zeroes(0, 512, true), Err(Errno::EPERM));
}
