//! Tests of the wrapper that adds latency.

mod common;

use common::Subject;
use common::harness::{Memory, Rig, WAIT_LIMIT, is_readable, transfer};
use common::wait_limit::repeat_until_good;
use std::time::{Duration, Instant};
use usring_device::spec::parse;
use usring_device::{Completions, DeviceRequest, Driver, Operation, OwnSupply, QueueOptions, Submission};

fn open(text: &str) -> Box<dyn Driver> {
    parse(text).unwrap().open(Box::new(OwnSupply)).unwrap()
}

fn subject(text: &'static str) -> Subject {
    let keeps_data = text.contains("ram:");
    Subject { open: Box::new(move || open(text)), keeps_data, touches_memory: keeps_data }
}

mod of_one_time {
    use super::*;
    any_driver!(subject("delay(ram:size=4M,read=20us,write=20us,other=20us)"));
}

mod of_drawn_times {
    use super::*;
    any_driver!(subject("delay(ram:size=4M,read=uniform(0ns,60us),write=exponential(20us),seed=3)"));
}

mod around_a_device_that_takes_time_itself {
    use super::*;
    any_driver!(subject("delay(null:size=1G,latency=uniform(1us,40us),read=normal(20us,10us))"));
}

mod around_a_delay {
    use super::*;
    any_driver!(subject("delay(delay(ram:size=4M,read=10us),write=10us)"));
}

const POLLED: QueueOptions = QueueOptions { depth: 64, interrupts: false };

#[test]
fn reads_writes_and_other_operations_have_separate_delays() {
    let driver = open("delay(ram:size=1M,read=20ms,write=40ms,other=60ms)");
    for interrupts in [false, true] {
        let mut rig = Rig::new(&*driver, QueueOptions { interrupts, ..POLLED });
        let mut took = |operation, memory: &Memory| {
            let start = Instant::now();
            let segments = [memory.segment(0, 512)];
            let request = match operation {
                Operation::Flush => transfer(0, operation, 0, &[]),
                _ => transfer(0, operation, 0, &segments),
            };
            assert!(rig.run(&request) >= 0);
            start.elapsed()
        };
        let memory = Memory::new(512);
        let cases = [(Operation::Read, 20), (Operation::Write, 40), (Operation::Flush, 60)];
        for (operation, milliseconds) in cases {
            let attempt = || {
                let took = took(operation, &memory);
                // The clock by which the device delays requests may be off by one part in ten
                // thousand.
                assert!(took >= Duration::from_micros(milliseconds * 999), "{operation:?} took {took:?}");
                took
            };
            // The attempt must take less time than the next delay in this list, which is 20 ms
            // longer. So it took the delay of its own operation, and not that of another one.
            repeat_until_good(attempt, |took| *took < Duration::from_millis(milliseconds + 20));
        }
    }
}

#[test]
fn many_requests_are_delayed_concurrently() {
    let driver = open("delay(ram:size=1M,read=20ms)");
    let memory = Memory::new(512);
    let mut rig = Rig::new(&*driver, POLLED);
    let segments = [memory.segment(0, 512)];
    let attempt = || {
        let start = Instant::now();
        (0..POLLED.depth).for_each(|token| rig.submit(&transfer(token, Operation::Read, 0, &segments)));
        rig.queue.ring_doorbell();
        let mut done = 0;
        while done < POLLED.depth as usize {
            done += rig.wait().len();
            assert!(start.elapsed() >= Duration::from_micros(19_980));
        }
        start.elapsed()
    };
    // If the requests ran one after the other, they would take more than a second.
    repeat_until_good(attempt, |took| *took < Duration::from_millis(20 * 30));
}

/// One thread may sleep on the interrupt while another thread polls the queue pair. A poll that
/// returns no completion must leave the interrupt armed.
#[test]
fn a_poll_that_finds_nothing_does_not_consume_the_interrupt() {
    let driver = open("delay(null:size=1G,latency=5ms,write=1000s)");
    let memory = Memory::new(512);
    let segments = [memory.segment(0, 512)];
    let mut queue = driver.open_queue(QueueOptions { depth: 4, interrupts: true }).unwrap();
    assert!(queue.arm_interrupt());
    assert_eq!(queue.submit(&transfer(0, Operation::Write, 0, &segments)), Submission::Accepted);
    queue.ring_doorbell();
    // This wait is long enough for the inner device to complete the write. The wrapper then holds
    // back the completion.
    let start = Instant::now();
    let mut completions = Completions::new();
    while start.elapsed() < Duration::from_millis(20) {
        queue.poll(&mut completions);
        assert!(completions.as_slice().is_empty());
    }
    assert_eq!(queue.submit(&transfer(1, Operation::Read, 0, &segments)), Submission::Accepted);
    queue.ring_doorbell();
    let number = queue.interrupt().unwrap();
    assert!(is_readable(number, WAIT_LIMIT), "no interrupt");
}

#[test]
fn a_request_executed_by_a_worker_is_delayed() {
    let driver = open("delay(ram:size=4M,other=30ms)");
    let start = Instant::now();
    let discard = DeviceRequest { length: 4 << 20, ..transfer(0, Operation::Discard, 0, &[]) };
    assert_eq!(driver.execute(&discard), Ok(0));
    assert!(start.elapsed() >= Duration::from_micros(29_970));
}

fn order(text: &str) -> Vec<u32> {
    let driver = open(text);
    let memory = Memory::new(512);
    let segments = [memory.segment(0, 512)];
    let mut rig = Rig::new(&*driver, POLLED);
    (0..POLLED.depth).for_each(|token| rig.submit(&transfer(token, Operation::Read, 0, &segments)));
    rig.queue.ring_doorbell();
    let mut order = Vec::new();
    while order.len() < POLLED.depth as usize {
        order.extend(rig.wait().iter().map(|completion| completion.token));
    }
    order
}

#[test]
fn a_seed_reproduces_the_completion_order() {
    let seeded = |seed: u32| order(&format!("delay(ram:size=1M,read=uniform(1us,2ms),seed={seed})"));
    assert_eq!(seeded(1), seeded(1));
    assert_ne!(seeded(1), seeded(2));
    assert_ne!(seeded(1), (0..POLLED.depth).collect::<Vec<_>>());
}
