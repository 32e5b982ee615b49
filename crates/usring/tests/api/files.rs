//! Requests that open, close, examine, rename and remove files.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const HERE: types::Fd = types::Fd(libc::AT_FDCWD);

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn fd(file: &impl AsRawFd) -> types::Fd {
    types::Fd(file.as_raw_fd())
}

/// Returns the file whose descriptor number is the result of a request.
#[track_caller]
fn opened(result: i32) -> OwnedFd {
    assert!(result >= 0, "open: {}", std::io::Error::from_raw_os_error(-result));
    // SAFETY: a request has just opened the descriptor, and no other code has it.
    unsafe { OwnedFd::from_raw_fd(result) }
}

#[test]
fn openat_opens_and_creates() {
    bounded(|| {
        let (mut ring, directory) = (ring(), tempfile::tempdir().unwrap());
        let path = c_path(&directory.path().join("new"));
        let open = opcode::OpenAt::new(HERE, path.as_ptr()).flags(libc::O_RDWR | libc::O_CLOEXEC);
        assert_eq!(result(&mut ring, open.build()), negative(libc::ENOENT));
        let create = opcode::OpenAt::new(HERE, path.as_ptr())
            .flags(libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)
            .mode(0o640)
            .build();
        let file = File::from(opened(result(&mut ring, create.clone())));
        // umask(2) may remove the rights of group and others, so only the owner's rights are
        // checked.
        assert_eq!(file.metadata().unwrap().mode() & 0o700, 0o600);
        assert_eq!(result(&mut ring, create), negative(libc::EEXIST));
        // SAFETY: the call names no memory.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0, "no O_NONBLOCK was requested");
        let root = File::open(directory.path()).unwrap();
        let relative = opcode::OpenAt::new(fd(&root), c"new".as_ptr()).build();
        drop(opened(result(&mut ring, relative)));
    });
}

#[test]
fn the_path_may_be_reused_as_soon_as_the_request_is_submitted() {
    bounded(|| {
        let (mut ring, directory) = (ring(), tempfile::tempdir().unwrap());
        let mut path = c_path(&directory.path().join("first")).into_bytes_with_nul();
        let create = opcode::OpenAt::new(HERE, path.as_ptr().cast())
            .flags(libc::O_WRONLY | libc::O_CREAT)
            .mode(0o600)
            .build()
            .flags(squeue::Flags::ASYNC);
        submit(&mut ring, &[create]);
        path.fill(b'x');
        drop(opened(collect(&mut ring, 1)[0].result));
        assert!(directory.path().join("first").exists());
    });
}

#[test]
fn openat2_obeys_its_open_how() {
    bounded(|| {
        let (mut ring, directory) = (ring(), tempfile::tempdir().unwrap());
        std::fs::write(directory.path().join("file"), "content").unwrap();
        let root = File::open(directory.path()).unwrap();
        let beneath = types::OpenHow::new().flags(libc::O_RDONLY as u64).resolve(libc::RESOLVE_BENEATH);
        let open = |path: &CStr, how: &types::OpenHow| opcode::OpenAt2::new(fd(&root), path.as_ptr(), how).build();
        drop(opened(result(&mut ring, open(c"file", &beneath))));
        assert_eq!(result(&mut ring, open(c"../file", &beneath)), negative(libc::EXDEV));
        let unknown = types::OpenHow::new().flags(1 << 40);
        assert_eq!(result(&mut ring, open(c"file", &unknown)), negative(libc::EINVAL));
    });
}

#[test]
fn close_closes_before_it_completes() {
    bounded(|| {
        let mut ring = ring();
        let file = file_with(b"");
        // Other tests take the lowest free numbers, so a number from 500 on stays free after the
        // close.
        // SAFETY: the call names no memory.
        let number = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 500) };
        assert!(is_open_as(number, &file));
        assert_eq!(result(&mut ring, opcode::Close::new(types::Fd(number)).build()), 0);
        assert!(!is_open_as(number, &file));
        assert_eq!(result(&mut ring, opcode::Close::new(types::Fd(1 << 20)).build()), negative(libc::EBADF));
    });
}

