//! PIPE makes a pipe. Its ends become descriptors, or registered files in slots.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u, opcode};

use super::reg;
use super::socket::{ALLOCATE, describe, sparse};
use crate::files;
use crate::memory::BAD;
use crate::names;
use crate::ring::Ring;
use crate::sqe::{Change, fields, nop, read, sqe, write};
use crate::transcript::Transcript;
use usring_uapi::sqe_flags;

/// Returns a PIPE request. `numbers` must live until the request has completed.
fn pipe(numbers: &mut [i32; 2], flags: i32, user_data: u64) -> Sqe {
    sqe(opcode::PIPE, 0, user_data).op_flags(flags as u32).with(|sqe| sqe.addr = numbers.as_mut_ptr() as u64)
}

fn take(numbers: [i32; 2]) -> [OwnedFd; 2] {
    // SAFETY: the descriptors are new, and nothing else owns them.
    numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) })
}

fn made(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut numbers = [-1; 2];
    t.entry(&ring.one(pipe(&mut numbers, 0, 1)));
    let [from, to] = take(numbers);
    files::put(&to, b"abc");
    t.say(String::from_utf8_lossy(&files::take(&from, 10).unwrap_or_default()).into_owned());
    t.say(format_args!("backwards {}", files::put(&from, b"abc")));
}
case!(made => "
    cqe 1: 0
    abc
    backwards -1
");

fn flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for flags in [libc::O_CLOEXEC, libc::O_NONBLOCK, libc::O_DIRECT, libc::O_CLOEXEC | libc::O_NONBLOCK] {
        let mut numbers = [-1; 2];
        t.entry(&ring.one(pipe(&mut numbers, flags, 1)));
        for end in take(numbers) {
            // SAFETY: the call touches no memory.
            let packets = unsafe { libc::fcntl(end.as_raw_fd(), libc::F_GETFL) } & libc::O_DIRECT != 0;
            t.say(format_args!("it is {}packets {packets}", describe(end.as_raw_fd())));
        }
    }
}
case!(flags => "
    cqe 1: 0
    it is close-on-exec packets false
    it is close-on-exec packets false
    cqe 1: 0
    it is non-blocking packets false
    it is non-blocking packets false
    cqe 1: 0
    it is packets false
    it is packets true
    cqe 1: 0
    it is close-on-exec non-blocking packets false
    it is close-on-exec non-blocking packets false
");

fn wrong_flags(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for flags in [1, libc::O_RDWR, libc::O_CREAT, libc::O_APPEND, i32::MIN] {
        let mut numbers = [-1; 2];
        let entry = ring.one(pipe(&mut numbers, flags, 1));
        t.say(format_args!("{flags:#x}: {} {numbers:?}", names::result(entry.res)));
    }
}
case!(wrong_flags => "
    0x1: -EINVAL [-1, -1]
    0x2: -EINVAL [-1, -1]
    0x40: -EINVAL [-1, -1]
    0x400: -EINVAL [-1, -1]
    0x80000000: -EINVAL [-1, -1]
");

/// The kernel cannot write the descriptor numbers to the program's memory. So it closes both ends
/// of the new pipe again.
fn wrong_address(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let before = files::open_numbers();
    for address in [0, BAD, 1 << 63] {
        t.entry(&ring.one(sqe(opcode::PIPE, 0, 1).with(|sqe| sqe.addr = address)));
    }
    t.say(format_args!("left open {}", files::open_numbers() - before));
    let mut table = sparse(4);
    for address in [0, BAD] {
        t.entry(&table.one(sqe(opcode::PIPE, 0, 2).with(|sqe| (sqe.addr, sqe.file_index) = (address, 1))));
        t.entry(&table.one(sqe(opcode::PIPE, 0, 3).with(|sqe| (sqe.addr, sqe.file_index) = (address, ALLOCATE))));
    }
    for slot in 0..4 {
        t.entry(&table.one(write(slot, b"a", 0, 4).fixed()));
    }
}
case!(wrong_address => "
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    left open 0
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 2: -EFAULT
    cqe 3: -EFAULT
    cqe 4: -EBADF
    cqe 4: -EBADF
    cqe 4: -EBADF
    cqe 4: -EBADF
");

fn reserved_fields(t: &mut Transcript) {
    let fields = fields! {
        fd = 1, off = 1, addr3 = 1, len = 1, buf_index = 1, ioprio = 1, pad2 = 1,
        "buffer select" flags |= sqe_flags::BUFFER_SELECT,
        "fixed file" flags |= sqe_flags::FIXED_FILE,
    };
    let mut ring = Ring::new(4);
    for (name, set) in fields {
        let mut numbers = [-1; 2];
        let entry = ring.one(pipe(&mut numbers, 0, 1).with(set));
        t.say(format_args!("{name}: {}", names::result(entry.res)));
        if entry.res == 0 {
            take(numbers);
        }
    }
}
case!(reserved_fields => "
    fd: -EINVAL
    off: -EINVAL
    addr3: -EINVAL
    len: 0
    buf_index: 0
    ioprio: -EINVAL
    pad2: 0
    buffer select: -EOPNOTSUPP
    fixed file: 0
");

fn passes(t: &mut Transcript, ring: &mut Ring, from: i32, to: i32) {
    let mut bytes = [0; 4];
    t.entry(&ring.one(write(to, b"abcd", 0, 10).fixed()));
    t.entry(&ring.one(read(from, &mut bytes, 0, 11).fixed()));
    t.say(String::from_utf8_lossy(&bytes).into_owned());
}

fn direct(t: &mut Transcript) {
    let mut ring = sparse(8);
    let mut numbers = [-1; 2];
    t.entry(&ring.one(pipe(&mut numbers, 0, 1).with(|sqe| sqe.file_index = 3)));
    t.say(format_args!("{numbers:?}"));
    passes(t, &mut ring, 2, 3);
    for _ in 0..2 {
        t.entry(&ring.one(pipe(&mut numbers, libc::O_NONBLOCK, 2).with(|sqe| sqe.file_index = ALLOCATE)));
        t.say(format_args!("{numbers:?}"));
        let [from, to] = numbers;
        passes(t, &mut ring, from, to);
    }
    // Both slots that this PIPE names are occupied. The kernel closes the files that were in them.
    t.entry(&ring.one(pipe(&mut numbers, 0, 3).with(|sqe| sqe.file_index = 1)));
    t.say(format_args!("{numbers:?}"));
    passes(t, &mut ring, 0, 1);
}
case!(direct => "
    cqe 1: 0
    [2, 3]
    cqe 10: 4
    cqe 11: 4
    abcd
    cqe 2: 0
    [4, 5]
    cqe 10: 4
    cqe 11: 4
    abcd
    cqe 2: 0
    [6, 7]
    cqe 10: 4
    cqe 11: 4
    abcd
    cqe 3: 0
    [0, 1]
    cqe 10: 4
    cqe 11: 4
    abcd
");

fn direct_wrong(t: &mut Transcript) {
    let mut numbers = [-1; 2];
    let mut none = Ring::new(4);
    for slot in [1, ALLOCATE] {
        t.entry(&none.one(pipe(&mut numbers, 0, 1).with(|sqe| sqe.file_index = slot)));
    }
    let mut ring = sparse(4);
    for slot in [4, 5, 6, 1000, ALLOCATE - 1] {
        t.entry(&ring.one(pipe(&mut numbers, 0, 2).with(|sqe| sqe.file_index = slot)));
    }
    for slot in [1, ALLOCATE] {
        t.entry(&ring.one(pipe(&mut numbers, libc::O_CLOEXEC, 3).with(|sqe| sqe.file_index = slot)));
    }
    t.say(format_args!("{numbers:?}"));
    for slot in 0..4 {
        t.entry(&ring.one(write(slot, b"a", 0, 4).fixed()));
    }
}
case!(direct_wrong => "
    cqe 1: -ENXIO
    cqe 1: -ENFILE
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 3: -EINVAL
    cqe 3: -EINVAL
    [-1, -1]
    cqe 4: -EBADF
    cqe 4: -EBADF
    cqe 4: -EBADF
    cqe 4: -EBADF
");

fn direct_table_full(t: &mut Transcript) {
    for free in [0, 1, 2] {
        let mut ring = sparse(2);
        let null = std::fs::File::open("/dev/null").expect("it is there");
        for slot in free..2u32 {
            let update = [null.as_raw_fd()];
            let mut change: u::io_uring_files_update = crate::memory::zeroed();
            (change.offset, change.fds) = (slot, update.as_ptr() as u64);
            assert_eq!(ring.register(reg::FILES_UPDATE, &raw const change, 1), 1);
        }
        let mut numbers = [-1; 2];
        t.entry(&ring.one(pipe(&mut numbers, 0, 1).with(|sqe| sqe.file_index = ALLOCATE)));
        t.say(format_args!("free {free}: {numbers:?}"));
        for slot in 0..2 {
            t.entry(&ring.one(write(slot, b"a", 0, 2).fixed()));
        }
    }
}
case!(direct_table_full => "
    cqe 1: -ENFILE
    free 0: [-1, -1]
    cqe 2: -EBADF
    cqe 2: -EBADF
    cqe 1: -ENFILE
    free 1: [-1, -1]
    cqe 2: -EBADF
    cqe 2: -EBADF
    cqe 1: 0
    free 2: [0, 1]
    cqe 2: -EBADF
    cqe 2: 1
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut numbers = [-1; 2];
    t.entry(&ring.one(pipe(&mut numbers, 0, 1).forced_async()));
    let [from, to] = take(numbers);
    files::put(&to, b"abc");
    t.say(files::take(&from, 10).unwrap_or_default().len());
}
case!(forced_async => "
    cqe 1: 0
    3
");

fn in_a_chain(t: &mut Transcript) {
    let mut ring = sparse(4);
    let mut numbers = [-1; 2];
    let mut bytes = [0; 4];
    t.in_order(&ring.run(&[
        pipe(&mut numbers, 0, 1).with(|sqe| sqe.file_index = 1).linked(),
        write(1, b"abcd", 0, 2).fixed().linked(),
        read(0, &mut bytes, 0, 3).fixed(),
    ]));
    t.say(String::from_utf8_lossy(&bytes).into_owned());
    for bad in [sqe(opcode::PIPE, 0, 4), pipe(&mut numbers, libc::O_CLOEXEC, 4).with(|sqe| sqe.file_index = 1)] {
        t.in_order(&ring.run(&[bad.linked(), nop(5)]));
    }
}
case!(in_a_chain => "
    cqe 1: 0
    cqe 2: 4
    cqe 3: 4
    abcd
    cqe 4: -EFAULT
    cqe 5: -ECANCELED
    cqe 4: -EINVAL
    cqe 5: -ECANCELED
");

fn polled_ring(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_IOPOLL);
    let mut numbers = [-1; 2];
    ring.push(pipe(&mut numbers, 0, 1));
    ring.submit();
    t.in_order(&ring.wait(1));
}
case!(polled_ring => "cqe 1: -EINVAL");
