//! The tests that every driver must pass.

use super::harness::{Memory, Rig, Traffic, WAIT_LIMIT, is_error, is_readable, transfer};
use super::{LEAST_SIZE, Subject};
use std::time::Duration;
use usring_device::{Operation, QueueOptions, Submission};
use usring_sys::Errno;
use usring_sys::user_memory::install_fault_handler;

const POLLED: QueueOptions = QueueOptions { depth: 32, interrupts: false };
const INTERRUPTS: QueueOptions = QueueOptions { depth: 32, interrupts: true };
const ONE: QueueOptions = QueueOptions { depth: 1, interrupts: false };

pub fn geometry_is_valid(subject: &Subject) {
    let geometry = (subject.open)().geometry();
    assert!(geometry.block >= 512 && geometry.block.is_power_of_two());
    assert!(geometry.size >= LEAST_SIZE && geometry.size.is_multiple_of(u64::from(geometry.block)));
    assert!(geometry.alignment.is_power_of_two());
    assert!(geometry.transfer >= geometry.block && geometry.transfer <= i32::MAX as u32);
    assert!(geometry.transfer.is_multiple_of(geometry.block) && geometry.segments >= 1);
    assert!(geometry.features.polls);
}

fn traffic(subject: &Subject, options: QueueOptions, requests: usize) {
    install_fault_handler();
    let driver = (subject.open)();
    let part = 0..LEAST_SIZE;
    Traffic { part, options, requests, keeps_data: subject.keeps_data, seed: 0x9e37_79b9 }.run(&*driver);
}

pub fn polled_traffic_completes_once_and_correctly(subject: &Subject) {
    traffic(subject, POLLED, 3000);
}

pub fn traffic_with_interrupts_completes_once_and_correctly(subject: &Subject) {
    traffic(subject, INTERRUPTS, 1000);
}

pub fn one_request_at_a_time_works(subject: &Subject) {
    traffic(subject, ONE, 300);
}

pub fn a_full_queue_refuses_requests_and_then_continues(subject: &Subject) {
    install_fault_handler();
    let driver = (subject.open)();
    let block = driver.geometry().block as usize;
    let memory = Memory::new(block * POLLED.depth as usize);
    let mut rig = Rig::new(&*driver, POLLED);
    for _ in 0..5 {
        for token in 0..POLLED.depth {
            let segments = [memory.segment(token as usize * block, block)];
            let offset = u64::from(token) * block as u64;
            rig.submit(&transfer(token, Operation::Read, offset, &segments));
        }
        if rig.in_flight == POLLED.depth as usize {
            let segments = [memory.segment(0, block)];
            // A request that a worker executes needs no room in the queue pair.
            let answer = rig.queue.submit(&transfer(0, Operation::Read, 0, &segments));
            assert!(matches!(answer, Submission::Full | Submission::NeedsWorker), "{answer:?}");
        }
        rig.queue.ring_doorbell();
        let mut seen = vec![false; POLLED.depth as usize];
        while rig.in_flight > 0 {
            for completion in rig.wait() {
                assert_eq!(completion.result, block as i32);
                assert!(!std::mem::replace(&mut seen[completion.token as usize], true), "a request completed twice");
            }
        }
        assert!(seen.iter().all(|one| *one));
    }
}

pub fn segments_of_any_length_are_filled_in_order(subject: &Subject) {
    install_fault_handler();
    let driver = (subject.open)();
    let geometry = driver.geometry();
    if geometry.segments < 4 {
        return;
    }
    // If a device needs aligned buffers, the length of each segment but the last must be a multiple
    // of the alignment, too.
    let unit = geometry.alignment as usize;
    let total = 8 * geometry.block as usize;
    let lengths = [unit, 3 * unit, 2 * unit, total - 6 * unit];
    let mut memory = Memory::new(total + 4 * 4096);
    // Each segment has a lower address than the segment before it in the list, with a gap between
    // the two.
    let mut segments = Vec::new();
    let mut end = total + 4 * 4096;
    for length in lengths {
        end = (end - length) / unit * unit;
        segments.push(memory.segment(end, length));
        end -= 2 * unit.max(7).next_multiple_of(unit);
    }
    let data: Vec<u8> = (0..total).map(|index| (index * 7 + index / 251) as u8).collect();
    let place = |memory: &Memory, index: usize| (segments[index].base - memory.address()) as usize;
    let mut from = 0;
    for (index, length) in lengths.into_iter().enumerate() {
        let at = place(&memory, index);
        memory.set(at, &data[from..from + length]);
        from += length;
    }
    let mut rig = Rig::new(&*driver, POLLED);
    assert_eq!(rig.transfer(Operation::Write, 4096, &segments), total as i32);
    let clean = vec![0x11; total + 4 * 4096];
    memory.set(0, &clean);
    assert_eq!(rig.transfer(Operation::Read, 4096, &segments), total as i32);
    if !subject.keeps_data {
        return;
    }
    let mut expected = clean;
    let mut from = 0;
    for (index, length) in lengths.into_iter().enumerate() {
        let at = place(&memory, index);
        expected[at..at + length].copy_from_slice(&data[from..from + length]);
        from += length;
    }
    assert!(memory.get(0, expected.len()) == expected, "wrong bytes in a segment, or changed bytes between segments");
    assert!(rig.read(4096, total) == data);
}

