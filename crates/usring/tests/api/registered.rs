//! Registered files and buffers.

use crate::ring::{IoUring, opcode, register, squeue, types};
use crate::support::*;
use std::os::fd::{AsRawFd, RawFd};

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

#[track_caller]
pub fn error_of<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.unwrap_err().raw_os_error().unwrap()
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn read_fixed(file: &impl AsRawFd, buffer: *const u8, length: u32, index: u16) -> squeue::Entry {
    opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), buffer.cast_mut(), length, index).build()
}

/// Registers buffers. The calling test keeps them until the ring is dropped.
fn register(ring: &IoUring, buffers: &[libc::iovec]) -> std::io::Result<()> {
    // SAFETY: the test keeps the buffers until the ring is dropped.
    unsafe { ring.submitter().register_buffers(buffers) }
}

#[test]
fn registered_buffers_are_read_into_and_written_from() {
    bounded(|| {
        let (buffers, mut ring, file) = ([vec![b'a'; 4096], vec![0u8; 4096]], ring(), file_with(b""));
        register(&ring, &[iovec(&buffers[0]), iovec(&buffers[1])]).unwrap();
        let target = types::Fd(file.as_raw_fd());
        let write = opcode::WriteFixed::new(target, buffers[0][100..].as_ptr(), 1000, 0).build();
        assert_eq!(result(&mut ring, write), 1000);
        assert_eq!(result(&mut ring, read_fixed(&file, buffers[1][3096..].as_ptr(), 1000, 1)), 1000);
        let buffers = std::hint::black_box(buffers);
        assert!(buffers[1][..3096].iter().all(|&byte| byte == 0));
        assert!(buffers[1][3096..].iter().all(|&byte| byte == b'a'));
    });
}

#[test]
fn a_transfer_outside_of_its_buffer_is_refused() {
    bounded(|| {
        let (buffer, mut ring, file) = (vec![0u8; 4096], ring(), file_with(&[1; 8192]));
        let fault = negative(libc::EFAULT);
        assert_eq!(result(&mut ring, read_fixed(&file, buffer.as_ptr(), 1, 0)), fault, "no buffers are registered");
        register(&ring, &[iovec(&buffer[1024..2048])]).unwrap();
        let inside = buffer[1024..].as_ptr();
        assert_eq!(result(&mut ring, read_fixed(&file, inside, 1024, 0)), 1024);
        assert_eq!(result(&mut ring, read_fixed(&file, inside, 1025, 0)), fault);
        assert_eq!(result(&mut ring, read_fixed(&file, inside.wrapping_sub(1), 10, 0)), fault);
        assert_eq!(result(&mut ring, read_fixed(&file, inside, 10, 1)), fault, "no such buffer");
        assert_eq!(result(&mut ring, read_fixed(&file, std::ptr::without_provenance(usize::MAX), 10, 0)), fault);
    });
}

#[test]
fn buffers_are_registered_once_and_unregistered() {
    bounded(|| {
        let (buffer, ring) = (vec![0u8; 64], ring());
        assert_eq!(error_of(ring.submitter().unregister_buffers()), libc::ENXIO);
        assert_eq!(error_of(register(&ring, &[])), libc::EINVAL);
        let nowhere = libc::iovec { iov_base: std::ptr::without_provenance_mut(4096), iov_len: 10 };
        assert_eq!(error_of(register(&ring, &[iovec(&buffer), nowhere])), libc::EFAULT);
        register(&ring, &[iovec(&buffer)]).unwrap();
        assert_eq!(error_of(register(&ring, &[iovec(&buffer)])), libc::EBUSY);
        ring.submitter().unregister_buffers().unwrap();
        register(&ring, &[iovec(&buffer)]).unwrap();
    });
}

