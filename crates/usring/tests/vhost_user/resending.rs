//! Back ends with almost no features, and requests that the driver sends again to the next back
//! end. The back end is that of [`crate::plain`].

use crate::MEGABYTE;
use crate::backend::{Device, LIMIT};
use crate::plain::{Disk, EVENT_INDEX, FLUSH, INDIRECT, Plain, Plan};
use crate::user::{Pages, Traffic, read, request, run, vector, wait, wait_asleep};
use usring_device::{Completions, DeviceRequest, Operation, QueuePair, Submission};
use usring_sys::Errno;
use vhost::vhost_user::VhostUserProtocolFeatures;

const NOTHING: VhostUserProtocolFeatures = VhostUserProtocolFeatures::CONFIG;
const RECORD: VhostUserProtocolFeatures = VhostUserProtocolFeatures::INFLIGHT_SHMFD;
const ACKNOWLEDGES: VhostUserProtocolFeatures = VhostUserProtocolFeatures::REPLY_ACK;

struct Place {
    folder: tempfile::TempDir,
    disk: Disk,
}

impl Place {
    fn new() -> Place {
        let disk = Disk::default();
        disk.blocks.lock().unwrap().resize(MEGABYTE as usize, 0);
        Place { folder: tempfile::tempdir().unwrap(), disk }
    }

    fn socket(&self) -> String {
        self.folder.path().join("socket").to_str().unwrap().to_owned()
    }

    fn start(&self, features: u64, protocol: VhostUserProtocolFeatures, plan: Plan) -> Plain {
        Plain::start(&self.socket(), self.disk.clone(), features, protocol, plan)
    }
}

#[test]
fn a_back_end_with_minimal_features_is_served() {
    for features in [0, INDIRECT, EVENT_INDEX, INDIRECT | EVENT_INDEX] {
        let place = Place::new();
        let _back = place.start(features, NOTHING, Plan::Serve);
        let device = Device::connect(&place.socket(), ",zero-copy=on");
        let shared = Pages::new(64 * 1024, 0x77);
        device.driver.share_memory(vector(&shared));
        let mut queue = device.queue(true);
        let mut traffic = Traffic::new(0, 64, 16);
        traffic.run(&mut *queue, 500);
        traffic.submit(&mut *queue);
        let ended = wait_asleep(&mut *queue, traffic.out());
        traffic.take(&ended);
        traffic.verify(&mut *queue);
        // A large request may use many descriptors. The queue holds as many requests as it has
        // descriptors for.
        let transfer = device.driver.geometry().transfer as usize;
        assert!(transfer > 100_000);
        let bytes: Vec<u8> = (0..transfer).map(|at| (at / 5) as u8).collect();
        assert_eq!(run(&mut *queue, &request(0, Operation::Write, 512 * 1024, &[vector(&bytes)])), transfer as i32);
        let into = vec![vec![0u8; transfer]; 64];
        let mut accepted = 0;
        for buffer in &into {
            let segments = [vector(buffer)];
            match queue.submit(&request(accepted, Operation::Read, 512 * 1024, &segments)) {
                Submission::Accepted => accepted += 1,
                other => assert_eq!(other, Submission::Full),
            }
        }
        assert_eq!(accepted == 64, features & INDIRECT != 0);
        queue.ring_doorbell();
        wait(&mut *queue, accepted as usize);
        assert!(into[..accepted as usize].iter().all(|buffer| *buffer == bytes));
        // The memory was shared before the queue started, so the back end can access it.
        let inside = [vector(&shared[4096..][..8192])];
        let write = DeviceRequest { registered: true, ..request(0, Operation::Write, 0, &inside) };
        assert_eq!(run(&mut *queue, &write), 8192);
        assert_eq!(device.control.counts().1, 1);
        assert_eq!(read(&mut *queue, 0, 8192), vec![0x77; 8192]);
        // The back end accepts no memory after the queue has started. So memory that is registered
        // later is not shared, and the driver copies its data.
        let late = Pages::new(64 * 1024, 0x88);
        device.driver.share_memory(vector(&late));
        let outside = [vector(&late[..4096])];
        let write = DeviceRequest { registered: true, ..request(0, Operation::Write, 0, &outside) };
        assert_eq!(run(&mut *queue, &write), 4096);
        assert_eq!(device.control.counts().1, 1);
    }
}

fn wait_for_sentence(device: &Device, end: &str) {
    while !device.messages.recv_timeout(LIMIT).unwrap().ends_with(end) {}
}

/// Submits eight writes to a back end that takes six, completes some of them, and ends. A second
/// back end then serves the queue. Returns the sectors that the two back ends have written, in the
/// order of the writes.
fn die_between(protocol: VhostUserProtocolFeatures, completes: &[usize], torn: bool) -> Vec<u64> {
    let place = Place::new();
    let plan = Plan::Die { takes: 6, completes: completes.to_vec(), torn };
    let back = place.start(INDIRECT | EVENT_INDEX, protocol, plan);
    let device = Device::connect(&place.socket(), ",reconnect=on");
    let mut queue = device.queue(false);
    let buffers: Vec<_> = (0..8u8).map(|number| vec![number + 1; 512]).collect();
    let submit = |queue: &mut dyn QueuePair, numbers: std::ops::Range<usize>| {
        for number in numbers {
            let segments = [vector(&buffers[number])];
            let write = request(number as u32, Operation::Write, number as u64 * 512, &segments);
            assert_eq!(queue.submit(&write), Submission::Accepted);
        }
        queue.ring_doorbell();
    };
    submit(&mut *queue, 0..6);
    back.has_died();
    submit(&mut *queue, 6..8);
    let _back = place.start(INDIRECT | EVENT_INDEX, protocol, Plan::Serve);
    // The test polls for the first time after the second back end has connected. So it finds the
    // completions of the first back end only now.
    wait_for_sentence(&device, "socket is back");
    let mut ended: Vec<_> =
        wait(&mut *queue, 8).iter().map(|completion| (completion.token, completion.result)).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..8).map(|token| (token, 512)).collect::<Vec<_>>());
    let blocks = place.disk.blocks.lock().unwrap();
    assert!(buffers.iter().enumerate().all(|(number, buffer)| blocks[number * 512..][..512] == buffer[..]));
    place.disk.written.lock().unwrap().clone()
}

