//! Rings that several processes use: registered files, registered buffers, registered ring
//! descriptors, and provided buffers.

use std::os::fd::{AsRawFd, IntoRawFd};

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::buffers::{self, Group, SIZE};
use crate::files;
use crate::memory::{PAGE, Pages};
use crate::ring::Ring;
use crate::shared::{self, Partner, Shared};
use crate::sqe::{Change, nop, read, read_at, recv, sqe, vector};
use crate::syscalls;
use crate::transcript::Transcript;

fn register_files(ring: &Ring, numbers: &[i32]) -> i32 {
    ring.register(reg::FILES, numbers.as_ptr(), numbers.len() as u32)
}

/// Reads a byte from the registered file in the slot `slot`. Prints the result and the byte.
fn show_slot(t: &mut Transcript, ring: &mut Ring, slot: i32) {
    let mut byte = [b'-'; 1];
    let entry = ring.one(read(slot, &mut byte, 0, slot as u64).fixed());
    t.say(format_args!("slot {entry} {}", byte[0] as char));
}

fn child_uses_registered_files(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let file = files::memory_file(b"a");
        t.result("register", register_files(ring, &[file.as_raw_fd(), -1]));
        drop(file);
        shared::run_child(t, |t| {
            show_slot(t, ring, 0);
            show_slot(t, ring, 1);
        });
    });
}
case!(child_uses_registered_files => "
    a mapped ring:
    register = 0
    slot 0: 1 a
    slot 1: -EBADF -
    child: exit 0
    a ring in shared memory:
    register = 0
    slot 0: 1 a
    slot 1: -EBADF -
    child: exit 0
");

/// A child registers files that only the child has open, and exits. The parent's requests can use
/// these slots.
fn files_of_a_child_stay_registered(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        shared::run_child(t, |t| {
            let files = [files::memory_file(b"a"), files::memory_file(b"b")];
            t.result("register", register_files(ring, &[files[0].as_raw_fd(), files[1].as_raw_fd()]));
        });
        ring.catch_up();
        show_slot(t, ring, 0);
        show_slot(t, ring, 1);
        t.result("register again", register_files(ring, &[0]));
        t.result("remove", ring.register(reg::UNREGISTER_FILES, std::ptr::null::<i32>(), 0));
        shared::run_child(t, |t| show_slot(t, ring, 0));
    });
}
case!(files_of_a_child_stay_registered => "
    a mapped ring:
    register = 0
    child: exit 0
    slot 0: 1 a
    slot 1: 1 b
    register again = -EBUSY
    remove = 0
    slot 0: -EBADF -
    child: exit 0
    a ring in shared memory:
    register = 0
    child: exit 0
    slot 0: 1 a
    slot 1: 1 b
    register again = -EBUSY
    remove = 0
    slot 0: -EBADF -
    child: exit 0
");

/// The parent has registered files. A child changes slots by io_uring_register(2) and by
/// FILES_UPDATE, and empties one slot by CLOSE.
fn child_changes_slots(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let file = files::memory_file(b"a");
        t.result("register", register_files(ring, &[file.as_raw_fd(); 3]));
        shared::run_child(t, |t| {
            let other = files::memory_file(b"b").into_raw_fd();
            let update = u::io_uring_files_update { offset: 0, resv: 0, fds: &raw const other as u64 };
            t.result("update", ring.register(reg::FILES_UPDATE, &raw const update, 1));
            let request = sqe(opcode::FILES_UPDATE, -1, 1).with(|sqe| {
                sqe.addr = &raw const other as u64;
                (sqe.len, sqe.off) = (1, 1);
            });
            t.entry(&ring.one(request));
            t.entry(&ring.one(sqe(opcode::CLOSE, 0, 2).with(|sqe| sqe.file_index = 3)));
        });
        ring.catch_up();
        for slot in 0..3 {
            show_slot(t, ring, slot);
        }
    });
}
case!(child_changes_slots => "
    a mapped ring:
    register = 0
    update = 1
    cqe 1: 1
    cqe 2: 0
    child: exit 0
    slot 0: 1 b
    slot 1: 1 b
    slot 2: -EBADF -
    a ring in shared memory:
    register = 0
    update = 1
    cqe 1: 1
    cqe 2: 0
    child: exit 0
    slot 0: 1 b
    slot 1: 1 b
    slot 2: -EBADF -
");

fn fixed(opcode: u8, fd: i32, address: u64, length: u32, user_data: u64) -> Sqe {
    Sqe { opcode, ..read_at(fd, address, length, 0, user_data) }
}

fn register_buffer(ring: &Ring, address: u64, length: usize) -> i32 {
    let vectors = [vector(address, length)];
    ring.register(reg::BUFFERS, vectors.as_ptr(), 1)
}

/// The registered buffer lies in shared memory. So the bytes that a child's request reads into it
/// appear in both processes.
fn child_reads_into_a_shared_buffer(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let file = files::memory_file(b"data");
        t.result("register", register_buffer(ring, shared.slot(0), 64));
        shared::run_child(t, |t| {
            t.entry(&ring.one(fixed(opcode::READ_FIXED, file.as_raw_fd(), shared.slot(0), 4, 1)));
            t.say(shared.text(0));
        });
        t.say(shared.text(0));
    });
}
case!(child_reads_into_a_shared_buffer => "
    a mapped ring:
    register = 0
    cqe 1: 4
    data
    child: exit 0
    data
    a ring in shared memory:
    register = 0
    cqe 1: 4
    data
    child: exit 0
    data
");

/// The parent has registered a buffer in its private memory. On the kernel, a child's READ_FIXED
/// fills the parent's copy of that memory, and a child's WRITE_FIXED writes the parent's bytes.
fn private_buffer_stays_the_parents(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let mut pages = Pages::new(1);
        pages.bytes()[..8].copy_from_slice(b"original");
        t.result("register", register_buffer(ring, pages.at(0), PAGE));
        let file = files::memory_file(b"data");
        shared::run_child(t, |t| {
            pages.bytes()[4..8].copy_from_slice(b"CHLD");
            t.entry(&ring.one(fixed(opcode::READ_FIXED, file.as_raw_fd(), pages.at(0), 4, 1)));
            t.say(format_args!("in the child {}", String::from_utf8_lossy(&pages.bytes()[..8])));
            t.entry(&ring.one(fixed(opcode::WRITE_FIXED, file.as_raw_fd(), pages.at(0), 8, 2)));
            t.say(format_args!("in the file {}", files::text(&file)));
        });
        t.say(format_args!("in the parent {}", String::from_utf8_lossy(&pages.bytes()[..8])));
    });
}
case!(private_buffer_stays_the_parents => "
    a mapped ring:
    register = 0
    cqe 1: 4
    in the child origCHLD
    cqe 2: 8
    in the file datainal
    child: exit 0
    in the parent datainal
    a ring in shared memory:
    register = 0
    cqe 1: 4
    in the child origCHLD
    cqe 2: 8
    in the file datainal
    child: exit 0
    in the parent datainal
", usring => "
    a mapped ring:
    register = 0
    cqe 1: -EFAULT
    in the child origCHLD
    cqe 2: -EFAULT
    in the file data
    child: exit 0
    in the parent original
    a ring in shared memory:
    register = 0
    cqe 1: -EFAULT
    in the child origCHLD
    cqe 2: -EFAULT
    in the file data
    child: exit 0
    in the parent original
", because
    "usring cannot reach another process's private memory, so the request fails");

