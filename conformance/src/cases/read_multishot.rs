//! READ_MULTISHOT: a read that stays armed after a CQE, and selects a provided buffer for each CQE.

use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode, sqe_flags};

use super::reg;
use crate::buffers::{Group, SIZE, group_of, incremental_group_of};
use crate::files;
use crate::memory::Pages;
use crate::ring::{self, Ring};
use crate::sqe::{Change, cancel, nop, sqe};
use crate::transcript::Transcript;

mod chains;
mod drivers;
mod ends;
mod errors;

const GROUP: u16 = 3;

fn multishot(fd: i32, user_data: u64) -> Sqe {
    sqe(opcode::READ_MULTISHOT, fd, user_data).flagged(sqe_flags::BUFFER_SELECT).with(|sqe| sqe.buf_index = GROUP)
}

/// Makes a ring with `flags`, and a group of `buffers` buffers whose buffer ring lies in `memory`.
fn ring_of(memory: &Pages, buffers: u16, flags: u32) -> (Ring, Group) {
    let ring = Ring::flags(16, flags);
    let mut group = group_of(&ring, memory, 128, GROUP);
    group.add_slots(0..buffers);
    (ring, group)
}

fn pipe(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    for text in ["one", "two", "three"] {
        files::put(&writer, text.as_bytes());
        t.in_order(&ring.wait(1));
    }
    t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
}
case!(pipe => "
    submit = 1
    no cqe
    cqe 1: 3 MORE|BUFFER(0)
    cqe 1: 3 MORE|BUFFER(1)
    cqe 1: 5 MORE|BUFFER(2)
    one............. two............. three...........
");

/// A pipe has more data than one buffer can take. Each buffer that the multishot fills gets a CQE.
fn data_is_there(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"0123456789abcdefghijklmnopqrstuvwxyzABCD");
    ring.push(multishot(reader.as_raw_fd(), 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(3));
    files::put(&writer, b"0123456789abcdefghijklmnopqrstuv");
    t.in_order(&ring.wait(2));
    t.say(format_args!("{} {} {}", group.text(0), group.text(1), group.text(2)));
}
case!(data_is_there => "
    submit = 1
    cqe 1: 16 MORE|BUFFER(0)
    cqe 1: 16 MORE|BUFFER(1)
    cqe 1: 8 MORE|BUFFER(2)
    cqe 1: 16 MORE|BUFFER(3)
    cqe 1: 16 MORE|BUFFER(4)
    0123456789abcdef ghijklmnopqrstuv wxyzABCD........
");

/// During the submission the multishot reads once. It reads the remaining data after the other
/// requests of its batch. Here these requests add data and buffers first.
fn reads_the_rest_behind_its_batch(t: &mut Transcript) {
    for flags in ring::BOTH {
        let memory = Pages::new(2);
        let mut ring = Ring::flags(16, flags);
        let provide =
            |count| Sqe { addr: memory.at(0), len: SIZE, buf_index: GROUP, ..sqe(opcode::PROVIDE_BUFFERS, count, 2) };
        t.entry(&ring.one(provide(1)));
        let (reader, writer) = files::pipe();
        files::put(&writer, &[b'x'; 40]);
        ring.push(multishot(reader.as_raw_fd(), 1));
        ring.push(provide(8));
        ring.push(crate::sqe::write(writer.as_raw_fd(), b"12345678", 0, 3));
        t.result("submit", ring.submit());
        t.in_order(&ring.wait(5));
    }
}
case!(reads_the_rest_behind_its_batch => "
    cqe 2: 0
    submit = 3
    cqe 1: 16 MORE|BUFFER(0)
    cqe 2: 0
    cqe 3: 8
    cqe 1: 16 MORE|BUFFER(0)
    cqe 1: 16 MORE|BUFFER(1)
    cqe 2: 0
    submit = 3
    cqe 1: 16 MORE|BUFFER(0)
    cqe 2: 0
    cqe 3: 8
    cqe 1: 16 MORE|BUFFER(0)
    cqe 1: 16 MORE|BUFFER(1)
");

/// A read of an eventfd needs 8 bytes. When the rest of an incremental buffer is shorter, the next
/// event ends the multishot with -EINVAL.
fn counter_into_rest_of_buffer(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(16);
    let mut group = incremental_group_of(&ring, &memory, 8, GROUP);
    group.add(0, 13, 0);
    let counter = files::eventfd(1);
    ring.push(multishot(counter.as_raw_fd(), 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    files::put(&counter, &1u64.to_ne_bytes());
    t.in_order(&ring.wait(1));
}
case!(counter_into_rest_of_buffer => "
    submit = 1
    cqe 1: 8 MORE|BUF_MORE|BUFFER(0)
    no cqe
    cqe 1: -EINVAL
");

fn socket(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    for length in [1, 16, 17] {
        files::put(&writer, &[b'x'; 20][..length]);
        t.in_order(&ring.wait(length.div_ceil(16)));
    }
    drop(writer);
    t.in_order(&ring.wait(1));
}
case!(socket => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 16 MORE|BUFFER(1)
    cqe 1: 16 MORE|BUFFER(2)
    cqe 1: 1 MORE|BUFFER(3)
    cqe 1: 0
");

fn eventfd(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let event = files::eventfd(0);
    ring.push(multishot(event.as_raw_fd(), 1));
    ring.submit();
    for count in [1u64, 5] {
        files::put(&event, &count.to_ne_bytes());
        t.in_order(&ring.wait(1));
    }
}
case!(eventfd => "
    cqe 1: 8 MORE|BUFFER(0)
    cqe 1: 8 MORE|BUFFER(1)
");

fn wrong(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    let good = multishot(reader.as_raw_fd(), 1);
    t.entry(&ring.one(good.with(|sqe| sqe.flags = 0)));
    t.entry(&ring.one(good.with(|sqe| sqe.addr = group.buffers.at(0))));
    t.entry(&ring.one(good.with(|sqe| sqe.len = 8)));
    t.entry(&ring.one(good.op_flags(1 << 31)));
    t.entry(&ring.one(good.with(|sqe| sqe.ioprio = 0xffff)));
    t.entry(&ring.one(good.with(|sqe| sqe.buf_index = 9)));
    t.entry(&ring.one(good.with(|sqe| sqe.fd = -1)));
    t.entry(&ring.one(good.with(|sqe| sqe.fd = writer.as_raw_fd())));
    t.say(group.text(0));
}
case!(wrong => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EOPNOTSUPP
    cqe 1: -EINVAL
    cqe 1: -ENOBUFS
    cqe 1: -EBADF
    cqe 1: -EBADF
    ................
");

fn not_polled(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let file = files::memory_file(b"content");
    t.entry(&ring.one(multishot(file.as_raw_fd(), 1)));
    let root = std::fs::File::open("/").expect("/");
    t.entry(&ring.one(multishot(root.as_raw_fd(), 2)));
    // The refused request has used up no buffer.
    let (reader, writer) = files::pipe();
    files::put(&writer, b"x");
    ring.push(multishot(reader.as_raw_fd(), 3));
    ring.submit();
    t.in_order(&ring.wait(1));
}
case!(not_polled as file_that_is_not_polled => "
    cqe 1: -EBADFD
    cqe 2: -EBADFD
    cqe 3: 1 MORE|BUFFER(0)
");

fn link(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1).linked());
    ring.push(nop(2));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    drop(writer);
    t.in_order(&ring.wait(2));
    // This multishot ends with an error, so it breaks its chain.
    let (reader, _writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 3).linked());
    ring.push(nop(4));
    ring.submit();
    ring.push(cancel(3, 0, 5));
    ring.submit();
    t.sorted(&ring.wait(3));
}
case!(link => "
    cqe 1: 1 MORE|BUFFER(0)
    no cqe
    cqe 1: 0
    cqe 2: 0
    cqe 3: -ECANCELED
    cqe 4: -ECANCELED
    cqe 5: 0
");

fn drain(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.push(nop(2).flagged(sqe_flags::IO_DRAIN));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    drop(writer);
    t.in_order(&ring.wait(2));
}
case!(drain => "
    cqe 1: 1 MORE|BUFFER(0)
    no cqe
    cqe 1: 0
    cqe 2: 0
");

/// CQE_SKIP_SUCCESS suppresses only the last CQE of a multishot. CQEs with F_MORE are still posted.
fn skip_success(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1).flagged(sqe_flags::CQE_SKIP_SUCCESS));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.reap_in_memory(1));
    drop(writer);
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
}
case!(skip_success => "
    cqe 1: 1 MORE|BUFFER(0)
    no cqe
");

fn fixed_file(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::pipe();
    let numbers = [reader.as_raw_fd()];
    t.result("register", ring.register(reg::FILES, numbers.as_ptr(), 1));
    drop(reader);
    ring.push(multishot(0, 1).fixed());
    ring.submit();
    for _ in 0..2 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    files::put(&writer, b"y");
    t.in_order(&ring.wait(1));
    drop(writer);
    t.in_order(&ring.wait(1));
}
case!(fixed_file => "
    register = 0
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    unregister = 0
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 0
");

fn forced_async(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 8, 0);
    let (reader, writer) = files::sockets();
    ring.push(multishot(reader.as_raw_fd(), 1).forced_async());
    ring.submit();
    for _ in 0..3 {
        files::put(&writer, b"x");
        t.in_order(&ring.wait(1));
    }
    drop(writer);
    t.in_order(&ring.wait(1));
}
case!(forced_async => "
    cqe 1: 1 MORE|BUFFER(0)
    cqe 1: 1 MORE|BUFFER(1)
    cqe 1: 1 MORE|BUFFER(2)
    cqe 1: 0
");

/// The kernel cannot tell in advance whether a read of a terminal would wait. A multishot on a
/// terminal works nevertheless.
fn terminal(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, mut group) = ring_of(&memory, 8, 0);
    let (program, keyboard) = files::terminal();
    ring.push(multishot(program.as_raw_fd(), 1));
    ring.submit();
    for line in ["one\n", "two\nthree\n"] {
        files::put(&keyboard, line.as_bytes());
        t.in_order(&ring.wait(line.lines().count()));
    }
    t.say(format_args!("{:?} {:?} {:?}", group.text(0), group.text(1), group.text(2)));
}
case!(terminal => "
    cqe 1: 4 MORE|BUFFER(0)
    cqe 1: 4 MORE|BUFFER(1)
    cqe 1: 6 MORE|BUFFER(2)
    \"one\\n............\" \"two\\n............\" \"three\\n..........\"
");

fn first_generation(t: &mut Transcript) {
    let buffers = Pages::new(1);
    let mut ring = Ring::new(8);
    let provide = |count, first: u64, user_data| {
        sqe(opcode::PROVIDE_BUFFERS, count, user_data).with(|sqe| {
            sqe.addr = buffers.at(first as usize * SIZE as usize);
            sqe.len = SIZE;
            sqe.off = first;
            sqe.buf_index = GROUP;
        })
    };
    t.entry(&ring.one(provide(3, 0, 1)));
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 2));
    ring.submit();
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    ring.push(cancel(2, 0, 3));
    ring.submit();
    t.in_order(&ring.wait(2));
    ring.push(multishot(reader.as_raw_fd(), 4));
    ring.submit();
    files::put(&writer, b"y");
    t.in_order(&ring.wait(1));
    files::put(&writer, b"z");
    t.in_order(&ring.wait(1));
}
case!(first_generation => "
    cqe 1: 0
    cqe 2: 1 MORE|BUFFER(0)
    cqe 3: 0
    cqe 2: -ECANCELED
    cqe 4: 1 MORE|BUFFER(1)
    cqe 4: 1 MORE|BUFFER(2)
");

fn incremental(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::new(8);
    let mut group = incremental_group_of(&ring, &memory, 4, GROUP);
    group.add_slots(0..2);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    t.say(group.state(0));
    for length in [5, 6, 7] {
        files::put(&writer, &[b'x'; 8][..length]);
        t.in_order(&ring.wait(if length == 7 { 2 } else { 1 }));
        t.say(format_args!("{}, {}", group.state(0), group.state(1)));
    }
    drop(writer);
    t.in_order(&ring.wait(1));
}
case!(incremental => "
    at 0 left 16
    cqe 1: 5 MORE|BUF_MORE|BUFFER(0)
    at 5 left 11, at 0 left 16
    cqe 1: 6 MORE|BUF_MORE|BUFFER(0)
    at 11 left 5, at 0 left 16
    cqe 1: 5 MORE|BUFFER(0)
    cqe 1: 2 MORE|BUF_MORE|BUFFER(1)
    at 11 left 0, at 2 left 14
    cqe 1: 0
");

/// One pipe has far more data than the kernel reads from it without a pause. The multishot on a
/// second pipe gets its data nevertheless.
fn many_at_once(t: &mut Transcript) {
    let memory = Pages::new(2);
    let mut ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE;
        params.cq_entries = 1024;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 512, GROUP);
    for slot in 0..400u16 {
        let address = group.buffers.at(usize::from(slot));
        group.add_at(address, 1, slot);
    }
    let (reader, writer) = files::pipe();
    let (other, other_writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.push(multishot(other.as_raw_fd(), 2));
    ring.submit();
    files::put(&writer, &[b'x'; 300]);
    files::put(&other_writer, b"y");
    let entries = ring.wait(301);
    let of = |user_data| entries.iter().filter(move |entry| entry.user_data == user_data && entry.res == 1);
    let more = entries.iter().all(|entry| entry.flags & u::IORING_CQE_F_MORE != 0);
    t.say(format_args!("{} and {}, all with more: {more}", of(1).count(), of(2).count()));
    drop(writer);
    t.in_order(&ring.wait(1));
}
case!(many_at_once => "
    300 and 1, all with more: true
    cqe 1: 0
");

/// Two multishots read one pipe. Each byte goes to only one of them.
fn two_on_one_pipe(t: &mut Transcript) {
    let memory = Pages::new(1);
    let (mut ring, _group) = ring_of(&memory, 64, 0);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.push(multishot(reader.as_raw_fd(), 1));
    ring.submit();
    let mut bytes = 0;
    for _ in 0..8 {
        files::put(&writer, b"x");
        bytes += ring.wait(1).iter().map(|entry| entry.res).sum::<i32>();
    }
    t.say(format_args!("{bytes} bytes"));
    drop(writer);
    let ends = ring.wait(2);
    t.say(format_args!("{} ends, {} with more", ends.len(), ends.iter().filter(|end| end.flags != 0).count()));
}
case!(two_on_one_pipe => "
    8 bytes
    2 ends, 0 with more
");

fn deferred(t: &mut Transcript) {
    let memory = Pages::new(1);
    let mut ring = Ring::with(16, |params| {
        params.flags = u::IORING_SETUP_CQSIZE | ring::DEFER;
        params.cq_entries = 128;
    })
    .expect("a ring");
    let mut group = group_of(&ring, &memory, 128, GROUP);
    group.add_slots(0..120);
    let (reader, writer) = files::pipe();
    ring.push(multishot(reader.as_raw_fd(), 1));
    t.result("submit", ring.submit());
    files::put(&writer, &[b'x'; 1600]);
    crate::time::long_enough_to_notice();
    t.say(format_args!("ready {}", ring.ready()));
    t.result("get events", ring.enter(0, 100, u::IORING_ENTER_GETEVENTS));
    let entries = ring.reap();
    t.say(format_args!("{} completions, {} bytes", entries.len(), entries.iter().map(|entry| entry.res).sum::<i32>()));
    ring.push(cancel(1, 0, 2));
    ring.submit();
    t.in_order(&ring.wait(2));
}
case!(deferred => "
    submit = 1
    ready 0
    get events = 0
    100 completions, 1600 bytes
    cqe 2: 0
    cqe 1: -ECANCELED
");

/// A pipe has data for 120 CQEs, and the program waits for fewer. Prints how many CQEs each wait
/// finds.
fn results_of_a_wait(t: &mut Transcript) {
    let memory = Pages::new(1);
    for flags in ring::BOTH {
        for wanted in [1, 40, 100] {
            let mut ring = Ring::with(16, |params| {
                params.flags = u::IORING_SETUP_CQSIZE | flags;
                params.cq_entries = 256;
            })
            .expect("a ring");
            let mut group = group_of(&ring, &memory, 256, GROUP);
            group.add_slots(0..200);
            let (reader, writer) = files::pipe();
            ring.push(multishot(reader.as_raw_fd(), 1));
            t.result("submit", ring.submit());
            files::put(&writer, &[b'x'; 16 * 120]);
            let (mut counts, mut left) = (Vec::new(), 120);
            while left > 0 {
                ring.enter(0, wanted.min(left), u::IORING_ENTER_GETEVENTS);
                let count = ring.reap().len() as u32;
                counts.push(count);
                left = left.saturating_sub(count);
            }
            t.say(format_args!("waits for {wanted}: {counts:?}"));
        }
    }
}
case!(results_of_a_wait => "
    submit = 1
    waits for 1: [120]
    submit = 1
    waits for 40: [120]
    submit = 1
    waits for 100: [120]
    submit = 1
    waits for 1: [120]
    submit = 1
    waits for 40: [120]
    submit = 1
    waits for 100: [120]
");

/// Submits multishot reads of character devices, of which only some support poll. The kernel
/// refuses all of these reads.
fn devices(t: &mut Transcript) {
    for path in ["/dev/zero", "/dev/null", "/dev/full", "/dev/urandom"] {
        let memory = Pages::new(1);
        let (mut ring, _group) = ring_of(&memory, 2, 0);
        let file = std::fs::File::open(path).expect("it is there");
        ring.push(multishot(file.as_raw_fd(), 1));
        ring.submit();
        t.say(path);
        t.in_order(&ring.wait(1));
        ring.push(multishot(file.as_raw_fd(), 2).forced_async());
        ring.submit();
        t.in_order(&ring.wait(1));
    }
}
case!(devices => "
    /dev/zero
    cqe 1: -EBADFD
    cqe 2: -EBADFD
    /dev/null
    cqe 1: -EBADFD
    cqe 2: -EBADFD
    /dev/full
    cqe 1: -EBADFD
    cqe 2: -EBADFD
    /dev/urandom
    cqe 1: -EBADFD
    cqe 2: -EBADFD
");