#[test]
fn requests_that_a_dead_back_end_left_are_resent_in_order() {
    for protocol in [NOTHING, ACKNOWLEDGES, RECORD, RECORD | ACKNOWLEDGES] {
        assert_eq!(die_between(protocol, &[4, 1], false), [4, 1, 0, 2, 3, 5, 6, 7], "{protocol:?}");
        assert_eq!(die_between(protocol, &[], false), [0, 1, 2, 3, 4, 5, 6, 7], "{protocol:?}");
        assert_eq!(die_between(protocol, &[5, 4, 3, 2, 1, 0], false), [5, 4, 3, 2, 1, 0, 6, 7], "{protocol:?}");
    }
}

#[test]
fn a_torn_record_causes_no_request_to_be_sent_twice() {
    assert_eq!(die_between(RECORD, &[3, 0], true), [3, 0, 1, 2, 4, 5, 6, 7]);
}

#[test]
fn a_queue_with_a_new_user_has_an_empty_record() {
    let place = Place::new();
    let plan = Plan::Die { takes: 3, completes: vec![1], torn: false };
    let back = place.start(INDIRECT, RECORD, plan);
    let device = Device::connect(&place.socket(), ",reconnect=on");
    let mut queue = device.queue(false);
    let buffer = vec![1u8; 512];
    for number in 0..3 {
        let segments = [vector(&buffer)];
        assert_eq!(queue.submit(&request(number, Operation::Write, 512, &segments)), Submission::Accepted);
    }
    queue.ring_doorbell();
    back.has_died();
    // The user drops the queue pair. Its requests in flight must not reach the next user of the
    // queue.
    wait_for_sentence(&device, "wait until it returns");
    drop(queue);
    let _back = place.start(INDIRECT, RECORD, Plan::Serve);
    let mut queue = device.queue(false);
    let segments = [vector(&buffer)];
    assert_eq!(run(&mut *queue, &request(0, Operation::Write, 1024, &segments)), 512);
    assert_eq!(*place.disk.written.lock().unwrap(), [1, 2]);
}

#[test]
fn a_durable_write_is_followed_by_a_flush_before_it_completes() {
    let place = Place::new();
    let _back = place.start(INDIRECT | EVENT_INDEX, NOTHING, Plan::Serve);
    let device = Device::connect(&place.socket(), "");
    for interrupts in [false, true] {
        let mut queue = device.queue(interrupts);
        let buffer = vec![1u8; 512];
        let segments = [vector(&buffer)];
        for (sector, durable) in [(3, true), (4, false)] {
            let write = DeviceRequest { durable, ..request(0, Operation::Write, sector * 512, &segments) };
            assert_eq!(queue.submit(&write), Submission::Accepted);
            queue.ring_doorbell();
            let ended = if interrupts { wait_asleep(&mut *queue, 1) } else { wait(&mut *queue, 1) };
            assert_eq!(ended[0].result, 512);
        }
        assert_eq!(std::mem::take(&mut *place.disk.written.lock().unwrap()), [3, FLUSH, 4]);
    }
}

/// Returns the result of a request whose user begins to sleep before the back end ends, and wakes
/// when the request completes.
fn asleep_meanwhile(options: &str, afterwards: impl FnOnce(&Place) -> Option<Plain>) -> i32 {
    let place = Place::new();
    let never = Plan::Die { takes: usize::MAX, completes: Vec::new(), torn: false };
    let back = place.start(INDIRECT | EVENT_INDEX, NOTHING, never);
    let device = Device::connect(&place.socket(), options);
    let mut queue = device.queue(true);
    let buffer = vec![1u8; 512];
    let segments = [vector(&buffer)];
    assert_eq!(queue.submit(&request(0, Operation::Write, 512, &segments)), Submission::Accepted);
    queue.ring_doorbell();
    assert!(queue.arm_interrupt());
    let _others = (drop(back), afterwards(&place));
    let mut completions = Completions::new();
    // The user polls only after an interrupt.
    while completions.as_slice().is_empty() {
        let mut watched = libc::pollfd { fd: queue.interrupt().unwrap(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the array is one entry, as its count says.
        assert_eq!(unsafe { libc::poll(&mut watched, 1, LIMIT.as_millis() as i32) }, 1, "no interrupt came");
        queue.poll(&mut completions);
    }
    completions.as_slice()[0].result
}

#[test]
fn a_sleeping_user_is_woken_when_a_back_end_ends_and_when_one_starts() {
    assert_eq!(asleep_meanwhile("", |_| None), Errno::EIO.negative());
    let another = |place: &Place| Some(place.start(INDIRECT | EVENT_INDEX, NOTHING, Plan::Serve));
    assert_eq!(asleep_meanwhile(",reconnect=on", another), 512);
}
