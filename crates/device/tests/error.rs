//! Tests of the wrapper that makes random errors. Equal seeds must give equal errors.

mod common;

use common::Subject;
use common::harness::{Memory, Rig, is_error, is_readable, transfer};
use std::time::{Duration, Instant};
use usring_device::spec::parse;
use usring_device::{
    Completion, Completions, DeviceRequest, Driver, Operation, OwnSupply, QueueOptions, QueuePair, Submission,
};
use usring_sys::Errno;
use usring_sys::plain::IoVector;

fn open(text: &str) -> Box<dyn Driver> {
    parse(text).unwrap().open(Box::new(OwnSupply)).unwrap()
}

fn subject(text: &'static str) -> Subject {
    Subject { open: Box::new(move || open(text)), keeps_data: true, touches_memory: true }
}

mod without_errors {
    use super::*;
    any_driver!(subject("error(ram:size=4M,seed=7)"));
}

mod where_half_is_late {
    use super::*;
    any_driver!(subject("error(ram:size=4M,seed=7,late=0.5,late-by=50us)"));
}

mod where_half_is_late_and_all_is_slow {
    use super::*;
    any_driver!(subject("error(delay(ram:size=4M,read=uniform(0ns,40us)),late=0.5,late-by=50us)"));
}

const DEPTH: u32 = 1000;
const POLLED: QueueOptions = QueueOptions { depth: DEPTH, interrupts: false };
const BLOCKS: usize = 8;

fn read(memory: &IoVector, token: u32) -> DeviceRequest<'_> {
    transfer(token, Operation::Read, 0, core::slice::from_ref(memory))
}

fn poll_all(queue: &mut dyn QueuePair) -> Vec<Completion> {
    let mut completions = Completions::new();
    let mut all = Vec::new();
    loop {
        completions.clear();
        queue.poll(&mut completions);
        if completions.as_slice().is_empty() {
            return all;
        }
        all.extend_from_slice(completions.as_slice());
    }
}

/// Returns the results of 1000 reads of eight blocks, indexed by token; `None` for a read that does
/// not complete at once.
fn results(text: &str) -> Vec<Option<i32>> {
    let driver = open(text);
    let memory = Memory::new(512 * BLOCKS);
    let segment = memory.segment(0, 512 * BLOCKS);
    let mut queue = driver.open_queue(POLLED).unwrap();
    for token in 0..DEPTH {
        assert_eq!(queue.submit(&read(&segment, token)), Submission::Accepted);
    }
    queue.ring_doorbell();
    let mut results = vec![None; DEPTH as usize];
    for completion in poll_all(&mut *queue) {
        assert_eq!(results[completion.token as usize].replace(completion.result), None, "a request completed twice");
    }
    results
}

fn count(results: &[Option<i32>], wanted: impl Fn(Option<i32>) -> bool) -> usize {
    results.iter().filter(|result| wanted(**result)).count()
}

#[test]
fn errors_occur_with_their_configured_probabilities() {
    let all = results("error(ram:size=1M,seed=1,eio=0.2,short=0.2,never=0.1,late=0.1,late-by=100s)");
    let near = |found: usize, expected: usize| assert!(found.abs_diff(expected) < 50, "{found}, not {expected}");
    near(count(&all, |result| result == Some(Errno::EIO.negative())), 200);
    near(count(&all, |result| matches!(result, Some(1..4096))), 200);
    near(count(&all, |result| result == Some(4096)), 400);
    near(count(&all, |result| result.is_none()), 200);
}

#[test]
fn a_seed_reproduces_the_errors() {
    let seeded = |seed: u32| results(&format!("error(ram:size=1M,seed={seed},eio=0.2,short=0.2,never=0.2)"));
    assert_eq!(seeded(1), seeded(1));
    assert_ne!(seeded(1), seeded(2));
}

#[test]
fn a_short_transfer_is_any_number_of_whole_blocks() {
    for (text, block) in [("ram:size=1M", 512), ("ram:size=1M,block=4096", 4096)] {
        let driver = open(&format!("error({text},short=1)"));
        let length = BLOCKS * block;
        let mut memory = Memory::new(length);
        let mut rig = Rig::new(&*driver, QueueOptions { depth: 4, interrupts: false });
        let mut seen = [0; BLOCKS + 1];
        for _ in 0..200 {
            memory.set(0, &vec![0xee; length]);
            // There are two segments, and the shortened length may end in either of them.
            let segments = [memory.segment(0, 3 * block), memory.segment(3 * block, length - 3 * block)];
            let result = rig.transfer(Operation::Read, 0, &segments) as usize;
            assert!(result.is_multiple_of(block) && (block..length).contains(&result));
            assert_eq!(memory.get(0, result), vec![0; result]);
            assert_eq!(memory.get(result, length - result), vec![0xee; length - result], "more bytes than reported");
            seen[result / block] += 1;
        }
        assert!(seen[1..BLOCKS].iter().all(|times| *times > 0), "{seen:?}");
        // A request of a single block is never shortened.
        assert_eq!(rig.transfer(Operation::Read, 0, &[memory.segment(0, block)]), block as i32);
        assert_eq!(rig.range(Operation::Flush, 0, 0), 0);
    }
}

