//! Registered ring descriptors: a thread has a table of rings, and its calls name a ring by an
//! index in that table.

use std::os::fd::AsRawFd;

use usring_uapi::io_uring as u;

use super::reg;
use crate::files;
use crate::memory::{BAD, zeroed};
use crate::ring::Ring;
use crate::sqe::nop;
use crate::syscalls;
use crate::transcript::Transcript;

type Update = u::io_uring_rsrc_update;

const ANY: u32 = u32::MAX;
const REGISTERED: u32 = u::IORING_ENTER_REGISTERED_RING;

fn entry(index: u32, fd: i32) -> Update {
    Update { offset: index, resv: 0, data: fd as u64 }
}

fn register(ring: &Ring, entries: &mut [Update]) -> i32 {
    ring.register(reg::RING_FDS, entries.as_mut_ptr(), entries.len() as u32)
}

fn unregister_at(ring: &Ring, index: u32) -> i32 {
    let gone = entry(index, 0);
    ring.register(reg::UNREGISTER_RING_FDS, &raw const gone, 1)
}

/// Submits a NOP by an io_uring_enter(2) that names the ring by the index `index`.
fn nop_at(t: &mut Transcript, ring: &mut Ring, index: u32) {
    ring.push(nop(7));
    ring.forget_pending();
    let answer = syscalls::enter(index as i32, 1, 0, REGISTERED, std::ptr::null(), 0);
    t.result(format_args!("enter by index {index}"), answer);
    t.in_order(&ring.reap());
}

