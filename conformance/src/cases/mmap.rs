//! mmap(2) of a ring's descriptor: the offsets of the SQ, the CQ and the SQEs, and several mappings
//! that show one memory.

use std::ffi::c_void;

use usring_uapi::io_uring as u;

use crate::ring::{Ring, cq_length, sq_length, sqes_length};
use crate::sqe::nop;
use crate::syscalls;
use crate::transcript::Transcript;

const SQ: u64 = u::IORING_OFF_SQ_RING as u64;
const CQ: u64 = u::IORING_OFF_CQ_RING as u64;
const SQES: u64 = u::IORING_OFF_SQES as u64;
const WRITE: usize = (libc::PROT_READ | libc::PROT_WRITE) as usize;

fn map(fd: i32, length: usize, offset: u64) -> i64 {
    syscalls::map(fd, length, offset)
}

fn unmap(address: i64, length: usize) {
    if address > 0 {
        // SAFETY: the caller has made the mapping and no longer uses it.
        unsafe { libc::munmap(address as *mut c_void, length) };
    }
}

fn word(address: i64, offset: u32) -> u32 {
    // SAFETY: the caller has mapped at least a page there, and the offset is one of the ring's.
    unsafe { ((address as *const u8).add(offset as usize).cast::<u32>()).read_volatile() }
}