#[test]
fn buffer_slots_are_updated_and_tags_report_released_buffers() {
    bounded(|| {
        let (buffers, mut ring, file) = ([vec![0u8; 64], vec![0u8; 64]], ring(), file_with(&[9; 64]));
        let submitter = ring.submitter();
        submitter.register_buffers_sparse(4).unwrap();
        // SAFETY: the buffers live until the ring is dropped.
        unsafe {
            submitter.register_buffers_update(1, &[iovec(&buffers[0])], Some(&[71])).unwrap();
            let too_far = submitter.register_buffers_update(3, &[iovec(&buffers[0]), iovec(&buffers[1])], None);
            assert_eq!(error_of(too_far), libc::EINVAL);
        }
        assert_eq!(result(&mut ring, read_fixed(&file, buffers[0].as_ptr(), 64, 1)), 64);
        assert_eq!(result(&mut ring, read_fixed(&file, buffers[0].as_ptr(), 64, 0)), negative(libc::EFAULT), "empty");
        // SAFETY: the buffers live until the ring is dropped.
        unsafe { ring.submitter().register_buffers_update(1, &[iovec(&buffers[1])], Some(&[72])).unwrap() };
        let tag = collect(&mut ring, 1)[0];
        assert_eq!((tag.user_data, tag.result, tag.flags), (71, 0, 0));
        ring.submitter().unregister_buffers().unwrap();
        assert_eq!(collect(&mut ring, 1)[0].user_data, 72);
    });
}

#[test]
fn tags_can_be_set_at_registration() {
    bounded(|| {
        let (buffer, mut ring) = (vec![0u8; 64], ring());
        // SAFETY: the buffer lives until the ring is dropped.
        unsafe { ring.submitter().register_buffers2(&[iovec(&buffer), iovec(&buffer)], &[81, 0]).unwrap() };
        ring.submitter().unregister_buffers().unwrap();
        assert_eq!(collect(&mut ring, 1)[0].user_data, 81);
        stays_quiet(&mut ring);
    });
}

pub fn read_slot(slot: u32, buffer: &mut [u8]) -> squeue::Entry {
    opcode::Read::new(types::Fixed(slot), buffer.as_mut_ptr(), buffer.len() as u32).build()
}

#[test]
fn registered_files_outlive_their_descriptors() {
    bounded(|| {
        let (mut ring, mut buffer) = (ring(), [0; 8]);
        let (first, second) = (file_with(b"first"), file_with(b"second"));
        ring.submitter().register_files(&[first.as_raw_fd(), -1, second.as_raw_fd()]).unwrap();
        drop((first, second));
        assert_eq!(result(&mut ring, read_slot(0, &mut buffer)), 5);
        assert_eq!(result(&mut ring, read_slot(2, &mut buffer)), 6);
        assert_eq!(result(&mut ring, read_slot(1, &mut buffer)), negative(libc::EBADF));
        assert_eq!(result(&mut ring, read_slot(3, &mut buffer)), negative(libc::EBADF));
        assert_eq!(error_of(ring.submitter().register_files(&[-1])), libc::EBUSY);
        ring.submitter().unregister_files().unwrap();
        assert_eq!(result(&mut ring, read_slot(0, &mut buffer)), negative(libc::EBADF));
        assert_eq!(error_of(ring.submitter().unregister_files()), libc::ENXIO);
        assert_eq!(error_of(ring.submitter().register_files(&[1 << 20])), libc::EBADF);
        assert_eq!(error_of(ring.submitter().register_files(&[])), libc::EINVAL);
    });
}

#[test]
fn file_slots_are_updated() {
    bounded(|| {
        let (mut ring, mut buffer) = (ring(), [0; 16]);
        let files = [file_with(b"1"), file_with(b"22"), file_with(b"333")];
        let number = |index: usize| files[index].as_raw_fd();
        assert_eq!(error_of(ring.submitter().register_files_update(0, &[number(0)])), libc::ENXIO);
        ring.submitter().register_files_sparse(3).unwrap();
        let update = |ring: &IoUring, offset, fds: &[RawFd]| ring.submitter().register_files_update(offset, fds);
        assert_eq!(update(&ring, 0, &[number(0), number(1)]).unwrap(), 2);
        assert_eq!(update(&ring, 0, &[register::SKIP_FILE, -1, number(2)]).unwrap(), 3);
        assert_eq!(result(&mut ring, read_slot(0, &mut buffer)), 1);
        assert_eq!(result(&mut ring, read_slot(1, &mut buffer)), negative(libc::EBADF));
        assert_eq!(result(&mut ring, read_slot(2, &mut buffer)), 3);
        assert_eq!(error_of(update(&ring, 2, &[number(0), number(1)])), libc::EINVAL);
        assert_eq!(error_of(update(&ring, 0, &[1 << 20])), libc::EBADF);
        assert_eq!(update(&ring, 0, &[number(1), 1 << 20]).unwrap(), 1, "slots updated before the first failure");
    });
}

