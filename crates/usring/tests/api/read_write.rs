//! READ, WRITE and their vectored variants on files, pipes and eventfds.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::skipped::skip;
use crate::support::*;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

fn fd(file: &impl AsRawFd) -> types::Fd {
    types::Fd(file.as_raw_fd())
}

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> squeue::Entry {
    opcode::Read::new(fd(file), buffer.as_mut_ptr(), buffer.len() as u32).offset(offset).build()
}

fn write_at(file: &File, data: &[u8], offset: u64) -> squeue::Entry {
    opcode::Write::new(fd(file), data.as_ptr(), data.len() as u32).offset(offset).build()
}

#[test]
fn written_data_is_read_back() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(b""));
        assert_eq!(result(&mut ring, write_at(&file, b"hello world", 4096)), 11);
        let mut buffer = [0; 32];
        assert_eq!(result(&mut ring, read_at(&file, &mut buffer, 4096)), 11, "to the end of the file");
        assert_eq!(&buffer[..11], b"hello world");
        assert_eq!(result(&mut ring, read_at(&file, &mut buffer, 4090)), 17);
        assert_eq!(&buffer[..8], b"\0\0\0\0\0\0he");
        assert_eq!(result(&mut ring, read_at(&file, &mut buffer, 1 << 20)), 0, "beyond the end");
    });
}

#[test]
fn offset_minus_one_is_the_files_position() {
    bounded(|| {
        let (mut ring, mut file) = (ring(), file_with(b"abcdefgh"));
        let mut buffer = [0; 3];
        assert_eq!(result(&mut ring, read(&file, &mut buffer)), 3);
        assert_eq!(result(&mut ring, read(&file, &mut buffer)), 3);
        assert_eq!(&buffer, b"def");
        assert_eq!(file.stream_position().unwrap(), 6);
        assert_eq!(result(&mut ring, write(&file, b"XYZ")), 3);
        assert_eq!(file.stream_position().unwrap(), 9);
        assert_eq!(result(&mut ring, read_at(&file, &mut buffer, 5)), 3);
        assert_eq!(&buffer, b"fXY");
        assert_eq!(file.stream_position().unwrap(), 9, "a read with an offset leaves it");
    });
}

#[test]
fn vectors_are_filled_and_written_in_order() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(b""));
        let parts: [&[u8]; 4] = [b"one ", b"", b"two ", b"three"];
        let source: Vec<libc::iovec> = parts.iter().map(|part| iovec(part)).collect();
        let writev = opcode::Writev::new(fd(&file), source.as_ptr(), source.len() as u32).offset(10).build();
        assert_eq!(result(&mut ring, writev), 13);
        let (mut first, mut second) = ([0; 6], [0; 20]);
        let target = [iovec(&first), iovec(&second)];
        let readv = opcode::Readv::new(fd(&file), target.as_ptr(), 2).offset(10).build();
        submit(&mut ring, &[readv]);
        assert_eq!(collect(&mut ring, 1)[0].result, 13);
        (first, second) = (std::hint::black_box(first), std::hint::black_box(second));
        assert_eq!((&first, &second[..7]), (b"one tw", b"o three".as_slice()));
        let nothing = opcode::Readv::new(fd(&file), target.as_ptr(), 0).build();
        assert_eq!(result(&mut ring, nothing), 0, "no vector, no byte");
        let too_many = opcode::Readv::new(fd(&file), target.as_ptr(), 1025).build();
        assert_eq!(result(&mut ring, too_many), negative(libc::EINVAL));
    });
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

#[test]
fn a_vector_may_be_reused_as_soon_as_the_request_is_submitted() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = vec![0u8; 8];
        let mut vector = [iovec(&buffer)];
        let readv = opcode::Readv::new(fd(&reader), vector.as_ptr(), 1).offset(u64::MAX).build();
        submit(&mut ring, &[readv]);
        std::hint::black_box(&mut vector)[0] = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        put(&writer, b"12345678");
        assert_eq!(collect(&mut ring, 1)[0].result, 8);
        buffer = std::hint::black_box(buffer);
        assert_eq!(buffer, b"12345678");
    });
}

#[test]
fn large_transfers_are_whole() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(b""));
        let data: Vec<u8> = (0..8_000_000u32).map(|index| (index >> 3) as u8 ^ index as u8).collect();
        assert_eq!(result(&mut ring, write_at(&file, &data, 0)), data.len() as i32);
        let mut back = vec![0; data.len()];
        assert_eq!(result(&mut ring, read_at(&file, &mut back, 0)), data.len() as i32);
        assert!(back == data);
    });
}