#[test]
fn files_are_opened_into_and_closed_from_slots() {
    bounded(|| {
        let (mut ring, directory) = (ring(), tempfile::tempdir().unwrap());
        std::fs::write(directory.path().join("file"), "content").unwrap();
        let path = c_path(&directory.path().join("file"));
        let open_into = |slot| opcode::OpenAt::new(HERE, path.as_ptr()).file_index(Some(slot)).build();
        let slot = |number| types::DestinationSlot::try_from_slot_target(number).unwrap();
        assert_eq!(result(&mut ring, open_into(slot(1))), negative(libc::ENXIO), "no files are registered");
        ring.submitter().register_files_sparse(3).unwrap();
        assert_eq!(result(&mut ring, open_into(slot(1))), 0);
        assert_eq!(result(&mut ring, open_into(slot(3))), negative(libc::EINVAL));
        let mut buffer = [0; 7];
        let read = opcode::Read::new(types::Fixed(1), buffer.as_mut_ptr(), 7).build();
        assert_eq!(result(&mut ring, read.clone()), 7);
        assert_eq!(&buffer, b"content");
        let any = types::DestinationSlot::auto_target();
        assert_eq!(result(&mut ring, open_into(any)), 2, "the next free slot");
        assert_eq!(result(&mut ring, open_into(any)), 0, "and round again");
        assert_eq!(result(&mut ring, open_into(any)), negative(libc::ENFILE));
        assert_eq!(result(&mut ring, opcode::Close::new(types::Fixed(1)).build()), 0);
        assert_eq!(result(&mut ring, opcode::Close::new(types::Fixed(1)).build()), negative(libc::EBADF));
        assert_eq!(result(&mut ring, read), negative(libc::EBADF));
        assert_eq!(result(&mut ring, open_into(any)), 1);
    });
}

#[test]
fn a_registered_file_becomes_an_ordinary_descriptor() {
    bounded(|| {
        let mut ring = ring();
        let file = file_with(b"shared");
        ring.submitter().register_files(&[file.as_raw_fd()]).unwrap();
        drop(file);
        let install = opcode::FixedFdInstall::new(types::Fixed(0), 0).build();
        let installed = File::from(opened(result(&mut ring, install)));
        // SAFETY: the call names no memory.
        assert_eq!(unsafe { libc::fcntl(installed.as_raw_fd(), libc::F_GETFD) }, libc::FD_CLOEXEC);
        assert_eq!(std::io::read_to_string(installed).unwrap(), "shared");
    });
}

#[test]
fn statx_works_on_paths_and_descriptors() {
    bounded(|| {
        let mut ring = ring();
        let file = file_with(&[1; 1234]);
        let mut answer = MaybeUninit::<libc::statx>::zeroed();
        let of_file = opcode::Statx::new(fd(&file), c"".as_ptr(), answer.as_mut_ptr().cast())
            .flags(libc::AT_EMPTY_PATH)
            .mask(libc::STATX_BASIC_STATS)
            .build();
        assert_eq!(result(&mut ring, of_file), 0);
        // SAFETY: the structure consists of plain numbers. It was zeroed, and the request has
        // filled it.
        assert_eq!(unsafe { answer.assume_init() }.stx_size, 1234);
        let of_path = opcode::Statx::new(HERE, c"/nowhere/at all".as_ptr(), answer.as_mut_ptr().cast()).build();
        assert_eq!(result(&mut ring, of_path), negative(libc::ENOENT));
    });
}