#[test]
fn file_slots_are_updated_by_a_request() {
    bounded(|| {
        let (mut ring, mut buffer) = (ring(), [0; 16]);
        let files = [file_with(b"1"), file_with(b"22")];
        ring.submitter().register_files_sparse(4).unwrap();
        let mut numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let at_two = opcode::FilesUpdate::new(numbers.as_ptr(), 2).offset(2).build();
        assert_eq!(result(&mut ring, at_two), 2);
        assert_eq!(result(&mut ring, read_slot(3, &mut buffer)), 2);
        let any = opcode::FilesUpdate::new(numbers.as_mut_ptr(), 2).offset(-1).build();
        assert_eq!(result(&mut ring, any), 2);
        let mut slots = std::hint::black_box(numbers);
        slots.sort_unstable();
        assert_eq!(slots, [0, 1], "the slots' numbers are written back");
    });
}

#[test]
fn a_request_keeps_the_file_of_a_slot_that_changes() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 8];
        ring.submitter().register_files(&[reader.as_raw_fd()]).unwrap();
        drop(reader);
        submit(&mut ring, &[read_slot(0, &mut buffer).user_data(1)]);
        stays_quiet(&mut ring);
        ring.submitter().register_files_update(0, &[-1]).unwrap();
        put(&writer, b"kept");
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
        assert_eq!(result(&mut ring, read_slot(0, &mut buffer)), negative(libc::EBADF));
    });
}

#[test]
fn setting_the_worker_limits_returns_the_earlier_limits() {
    bounded(|| {
        let ring = ring();
        let mut old = [0, 0];
        ring.submitter().register_iowq_max_workers(&mut old).unwrap();
        assert!(old.iter().all(|&limit| limit > 0));
        let mut same = old;
        ring.submitter().register_iowq_max_workers(&mut same).unwrap();
        assert_eq!(same, old);
    });
}

#[test]
fn personalities_are_registered_and_unregistered() {
    bounded(|| {
        let mut ring = ring();
        let number = ring.submitter().register_personality().unwrap();
        assert!(number > 0);
        assert_eq!(result(&mut ring, nop(1).personality(number)), 0);
        assert_eq!(result(&mut ring, nop(1).personality(number + 1)), negative(libc::EINVAL));
        ring.submitter().unregister_personality(number).unwrap();
        assert_eq!(error_of(ring.submitter().unregister_personality(number)), libc::EINVAL);
        assert_eq!(result(&mut ring, nop(1).personality(number)), negative(libc::EINVAL));
    });
}

#[test]
fn busy_polling_settings_are_returned() {
    bounded(|| {
        let ring = IoUring::new(4).unwrap();
        let submitter = ring.submitter();
        let mut setting = types::Napi::new().set_busy_poll_timeout(50).set_prefer_busy_poll(true);
        submitter.register_napi(&mut setting).unwrap();
        assert_eq!(error_of(submitter.register_napi_add_id(1 << 20)), libc::EINVAL, "queues are not named");
        let mut setting = types::Napi::new().set_tracking(types::NapiTracking::Static);
        submitter.register_napi(&mut setting).unwrap();
        assert_eq!((setting.busy_poll_timeout(), setting.prefer_busy_poll()), (50, true));
        submitter.register_napi_add_id(1 << 20).unwrap();
        assert_eq!(error_of(submitter.register_napi_add_id(1 << 20)), libc::EEXIST);
        submitter.register_napi_del_id(1 << 20).unwrap();
        assert_eq!(error_of(submitter.register_napi_del_id(1 << 20)), libc::ENOENT);
        submitter.unregister_napi(&mut setting).unwrap();
        assert_eq!((setting.busy_poll_timeout(), setting.prefer_busy_poll()), (0, false));
    });
}

#[test]
fn buffers_are_cloned_from_one_ring_to_another() {
    bounded(|| {
        let (first, mut second) = (ring(), ring());
        let (file, buffer) = (file_with(b"data"), vec![0u8; 4096]);
        // SAFETY: the buffer outlives both rings.
        unsafe { first.submitter().register_buffers(&[iovec(&buffer)]) }.unwrap();
        second.submitter().register_buffers_clone(first.as_raw_fd()).unwrap();
        assert_eq!(error_of(second.submitter().register_buffers_clone(first.as_raw_fd())), libc::EBUSY);
        first.submitter().unregister_buffers().unwrap();
        assert_eq!(result(&mut second, read_fixed(&file, buffer.as_ptr(), 4, 0)), 4);
        assert_eq!(&buffer[..4], b"data");
    });
}
