//! Registered files: both generations of calls, sparse tables, updates, tags.

use std::os::fd::{AsRawFd, OwnedFd};

use usring_uapi::io_uring as u;

use super::reg;
use crate::case::{Case, case};
use crate::files;
use crate::memory::{BAD, zeroed};
use crate::names;
use crate::ring::Ring;
use crate::sqe::{Change, nop, read};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("registered_files.register_and_use", register_and_use),
    case("registered_files.survive_close", survive_close),
    case("registered_files.register_twice", register_twice),
    case("registered_files.unregister", unregister),
    case("registered_files.sparse_slots", sparse_slots),
    case("registered_files.bad_numbers", bad_numbers),
    case("registered_files.counts", counts),
    case("registered_files.bad_addresses", bad_addresses),
    case("registered_files.ring_in_its_own_table", ring_in_its_own_table),
    case("registered_files.update", update),
    case("registered_files.update_skips", update_skips),
    case("registered_files.update_ranges", update_ranges),
    case("registered_files.update_stops_at_bad", update_stops_at_bad),
    case("registered_files.second_generation", second_generation),
    case("registered_files.second_sparse", second_sparse),
    case("registered_files.second_wrong", second_wrong),
    case("registered_files.tags_on_unregister", tags_on_unregister),
    case("registered_files.tags_on_update", tags_on_update),
    case("registered_files.tag_waits_for_request", tag_waits_for_request),
    case("registered_files.update2_wrong", update2_wrong),
    case("registered_files.beyond_descriptor_limit", beyond_descriptor_limit),
];

/// Returns which of three contents a slot reads, or the errno.
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

fn survive_close(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    t.result("register", register(&ring, &numbers(&files)));
    drop(files);
    show(t, &mut ring, 3);
}

fn register_twice(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    t.result("register", register(&ring, &numbers(&files)));
    t.result("again", register(&ring, &numbers(&files)[..1]));
    show(t, &mut ring, 3);
}

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

fn sparse_slots(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    let table = [-1, files[1].as_raw_fd(), -1];
    t.result("register", register(&ring, &table));
    show(t, &mut ring, 3);
}

fn bad_numbers(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    for bad in [9999, -2, -100, i32::MAX] {
        let table = [files[0].as_raw_fd(), bad];
        t.result(format_args!("register {bad}"), register(&ring, &table));
    }
    // A refused call leaves no file behind.
    show(t, &mut ring, 1);
    t.result("register", register(&ring, &numbers(&files)));
}

fn counts(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("none", register(&ring, &[]));
    let table = vec![-1i32; 40_000];
    t.result("more than may be", register(&ring, &table[..32_769]));
    // RLIMIT_NOFILE is a limit, too.
    let limit = libc::rlimit { rlim_cur: 100, rlim_max: 100 };
    // SAFETY: `limit` is readable.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    t.result("101 with a limit of 100", register(&ring, &table[..101]));
    t.result("100 with a limit of 100", register(&ring, &table[..100]));
}

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

/// A ring in its own table would keep itself alive.
fn ring_in_its_own_table(t: &mut Transcript) {
    let ring = Ring::new(4);
    let other = Ring::new(4);
    t.result("itself", register(&ring, &[ring.fd]));
    t.result("another", register(&ring, &[other.fd]));
}

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

fn update_skips(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    let numbers = numbers(&files);
    t.result("register", register(&ring, &numbers));
    let skip = u::IORING_REGISTER_FILES_SKIP;
    t.result("update", update_at(&ring, 0, [skip, numbers[0], skip].as_ptr(), 3));
    show(t, &mut ring, 3);
}

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
    // Both sparse and an array.
    let other = Ring::new(4);
    registration.data = [-1i32; 3].as_ptr() as u64;
    t.result("sparse with data", other.register(reg::FILES2, &raw const registration, size));
}

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
    // A tag on an empty slot has nothing to report.
    t.result("tag on -1", files2(&ring, &[-1], &[5]));
}

fn tags_on_unregister(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    t.result("register", files2(&ring, &numbers(&files), &[11, 0, 13]));
    t.in_order(&ring.reap());
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    // A slot with a tag posts it when its file is released. Without a tag there is no CQE.
    t.sorted(&ring.wait(2));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}

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

/// The tag is posted when the last request on the file has completed.
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

/// A registered file uses no descriptor number of the program's.
fn beyond_descriptor_limit(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let files = abc();
    t.result("register", register(&ring, &numbers(&files)));
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    drop(files);
    // SAFETY: `limit` is readable.
    t.result("RLIMIT_NOFILE 0", unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) });
    show(t, &mut ring, 3);
    t.entry(&ring.one(nop(1)));
    let mut byte = [0u8; 1];
    t.entry(&ring.one(read(1, &mut byte, 0, 2).fixed().forced_async()));
}
