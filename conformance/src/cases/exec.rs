//! Rings and execve(2): rings that execve(2) closes or that the executed program inherits, requests
//! in flight, and rings that the executed program makes. The cases execute this program again, with
//! the arguments `child NAME`.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::process::Command;

use crate::files;
use crate::process;
use crate::ring::Ring;
use crate::sqe::{nop, poll, read, timeout};
use crate::syscalls;
use crate::time::LONG;
use crate::transcript::Transcript;

fn program() -> CString {
    let path = std::env::current_exe().expect("this program has a path");
    CString::new(path.into_os_string().into_encoded_bytes()).expect("no zero byte in a path")
}

/// Replaces this process by `conformance child NAME ARGUMENT`. Returns only if execve(2) fails.
pub(super) fn become_child(name: &str, argument: &str) -> i32 {
    let program = program();
    let words: Vec<CString> = ["conformance", "child", name, argument]
        .iter()
        .map(|word| CString::new(*word).expect("no zero byte"))
        .collect();
    let mut pointers: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: the path is a C string. The arguments are C strings in an array that ends with null.
    unsafe { libc::execv(program.as_ptr(), pointers.as_ptr()) };
    90
}

/// Executes the task `name` of a case, in the executed program. Returns the program's exit status.
/// Returns `None` if the name is unknown, an argument is missing, or no ring can be made.
pub fn child(name: &str, arguments: &[&str]) -> Option<u8> {
    let number = || arguments.first().and_then(|word| word.parse::<i32>().ok()).unwrap_or(-1);
    match name {
        "nop" => {
            let mut ring = Ring::with(4, |_| ()).ok()?;
            Some(if ring.one(nop(1)).res == 0 { 0 } else { 1 })
        }
        "enter" => {
            let answer = syscalls::enter(number(), 0, 0, 0, std::ptr::null(), 0);
            Some(if answer < 0 { (-answer) as u8 } else { 200 })
        }
        // Writes a byte to announce that the executed program runs, and then waits until the other
        // end of a pipe is closed.
        "linger" => {
            let (begun, end) = arguments.first()?.split_once(' ')?;
            let (begun, end) = (begun.parse().ok()?, end.parse().ok()?);
            let mut byte = 0u8;
            // SAFETY: the buffer has one byte.
            unsafe {
                libc::write(begun, (&raw const byte).cast(), 1);
                libc::read(end, (&raw mut byte).cast(), 1);
            }
            Some(0)
        }
        // Maps an inherited ring, and submits the SQE that the program before the execve(2) left in
        // the SQ.
        "map" => {
            let mapped = syscalls::map(number(), 4096, 0) > 0;
            let entered = syscalls::enter(number(), 1, 0, 0, std::ptr::null(), 0) == 1;
            Some(u8::from(!mapped) + 2 * u8::from(!entered))
        }
        "open" => Some(u8::from(files::is_open(number()))),
        _ => None,
    }
}

fn child_has_rings(t: &mut Transcript) {
    t.say(format_args!("child: {}", process::forked(|| become_child("nop", ""))));
}
case!(child_has_rings => "child: exit 0");