fn one_mapping_serves_both(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let single = ring.params.features & u::IORING_FEAT_SINGLE_MMAP != 0;
    t.say(format_args!("SINGLE_MMAP {single}"));
    // `Ring` makes only the mapping of offset 0, and uses both the SQ and the CQ in it.
    t.sorted(&ring.run(&[nop(1), nop(2)]));
}
case!(one_mapping_serves_both => "
    SINGLE_MMAP true
    cqe 1: 0
    cqe 2: 0
");

/// A program can map the CQ separately in spite of SINGLE_MMAP, as fio does. The new mapping shows
/// the memory of the first mapping.
fn separate_cq_shows_the_same(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let length = cq_length(&ring.params);
    let view = map(ring.fd, length, CQ);
    t.outcome("map CQ apart", view);
    ring.push(nop(42));
    t.result("submit", ring.submit());
    let off = ring.params.cq_off;
    t.say(format_args!("cq tail in the view {}", word(view, off.tail)));
    t.say(format_args!("user_data in the view {}", word(view, off.cqes)));
    t.say(format_args!("sq tail in the view {}", word(view, ring.params.sq_off.tail)));
    // Consumes the CQE by this mapping. Afterwards the ring's own mapping must show an empty CQ.
    // SAFETY: the address is that of the CQ head in a mapping of this case.
    unsafe { (view as *mut u8).add(off.head as usize).cast::<u32>().write_volatile(1) };
    t.in_order(&ring.reap());
    t.say(format_args!("cq head {}", ring.cq_head()));
    unmap(view, length);
}
case!(separate_cq_shows_the_same => "
    map CQ apart = ok
    submit = 1
    cq tail in the view 1
    user_data in the view 42
    sq tail in the view 1
    no cqe
    cq head 1
");

fn sqes_twice(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let length = sqes_length(&ring.params);
    let view = map(ring.fd, length, SQES);
    t.outcome("map SQEs again", view);
    ring.push(nop(77));
    t.say(format_args!("user_data in the view {}", word(view, 32)));
    // SAFETY: the address is the user_data of the first SQE in a mapping of this case.
    unsafe { (view as *mut u8).add(32).cast::<u32>().write_volatile(78) };
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    unmap(view, length);
}
case!(sqes_twice => "
    map SQEs again = ok
    user_data in the view 77
    submit = 1
    cqe 78: 0
");

fn lengths(t: &mut Transcript) {
    let ring = Ring::new(64);
    let sq = sq_length(&ring.params);
    let sqes = sqes_length(&ring.params);
    for (name, length, offset) in [
        ("SQ 0", 0, SQ),
        ("SQ 1", 1, SQ),
        ("SQ exact", sq, SQ),
        ("SQ a page more than there is", sq.next_multiple_of(4096) + 4096, SQ),
        ("CQ 1", 1, CQ),
        ("CQ a megabyte", 1 << 20, CQ),
        ("SQEs 1", 1, SQES),
        ("SQEs exact", sqes, SQES),
        ("SQEs a page more than there are", sqes.next_multiple_of(4096) + 4096, SQES),
    ] {
        let address = map(ring.fd, length, offset);
        t.outcome(name, address);
        unmap(address, length);
    }
}
case!(lengths => "
    SQ 0 = -EINVAL
    SQ 1 = ok
    SQ exact = ok
    SQ a page more than there is = ok
    CQ 1 = ok
    CQ a megabyte = ok
    SQEs 1 = ok
    SQEs exact = ok
    SQEs a page more than there are = ok
");

fn bad_offsets(t: &mut Transcript) {
    let ring = Ring::new(8);
    for offset in [0x1800_0000u64, 0x2000_0000, 0x4000_0000, 0x7800_0000, 0x8800_0000, 1 << 40] {
        let address = map(ring.fd, 4096, offset);
        t.outcome(format_args!("{offset:#x}"), address);
        unmap(address, 4096);
    }
}
case!(bad_offsets => "
    0x18000000 = -ENOMEM
    0x20000000 = -ENOMEM
    0x40000000 = -ENOMEM
    0x78000000 = -ENOMEM
    0x88000000 = -ENOMEM
    0x10000000000 = ok
");

/// The offset's upper bits select what is mapped: the queues or the SQEs. The kernel ignores the
/// lower bits, which would be an offset within that memory.
fn page_aligned_offset(t: &mut Transcript) {
    let ring = Ring::new(8);
    for offset in [0x1000u64, 0x0800_1000, 0x1000_1000] {
        let address = map(ring.fd, 4096, offset);
        t.outcome(format_args!("{offset:#x}"), address);
        unmap(address, 4096);
    }
    t.outcome("0x10", map(ring.fd, 4096, 0x10));
}
case!(page_aligned_offset => "
    0x1000 = ok
    0x8001000 = ok
    0x10001000 = ok
    0x10 = -EINVAL
");

fn buffer_ring_offset(t: &mut Transcript) {
    let ring = Ring::new(8);
    t.outcome("group 0, none registered", map(ring.fd, 4096, 0x8000_0000));
    t.outcome("group 5, none registered", map(ring.fd, 4096, 0x8000_0000 | 5 << 16));
}
case!(buffer_ring_offset => "
    group 0, none registered = -ENOMEM
    group 5, none registered = -ENOMEM
");

fn protections(t: &mut Transcript) {
    let ring = Ring::new(8);
    let shared = libc::MAP_SHARED as usize;
    for (name, protection) in [
        ("read", libc::PROT_READ),
        ("write", libc::PROT_WRITE),
        ("none", libc::PROT_NONE),
        ("read and write", libc::PROT_READ | libc::PROT_WRITE),
    ] {
        let address = syscalls::map_with(ring.fd, 4096, SQ, protection as usize, shared);
        t.outcome(name, address);
        if address > 0 && protection == libc::PROT_READ {
            t.say(format_args!("sq mask {}", word(address, 16)));
        }
        unmap(address, 4096);
    }
}
case!(protections => "
    read = ok
    sq mask 7
    write = ok
    none = ok
    read and write = ok
");

fn private(t: &mut Transcript) {
    let ring = Ring::new(8);
    for (name, offset) in [("SQ", SQ), ("CQ", CQ), ("SQEs", SQES)] {
        let address = syscalls::map_with(ring.fd, 4096, offset, WRITE, libc::MAP_PRIVATE as usize);
        t.outcome(format_args!("{name} MAP_PRIVATE"), address);
        unmap(address, 4096);
    }
    let validate = libc::MAP_SHARED_VALIDATE as usize;
    let address = syscalls::map_with(ring.fd, 4096, SQ, WRITE, validate);
    t.outcome("SQ MAP_SHARED_VALIDATE", address);
    unmap(address, 4096);
}
case!(private => "
    SQ MAP_PRIVATE = ok
    CQ MAP_PRIVATE = ok
    SQEs MAP_PRIVATE = ok
    SQ MAP_SHARED_VALIDATE = ok
");

/// The kernel chooses the address of a mapping itself, to avoid cache aliasing. It refuses an
/// address that the program passes, with MAP_FIXED or as a hint.
fn fixed_address(t: &mut Transcript) {
    let ring = Ring::new(8);
    let pages = crate::memory::Pages::new(4);
    let place = pages.at(4096) as *mut c_void;
    let shared = libc::MAP_SHARED;
    for (name, flags) in [
        ("a wish", shared),
        ("MAP_FIXED", shared | libc::MAP_FIXED),
        ("MAP_FIXED_NOREPLACE", shared | libc::MAP_FIXED_NOREPLACE),
    ] {
        for (region, offset) in [("SQ", SQ), ("CQ", CQ), ("SQEs", SQES)] {
            // SAFETY: the mapping can replace only a page of this case that nothing uses.
            let address = unsafe { libc::mmap(place, 4096, WRITE as i32, flags, ring.fd, offset as i64) };
            let answer = if address == libc::MAP_FAILED { -syscalls::errno() } else { 0 };
            t.outcome(format_args!("{region}, {name}"), answer.into());
        }
    }
}
case!(fixed_address => "
    SQ, a wish = -EINVAL
    CQ, a wish = -EINVAL
    SQEs, a wish = -EINVAL
    SQ, MAP_FIXED = -EINVAL
    CQ, MAP_FIXED = -EINVAL
    SQEs, MAP_FIXED = -EINVAL
    SQ, MAP_FIXED_NOREPLACE = -EINVAL
    CQ, MAP_FIXED_NOREPLACE = -EINVAL
    SQEs, MAP_FIXED_NOREPLACE = -EINVAL
");

fn after_close(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    t.result("close", ring.close());
    t.outcome("map after close", map(fd, 4096, SQ));
}
case!(after_close => "
    close = 0
    map after close = -EBADF
");

/// The mappings outlive the ring's descriptor: after its close, the words of the ring can still be
/// read.
fn outlives_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    ring.push(nop(5));
    t.result("submit", ring.submit());
    t.result("close", ring.close());
    t.in_order(&ring.reap());
    t.result("enter", ring.enter(0, 0, 0));
    t.say(format_args!("sq mask {}", ring.word(ring.params.sq_off.ring_mask)));
}
case!(outlives_descriptor => "
    submit = 1
    close = 0
    cqe 5: 0
    enter = -EBADF
    sq mask 7
");