#[test]
fn uncached_pages_are_read() {
    bounded(|| {
        let directory = std::env::var_os("CARGO_TARGET_TMPDIR").unwrap_or(".".into());
        let mut file = tempfile::tempfile_in(directory).unwrap();
        let data: Vec<u8> = (0..256 * 4096u32).map(|index| (index >> 4) as u8).collect();
        file.write_all(&data).unwrap();
        file.sync_all().unwrap();
        let mut ring = ring();
        for round in 0..4u64 {
            // SAFETY: the call names no memory.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            let mut buffers = vec![vec![0; 60_000]; 8];
            let entries: Vec<_> = (0..)
                .zip(&mut buffers)
                .map(|(index, buffer)| read_at(&file, buffer, round * 4096 + index * 60_000).user_data(index))
                .collect();
            assert!(run(&mut ring, &entries).iter().all(|done| done.result == 60_000));
            for (index, buffer) in buffers.iter().enumerate() {
                let start = round as usize * 4096 + index * 60_000;
                assert!(buffer[..] == data[start..start + 60_000]);
            }
        }
    });
}

#[test]
fn direct_io_works_where_the_file_system_has_it() {
    bounded(|| {
        let directory = tempfile::tempdir_in(std::env::var_os("CARGO_TARGET_TMPDIR").unwrap_or(".".into())).unwrap();
        let mut options = File::options();
        options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
        let Ok(file) = options.open(directory.path().join("direct")) else {
            return skip("no O_DIRECT here");
        };
        #[repr(align(4096))]
        struct Block([u8; 4096]);
        let mut ring = ring();
        let blocks: Vec<Block> = (0..8).map(|index| Block([index; 4096])).collect();
        let writes: Vec<_> = (0u64..)
            .zip(&blocks)
            .map(|(index, block)| write_at(&file, &block.0, index * 4096).user_data(index))
            .collect();
        assert!(run(&mut ring, &writes).iter().all(|done| done.result == 4096));
        let mut block = Block([0; 4096]);
        for index in 0..8 {
            assert_eq!(result(&mut ring, read_at(&file, &mut block.0, index * 4096)), 4096);
            assert!(block.0 == blocks[index as usize].0);
        }
        assert_eq!(result(&mut ring, read_at(&file, &mut block.0[..4095], 1)), negative(libc::EINVAL), "not aligned");
    });
}

#[test]
fn a_read_of_an_empty_pipe_waits_for_data() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 16];
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        stays_quiet(&mut ring);
        put(&writer, b"late");
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
        assert_eq!(&buffer[..4], b"late");
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        drop(writer);
        assert_eq!(collect(&mut ring, 1)[0].result, 0, "the end of the file");
    });
}

#[test]
fn a_write_to_a_full_pipe_waits_for_space() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        // SAFETY: the call names no memory.
        unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
        let page = [7u8; 4096];
        assert_eq!(result(&mut ring, write(&writer, &page)), 4096);
        submit(&mut ring, &[write(&writer, b"more")]);
        stays_quiet(&mut ring);
        assert_eq!(get(&reader, 4096), page);
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
        assert_eq!(get(&reader, 4096), b"more");
    });
}

#[test]
fn a_read_of_a_nonblocking_pipe_waits_for_data() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        // SAFETY: the call names no memory.
        unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let mut buffer = [0; 4];
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        stays_quiet(&mut ring);
        put(&writer, b"data");
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
    });
}

#[test]
fn rwf_nowait_waits_for_nothing() {
    bounded(|| {
        let (mut ring, (reader, _writer)) = (ring(), pipe());
        let mut buffer = [0; 4];
        let entry = opcode::Read::new(fd(&reader), buffer.as_mut_ptr(), 4).rw_flags(libc::RWF_NOWAIT).build();
        assert_eq!(result(&mut ring, entry), negative(libc::EAGAIN));
    });
}

#[test]
fn rwf_append_writes_at_the_end() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(b"start "));
        let entry = opcode::Write::new(fd(&file), b"end".as_ptr(), 3)
            .offset(0)
            .rw_flags(libc::RWF_APPEND | libc::RWF_DSYNC)
            .build();
        assert_eq!(result(&mut ring, entry), 3);
        let mut content = vec![0; 9];
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(content, b"start end");
    });
}

#[test]
fn a_request_fails_with_the_error_of_its_file() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 4];
        assert_eq!(result(&mut ring, read(&writer, &mut buffer)), negative(libc::EBADF));
        assert_eq!(result(&mut ring, write(&reader, b"data")), negative(libc::EBADF));
        drop(reader);
        assert_eq!(result(&mut ring, write(&writer, b"data")), negative(libc::EPIPE));
        // SAFETY: no descriptor with this number is open. `ManuallyDrop` keeps the value from
        // closing the number.
        let nobody = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(1 << 20) });
        assert_eq!(result(&mut ring, read(&*nobody, &mut buffer)), negative(libc::EBADF));
        let directory = File::open("/").unwrap();
        assert_eq!(result(&mut ring, read(&directory, &mut buffer)), negative(libc::EISDIR));
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(result(&mut ring, write(&full, b"data")), negative(libc::ENOSPC));
    });
}

