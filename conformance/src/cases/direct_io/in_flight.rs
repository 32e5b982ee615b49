//! O_DIRECT transfers are in flight while the program cancels them, calls execve(2), or closes
//! files and rings.

use super::{BLOCK, at, block, content, deferring_ring, length, numbered, uncache, whole};
use super::{exec, reg};
use crate::files::Scratch;
use crate::memory::Pages;
use crate::process;
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, cancel, close, read_at, sqe, write_at};
use crate::transcript::Transcript;
use std::os::fd::AsRawFd;
use usring_uapi::{io_uring as u, opcode, sqe_flags};

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 8, libc::O_RDWR);
    let (fd, pages) = (file.as_raw_fd(), Pages::new(8));
    for index in 0..8 {
        let mut read = read_at(fd, pages.at(index * BLOCK), BLOCK as u32, at(index), index as u64);
        read.flags |= sqe_flags::ASYNC;
        ring.push(read);
    }
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(8));
}
case!(forced_async => "
    submit = 8
    cqe 0: 4096
    cqe 1: 4096
    cqe 2: 4096
    cqe 3: 4096
    cqe 4: 4096
    cqe 5: 4096
    cqe 6: 4096
    cqe 7: 4096
");

/// The program cancels an O_DIRECT transfer. While the disk works on the transfer, the cancel gets
/// -EALREADY. Once the transfer has completed, the cancel gets -ENOENT.
fn cancelled_or_done(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 8, libc::O_RDWR);
    let pages = Pages::new(1);
    for _ in 0..20 {
        ring.push(read_at(file.as_raw_fd(), pages.at(0), BLOCK as u32, at(3), 1));
        ring.push(cancel(1, 0, 2));
        ring.submit();
        let entries = ring.wait(2);
        let answer = |tag| entries.iter().find(|entry| entry.user_data == tag).map_or(0, |entry| entry.res);
        let expected = [-libc::EALREADY, -libc::ENOENT].contains(&answer(2)) && answer(1) == BLOCK as i32;
        if !expected {
            t.say(format_args!("read {} cancel {}", answer(1), answer(2)));
        }
    }
    t.say("never cancelled");
}
case!(cancelled_or_done => "never cancelled");

