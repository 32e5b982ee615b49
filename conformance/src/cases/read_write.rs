//! READ and WRITE on files: offsets, the file's position, the end of the file, and errors.

use std::os::fd::AsRawFd;

use crate::files;
use crate::memory::{BAD, KERNEL_HALF, Pages};
use crate::ring::Ring;
use crate::sqe::{CURRENT, Change, fields, read, read_at, readv, write, write_at, writev};
use crate::transcript::Transcript;

fn shown(buffer: &[u8]) -> String {
    String::from_utf8_lossy(buffer).replace('\0', ".")
}

fn at_offset(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(file.as_raw_fd(), &mut buffer, 3, 1)));
    t.say(shown(&buffer));
    t.entry(&ring.one(write(file.as_raw_fd(), b"abc", 5, 2)));
    t.say(files::text(&file));
    t.say(format_args!("position {}", files::position(&file)));
}
case!(at_offset => "
    cqe 1: 4
    3456
    cqe 2: 3
    01234abc89
    position 0
");

fn at_position(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(fd, &mut buffer, CURRENT, 1)));
    t.say(format_args!("{} position {}", shown(&buffer), files::position(&file)));
    t.entry(&ring.one(read(fd, &mut buffer, CURRENT, 2)));
    t.say(format_args!("{} position {}", shown(&buffer), files::position(&file)));
    t.entry(&ring.one(write(fd, b"end", CURRENT, 3)));
    t.say(format_args!("{} position {}", files::text(&file), files::position(&file)));
    t.entry(&ring.one(read(fd, &mut buffer, CURRENT, 4)));
    t.entry(&ring.one(read(fd, &mut buffer, 0, 5)));
    t.say(format_args!("position {}", files::position(&file)));
}
case!(at_position => "
    cqe 1: 4
    0123 position 4
    cqe 2: 4
    4567 position 8
    cqe 3: 3
    01234567end position 11
    cqe 4: 0
    cqe 5: 4
    position 11
");

fn end_of_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let mut buffer = [0u8; 8];
    t.entry(&ring.one(read(fd, &mut buffer, 6, 1)));
    t.say(shown(&buffer));
    t.entry(&ring.one(read(fd, &mut buffer, 10, 2)));
    t.entry(&ring.one(read(fd, &mut buffer, 1 << 40, 3)));
    let empty = files::memory_file(b"");
    t.entry(&ring.one(read(empty.as_raw_fd(), &mut buffer, 0, 4)));
}
case!(end_of_file => "
    cqe 1: 4
    6789....
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
");

fn length_zero(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    t.entry(&ring.one(read(file.as_raw_fd(), &mut [], 0, 1)));
    t.entry(&ring.one(write(file.as_raw_fd(), &[], 0, 2)));
    t.entry(&ring.one(read_at(file.as_raw_fd(), 0, 0, 0, 3)));
    t.entry(&ring.one(read_at(file.as_raw_fd(), BAD, 0, 0, 4)));
    t.entry(&ring.one(read_at(-1, 0, 0, 0, 5)));
}
case!(length_zero => "
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
    cqe 4: 0
    cqe 5: -EBADF
");

fn write_beyond_end(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"ab");
    t.entry(&ring.one(write(file.as_raw_fd(), b"yz", 5, 1)));
    t.say(shown(&files::content(&file)));
}
case!(write_beyond_end => "
    cqe 1: 2
    ab...yz
");

/// A write to a file with O_APPEND goes to the end of the file, whatever offset the request names.
/// It moves the file's position only if the request names the current position (offset -1).
fn append(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"ab");
    let fd = file.as_raw_fd();
    // SAFETY: the call touches no memory.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_APPEND) };
    t.entry(&ring.one(write(fd, b"cd", 0, 1)));
    t.say(format_args!("{} position {}", files::text(&file), files::position(&file)));
    t.entry(&ring.one(write(fd, b"ef", CURRENT, 2)));
    t.say(format_args!("{} position {}", files::text(&file), files::position(&file)));
    let mut buffer = [0u8; 2];
    t.entry(&ring.one(read(fd, &mut buffer, 0, 3)));
    t.say(shown(&buffer));
}
case!(append => "
    cqe 1: 2
    abcd position 0
    cqe 2: 2
    abcdef position 6
    cqe 3: 2
    ab
");

fn bad_descriptors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut buffer = [0u8; 4];
    for fd in [-1, -100, 9999, i32::MAX, i32::MIN] {
        t.entry(&ring.one(read(fd, &mut buffer, 0, 1)));
        t.entry(&ring.one(write(fd, &buffer, 0, 2)));
    }
    // This ring has no registered files, so the slot number is invalid.
    t.entry(&ring.one(read(0, &mut buffer, 0, 3).fixed()));
    // The descriptor and the address are both bad. The error is that of the descriptor, -EBADF.
    t.entry(&ring.one(read_at(-1, BAD, 4, 0, 4)));
}
case!(bad_descriptors => "
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 3: -EBADF
    cqe 4: -EBADF
");

fn wrong_direction(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(writer.as_raw_fd(), &mut buffer, 0, 1)));
    t.entry(&ring.one(write(reader.as_raw_fd(), &buffer, 0, 2)));
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    t.entry(&ring.one(write(null.as_raw_fd(), &buffer, 0, 3)));
}
case!(wrong_direction => "
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 3: -EBADF
");

fn directory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let root = std::fs::File::open("/").expect("/");
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(root.as_raw_fd(), &mut buffer, 0, 1)));
    t.entry(&ring.one(write(root.as_raw_fd(), &buffer, 0, 2)));
}
case!(directory => "
    cqe 1: -EISDIR
    cqe 2: -EBADF
");

fn bad_addresses(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    for address in [0, BAD, KERNEL_HALF, u64::MAX, u64::MAX - 3] {
        t.entry(&ring.one(read_at(fd, address, 4, 0, 1)));
        t.entry(&ring.one(write_at(fd, address, 4, 0, 2)));
    }
    // A read at the end of the file copies no byte, so the bad address causes no error.
    t.entry(&ring.one(read_at(fd, BAD, 4, 10, 3)));
    t.say(files::text(&file));
    // The buffer of the next read is a page that the process can read but not write.
    let pages = Pages::new(1);
    pages.protect_last(libc::PROT_READ);
    t.entry(&ring.one(read_at(fd, pages.at(0), 4, 0, 4)));
    t.entry(&ring.one(write_at(fd, pages.at(0), 4, 0, 5)));
}
case!(bad_addresses => "
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 1: -EFAULT
    cqe 2: -EFAULT
    cqe 3: 0
    0123456789
    cqe 4: -EFAULT
    cqe 5: 4
");

/// The first four bytes of the buffer are accessible, and an inaccessible page follows. The request
/// transfers these four bytes.
fn half_bad_buffer(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let pages = Pages::new(2);
    pages.forbid_last();
    t.entry(&ring.one(read_at(fd, pages.at(4092), 8, 0, 1)));
    let (reader, writer) = files::pipe();
    files::put(&writer, b"0123456789");
    t.entry(&ring.one(read_at(reader.as_raw_fd(), pages.at(4092), 8, 0, 2)));
    t.entry(&ring.one(write_at(writer.as_raw_fd(), pages.at(4092), 8, 0, 3)));
}
case!(half_bad_buffer => "
    cqe 1: 4
    cqe 2: -EFAULT
    cqe 3: -EFAULT
");

fn negative_offset(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let mut buffer = [0u8; 4];
    for offset in [-2i64, i64::MIN, i64::MAX, i64::MAX - 2] {
        t.entry(&ring.one(read(fd, &mut buffer, offset as u64, 1)));
        t.entry(&ring.one(write(fd, &buffer, offset as u64, 2)));
    }
}
case!(negative_offset => "
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 1: -EINVAL
    cqe 2: -EINVAL
    cqe 1: -EINVAL
    cqe 2: -EINVAL
");

/// The kernel limits one transfer to about 2 GiB. It shortens a longer request instead of refusing
/// it.
fn huge_length(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let pages = Pages::new(1);
    let fd = file.as_raw_fd();
    t.entry(&ring.one(read_at(fd, pages.at(0), 0x7fff_ffff, 0, 1)));
    t.entry(&ring.one(read_at(fd, pages.at(0), u32::MAX, 0, 2)));
    let null = std::fs::File::options().write(true).open("/dev/null").expect("/dev/null");
    t.entry(&ring.one(write_at(null.as_raw_fd(), pages.at(0), 0x7fff_f000, 0, 3)));
    t.entry(&ring.one(write_at(null.as_raw_fd(), pages.at(0), u32::MAX, 0, 4)));
}
case!(huge_length => "
    cqe 1: 10
    cqe 2: 10
    cqe 3: 2147479552
    cqe 4: 2147479552
");

/// A write beyond RLIMIT_FSIZE gets -EFBIG and raises SIGXFSZ. This case ignores the signal.
fn file_size_limit(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"");
    // SAFETY: the calls affect only this process.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let limit = libc::rlimit { rlim_cur: 8, rlim_max: 8 };
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
    }
    t.entry(&ring.one(write(file.as_raw_fd(), b"0123456789", 0, 1)));
    t.entry(&ring.one(write(file.as_raw_fd(), b"0123456789", 8, 2)));
    t.entry(&ring.one(write(file.as_raw_fd(), b"01", 6, 3).forced_async()));
    t.entry(&ring.one(write(file.as_raw_fd(), b"01", 9, 4).forced_async()));
}
case!(file_size_limit => "
    cqe 1: 8
    cqe 2: -EFBIG
    cqe 3: 2
    cqe 4: -EFBIG
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let file = files::memory_file(b"0123456789");
    let fd = file.as_raw_fd();
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(write(fd, b"abc", 5, 1).forced_async()));
    t.entry(&ring.one(read(fd, &mut buffer, 4, 2).forced_async()));
    t.say(shown(&buffer));
    t.entry(&ring.one(read(-1, &mut buffer, 0, 3).forced_async()));
    t.entry(&ring.one(read_at(fd, BAD, 4, 0, 4).forced_async()));
    t.entry(&ring.one(read(fd, &mut buffer, CURRENT, 5).forced_async()));
    t.say(format_args!("{} position {}", shown(&buffer), files::position(&file)));
}
case!(forced_async => "
    cqe 1: 3
    cqe 2: 4
    4abc
    cqe 3: -EBADF
    cqe 4: -EFAULT
    cqe 5: 4
    0123 position 4
");

fn many_at_once(t: &mut Transcript) {
    let mut ring = Ring::new(64);
    let file = files::memory_file(&[0; 64 * 16]);
    let fd = file.as_raw_fd();
    let lines: Vec<String> = (0..64).map(|index| format!("line {index:<10}\n")).collect();
    let writes: Vec<_> = lines
        .iter()
        .enumerate()
        .map(|(index, line)| write(fd, line.as_bytes(), index as u64 * 16, index as u64))
        .collect();
    let entries = ring.run(&writes);
    t.say(format_args!("written whole {}", entries.iter().filter(|entry| entry.res == 16).count()));
    let mut buffers = [[0u8; 16]; 64];
    let reads: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(index, buffer)| read(fd, buffer, index as u64 * 16, index as u64))
        .collect();
    let entries = ring.run(&reads);
    t.say(format_args!("read whole {}", entries.iter().filter(|entry| entry.res == 16).count()));
    let same = lines.iter().zip(&buffers).filter(|(line, buffer)| line.as_bytes() == *buffer);
    t.say(format_args!("as written {}", same.count()));
}
case!(many_at_once => "
    written whole 64
    read whole 64
    as written 64
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let mut buffer = [0u8; 4];
    let wrong = fields! {
        ioprio = 0x4000, ioprio = 0x6001, ioprio = 0xffff, buf_index = 3, file_index = 3, addr3 = 3,
    };
    t.each(&mut ring, read(file.as_raw_fd(), &mut buffer, 0, 1), &wrong);
}
case!(reserved_fields => "
    cqe 1: 4
    cqe 1: 4
    cqe 1: -EINVAL
    cqe 1: 4
    cqe 1: 4
    cqe 1: 4
");

fn path_only_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    // SAFETY: the path is a C string. The descriptor stays open until the process ends.
    let fd = unsafe { libc::open(c"/proc/self/exe".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(fd, &mut buffer, 0, 1)));
    t.entry(&ring.one(write(fd, &buffer, 0, 2)));
}
case!(path_only_descriptor => "
    cqe 1: -EBADF
    cqe 2: -EBADF
");

fn sealed_file(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    // SAFETY: the name is a C string. The calls touch no other memory.
    let fd = unsafe {
        let fd = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING);
        libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE);
        fd
    };
    t.entry(&ring.one(write(fd, b"x", 0, 1)));
}
case!(sealed_file => "cqe 1: -EPERM");

fn zero_and_full(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let open = |path| std::fs::File::options().read(true).write(true).open(path).expect(path);
    let mut buffer = [1u8; 4];
    t.entry(&ring.one(read(open("/dev/zero").as_raw_fd(), &mut buffer, 0, 1)));
    t.say(format_args!("{buffer:?}"));
    t.entry(&ring.one(write(open("/dev/full").as_raw_fd(), &buffer, 0, 2)));
    t.entry(&ring.one(read(open("/dev/null").as_raw_fd(), &mut buffer, 0, 3)));
}
case!(zero_and_full => "
    cqe 1: 4
    [0, 0, 0, 0]
    cqe 2: -ENOSPC
    cqe 3: 0
");

/// Submits reads and writes of 0 bytes on each kind of file.
fn zero_bytes_on_kinds(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let open = |path: &str| -> std::os::fd::OwnedFd {
        std::fs::File::options().read(true).write(true).open(path).expect("it is there").into()
    };
    let (reader, writer) = files::pipe();
    let (socket, _other) = files::sockets();
    let (datagrams, _peer) = files::sockets_of(libc::SOCK_DGRAM);
    // SAFETY: the descriptors are new, and nothing else owns them.
    let timer = unsafe {
        use std::os::fd::FromRawFd;
        std::os::fd::OwnedFd::from_raw_fd(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC))
    };
    let kinds = [
        ("pipe's end", reader),
        ("pipe's beginning", writer),
        ("stream", socket),
        ("datagrams", datagrams),
        ("counter", files::eventfd(1)),
        ("empty counter", files::eventfd(0)),
        ("timer", timer),
        ("file", files::memory_file(b"abc")),
        ("null", open("/dev/null")),
        ("zero", open("/dev/zero")),
        ("full", open("/dev/full")),
        ("directory", std::fs::File::open("/").expect("it is there").into()),
    ];
    let empty = [crate::sqe::vector(0, 0), crate::sqe::vector(0, 0)];
    for (kind, fd) in kinds {
        let number = fd.as_raw_fd();
        let requests = [
            read(number, &mut [], CURRENT, 1),
            readv(number, &empty[..0], CURRENT, 2),
            readv(number, &empty[..1], CURRENT, 3),
            readv(number, &empty, CURRENT, 4),
            write(number, &[], CURRENT, 5),
            writev(number, &empty[..0], CURRENT, 6),
            writev(number, &empty[..1], CURRENT, 7),
            writev(number, &empty, CURRENT, 8),
        ];
        for plain in [true, false] {
            let results = requests.map(|sqe| {
                let sqe = if plain { sqe } else { sqe.forced_async() };
                crate::names::result(ring.one(sqe).res)
            });
            t.say(format_args!("{kind}: {}", results.join(" ")));
        }
    }
}
case!(zero_bytes_on_kinds => "
    pipe's end: 0 0 0 0 -EBADF -EBADF -EBADF -EBADF
    pipe's end: 0 0 0 0 -EBADF -EBADF -EBADF -EBADF
    pipe's beginning: -EBADF -EBADF -EBADF -EBADF 0 0 0 0
    pipe's beginning: -EBADF -EBADF -EBADF -EBADF 0 0 0 0
    stream: 0 0 0 0 0 0 0 0
    stream: 0 0 0 0 0 0 0 0
    datagrams: 0 0 0 0 0 0 0 0
    datagrams: 0 0 0 0 0 0 0 0
    counter: -EINVAL -EINVAL -EINVAL -EINVAL 0 0 0 0
    counter: -EINVAL -EINVAL -EINVAL -EINVAL 0 0 0 0
    empty counter: -EINVAL -EINVAL -EINVAL -EINVAL 0 0 0 0
    empty counter: -EINVAL -EINVAL -EINVAL -EINVAL 0 0 0 0
    timer: -EINVAL -EINVAL -EINVAL -EINVAL -EINVAL -EINVAL -EINVAL -EINVAL
    timer: -EINVAL -EINVAL -EINVAL -EINVAL -EINVAL -EINVAL -EINVAL -EINVAL
    file: 0 0 0 0 0 0 0 0
    file: 0 0 0 0 0 0 0 0
    null: 0 0 0 0 0 0 0 0
    null: 0 0 0 0 0 0 0 0
    zero: 0 0 0 0 0 0 0 0
    zero: 0 0 0 0 0 0 0 0
    full: 0 0 0 0 0 0 0 0
    full: 0 0 0 0 0 0 0 0
    directory: 0 0 0 0 -EBADF -EBADF -EBADF -EBADF
    directory: 0 0 0 0 -EBADF -EBADF -EBADF -EBADF
");
