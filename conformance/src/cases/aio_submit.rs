//! io_submit: which iocbs it accepts and refuses, and their results.

use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use usring_uapi::aio::{IOCB_CMD_NOOP, IOCB_FLAG_IOPRIO, IOCB_FLAG_RESFD, Iocb};
use usring_uapi::general as linux;

use crate::aio::{self, Context};
use crate::case::{Case, case};
use crate::memory::Pages;
use crate::transcript::Transcript;
use crate::{files, process, time};

pub const CASES: &[Case] = &[
    case("aio_submit.read_and_write", read_and_write),
    case("aio_submit.read_behind_write", read_behind_write),
    case("aio_submit.vectors", vectors),
    case("aio_submit.sync", sync),
    case("aio_submit.counts", counts),
    case("aio_submit.bad_pointers", bad_pointers),
    case("aio_submit.reserved_fields", reserved_fields),
    case("aio_submit.unknown_commands", unknown_commands),
    case("aio_submit.bad_descriptors", bad_descriptors),
    case("aio_submit.wrong_mode", wrong_mode),
    case("aio_submit.directories_and_pipes", directories_and_pipes),
    case("aio_submit.offsets_and_lengths", offsets_and_lengths),
    case("aio_submit.bad_memory", bad_memory),
    case("aio_submit.bad_vectors", bad_vectors),
    case("aio_submit.stops_at_the_first_error", stops_at_the_first_error),
    case("aio_submit.flags", flags),
    case("aio_submit.priority", priority),
    case("aio_submit.sync_fields", sync_fields),
    case("aio_submit.eventfd", eventfd),
    case("aio_submit.bad_eventfd", bad_eventfd),
    case("aio_submit.key", key),
    case("aio_submit.iocb_may_be_reused", iocb_may_be_reused),
    case("aio_submit.file_closed_meanwhile", file_closed_meanwhile),
    case("aio_submit.many", many),
    case("aio_submit.direct", direct),
    case("aio_submit.file_without_a_name", file_without_a_name),
    case("aio_submit.append", append),
    case("aio_submit.stream_that_waits_for_nothing", stream_that_waits_for_nothing),
    case("aio_submit.threads", threads),
];

fn one(t: &mut Transcript, context: &Context, what: &str, iocb: Iocb) {
    let answer = context.submit(&mut [iocb]);
    t.result(what, answer);
    if answer == 1 {
        aio::events(t, context.wait(1));
    }
}

fn read_and_write(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 7];
    one(t, &context, "read", aio::read(file.as_raw_fd(), &mut buffer, 5, 1));
    t.say(String::from_utf8_lossy(&buffer));
    one(t, &context, "read beyond the end", aio::read(file.as_raw_fd(), &mut buffer, 9, 2));
    one(t, &context, "read far beyond the end", aio::read(file.as_raw_fd(), &mut buffer, 900, 3));
    one(t, &context, "write", aio::write(file.as_raw_fd(), b"SOME", 0, 4));
    one(t, &context, "write behind the end", aio::write(file.as_raw_fd(), b"!", 12, 5));
    one(t, &context, "read nothing", aio::read(file.as_raw_fd(), &mut [], 0, 6));
    one(t, &context, "write nothing", aio::write(file.as_raw_fd(), &[], 0, 7));
    t.say(files::text(&file));
    t.say(format_args!("position {}", files::position(&file)));
}

/// A write through the page cache completes before the next iocb is read.
fn read_behind_write(t: &mut Transcript) {
    let context = Context::new(8);
    let scratch = files::Scratch::new();
    let file = scratch.file("content", b"some content");
    let mut buffer = [0; 4];
    let number = file.as_raw_fd();
    t.result("submit", context.submit(&mut [aio::write(number, b"SOME", 0, 1), aio::read(number, &mut buffer, 0, 2)]));
    context.wait(2);
    t.say(String::from_utf8_lossy(&buffer));
}

