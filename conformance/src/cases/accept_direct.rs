//! ACCEPT that puts connections into slots of the registered files (direct descriptors). Some cases
//! accept one connection, others use a multishot.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::{Sqe, io_uring as u};

use super::accept::is_ready;
use super::accept_multishot::multishot;
use super::reg;
use super::socket::{ALLOCATE, sparse, without_numbers};
use crate::files;
use crate::memory::BAD;
use crate::net::{self, FAMILIES, Family};
use crate::ring::{self, Ring};
use crate::sqe::{Change, close, read};
use crate::transcript::Transcript;

fn into(slot: u32, fd: &OwnedFd, user_data: u64) -> Sqe {
    net::accept(fd.as_raw_fd(), user_data).with(|sqe| sqe.file_index = slot)
}

/// Sends a byte from `client`. Returns whether the byte arrives at the socket in slot `slot` of the
/// registered files.
fn reaches(ring: &mut Ring, client: &OwnedFd, slot: i32) -> bool {
    let mut byte = [0u8; 1];
    files::put(client, b"x");
    ring.one(read(slot, &mut byte, 0, 99).fixed()).res == 1 && byte == *b"x"
}

fn into_slot(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = sparse(3);
        let (listener, address) = net::listener(family);
        let clients = [net::connected(family, &address), net::connected(family, &address)];
        t.entry(&ring.one(into(1, &listener, 1)));
        t.entry(&ring.one(into(3, &listener, 2)));
        t.say(format_args!("data {} {}", reaches(&mut ring, &clients[0], 0), reaches(&mut ring, &clients[1], 2)));
    }
}
case!(into_slot => "
    cqe 1: 0 SOCK_NONEMPTY
    cqe 2: 0
    data true true
    cqe 1: 0 SOCK_NONEMPTY
    cqe 2: 0
    data true true
    cqe 1: 0
    cqe 2: 0
    data true true
");

/// An ACCEPT into an occupied slot closes the slot's old file.
fn replaces(t: &mut Transcript) {
    let mut ring = sparse(1);
    let (listener, address) = net::listener(Family::V4);
    let first = net::connected(Family::V4, &address);
    t.entry(&ring.one(into(1, &listener, 1)));
    let second = net::connected(Family::V4, &address);
    t.entry(&ring.one(into(1, &listener, 2)));
    t.say(format_args!("the first reads {:?}", files::take(&first, 1).map(|bytes| bytes.len())));
    t.say(format_args!("data {}", reaches(&mut ring, &second, 0)));
}
case!(replaces => "
    cqe 1: 0
    cqe 2: 0
    the first reads Ok(0)
    data true
");

fn allocates(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (listener, address) = net::listener(Family::V4);
    let clients: Vec<OwnedFd> = (0..3).map(|_| net::connected(Family::V4, &address)).collect();
    t.entry(&ring.one(into(ALLOCATE, &listener, 1)));
    t.entry(&ring.one(into(ALLOCATE, &listener, 2)));
    t.say(format_args!("data {} {}", reaches(&mut ring, &clients[0], 0), reaches(&mut ring, &clients[1], 1)));
    t.entry(&ring.one(close(0, 3).with(|sqe| sqe.file_index = 1)));
    t.entry(&ring.one(into(ALLOCATE, &listener, 4)));
}
case!(allocates => "
    cqe 1: 0 SOCK_NONEMPTY
    cqe 2: 1 SOCK_NONEMPTY
    data true true
    cqe 3: 0
    cqe 4: 0
");

/// If no slot is free, ACCEPT gets -ENFILE and the connection is lost. The CQE has the flag
/// SOCK_NONEMPTY if another connection is in the listener's queue.
fn table_full_and_more(t: &mut Transcript) {
    let mut ring = sparse(1);
    let (listener, address) = net::listener(Family::V4);
    let _clients: Vec<OwnedFd> = (0..4).map(|_| net::connected(Family::V4, &address)).collect();
    for user_data in 0..4 {
        t.entry(&ring.one(into(ALLOCATE, &listener, user_data)));
    }
}
case!(table_full_and_more => "
    cqe 0: 0 SOCK_NONEMPTY
    cqe 1: -ENFILE SOCK_NONEMPTY
    cqe 2: -ENFILE SOCK_NONEMPTY
    cqe 3: -ENFILE
");

fn table_full(t: &mut Transcript) {
    let mut ring = sparse(1);
    let (listener, address) = net::listener(Family::V4);
    let clients: Vec<OwnedFd> = (0..2).map(|_| net::connected(Family::V4, &address)).collect();
    t.entry(&ring.one(into(ALLOCATE, &listener, 1)));
    t.entry(&ring.one(into(ALLOCATE, &listener, 2)));
    t.say(format_args!("still queued {}", is_ready(&listener)));
    t.say(format_args!("the second reads {:?}", files::take(&clients[1], 1).map(|bytes| bytes.len())));
}
case!(table_full => "
    cqe 1: 0 SOCK_NONEMPTY
    cqe 2: -ENFILE
    still queued false
    the second reads Ok(0)
");

fn without_table(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    for (user_data, slot) in [(1, 1), (2, ALLOCATE)] {
        let client = net::connected(Family::V4, &address);
        t.entry(&ring.one(into(slot, &listener, user_data)));
        t.say(format_args!("still queued {}", is_ready(&listener)));
        drop(client);
    }
}
case!(without_table => "
    cqe 1: -ENXIO
    still queued false
    cqe 2: -ENFILE
    still queued false
");

fn beyond_table(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (listener, address) = net::listener(Family::V4);
    for slot in [3, 1 << 20, u32::MAX - 1] {
        let client = net::connected(Family::V4, &address);
        t.entry(&ring.one(into(slot, &listener, 1)));
        t.say(format_args!("still queued {}", is_ready(&listener)));
        drop(client);
    }
}
case!(beyond_table => "
    cqe 1: -EINVAL
    still queued false
    cqe 1: -EINVAL
    still queued false
    cqe 1: -EINVAL
    still queued false
");

fn flags(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (listener, address) = net::listener(Family::V4);
    let _client = net::connected(Family::V4, &address);
    for flags in [libc::SOCK_CLOEXEC, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, libc::SOCK_NONBLOCK] {
        t.entry(&ring.one(into(1, &listener, 1).op_flags(flags as u32)));
    }
    t.entry(&ring.one(into(ALLOCATE, &listener, 1).op_flags(libc::SOCK_CLOEXEC as u32)));
}
case!(flags => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: 0
    cqe 1: -EINVAL
");

fn waits(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = sparse(2);
        let (listener, address) = net::listener(family);
        ring.push(into(2, &listener, 1));
        ring.push(into(ALLOCATE, &listener, 2));
        ring.submit();
        t.in_order(&ring.reap());
        let _first = net::connected(family, &address);
        let mut entries = ring.wait(1);
        let _second = net::connected(family, &address);
        entries.extend(ring.wait(1));
        t.sorted(&entries);
    }
}
case!(waits => "
    no cqe
    cqe 1: 0
    cqe 2: 0
    no cqe
    cqe 1: 0
    cqe 2: 0
    no cqe
    cqe 1: 0
    cqe 2: 0
");

fn table_registered_while_waiting(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(into(1, &listener, 1));
    ring.submit();
    t.in_order(&ring.reap());
    let numbers = [-1i32; 2];
    t.result("register", ring.register(reg::FILES, numbers.as_ptr(), 2));
    let client = net::connected(Family::V4, &address);
    t.in_order(&ring.wait(1));
    t.say(format_args!("data {}", reaches(&mut ring, &client, 0)));
}
case!(table_registered_while_waiting => "
    no cqe
    register = 0
    cqe 1: 0
    data true
");

fn peer_address_wrong(t: &mut Transcript) {
    let mut ring = sparse(1);
    let (listener, address) = net::listener(Family::V4);
    let _client = net::connected(Family::V4, &address);
    t.entry(&ring.one(into(ALLOCATE, &listener, 1).with(|sqe| (sqe.addr, sqe.off) = (BAD, BAD))));
    t.say(format_args!("still queued {}", is_ready(&listener)));
    let _client = net::connected(Family::V4, &address);
    t.entry(&ring.one(into(ALLOCATE, &listener, 2)));
}
case!(peer_address_wrong => "
    cqe 1: -EFAULT
    still queued false
    cqe 2: 0
");

/// ACCEPT into a slot uses no descriptor number: afterwards the program's lowest free number is
/// unchanged.
fn uses_no_number(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (listener, address) = net::listener(Family::V4);
    let client = net::stream(Family::V4);
    let next = files::eventfd(0);
    let number = next.as_raw_fd();
    drop(next);
    assert_eq!(net::connect_now(client.as_raw_fd(), &address), 0);
    t.entry(&ring.one(into(1, &listener, 1)));
    t.say(format_args!("same number {}", files::eventfd(0).as_raw_fd() == number));
}
case!(uses_no_number => "
    cqe 1: 0
    same number true
");

fn no_number_is_free(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (listener, address) = net::listener(Family::V4);
    let _client = net::connected(Family::V4, &address);
    let entry = without_numbers(|| ring.one(into(1, &listener, 1)));
    t.entry(&entry);
    t.say(format_args!("still queued {}", is_ready(&listener)));
}
case!(no_number_is_free => "
    cqe 1: 0
    still queued false
", usring => "
    cqe 1: -EMFILE
    still queued true
", because "a direct descriptor has an ordinary number for a moment");

fn ring_closes(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (listener, address) = net::listener(Family::V4);
    let client = net::connected(Family::V4, &address);
    t.entry(&ring.one(into(1, &listener, 1)));
    drop(ring);
    t.say(format_args!("the client reads {:?}", files::take(&client, 1).map(|bytes| bytes.len())));
}
case!(ring_closes => "
    cqe 1: 0
    the client reads Ok(0)
");

fn direct(fd: &OwnedFd, slot: u32, user_data: u64) -> Sqe {
    multishot(fd.as_raw_fd(), user_data).with(|sqe| sqe.file_index = slot)
}

fn many(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = sparse(4);
        let (listener, address) = net::listener(family);
        let mut clients = vec![net::connected(family, &address)];
        ring.push(direct(&listener, ALLOCATE, 1));
        ring.submit();
        t.in_order(&ring.wait(1));
        for _ in 0..2 {
            clients.push(net::connected(family, &address));
            t.in_order(&ring.wait(1));
        }
        for (slot, client) in clients.iter().enumerate() {
            t.say(format_args!("data {}", reaches(&mut ring, client, slot as i32)));
        }
    }
}
case!(many as multishot => "
    cqe 1: 0 MORE
    cqe 1: 1 MORE
    cqe 1: 2 MORE
    data true
    data true
    data true
    cqe 1: 0 MORE
    cqe 1: 1 MORE
    cqe 1: 2 MORE
    data true
    data true
    data true
    cqe 1: 0 MORE
    cqe 1: 1 MORE
    cqe 1: 2 MORE
    data true
    data true
    data true
");

fn many_table_full(t: &mut Transcript) {
    for family in FAMILIES {
        let mut ring = sparse(2);
        let (listener, address) = net::listener(family);
        ring.push(direct(&listener, ALLOCATE, 1));
        ring.submit();
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(net::connected(family, &address));
            t.in_order(&ring.wait(1));
        }
        let late = net::connected(family, &address);
        crate::time::long_enough_to_notice();
        t.in_order(&ring.reap());
        t.say(format_args!("still queued {}", is_ready(&listener)));
        t.say(format_args!("the third reads {:?}", files::take(&clients[2], 1).map(|bytes| bytes.len())));
        drop(late);
    }
}
case!(many_table_full as multishot_table_full => "
    cqe 1: 0 MORE
    cqe 1: 1 MORE
    cqe 1: -ENFILE
    no cqe
    still queued true
    the third reads Ok(0)
    cqe 1: 0 MORE
    cqe 1: 1 MORE
    cqe 1: -ENFILE
    no cqe
    still queued true
    the third reads Ok(0)
    cqe 1: 0 MORE
    cqe 1: 1 MORE
    cqe 1: -ENFILE
    no cqe
    still queued true
    the third reads Ok(0)
");

fn many_other_index(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (listener, _address) = net::listener(Family::V4);
    for slot in [1, 2, 7, u32::MAX - 1] {
        t.entry(&ring.one(direct(&listener, slot, 1)));
    }
}
case!(many_other_index as multishot_other_index => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
");

fn many_close_on_exec(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (listener, _address) = net::listener(Family::V4);
    t.entry(&ring.one(direct(&listener, ALLOCATE, 1).op_flags(libc::SOCK_CLOEXEC as u32)));
}
case!(many_close_on_exec as multishot_close_on_exec => "cqe 1: -EINVAL");

fn many_without_table(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (listener, address) = net::listener(Family::V4);
    ring.push(direct(&listener, ALLOCATE, 1));
    ring.submit();
    t.in_order(&ring.reap());
    let _client = net::connected(Family::V4, &address);
    t.in_order(&ring.wait(1));
}
case!(many_without_table as multishot_without_table => "
    no cqe
    cqe 1: -ENFILE
");

fn many_table_unregistered(t: &mut Transcript) {
    let mut ring = sparse(2);
    let (listener, address) = net::listener(Family::V4);
    ring.push(direct(&listener, ALLOCATE, 1));
    ring.submit();
    let _client = net::connected(Family::V4, &address);
    t.in_order(&ring.wait(1));
    t.result("unregister", ring.register(reg::UNREGISTER_FILES, std::ptr::null::<u8>(), 0));
    let _client = net::connected(Family::V4, &address);
    t.in_order(&ring.wait(1));
}
case!(many_table_unregistered as multishot_table_unregistered => "
    cqe 1: 0 MORE
    unregister = 0
    cqe 1: -ENFILE
");

/// If the kernel chooses an ACCEPT's slot, it chooses only from the registered allocation range.
/// Once the range is full, the multishot ends with -ENFILE.
fn many_range(t: &mut Transcript) {
    let mut ring = sparse(6);
    let (listener, address) = net::listener(Family::V4);
    let range = u::io_uring_file_index_range { off: 3, len: 2, resv: 0 };
    t.result("range", ring.register(reg::FILE_ALLOC_RANGE, &raw const range, 0));
    ring.push(direct(&listener, ALLOCATE, 1));
    ring.submit();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(net::connected(Family::V4, &address));
        t.in_order(&ring.wait(1));
    }
}
case!(many_range as multishot_range => "
    range = 0
    cqe 1: 3 MORE
    cqe 1: 4 MORE
    cqe 1: -ENFILE
");

/// The multishot puts a connection into a free slot even if the CQ is full. The connection's CQE
/// goes to the backlog (CQEs for which the CQ has no room).
fn many_overflow(t: &mut Transcript) {
    let setup = ring::DEFER;
    let mut ring = Ring::flags(2, setup);
    let numbers = [-1i32; 8];
    t.result("register", ring.register(reg::FILES, numbers.as_ptr(), 8));
    let (listener, address) = net::listener(Family::V4);
    ring.push(direct(&listener, ALLOCATE, 1));
    ring.submit();
    let clients: Vec<OwnedFd> = (0..6).map(|_| net::connected(Family::V4, &address)).collect();
    ring.enter(0, 1, u::IORING_ENTER_GETEVENTS);
    t.in_order(&ring.reap());
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    t.in_order(&ring.reap());
    for (slot, client) in clients.iter().take(5).enumerate() {
        t.say(format_args!("data {}", reaches(&mut ring, client, slot as i32)));
    }
}
case!(many_overflow as multishot_overflow => "
    register = 0
    cqe 1: 0 MORE|SOCK_NONEMPTY
    cqe 1: 1 MORE|SOCK_NONEMPTY
    cqe 1: 2 MORE|SOCK_NONEMPTY
    cqe 1: 3 MORE|SOCK_NONEMPTY
    cqe 1: 4 SOCK_NONEMPTY
    data true
    data true
    data true
    data true
    data true
");
