//! The rights of requests. A request has the credentials, root, working directory and namespaces
//! that its submitting thread has at the submission. Each case runs in a forked child, because it
//! may give up some of these. The cases need root.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use usring_uapi::io_uring as u;
use usring_uapi::{Sqe, opcode, sqe_flags};

use crate::files::{self, Scratch};
use crate::process;
use crate::ring::{Entry, Ring};
use crate::sqe::{Change, sqe, timeout};
use crate::time::milliseconds;
use crate::transcript::Transcript;

mod unshared;

pub(super) const NOBODY: u32 = 65534;
/// Names of the files in [`Place`].
pub(super) const SECRET: &CStr = c"secret";
const CLOSED: &CStr = c"closed/file";
const LOCKED: &CStr = c"locked";

/// A directory that all users may enter. Only root may open the files in it.
pub(super) struct Place {
    scratch: Scratch,
    directory: OwnedFd,
}

impl Place {
    pub(super) fn new() -> Place {
        let scratch = Scratch::new();
        let allow = |name: &str, mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(scratch.path.join(name), permissions).expect("a mode of our own file");
        };
        scratch.file("secret", b"secret");
        allow("secret", 0o600);
        std::fs::create_dir(scratch.path.join("closed")).expect("a directory");
        scratch.file("closed/file", b"closed");
        allow("closed", 0o700);
        // Mode 0: even the file's owner may open this file only with CAP_DAC_OVERRIDE.
        scratch.file("locked", b"locked");
        allow("locked", 0);
        allow("", 0o755);
        let path = scratch.path_of("");
        // SAFETY: the path is a C string. The descriptor is new, and nothing else owns it.
        let directory = unsafe { OwnedFd::from_raw_fd(libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC)) };
        Place { scratch, directory }
    }

    pub(super) fn fd(&self) -> i32 {
        self.directory.as_raw_fd()
    }

    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path.join(name)
    }
}

pub(super) fn open(directory: i32, path: &CStr, flags: i32) -> Sqe {
    Sqe {
        addr: path.as_ptr() as u64,
        len: 0o600,
        op_flags: (flags | libc::O_CLOEXEC) as u32,
        ..sqe(opcode::OPENAT, directory, 0)
    }
}

pub(super) fn describe(entry: &Entry) -> String {
    if entry.res >= 0 { "done".into() } else { crate::names::result(entry.res) }
}

/// Opens a path by two requests: the submitting call executes the first, and a worker the second.
/// Prints both results.
pub(super) fn opens(t: &mut Transcript, ring: &mut Ring, what: &str, directory: i32, path: &CStr) {
    open_both_ways(t, ring, what, open(directory, path, libc::O_RDONLY));
}

/// Opens [`SECRET`], which only root may open, by two requests with the personality `personality`.
/// Prints both results.
pub(super) fn opens_as(t: &mut Transcript, ring: &mut Ring, what: &str, place: &Place, personality: u16) {
    open_both_ways(t, ring, what, Sqe { personality, ..open(place.fd(), SECRET, libc::O_RDONLY) });
}

fn open_both_ways(t: &mut Transcript, ring: &mut Ring, what: &str, sqe: Sqe) {
    for (way, flags) in [("", 0), (", forced async", sqe_flags::ASYNC)] {
        let entry = ring.one(sqe.flagged(flags));
        t.say(format_args!("{what}{way}: {}", describe(&entry)));
        shut(entry.res);
    }
}

pub(super) fn shut(number: i32) {
    if number >= 0 {
        // SAFETY: a request has just opened the descriptor.
        unsafe { libc::close(number) };
    }
}