fn vector(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

fn vectors(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let (mut first, mut second) = ([0; 4], [0; 16]);
    one(t, &context, "read", aio::read_vector(file.as_raw_fd(), &[vector(&mut first), vector(&mut second)], 1, 1));
    t.say(format_args!("{:?} {:?}", String::from_utf8_lossy(&first), String::from_utf8_lossy(&second[..7])));
    one(t, &context, "none", aio::read_vector(file.as_raw_fd(), &[], 1, 2));
    one(t, &context, "one", aio::read_vector(file.as_raw_fd(), &[vector(&mut first)], 1, 3));
    let (mut first, mut second) = (*b"SOME", *b"-CON");
    let list = [vector(&mut first), vector(&mut []), vector(&mut second)];
    one(t, &context, "write", aio::write_vector(file.as_raw_fd(), &list, 0, 4));
    t.say(files::text(&file));
}

fn sync(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    one(t, &context, "fsync", aio::sync(file.as_raw_fd(), 1));
    one(t, &context, "fdsync", aio::data_sync(file.as_raw_fd(), 2));
}

fn counts(t: &mut Transcript) {
    let context = Context::new(8);
    t.result("none", aio::submit(context.0, 0, std::ptr::null()));
    t.result("fewer than none", aio::submit(context.0, -1, std::ptr::null()));
    t.result("from nowhere", aio::submit(context.0, 1, std::ptr::null()));
}

fn bad_pointers(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let mut iocb = aio::read(file.as_raw_fd(), &mut buffer, 0, 1);
    let list: [*mut Iocb; 3] = [&mut iocb, null_mut(), &mut iocb];
    t.result("the second is null", aio::submit(context.0, 3, list.as_ptr()));
    aio::events(t, context.wait(1));
    t.result("the first is null", aio::submit(context.0, 2, list[1..].as_ptr()));
    let mut pages = Pages::new(2);
    let iocb = iocb;
    pages.bytes()[..64].copy_from_slice(&bytes_of(&iocb));
    pages.bytes()[4096 - 32..4096].copy_from_slice(&bytes_of(&iocb)[..32]);
    pages.spoil_last();
    // SAFETY: the page before the spoiled one belongs to this case, and half an iocb lies there.
    let half = unsafe { pages.address.add(4096 - 32) }.cast::<Iocb>();
    t.result("half of it cannot be read", aio::submit(context.0, 1, [half].as_ptr()));
    let whole = pages.address.cast::<Iocb>();
    t.result("all of it can", aio::submit(context.0, 1, [whole].as_ptr()));
    aio::events(t, context.wait(1));
    let mut only_read = Pages::new(1);
    only_read.bytes()[..64].copy_from_slice(&bytes_of(&iocb));
    only_read.protect_last(libc::PROT_READ);
    t.result("it cannot be written", aio::submit(context.0, 1, [only_read.address.cast::<Iocb>()].as_ptr()));
    aio::events(t, context.get(0, 4, std::time::Duration::ZERO).unwrap_or_default());
}

fn bytes_of(iocb: &Iocb) -> [u8; 64] {
    // SAFETY: an iocb is 64 bytes without padding.
    unsafe { std::mem::transmute(*iocb) }
}

fn reserved_fields(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let good = aio::read(file.as_raw_fd(), &mut buffer, 0, 1);
    one(t, &context, "reserved2", Iocb { aio_reserved2: 1, ..good });
    one(t, &context, "unknown flags", Iocb { aio_flags: 0xffff_fff8, ..good });
    one(t, &context, "a key", Iocb { aio_key: 77, ..good });
    one(t, &context, "a priority without its flag", Iocb { aio_reqprio: -1, ..good });
    one(t, &context, "an eventfd without its flag", Iocb { aio_resfd: 4711, ..good });
    one(t, &context, "a negative length", Iocb { aio_nbytes: u64::MAX, ..good });
    one(t, &context, "a bad descriptor, and reserved2", Iocb { aio_reserved2: 1, aio_fildes: u32::MAX, ..good });
}

fn unknown_commands(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    for command in [4, IOCB_CMD_NOOP, 9, 10, 0xffff] {
        let iocb = Iocb { aio_lio_opcode: command, aio_fildes: file.as_raw_fd() as u32, ..Iocb::default() };
        one(t, &context, &format!("command {command}"), iocb);
        one(t, &context, "and a bad descriptor", Iocb { aio_fildes: u32::MAX, ..iocb });
    }
}

fn bad_descriptors(t: &mut Transcript) {
    let context = Context::new(8);
    let mut buffer = [0; 4];
    // SAFETY: the path is a C string.
    let path_only = unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    for file in [-1, 4711, path_only] {
        one(t, &context, "read", aio::read(file, &mut buffer, 0, 1));
        one(t, &context, "write", aio::write(file, &buffer, 0, 1));
        one(t, &context, "sync", aio::sync(file, 1));
        let poll = Iocb { aio_lio_opcode: 5, aio_buf: 1, aio_fildes: file as u32, ..Iocb::default() };
        one(t, &context, "poll", poll);
    }
}

fn wrong_mode(t: &mut Transcript) {
    let context = Context::new(8);
    let mut buffer = [0; 4];
    let (reader, writer) = files::pipe();
    one(t, &context, "read where it writes", aio::read(writer.as_raw_fd(), &mut buffer, 0, 1));
    one(t, &context, "write where it reads", aio::write(reader.as_raw_fd(), &buffer, 0, 2));
    let scratch = files::Scratch::new();
    let file = scratch.file("content", b"content");
    let path = scratch.path_of("content");
    drop(file);
    // SAFETY: the path is a C string.
    let (reads, writes) =
        unsafe { (libc::open(path.as_ptr(), libc::O_RDONLY), libc::open(path.as_ptr(), libc::O_WRONLY)) };
    one(t, &context, "read", aio::read(reads, &mut buffer, 0, 3));
    one(t, &context, "read", aio::read(writes, &mut buffer, 0, 4));
    one(t, &context, "write", aio::write(reads, &buffer, 0, 5));
    one(t, &context, "write", aio::write(writes, &buffer, 0, 6));
    one(
        t,
        &context,
        "bad memory and the wrong mode",
        Iocb { aio_buf: u64::MAX, ..aio::read(writes, &mut buffer, 0, 7) },
    );
    // The access mode of the descriptor does not restrict a sync.
    one(t, &context, "sync", aio::sync(reads, 8));
}

fn directories_and_pipes(t: &mut Transcript) {
    let context = Context::new(8);
    let mut buffer = [0; 4];
    // SAFETY: the path is a C string.
    let directory = unsafe { libc::open(c"/".as_ptr(), libc::O_DIRECTORY | libc::O_CLOEXEC) };
    one(t, &context, "read a directory", aio::read(directory, &mut buffer, 0, 1));
    let (reader, writer) = files::pipe();
    files::put(&writer, b"bytes");
    one(t, &context, "read a pipe", aio::read(reader.as_raw_fd(), &mut buffer, 0, 2));
    one(t, &context, "read the rest, from wherever", aio::read(reader.as_raw_fd(), &mut buffer, 77, 3));
    one(t, &context, "write a pipe", aio::write(writer.as_raw_fd(), b"more", 0, 4));
    t.say(format_args!("{:?}", files::take(&reader, 9)));
    one(t, &context, "sync a pipe", aio::sync(reader.as_raw_fd(), 5));
    let (one_end, other_end) = files::sockets();
    files::put(&other_end, b"socket");
    one(t, &context, "read a socket", aio::read(one_end.as_raw_fd(), &mut buffer, 0, 6));
    one(t, &context, "sync a socket", aio::data_sync(one_end.as_raw_fd(), 7));
    one(t, &context, "write a socket", aio::write(one_end.as_raw_fd(), b"back", 0, 8));
    t.say(format_args!("{:?}", files::take(&other_end, 9)));
    let counter = files::eventfd(5);
    let mut count = [0; 8];
    one(t, &context, "read an eventfd", aio::read(counter.as_raw_fd(), &mut count, 0, 9));
    t.say(format_args!("{count:?}"));
    // SAFETY: the path is a C string.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    one(t, &context, "read nothing", aio::read(null, &mut buffer, 0, 10));
    one(t, &context, "write to nothing", aio::write(null, &buffer, 0, 11));
    one(t, &context, "sync nothing", aio::sync(null, 12));
    // SAFETY: the path is a C string.
    let zero = unsafe { libc::open(c"/dev/zero".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    one(t, &context, "read zeroes", aio::read(zero, &mut buffer, 0, 13));
}

fn offsets_and_lengths(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    one(t, &context, "a negative offset", aio::read(file.as_raw_fd(), &mut buffer, -1, 1));
    one(t, &context, "the last offset", aio::read(file.as_raw_fd(), &mut buffer, i64::MAX, 2));
    one(t, &context, "just before it", aio::read(file.as_raw_fd(), &mut buffer, i64::MAX - 4, 3));
    one(t, &context, "write at the last", aio::write(file.as_raw_fd(), &buffer, i64::MAX - 4, 4));
    let (reader, _writer) = files::pipe();
    one(t, &context, "a negative offset of a pipe", aio::read(reader.as_raw_fd(), &mut buffer, -5, 5));
    let long = Iocb { aio_nbytes: 1 << 40, ..aio::read(file.as_raw_fd(), &mut buffer, 0, 6) };
    let mut pages = Pages::new(1);
    one(t, &context, "a terabyte", Iocb { aio_buf: pages.bytes().as_ptr() as u64, ..long });
}

fn bad_memory(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut pages = Pages::new(2);
    let spoiled = &mut pages.bytes()[4096..4100];
    let (mut read, mut write) =
        (aio::read(file.as_raw_fd(), spoiled, 0, 1), aio::write(file.as_raw_fd(), spoiled, 0, 2));
    pages.spoil_last();
    one(t, &context, "read", read);
    one(t, &context, "write", write);
    for address in [0, 8, u64::MAX, 0x8000_0000_0000, u64::MAX - 2] {
        (read.aio_buf, write.aio_buf) = (address, address);
        one(t, &context, "read", read);
        one(t, &context, "write", write);
    }
    t.say(files::text(&file));
}

fn bad_vectors(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let list = [vector(&mut buffer), vector(&mut buffer)];
    let good = aio::read_vector(file.as_raw_fd(), &list, 0, 1);
    one(t, &context, "too many", Iocb { aio_nbytes: 1025, ..good });
    one(t, &context, "a list nowhere", Iocb { aio_buf: 8, ..good });
    one(t, &context, "half a list", Iocb { aio_buf: u64::MAX - 15, ..good });
    let negative = [vector(&mut buffer), libc::iovec { iov_base: null_mut(), iov_len: usize::MAX }];
    one(t, &context, "a negative length", aio::read_vector(file.as_raw_fd(), &negative, 0, 2));
    let nowhere = [vector(&mut buffer), libc::iovec { iov_base: 8 as *mut _, iov_len: 4 }];
    one(t, &context, "memory nowhere", aio::read_vector(file.as_raw_fd(), &nowhere, 0, 3));
    let outside = [vector(&mut buffer), libc::iovec { iov_base: (usize::MAX - 8) as *mut _, iov_len: 4 }];
    one(t, &context, "memory outside", aio::read_vector(file.as_raw_fd(), &outside, 0, 4));
}

fn stops_at_the_first_error(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let good = aio::read(file.as_raw_fd(), &mut buffer, 0, 1);
    let bad = Iocb { aio_fildes: u32::MAX, ..good };
    t.result("good, good, bad, good", context.submit(&mut [good, good, bad, good]));
    aio::events(t, context.wait(2));
    t.result("bad, good", context.submit(&mut [bad, good]));
    aio::events(t, context.get(0, 4, std::time::Duration::ZERO).unwrap_or_default());
}

fn flags(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let read = aio::read(file.as_raw_fd(), &mut buffer, 0, 1);
    let write = aio::write(file.as_raw_fd(), b"SOME", 0, 2);
    for (name, flag) in [
        ("HIPRI", linux::RWF_HIPRI),
        ("DSYNC", linux::RWF_DSYNC),
        ("SYNC", linux::RWF_SYNC),
        ("NOWAIT", linux::RWF_NOWAIT),
        ("APPEND", linux::RWF_APPEND),
        ("APPEND and NOAPPEND", linux::RWF_APPEND | 0x20),
        ("unknown", 0x8000),
        ("the sign", 1 << 31),
    ] {
        one(t, &context, &format!("read {name}"), Iocb { aio_rw_flags: flag as i32, ..read });
        one(t, &context, &format!("write {name}"), Iocb { aio_rw_flags: flag as i32, ..write });
    }
    t.say(files::text(&file));
}

fn priority(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let read = Iocb { aio_flags: IOCB_FLAG_IOPRIO, ..aio::read(file.as_raw_fd(), &mut buffer, 0, 1) };
    for (name, class, level) in [
        ("none", 0, 0),
        ("none with a level", 0, 3),
        ("best effort", 2, 7),
        ("idle", 3, 0),
        ("idle with a level", 3, 5),
    ] {
        one(t, &context, name, Iocb { aio_reqprio: class << 13 | level, ..read });
    }
    for class in [4, 5, 6, 7u16] {
        one(t, &context, "no class", Iocb { aio_reqprio: (class << 13) as i16, ..read });
    }
    let ending = process::forked(|| {
        // SAFETY: the call touches no memory. It gives up the right under test.
        unsafe { libc::setuid(65534) };
        let context = Context::new(8);
        one(t, &context, "realtime as nobody", Iocb { aio_reqprio: 1 << 13, ..read });
        0
    });
    t.say(ending);
}

fn sync_fields(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let good = aio::sync(file.as_raw_fd(), 1);
    one(t, &context, "buffer", Iocb { aio_buf: 1, ..good });
    one(t, &context, "offset", Iocb { aio_offset: 1, ..good });
    one(t, &context, "length", Iocb { aio_nbytes: 1, ..good });
    one(t, &context, "flags", Iocb { aio_rw_flags: 1, ..good });
    one(t, &context, "nothing", good);
}

fn eventfd(t: &mut Transcript) {
    let context = Context::new(64);
    let file = files::memory_file(b"some content");
    let (told, other) = (files::eventfd(0), files::eventfd(0));
    let (reader, writer) = files::pipe();
    let mut buffer = [0; 4];
    let with = |iocb: Iocb, told: &std::os::fd::OwnedFd| Iocb {
        aio_flags: IOCB_FLAG_RESFD,
        aio_resfd: told.as_raw_fd() as u32,
        ..iocb
    };
    let read = aio::read(file.as_raw_fd(), &mut buffer, 0, 1);
    let mut iocbs = [
        with(read, &told),
        with(read, &told),
        with(read, &other),
        with(read, &told),
        read,
        with(aio::sync(file.as_raw_fd(), 2), &told),
    ];
    t.result("submit", context.submit(&mut iocbs));
    aio::events(t, context.wait(6));
    let mut count = 0;
    time::until(|| {
        count += files::event_count(&told);
        count >= 4
    });
    t.say(format_args!("told {count}, the other {}", files::event_count(&other)));
    t.result("poll", context.submit(&mut [with(aio::poll(&reader, libc::POLLIN, 3), &told)]));
    t.say(format_args!("told {}", files::event_count(&told)));
    files::put(&writer, b"x");
    time::until(|| {
        count = files::event_count(&told);
        count > 0
    });
    t.say(format_args!("told {count}"));
    // The event arrived before the iocb.
    t.say(format_args!("an event is there: {}", context.reap().is_some()));
    // The request keeps its eventfd open.
    t.result("poll", context.submit(&mut [with(aio::poll(&reader, libc::POLLPRI, 4), &other)]));
}

fn bad_eventfd(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let read = Iocb { aio_flags: IOCB_FLAG_RESFD, ..aio::read(file.as_raw_fd(), &mut buffer, 0, 1) };
    one(t, &context, "no descriptor", Iocb { aio_resfd: u32::MAX, ..read });
    one(t, &context, "closed", Iocb { aio_resfd: 4711, ..read });
    one(t, &context, "a file", Iocb { aio_resfd: file.as_raw_fd() as u32, ..read });
    let bad_file = Iocb { aio_resfd: file.as_raw_fd() as u32, aio_fildes: u32::MAX, ..read };
    one(t, &context, "and a bad file", bad_file);
}

fn key(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let read = Iocb { aio_key: 4711, ..aio::read(file.as_raw_fd(), &mut buffer, 0, 1) };
    let mut iocbs = [read, Iocb { aio_rw_flags: 1 << 20, ..read }, Iocb { aio_fildes: u32::MAX, ..read }];
    for iocb in &mut iocbs {
        t.result("submit", context.submit(std::slice::from_mut(iocb)));
        t.say(format_args!("key {}", iocb.aio_key));
    }
    aio::events(t, context.wait(1));
}

fn iocb_may_be_reused(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let mut iocb = aio::read(file.as_raw_fd(), &mut buffer, 0, 1);
    let mut list = vec![vector(&mut buffer)];
    t.result("submit", context.submit(std::slice::from_mut(&mut iocb)));
    iocb = aio::read_vector(file.as_raw_fd(), &list, 0, 2);
    t.result("submit", context.submit(std::slice::from_mut(&mut iocb)));
    list[0].iov_len = usize::MAX;
    iocb = Iocb { aio_data: 77, ..Iocb::default() };
    aio::events(t, context.wait(2));
    t.say(format_args!("{}", iocb.aio_data));
}

fn file_closed_meanwhile(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let (reader, writer) = files::pipe();
    t.result("submit", context.submit(&mut [aio::sync(file.as_raw_fd(), 1), aio::poll(&reader, libc::POLLIN, 2)]));
    drop(file);
    drop(reader);
    aio::events(t, context.wait(1));
    files::put(&writer, b"x");
    aio::poll_events(t, context.wait(1));
}

fn many(t: &mut Transcript) {
    let context = Context::new(128);
    let file = files::memory_file(&[b'.'; 8192]);
    let mut buffers = vec![[0u8; 64]; 128];
    let mut iocbs: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(index, buffer)| aio::read(file.as_raw_fd(), buffer, 64 * index as i64, index as u64))
        .collect();
    t.result("submit", context.submit(&mut iocbs));
    let mut events = Vec::new();
    while events.len() < 128 {
        let more = context.wait(1);
        if more.is_empty() {
            break;
        }
        events.extend(more);
    }
    events.sort_by_key(|event| event.data);
    let right = events.iter().zip(0..).all(|(event, data)| event.data == data && event.res == 64);
    let objects = events.iter().zip(&iocbs).all(|(event, iocb)| event.obj == &raw const *iocb as u64);
    t.say(format_args!("{} events, right: {right}, of their iocbs: {objects}", events.len()));
}

fn direct(t: &mut Transcript) {
    let scratch = files::Scratch::new();
    drop(scratch.file("content", &[b'd'; 8192]));
    let path = scratch.path_of("content");
    // SAFETY: the path is a C string.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_DIRECT) };
    let context = Context::new(8);
    let mut pages = Pages::new(2);
    let read = aio::read(file, &mut pages.bytes()[..4096], 0, 1);
    one(t, &context, "read", read);
    one(t, &context, "write", aio::write(file, &pages.bytes()[..4096], 4096, 2));
    one(t, &context, "an odd offset", Iocb { aio_offset: 7, ..read });
    one(t, &context, "an odd length", Iocb { aio_nbytes: 7, ..read });
    one(t, &context, "sync", aio::sync(file, 3));
}

/// The file was opened through its directory, but is no directory.
fn file_without_a_name(t: &mut Transcript) {
    // SAFETY: the path is a C string.
    let file = unsafe { libc::open(c"/var/tmp".as_ptr(), libc::O_RDWR | libc::O_TMPFILE | libc::O_CLOEXEC, 0o600) };
    let context = Context::new(8);
    one(t, &context, "write", aio::write(file, b"content", 0, 1));
    let mut buffer = [0; 7];
    one(t, &context, "read", aio::read(file, &mut buffer, 0, 2));
    one(t, &context, "sync", aio::sync(file, 3));
    t.say(String::from_utf8_lossy(&buffer));
}

fn append(t: &mut Transcript) {
    let scratch = files::Scratch::new();
    drop(scratch.file("content", b"content"));
    let path = scratch.path_of("content");
    // SAFETY: the path is a C string.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_APPEND) };
    let context = Context::new(8);
    one(t, &context, "write", aio::write(file, b"more", 0, 1));
    let mut buffer = [0; 11];
    one(t, &context, "read", aio::read(file, &mut buffer, 0, 2));
    t.say(String::from_utf8_lossy(&buffer));
}

fn stream_that_waits_for_nothing(t: &mut Transcript) {
    let context = Context::new(8);
    let mut buffer = [0; 4];
    let (reader, writer) = files::pipe_with(libc::O_NONBLOCK);
    one(t, &context, "read an empty pipe", aio::read(reader.as_raw_fd(), &mut buffer, 0, 1));
    drop(writer);
    one(t, &context, "read a closed pipe", aio::read(reader.as_raw_fd(), &mut buffer, 0, 2));
    let counter = files::eventfd(0);
    one(t, &context, "read an eventfd", aio::read(counter.as_raw_fd(), &mut [0; 8], 0, 3));
}

/// Several threads submit and take at the same time: each event arrives once.
fn threads(t: &mut Transcript) {
    const EACH: u64 = 500;
    let context = Context::new(512);
    let file = files::memory_file(&[b'.'; 4096]);
    let (address, number) = (context.0, file.as_raw_fd());
    let submitters: Vec<_> = (0..3u64)
        .map(|thread| {
            std::thread::spawn(move || {
                let context = std::mem::ManuallyDrop::new(Context(address));
                let mut buffer = [0; 16];
                for index in 0..EACH {
                    let mut iocb = aio::read(number, &mut buffer, 0, thread * EACH + index);
                    while context.submit(std::slice::from_mut(&mut iocb)) != 1 {
                        std::thread::yield_now();
                    }
                    if index % 7 == 0 {
                        // The file is in memory, so the request completes before the buffer is
                        // freed.
                        std::thread::yield_now();
                    }
                }
                buffer
            })
        })
        .collect();
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let takers: Vec<_> = (0..2)
        .map(|_| {
            std::thread::spawn(move || {
                let context = std::mem::ManuallyDrop::new(Context(address));
                let mut seen = Vec::new();
                while TAKEN.load(Ordering::SeqCst) < 3 * EACH {
                    let events = context.get(1, 16, std::time::Duration::from_millis(100)).unwrap_or_default();
                    TAKEN.fetch_add(events.len() as u64, Ordering::SeqCst);
                    seen.extend(events.iter().map(|event| event.data));
                }
                seen
            })
        })
        .collect();
    let mut seen: Vec<u64> = takers.into_iter().flat_map(|taker| taker.join().expect("it does not panic")).collect();
    submitters.into_iter().for_each(|submitter| drop(submitter.join()));
    seen.sort_unstable();
    t.say(format_args!("each once: {}", seen.iter().copied().eq(0..3 * EACH)));
}