#[test]
fn sync_and_space_requests_work() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(b"0123456789"));
        let length = || file.metadata().unwrap().len();
        assert_eq!(result(&mut ring, opcode::Fsync::new(fd(&file)).build()), 0);
        let data_only = opcode::Fsync::new(fd(&file)).flags(types::FsyncFlags::DATASYNC).build();
        assert_eq!(result(&mut ring, data_only), 0);
        let range = opcode::SyncFileRange::new(fd(&file), 10).flags(libc::SYNC_FILE_RANGE_WRITE).build();
        assert_eq!(result(&mut ring, range), 0);
        assert_eq!(result(&mut ring, opcode::Fallocate::new(fd(&file), 100_000).build()), 0);
        assert_eq!(length(), 100_000);
        let keep = opcode::Fallocate::new(fd(&file), 200_000).mode(libc::FALLOC_FL_KEEP_SIZE).build();
        assert_eq!(result(&mut ring, keep), 0);
        assert_eq!(length(), 100_000);
        assert_eq!(result(&mut ring, opcode::Ftruncate::new(fd(&file), 5).build()), 0);
        assert_eq!(length(), 5);
        let (reader, writer) = pipe();
        assert_eq!(result(&mut ring, opcode::Fsync::new(fd(&writer)).build()), negative(libc::EINVAL));
        assert_eq!(result(&mut ring, opcode::Fallocate::new(fd(&writer), 1).build()), negative(libc::ESPIPE));
        drop(reader);
    });
}

#[test]
fn fadvise_and_madvise_requests_work() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(&[0; 8192]));
        for advice in [libc::POSIX_FADV_RANDOM, libc::POSIX_FADV_WILLNEED, libc::POSIX_FADV_DONTNEED] {
            assert_eq!(result(&mut ring, opcode::Fadvise::new(fd(&file), 8192, advice).build()), 0);
        }
        assert_eq!(result(&mut ring, opcode::Fadvise::new(fd(&file), 8192, 77).build()), negative(libc::EINVAL));
        // SAFETY: the call makes a new mapping.
        let pages = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), 8192, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(pages, libc::MAP_FAILED);
        // SAFETY: the mapping has 8,192 bytes, and only this test uses it.
        unsafe { pages.cast::<u8>().write(9) };
        assert_eq!(result(&mut ring, opcode::Madvise::new(pages, 8192, libc::MADV_DONTNEED).build()), 0);
        // SAFETY: the mapping still has 8,192 bytes. MADV_DONTNEED has dropped only their content.
        assert_eq!(unsafe { pages.cast::<u8>().read_volatile() }, 0);
        // SAFETY: the mapping was made above, and is not used any more.
        unsafe { libc::munmap(pages, 8192) };
        let misaligned = opcode::Madvise::new(std::ptr::without_provenance(1), 8192, libc::MADV_DONTNEED).build();
        assert_eq!(result(&mut ring, misaligned), negative(libc::EINVAL));
    });
}

#[test]
fn one_chain_opens_writes_reads_and_closes_a_file() {
    bounded(|| {
        let (mut ring, directory) = (ring(), tempfile::tempdir().unwrap());
        ring.submitter().register_files_sparse(1).unwrap();
        let path = c_path(&directory.path().join("file"));
        let slot = types::DestinationSlot::try_from_slot_target(0).unwrap();
        let mut back = [0; 4];
        let link = squeue::Flags::IO_LINK;
        let chain = [
            opcode::OpenAt::new(HERE, path.as_ptr())
                .flags(libc::O_RDWR | libc::O_CREAT)
                .mode(0o600)
                .file_index(Some(slot))
                .build()
                .flags(link),
            opcode::Write::new(types::Fixed(0), b"life".as_ptr(), 4).build().flags(link),
            opcode::Fsync::new(types::Fixed(0)).build().flags(link),
            opcode::Read::new(types::Fixed(0), back.as_mut_ptr(), 4).build().flags(link),
            opcode::Close::new(types::Fixed(0)).build(),
        ];
        let chain: Vec<_> = (0..).zip(chain).map(|(index, entry)| entry.user_data(index)).collect();
        let results: Vec<i32> = run(&mut ring, &chain).iter().map(|done| done.result).collect();
        assert_eq!(results, [0, 4, 0, 4, 0]);
        assert_eq!(&back, b"life");
    });
}
