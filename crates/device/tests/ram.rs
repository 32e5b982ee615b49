//! Tests of the RAM device. A queue pair must read the data that any other queue pair has written,
//! also if the other queue pair belongs to another process with the device's memory.

mod common;

use common::Subject;
use common::harness::{Memory, Rig, transfer};
use usring_device::spec::parse;
use usring_device::{Completions, Driver, Operation, OwnSupply, QueueOptions, Submission, Supply};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::{Errno, SystemCall};
use usring_uapi::general as linux;

fn open(text: &str) -> Box<dyn Driver> {
    parse(text).unwrap().open(Box::new(OwnSupply)).unwrap()
}

fn subject(text: &'static str) -> Subject {
    Subject { open: Box::new(move || open(text)), keeps_data: true, touches_memory: true }
}

mod blocks_of_512 {
    use super::*;
    any_driver!(subject("ram:size=4M"));
}

mod blocks_of_4096 {
    use super::*;
    any_driver!(subject("ram:size=1G,block=4096"));
}

const POLLED: QueueOptions = QueueOptions { depth: 64, interrupts: false };

#[test]
fn a_ram_device_larger_than_memory_is_sparse() {
    let driver = open("ram:size=8T");
    let mut rig = Rig::new(&*driver, POLLED);
    for offset in [0, 3 << 40, (8 << 40) - 4096] {
        assert_eq!(rig.read(offset, 4096), vec![0; 4096]);
        rig.write(offset, &vec![(offset >> 40) as u8 + 1; 4096]);
    }
    for offset in [0, 3 << 40, (8 << 40) - 4096] {
        assert_eq!(rig.read(offset, 4096), vec![(offset >> 40) as u8 + 1; 4096]);
    }
}

#[test]
fn a_ram_device_larger_than_the_address_space_is_an_error() {
    assert_eq!(parse("ram:size=1024T").unwrap().open(Box::new(OwnSupply)).err(), Some(Errno::ENOMEM));
}

/// A supply that returns one memory file to every driver, as the launcher does.
#[derive(Clone)]
struct Common(std::sync::Arc<OwnedDescriptor>);

impl Supply for Common {
    fn memory(&self, _: u64) -> Result<OwnedDescriptor, Errno> {
        let number = SystemCall::new(linux::__NR_dup, [self.0.number() as u64, 0, 0, 0, 0]).run()?;
        Ok(OwnedDescriptor::from_raw(number as i32))
    }
}

fn pages(file: &OwnedDescriptor) -> i64 {
    // SAFETY: all fields are integers, for which zero is a valid value.
    let mut stat: linux::stat = unsafe { std::mem::zeroed() };
    SystemCall::new(linux::__NR_fstat, [file.number() as u64, &raw mut stat as u64, 0, 0, 0]).run().unwrap();
    stat.st_blocks / 8
}

#[test]
fn two_drivers_of_one_memory_share_the_devices_data() {
    let common = Common(std::sync::Arc::new(OwnSupply.memory(4 << 20).unwrap()));
    let spec = parse("ram:size=4M").unwrap();
    let (one, other) = (spec.open(Box::new(common.clone())).unwrap(), spec.open(Box::new(common.clone())).unwrap());
    Rig::new(&*one, POLLED).write(8192, &[5; 512]);
    assert_eq!(Rig::new(&*other, POLLED).read(8192, 512), [5; 512]);
}

#[test]
fn discarded_and_zeroed_blocks_free_their_memory() {
    let common = Common(std::sync::Arc::new(OwnSupply.memory(4 << 20).unwrap()));
    let driver = parse("ram:size=4M").unwrap().open(Box::new(common.clone())).unwrap();
    let mut rig = Rig::new(&*driver, POLLED);
    assert_eq!(pages(&common.0), 0);
    for operation in [Operation::Discard, Operation::WriteZeroes] {
        rig.write(0, &vec![1; 4 << 20]);
        assert_eq!(pages(&common.0), 1024);
        assert_eq!(rig.range(operation, 512, (4 << 20) - 512), 0);
        assert_eq!(pages(&common.0), 1);
        assert_eq!(rig.read(0, 512), [1; 512]);
    }
}

#[test]
fn a_request_is_executed_when_it_is_submitted() {
    let driver = open("ram:size=1M");
    let mut queue = driver.open_queue(POLLED).unwrap();
    let memory = Memory::new(4096);
    let segments = [memory.segment(0, 4096)];
    for token in 0..POLLED.depth {
        assert_eq!(queue.submit(&transfer(token, Operation::Write, 0, &segments)), Submission::Accepted);
    }
    assert_eq!(queue.submit(&transfer(0, Operation::Write, 0, &segments)), Submission::Full);
    queue.ring_doorbell();
    let mut completions = Completions::new();
    queue.poll(&mut completions);
    assert_eq!(completions.as_slice().len(), POLLED.depth as usize);
}

/// Several threads write to one block at once. Afterwards the block holds the data of one of them,
/// or a mixture of their data.
#[test]
fn concurrent_writes_to_one_block_leave_one_of_them_or_a_mixture() {
    let driver = open("ram:size=1M");
    std::thread::scope(|scope| {
        for value in 1..=3u8 {
            let driver = &*driver;
            scope.spawn(move || {
                let mut rig = Rig::new(driver, POLLED);
                for _ in 0..500 {
                    rig.write(0, &[value; 4096]);
                    assert!(rig.read(0, 4096).iter().all(|byte| (1..=3).contains(byte)));
                }
            });
        }
    });
}