fn ring_is_closed(t: &mut Transcript) {
    let ring = Ring::new(4);
    let number = ring.fd.to_string();
    let ending = process::forked(|| become_child("enter", &number));
    t.say(format_args!("enter of the parent's number is -EBADF: {}", ending == "exit 9"));
    let ending = process::forked(|| become_child("open", &number));
    t.say(format_args!("number open: {ending}"));
    t.result("parent", ring.enter(0, 0, 0));
}
case!(ring_is_closed => "
    enter of the parent's number is -EBADF: true
    number open: exit 0
    parent = 0
");

fn with_requests_in_flight(t: &mut Transcript) {
    let (reader, writer) = files::pipe();
    let ending = process::forked(|| {
        let mut ring = Ring::new(8);
        let mut byte = [0u8; 1];
        ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
        ring.push(poll(reader.as_raw_fd(), libc::POLLIN, 2));
        ring.push(timeout(&LONG, 0, 0, 3));
        ring.submit();
        become_child("nop", "")
    });
    t.say(format_args!("child: {ending}"));
    files::put(&writer, b"x");
    t.say(format_args!("bytes left {}", files::take(&reader, 4).map_or(0, |bytes| bytes.len())));
}
case!(with_requests_in_flight => "
    child: exit 0
    bytes left 1
");

fn with_worker_in_flight(t: &mut Transcript) {
    let fifo = files::Fifo::new();
    let ending = process::forked(|| {
        let mut ring = Ring::new(8);
        ring.push(fifo.open(1));
        ring.submit();
        crate::time::long_enough_to_notice();
        become_child("nop", "")
    });
    t.say(format_args!("child: {ending}"));
    t.say(format_args!("deserted {}", fifo.has_no_reader()));
}
case!(with_worker_in_flight => "
    child: exit 0
    deserted true
");

/// A child that the standard library's `Command` starts can use rings. The library starts it by
/// posix_spawn(3), if possible.
fn from_spawn(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let path = std::env::current_exe().expect("this program has a path");
    let status = Command::new(path).args(["child", "nop"]).status();
    t.say(format_args!("child: {:?}", status.ok().and_then(|status| status.code())));
    t.say(format_args!("parent's ring works {}", ring.one(nop(1)).res == 0));
}
case!(from_spawn as from_vfork_like_spawn => "
    child: Some(0)
    parent's ring works true
");

fn through_shell(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let path = program().into_string().unwrap_or_default();
    let line = format!("'{path}' child nop && '{path}' child nop");
    let status = Command::new("/bin/sh").args(["-c", &line]).status();
    t.say(format_args!("child: {:?}", status.ok().and_then(|status| status.code())));
    t.say(format_args!("parent's ring works {}", ring.one(nop(1)).res == 0));
}
case!(through_shell => "
    child: Some(0)
    parent's ring works true
");

fn script(t: &mut Transcript) {
    use std::os::unix::fs::PermissionsExt;
    let scratch = files::Scratch::new();
    let path = scratch.path.join("script");
    let program = program().into_string().unwrap_or_default();
    std::fs::write(&path, format!("#!/bin/sh\nexec '{program}' child nop\n")).expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("a mode");
    let status = Command::new(&path).status();
    t.say(format_args!("child: {:?}", status.ok().and_then(|status| status.code())));
}
case!(script => "child: Some(0)");

/// A child can use rings even if it is executed with an empty environment.
fn empty_environment(t: &mut Transcript) {
    let path = std::env::current_exe().expect("this program has a path");
    let status = Command::new(path).args(["child", "nop"]).env_clear().status();
    t.say(format_args!("child: {:?}", status.ok().and_then(|status| status.code())));
}
case!(empty_environment => "child: Some(0)");

/// An execve(2) that fails leaves the ring and its requests unchanged.
fn failing(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let (reader, writer) = files::pipe();
    let mut byte = [0u8; 1];
    ring.push(read(reader.as_raw_fd(), &mut byte, 0, 1));
    ring.submit();
    let arguments = [c"x".as_ptr(), std::ptr::null()];
    // SAFETY: the paths are C strings, and the argument arrays end with a null pointer.
    unsafe {
        t.result("missing", syscalls::answer(libc::execv(c"/no/such/file".as_ptr(), arguments.as_ptr())));
        t.result("directory", syscalls::answer(libc::execv(c"/".as_ptr(), arguments.as_ptr())));
        t.result("not a program", syscalls::answer(libc::execv(c"/dev/null".as_ptr(), arguments.as_ptr())));
    }
    files::put(&writer, b"x");
    t.in_order(&ring.wait(1));
    t.entry(&ring.one(nop(2)));
}
case!(failing => "
    missing = -ENOENT
    directory = -EACCES
    not a program = -EACCES
    cqe 1: 1
    cqe 2: 0
");

fn with_sq_thread(t: &mut Transcript) {
    let ending = process::forked(|| {
        let mut ring = Ring::with(8, |params| {
            params.flags = usring_uapi::io_uring::IORING_SETUP_SQPOLL;
            params.sq_thread_idle = 2000;
        })
        .expect("a ring with a thread");
        ring.push(nop(1));
        ring.forget_pending();
        ring.enter(1, 0, usring_uapi::io_uring::IORING_ENTER_SQ_WAKEUP);
        ring.wait_in_memory(1);
        become_child("nop", "")
    });
    t.say(format_args!("child: {ending}"));
}
case!(with_sq_thread => "child: exit 0");

/// fexecve(3) executes a descriptor, not a path.
fn by_descriptor(t: &mut Transcript) {
    let ending = process::forked(|| {
        let program = program();
        let arguments = [c"conformance".as_ptr(), c"child".as_ptr(), c"nop".as_ptr(), std::ptr::null()];
        let environment = [std::ptr::null::<libc::c_char>()];
        // SAFETY: the path is a C string, and the arrays end with null.
        unsafe {
            let fd = libc::open(program.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            libc::fexecve(fd, arguments.as_ptr(), environment.as_ptr());
        }
        91
    });
    t.say(format_args!("child: {ending}"));
}
case!(by_descriptor => "child: exit 0");
