//! OPENAT, OPENAT2 and CLOSE on ordinary descriptors.

use std::ffi::CStr;
use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, io_uring as u, opcode};

use crate::files::{self, Scratch};
use crate::memory::{BAD, zeroed};
use crate::ring::{self, Ring};
use crate::sqe::{Change, close, fields, read, sqe, write};
use crate::syscalls;
use crate::transcript::Transcript;
use usring_uapi::sqe_flags;

fn openat(directory: i32, path: &CStr, flags: i32, mode: u32, user_data: u64) -> Sqe {
    sqe(opcode::OPENAT, directory, user_data).op_flags(flags as u32).with(|sqe| {
        sqe.addr = path.as_ptr() as u64;
        sqe.len = mode;
    })
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

fn open_with(directory: i32, path: &CStr, how: &OpenHow, user_data: u64) -> Sqe {
    sqe(opcode::OPENAT2, directory, user_data).with(|sqe| {
        sqe.addr = path.as_ptr() as u64;
        sqe.off = &raw const *how as u64;
        sqe.len = size_of::<OpenHow>() as u32;
    })
}

/// Prints the CQE of a request that opens a file, without the number of the new descriptor. Returns
/// the request's result.
fn opened(t: &mut Transcript, ring: &mut Ring, sqe: Sqe) -> i32 {
    let entry = ring.one(sqe);
    t.outcome(format_args!("cqe {}", entry.user_data), entry.res.into());
    entry.res
}

fn open_and_read(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    drop(scratch.file("a", b"0123456789"));
    let path = scratch.path_of("a");
    let fd = opened(t, &mut ring, openat(libc::AT_FDCWD, &path, libc::O_RDONLY, 0, 1));
    let mut buffer = [0u8; 4];
    t.entry(&ring.one(read(fd, &mut buffer, 2, 2)));
    t.entry(&ring.one(close(fd, 3)));
    t.say(format_args!("open {}", files::is_open(fd)));
}
case!(open_and_read => "
    cqe 1 = ok
    cqe 2: 4
    cqe 3: 0
    open false
");

fn mode_of(path: &CStr) -> u32 {
    let mut stat: libc::stat = zeroed();
    // SAFETY: the path is a C string, and `stat` a variable of this function.
    unsafe { libc::stat(path.as_ptr(), &mut stat) };
    stat.st_mode & 0o7777
}

fn create_with_mode(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    for mode in [0o666, 0o600, 0o777] {
        let path = scratch.path_of(&format!("m{mode:o}"));
        let flags = libc::O_CREAT | libc::O_WRONLY;
        opened(t, &mut ring, openat(libc::AT_FDCWD, &path, flags, mode, u64::from(mode)));
        t.say(format_args!("mode {:o}", mode_of(&path)));
    }
    let path = scratch.path_of("m666");
    let exclusive = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    opened(t, &mut ring, openat(libc::AT_FDCWD, &path, exclusive, 0o666, 1));
}
case!(create_with_mode => "
    cqe 438 = ok
    mode 644
    cqe 384 = ok
    mode 600
    cqe 511 = ok
    mode 755
    cqe 1 = -EEXIST
");

fn lowest_free_number(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let first = files::eventfd(0);
    let second = files::eventfd(0);
    let number = first.as_raw_fd();
    drop(first);
    let fd = opened(t, &mut ring, openat(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR, 0, 1));
    t.say(format_args!("the number just freed: {}", fd == number));
    drop(second);
}
case!(lowest_free_number => "
    cqe 1 = ok
    the number just freed: true
");

fn errors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    let here = libc::AT_FDCWD;
    let missing = scratch.path_of("missing");
    let long = std::ffi::CString::new(vec![b'x'; 5000]).expect("no zero byte");
    let directory = scratch.path_of(".");
    for (name, sqe) in [
        ("missing", openat(here, &missing, libc::O_RDONLY, 0, 1)),
        ("empty path", openat(here, c"", libc::O_RDONLY, 0, 1)),
        ("long path", openat(here, &long, libc::O_RDONLY, 0, 1)),
        ("through a file", openat(here, c"/dev/null/x", libc::O_RDONLY, 0, 1)),
        ("write a directory", openat(here, &directory, libc::O_RDWR, 0, 1)),
        ("O_DIRECTORY of a file", openat(here, c"/dev/null", libc::O_DIRECTORY, 0, 1)),
        ("bad directory", openat(-5, c"x", libc::O_RDONLY, 0, 1)),
        ("O_TMPFILE without a directory", openat(here, c"/dev/null", libc::O_TMPFILE | libc::O_RDWR, 0o600, 1)),
    ] {
        let entry = ring.one(sqe);
        t.outcome(name, entry.res.into());
    }
    for address in [0, BAD] {
        let bad = openat(here, c"", 0, 0, 2).with(|sqe| sqe.addr = address);
        t.entry(&ring.one(bad));
    }
}
case!(errors => "
    missing = -ENOENT
    empty path = -ENOENT
    long path = -ENAMETOOLONG
    through a file = -ENOTDIR
    write a directory = -EISDIR
    O_DIRECTORY of a file = -ENOTDIR
    bad directory = -EBADF
    O_TMPFILE without a directory = -ENOTDIR
    cqe 2: -EFAULT
    cqe 2: -EFAULT
");

fn relative_to_directory(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    drop(scratch.file("a", b"x"));
    let directory = std::fs::File::open(&scratch.path).expect("the scratch directory");
    opened(t, &mut ring, openat(directory.as_raw_fd(), c"a", libc::O_RDONLY, 0, 1));
    opened(t, &mut ring, openat(directory.as_raw_fd(), c"b", libc::O_RDONLY, 0, 2));
    let file = files::memory_file(b"");
    opened(t, &mut ring, openat(file.as_raw_fd(), c"a", libc::O_RDONLY, 0, 3));
}
case!(relative_to_directory => "
    cqe 1 = ok
    cqe 2 = -ENOENT
    cqe 3 = -ENOTDIR
");

/// Once io_uring_enter(2) has returned, the program may overwrite the path, even if the open has
/// not started.
fn path_is_copied_by_submit(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    let mut path = *b"/dev/null\0";
    let text = CStr::from_bytes_with_nul(&path).expect("a C string").as_ptr() as u64;
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1).linked());
    ring.push(openat(libc::AT_FDCWD, c"", libc::O_RDONLY, 0, 2).with(|sqe| sqe.addr = text));
    t.result("submit", ring.submit());
    path.copy_from_slice(b"/dev/none\0");
    std::hint::black_box(&mut path);
    files::put(&writer, b"x");
    for entry in ring.wait(2) {
        t.outcome(format_args!("cqe {}", entry.user_data), entry.res.min(1).into());
    }
}
case!(path_is_copied_by_submit => "
    submit = 2
    cqe 1 = ok
    cqe 2 = ok
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let wrong = fields![buf_index = 1, ioprio = 1, off = 1, flags = sqe_flags::FIXED_FILE, op_flags = 1 << 30];
    for (_, change) in wrong {
        let entry = ring.one(openat(libc::AT_FDCWD, c"/dev/null", 0, 0, 1).with(change));
        t.outcome("cqe", entry.res.into());
    }
    t.each(&mut ring, close(0, 2), &fields![addr = 1, off = 1, len = 1, op_flags = 1, buf_index = 1, ioprio = 1]);
    t.entry(&ring.one(close(0, 2).fixed()));
}
case!(reserved_fields => "
    cqe = -EINVAL
    cqe = -EINVAL
    cqe = ok
    cqe = -EBADF
    cqe = ok
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EINVAL
    cqe 2: -EBADF
");

fn openat2(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    let path = scratch.path_of("new");
    let how = OpenHow { flags: (libc::O_CREAT | libc::O_RDWR) as u64, mode: 0o640, resolve: 0 };
    opened(t, &mut ring, open_with(libc::AT_FDCWD, &path, &how, 1));
    t.say(format_args!("mode {:o}", mode_of(&path)));
    // OPENAT ignores unknown flags and modes. OPENAT2 refuses them.
    for how in [
        OpenHow { flags: 1 << 40, ..OpenHow::default() },
        OpenHow { flags: 1 << 30, ..OpenHow::default() },
        OpenHow { mode: 0o600, ..OpenHow::default() },
        OpenHow { flags: libc::O_CREAT as u64, mode: 1 << 20, resolve: 0 },
        OpenHow { resolve: 1 << 40, ..OpenHow::default() },
    ] {
        opened(t, &mut ring, open_with(libc::AT_FDCWD, &path, &how, 2));
    }
}
case!(openat2 => "
    cqe 1 = ok
    mode 640
    cqe 2 = -EINVAL
    cqe 2 = -EINVAL
    cqe 2 = -EINVAL
    cqe 2 = -EINVAL
    cqe 2 = -EINVAL
");

fn openat2_sizes(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut how = [0u64; 8];
    let sized = |how: &[u64; 8], size| {
        sqe(opcode::OPENAT2, libc::AT_FDCWD, u64::from(size)).with(|sqe| {
            sqe.addr = c"/dev/null".as_ptr() as u64;
            sqe.off = how.as_ptr() as u64;
            sqe.len = size;
        })
    };
    for size in [0, 8, 16, 23, 24, 25, 32, 64] {
        opened(t, &mut ring, sized(&how, size));
    }
    // The program's open_how is longer than the kernel's. The bytes that the kernel does not know
    // must be zero, and this one is not.
    how[3] = 1;
    opened(t, &mut ring, sized(&how, 24));
    opened(t, &mut ring, sized(&how, 32));
    for address in [0, BAD] {
        let bad = sized(&how, 24).with(|sqe| sqe.off = address);
        opened(t, &mut ring, bad);
    }
}
case!(openat2_sizes => "
    cqe 0 = -EINVAL
    cqe 8 = -EINVAL
    cqe 16 = -EINVAL
    cqe 23 = -EINVAL
    cqe 24 = ok
    cqe 25 = ok
    cqe 32 = ok
    cqe 64 = ok
    cqe 24 = ok
    cqe 32 = -E2BIG
    cqe 24 = -EFAULT
    cqe 24 = -EFAULT
");

fn openat2_resolve(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    drop(scratch.file("a", b"x"));
    std::os::unix::fs::symlink("a", scratch.path.join("link")).expect("a link");
    let directory = std::fs::File::open(&scratch.path).expect("the scratch directory");
    let fd = directory.as_raw_fd();
    let how = |resolve| OpenHow { resolve, ..OpenHow::default() };
    let (no_links, beneath, in_root) = (how(0x04), how(0x08), how(0x10));
    opened(t, &mut ring, open_with(fd, c"link", &no_links, 1));
    opened(t, &mut ring, open_with(fd, c"link", &beneath, 2));
    opened(t, &mut ring, open_with(fd, c"../x", &beneath, 3));
    opened(t, &mut ring, open_with(fd, c"/a", &beneath, 4));
    opened(t, &mut ring, open_with(fd, c"/a", &in_root, 5));
}
case!(openat2_resolve => "
    cqe 1 = -ELOOP
    cqe 2 = ok
    cqe 3 = -EXDEV
    cqe 4 = -EXDEV
    cqe 5 = ok
");

fn fifo(t: &mut Transcript, scratch: &Scratch, name: &str) -> std::ffi::CString {
    let path = scratch.path_of(name);
    // SAFETY: the path is a C string.
    t.result("mkfifo", unsafe { libc::mkfifo(path.as_ptr(), 0o600) });
    path
}

/// An open of a FIFO does not wait, because the kernel first tries it with O_NONBLOCK. An open for
/// reading succeeds. An open for writing fails if there is no reader. According to the manual page,
/// it behaves as openat(2).
fn fifo_does_not_wait(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    let here = libc::AT_FDCWD;
    let path = fifo(t, &scratch, "fifo");
    opened(t, &mut ring, openat(here, &path, libc::O_WRONLY, 0, 1));
    let fd = opened(t, &mut ring, openat(here, &path, libc::O_RDONLY, 0, 2));
    // SAFETY: the call touches no memory.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    t.say(format_args!("O_NONBLOCK {}", flags & libc::O_NONBLOCK != 0));
    opened(t, &mut ring, openat(here, &path, libc::O_WRONLY, 0, 3));
    let other = fifo(t, &scratch, "other");
    opened(t, &mut ring, openat(here, &other, libc::O_WRONLY | libc::O_NONBLOCK, 0, 4));
    opened(t, &mut ring, openat(here, &other, libc::O_RDONLY | libc::O_NONBLOCK, 0, 5));
}
case!(fifo_does_not_wait => "
    mkfifo = 0
    cqe 1 = -ENXIO
    cqe 2 = ok
    O_NONBLOCK false
    cqe 3 = ok
    mkfifo = 0
    cqe 4 = -ENXIO
    cqe 5 = ok
");

/// With IOSQE_ASYNC, the open of a FIFO waits in a worker, as openat(2) would.
fn fifo_waits_in_worker(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    let path = fifo(t, &scratch, "fifo");
    ring.push(openat(libc::AT_FDCWD, &path, libc::O_RDONLY, 0, 1).forced_async());
    t.result("submit", ring.submit());
    crate::time::long_enough_to_notice();
    t.in_order(&ring.reap());
    // SAFETY: the path is a C string. The descriptor stays open until the process ends.
    t.outcome("open to write", unsafe { libc::open(path.as_ptr(), libc::O_WRONLY) }.into());
    let entries = ring.wait(1);
    t.outcome("open to read", entries.first().map_or(-1, |entry| entry.res).into());
}
case!(fifo_waits_in_worker => "
    mkfifo = 0
    submit = 1
    no cqe
    open to write = ok
    open to read = ok
");

fn close_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let event = std::mem::ManuallyDrop::new(files::eventfd(0));
    let fd = event.as_raw_fd();
    ring.push(close(fd, 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.reap());
    t.say(format_args!("open {}", files::is_open(fd)));
    t.entry(&ring.one(close(fd, 2)));
}
case!(close_descriptor as close => "
    submit = 1
    cqe 1: 0
    open false
    cqe 2: -EBADF
");

fn close_wrong(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for fd in [-1, 9999, i32::MAX, i32::MIN, libc::AT_FDCWD] {
        t.entry(&ring.one(close(fd, 1)));
    }
}
case!(close_wrong => "
    cqe 1: -EBADF
    cqe 1: -EBADF
    cqe 1: -EBADF
    cqe 1: -EBADF
    cqe 1: -EBADF
");

/// CLOSE refuses the descriptors of rings: that of its own ring and that of another ring.
fn close_own_ring(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut other = Ring::new(4);
    t.entry(&ring.one(close(ring.fd, 1)));
    t.entry(&ring.one(close(other.fd, 2)));
    t.entry(&other.one(close(ring.fd, 3)));
    t.result("enter", ring.enter(0, 0, 0));
    t.result("enter other", other.enter(0, 0, 0));
}
case!(close_own_ring => "
    cqe 1: -EBADF
    cqe 2: -EBADF
    cqe 3: -EBADF
    enter = 0
    enter other = 0
");

fn descriptor_limit(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let last = files::eventfd(0);
    let limit = libc::rlimit { rlim_cur: last.as_raw_fd() as u64 + 1, rlim_max: last.as_raw_fd() as u64 + 1 };
    // SAFETY: the call reads only `limit`.
    t.result("RLIMIT_NOFILE", unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) });
    opened(t, &mut ring, openat(libc::AT_FDCWD, c"/dev/null", 0, 0, 1));
    drop(last);
    opened(t, &mut ring, openat(libc::AT_FDCWD, c"/dev/null", 0, 0, 2));
}
case!(descriptor_limit => "
    RLIMIT_NOFILE = 0
    cqe 1 = -EMFILE
    cqe 2 = ok
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let fd = opened(t, &mut ring, openat(libc::AT_FDCWD, c"/dev/null", 0, 0, 1).forced_async());
    t.entry(&ring.one(close(fd, 2).forced_async()));
    t.say(format_args!("open {}", files::is_open(fd)));
}
case!(forced_async => "
    cqe 1 = ok
    cqe 2: 0
    open false
");

fn close_on_exec(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for flags in [0, libc::O_CLOEXEC] {
        let fd = opened(t, &mut ring, openat(libc::AT_FDCWD, c"/dev/null", flags, 0, 1));
        // SAFETY: the call touches no memory.
        let held = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        t.result("F_GETFD", held);
        t.result("close", syscalls::close(fd));
    }
}
case!(close_on_exec => "
    cqe 1 = ok
    F_GETFD = 0
    close = 0
    cqe 1 = ok
    F_GETFD = 1
    close = 0
");

fn linked_open_write_close(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    let path = scratch.path_of("chain");
    let numbers = [-1i32];
    t.result("register files", ring.register(super::reg::FILES, numbers.as_ptr(), 1));
    let flags = libc::O_CREAT | libc::O_RDWR;
    ring.push(openat(libc::AT_FDCWD, &path, flags, 0o600, 1).with(|sqe| sqe.file_index = 1).linked());
    ring.push(write(0, b"chained", 0, 2).fixed().linked());
    ring.push(close(0, 3).with(|sqe| sqe.file_index = 1));
    t.result("submit", ring.submit());
    t.in_order(&ring.wait(3));
    let text = std::fs::read_to_string(scratch.path.join("chain")).unwrap_or_default();
    t.say(text);
}
case!(linked_open_write_close => "
    register files = 0
    submit = 3
    cqe 1: 0
    cqe 2: 7
    cqe 3: 0
    chained
");

/// A worker has opened a file for a slot, and the completion is pending as task work. Then the ring
/// is closed, which must also close the file.
fn into_slot_as_ring_closes(t: &mut Transcript) {
    let scratch = Scratch::new();
    let path = scratch.path_of("new");
    let before = files::open_numbers();
    let flags = ring::DEFER | u::IORING_SETUP_TASKRUN_FLAG;
    for _ in 0..20 {
        let mut ring = Ring::flags(4, flags);
        assert_eq!(ring.register(super::reg::FILES, [-1i32; 2].as_ptr(), 2), 0);
        let create = openat(libc::AT_FDCWD, &path, libc::O_CREAT | libc::O_RDWR, 0o600, 1);
        ring.push(create.forced_async().with(|sqe| sqe.file_index = 1));
        ring.submit();
        assert!(crate::time::until(|| ring.sq_flags() & u::IORING_SQ_TASKRUN != 0), "the worker brings nothing");
    }
    let gone = crate::time::until(|| files::open_numbers() <= before + MOST_LEFT_OPEN);
    t.say(format_args!("nothing is left open {gone}"));
}
case!(into_slot_as_ring_closes => "nothing is left open true");

/// Most descriptors that usring may leave open in a process after its rings are closed.
const MOST_LEFT_OPEN: usize = 8;

/// OPENAT2 accepts an open_how of any length beyond the kernel's. The additional bytes must be
/// zero.
fn openat2_huge(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut pages = crate::memory::Pages::new(5);
    let request = |pages: &crate::memory::Pages, size: usize| {
        sqe(opcode::OPENAT2, libc::AT_FDCWD, 1).with(|sqe| {
            (sqe.addr, sqe.off, sqe.len) = (c"/".as_ptr() as u64, pages.at(0), size as u32);
        })
    };
    for size in [4095, 4096, 4097, 8192, 10_000, 5 * 4096] {
        opened(t, &mut ring, request(&pages, size));
    }
    pages.bytes()[20_000] = 1;
    opened(t, &mut ring, request(&pages, 20_000));
    opened(t, &mut ring, request(&pages, 20_001));
    pages.bytes()[20_000] = 0;
    pages.forbid_last();
    for size in [4 * 4096, 4 * 4096 + 1, 1 << 30, 1 << 31, u32::MAX as usize] {
        opened(t, &mut ring, request(&pages, size));
    }
    pages.bytes()[30] = 1;
    opened(t, &mut ring, request(&pages, 5 * 4096));
}
case!(openat2_huge => "
    cqe 1 = ok
    cqe 1 = ok
    cqe 1 = ok
    cqe 1 = ok
    cqe 1 = ok
    cqe 1 = ok
    cqe 1 = ok
    cqe 1 = -E2BIG
    cqe 1 = ok
    cqe 1 = -EFAULT
    cqe 1 = -EFAULT
    cqe 1 = -EFAULT
    cqe 1 = -EFAULT
    cqe 1 = -E2BIG
");
