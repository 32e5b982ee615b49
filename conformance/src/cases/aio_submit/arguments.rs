//! Invalid iocbs and invalid arguments of io_submit(2).

use super::{one, vector};
use crate::aio::{self, Context};
use crate::memory::Pages;
use crate::transcript::Transcript;
use crate::{files, process};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use usring_uapi::aio::{IOCB_CMD_NOOP, IOCB_FLAG_IOPRIO, Iocb};
use usring_uapi::general as linux;

fn counts(t: &mut Transcript) {
    let context = Context::new(8);
    t.result("none", aio::submit(context.0, 0, std::ptr::null()));
    t.result("fewer than none", aio::submit(context.0, -1, std::ptr::null()));
    t.result("from nowhere", aio::submit(context.0, 1, std::ptr::null()));
}
case!(counts => "
    none = 0
    fewer than none = -EINVAL
    from nowhere = -EFAULT
");

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
    pages.forbid_last();
    // SAFETY: the address is 32 bytes before the end of the first page, which is mapped. The second
    // page is unreadable on purpose, so io_submit can read only half an iocb.
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
case!(bad_pointers => "
    the second is null = 1
    event 1: 4 0
    the first is null = -EFAULT
    half of it cannot be read = -EFAULT
    all of it can = 1
    event 1: 4 0
    it cannot be written = -EFAULT
    no event
");

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
case!(reserved_fields => "
    reserved2 = -EINVAL
    unknown flags = 1
    event 1: 4 0
    a key = 1
    event 1: 4 0
    a priority without its flag = 1
    event 1: 4 0
    an eventfd without its flag = 1
    event 1: 4 0
    a negative length = -EINVAL
    a bad descriptor, and reserved2 = -EINVAL
");

fn unknown_commands(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    for command in [4, IOCB_CMD_NOOP, 9, 10, 0xffff] {
        let iocb = Iocb { aio_lio_opcode: command, aio_fildes: file.as_raw_fd() as u32, ..Iocb::default() };
        one(t, &context, &format!("command {command}"), iocb);
        one(t, &context, "and a bad descriptor", Iocb { aio_fildes: u32::MAX, ..iocb });
    }
}
case!(unknown_commands => "
    command 4 = -EINVAL
    and a bad descriptor = -EBADF
    command 6 = -EINVAL
    and a bad descriptor = -EBADF
    command 9 = -EINVAL
    and a bad descriptor = -EBADF
    command 10 = -EINVAL
    and a bad descriptor = -EBADF
    command 65535 = -EINVAL
    and a bad descriptor = -EBADF
");

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
case!(bad_descriptors => "
    read = -EBADF
    write = -EBADF
    sync = -EBADF
    poll = -EBADF
    read = -EBADF
    write = -EBADF
    sync = -EBADF
    poll = -EBADF
    read = -EBADF
    write = -EBADF
    sync = -EBADF
    poll = -EBADF
");

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
    // The wrong access mode does not matter here: a sync request works on a read-only descriptor,
    // too.
    one(t, &context, "sync", aio::sync(reads, 8));
}
case!(wrong_mode => "
    read where it writes = -EBADF
    write where it reads = -EBADF
    read = 1
    event 3: 4 0
    read = -EBADF
    write = -EBADF
    write = 1
    event 6: 4 0
    bad memory and the wrong mode = -EBADF
    sync = 1
    event 8: 0 0
");

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
case!(directories_and_pipes => "
    read a directory = -EINVAL
    read a pipe = 1
    event 2: 4 0
    read the rest, from wherever = 1
    event 3: 1 0
    write a pipe = 1
    event 4: 4 0
    Ok([109, 111, 114, 101])
    sync a pipe = -EINVAL
    read a socket = 1
    event 6: 4 0
    sync a socket = -EINVAL
    write a socket = 1
    event 8: 4 0
    Ok([98, 97, 99, 107])
    read an eventfd = 1
    event 9: 8 0
    [5, 0, 0, 0, 0, 0, 0, 0]
    read nothing = 1
    event 10: 0 0
    write to nothing = 1
    event 11: 4 0
    sync nothing = -EINVAL
    read zeroes = 1
    event 13: 4 0
");

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
case!(offsets_and_lengths => "
    a negative offset = -EINVAL
    the last offset = -EINVAL
    just before it = 1
    event 3: 0 0
    write at the last = 1
    event 4: 4 0
    a negative offset of a pipe = -EINVAL
    a terabyte = 1
    event 6: 4096 0
");

fn bad_memory(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut pages = Pages::new(2);
    let spoiled = &mut pages.bytes()[4096..4100];
    let (mut read, mut write) =
        (aio::read(file.as_raw_fd(), spoiled, 0, 1), aio::write(file.as_raw_fd(), spoiled, 0, 2));
    pages.forbid_last();
    one(t, &context, "read", read);
    one(t, &context, "write", write);
    for address in [0, 8, u64::MAX, 0x8000_0000_0000, u64::MAX - 2] {
        (read.aio_buf, write.aio_buf) = (address, address);
        one(t, &context, "read", read);
        one(t, &context, "write", write);
    }
    t.say(files::text(&file));
}
case!(bad_memory => "
    read = 1
    event 1: -EFAULT 0
    write = 1
    event 2: -EFAULT 0
    read = 1
    event 1: -EFAULT 0
    write = 1
    event 2: -EFAULT 0
    read = 1
    event 1: -EFAULT 0
    write = 1
    event 2: -EFAULT 0
    read = -EFAULT
    write = -EFAULT
    read = -EFAULT
    write = -EFAULT
    read = -EFAULT
    write = -EFAULT
    some content
");

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
case!(bad_vectors => "
    too many = -EINVAL
    a list nowhere = -EFAULT
    half a list = -EFAULT
    a negative length = -EINVAL
    memory nowhere = 1
    event 3: 4 0
    memory outside = -EFAULT
");

fn upper_half_of_a_vectors_count(t: &mut Transcript) {
    let context = Context::new(8);
    let file = files::memory_file(b"some content");
    let mut buffer = [0; 4];
    let list = [vector(&mut buffer), vector(&mut buffer)];
    let good = aio::read_vector(file.as_raw_fd(), &list, 0, 1);
    for count in [1 << 32, 1 << 32 | 1, 1 << 62 | 2, 1 << 32 | 1025] {
        one(t, &context, &format!("{count:#x}"), Iocb { aio_nbytes: count, ..good });
    }
}
case!(upper_half_of_a_vectors_count => "
    0x100000000 = 1
    event 1: 0 0
    0x100000001 = 1
    event 1: 4 0
    0x4000000000000002 = 1
    event 1: 8 0
    0x100000401 = -EINVAL
");

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
case!(stops_at_the_first_error => "
    good, good, bad, good = 2
    event 1: 4 0
    event 1: 4 0
    bad, good = -EBADF
    no event
");

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
case!(flags => "
    read HIPRI = 1
    event 1: 4 0
    write HIPRI = 1
    event 2: 4 0
    read DSYNC = 1
    event 1: 4 0
    write DSYNC = 1
    event 2: 4 0
    read SYNC = 1
    event 1: 4 0
    write SYNC = 1
    event 2: 4 0
    read NOWAIT = -EOPNOTSUPP
    write NOWAIT = -EOPNOTSUPP
    read APPEND = 1
    event 1: 4 0
    write APPEND = 1
    event 2: 4 0
    read APPEND and NOAPPEND = -EINVAL
    write APPEND and NOAPPEND = -EINVAL
    read unknown = -EOPNOTSUPP
    write unknown = -EOPNOTSUPP
    read the sign = -EOPNOTSUPP
    write the sign = -EOPNOTSUPP
    SOME contentSOME
");

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
        // SAFETY: setuid(2) touches no memory. Only this child process loses root's rights.
        unsafe { libc::setuid(65534) };
        let context = Context::new(8);
        one(t, &context, "realtime as nobody", Iocb { aio_reqprio: 1 << 13, ..read });
        0
    });
    t.say(ending);
}
case!(priority => "
    none = 1
    event 1: 4 0
    none with a level = -EINVAL
    best effort = 1
    event 1: 4 0
    idle = 1
    event 1: 4 0
    idle with a level = 1
    event 1: 4 0
    no class = -EINVAL
    no class = -EINVAL
    no class = -EINVAL
    no class = -EINVAL
    realtime as nobody = -EPERM
    exit 0
");

/// io_submit checks the priority in the iocb before the access mode of the iocb's file.
fn priority_and_wrong_mode(t: &mut Transcript) {
    let context = Context::new(8);
    let (_reader, writer) = files::pipe();
    let read = Iocb { aio_flags: IOCB_FLAG_IOPRIO, ..aio::read(writer.as_raw_fd(), &mut [0; 4], 0, 1) };
    for (name, priority) in [("good", 2 << 13), ("a level without a class", 3), ("no class", 0x8000)] {
        one(t, &context, name, Iocb { aio_reqprio: (priority as u16).cast_signed(), ..read });
    }
}
case!(priority_and_wrong_mode => "
    good = -EBADF
    a level without a class = -EINVAL
    no class = -EINVAL
");

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
case!(sync_fields => "
    buffer = -EINVAL
    offset = -EINVAL
    length = -EINVAL
    flags = -EINVAL
    nothing = 1
    event 1: 0 0
");
