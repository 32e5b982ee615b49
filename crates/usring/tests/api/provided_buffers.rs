//! Provided buffers: classic ones (PROVIDE_BUFFERS) and buffer rings.

use crate::ring::{IoUring, opcode, squeue, types};
use crate::support::*;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use types::BufRingEntry;

pub const GROUP: u16 = 7;
const NO_BUFFERS: i32 = negative(libc::ENOBUFS);

fn ring() -> IoUring {
    IoUring::new(16).unwrap()
}

/// Returns a read that selects a buffer of the tests' group.
fn select(file: &impl AsRawFd, length: u32) -> squeue::Entry {
    opcode::Read::new(types::Fd(file.as_raw_fd()), std::ptr::null_mut(), length)
        .offset(u64::MAX)
        .buf_group(GROUP)
        .build()
        .flags(squeue::Flags::BUFFER_SELECT)
}

#[track_caller]
fn provide(ring: &mut IoUring, memory: &mut [u8], length: usize, first: u16) {
    let count = (memory.len() / length) as u16;
    let entry = opcode::ProvideBuffers::new(memory.as_mut_ptr(), length as i32, count, GROUP, first).build();
    assert_eq!(result(ring, entry), 0);
}

#[test]
fn a_read_takes_a_provided_buffer_and_names_it() {
    bounded(|| {
        let mut memory = vec![0u8; 4 * 16];
        let (mut ring, (reader, writer)) = (ring(), pipe());
        put(&writer, b"data");
        submit(&mut ring, &[select(&reader, 16)]);
        assert_eq!(collect(&mut ring, 1)[0].result, NO_BUFFERS, "no such group");
        provide(&mut ring, &mut memory, 16, 100);
        let mut seen = Vec::new();
        for round in 0..4u8 {
            let done = run(&mut ring, &[select(&reader, 16)])[0];
            let buffer = done.buffer().expect("a buffer is named");
            assert_eq!(done.result, 4);
            let at = usize::from(buffer - 100) * 16;
            let content = std::hint::black_box(&memory)[at..at + 4].to_vec();
            assert_eq!(content[0], if round == 0 { b'd' } else { round });
            seen.push(buffer);
            put(&writer, &[round + 1; 4]);
        }
        seen.sort_unstable();
        assert_eq!(seen, [100, 101, 102, 103]);
        assert_eq!(result(&mut ring, select(&reader, 16)), NO_BUFFERS, "all are used");
    });
}

#[test]
fn a_waiting_read_holds_its_buffer() {
    bounded(|| {
        let mut memory = vec![0u8; 16];
        let (mut ring, pipes) = (ring(), [pipe(), pipe()]);
        provide(&mut ring, &mut memory, 16, 5);
        submit(&mut ring, &[select(&pipes[0].0, 16).user_data(0)]);
        stays_quiet(&mut ring);
        assert_eq!(result(&mut ring, select(&pipes[1].0, 16).user_data(1)), NO_BUFFERS);
        put(&pipes[0].1, b"data");
        let done = collect(&mut ring, 1)[0];
        assert_eq!((done.user_data, done.result, done.buffer()), (0, 4, Some(5)));
    });
}

#[test]
fn a_vectored_read_takes_a_buffer_of_its_members_length() {
    bounded(|| {
        let mut buffers = Buffers::new(2);
        let (mut ring, (reader, writer)) = (ring(), pipe());
        buffers.register(&ring).unwrap();
        (0..2).for_each(|id| buffers.add(id));
        let member = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 6 };
        let readv = || {
            opcode::Readv::new(types::Fd(reader.as_raw_fd()), &member, 1)
                .offset(u64::MAX)
                .buf_group(GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        };
        put(&writer, b"12345678");
        let done = run(&mut ring, &[readv()])[0];
        assert_eq!((done.result, done.buffer()), (6, Some(0)));
        get(&reader, 2);
        submit(&mut ring, &[readv()]);
        stays_quiet(&mut ring);
        put(&writer, b"abcdefgh");
        let done = collect(&mut ring, 1)[0];
        assert_eq!((done.result, done.buffer()), (6, Some(1)), "also when it had to wait");
        drop(ring);
    });
}

#[test]
fn a_buffers_length_limits_the_read() {
    bounded(|| {
        let mut memory = vec![0u8; 3 * 8];
        let (mut ring, file) = (ring(), file_with(&[1; 100]));
        provide(&mut ring, &mut memory, 8, 0);
        assert_eq!(result(&mut ring, select(&file, 100)), 8, "the buffer's length");
        assert_eq!(result(&mut ring, select(&file, 3)), 3, "the request's length");
        assert_eq!(result(&mut ring, select(&file, 0)), 8, "without a length: the buffer's length");
    });
}

#[test]
fn provided_buffers_are_removed() {
    bounded(|| {
        let mut memory = vec![0u8; 4 * 8];
        let mut ring = ring();
        let remove = |count| opcode::RemoveBuffers::new(count, GROUP).build();
        assert_eq!(result(&mut ring, remove(1)), negative(libc::ENOENT));
        provide(&mut ring, &mut memory, 8, 0);
        assert_eq!(result(&mut ring, remove(3)), 3);
        assert_eq!(result(&mut ring, remove(3)), 1);
    });
}

#[test]
fn opcodes_without_buffer_selection_refuse_the_flag() {
    bounded(|| {
        let mut ring = ring();
        let entry = nop(1).flags(squeue::Flags::BUFFER_SELECT);
        assert_eq!(result(&mut ring, entry), negative(libc::EOPNOTSUPP));
    });
}

