//! Layouts of rings: wide SQEs and CQEs, an SQ without an index array, rings in the program's
//! memory, and rings without a descriptor.

use std::os::fd::AsRawFd;

use usring_uapi::{io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::files;
use crate::memory::{BAD, Pages, zeroed};
use crate::names;
use crate::ring::{Params, Ring};
use crate::sqe::{Change, nop, read, sqe};
use crate::syscalls;
use crate::transcript::Transcript;

fn wide_cqes(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_CQE32);
    let file = files::memory_file(b"0123");
    let mut buffer = [0u8; 4];
    let entries = ring.run(&[nop(1), read(file.as_raw_fd(), &mut buffer, 0, 2), nop(3)]);
    t.in_order(&entries);
    t.say(format_args!("second halves zero {}", entries.iter().all(|entry| entry.extra == [0, 0])));
}
case!(wide_cqes => "
    cqe 1: 0
    cqe 2: 4
    cqe 3: 0
    second halves zero true
");

fn wide_cqe_wraps(t: &mut Transcript) {
    let mut ring = Ring::flags(2, u::IORING_SETUP_CQE32);
    for round in 0..9 {
        t.entry(&ring.one(nop(round)));
    }
}
case!(wide_cqe_wraps => "
    cqe 0: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    cqe 6: 0
    cqe 7: 0
    cqe 8: 0
");

fn wide_sqes(t: &mut Transcript) {
    let mut ring = Ring::flags(2, u::IORING_SETUP_SQE128);
    let file = files::memory_file(b"0123");
    let mut buffer = [0u8; 4];
    for round in 0..3 {
        // NOP and READ ignore the second half of a wide SQE. So any bytes may be there.
        ring.push_wide(nop(round), &[0xff; 64]);
        ring.push_wide(read(file.as_raw_fd(), &mut buffer, 0, round + 10), &[0xaa; 64]);
        t.result("submit", ring.submit());
        t.in_order(&ring.wait(2));
    }
}
case!(wide_sqes => "
    submit = 2
    cqe 0: 0
    cqe 10: 4
    submit = 2
    cqe 1: 0
    cqe 11: 4
    submit = 2
    cqe 2: 0
    cqe 12: 4
");

fn wide_both(t: &mut Transcript) {
    let wide = u::IORING_SETUP_SQE128 | u::IORING_SETUP_CQE32;
    let mut ring = Ring::flags(4, wide | u::IORING_SETUP_NO_SQARRAY);
    for round in 0..3 {
        let entries = ring.run(&[nop(round * 2), nop(round * 2 + 1)]);
        t.in_order(&entries);
    }
}
case!(wide_both => "
    cqe 0: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
");

fn no_array(t: &mut Transcript) {
    let mut ring = Ring::flags(4, u::IORING_SETUP_NO_SQARRAY);
    t.say(format_args!("array offset {}", ring.params.sq_off.array));
    for round in 0..3 {
        for slot in 0..3 {
            ring.push(nop(round * 3 + slot));
        }
        t.result("submit", ring.submit());
        t.in_order(&ring.reap());
    }
    t.say(format_args!("sq head {}", ring.sq_head()));
}
case!(no_array => "
    array offset 0
    submit = 3
    cqe 0: 0
    cqe 1: 0
    cqe 2: 0
    submit = 3
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    submit = 3
    cqe 6: 0
    cqe 7: 0
    cqe 8: 0
    sq head 9
");

/// A ring with NO_SQARRAY has no index array. The kernel takes the SQE whose index is the SQ head
/// modulo the number of SQ entries.
fn no_array_order(t: &mut Transcript) {
    let mut ring = Ring::flags(2, u::IORING_SETUP_NO_SQARRAY);
    for user_data in 1..=5 {
        ring.push(nop(user_data));
        ring.submit();
    }
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    let mut entries = ring.reap();
    ring.enter(0, 0, u::IORING_ENTER_GETEVENTS);
    entries.extend(ring.reap());
    t.in_order(&entries);
}
case!(no_array_order => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
");

/// The SQ's index array determines the order in which the kernel takes the SQEs.
fn array_permutes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for user_data in 0..4 {
        ring.push(nop(user_data));
    }
    for (slot, index) in [2, 0, 3, 1].into_iter().enumerate() {
        ring.poke_array(slot as u32, index);
    }
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}
case!(array_permutes => "
    submit = 4
    cqe 2: 0
    cqe 0: 0
    cqe 3: 0
    cqe 1: 0
");

fn array_repeats(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for user_data in 0..3 {
        ring.push(nop(user_data));
    }
    ring.poke_array(1, 0);
    ring.poke_array(2, 0);
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
}
case!(array_repeats => "
    submit = 3
    cqe 0: 0
    cqe 0: 0
    cqe 0: 0
");

/// Makes a ring in the program's memory (NO_MMAP). Both queues lie at `rings`, and the SQEs lie at
/// `sqes`.
fn setup_in(rings: u64, sqes: u64, flags: u32) -> Result<Ring, i32> {
    let mut params: Params = zeroed();
    params.flags = u::IORING_SETUP_NO_MMAP | flags;
    params.cq_off.user_addr = rings;
    params.sq_off.user_addr = sqes;
    let fd = syscalls::setup(8, &mut params);
    if fd < 0 {
        return Err(fd);
    }
    Ok(Ring::over_memory(fd, params, rings as *mut u8, sqes as *mut u8))
}

fn own_memory(t: &mut Transcript) {
    let (rings, sqes) = (Pages::new(1), Pages::new(1));
    let mut ring = setup_in(rings.at(0), sqes.at(0), 0).expect("a ring in our own memory");
    for round in 0..3 {
        t.sorted(&ring.run(&[nop(round * 2), nop(round * 2 + 1)]));
    }
    drop(ring);
    // The ring lay in the program's memory and is closed. The program can still write to that
    // memory.
    let mut rings = rings;
    rings.bytes()[0] = 1;
    t.say("memory kept");
}
case!(own_memory => "
    cqe 0: 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: 0
    memory kept
");

fn own_memory_offsets(t: &mut Transcript) {
    let (rings, sqes) = (Pages::new(1), Pages::new(1));
    let ring = setup_in(rings.at(0), sqes.at(0), 0).expect("a ring in our own memory");
    let (sq, cq) = (ring.params.sq_off, ring.params.cq_off);
    t.say(format_args!("sq head {} tail {} array {}", sq.head, sq.tail, sq.array));
    t.say(format_args!("cq head {} tail {} cqes {}", cq.head, cq.tail, cq.cqes));
    let kept = sq.user_addr == sqes.at(0) && cq.user_addr == rings.at(0);
    t.say(format_args!("addresses come back {kept}"));
    t.say(format_args!("mask {}", ring.word(sq.ring_mask)));
}
case!(own_memory_offsets => "
    sq head 0 tail 4 array 320
    cq head 8 tail 12 cqes 64
    addresses come back true
    mask 7
");

fn own_memory_wrong(t: &mut Transcript) {
    let (rings, sqes) = (Pages::new(1), Pages::new(1));
    let mut attempt = |name: &str, rings: u64, sqes: u64| {
        let answer = setup_in(rings, sqes, 0).err().unwrap_or(0);
        t.outcome(name, answer.into());
    };
    attempt("no rings", 0, sqes.at(0));
    attempt("no entries", rings.at(0), 0);
    attempt("rings not of a page", rings.at(64), sqes.at(0));
    attempt("entries not of a page", rings.at(0), sqes.at(64));
    attempt("rings unmapped", 0x1000, sqes.at(0));
    attempt("entries unmapped", rings.at(0), 0x1000);
    attempt("nearly null", BAD, BAD);
    rings.protect_last(libc::PROT_READ);
    attempt("rings read-only", rings.at(0), sqes.at(0));
}
case!(own_memory_wrong => "
    no rings = -EFAULT
    no entries = -EFAULT
    rings not of a page = -EINVAL
    entries not of a page = -EINVAL
    rings unmapped = -EFAULT
    entries unmapped = -EFAULT
    nearly null = -EINVAL
    rings read-only = -EFAULT
");

/// A ring in the program's memory (NO_MMAP) cannot be mapped by mmap(2) of its descriptor.
fn own_memory_not_mapped(t: &mut Transcript) {
    let (rings, sqes) = (Pages::new(1), Pages::new(1));
    let ring = setup_in(rings.at(0), sqes.at(0), 0).expect("a ring in our own memory");
    for (name, offset) in [("SQ", 0u64), ("CQ", 0x0800_0000), ("SQEs", 0x1000_0000)] {
        t.outcome(name, syscalls::map(ring.fd, 4096, offset));
    }
}
case!(own_memory_not_mapped => "
    SQ = -ENOMEM
    CQ = -ENOMEM
    SQEs = -ENOMEM
");

/// With REGISTERED_FD_ONLY, io_uring_setup(2) returns no descriptor. It returns the index of a
/// registered ring instead.
fn no_descriptor(t: &mut Transcript) {
    let (rings, sqes) = (Pages::new(1), Pages::new(1));
    let flags = u::IORING_SETUP_REGISTERED_FD_ONLY;
    let mut ring = setup_in(rings.at(0), sqes.at(0), flags).expect("a ring without a descriptor");
    t.say(format_args!("index {}", ring.fd));
    ring.enter_flags = u::IORING_ENTER_REGISTERED_RING;
    ring.register_flags = reg::USE_REGISTERED_RING;
    t.sorted(&ring.run(&[nop(1), nop(2)]));
    let mut answer = [0u8; 16 + 8 * 4];
    t.result("probe", ring.register(reg::PROBE, answer.as_mut_ptr(), 4));
    let gone = u::io_uring_rsrc_update { offset: ring.fd as u32, resv: 0, data: 0 };
    t.result("unregister", ring.register(reg::UNREGISTER_RING_FDS, &raw const gone, 1));
    t.result("enter", ring.enter(0, 0, 0));
    ring.abandon();
}
case!(no_descriptor => "
    index 0
    cqe 1: 0
    cqe 2: 0
    probe = 0
    unregister = 1
    enter = -EBADF
");

fn no_descriptor_wrong(t: &mut Transcript) {
    let mut params: Params = zeroed();
    params.flags = u::IORING_SETUP_REGISTERED_FD_ONLY;
    t.result("without NO_MMAP", syscalls::setup(8, &mut params));
}
case!(no_descriptor_wrong => "without NO_MMAP = -EINVAL");

fn no_descriptor_several(t: &mut Transcript) {
    let flags = u::IORING_SETUP_REGISTERED_FD_ONLY;
    let memory: Vec<(Pages, Pages)> = (0..17).map(|_| (Pages::new(1), Pages::new(1))).collect();
    for (number, (rings, sqes)) in memory.iter().enumerate() {
        match setup_in(rings.at(0), sqes.at(0), flags) {
            Ok(mut ring) => {
                if ring.fd != number as i32 {
                    t.say(format_args!("index {} instead of {number}", ring.fd));
                }
                ring.enter_flags = u::IORING_ENTER_REGISTERED_RING;
                if number % 8 == 0 {
                    t.entry(&ring.one(nop(number as u64)));
                }
                ring.abandon();
            }
            Err(error) => t.result(format_args!("ring {number}"), error),
        }
    }
    let _ = nop(0).linked();
}
case!(no_descriptor_several => "
    cqe 0: 0
    cqe 8: 0
    ring 16 = -EBUSY
");

/// Submits each opcode with and without an I/O priority, and prints both results. The descriptor is
/// not open and the addresses are null, so no request has an effect.
fn priority_of_every_opcode(t: &mut Transcript) {
    const BEST_EFFORT: u16 = 2 << 13 | 4;
    let mut ring = Ring::new(2);
    // These opcodes are left out. usring refuses futexes and RECV_ZC on purpose, and SEND_ZC and
    // SENDMSG_ZC post a second CQE.
    let is_left_out = |code: u8| {
        matches!(code, opcode::FUTEX_WAIT..=opcode::FUTEX_WAITV | opcode::RECV_ZC)
            || matches!(code, opcode::SEND_ZC | opcode::SENDMSG_ZC)
    };
    for code in (0..opcode::NAMES.len() as u8).filter(|code| !is_left_out(*code)) {
        let plain = sqe(code, -1, 1);
        for flags in [0, sqe_flags::BUFFER_SELECT] {
            let answers = [0, BEST_EFFORT].map(|priority| {
                let request = plain.with(|sqe| (sqe.flags, sqe.ioprio) = (flags, priority));
                names::result(ring.one(request).res)
            });
            let name = opcode::NAMES[usize::from(code)];
            let selects = if flags == 0 { "" } else { " SELECT" };
            t.say(format_args!("{name}{selects}: {} {}", answers[0], answers[1]));
        }
    }
}
case!(priority_of_every_opcode => include_str!("shapes/priority_of_every_opcode.txt"));
