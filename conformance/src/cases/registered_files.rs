//! Registered files: the older register call (FILES) and the newer ones (FILES2 and others), sparse
//! tables, updates, and tags.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use super::reg;
use crate::files;
use crate::memory::{BAD, zeroed};
use crate::names;
use crate::ring::Ring;
use crate::sqe::{Change, nop, read};
use crate::transcript::Transcript;

/// Reads the first byte of the registered file in the slot `slot`. This byte is the file's name: a,
/// b or c. Returns the name, or the errno.
fn probe(ring: &mut Ring, slot: i32) -> String {
    let mut byte = [0u8; 1];
    let entry = ring.one(read(slot, &mut byte, 0, 99).fixed());
    if entry.res == 1 { (byte[0] as char).to_string() } else { names::result(entry.res) }
}

fn show(t: &mut Transcript, ring: &mut Ring, slots: i32) {
    let slots: Vec<String> = (0..slots).map(|slot| probe(ring, slot)).collect();
    t.say(format_args!("slots {}", slots.join(" ")));
}

fn abc() -> [OwnedFd; 3] {
    [files::memory_file(b"a"), files::memory_file(b"b"), files::memory_file(b"c")]
}

fn register(ring: &Ring, numbers: &[i32]) -> i32 {
    ring.register(reg::FILES, numbers.as_ptr(), numbers.len() as u32)
}

fn numbers(files: &[OwnedFd]) -> Vec<i32> {
    files.iter().map(AsRawFd::as_raw_fd).collect()
}

