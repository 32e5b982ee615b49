//! Direct descriptors: OPENAT puts a file into a slot of the registered files, and CLOSE empties a
//! slot.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode};

use super::reg;
use crate::files;
use crate::ring::Ring;
use crate::sqe::{Change, close, read, sqe};
use crate::transcript::Transcript;

fn open(slot: u32, user_data: u64) -> Sqe {
    sqe(opcode::OPENAT, libc::AT_FDCWD, user_data).with(|sqe| {
        sqe.addr = c"/dev/zero".as_ptr() as u64;
        sqe.file_index = slot;
    })
}

/// `IORING_FILE_INDEX_ALLOC` as the SQE's field holds it.
const ALLOCATE: u32 = u32::MAX;

fn sparse(slots: u32) -> Ring {
    let ring = Ring::new(8);
    let numbers = vec![-1i32; slots as usize];
    assert_eq!(ring.register(reg::FILES, numbers.as_ptr(), slots), 0);
    ring
}

fn close_direct(slot: u32, user_data: u64) -> Sqe {
    close(0, user_data).with(|sqe| sqe.file_index = slot)
}

fn reads(ring: &mut Ring, slot: i32) -> i32 {
    let mut buffer = [1u8; 4];
    ring.one(read(slot, &mut buffer, 0, 99).fixed()).res
}

