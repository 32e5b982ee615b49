//! Bad addresses and random values in requests and calls. The ring answers with an errno, and
//! neither crashes nor hangs.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use fastrand::Rng;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::without_provenance_mut as at;

const FAULT: i32 = negative(libc::EFAULT);

/// Addresses without usable memory: null, the first page, an unmapped page, the kernel's half, a
/// non-canonical address, and the last word of the address space.
const NOWHERE: [usize; 6] = [0, 8, 0x10_0000_0000, 0xffff_ffff_8000_0000, 0x8000_0000_0000_0000, usize::MAX - 7];

fn ring() -> IoUring {
    IoUring::builder().setup_submit_all().build(64).unwrap()
}

/// Two pages. The second page is inaccessible.
struct Edge(*mut u8);

impl Edge {
    fn new() -> Edge {
        // SAFETY: the calls make a new mapping and protect its second page.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let pages =
                libc::mmap(std::ptr::null_mut(), 8192, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(pages.byte_add(4096), 4096, libc::PROT_NONE), 0);
            Edge(pages.cast())
        }
    }

    /// Returns the address that is `bytes` bytes before the end of the accessible page.
    fn before_end(&self, bytes: usize) -> *mut u8 {
        self.0.wrapping_add(4096 - bytes)
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        // SAFETY: `new` has made the mapping, and only this value uses it.
        unsafe { libc::munmap(self.0.cast(), 8192) };
    }
}

#[test]
fn unmapped_data_fails_with_efault() {
    bounded(|| {
        let (mut ring, file, (reader, writer)) = (ring(), file_with(&[1; 100]), pipe());
        put(&writer, b"data");
        let target = types::Fd(file.as_raw_fd());
        for address in NOWHERE {
            for flags in [squeue::Flags::empty(), squeue::Flags::ASYNC] {
                let entries = [
                    opcode::Read::new(target, at(address), 8).build(),
                    opcode::Write::new(target, at(address), 8).build(),
                    opcode::Read::new(types::Fd(reader.as_raw_fd()), at(address), 4).build(),
                    opcode::Write::new(types::Fd(writer.as_raw_fd()), at(address), 4).build(),
                ];
                for entry in entries {
                    let what = format!("{entry:?} of {address:#x}");
                    assert_eq!(result(&mut ring, entry.flags(flags)), FAULT, "{what}");
                }
            }
        }
    });
}

#[test]
fn unmapped_structures_fail_with_efault() {
    bounded(|| {
        let (mut ring, file, edge) = (ring(), file_with(b""), Edge::new());
        ring.submitter().register_files_sparse(4).unwrap();
        let (target, here) = (types::Fd(file.as_raw_fd()), types::Fd(libc::AT_FDCWD));
        let cut = edge.before_end(4) as usize;
        for address in NOWHERE.into_iter().chain([cut]) {
            let how = types::OpenHow::new();
            let entries = [
                opcode::Readv::new(target, at(address), 1).build(),
                opcode::Writev::new(target, at(address), 3).build(),
                opcode::OpenAt2::new(here, c"/".as_ptr(), at(address)).build(),
                opcode::Timeout::new(at(address)).build(),
                opcode::Statx::new(here, c"/".as_ptr(), at(address)).build(),
                opcode::TimeoutUpdate::new(1, at(address)).build(),
            ];
            for entry in entries {
                let what = format!("{entry:?} of {address:#x}");
                assert_eq!(result(&mut ring, entry), FAULT, "{what}");
            }
            if address != cut {
                assert_eq!(result(&mut ring, opcode::FilesUpdate::new(at(address), 2).build()), FAULT);
                assert_eq!(result(&mut ring, opcode::OpenAt::new(here, at(address)).build()), FAULT);
                assert_eq!(result(&mut ring, opcode::OpenAt2::new(here, at(address), &how).build()), FAULT);
            }
        }
    });
}

#[test]
fn unmapped_members_of_a_vector_fail_with_efault() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(&[1; 100]));
        let target = types::Fd(file.as_raw_fd());
        let member = |address, length| libc::iovec { iov_base: at(address), iov_len: length };
        for address in NOWHERE {
            let vector = [member(address, 8), member(address, 8)];
            assert_eq!(result(&mut ring, opcode::Readv::new(target, vector.as_ptr(), 2).build()), FAULT);
            assert_eq!(result(&mut ring, opcode::Writev::new(target, vector.as_ptr(), 1).build()), FAULT);
        }
        let too_long = [member(0x1000, usize::MAX), member(0x1000, 1)];
        assert_eq!(result(&mut ring, opcode::Readv::new(target, too_long.as_ptr(), 2).build()), negative(libc::EINVAL));
    });
}

#[test]
fn data_that_ends_at_an_unmapped_page_is_short_or_fails_with_efault() {
    bounded(|| {
        let (mut ring, file, edge) = (ring(), file_with(&[7; 8192]), Edge::new());
        let target = types::Fd(file.as_raw_fd());
        let read = result(&mut ring, opcode::Read::new(target, edge.before_end(100), 200).build());
        assert!([100, FAULT].contains(&read), "{read}");
        let path_end = edge.before_end(4);
        // SAFETY: these are the last four bytes of the first page.
        unsafe { path_end.copy_from_nonoverlapping(b"/dev".as_ptr(), 4) };
        let here = types::Fd(libc::AT_FDCWD);
        assert_eq!(result(&mut ring, opcode::OpenAt::new(here, path_end.cast()).build()), FAULT, "no NUL");
        // SAFETY: this is the last byte of the first page.
        unsafe { path_end.add(3).write(0) };
        assert_eq!(result(&mut ring, opcode::OpenAt::new(here, path_end.cast()).build()), negative(libc::ENOENT));
    });
}