/// Tries each operation on paths that needs a right, and prints the results.
fn tries(t: &mut Transcript, ring: &mut Ring, place: &Place) {
    let fd = place.fd();
    opens(t, ring, "open", fd, SECRET);
    let mut result: libc::statx = crate::memory::zeroed();
    let path = |op, path: &CStr| Sqe { addr: path.as_ptr() as u64, ..sqe(op, fd, 0) };
    let two = |op, first: &CStr, second: &CStr| Sqe { off: second.as_ptr() as u64, len: fd as u32, ..path(op, first) };
    let asked = [
        ("create", open(fd, c"made", libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY)),
        ("truncate", open(fd, SECRET, libc::O_WRONLY | libc::O_TRUNC)),
        ("stat", Sqe { off: &raw mut result as u64, len: libc::STATX_BASIC_STATS, ..path(opcode::STATX, CLOSED) }),
        ("unlink", path(opcode::UNLINKAT, c"made")),
        ("mkdir", Sqe { len: 0o700, ..path(opcode::MKDIRAT, c"made") }),
        ("rmdir", path(opcode::UNLINKAT, c"made").op_flags(libc::AT_REMOVEDIR as u32)),
        ("symlink", Sqe { off: c"made".as_ptr() as u64, ..path(opcode::SYMLINKAT, c"nowhere") }),
        ("rename", two(opcode::RENAMEAT, c"made", c"renamed")),
        ("unlink", path(opcode::UNLINKAT, c"renamed")),
        ("link", two(opcode::LINKAT, SECRET, c"linked")),
        ("unlink", path(opcode::UNLINKAT, c"linked")),
    ];
    for (what, sqe) in asked {
        let entry = ring.one(sqe);
        t.say(format_args!("{what}: {}", describe(&entry)));
        if sqe.opcode == opcode::OPENAT {
            shut(entry.res);
        }
    }
}

/// Runs `work` in a forked child, because it may give up the process's rights. Prints the child's
/// exit status. If the user is not root, prints only that the case needs root.
pub(super) fn alone(t: &mut Transcript, work: impl FnOnce(&mut Transcript)) {
    // SAFETY: the call only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        t.say("needs a superuser");
        return;
    }
    let ending = process::forked(|| {
        // SAFETY: the call only changes this process's umask.
        unsafe { libc::umask(0o022) };
        work(t);
        0
    });
    t.say(ending);
}

fn call(t: &mut Transcript, what: &str, answer: i64) {
    let answer = if answer < 0 { -i64::from(crate::syscalls::errno()) } else { answer };
    t.say(format_args!("{what}: {}", crate::names::result(answer as i32)));
}

/// Changes the file system user of the calling thread alone, by setfsuid(2).
pub(super) fn set_file_system_user(user: u32) {
    // SAFETY: the call touches no memory.
    unsafe { libc::syscall(libc::SYS_setfsuid, user) };
}

fn drop_capabilities(t: &mut Transcript) {
    // The header of capset(2): version 3, and 0 for the calling thread. All capability sets are
    // empty.
    let header = [0x2008_0522u32, 0];
    let sets = [0u32; 6];
    // SAFETY: both structures have the layout of capset(2).
    let answer = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) };
    call(t, "capset", answer);
}

fn capabilities(t: &mut Transcript) {
    let place = Place::new();
    alone(t, |t| {
        let mut ring = Ring::new(8);
        opens(t, &mut ring, "before", place.fd(), LOCKED);
        drop_capabilities(t);
        opens(t, &mut ring, "after", place.fd(), LOCKED);
        opens(t, &mut Ring::new(8), "by a new ring", place.fd(), LOCKED);
    });
}
case!(capabilities => "
    before: done
    before, forced async: done
    capset: 0
    after: -EACCES
    after, forced async: -EACCES
    by a new ring: -EACCES
    by a new ring, forced async: -EACCES
    exit 0
");

/// libc's setresuid(2) changes the user of all threads of the process. This includes the requests
/// of a thread that has used a ring before.
fn user_of_the_process(t: &mut Transcript) {
    let place = Place::new();
    alone(t, |t| {
        let mut ring = Ring::new(8);
        tries(t, &mut ring, &place);
        let (go, wait) = std::sync::mpsc::channel();
        let (done, answered) = std::sync::mpsc::channel();
        let fd = place.fd();
        let other = std::thread::spawn(move || {
            let mut ring = Ring::new(8);
            done.send(describe(&ring.one(open(fd, SECRET, libc::O_RDONLY).forced_async()))).expect("a listener");
            let () = wait.recv().expect("a word");
            done.send(describe(&ring.one(open(fd, SECRET, libc::O_RDONLY).forced_async()))).expect("a listener");
        });
        t.say(format_args!("another thread: {}", answered.recv().expect("an answer")));
        // SAFETY: the call touches no memory.
        call(t, "setresuid", i64::from(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }));
        go.send(()).expect("a listener");
        t.say(format_args!("another thread: {}", answered.recv().expect("an answer")));
        other.join().expect("no panic");
        tries(t, &mut ring, &place);
        opens(t, &mut Ring::new(8), "by a new ring", place.fd(), SECRET);
    });
}
case!(user_of_the_process => include_str!("rights/user_of_the_process.txt"));