fn register_and_enter(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let mut entries = [entry(ANY, ring.fd)];
    t.result("register", register(&ring, &mut entries));
    t.say(format_args!("index {}", entries[0].offset));
    nop_at(t, &mut ring, entries[0].offset);
    // The ordinary descriptor still works, too.
    t.entry(&ring.one(nop(1)));
}
case!(register_and_enter => "
    register = 1
    index 0
    enter by index 0 = 1
    cqe 7: 0
    cqe 1: 0
");

fn chosen_index(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let mut entries = [entry(5, ring.fd)];
    t.result("register", register(&ring, &mut entries));
    t.say(format_args!("index {}", entries[0].offset));
    nop_at(t, &mut ring, 5);
    t.result("taken", register(&ring, &mut [entry(5, ring.fd)]));
    t.result("beyond the last", register(&ring, &mut [entry(16, ring.fd)]));
    t.result("the last", register(&ring, &mut [entry(15, ring.fd)]));
}
case!(chosen_index => "
    register = 1
    index 5
    enter by index 5 = 1
    cqe 7: 0
    taken = -EBUSY
    beyond the last = -EINVAL
    the last = 1
");

fn several(t: &mut Transcript) {
    let (first, second) = (Ring::new(4), Ring::new(4));
    let mut entries = [entry(ANY, first.fd), entry(ANY, second.fd), entry(ANY, 9999)];
    t.result("register", register(&first, &mut entries));
    t.say(format_args!("indices {} {}", entries[0].offset, entries[1].offset));
    let mut entries = [entry(ANY, 9999), entry(ANY, second.fd)];
    t.result("register a bad one", register(&first, &mut entries));
}
case!(several => "
    register = 2
    indices 0 1
    register a bad one = -EBADF
");

fn sixteen(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut entries = vec![entry(ANY, ring.fd); 16];
    t.result("register", register(&ring, &mut entries));
    t.result("one more", register(&ring, &mut [entry(ANY, ring.fd)]));
    t.result("seventeen", register(&ring, &mut [entry(ANY, ring.fd); 17]));
}
case!(sixteen => "
    register = 16
    one more = -EBUSY
    seventeen = -EINVAL
");

fn enter_wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut by = |index: i32| {
        let answer = syscalls::enter(index, 0, 0, REGISTERED, std::ptr::null(), 0);
        t.result(format_args!("index {index}"), answer);
    };
    by(0);
    by(15);
    by(16);
    by(-1);
    let registered = register(&ring, &mut [entry(ANY, ring.fd)]);
    let answer = syscalls::enter(1, 0, 0, REGISTERED, std::ptr::null(), 0);
    t.result("registered", registered);
    t.result("the next index", answer);
}
case!(enter_wrong => "
    index 0 = -EBADF
    index 15 = -EBADF
    index 16 = -EINVAL
    index -1 = -EINVAL
    registered = 1
    the next index = -EBADF
");

fn register_wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let (reader, _writer) = files::pipe();
    t.result("bad number", register(&ring, &mut [entry(ANY, 9999)]));
    t.result("not a ring", register(&ring, &mut [entry(ANY, reader.as_raw_fd())]));
    let mut bad = entry(ANY, ring.fd);
    bad.resv = 1;
    t.result("reserved", register(&ring, &mut [bad]));
    t.result("count 0", register(&ring, &mut []));
    t.result("null", ring.register::<u8>(reg::RING_FDS, std::ptr::null(), 1));
    t.result("unmapped", ring.register(reg::RING_FDS, BAD as *const u8, 1));
}
case!(register_wrong => "
    bad number = -EBADF
    not a ring = -EOPNOTSUPP
    reserved = -EINVAL
    count 0 = -EINVAL
    null = -EFAULT
    unmapped = -EFAULT
");

fn unregister(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    t.result("none there", unregister_at(&ring, 3));
    let mut entries = [entry(3, ring.fd)];
    t.result("register", register(&ring, &mut entries));
    t.result("unregister", unregister_at(&ring, 3));
    let answer = syscalls::enter(3, 0, 0, REGISTERED, std::ptr::null(), 0);
    t.result("enter", answer);
    t.result("again", unregister_at(&ring, 3));
    t.result("beyond the last", unregister_at(&ring, 16));
    let mut bad = entry(3, 0);
    bad.data = 5;
    t.result("with data", ring.register(reg::UNREGISTER_RING_FDS, &raw const bad, 1));
    t.result("register", register(&ring, &mut entries));
    nop_at(t, &mut ring, 3);
}
case!(unregister => "
    none there = 1
    register = 1
    unregister = 1
    enter = -EBADF
    again = 1
    beyond the last = -EINVAL
    with data = -EINVAL
    register = 1
    enter by index 3 = 1
    cqe 7: 0
");

/// The program closes the ring's descriptor. The entry in the thread's table of registered rings
/// keeps the ring alive.
fn closed_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let mut entries = [entry(ANY, ring.fd)];
    t.result("register", register(&ring, &mut entries));
    t.result("close", ring.close());
    nop_at(t, &mut ring, entries[0].offset);
    t.result("enter by the number", ring.enter(0, 0, 0));
}
case!(closed_descriptor => "
    register = 1
    close = 0
    enter by index 0 = 1
    cqe 7: 0
    enter by the number = -EBADF
");

/// Each thread has its own table of registered rings. So a thread cannot use an index of another
/// thread's table.
fn other_thread(t: &mut Transcript) {
    let ring = Ring::new(8);
    let mut entries = [entry(ANY, ring.fd)];
    t.result("register", register(&ring, &mut entries));
    let index = entries[0].offset as i32;
    let there = std::thread::spawn(move || syscalls::enter(index, 0, 0, REGISTERED, std::ptr::null(), 0));
    t.result("enter in another thread", there.join().unwrap_or(0));
    t.result("enter here", syscalls::enter(index, 0, 0, REGISTERED, std::ptr::null(), 0));
}
case!(other_thread => "
    register = 1
    enter in another thread = -EINVAL
    enter here = 0
");

/// Register calls accept the index, too (IORING_FEAT_REG_REG_RING).
fn register_by_index(t: &mut Transcript) {
    let ring = Ring::new(8);
    let mut entries = [entry(ANY, ring.fd)];
    t.result("register", register(&ring, &mut entries));
    let index = entries[0].offset as i32;
    let number = -1i32;
    let by = reg::USE_REGISTERED_RING;
    let argument = (&raw const number).cast();
    t.result("files by index", syscalls::register(index, reg::FILES | by, argument, 1));
    t.result("files by number", syscalls::register(ring.fd, reg::FILES, argument, 1));
    let none = std::ptr::null();
    t.result("bad index", syscalls::register(9, reg::UNREGISTER_FILES | by, none, 0));
    t.result("index -1", syscalls::register(-1, reg::UNREGISTER_FILES | by, none, 0));
    t.result("unregister by index", syscalls::register(index, reg::UNREGISTER_FILES | by, none, 0));
    // The call names the ring by an index, and unregisters that index.
    let gone = entry(index as u32, 0);
    let argument = (&raw const gone).cast();
    t.result("give up", syscalls::register(index, reg::UNREGISTER_RING_FDS | by, argument, 1));
    t.result("unknown opcode by index", syscalls::register(index, 999 | by, none, 0));
}
case!(register_by_index => "
    register = 1
    files by index = 0
    files by number = -EBUSY
    bad index = -EBADF
    index -1 = -EINVAL
    unregister by index = 0
    give up = 1
    unknown opcode by index = -EINVAL
");

/// A call on one ring can register the descriptor of a second ring.
fn another_ring(t: &mut Transcript) {
    let (first, mut second) = (Ring::new(4), Ring::new(4));
    let mut entries = [entry(2, second.fd)];
    t.result("register", register(&first, &mut entries));
    nop_at(t, &mut second, 2);
    drop(first);
    nop_at(t, &mut second, 2);
    let _: Update = zeroed();
}
case!(another_ring => "
    register = 1
    enter by index 2 = 1
    cqe 7: 0
    enter by index 2 = 1
    cqe 7: 0
");

/// In a forked child, the table of registered rings is empty.
fn in_child(t: &mut Transcript) {
    let ring = Ring::new(4);
    let mut entries = [entry(ANY, ring.fd)];
    t.result("register", register(&ring, &mut entries));
    let index = entries[0].offset as i32;
    let ending = crate::process::forked(|| {
        let answer = syscalls::enter(index, 0, 0, REGISTERED, std::ptr::null(), 0);
        i32::from(answer == -libc::EINVAL) + 2 * i32::from(answer == -libc::EBADF)
    });
    t.say(format_args!("child: {ending}"));
    t.result("parent", syscalls::enter(index, 0, 0, REGISTERED, std::ptr::null(), 0));
}
case!(in_child => "
    register = 1
    child: exit 1
    parent = 0
");