pub fn discard_write_zeroes_and_flush_take_effect(subject: &Subject) {
    install_fault_handler();
    let driver = (subject.open)();
    let features = driver.geometry().features;
    let block = u64::from(driver.geometry().block);
    let mut rig = Rig::new(&*driver, POLLED);
    // The ranges go from small to large. Some are aligned to pages, some are not.
    for (offset, length) in [(0, block), (block, 3 * block), (4096, 8192), (block, 64 * 1024 + block), (0, 1 << 20)] {
        let whole = 2 << 20;
        let data: Vec<u8> = (0..whole).map(|index| 1 + (index % 251) as u8).collect();
        let range = offset as usize..(offset + length) as usize;
        if features.write_zeroes {
            rig.write(0, &data);
            assert_eq!(rig.range(Operation::WriteZeroes, offset, length), 0);
            let mut expected = data.clone();
            expected[range.clone()].fill(0);
            assert!(!subject.keeps_data || rig.read(0, whole) == expected, "zeroes at {range:?}");
        }
        if features.discard {
            rig.write(0, &data);
            assert_eq!(rig.range(Operation::Discard, offset, length), 0);
            let found = rig.read(0, whole);
            let kept = |index: &usize| found[*index] == data[*index] || range.contains(index) && found[*index] == 0;
            assert!(!subject.keeps_data || (0..whole).all(|index| kept(&index)), "discard at {range:?}");
        }
        if features.flush {
            assert_eq!(rig.range(Operation::Flush, 0, 0), 0);
        }
    }
}

pub fn an_interrupt_comes_for_a_request_submitted_after_arming(subject: &Subject) {
    install_fault_handler();
    let driver = (subject.open)();
    let block = driver.geometry().block as usize;
    let memory = Memory::new(block);
    let mut rig = Rig::new(&*driver, INTERRUPTS);
    let number = rig.queue.interrupt().unwrap();
    for round in 0..20u64 {
        assert!(rig.queue.arm_interrupt(), "no request is in flight, so none can have completed");
        let (segments, offset) = ([memory.segment(0, block)], round * block as u64);
        rig.submit(&transfer(0, Operation::Write, offset, &segments));
        rig.queue.ring_doorbell();
        // If a worker has executed the request, there is no interrupt, and none is needed.
        assert!(rig.is_answered() || is_readable(number, WAIT_LIMIT), "no interrupt");
        assert_eq!(rig.wait()[0].result, block as i32);
    }
}

pub fn no_interrupt_comes_without_requests(subject: &Subject) {
    install_fault_handler();
    let driver = (subject.open)();
    let mut rig = Rig::new(&*driver, INTERRUPTS);
    let number = rig.queue.interrupt().unwrap();
    assert!(!is_readable(number, Duration::ZERO));
    for _ in 0..20 {
        rig.write(0, &vec![7; driver.geometry().block as usize]);
        // Arming the interrupt must clear the descriptor. If the descriptor stayed readable, a user
        // that has it in an epoll set would spin.
        assert!(rig.queue.arm_interrupt());
        assert!(!is_readable(number, Duration::ZERO), "an interrupt for a request that has completed");
    }
}

pub fn a_dropped_queue_no_longer_changes_memory(subject: &Subject) {
    install_fault_handler();
    let driver = (subject.open)();
    let block = driver.geometry().block as usize;
    let depth = POLLED.depth as usize;
    for doorbell in [true, false] {
        let mut memory = Memory::new(block * depth);
        let mut rig = Rig::new(&*driver, POLLED);
        rig.write(0, &vec![0xee; block * depth]);
        for token in 0..POLLED.depth {
            let segments = [memory.segment(token as usize * block, block)];
            let offset = u64::from(token) * block as u64;
            rig.submit(&transfer(token, Operation::Read, offset, &segments));
        }
        if doorbell {
            rig.queue.ring_doorbell();
        }
        drop(rig);
        let mine = vec![0x5a; block * depth];
        memory.set(0, &mine);
        // This traffic takes long enough for the requests of the dropped queue pair to end
        // meanwhile.
        let options = POLLED;
        let part = LEAST_SIZE / 2..LEAST_SIZE;
        Traffic { part, options, requests: 200, keeps_data: false, seed: 77 }.run(&*driver);
        assert!(memory.get(0, block * depth) == mine, "memory was written after its queue was dropped");
    }
}

pub fn queues_of_two_threads_do_not_disturb_each_other(subject: &Subject) {
    install_fault_handler();
    let driver = (subject.open)();
    let half = LEAST_SIZE / 2;
    std::thread::scope(|scope| {
        for (index, options) in [POLLED, INTERRUPTS].into_iter().enumerate() {
            let start = index as u64 * half;
            let (driver, keeps_data) = (&*driver, subject.keeps_data);
            let traffic = Traffic { part: start..start + half, options, requests: 1000, keeps_data, seed: start + 5 };
            scope.spawn(move || traffic.run(driver));
        }
    });
}

pub fn an_invalid_address_fails_with_efault(subject: &Subject) {
    if !subject.touches_memory {
        return;
    }
    install_fault_handler();
    let driver = (subject.open)();
    let block = u64::from(driver.geometry().block);
    let mut rig = Rig::new(&*driver, POLLED);
    let good = Memory::new(block as usize);
    let bad = usring_sys::plain::IoVector { base: 4096, length: block };
    for operation in [Operation::Read, Operation::Write] {
        let result = rig.transfer(operation, 0, &[bad]);
        assert!(is_error(result, Errno::EFAULT), "{operation:?} with a bad address: {result}");
        if driver.geometry().segments > 1 {
            let result = rig.transfer(operation, 0, &[good.segment(0, block as usize), bad]);
            // As with pwritev(2), the data before the bad address may have been transferred.
            let is_short = result == block as i32;
            let is_answer = is_short || is_error(result, Errno::EFAULT);
            assert!(is_answer, "{operation:?} with a bad second address: {result}");
        }
    }
    rig.write(0, &vec![9; block as usize]);
}