/// The raw system call setresuid(2) changes the user of the calling thread only, which here is the
/// process's only thread.
fn user_of_the_only_thread(t: &mut Transcript) {
    let place = Place::new();
    alone(t, |t| {
        let mut ring = Ring::new(8);
        tries(t, &mut ring, &place);
        // SAFETY: the call touches no memory.
        call(t, "setresuid", unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) });
        tries(t, &mut ring, &place);
    });
}
case!(user_of_the_only_thread => include_str!("rights/user_of_the_only_thread.txt"));

/// A thread changes its file system user back and forth, as file servers do for their clients. Each
/// request has the user that the thread had at the submission.
fn file_system_user(t: &mut Transcript) {
    let place = Place::new();
    alone(t, |t| {
        let mut ring = Ring::new(8);
        for user in [0, NOBODY, 0, NOBODY, 0] {
            set_file_system_user(user);
            opens(t, &mut ring, &format!("user {user}"), place.fd(), SECRET);
        }
    });
}
case!(file_system_user => "
    user 0: done
    user 0, forced async: done
    user 65534: -EACCES
    user 65534, forced async: -EACCES
    user 0: done
    user 0, forced async: done
    user 65534: -EACCES
    user 65534, forced async: -EACCES
    user 0: done
    user 0, forced async: done
    exit 0
");

/// Restricts this thread by a Landlock ruleset that forbids all file accesses. Prints the result.
fn restrict(t: &mut Transcript) {
    call(t, "restrict", restrict_by_landlock());
}

/// Restricts this thread by a Landlock ruleset that forbids all file accesses. Returns the result
/// of landlock_restrict_self(2).
pub(super) fn restrict_by_landlock() -> i64 {
    // The one word of the first version of struct landlock_ruleset_attr: the set of file accesses
    // that the ruleset forbids. Here it contains all accesses.
    let handled = 0x1fffu64;
    // SAFETY: the kernel only reads the ruleset. The arguments are those of
    // landlock_create_ruleset(2) and landlock_restrict_self(2).
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let rules = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, 8, 0);
        libc::syscall(libc::SYS_landlock_restrict_self, rules, 0)
    }
}

fn landlock(t: &mut Transcript) {
    let place = Place::new();
    alone(t, |t| {
        let mut ring = Ring::new(8);
        tries(t, &mut ring, &place);
        restrict(t);
        tries(t, &mut ring, &place);
    });
}
case!(landlock => include_str!("rights/landlock.txt"));