#[test]
fn a_read_of_an_eventfd_completes_when_it_is_signalled() {
    bounded(|| {
        let (mut ring, event) = (ring(), event());
        let mut value = [0; 8];
        submit(&mut ring, &[read(&event, &mut value)]);
        stays_quiet(&mut ring);
        put(&event, &5u64.to_ne_bytes());
        assert_eq!(collect(&mut ring, 1)[0].result, 8);
        assert_eq!(u64::from_ne_bytes(value), 5);
    });
}

#[test]
fn requests_with_iosqe_async_have_the_results_of_inline_requests() {
    bounded(|| {
        let (mut ring, file) = (ring(), file_with(b"0123456789"));
        let mut buffers = vec![[0; 10]; 8];
        let entries: Vec<_> = (0..)
            .zip(&mut buffers)
            .map(|(index, buffer)| read_at(&file, buffer, index).user_data(index).flags(squeue::Flags::ASYNC))
            .collect();
        for (index, done) in run(&mut ring, &entries).iter().enumerate() {
            assert_eq!(done.result, 10 - index as i32);
            assert_eq!(buffers[index][0], b'0' + index as u8);
        }
        let (reader, writer) = pipe();
        let mut late = [0; 4];
        submit(&mut ring, &[read(&reader, &mut late).flags(squeue::Flags::ASYNC)]);
        stays_quiet(&mut ring);
        put(&writer, b"data");
        assert_eq!(collect(&mut ring, 1)[0].result, 4);
        assert_eq!(&late, b"data");
    });
}

#[test]
fn a_waiting_request_keeps_its_file() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffer = [0; 16];
        submit(&mut ring, &[read(&reader, &mut buffer)]);
        let (other_reader, other_writer) = pipe();
        // dup2(2) closes the first pipe's reading end, and gives its number to the second pipe's
        // reading end.
        // SAFETY: this test owns both descriptors.
        assert!(unsafe { libc::dup2(other_reader.as_raw_fd(), reader.as_raw_fd()) } >= 0);
        let reused = reader;
        put(&other_writer, b"wrong");
        stays_quiet(&mut ring);
        put(&writer, b"right");
        assert_eq!(collect(&mut ring, 1)[0].result, 5);
        assert_eq!(&buffer[..5], b"right");
        assert_eq!(get(&reused, 16), b"wrong");
    });
}

#[test]
fn sixteen_readers_of_one_pipe_each_get_their_share() {
    bounded(|| {
        let (mut ring, (reader, writer)) = (ring(), pipe());
        let mut buffers = vec![[0; 4]; 16];
        let entries: Vec<_> =
            (0..).zip(&mut buffers).map(|(index, buffer)| read(&reader, buffer).user_data(index)).collect();
        submit(&mut ring, &entries);
        for value in 0..16u32 {
            put(&writer, &value.to_ne_bytes());
        }
        assert!(collect(&mut ring, 16).iter().all(|done| done.result == 4));
        let mut values: Vec<u32> = buffers.iter().map(|bytes| u32::from_ne_bytes(*bytes)).collect();
        values.sort_unstable();
        assert!(values.into_iter().eq(0..16));
    });
}

#[test]
fn a_terminal_and_special_files_work() {
    bounded(|| {
        let mut ring = ring();
        let mut buffer = [1; 64];
        assert_eq!(result(&mut ring, read(&File::open("/dev/zero").unwrap(), &mut buffer)), 64);
        assert_eq!(buffer, [0; 64]);
        assert_eq!(result(&mut ring, read(&File::open("/dev/null").unwrap(), &mut buffer)), 0);
        assert_eq!(result(&mut ring, read(&File::open("/dev/urandom").unwrap(), &mut buffer)), 64);
        let mut text = [0; 64];
        let status = File::open("/proc/self/stat").unwrap();
        assert!(result(&mut ring, read(&status, &mut text)) > 0);
        let (mut master, slave) = terminal();
        submit(&mut ring, &[read(&slave, &mut buffer)]);
        stays_quiet(&mut ring);
        master.write_all(b"typed\n").unwrap();
        assert_eq!(collect(&mut ring, 1)[0].result, 6);
        assert_eq!(&buffer[..6], b"typed\n");
        assert_eq!(result(&mut ring, write(&slave, b"shown")), 5);
        // The terminal first shows the echo of the typed text.
        let mut shown = [0; b"typed\r\nshown".len()];
        master.read_exact(&mut shown).unwrap();
        assert_eq!(&shown, b"typed\r\nshown");
    });
}

/// Opens a pseudo-terminal, and returns its master and its slave.
fn terminal() -> (File, OwnedFd) {
    let (mut master, mut slave) = (-1, -1);
    let null = std::ptr::null_mut();
    // SAFETY: the call writes both numbers. The other arguments may be null.
    assert_eq!(unsafe { libc::openpty(&mut master, &mut slave, null, null.cast(), null.cast()) }, 0);
    // SAFETY: the call has just made both descriptors, and no other code knows them.
    unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) }
}
