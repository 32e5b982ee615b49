//! Registered buffers: the older register call (BUFFERS) and the newer ones (BUFFERS2 and others),
//! sparse tables, updates, tags, and clones.

use std::os::fd::AsRawFd;

use usring_uapi::{io_uring as u, opcode};

use super::reg;
use crate::files;
use crate::memory::{BAD, KERNEL_HALF, Pages, zeroed};
use crate::names;
use crate::ring::Ring;
use crate::sqe::{Change, read_at, vector};
use crate::transcript::Transcript;

fn register(ring: &Ring, vectors: &[libc::iovec]) -> i32 {
    ring.register(reg::BUFFERS, vectors.as_ptr(), vectors.len() as u32)
}

fn whole(pages: &Pages) -> libc::iovec {
    vector(pages.at(0), pages.length)
}

/// Reads a byte into the start of `pages` by a READ_FIXED that names the registered buffer `index`.
/// Returns the result as text.
fn probe(ring: &mut Ring, pages: &Pages, index: u16) -> String {
    let file = files::memory_file(b"x");
    let sqe = read_at(file.as_raw_fd(), pages.at(0), 1, 0, 1).with(|sqe| {
        sqe.opcode = opcode::READ_FIXED;
        sqe.buf_index = index;
    });
    names::result(ring.one(sqe).res)
}

fn unregister_all(ring: &Ring) -> i32 {
    ring.register::<u8>(reg::UNREGISTER_BUFFERS, std::ptr::null(), 0)
}