/// Two threads submit to one ring, and one of them has given up its rights. Each request has the
/// rights of the thread that has submitted it.
fn thread_of_its_own(t: &mut Transcript) {
    let place = Place::new();
    alone(t, |t| {
        let mut ring = Ring::new(8);
        opens(t, &mut ring, "before", place.fd(), SECRET);
        let (first, second) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        let shared = std::sync::Mutex::new((t, ring));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set_file_system_user(NOBODY);
                for _ in 0..2 {
                    let (t, ring) = &mut *shared.lock().expect("no panic");
                    opens(t, ring, "restricted", place.fd(), SECRET);
                }
                first.wait();
                second.wait();
                let (t, ring) = &mut *shared.lock().expect("no panic");
                opens(t, ring, "restricted", place.fd(), SECRET);
            });
            first.wait();
            {
                let (t, ring) = &mut *shared.lock().expect("no panic");
                opens(t, ring, "free", place.fd(), SECRET);
            }
            second.wait();
        });
    });
}
case!(thread_of_its_own => "
    before: done
    before, forced async: done
    restricted: -EACCES
    restricted, forced async: -EACCES
    restricted: -EACCES
    restricted, forced async: -EACCES
    free: done
    free, forced async: done
    restricted: -EACCES
    restricted, forced async: -EACCES
    exit 0
");

/// A new thread inherits the rights of the thread that creates it.
fn thread_inherits(t: &mut Transcript) {
    let place = Place::new();
    alone(t, |t| {
        let mut ring = Ring::new(8);
        opens(t, &mut ring, "before", place.fd(), SECRET);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set_file_system_user(NOBODY);
                std::thread::scope(|scope| {
                    scope.spawn(|| opens(t, &mut ring, "its thread", place.fd(), SECRET));
                });
            });
        });
        opens(t, &mut ring, "after", place.fd(), SECRET);
    });
}
case!(thread_inherits => "
    before: done
    before, forced async: done
    its thread: -EACCES
    its thread, forced async: -EACCES
    after: done
    after, forced async: done
    exit 0
");

/// A thread submits a request behind a timeout and then gives up its rights. When the linked
/// request starts, it has the thread's rights at that moment, not those at the submission.
fn behind_a_timeout(t: &mut Transcript) {
    let place = Place::new();
    alone(t, |t| {
        let time = milliseconds(20);
        for enters in [true, false] {
            let mut ring = Ring::new(8);
            ring.push(timeout(&time, 0, 0, 1).flagged(sqe_flags::IO_HARDLINK));
            ring.push(open(place.fd(), SECRET, libc::O_RDONLY).with(|sqe| sqe.user_data = 2));
            ring.submit();
            set_file_system_user(NOBODY);
            let seen = if enters { ring.wait(2) } else { seen_in_memory(&mut ring, 2) };
            let last = seen.iter().find(|entry| entry.user_data == 2);
            t.say(format_args!("enters {enters}: {}", last.map_or("nothing".into(), describe)));
            set_file_system_user(0);
        }
    });
}
case!(behind_a_timeout => "
    enters true: -EACCES
    enters false: -EACCES
    exit 0
");

pub(super) fn seen_in_memory(ring: &mut Ring, count: u32) -> Vec<Entry> {
    ring.wait_in_memory(count);
    ring.reap()
}

/// A thread without rights submits a linked request. When the request starts, another thread with
/// more rights may be in io_uring_enter(2). The request still has the rights of its submitting
/// thread.
fn behind_a_timeout_of_a_thread(t: &mut Transcript) {
    let place = Place::new();
    alone(t, |t| {
        for enters in [true, false] {
            let mut ring = Ring::new(8);
            let time = milliseconds(20);
            std::thread::scope(|scope| {
                let (over, wait) = std::sync::mpsc::channel::<()>();
                let (submitted, go) = std::sync::mpsc::channel();
                let ring = &mut ring;
                let place = &place;
                let time = &time;
                scope.spawn(move || {
                    set_file_system_user(NOBODY);
                    ring.push(timeout(time, 0, 0, 1).flagged(sqe_flags::IO_HARDLINK));
                    ring.push(open(place.fd(), SECRET, libc::O_RDONLY).with(|sqe| sqe.user_data = 2));
                    ring.submit();
                    submitted.send(ring).expect("a listener");
                    let _ = wait.recv();
                });
                let ring = go.recv().expect("a ring");
                let seen = if enters { ring.wait(2) } else { seen_in_memory(ring, 2) };
                let last = seen.iter().find(|entry| entry.user_data == 2);
                t.say(format_args!("enters {enters}: {}", last.map_or("nothing".into(), describe)));
                drop(over);
            });
        }
    });
}
case!(behind_a_timeout_of_a_thread => "
    enters true: -EACCES
    enters false: -EACCES
    exit 0
");

/// The SQ thread has the credentials of the thread that made the ring, as they were at
/// io_uring_setup(2).
fn sq_thread(t: &mut Transcript) {
    let place = Place::new();
    let polled = || {
        let mut ring = Ring::flags(8, u::IORING_SETUP_SQPOLL);
        ring.enter_flags = u::IORING_ENTER_SQ_WAKEUP;
        ring
    };
    alone(t, |t| {
        let mut ring = polled();
        opens(t, &mut ring, "before", place.fd(), SECRET);
        set_file_system_user(NOBODY);
        opens(t, &mut ring, "after", place.fd(), SECRET);
        opens(t, &mut polled(), "by a new ring", place.fd(), SECRET);
        let number = ring.fd;
        let attached = Ring::with(8, |params| {
            params.flags = u::IORING_SETUP_SQPOLL | u::IORING_SETUP_ATTACH_WQ;
            params.wq_fd = number as u32;
        });
        let Ok(mut attached) = attached else { return t.say("no attached ring") };
        attached.enter_flags = u::IORING_ENTER_SQ_WAKEUP;
        opens(t, &mut attached, "by an attached ring", place.fd(), SECRET);
    });
}
case!(sq_thread => "
    before: done
    before, forced async: done
    after: done
    after, forced async: done
    by a new ring: -EACCES
    by a new ring, forced async: -EACCES
    by an attached ring: -EACCES
    by an attached ring, forced async: -EACCES
    exit 0
");

/// Prints the user that the listening side of a unix socket sees (SO_PEERCRED) after a CONNECT
/// request.
fn connection(t: &mut Transcript) {
    let place = Place::new();
    let path = place.scratch.path_of("socket");
    alone(t, |t| {
        let listener = std::os::unix::net::UnixListener::bind(place.scratch.path.join("socket")).expect("a socket");
        let anybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(place.scratch.path.join("socket"), anybody).expect("a mode of our own file");
        let mut ring = Ring::new(8);
        for user in [0, NOBODY] {
            // SAFETY: the call touches no memory.
            unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
            for flags in [0, sqe_flags::ASYNC] {
                let socket = files::socket(libc::AF_UNIX, libc::SOCK_STREAM);
                let mut address: libc::sockaddr_un = crate::memory::zeroed();
                address.sun_family = libc::AF_UNIX as u16;
                for (to, from) in address.sun_path.iter_mut().zip(path.as_bytes()) {
                    *to = *from as libc::c_char;
                }
                let sqe = Sqe {
                    addr: &raw const address as u64,
                    off: size_of::<libc::sockaddr_un>() as u64,
                    ..sqe(opcode::CONNECT, socket.as_raw_fd(), 0)
                };
                let entry = ring.one(sqe.flagged(flags));
                if entry.res != 0 {
                    t.say(format_args!("user {user}: {}", describe(&entry)));
                    continue;
                }
                let (accepted, _) = listener.accept().expect("a connection");
                t.say(format_args!("user {user}: {}, seen as {}", describe(&entry), peer(accepted.as_raw_fd())));
            }
        }
    });
}
case!(connection => "
    user 0: done, seen as 0
    user 0: done, seen as 0
    user 65534: done, seen as 65534
    user 65534: done, seen as 65534
    exit 0
");

fn peer(socket: i32) -> u32 {
    let mut seen: libc::ucred = crate::memory::zeroed();
    let mut length = size_of::<libc::ucred>() as u32;
    // SAFETY: both are variables of this function.
    unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut seen).cast(), &mut length) };
    seen.uid
}