fn register_and_use(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    t.result("register", register(&ring, &numbers(&files)));
    show(t, &mut ring, 4);
    t.say(format_args!("slot -1 {}", probe(&mut ring, -1)));
    t.say(format_args!("slot i32::MIN {}", probe(&mut ring, i32::MIN)));
}
case!(register_and_use => "
    register = 0
    slots a b c -EBADF
    slot -1 -EBADF
    slot i32::MIN -EBADF
");

fn survive_close(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    t.result("register", register(&ring, &numbers(&files)));
    drop(files);
    show(t, &mut ring, 3);
}
case!(survive_close => "
    register = 0
    slots a b c
");

fn register_twice(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    t.result("register", register(&ring, &numbers(&files)));
    t.result("again", register(&ring, &numbers(&files)[..1]));
    show(t, &mut ring, 3);
}
case!(register_twice => "
    register = 0
    again = -EBUSY
    slots a b c
");

fn unregister(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let none: *const u8 = std::ptr::null();
    t.result("unregister, none", ring.register(reg::UNREGISTER_FILES, none, 0));
    let files = abc();
    t.result("register", register(&ring, &numbers(&files)));
    t.result("unregister, count 1", ring.register(reg::UNREGISTER_FILES, none, 1));
    t.result("unregister, argument", ring.register(reg::UNREGISTER_FILES, BAD as *const u8, 0));
    t.result("unregister", ring.register(reg::UNREGISTER_FILES, none, 0));
    show(t, &mut ring, 1);
    t.result("register", register(&ring, &numbers(&files)[1..]));
    show(t, &mut ring, 3);
}
case!(unregister => "
    unregister, none = -ENXIO
    register = 0
    unregister, count 1 = -EINVAL
    unregister, argument = -EINVAL
    unregister = 0
    slots -EBADF
    register = 0
    slots b c -EBADF
");

fn sparse_slots(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    let table = [-1, files[1].as_raw_fd(), -1];
    t.result("register", register(&ring, &table));
    show(t, &mut ring, 3);
}
case!(sparse_slots => "
    register = 0
    slots -EBADF b -EBADF
");

fn bad_numbers(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    for bad in [9999, -2, -100, i32::MAX] {
        let table = [files[0].as_raw_fd(), bad];
        t.result(format_args!("register {bad}"), register(&ring, &table));
    }
    // A refused registration keeps none of its files.
    show(t, &mut ring, 1);
    t.result("register", register(&ring, &numbers(&files)));
}
case!(bad_numbers => "
    register 9999 = -EBADF
    register -2 = -EBADF
    register -100 = -EBADF
    register 2147483647 = -EBADF
    slots -EBADF
    register = 0
");

fn counts(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("none", register(&ring, &[]));
    let table = vec![-1i32; 40_000];
    t.result("more than may be", register(&ring, &table[..32_769]));
    // RLIMIT_NOFILE limits the table's size, too.
    let limit = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
    // SAFETY: the call reads only `limit`.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    t.result("101 with a limit of 100", register(&ring, &table[..101]));
    t.result("100 with a limit of 100", register(&ring, &table[..100]));
}
case!(counts => "
    none = -EINVAL
    more than may be = -EMFILE
    101 with a limit of 100 = -EMFILE
    100 with a limit of 100 = 0
");

fn bad_addresses(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("null", ring.register::<i32>(reg::FILES, std::ptr::null(), 2));
    t.result("unmapped", ring.register(reg::FILES, BAD as *const i32, 2));
    let files = abc();
    t.result("register", register(&ring, &numbers(&files)));
    t.result("update null", ring.register::<u8>(reg::FILES_UPDATE, std::ptr::null(), 1));
    t.result("update from null", update_at(&ring, 0, std::ptr::null(), 1));
    t.result("update from unmapped", update_at(&ring, 0, BAD as *const i32, 1));
}
case!(bad_addresses => "
    null = -EFAULT
    unmapped = -EFAULT
    register = 0
    update null = -EFAULT
    update from null = -EFAULT
    update from unmapped = -EFAULT
");

/// No ring's table of registered files accepts a ring: neither the ring itself nor another ring.
/// Otherwise rings could keep themselves alive.
fn ring_in_its_own_table(t: &mut Transcript) {
    let ring = Ring::new(4);
    let other = Ring::new(4);
    t.result("itself", register(&ring, &[ring.fd]));
    t.result("another", register(&ring, &[other.fd]));
}
case!(ring_in_its_own_table => "
    itself = -EBADF
    another = -EBADF
");

fn update_at(ring: &Ring, offset: u32, numbers: *const i32, count: u32) -> i32 {
    let update = u::io_uring_files_update { offset, resv: 0, fds: numbers as u64 };
    ring.register(reg::FILES_UPDATE, &raw const update, count)
}

fn update(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    let numbers = numbers(&files);
    t.result("update, no table", update_at(&ring, 0, numbers.as_ptr(), 1));
    t.result("register", register(&ring, &[-1, -1, -1]));
    t.result("update 1..3", update_at(&ring, 1, numbers.as_ptr(), 2));
    show(t, &mut ring, 3);
    t.result("update 0..3", update_at(&ring, 0, numbers.as_ptr(), 3));
    show(t, &mut ring, 3);
    t.result("clear 1", update_at(&ring, 1, [-1].as_ptr(), 1));
    show(t, &mut ring, 3);
}
case!(update => "
    update, no table = -ENXIO
    register = 0
    update 1..3 = 2
    slots -EBADF a b
    update 0..3 = 3
    slots a b c
    clear 1 = 1
    slots a -EBADF c
");

fn update_skips(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    let numbers = numbers(&files);
    t.result("register", register(&ring, &numbers));
    let skip = u::IORING_REGISTER_FILES_SKIP;
    t.result("update", update_at(&ring, 0, [skip, numbers[0], skip].as_ptr(), 3));
    show(t, &mut ring, 3);
}
case!(update_skips => "
    register = 0
    update = 3
    slots a a c
");

fn update_ranges(t: &mut Transcript) {
    let ring = Ring::new(4);
    let files = abc();
    let numbers = numbers(&files);
    t.result("register", register(&ring, &numbers));
    for (offset, count) in [(3, 1), (0, 4), (2, 2), (u32::MAX, 1), (1, u32::MAX), (0, 0), (3, 0)] {
        t.result(format_args!("offset {offset} count {count}"), update_at(&ring, offset, numbers.as_ptr(), count));
    }
    let update = u::io_uring_files_update { offset: 0, resv: 1, fds: numbers.as_ptr() as u64 };
    t.result("reserved", ring.register(reg::FILES_UPDATE, &raw const update, 1));
}
case!(update_ranges => "
    register = 0
    offset 3 count 1 = -EINVAL
    offset 0 count 4 = -EINVAL
    offset 2 count 2 = -EINVAL
    offset 4294967295 count 1 = -EOVERFLOW
    offset 1 count 4294967295 = -EOVERFLOW
    offset 0 count 0 = -EINVAL
    offset 3 count 0 = -EINVAL
    reserved = -EINVAL
");

fn update_stops_at_bad(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    let numbers = numbers(&files);
    t.result("register", register(&ring, &[-1, -1, -1]));
    t.result("update", update_at(&ring, 0, [numbers[2], 9999, numbers[1]].as_ptr(), 3));
    show(t, &mut ring, 3);
    t.result("update", update_at(&ring, 0, [9999, numbers[1]].as_ptr(), 2));
    show(t, &mut ring, 3);
}
case!(update_stops_at_bad => "
    register = 0
    update = 1
    slots c -EBADF -EBADF
    update = -EBADF
    slots -EBADF -EBADF -EBADF
");

fn files2(ring: &Ring, numbers: &[i32], tags: &[u64]) -> i32 {
    let mut registration: u::io_uring_rsrc_register = zeroed();
    registration.nr = numbers.len() as u32;
    registration.data = numbers.as_ptr() as u64;
    if !tags.is_empty() {
        registration.tags = tags.as_ptr() as u64;
    }
    let size = size_of::<u::io_uring_rsrc_register>() as u32;
    ring.register(reg::FILES2, &raw const registration, size)
}

fn update2(ring: &Ring, offset: u32, numbers: &[i32], tags: &[u64]) -> i32 {
    let mut update: u::io_uring_rsrc_update2 = zeroed();
    update.offset = offset;
    update.nr = numbers.len() as u32;
    update.data = numbers.as_ptr() as u64;
    if !tags.is_empty() {
        update.tags = tags.as_ptr() as u64;
    }
    let size = size_of::<u::io_uring_rsrc_update2>() as u32;
    ring.register(reg::FILES_UPDATE2, &raw const update, size)
}

fn second_generation(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    let numbers = numbers(&files);
    t.result("register", files2(&ring, &numbers, &[]));
    show(t, &mut ring, 4);
    t.result("update", update2(&ring, 1, &[numbers[0], -1], &[]));
    show(t, &mut ring, 3);
    t.result("update by the first call", update_at(&ring, 2, numbers.as_ptr(), 1));
    show(t, &mut ring, 3);
}
case!(second_generation => "
    register = 0
    slots a b c -EBADF
    update = 2
    slots a a -EBADF
    update by the first call = 1
    slots a a a
");

fn second_sparse(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut registration: u::io_uring_rsrc_register = zeroed();
    registration.nr = 3;
    registration.flags = u::IORING_RSRC_REGISTER_SPARSE;
    let size = size_of::<u::io_uring_rsrc_register>() as u32;
    t.result("register", ring.register(reg::FILES2, &raw const registration, size));
    show(t, &mut ring, 4);
    let files = abc();
    t.result("update", update2(&ring, 0, &numbers(&files), &[]));
    show(t, &mut ring, 3);
    // The kernel refuses a registration that asks for a sparse table and also passes an array of
    // files.
    let other = Ring::new(4);
    registration.data = [-1i32; 3].as_ptr() as u64;
    t.result("sparse with data", other.register(reg::FILES2, &raw const registration, size));
}
case!(second_sparse => "
    register = 0
    slots -EBADF -EBADF -EBADF -EBADF
    update = 3
    slots a b c
    sparse with data = -EINVAL
");

fn second_wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let size = size_of::<u::io_uring_rsrc_register>() as u32;
    let good: u::io_uring_rsrc_register =
        u::io_uring_rsrc_register { nr: 1, flags: u::IORING_RSRC_REGISTER_SPARSE, ..zeroed() };
    t.result("size 31", ring.register(reg::FILES2, &raw const good, size - 1));
    t.result("size 33", ring.register(reg::FILES2, &raw const good, size + 1));
    t.result("null", ring.register::<u8>(reg::FILES2, std::ptr::null(), size));
    let mut bad = good;
    bad.flags = 2;
    t.result("unknown flag", ring.register(reg::FILES2, &raw const bad, size));
    let mut bad = good;
    bad.resv2 = 1;
    t.result("reserved", ring.register(reg::FILES2, &raw const bad, size));
    let mut bad = good;
    bad.nr = 0;
    t.result("none", ring.register(reg::FILES2, &raw const bad, size));
    let mut bad = good;
    bad.flags = 0;
    bad.data = BAD;
    t.result("data unmapped", ring.register(reg::FILES2, &raw const bad, size));
    let files = abc();
    let number = files[0].as_raw_fd();
    bad.data = &raw const number as u64;
    bad.tags = BAD;
    t.result("tags unmapped", ring.register(reg::FILES2, &raw const bad, size));
    // An empty slot cannot have a tag.
    t.result("tag on -1", files2(&ring, &[-1], &[5]));
}
case!(second_wrong => "
    size 31 = -EINVAL
    size 33 = -EINVAL
    null = -EFAULT
    unknown flag = -EINVAL
    reserved = -EINVAL
    none = -EINVAL
    data unmapped = -EFAULT
    tags unmapped = -EFAULT
    tag on -1 = -EINVAL
");

fn tags_on_unregister(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    t.result("register", files2(&ring, &numbers(&files), &[11, 0, 13]));
    t.in_order(&ring.reap());
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    // When the file of a slot with a tag is released, a CQE is posted. The release of a slot
    // without a tag posts none.
    t.sorted(&ring.wait(2));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(tags_on_unregister => "
    register = 0
    no cqe
    unregister = 0
    cqe 11: 0
    cqe 13: 0
    no cqe
");

fn tags_on_update(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    let numbers = numbers(&files);
    t.result("register", files2(&ring, &numbers, &[11, 12, 13]));
    t.result("update 0", update2(&ring, 0, &[numbers[1]], &[21]));
    t.sorted(&ring.wait(1));
    t.result("clear 1", update2(&ring, 1, &[-1], &[0]));
    t.sorted(&ring.wait(1));
    t.result("skip 2", update2(&ring, 2, &[u::IORING_REGISTER_FILES_SKIP], &[0]));
    t.result("skip 2 with a tag", update2(&ring, 2, &[u::IORING_REGISTER_FILES_SKIP], &[33]));
    t.result("clear 0 with a tag", update2(&ring, 0, &[-1], &[44]));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    show(t, &mut ring, 3);
}
case!(tags_on_update => "
    register = 0
    update 0 = 1
    cqe 11: 0
    clear 1 = 1
    cqe 12: 0
    skip 2 = 1
    skip 2 with a tag = -EINVAL
    clear 0 with a tag = -EINVAL
    no cqe
    slots b -EBADF c
");

/// A slot with a tag is emptied while a request uses its file. The CQE for the tag is posted when
/// the last request on that file has completed.
fn tag_waits_for_request(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    t.result("register", files2(&ring, &[reader.as_raw_fd()], &[11]));
    ring.push(read(0, &mut byte, 0, 1).fixed());
    ring.submit();
    t.result("clear", update2(&ring, 0, &[-1], &[0]));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&writer, b"x");
    t.sorted(&ring.wait(2));
}
case!(tag_waits_for_request => "
    register = 0
    clear = 1
    no cqe
    cqe 1: 1
    cqe 11: 0
");

fn update2_wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let files = abc();
    let numbers = numbers(&files);
    t.result("no table", update2(&ring, 0, &numbers[..1], &[]));
    t.result("register", files2(&ring, &numbers, &[]));
    let mut update: u::io_uring_rsrc_update2 = zeroed();
    update.nr = 1;
    update.data = numbers.as_ptr() as u64;
    let size = size_of::<u::io_uring_rsrc_update2>() as u32;
    t.result("size 16", ring.register(reg::FILES_UPDATE2, &raw const update, 16));
    t.result("size 33", ring.register(reg::FILES_UPDATE2, &raw const update, size + 1));
    let mut bad = update;
    bad.resv = 1;
    t.result("reserved", ring.register(reg::FILES_UPDATE2, &raw const bad, size));
    let mut bad = update;
    bad.resv2 = 1;
    t.result("reserved 2", ring.register(reg::FILES_UPDATE2, &raw const bad, size));
    let mut bad = update;
    bad.tags = BAD;
    t.result("tags unmapped", ring.register(reg::FILES_UPDATE2, &raw const bad, size));
    let mut bad = update;
    bad.offset = 3;
    t.result("beyond the end", ring.register(reg::FILES_UPDATE2, &raw const bad, size));
}
case!(update2_wrong => "
    no table = -ENXIO
    register = 0
    size 16 = -EINVAL
    size 33 = -EINVAL
    reserved = -EINVAL
    reserved 2 = -EINVAL
    tags unmapped = -EFAULT
    beyond the end = -EINVAL
");

/// A registered file occupies none of the process's descriptor numbers.
fn beyond_descriptor_limit(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    t.result("register", register(&ring, &numbers(&files)));
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    drop(files);
    // SAFETY: the call reads only `limit`.
    t.result("RLIMIT_NOFILE 0", unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) });
    show(t, &mut ring, 3);
    t.entry(&ring.one(nop(1)));
    let mut byte = [0u8; 1];
    t.entry(&ring.one(read(1, &mut byte, 0, 2).fixed().forced_async()));
}
case!(beyond_descriptor_limit => "
    register = 0
    RLIMIT_NOFILE 0 = 0
    slots a b c
    cqe 1: 0
    cqe 2: 1
");