#[test]
fn a_short_write_writes_the_bytes_that_it_reports() {
    let driver = open("error(ram:size=1M,short=0.5,seed=2)");
    let mut rig = Rig::new(&*driver, QueueOptions { depth: 4, interrupts: false });
    let mut memory = Memory::new(4096);
    memory.set(0, &[1; 4096]);
    let mut written = 4096;
    while written == 4096 {
        assert_eq!(rig.range(Operation::WriteZeroes, 0, 4096), 0);
        written = rig.transfer(Operation::Write, 0, &[memory.segment(0, 4096)]) as usize;
    }
    for block in 0..8 {
        assert_eq!(rig.read(block * 512, 512), [u8::from((block as usize) < written / 512); 512]);
    }
}

#[test]
fn a_failed_request_changes_nothing_and_raises_the_interrupt() {
    let driver = open("error(ram:size=1M,eio=1)");
    let mut rig = Rig::new(&*driver, QueueOptions { depth: 4, interrupts: true });
    let mut memory = Memory::new(512);
    memory.set(0, &[7; 512]);
    assert!(rig.queue.arm_interrupt());
    for operation in [Operation::Read, Operation::Write, Operation::Flush] {
        let segment = memory.segment(0, 512);
        let segments = core::slice::from_ref(&segment);
        let segments = if operation == Operation::Flush { &[] } else { segments };
        let result = rig.transfer(operation, 0, segments);
        assert!(is_error(result, Errno::EIO), "{operation:?}: {result}");
    }
    assert_eq!(memory.get(0, 512), [7; 512]);
}

#[test]
fn a_request_that_never_completes_occupies_its_slot_and_changes_nothing() {
    let driver = open("error(ram:size=1M,never=1)");
    let options = QueueOptions { depth: 4, interrupts: true };
    let mut queue = driver.open_queue(options).unwrap();
    let mut memory = Memory::new(512);
    memory.set(0, &[7; 512]);
    let segment = memory.segment(0, 512);
    for token in 0..4 {
        assert_eq!(queue.submit(&read(&segment, token)), Submission::Accepted);
    }
    queue.ring_doorbell();
    assert_eq!(queue.submit(&read(&segment, 0)), Submission::Full);
    assert!(queue.arm_interrupt());
    assert!(!is_readable(queue.interrupt().unwrap(), Duration::from_millis(20)));
    assert_eq!(poll_all(&mut *queue), []);
    drop(queue);
    assert_eq!(memory.get(0, 512), [7; 512]);
}

#[test]
fn a_late_request_completes_after_its_delay() {
    let driver = open("error(ram:size=1M,late=1,late-by=30ms)");
    for interrupts in [false, true] {
        let mut rig = Rig::new(&*driver, QueueOptions { depth: 4, interrupts });
        let start = Instant::now();
        rig.write(0, &[5; 512]);
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert_eq!(rig.read(0, 512), [5; 512]);
    }
}

#[test]
fn requests_executed_by_workers_get_the_configured_errors() {
    let discard = DeviceRequest { length: 1 << 20, ..transfer(0, Operation::Discard, 0, &[]) };
    let errors_of = |text: &str| {
        let driver = open(text);
        (0..300).map(|_| driver.execute(&discard)).collect::<Vec<_>>()
    };
    let some = errors_of("error(ram:size=1M,eio=0.5,seed=4)");
    let failed = some.iter().filter(|answer| **answer == Err(Errno::EIO)).count();
    assert!((100..200).contains(&failed) && some.contains(&Ok(0)), "{failed} of 300");
    assert_eq!(some, errors_of("error(ram:size=1M,eio=0.5,seed=4)"));
    let memory = Memory::new(4096);
    let driver = open("error(ram:size=1M,short=1)");
    let bytes = driver.execute(&read(&memory.segment(0, 4096), 0)).unwrap();
    assert!(bytes.is_multiple_of(512) && (512..4096).contains(&bytes));
    let start = Instant::now();
    assert_eq!(open("error(ram:size=1M,late=1,late-by=20ms)").execute(&discard), Ok(0));
    assert!(start.elapsed() >= Duration::from_millis(20));
}