/// A buffer ring and its buffers. The memory of the ring was allocated by the test or by the
/// engine.
pub struct Buffers {
    entries: *mut BufRingEntry,
    count: u16,
    tail: u16,
    memory: Vec<u8>,
    /// Bytes of the mapping that `drop` removes.
    mapped: usize,
}

const LENGTH: usize = 16;

impl Buffers {
    pub fn new(count: u16) -> Buffers {
        let size = usize::from(count) * size_of::<BufRingEntry>();
        // SAFETY: the call makes a new mapping.
        let pages = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(pages, libc::MAP_FAILED);
        Buffers::over(pages.cast(), count, size)
    }

    pub fn over(entries: *mut BufRingEntry, count: u16, mapped: usize) -> Buffers {
        Buffers { entries, count, tail: 0, memory: vec![0; usize::from(count) * LENGTH], mapped }
    }

    /// Adds the buffer `id` to the ring.
    pub fn add(&mut self, id: u16) {
        let address = self.memory[usize::from(id) * LENGTH..].as_mut_ptr() as u64;
        let slot = usize::from(self.tail & (self.count - 1));
        // SAFETY: the slot is in the mapping. The engine reads it only after the tail has passed
        // it.
        let entry = unsafe { &mut *self.entries.add(slot) };
        entry.set_addr(address);
        entry.set_len(LENGTH as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is in the first entry, and both sides access it atomically.
        let tail = unsafe { &*BufRingEntry::tail(self.entries).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }

    pub fn content(&self, id: u16, length: usize) -> &[u8] {
        &std::hint::black_box(&self.memory)[usize::from(id) * LENGTH..][..length]
    }

    pub fn register(&self, ring: &IoUring) -> std::io::Result<()> {
        // SAFETY: the tests drop the ring before the buffers.
        unsafe { ring.submitter().register_buf_ring_with_flags(self.entries as u64, self.count, GROUP, 0) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: `new` or `IoUring::map` has made the mapping, and only this value uses it.
        unsafe { libc::munmap(self.entries.cast(), self.mapped) };
    }
}

#[track_caller]
fn error_of<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.unwrap_err().raw_os_error().unwrap()
}

/// Makes two rounds. Each round checks that the group has no buffer left, adds the four buffers,
/// and uses all of them up by reads.
pub fn use_up(ring: &mut IoUring, buffers: &mut Buffers) {
    let (reader, writer) = pipe();
    for round in 0..2u8 {
        put(&writer, &[round; 4]);
        assert_eq!(result(ring, select(&reader, 4)), NO_BUFFERS, "no buffer is left");
        (0..4).for_each(|id| buffers.add(id));
        for id in 0..4 {
            let done = run(ring, &[select(&reader, 4)])[0];
            assert_eq!((done.result, done.buffer()), (4, Some(id)), "in the order of the ring");
            assert_eq!(buffers.content(id, 4), [round + 10 * id.min(1) as u8; 4]);
            put(&writer, &[round + 10; 4]);
        }
        get(&reader, 100);
    }
}

#[test]
fn buffers_of_a_buffer_ring_are_used_in_order() {
    bounded(|| {
        let mut buffers = Buffers::new(4);
        let mut ring = ring();
        buffers.register(&ring).unwrap();
        use_up(&mut ring, &mut buffers);
        drop(ring);
    });
}

#[test]
fn a_waiting_read_takes_its_buffer_from_the_ring_when_data_arrives() {
    bounded(|| {
        let mut buffers = Buffers::new(2);
        let (mut ring, pipes) = (ring(), [pipe(), pipe(), pipe()]);
        buffers.register(&ring).unwrap();
        (0..2).for_each(|id| buffers.add(id));
        let entries: Vec<_> = (0..).zip(&pipes).map(|(index, pipe)| select(&pipe.0, 16).user_data(index)).collect();
        submit(&mut ring, &entries);
        stays_quiet(&mut ring);
        for (index, id) in [(2, 0), (0, 1)] {
            put(&pipes[index].1, b"data");
            let done = collect(&mut ring, 1)[0];
            assert_eq!((done.user_data, done.result, done.buffer()), (index as u64, 4, Some(id)));
            assert_eq!(buffers.content(id, 4), b"data");
        }
        put(&pipes[1].1, b"data");
        assert_eq!(collect(&mut ring, 1)[0].result, NO_BUFFERS);
        drop(ring);
    });
}

#[test]
fn invalid_buffer_rings_are_refused() {
    bounded(|| {
        let (buffers, ring) = (Buffers::new(4), ring());
        let register = |address: u64, count: u16, flags: u16| {
            // SAFETY: if the ring accepts the group, the test unregisters it at once.
            unsafe { ring.submitter().register_buf_ring_with_flags(address, count, GROUP, flags) }
        };
        let address = buffers.entries as u64;
        assert_eq!(error_of(register(address, 3, 0)), libc::EINVAL, "not a power of two");
        assert_eq!(error_of(register(address + 8, 4, 0)), libc::EINVAL, "not at a page's start");
        assert_eq!(error_of(register(0, 4, 0)), libc::EFAULT);
        assert_eq!(error_of(register(address, 4, 1 << 9)), libc::EINVAL, "no such flag");
        register(address, 4, 0).unwrap();
        assert_eq!(error_of(register(address, 4, 0)), libc::EEXIST);
        ring.submitter().unregister_buf_ring(GROUP).unwrap();
        assert_eq!(error_of(ring.submitter().unregister_buf_ring(GROUP)), libc::ENOENT);
        drop(ring);
    });
}