#[test]
fn paths_that_are_too_long_are_refused() {
    bounded(|| {
        let mut ring = ring();
        let path = vec![b'a'; 10_000];
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr().cast()).build();
        assert_eq!(result(&mut ring, open), negative(libc::ENAMETOOLONG));
    });
}

#[test]
fn registration_of_unmapped_memory_fails_with_efault() {
    bounded(|| {
        let ring = ring();
        for address in NOWHERE.into_iter().filter(|&address| address != 0) {
            let buffer = [libc::iovec { iov_base: at(address), iov_len: 4096 }];
            // SAFETY: the ring refuses the buffer, so it does not use the memory.
            let error = unsafe { ring.submitter().register_buffers(&buffer) }.unwrap_err();
            assert!(
                [Some(libc::EFAULT), Some(libc::EOVERFLOW)].contains(&error.raw_os_error()),
                "{address:#x}: {error}"
            );
            let page = address & !4095;
            // SAFETY: the ring refuses the address, so it does not use the memory.
            let error = unsafe { ring.submitter().register_buf_ring_with_flags(page as u64, 8, 1, 0) }.unwrap_err();
            let number = error.raw_os_error();
            assert!(
                [Some(libc::EFAULT), Some(libc::EINVAL), Some(libc::ENOMEM), Some(libc::EOVERFLOW)].contains(&number),
                "{error}"
            );
        }
    });
}

fn one_of<T: Copy>(random: &mut Rng, choices: &[T]) -> T {
    choices[random.usize(..choices.len())]
}

/// Returns files that random requests may read, write and close without harm.
fn harmless() -> Vec<OwnedFd> {
    let ((reader, writer), (other_reader, other_writer)) = (pipe(), pipe());
    put(&writer, b"something");
    vec![reader, writer, other_reader, other_writer, event(), file_with(&[3; 5000]).into()]
}

/// Returns an SQE of random numbers. Some of these are valid descriptors, flags or addresses.
fn nonsense(random: &mut Rng, files: &[OwnedFd], memory: usize) -> squeue::Entry {
    let opcodes = [
        opcode::Nop::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
        opcode::PollAdd::CODE,
        opcode::PollRemove::CODE,
        opcode::Timeout::CODE,
        opcode::TimeoutRemove::CODE,
        opcode::AsyncCancel::CODE,
        opcode::LinkTimeout::CODE,
        opcode::FilesUpdate::CODE,
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Fadvise::CODE,
        opcode::ProvideBuffers::CODE,
        opcode::RemoveBuffers::CODE,
    ];
    let numbers = [0, 1, 2, 8, 64, u64::MAX, 1 << 31, 1 << 32, 4096];
    let addresses = [0, 8, memory as u64, memory as u64 + 8, 0x10_0000_0000, 0xffff_ffff_8000_0000, u64::MAX];
    let descriptors: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).chain([-1, 1 << 20]).collect();
    let mut sqe = [0u64; 8];
    let flags = one_of(random, &[0, 0, 0, 0x01, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80]);
    let opcode = one_of(random, &opcodes);
    sqe[0] = u64::from(opcode) | flags << 8 | (one_of(random, &descriptors) as u32 as u64) << 32;
    sqe[1] = one_of(random, &[0, 0, 1, u64::MAX, memory as u64, 100]);
    sqe[2] = one_of(random, &addresses);
    // Keeps the length small, so that a request with a valid address stays within the memory at
    // that address.
    let length = one_of(random, &numbers) as u32 % 4096;
    let op_flags = if random.u64(..).is_multiple_of(4) { random.u32(..) } else { 0 };
    sqe[3] = u64::from(length) | u64::from(op_flags) << 32;
    sqe[4] = random.u64(..);
    if random.u64(..).is_multiple_of(8) {
        sqe[5] = random.u64(..);
    }
    // SAFETY: an entry is a `struct io_uring_sqe` of 64 bytes.
    unsafe { std::mem::transmute::<[u64; 8], squeue::Entry>(sqe) }
}

#[test]
fn random_sqes_complete_without_harm() {
    bounded(|| {
        let mut random = Rng::with_seed(1);
        // The only accessible memory that a random SQE can name. Its size allows for the largest
        // length.
        let memory = vec![0u64; 1 << 16].into_boxed_slice();
        for round in 0..40 {
            let files = harmless();
            let mut ring: IoUring = IoUring::builder().setup_submit_all().setup_cqsize(4096).build(128).unwrap();
            for _ in 0..4 {
                let entries: Vec<_> =
                    (0..100).map(|_| nonsense(&mut random, &files, memory.as_ptr() as usize)).collect();
                push(&mut ring, &entries);
                assert_eq!(ring.submit().unwrap(), 100, "round {round}");
            }
            wait_at_most(&ring, 1, std::time::Duration::from_millis(1));
            assert!(ring.completion().len() > 50);
            drop(ring);
        }
    });
}
