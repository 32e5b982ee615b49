//! MSG_RING between rings of the API. A sender names the target ring by its descriptor.

use crate::ring::{IoUring, cqueue, opcode, squeue, types};
use crate::support::*;
use std::os::fd::AsRawFd;

const DEFER: fn() -> IoUring = || IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(16).unwrap();

fn message(target: &IoUring, result: i32, user_data: u64) -> squeue::Entry {
    opcode::MsgRingData::new(types::Fd(target.as_raw_fd()), result, user_data, None).build()
}

#[test]
fn a_message_is_a_completion_of_another_ring() {
    bounded(|| {
        let (mut sender, mut target) = (IoUring::new(8).unwrap(), IoUring::new(8).unwrap());
        assert_eq!(result(&mut sender, message(&target, -7, 42).user_data(1)), 0);
        let done = collect(&mut target, 1)[0];
        assert_eq!((done.user_data, done.result, done.flags), (42, -7, 0));
        let flagged = opcode::MsgRingData::new(types::Fd(target.as_raw_fd()), 3, 43, Some(1 << 16 | 1)).build();
        assert_eq!(result(&mut sender, flagged), 0);
        let done = collect(&mut target, 1)[0];
        assert_eq!((done.user_data, done.result, cqueue::buffer_select(done.flags)), (43, 3, Some(1)));
    });
}

#[test]
fn a_deferring_ring_shows_messages_when_its_owner_enters() {
    bounded(|| {
        let (mut sender, mut target) = (IoUring::new(8).unwrap(), DEFER());
        for number in 0..3 {
            assert_eq!(result(&mut sender, message(&target, 0, number)), 0);
        }
        assert!(target.completion().is_empty());
        let done = collect(&mut target, 3);
        assert!(done.iter().map(|done| done.user_data).eq(0..3), "{done:?}");
    });
}

#[test]
fn a_waiting_thread_is_woken_by_messages() {
    bounded(|| {
        for make in [|| IoUring::new(8).unwrap(), DEFER] {
            let mut target = make();
            let fd = types::Fd(target.as_raw_fd());
            let sender = std::thread::spawn(move || {
                let mut ring = IoUring::new(8).unwrap();
                for number in 0..3 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    let message = opcode::MsgRingData::new(fd, 0, number, None).build();
                    assert_eq!(result(&mut ring, message), 0);
                }
            });
            // The wait returns only after all three messages have been posted.
            target.submit_and_wait(3).unwrap();
            let done: Vec<Done> = target.completion().map(Done::from).collect();
            assert!(done.iter().map(|done| done.user_data).eq(0..3), "{done:?}");
            sender.join().unwrap();
        }
    });
}

#[test]
fn a_file_is_sent_to_another_rings_table() {
    bounded(|| {
        let (mut sender, mut target) = (IoUring::new(8).unwrap(), IoUring::new(8).unwrap());
        let file = file_with(b"contents");
        sender.submitter().register_files(&[file.as_raw_fd()]).unwrap();
        target.submitter().register_files_sparse(4).unwrap();
        drop(file);
        let slot = types::DestinationSlot::auto_target();
        let fd = types::Fd(target.as_raw_fd());
        assert_eq!(result(&mut sender, opcode::MsgRingSendFd::new(fd, types::Fixed(0), slot, 9).build()), 0);
        let done = collect(&mut target, 1)[0];
        assert_eq!((done.user_data, done.result), (9, 0), "the first free slot");
        sender.submitter().unregister_files().unwrap();
        let mut buffer = [0; 8];
        let read = opcode::Read::new(types::Fixed(0), buffer.as_mut_ptr(), 8).build();
        assert_eq!(result(&mut target, read), 8);
        assert_eq!(&buffer, b"contents");
    });
}

#[test]
fn unread_messages_do_not_keep_a_ring_alive() {
    bounded(|| {
        let (reader, writer) = pipe();
        let mut sender = IoUring::new(64).unwrap();
        sender.submitter().register_files(&[reader.as_raw_fd()]).unwrap();
        drop(reader);
        {
            let target = DEFER();
            target.submitter().register_files_sparse(1).unwrap();
            let slot = types::DestinationSlot::auto_target();
            let fd = types::Fd(target.as_raw_fd());
            assert_eq!(result(&mut sender, opcode::MsgRingSendFd::new(fd, types::Fixed(0), slot, 0).build()), 0);
            for number in 0..40 {
                assert_eq!(result(&mut sender, message(&target, 0, number)), 0);
            }
        }
        drop(sender);
        eventually("the pipe has no reader any more", || is_deserted(&writer));
    });
}

fn is_deserted(writer: &impl AsRawFd) -> bool {
    let mut entry = libc::pollfd { fd: writer.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: the array is one entry, as its count says.
    unsafe { libc::poll(&mut entry, 1, 0) };
    entry.revents & libc::POLLERR != 0
}