/// The SQE's field `file_index` is the slot number plus one. If an OPENAT names its slot, the
/// result is 0, not the slot number.
fn open_into_slot(t: &mut Transcript) {
    let mut ring = sparse(4);
    t.entry(&ring.one(open(1, 1)));
    t.entry(&ring.one(open(4, 2)));
    for slot in 0..4 {
        let answer = reads(&mut ring, slot);
        t.result(format_args!("read from slot {slot}"), answer);
    }
}
case!(open_into_slot => "
    cqe 1: 0
    cqe 2: 0
    read from slot 0 = 4
    read from slot 1 = -EBADF
    read from slot 2 = -EBADF
    read from slot 3 = 4
");

fn open_replaces(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (reader, writer) = files::pipe();
    let number = reader.as_raw_fd();
    let update = u::io_uring_files_update { offset: 0, resv: 0, fds: &raw const number as u64 };
    t.result("update", ring.register(reg::FILES_UPDATE, &raw const update, 1));
    drop(reader);
    t.entry(&ring.one(open(1, 1)));
    let answer = reads(&mut ring, 0);
    t.result("read", answer);
    // The slot contained the pipe's last reading end. The OPENAT has replaced it by another file,
    // so a write to the pipe now fails.
    // SAFETY: the call changes only this process's signal disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    t.say(format_args!("writer sees the end: {}", crate::time::until(|| files::put(&writer, b"x") < 0)));
}
case!(open_replaces => "
    update = 1
    cqe 1: 0
    read = 4
    writer sees the end: true
");

fn open_allocates(t: &mut Transcript) {
    let mut ring = sparse(3);
    for user_data in 1..=4 {
        t.entry(&ring.one(open(ALLOCATE, user_data)));
    }
    t.entry(&ring.one(close_direct(2, 5)));
    t.entry(&ring.one(open(ALLOCATE, 6)));
}
case!(open_allocates => "
    cqe 1: 0
    cqe 2: 1
    cqe 3: 2
    cqe 4: -ENFILE
    cqe 5: 0
    cqe 6: 1
");

fn open_without_table(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.entry(&ring.one(open(1, 1)));
    t.entry(&ring.one(open(ALLOCATE, 2)));
}
case!(open_without_table => "
    cqe 1: -ENXIO
    cqe 2: -ENFILE
");

fn open_beyond_table(t: &mut Transcript) {
    let mut ring = sparse(2);
    t.entry(&ring.one(open(3, 1)));
    t.entry(&ring.one(open(1 << 20, 2)));
    t.entry(&ring.one(open(u32::MAX - 1, 3)));
}
case!(open_beyond_table => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
");

/// OPENAT into a slot refuses O_CLOEXEC, because a direct descriptor has no close-on-exec flag.
fn open_close_on_exec(t: &mut Transcript) {
    let mut ring = sparse(2);
    t.entry(&ring.one(open(1, 1).op_flags(libc::O_CLOEXEC as u32)));
    t.entry(&ring.one(open(ALLOCATE, 2).op_flags(libc::O_CLOEXEC as u32)));
}
case!(open_close_on_exec => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");

fn close_slot(t: &mut Transcript) {
    let mut ring = sparse(2);
    t.entry(&ring.one(open(1, 1)));
    t.entry(&ring.one(close_direct(1, 2)));
    let answer = reads(&mut ring, 0);
    t.result("read", answer);
    t.entry(&ring.one(close_direct(1, 3)));
}
case!(close_slot => "
    cqe 1: 0
    cqe 2: 0
    read = -EBADF
    cqe 3: -EBADF
");

fn close_wrong(t: &mut Transcript) {
    let mut ring = sparse(2);
    t.entry(&ring.one(close_direct(3, 1)));
    t.entry(&ring.one(close_direct(u32::MAX, 2)));
    // The kernel refuses a CLOSE that names both a descriptor and a slot.
    t.entry(&ring.one(close_direct(1, 3).with(|sqe| sqe.fd = 1)));
    t.entry(&ring.one(close_direct(1, 4).fixed()));
    let mut plain = Ring::new(4);
    t.entry(&plain.one(close_direct(1, 5)));
}
case!(close_wrong => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    cqe 4: -EBADF
    cqe 5: -ENXIO
");

fn range(ring: &Ring, off: u32, len: u32, resv: u64) -> i32 {
    let range = u::io_uring_file_index_range { off, len, resv };
    ring.register(reg::FILE_ALLOC_RANGE, &raw const range, 0)
}

fn allocation_range(t: &mut Transcript) {
    let mut ring = sparse(8);
    t.result("range 2..5", range(&ring, 2, 3, 0));
    for user_data in 1..=4 {
        t.entry(&ring.one(open(ALLOCATE, user_data)));
    }
    // The allocation range limits only slots that the kernel chooses. This SQE names a slot outside
    // of the range.
    t.entry(&ring.one(open(8, 5)));
    t.result("range 0..8", range(&ring, 0, 8, 0));
    t.entry(&ring.one(open(ALLOCATE, 6)));
    t.result("range of none", range(&ring, 3, 0, 0));
    t.entry(&ring.one(open(ALLOCATE, 7)));
}
case!(allocation_range => "
    range 2..5 = 0
    cqe 1: 2
    cqe 2: 3
    cqe 3: 4
    cqe 4: -ENFILE
    cqe 5: 0
    range 0..8 = 0
    cqe 6: 0
    range of none = 0
    cqe 7: -ENFILE
");

fn allocation_range_wrong(t: &mut Transcript) {
    let ring = sparse(4);
    t.result("beyond the end", range(&ring, 2, 3, 0));
    t.result("start beyond the end", range(&ring, 5, 0, 0));
    t.result("overflowing", range(&ring, u32::MAX, 2, 0));
    t.result("reserved", range(&ring, 0, 1, 1));
    t.result("null", ring.register::<u8>(reg::FILE_ALLOC_RANGE, std::ptr::null(), 0));
    let good = u::io_uring_file_index_range { off: 0, len: 1, resv: 0 };
    t.result("count 1", ring.register(reg::FILE_ALLOC_RANGE, &raw const good, 1));
    let plain = Ring::new(4);
    t.result("no table", range(&plain, 0, 0, 0));
    t.result("no table, one", range(&plain, 0, 1, 0));
}
case!(allocation_range_wrong => "
    beyond the end = -EINVAL
    start beyond the end = -EINVAL
    overflowing = -EOVERFLOW
    reserved = -EINVAL
    null = -EINVAL
    count 1 = -EINVAL
    no table = 0
    no table, one = -EINVAL
");

/// The kernel begins its search for a free slot behind the slot that was allocated last. If a slot
/// was freed since, it begins at that slot. At the end of the table the search wraps around.
fn allocation_wraps(t: &mut Transcript) {
    let mut ring = sparse(4);
    for user_data in 1..=3 {
        t.entry(&ring.one(open(ALLOCATE, user_data)));
    }
    t.entry(&ring.one(close_direct(1, 4)));
    t.entry(&ring.one(open(ALLOCATE, 5)));
    t.entry(&ring.one(open(ALLOCATE, 6)));
    t.entry(&ring.one(open(ALLOCATE, 7)));
}
case!(allocation_wraps => "
    cqe 1: 0
    cqe 2: 1
    cqe 3: 2
    cqe 4: 0
    cqe 5: 0
    cqe 6: 3
    cqe 7: -ENFILE
");