/// execve(2) ends the ring only after the disk has carried out the submitted writes. So all writes
/// reach the file.
fn program_executes_another(t: &mut Transcript) {
    for round in 0..4 {
        let scratch = Scratch::new();
        let file = numbered(&scratch, 32, libc::O_RDWR);
        let ending = process::forked(|| {
            let mut ring = Ring::new(32);
            let mut pages = Pages::new(32);
            for index in 0..32 {
                let address = block(&mut pages, index, 100 + round);
                ring.push(write_at(file.as_raw_fd(), address, BLOCK as u32, at(index), index as u64));
            }
            if ring.submit() != 32 {
                return 1;
            }
            exec::become_child("nop", "")
        });
        let is_whole = content(&scratch) == [100 + round; 32];
        t.say(format_args!("child: {ending}, written: {is_whole}"));
    }
}
case!(program_executes_another => "
    child: exit 0, written: true
    child: exit 0, written: true
    child: exit 0, written: true
    child: exit 0, written: true
");

fn file_closed_meanwhile(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let mut pages = Pages::new(16);
    let file = numbered(&scratch, 16, libc::O_RDWR);
    for index in 0..16 {
        let address = block(&mut pages, index, 80 + index as u8);
        ring.push(write_at(file.as_raw_fd(), address, BLOCK as u32, at(index), index as u64));
    }
    ring.push(close(file.as_raw_fd(), 99));
    std::mem::forget(file);
    t.result("submit", ring.submit());
    t.sorted(&ring.wait(17));
    t.say(format_args!("{:?}", content(&scratch)));
}
case!(file_closed_meanwhile => "
    submit = 17
    cqe 0: 4096
    cqe 1: 4096
    cqe 2: 4096
    cqe 3: 4096
    cqe 4: 4096
    cqe 5: 4096
    cqe 6: 4096
    cqe 7: 4096
    cqe 8: 4096
    cqe 9: 4096
    cqe 10: 4096
    cqe 11: 4096
    cqe 12: 4096
    cqe 13: 4096
    cqe 14: 4096
    cqe 15: 4096
    cqe 99: 0
    [80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95]
");

/// While large writes are in flight, the program lets their descriptor number name another file.
/// The kernel may split such writes. All of their data nevertheless reaches the first file.
fn large_and_closed_meanwhile(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let mut pages = Pages::new(64);
    let file = numbered(&scratch, 1, libc::O_RDWR);
    let fd = file.as_raw_fd();
    pages.bytes().fill(7);
    for index in 0..4 {
        ring.push(write_at(fd, pages.at(index * 16 * BLOCK), 16 * BLOCK as u32, at(16 * index), index as u64));
    }
    t.result("submit", ring.submit());
    let other = scratch.file("other", b"other");
    // SAFETY: the call touches no memory.
    t.say(format_args!("same number {}", unsafe { libc::dup2(other.as_raw_fd(), fd) } == fd));
    t.sorted(&ring.wait(4));
    let sevens = content(&scratch).iter().filter(|number| **number == 7).count();
    let text = std::fs::read_to_string(scratch.path.join("other")).unwrap_or_default();
    t.say(format_args!("blocks {sevens} other {text}"));
}
case!(large_and_closed_meanwhile => "
    submit = 4
    same number true
    cqe 0: 65536
    cqe 1: 65536
    cqe 2: 65536
    cqe 3: 65536
    blocks 64 other other
");

fn registered_file_taken_out(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    let (number, mut pages) = (file.as_raw_fd(), Pages::new(16));
    t.result("files", ring.register(reg::FILES, &raw const number, 1));
    for index in 0..16 {
        let address = block(&mut pages, index, 90 + index as u8);
        ring.push(write_at(0, address, BLOCK as u32, at(index), index as u64).fixed());
    }
    t.result("submit", ring.submit());
    t.result("unregister", ring.register::<u8>(reg::UNREGISTER_FILES, std::ptr::null(), 0));
    t.sorted(&ring.wait(16));
    t.say(format_args!("{:?}", content(&scratch)));
}
case!(registered_file_taken_out => "
    files = 0
    submit = 16
    unregister = 0
    cqe 0: 4096
    cqe 1: 4096
    cqe 2: 4096
    cqe 3: 4096
    cqe 4: 4096
    cqe 5: 4096
    cqe 6: 4096
    cqe 7: 4096
    cqe 8: 4096
    cqe 9: 4096
    cqe 10: 4096
    cqe 11: 4096
    cqe 12: 4096
    cqe 13: 4096
    cqe 14: 4096
    cqe 15: 4096
    [90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105]
");

fn selected_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 8, libc::O_RDWR);
    let mut pages = Pages::new(2);
    let mut provide = sqe(opcode::PROVIDE_BUFFERS, 2, 1);
    (provide.addr, provide.len, provide.off) = (pages.at(0), BLOCK as u32, 5);
    t.entry(&ring.one(provide));
    for tag in 2..5 {
        let mut read = read_at(file.as_raw_fd(), 0, BLOCK as u32, at(tag), tag as u64);
        read.flags |= sqe_flags::BUFFER_SELECT;
        t.entry(&ring.one(read));
    }
    let mut firsts = [pages.bytes()[0], pages.bytes()[BLOCK]];
    firsts.sort_unstable();
    t.say(format_args!("{firsts:?}"));
}
case!(selected_buffer => "
    cqe 1: 0
    cqe 2: 4096 BUFFER(5)
    cqe 3: 4096 BUFFER(6)
    cqe 4: -ENOBUFS
    [2, 3]
");

fn sq_thread(t: &mut Transcript) {
    let mut ring = Ring::with(64, |params| {
        params.flags = u::IORING_SETUP_SQPOLL;
        params.sq_thread_idle = 10;
    })
    .expect("a ring with a thread");
    let scratch = Scratch::new();
    let file = numbered(&scratch, 32, libc::O_RDWR);
    let (fd, mut pages) = (file.as_raw_fd(), Pages::new(32));
    for index in 0..32 {
        ring.push(read_at(fd, pages.at(index * BLOCK), BLOCK as u32, at(index), index as u64));
    }
    let count = ring.forget_pending();
    ring.enter(count, 0, u::IORING_ENTER_SQ_WAKEUP);
    t.say(format_args!("whole {}", whole(&ring.wait(32))));
    let right = pages.bytes().chunks(BLOCK).enumerate().filter(|(index, block)| block[5] == *index as u8).count();
    t.say(format_args!("right {right}"));
}
case!(sq_thread => "
    whole 32
    right 32
");

fn deferred(t: &mut Transcript) {
    let mut ring = deferring_ring();
    let scratch = Scratch::new();
    let file = numbered(&scratch, 32, libc::O_RDWR);
    let (fd, pages) = (file.as_raw_fd(), Pages::new(32));
    let mut seen = 0;
    for round in 0..20 {
        for index in 0..32 {
            ring.push(read_at(fd, pages.at(index * BLOCK), BLOCK as u32, at(index), index as u64));
        }
        // Each round waits for 1, 7, 31 or all 32 of its reads in the submitting call.
        ring.submit_and_wait([1, 7, 31, 32][round % 4]);
        seen += whole(&ring.wait(32));
    }
    t.say(format_args!("whole {seen}"));
    // The next wait is for two completions: that of a disk transfer, and that of a read of a pipe.
    let (reader, writer) = crate::files::pipe();
    let mut byte = [0; 1];
    ring.push(crate::sqe::read(reader.as_raw_fd(), &mut byte, CURRENT, 1));
    ring.push(read_at(fd, pages.at(0), BLOCK as u32, 0, 2));
    t.result("submit", ring.submit());
    crate::files::put(&writer, b"x");
    t.sorted(&ring.wait(2));
}
case!(deferred => "
    whole 640
    submit = 2
    cqe 1: 1
    cqe 2: 4096
");

fn watched_in_memory(t: &mut Transcript) {
    let mut ring = Ring::new(32);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    let pages = Pages::new(16);
    for index in 0..16 {
        ring.push(read_at(file.as_raw_fd(), pages.at(index * BLOCK), BLOCK as u32, at(index), index as u64));
    }
    t.result("submit", ring.submit());
    t.say(format_args!("all came {}", ring.wait_in_memory(16)));
    t.say(format_args!("whole {}", whole(&ring.reap())));
}
case!(watched_in_memory => "
    submit = 16
    all came true
    whole 16
");

fn descriptor_is_readable(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 4, libc::O_RDWR);
    let pages = Pages::new(1);
    for round in 0..5 {
        ring.push(read_at(file.as_raw_fd(), pages.at(0), BLOCK as u32, at(2), round));
        ring.submit();
        let readable = crate::files::is_readable_within(ring.fd, std::time::Duration::from_secs(20));
        let entries = ring.wait(1);
        t.say(format_args!("readable {readable} whole {}", whole(&entries)));
    }
}
case!(descriptor_is_readable => "
    readable true whole 1
    readable true whole 1
    readable true whole 1
    readable true whole 1
    readable true whole 1
");

pub(super) fn ring_closes(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    let mut pages = Pages::new(16);
    for round in 0..10u8 {
        let mut ring = Ring::new(32);
        for index in 0..16 {
            let address = block(&mut pages, index, 100 + round);
            ring.push(write_at(file.as_raw_fd(), address, BLOCK as u32, at(index), 1));
        }
        ring.submit();
        ring.close();
        // The submitted writes reach the file although the ring is closed.
        let written = || content(&scratch).iter().all(|number| *number == 100 + round);
        let all = crate::time::until(written);
        t.say(format_args!("written {all}"));
        uncache(&file);
    }
}
case!(ring_closes => "
    written true
    written true
    written true
    written true
    written true
    written true
    written true
    written true
    written true
    written true
");

fn exit_with_writes_out(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = numbered(&scratch, 64, libc::O_RDWR);
    let ending = process::forked(|| {
        let (mut ring, mut pages) = (Ring::new(64), Pages::new(64));
        for index in 0..64 {
            ring.push(write_at(file.as_raw_fd(), block(&mut pages, index, 33), BLOCK as u32, at(index), 1));
        }
        i32::from(ring.submit() != 64)
    });
    t.say(ending);
    let written = || content(&scratch).iter().all(|number| *number == 33);
    t.say(format_args!("written {}", crate::time::until(written)));
}
case!(exit_with_writes_out => "
    exit 0
    written true
");

fn child_reads_with_a_ring_of_its_own(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = numbered(&scratch, 16, libc::O_RDWR);
    let (mut ring, pages) = (Ring::new(32), Pages::new(16));
    for index in 0..16 {
        ring.push(read_at(file.as_raw_fd(), pages.at(index * BLOCK), BLOCK as u32, at(index), 1));
    }
    t.result("submit", ring.submit());
    t.say(process::forked(|| {
        let (mut ring, pages) = (Ring::new(8), Pages::new(1));
        let entry = ring.one(read_at(file.as_raw_fd(), pages.at(0), BLOCK as u32, at(9), 1));
        i32::from(entry.res != BLOCK as i32)
    }));
    t.say(format_args!("whole {}", whole(&ring.wait(16))));
}
case!(child_reads_with_a_ring_of_its_own => "
    submit = 16
    exit 0
    whole 16
");

/// A write beyond RLIMIT_FSIZE gets -EFBIG. A write that begins below the limit and crosses it is
/// short. The case ignores SIGXFSZ.
fn size_limit(t: &mut Transcript) {
    let scratch = Scratch::new();
    let file = numbered(&scratch, 2, libc::O_RDWR);
    t.say(process::forked(|| {
        let limit = libc::rlimit { rlim_cur: at(4), rlim_max: at(4) };
        // SAFETY: the limit is a valid structure. The signal is ignored, so no handler is
        // installed.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
        }
        let (mut ring, pages) = (Ring::new(8), Pages::new(4));
        let answers = [(2, 1), (3, 2), (4, 1), (0, 2)].map(|(first, count)| {
            ring.one(write_at(file.as_raw_fd(), pages.at(0), (count * BLOCK) as u32, at(first), 1)).res
        });
        let expected = [BLOCK as i32, BLOCK as i32, -libc::EFBIG, 2 * BLOCK as i32];
        i32::from(answers != expected)
    }));
    t.say(format_args!("length {}", length(&scratch)));
}
case!(size_limit => "
    exit 0
    length 16384
");

/// The program submits more requests than the CQ has entries before it reaps. All requests
/// complete.
fn many_more_than_the_queue(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let scratch = Scratch::new();
    let file = numbered(&scratch, 64, libc::O_RDWR);
    let pages = Pages::new(64);
    for _ in 0..8 {
        for index in 0..64 {
            ring.push(read_at(file.as_raw_fd(), pages.at(index * BLOCK), BLOCK as u32, at(index), 1));
        }
        ring.submit();
    }
    let mut seen = 0;
    while seen < 8 * 64 {
        let entries = ring.wait(1);
        if entries.is_empty() {
            break;
        }
        seen += whole(&entries);
    }
    t.say(format_args!("whole {seen}"));
}
case!(many_more_than_the_queue => "whole 512");

/// On a pipe, O_DIRECT selects packet mode. A read of an empty pipe in packet mode waits for a
/// packet.
fn packet_pipe(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = crate::files::pipe_with(libc::O_DIRECT);
    let mut pages = Pages::new(1);
    ring.push(read_at(reader.as_raw_fd(), pages.at(0), BLOCK as u32, 0, 1));
    t.result("submit", ring.submit());
    crate::files::put(&writer, b"packet");
    crate::files::put(&writer, b"another");
    t.in_order(&ring.wait(1));
    t.say(String::from_utf8_lossy(&pages.bytes()[..6]).into_owned());
}
case!(packet_pipe => "
    submit = 1
    cqe 1: 6
    packet
");
