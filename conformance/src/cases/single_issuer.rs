//! SINGLE_ISSUER: only one thread may submit to a ring and register with it.

use usring_uapi::io_uring as u;

use super::reg;
use crate::ring::{self, Ring};
use crate::sqe::nop;
use crate::syscalls;
use crate::transcript::Transcript;

const SINGLE: u32 = u::IORING_SETUP_SINGLE_ISSUER;

/// Runs `call` in a new thread and returns its result.
fn elsewhere(call: impl FnOnce() -> i32 + Send + 'static) -> i32 {
    std::thread::spawn(call).join().unwrap_or(i32::MIN)
}

fn enter(fd: i32, submit: u32, flags: u32) -> i32 {
    syscalls::enter(fd, submit, 0, flags, std::ptr::null(), 0)
}

fn probe(fd: i32) -> i32 {
    let mut answer = [0u8; 16 + 8 * 4];
    syscalls::register(fd, reg::PROBE, answer.as_mut_ptr().cast(), 4)
}

/// A ring with SINGLE_ISSUER belongs to the thread that made the ring. According to the manual
/// page, it belongs to the first thread that submits.
fn creator_owns(t: &mut Transcript) {
    let mut ring = Ring::flags(8, SINGLE);
    let fd = ring.fd;
    ring.push(nop(1));
    ring.forget_pending();
    t.result("first enter in another thread", elsewhere(move || enter(fd, 1, 0)));
    t.result("enter here", enter(fd, 1, 0));
    t.in_order(&ring.reap());
}
case!(creator_owns => "
    first enter in another thread = -EEXIST
    enter here = 1
    cqe 1: 0
");

fn others_are_refused(t: &mut Transcript) {
    let ring = Ring::flags(8, SINGLE);
    let fd = ring.fd;
    t.result("enter(0, 0, 0)", elsewhere(move || enter(fd, 0, 0)));
    t.result("get events", elsewhere(move || enter(fd, 0, u::IORING_ENTER_GETEVENTS)));
    t.result("enter(1)", elsewhere(move || enter(fd, 1, 0)));
    t.result("register", elsewhere(move || probe(fd)));
    t.result("register here", probe(fd));
}
case!(others_are_refused => "
    enter(0, 0, 0) = 0
    get events = 0
    enter(1) = -EEXIST
    register = -EEXIST
    register here = 0
");

fn enable(fd: i32) -> i32 {
    syscalls::register(fd, reg::ENABLE_RINGS, std::ptr::null(), 0)
}

/// A ring that was made with R_DISABLED and SINGLE_ISSUER belongs to the thread that enables it.
fn enabler_owns(t: &mut Transcript) {
    let mut ring = Ring::flags(8, SINGLE | u::IORING_SETUP_R_DISABLED);
    let fd = ring.fd;
    ring.push(nop(1));
    ring.forget_pending();
    t.result("register in another thread", elsewhere(move || probe(fd)));
    let there = move || {
        let enabled = enable(fd);
        if enabled < 0 { enabled } else { enter(fd, 1, 0) }
    };
    t.result("enable and enter in another thread", elsewhere(there));
    t.in_order(&ring.reap());
    t.result("enter here", enter(fd, 1, 0));
    t.result("register here", probe(fd));
}
case!(enabler_owns => "
    register in another thread = 0
    enable and enter in another thread = 1
    cqe 1: 0
    enter here = -EEXIST
    register here = -EEXIST
");

fn deferred_others_wait(t: &mut Transcript) {
    let ring = Ring::flags(8, ring::DEFER);
    let fd = ring.fd;
    t.result("get events", elsewhere(move || enter(fd, 0, u::IORING_ENTER_GETEVENTS)));
    t.result("enter(1)", elsewhere(move || enter(fd, 1, 0)));
    t.result("here", enter(fd, 0, u::IORING_ENTER_GETEVENTS));
}
case!(deferred_others_wait => "
    get events = -EEXIST
    enter(1) = -EEXIST
    here = 0
");

fn plain_ring_has_no_owner(t: &mut Transcript) {
    let mut ring = Ring::new(8);
    let fd = ring.fd;
    for user_data in 1..=3 {
        ring.push(nop(user_data));
        ring.forget_pending();
        t.result("enter in another thread", elsewhere(move || enter(fd, 1, 0)));
    }
    t.result("register in another thread", elsewhere(move || probe(fd)));
    t.in_order(&ring.wait(3));
}
case!(plain_ring_has_no_owner => "
    enter in another thread = 1
    enter in another thread = 1
    enter in another thread = 1
    register in another thread = 0
    cqe 1: 0
    cqe 2: 0
    cqe 3: 0
");

fn child_process(t: &mut Transcript) {
    let ring = Ring::flags(8, SINGLE);
    let fd = ring.fd;
    // The child's call must fail with some errno. It must neither succeed nor wait for ever.
    let ending = crate::process::forked(move || i32::from(enter(fd, 1, 0) < 0));
    t.say(format_args!("child refused: {ending}"));
    t.result("parent", enter(fd, 0, 0));
}
case!(child_process => "
    child refused: exit 1
    parent = 0
");

fn others_may_close(t: &mut Transcript) {
    let mut ring = Ring::flags(8, ring::DEFER);
    let fd = ring.fd;
    t.result("close in another thread", elsewhere(move || syscalls::close(fd)));
    t.result("enter", enter(fd, 0, 0));
    ring.abandon();
}
case!(others_may_close => "
    close in another thread = 0
    enter = -EBADF
");