/// A child registers a buffer in its private memory, and exits. On the kernel, a parent's
/// WRITE_FIXED that names this buffer still writes the child's bytes to a file.
fn buffer_of_a_child_outlives_it(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let mut pages = Pages::new(1);
        pages.bytes()[..6].copy_from_slice(b"parent");
        shared::run_child(t, |t| {
            pages.bytes()[..6].copy_from_slice(b"child.");
            t.result("register", register_buffer(ring, pages.at(0), PAGE));
        });
        ring.catch_up();
        let file = files::memory_file(b"");
        t.entry(&ring.one(fixed(opcode::WRITE_FIXED, file.as_raw_fd(), pages.at(0), 6, 1)));
        t.say(format_args!("in the file {:?}", files::text(&file)));
        t.result("remove", ring.register(reg::UNREGISTER_BUFFERS, std::ptr::null::<i32>(), 0));
    });
}
case!(buffer_of_a_child_outlives_it => "
    a mapped ring:
    register = 0
    child: exit 0
    cqe 1: 6
    in the file \"child.\"
    remove = 0
    a ring in shared memory:
    register = 0
    child: exit 0
    cqe 1: 6
    in the file \"child.\"
    remove = 0
", usring => "
    a mapped ring:
    register = 0
    child: exit 0
    cqe 1: -EFAULT
    in the file \"\"
    remove = 0
    a ring in shared memory:
    register = 0
    child: exit 0
    cqe 1: -EFAULT
    in the file \"\"
    remove = 0
", because
    "usring does not pin pages, so the memory of a process ends with it");

