//! STATX, compared with statx(2).

use std::ffi::CStr;
use std::os::fd::AsRawFd;

use usring_uapi::{Sqe, opcode};

use crate::files::{self, Scratch};
use crate::memory::{BAD, zeroed};
use crate::ring::Ring;
use crate::sqe::{Change, fields, sqe};
use crate::transcript::Transcript;

fn statx(fd: i32, path: &CStr, flags: i32, mask: u32, into: &mut libc::statx, ud: u64) -> Sqe {
    sqe(opcode::STATX, fd, ud).op_flags(flags as u32).with(|sqe| {
        sqe.addr = path.as_ptr() as u64;
        sqe.len = mask;
        sqe.off = &raw mut *into as u64;
    })
}

fn of_path(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    drop(scratch.file("a", b"0123456789"));
    let path = scratch.path_of("a");
    let mut stat: libc::statx = zeroed();
    t.entry(&ring.one(statx(libc::AT_FDCWD, &path, 0, libc::STATX_BASIC_STATS, &mut stat, 1)));
    t.say(format_args!("size {} links {}", stat.stx_size, stat.stx_nlink));
    t.say(format_args!("kind {:o}", stat.stx_mode & libc::S_IFMT as u16));
    let directory = std::fs::File::open(&scratch.path).expect("the scratch directory");
    let mut again: libc::statx = zeroed();
    let mask = libc::STATX_SIZE;
    t.entry(&ring.one(statx(directory.as_raw_fd(), c"a", 0, mask, &mut again, 2)));
    t.say(format_args!("size {} same file {}", again.stx_size, again.stx_ino == stat.stx_ino));
}
case!(of_path => "
    cqe 1: 0
    size 10 links 1
    kind 100000
    cqe 2: 0
    size 10 same file true
");

fn of_descriptor(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let mut stat: libc::statx = zeroed();
    let fd = file.as_raw_fd();
    t.entry(&ring.one(statx(fd, c"", libc::AT_EMPTY_PATH, libc::STATX_SIZE, &mut stat, 1)));
    t.say(format_args!("size {}", stat.stx_size));
    t.entry(&ring.one(statx(fd, c"", 0, libc::STATX_SIZE, &mut stat, 2)));
    // Since Linux 6.11, statx(2) treats a null path as an empty path. A STATX request with a null
    // path is refused.
    let null = statx(fd, c"", libc::AT_EMPTY_PATH, libc::STATX_SIZE, &mut stat, 3);
    t.entry(&ring.one(null.with(|sqe| sqe.addr = 0)));
    let here = statx(libc::AT_FDCWD, c"", libc::AT_EMPTY_PATH, libc::STATX_TYPE, &mut stat, 4);
    t.entry(&ring.one(here));
    t.say(format_args!("kind {:o}", stat.stx_mode & libc::S_IFMT as u16));
}
case!(of_descriptor => "
    cqe 1: 0
    size 10
    cqe 2: -ENOENT
    cqe 3: -EFAULT
    cqe 4: 0
    kind 40000
");

fn same_as_the_call(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    drop(scratch.file("a", b"0123456789"));
    let path = scratch.path_of("a");
    let (mut ours, mut theirs): (libc::statx, libc::statx) = (zeroed(), zeroed());
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    t.entry(&ring.one(statx(libc::AT_FDCWD, &path, 0, mask, &mut ours, 1)));
    // SAFETY: the path is a C string, and `stat` is a variable of this function.
    unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, mask, &mut theirs) };
    let bytes = |stat: &libc::statx| {
        // SAFETY: all bytes of the structure are initialised, and each is a valid u8.
        unsafe { *(&raw const *stat).cast::<[u8; size_of::<libc::statx>()]>() }
    };
    t.say(format_args!("same bytes {}", bytes(&ours) == bytes(&theirs)));
}
case!(same_as_the_call => "
    cqe 1: 0
    same bytes true
");

fn link_not_followed(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let scratch = Scratch::new();
    drop(scratch.file("a", b"0123456789"));
    std::os::unix::fs::symlink("a", scratch.path.join("link")).expect("a link");
    let path = scratch.path_of("link");
    let mut stat: libc::statx = zeroed();
    for flags in [0, libc::AT_SYMLINK_NOFOLLOW] {
        let mask = libc::STATX_BASIC_STATS;
        t.entry(&ring.one(statx(libc::AT_FDCWD, &path, flags, mask, &mut stat, 1)));
        t.say(format_args!("kind {:o} size {}", stat.stx_mode & libc::S_IFMT as u16, stat.stx_size));
    }
}
case!(link_not_followed => "
    cqe 1: 0
    kind 100000 size 10
    cqe 1: 0
    kind 120000 size 1
");

fn errors(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut stat: libc::statx = zeroed();
    let here = libc::AT_FDCWD;
    t.entry(&ring.one(statx(here, c"/no/such/path", 0, 0, &mut stat, 1)));
    t.entry(&ring.one(statx(here, c"", 0, 0, &mut stat, 2)));
    t.entry(&ring.one(statx(here, c"/dev/null/x", 0, 0, &mut stat, 3)));
    t.entry(&ring.one(statx(-5, c"x", 0, 0, &mut stat, 4)));
    t.entry(&ring.one(statx(-5, c"", libc::AT_EMPTY_PATH, 0, &mut stat, 5)));
    t.entry(&ring.one(statx(here, c"/", 1 << 30, 0, &mut stat, 6)));
    t.entry(&ring.one(statx(here, c"/", 0, 1 << 31, &mut stat, 7)));
    let both = libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
    t.entry(&ring.one(statx(here, c"/", both, 0, &mut stat, 8)));
}
case!(errors => "
    cqe 1: -ENOENT
    cqe 2: -ENOENT
    cqe 3: -ENOTDIR
    cqe 4: -EBADF
    cqe 5: -EBADF
    cqe 6: -EINVAL
    cqe 7: -EINVAL
    cqe 8: -EINVAL
");

fn bad_addresses(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut stat: libc::statx = zeroed();
    let good = statx(libc::AT_FDCWD, c"/", 0, 0, &mut stat, 1);
    t.each(&mut ring, good, &fields![addr = 0, addr = BAD, off = 0, off = BAD]);
}
case!(bad_addresses => "
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 1: -EFAULT
    cqe 1: -EFAULT
");

fn masks(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    for mask in [0, libc::STATX_SIZE, libc::STATX_BASIC_STATS, libc::STATX_ALL] {
        let mut stat: libc::statx = zeroed();
        t.entry(&ring.one(statx(libc::AT_FDCWD, c"/", 0, mask, &mut stat, 1)));
        // A file system may return more fields than the request asks for.
        let asked = mask & libc::STATX_BASIC_STATS;
        t.say(format_args!("the fields asked for are there: {}", stat.stx_mask & asked == asked));
    }
}
case!(masks => "
    cqe 1: 0
    the fields asked for are there: true
    cqe 1: 0
    the fields asked for are there: true
    cqe 1: 0
    the fields asked for are there: true
    cqe 1: 0
    the fields asked for are there: true
");

fn reserved_fields(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let mut stat: libc::statx = zeroed();
    let good = statx(libc::AT_FDCWD, c"/", 0, 0, &mut stat, 1);
    t.each(&mut ring, good, &fields![buf_index = 1, file_index = 1, ioprio = 1]);
    t.entry(&ring.one(good.fixed()));
}
case!(reserved_fields => "
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EINVAL
    cqe 1: -EBADF
");

fn forced_async(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123456789");
    let mut stat: libc::statx = zeroed();
    let flags = libc::AT_EMPTY_PATH;
    let sized = statx(file.as_raw_fd(), c"", flags, libc::STATX_SIZE, &mut stat, 1);
    t.entry(&ring.one(sized.forced_async()));
    t.say(format_args!("size {}", stat.stx_size));
}
case!(forced_async => "
    cqe 1: 0
    size 10
");