fn register_and_use(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (a, b) = (Pages::new(1), Pages::new(2));
    t.result("register", register(&ring, &[whole(&a), whole(&b)]));
    t.say(format_args!("0 {}", probe(&mut ring, &a, 0)));
    t.say(format_args!("1 {}", probe(&mut ring, &b, 1)));
    t.say(format_args!("2 {}", probe(&mut ring, &b, 2)));
}
case!(register_and_use => "
    register = 0
    0 1
    1 1
    2 -EFAULT
");

fn register_twice(t: &mut Transcript) {
    let ring = Ring::new(4);
    let a = Pages::new(1);
    t.result("register", register(&ring, &[whole(&a)]));
    t.result("again", register(&ring, &[whole(&a)]));
}
case!(register_twice => "
    register = 0
    again = -EBUSY
");

fn unregister(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let a = Pages::new(1);
    t.result("unregister, none", unregister_all(&ring));
    t.result("register", register(&ring, &[whole(&a)]));
    let bad = BAD as *const u8;
    t.result("unregister, argument", ring.register(reg::UNREGISTER_BUFFERS, bad, 0));
    t.result("unregister", unregister_all(&ring));
    t.say(format_args!("0 {}", probe(&mut ring, &a, 0)));
    t.result("register", register(&ring, &[whole(&a)]));
    t.say(format_args!("0 {}", probe(&mut ring, &a, 0)));
}
case!(unregister => "
    unregister, none = -ENXIO
    register = 0
    unregister, argument = -EINVAL
    unregister = 0
    0 -EFAULT
    register = 0
    0 1
");

fn counts(t: &mut Transcript) {
    let ring = Ring::new(4);
    let a = Pages::new(1);
    t.result("none", register(&ring, &[]));
    let vectors = vec![vector(a.at(0), 8); 16_385];
    t.result("16385", register(&ring, &vectors));
    // A ring can have 16,384 registered buffers. The case registers only 1,000, because each buffer
    // counts as a page against the limit of locked memory.
    t.result("1000", register(&ring, &vectors[..1000]));
}
case!(counts => "
    none = -EINVAL
    16385 = -EINVAL
    1000 = 0
");

fn bad_vectors(t: &mut Transcript) {
    let ring = Ring::new(4);
    let a = Pages::new(2);
    t.result("array null", ring.register::<u8>(reg::BUFFERS, std::ptr::null(), 1));
    t.result("array unmapped", ring.register(reg::BUFFERS, BAD as *const u8, 1));
    for (name, address, length) in [
        ("null with length", 0, 10),
        ("unmapped", BAD, 10),
        ("kernel's half", KERNEL_HALF, 10),
        ("round the end", u64::MAX - 3, 10),
        ("length zero", a.at(0), 0),
        ("beyond the mapping", a.at(0), 1 << 20),
    ] {
        t.result(name, register(&ring, &[whole(&a), vector(address, length)]));
    }
    a.forbid_last();
    t.result("a bad page in it", register(&ring, &[whole(&a)]));
    t.result("a good page", register(&ring, &[vector(a.at(0), 4096)]));
}
case!(bad_vectors => "
    array null = -EFAULT
    array unmapped = -EFAULT
    null with length = -EFAULT
    unmapped = -EFAULT
    kernel's half = -EFAULT
    round the end = -EOVERFLOW
    length zero = -EFAULT
    beyond the mapping = -EFAULT
    a bad page in it = -EFAULT
    a good page = 0
");

fn sizes(t: &mut Transcript) {
    let ring = Ring::new(4);
    let a = Pages::new(1);
    // A buffer may have at most 1 GiB.
    t.result("a gigabyte and one", register(&ring, &[vector(a.at(0), (1 << 30) + 1)]));
    t.result("one byte", register(&ring, &[vector(a.at(77), 1)]));
    t.result("unregister", unregister_all(&ring));
    t.result("a few odd bytes", register(&ring, &[vector(a.at(4090), 3)]));
}
case!(sizes => "
    a gigabyte and one = -EFAULT
    one byte = 0
    unregister = 0
    a few odd bytes = 0
");

/// A vector with a null address and the length 0 makes an empty slot.
fn empty_slots(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let a = Pages::new(1);
    t.result("register", register(&ring, &[vector(0, 0), whole(&a)]));
    t.say(format_args!("0 {}", probe(&mut ring, &a, 0)));
    t.say(format_args!("1 {}", probe(&mut ring, &a, 1)));
}
case!(empty_slots => "
    register = 0
    0 -EFAULT
    1 1
");

fn overlapping(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let a = Pages::new(2);
    let vectors = [whole(&a), vector(a.at(0), 100), whole(&a)];
    t.result("register", register(&ring, &vectors));
    for index in 0..3 {
        t.say(format_args!("{index} {}", probe(&mut ring, &a, index)));
    }
}
case!(overlapping => "
    register = 0
    0 1
    1 1
    2 1
");

fn read_only_memory(t: &mut Transcript) {
    let ring = Ring::new(4);
    let a = Pages::new(1);
    a.protect_last(libc::PROT_READ);
    t.result("register", register(&ring, &[whole(&a)]));
}
case!(read_only_memory => "register = -EFAULT");

type Registration = u::io_uring_rsrc_register;
const REGISTRATION: u32 = size_of::<Registration>() as u32;
type Update = u::io_uring_rsrc_update2;

fn buffers2(ring: &Ring, vectors: &[libc::iovec], tags: &[u64]) -> i32 {
    let mut registration: Registration = zeroed();
    registration.nr = vectors.len() as u32;
    registration.data = vectors.as_ptr() as u64;
    if !tags.is_empty() {
        registration.tags = tags.as_ptr() as u64;
    }
    ring.register(reg::BUFFERS2, &raw const registration, REGISTRATION)
}

fn change(ring: &Ring, offset: u32, vectors: &[libc::iovec], tags: &[u64]) -> i32 {
    let mut update: Update = zeroed();
    update.offset = offset;
    update.nr = vectors.len() as u32;
    update.data = vectors.as_ptr() as u64;
    if !tags.is_empty() {
        update.tags = tags.as_ptr() as u64;
    }
    ring.register(reg::BUFFERS_UPDATE, &raw const update, size_of::<Update>() as u32)
}

fn second_generation(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (a, b) = (Pages::new(1), Pages::new(1));
    t.result("register", buffers2(&ring, &[whole(&a), whole(&b)], &[]));
    t.say(format_args!("0 {}", probe(&mut ring, &a, 0)));
    t.say(format_args!("1 {}", probe(&mut ring, &b, 1)));
    t.result("again", buffers2(&ring, &[whole(&a)], &[]));
}
case!(second_generation => "
    register = 0
    0 1
    1 1
    again = -EBUSY
");

fn sparse(ring: &Ring, slots: u32) -> i32 {
    let mut registration: Registration = zeroed();
    registration.nr = slots;
    registration.flags = u::IORING_RSRC_REGISTER_SPARSE;
    ring.register(reg::BUFFERS2, &raw const registration, REGISTRATION)
}

fn second_sparse(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let a = Pages::new(1);
    t.result("register", sparse(&ring, 3));
    t.say(format_args!("1 {}", probe(&mut ring, &a, 1)));
    t.result("update", change(&ring, 1, &[whole(&a)], &[]));
    t.say(format_args!("0 {}", probe(&mut ring, &a, 0)));
    t.say(format_args!("1 {}", probe(&mut ring, &a, 1)));
}
case!(second_sparse => "
    register = 0
    1 -EFAULT
    update = 1
    0 -EFAULT
    1 1
");

fn second_wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    let a = Pages::new(1);
    let vectors = [whole(&a)];
    let mut good: Registration = zeroed();
    good.nr = 1;
    good.data = vectors.as_ptr() as u64;
    t.result("size 31", ring.register(reg::BUFFERS2, &raw const good, REGISTRATION - 1));
    t.result("null", ring.register::<u8>(reg::BUFFERS2, std::ptr::null(), REGISTRATION));
    let mut wrong = |name: &str, change: fn(&mut Registration)| {
        let mut bad = good;
        change(&mut bad);
        t.result(name, ring.register(reg::BUFFERS2, &raw const bad, REGISTRATION));
    };
    wrong("unknown flag", |bad| bad.flags = 2);
    wrong("sparse with data", |bad| bad.flags = 1);
    wrong("reserved", |bad| bad.resv2 = 1);
    wrong("none", |bad| bad.nr = 0);
    wrong("tags unmapped", |bad| bad.tags = BAD);
    t.result("tag on an empty slot", buffers2(&ring, &[vector(0, 0)], &[5]));
}
case!(second_wrong => "
    size 31 = -EINVAL
    null = -EFAULT
    unknown flag = -EINVAL
    sparse with data = -EINVAL
    reserved = -EINVAL
    none = -EINVAL
    tags unmapped = -EFAULT
    tag on an empty slot = -EINVAL
");

fn update(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (a, b) = (Pages::new(1), Pages::new(1));
    t.result("register", register(&ring, &[whole(&a), whole(&a)]));
    t.result("update 1", change(&ring, 1, &[whole(&b)], &[]));
    t.say(format_args!("old memory {}", probe(&mut ring, &a, 1)));
    t.say(format_args!("new memory {}", probe(&mut ring, &b, 1)));
    t.result("clear 0", change(&ring, 0, &[vector(0, 0)], &[]));
    t.say(format_args!("0 {}", probe(&mut ring, &a, 0)));
    t.result("good, then bad", change(&ring, 0, &[whole(&a), vector(BAD, 10)], &[]));
    t.say(format_args!("0 {}", probe(&mut ring, &a, 0)));
    t.say(format_args!("1 {}", probe(&mut ring, &b, 1)));
}
case!(update => "
    register = 0
    update 1 = 1
    old memory -EFAULT
    new memory 1
    clear 0 = 1
    0 -EFAULT
    good, then bad = 1
    0 1
    1 1
");

fn update_ranges(t: &mut Transcript) {
    let ring = Ring::new(4);
    let a = Pages::new(1);
    t.result("no table", change(&ring, 0, &[whole(&a)], &[]));
    t.result("register", sparse(&ring, 2));
    t.result("beyond the end", change(&ring, 2, &[whole(&a)], &[]));
    t.result("across the end", change(&ring, 1, &[whole(&a), whole(&a)], &[]));
    t.result("far away", change(&ring, u32::MAX, &[whole(&a)], &[]));
    t.result("none", change(&ring, 0, &[], &[]));
}
case!(update_ranges => "
    no table = -ENXIO
    register = 0
    beyond the end = -EINVAL
    across the end = -EINVAL
    far away = -EOVERFLOW
    none = -EINVAL
");

fn tags(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (a, b) = (Pages::new(1), Pages::new(1));
    t.result("register", buffers2(&ring, &[whole(&a), whole(&b)], &[11, 12]));
    t.result("update 0", change(&ring, 0, &[whole(&b)], &[21]));
    t.sorted(&ring.wait(1));
    t.result("clear 1", change(&ring, 1, &[vector(0, 0)], &[0]));
    t.sorted(&ring.wait(1));
    t.result("clear 1 with a tag", change(&ring, 1, &[vector(0, 0)], &[31]));
    t.result("unregister", unregister_all(&ring));
    t.sorted(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(tags => "
    register = 0
    update 0 = 1
    cqe 11: 0
    clear 1 = 1
    cqe 12: 0
    clear 1 with a tag = -EINVAL
    unregister = 0
    cqe 21: 0
    no cqe
");

fn tag_waits_for_request(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let a = Pages::new(1);
    let (reader, writer) = files::pipe();
    t.result("register", buffers2(&ring, &[whole(&a)], &[11]));
    ring.push(read_at(reader.as_raw_fd(), a.at(0), 4, 0, 1).with(|sqe| {
        sqe.opcode = opcode::READ_FIXED;
    }));
    ring.submit();
    t.result("clear", change(&ring, 0, &[vector(0, 0)], &[0]));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&writer, b"late");
    t.sorted(&ring.wait(2));
}
case!(tag_waits_for_request => "
    register = 0
    clear = 1
    no cqe
    cqe 1: 4
    cqe 11: 0
");

fn unregistered_while_in_use(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let mut a = Pages::new(1);
    let (reader, writer) = files::pipe();
    t.result("register", register(&ring, &[whole(&a)]));
    ring.push(read_at(reader.as_raw_fd(), a.at(0), 4, 0, 1).with(|sqe| {
        sqe.opcode = opcode::READ_FIXED;
    }));
    ring.submit();
    t.result("unregister", unregister_all(&ring));
    files::put(&writer, b"late");
    t.in_order(&ring.wait(1));
    t.say(String::from_utf8_lossy(&a.bytes()[..4]).into_owned());
}
case!(unregistered_while_in_use => "
    register = 0
    unregister = 0
    cqe 1: 4
    late
");

fn clone(to: &Ring, from: i32, change: impl FnOnce(&mut u::io_uring_clone_buffers)) -> i32 {
    let mut clone: u::io_uring_clone_buffers = zeroed();
    clone.src_fd = from as u32;
    change(&mut clone);
    to.register(reg::CLONE_BUFFERS, &raw const clone, 1)
}

fn clone_whole(t: &mut Transcript) {
    let (first, mut second) = (Ring::new(4), Ring::new(4));
    let (a, b) = (Pages::new(1), Pages::new(1));
    t.result("register", register(&first, &[whole(&a), whole(&b)]));
    t.result("clone", clone(&second, first.fd, |_| ()));
    t.say(format_args!("0 {}", probe(&mut second, &a, 0)));
    t.say(format_args!("1 {}", probe(&mut second, &b, 1)));
    t.result("clone again", clone(&second, first.fd, |_| ()));
    // The first ring unregisters its buffers. The clones of these buffers in the second ring still
    // work.
    t.result("unregister the first", unregister_all(&first));
    t.say(format_args!("0 {}", probe(&mut second, &a, 0)));
    drop(first);
    t.say(format_args!("1 {}", probe(&mut second, &b, 1)));
}
case!(clone_whole as clone => "
    register = 0
    clone = 0
    0 1
    1 1
    clone again = -EBUSY
    unregister the first = 0
    0 1
    1 1
");

fn clone_wrong(t: &mut Transcript) {
    let (first, second) = (Ring::new(4), Ring::new(4));
    let a = Pages::new(1);
    t.result("nothing to clone", clone(&second, first.fd, |_| ()));
    t.result("register", register(&first, &[whole(&a), whole(&a)]));
    t.result("bad descriptor", clone(&second, 9999, |_| ()));
    t.result("not a ring", clone(&second, 1, |_| ()));
    t.result("unknown flag", clone(&second, first.fd, |clone| clone.flags = 1 << 5));
    t.result("pad", clone(&second, first.fd, |clone| clone.pad[0] = 1));
    t.result("beyond the end", clone(&second, first.fd, |clone| clone.src_off = 2));
    t.result("too many", clone(&second, first.fd, |clone| clone.nr = 3));
    t.result(
        "one, to slot 3",
        clone(&second, first.fd, |clone| {
            clone.nr = 1;
            clone.dst_off = 3;
        }),
    );
    t.result("null", second.register::<u8>(reg::CLONE_BUFFERS, std::ptr::null(), 1));
}
case!(clone_wrong => "
    nothing to clone = -ENXIO
    register = 0
    bad descriptor = -EBADF
    not a ring = -EOPNOTSUPP
    unknown flag = -EINVAL
    pad = -EINVAL
    beyond the end = -EINVAL
    too many = -EINVAL
    one, to slot 3 = 0
    null = -EINVAL
");

/// Clones parts of a ring's buffer table into a second ring, which already has registered buffers.
fn clone_parts(t: &mut Transcript) {
    let (first, mut second) = (Ring::new(4), Ring::new(4));
    let (a, b, c) = (Pages::new(1), Pages::new(1), Pages::new(1));
    t.result("register", register(&first, &[whole(&a), whole(&b), whole(&c)]));
    let part = |from, to, count, flags| {
        move |clone: &mut u::io_uring_clone_buffers| {
            (clone.src_off, clone.dst_off, clone.nr, clone.flags) = (from, to, count, flags);
        }
    };
    t.result("the last to 1", clone(&second, first.fd, part(2, 1, 1, 0)));
    t.say(format_args!("0 {}", probe(&mut second, &a, 0)));
    t.say(format_args!("1 {}", probe(&mut second, &c, 1)));
    t.result("no room", clone(&second, first.fd, part(0, 4, 1, 0)));
    t.result("replacing, behind the end", clone(&second, first.fd, part(0, 3, 2, REPLACE)));
    t.say(format_args!("1 {}", probe(&mut second, &c, 1)));
    t.say(format_args!("2 {}", probe(&mut second, &c, 2)));
    t.say(format_args!("3 {}", probe(&mut second, &a, 3)));
    t.say(format_args!("4 {}", probe(&mut second, &b, 4)));
    t.result("replacing one", clone(&second, first.fd, part(1, 1, 1, REPLACE)));
    t.say(format_args!("1 {}", probe(&mut second, &b, 1)));
    t.say(format_args!("4 {}", probe(&mut second, &b, 4)));
    t.result("all, replacing", clone(&second, first.fd, part(0, 0, 0, REPLACE)));
    t.say(format_args!("0 {}", probe(&mut second, &a, 0)));
    t.say(format_args!("4 {}", probe(&mut second, &b, 4)));
    t.say("wrong");
    for (from, to, count) in [(2, 0, 2), (u32::MAX, 0, 1), (0, u32::MAX, 1), (0, 16383, 2), (0, 1, 0), (0, 0, u32::MAX)]
    {
        t.result(format_args!("{count} of {from} to {to}"), clone(&second, first.fd, part(from, to, count, REPLACE)));
    }
    t.result("from itself", clone(&second, second.fd, part(0, 6, 1, REPLACE)));
    t.say(format_args!("6 {}", probe(&mut second, &a, 6)));
}
case!(clone_parts => "
    register = 0
    the last to 1 = 0
    0 -EFAULT
    1 1
    no room = -EBUSY
    replacing, behind the end = 0
    1 1
    2 -EFAULT
    3 1
    4 1
    replacing one = 0
    1 1
    4 1
    all, replacing = 0
    0 1
    4 1
    wrong
    2 of 2 to 0 = -EOVERFLOW
    1 of 4294967295 to 0 = -EOVERFLOW
    1 of 0 to 4294967295 = -EOVERFLOW
    2 of 0 to 16383 = -EINVAL
    0 of 0 to 1 = -EINVAL
    4294967295 of 0 to 0 = -EINVAL
    from itself = 0
    6 1
");

const REPLACE: u32 = 2;
const BY_INDEX: u32 = 1;

/// The clone call may name the source ring by the index of a registered ring. A SINGLE_ISSUER ring
/// of another thread cannot be the source.
fn clone_of_others(t: &mut Transcript) {
    let (first, mut second) = (Ring::new(4), Ring::new(4));
    let a = Pages::new(1);
    t.result("register", register(&first, &[whole(&a)]));
    let mut update: u::io_uring_rsrc_update = zeroed();
    (update.offset, update.data) = (3, first.fd as u64);
    t.result("register the ring", first.register(reg::RING_FDS, &raw const update, 1));
    t.result("empty index", clone(&second, 5, |clone| clone.flags = BY_INDEX));
    t.result("no index", clone(&second, 99, |clone| clone.flags = BY_INDEX));
    t.result("by index", clone(&second, 3, |clone| clone.flags = BY_INDEX));
    t.say(format_args!("0 {}", probe(&mut second, &a, 0)));
    let b = Pages::new(1);
    let address = b.at(0);
    let theirs = std::thread::spawn(move || {
        let ring = Ring::flags(4, u::IORING_SETUP_SINGLE_ISSUER);
        (register(&ring, &[vector(address, 4096)]), ring)
    });
    let (registered, theirs) = theirs.join().expect("the other thread");
    t.result("registered", registered);
    t.result("of another thread's alone", clone(&second, theirs.fd, |clone| clone.flags = REPLACE));
}
case!(clone_of_others => "
    register = 0
    register the ring = 1
    empty index = -EBADF
    no index = -EINVAL
    by index = 0
    0 1
    registered = 0
    of another thread's alone = -EEXIST
");