/// A registered ring descriptor belongs to the thread that registered it, so a child inherits none.
fn registered_rings_are_not_inherited(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, _| {
        let mut entry = u::io_uring_rsrc_update { offset: u32::MAX, resv: 0, data: ring.fd as u64 };
        t.result("register", ring.register(reg::RING_FDS, &raw mut entry, 1));
        let enter = || syscalls::enter(0, 0, 0, u::IORING_ENTER_REGISTERED_RING, std::ptr::null(), 0);
        shared::run_child(t, |t| {
            t.result("enter by index in the child", enter());
            let mut entry = u::io_uring_rsrc_update { offset: u32::MAX, resv: 0, data: ring.fd as u64 };
            t.result("register in the child", ring.register(reg::RING_FDS, &raw mut entry, 1));
            t.result("enter by index in the child", enter());
        });
        t.result("enter by index", enter());
    });
}
case!(registered_rings_are_not_inherited => "
    a mapped ring:
    register = 1
    enter by index in the child = -EINVAL
    register in the child = 1
    enter by index in the child = 0
    child: exit 0
    enter by index = 0
    a ring in shared memory:
    register = 1
    enter by index in the child = -EINVAL
    register in the child = 1
    enter by index in the child = 0
    child: exit 0
    enter by index = 0
");

/// Returns a receive from `fd` that selects a buffer of group 3.
fn select(fd: i32, user_data: u64) -> Sqe {
    recv(fd, &mut [], user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| {
        sqe.len = SIZE;
        sqe.buf_index = 3;
    })
}

/// A classic provided buffer is only an address. The parent provides an address, and a child's
/// request writes to the child's own memory at that address.
fn provided_buffers_are_addresses(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let mut private = Pages::new(1);
        let provide = |address, identifier| {
            sqe(opcode::PROVIDE_BUFFERS, 1, 9).with(|sqe| {
                (sqe.addr, sqe.len, sqe.off, sqe.buf_index) = (address, SIZE, identifier, 3);
            })
        };
        // Requests select the buffers in the order in which these were provided.
        t.entry(&ring.one(provide(shared.slot(0), 1)));
        t.entry(&ring.one(provide(private.at(0), 2)));
        let (here, there) = files::sockets();
        shared::run_child(t, |t| {
            for (bytes, user_data) in [(b"one", 1), (b"two", 2), (b"end", 3)] {
                files::put(&there, bytes);
                t.entry(&ring.one(select(here.as_raw_fd(), user_data)));
            }
            t.say(format_args!("in the child {:?}", String::from_utf8_lossy(&private.bytes()[..3])));
        });
        t.say(format_args!("in the parent {:?}", String::from_utf8_lossy(&private.bytes()[..3])));
        t.say(shared.text(0));
    });
}
case!(provided_buffers_are_addresses => "
    a mapped ring:
    cqe 9: 0
    cqe 9: 0
    cqe 1: 3 BUFFER(1)
    cqe 2: 3 BUFFER(2)
    cqe 3: -ENOBUFS
    in the child \"two\"
    child: exit 0
    in the parent \"\\0\\0\\0\"
    one
    a ring in shared memory:
    cqe 9: 0
    cqe 9: 0
    cqe 1: 3 BUFFER(1)
    cqe 2: 3 BUFFER(2)
    cqe 3: -ENOBUFS
    in the child \"two\"
    child: exit 0
    in the parent \"\\0\\0\\0\"
    one
");

/// The parent registers a buffer ring that lies in shared memory. Requests of both processes select
/// buffers from it, and the child adds a buffer to it.
fn buffer_ring_in_shared_memory(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let memory = Shared::new();
        let entries = memory.first_page();
        t.result("register", buffers::register(ring, &buffers::registration(entries as u64, 4, 3, 0)));
        let mut group = Group::new(entries, 4);
        for slot in 0..2 {
            group.add_at(shared.slot(usize::from(slot)), SIZE, slot);
        }
        let (here, there) = files::sockets();
        shared::run_child(t, |t| {
            files::put(&there, b"one");
            t.entry(&ring.one(select(here.as_raw_fd(), 1)));
            group.add_at(shared.slot(2), SIZE, 2);
        });
        ring.catch_up();
        for (bytes, user_data) in [(b"two", 2), (b"six", 3), (b"end", 4)] {
            files::put(&there, bytes);
            t.entry(&ring.one(select(here.as_raw_fd(), user_data)));
        }
        for slot in 0..3 {
            t.say(shared.text(slot));
        }
    });
}
case!(buffer_ring_in_shared_memory => "
    a mapped ring:
    register = 0
    cqe 1: 3 BUFFER(0)
    child: exit 0
    cqe 2: 3 BUFFER(1)
    cqe 3: 3 BUFFER(2)
    cqe 4: -ENOBUFS
    one
    two
    six
    a ring in shared memory:
    register = 0
    cqe 1: 3 BUFFER(0)
    child: exit 0
    cqe 2: 3 BUFFER(1)
    cqe 3: 3 BUFFER(2)
    cqe 4: -ENOBUFS
    one
    two
    six
");

/// A process is killed while its receive with BUFFER_SELECT waits. That receive uses up no buffer.
fn killed_receiver_takes_no_buffer(t: &mut Transcript) {
    shared::each_kind(t, |t, ring, shared| {
        let memory = Shared::new();
        let entries = memory.first_page();
        t.result("register", buffers::register(ring, &buffers::registration(entries as u64, 4, 3, 0)));
        Group::new(entries, 4).add_at(shared.slot(0), SIZE, 7);
        let (here, there) = files::sockets();
        let partner = Partner::start(ring, |ring| ring.push(select(here.as_raw_fd(), 1)));
        partner.kill(t);
        files::put(&there, b"data");
        t.in_order(&ring.wait(1));
        t.entry(&ring.one(select(here.as_raw_fd(), 2)));
        t.say(shared.text(0));
        t.entry(&ring.one(nop(3)));
    });
}
case!(killed_receiver_takes_no_buffer => "
    a mapped ring:
    register = 0
    child: signal 9
    cqe 1: -ECANCELED
    cqe 2: 4 BUFFER(7)
    data
    cqe 3: 0
    a ring in shared memory:
    register = 0
    child: signal 9
    cqe 1: -ECANCELED
    cqe 2: 4 BUFFER(7)
    data
    cqe 3: 0
");
