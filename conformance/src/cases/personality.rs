//! Registered personalities: credentials that later requests can use.

use std::os::fd::AsRawFd;

use super::{reg, rights};
use crate::files;
use crate::memory::BAD;
use crate::ring::Ring;
use crate::sqe::{Change, nop, read, sqe};
use crate::transcript::Transcript;
use usring_uapi::opcode;

const NONE: *const u8 = std::ptr::null();

/// The ids of personalities begin at 1. In a request, 0 means that the request has no personality.
fn register(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    t.result("unregister 1", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
    // The next personality does not get the id of the one that was just unregistered.
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
}
case!(register => "
    register = 1
    register = 2
    unregister 1 = 0
    register = 3
");

fn use_personality(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123");
    let mut buffer = [0u8; 4];
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    t.entry(&ring.one(nop(1).with(|sqe| sqe.personality = 1)));
    let as_somebody = |sqe: usring_uapi::Sqe| sqe.with(|sqe| sqe.personality = 1);
    t.entry(&ring.one(as_somebody(read(file.as_raw_fd(), &mut buffer, 0, 2))));
    t.entry(&ring.one(as_somebody(read(file.as_raw_fd(), &mut buffer, 0, 3)).forced_async()));
    t.entry(&ring.one(nop(4).with(|sqe| sqe.personality = 2)));
}
case!(use_personality => "
    register = 1
    cqe 1: 0
    cqe 2: 4
    cqe 3: 4
    cqe 4: -EINVAL
");

fn wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("argument", ring.register(reg::PERSONALITY, BAD as *const u8, 0));
    t.result("count 1", ring.register(reg::PERSONALITY, NONE, 1));
    t.result("unregister none", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
    t.result("unregister 0", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 0));
    t.result("argument", ring.register(reg::UNREGISTER_PERSONALITY, BAD as *const u8, 1));
}
case!(wrong => "
    argument = -EINVAL
    count 1 = -EINVAL
    unregister none = -EINVAL
    unregister 0 = -EINVAL
    argument = -EINVAL
");

fn unregistered_number(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    t.result("unregister", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
    t.entry(&ring.one(nop(1).with(|sqe| sqe.personality = 1)));
    t.result("again", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
}
case!(unregistered_number => "
    register = 1
    unregister = 0
    cqe 1: -EINVAL
    again = -EINVAL
");

/// A request with a personality runs with the credentials that the registering thread had when it
/// registered the personality.
fn rights(t: &mut Transcript) {
    let place = rights::Place::new();
    rights::alone(t, |t| {
        let mut ring = Ring::new(8);
        t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
        rights::set_file_system_user(rights::NOBODY);
        t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
        rights::opens_as(t, &mut ring, "own", &place, 0);
        rights::opens_as(t, &mut ring, "first", &place, 1);
        rights::opens_as(t, &mut ring, "second", &place, 2);
        rights::opens_as(t, &mut ring, "third", &place, 3);
        rights::set_file_system_user(0);
        rights::opens_as(t, &mut ring, "own", &place, 0);
        rights::opens_as(t, &mut ring, "second", &place, 2);
        t.result("unregister", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
        rights::opens_as(t, &mut ring, "first", &place, 1);
        rights::opens_as(t, &mut ring, "second", &place, 2);
    });
}
case!(rights => "
    register = 1
    register = 2
    own: -EACCES
    own, forced async: -EACCES
    first: done
    first, forced async: done
    second: -EACCES
    second, forced async: -EACCES
    third: -EINVAL
    third, forced async: -EINVAL
    own: done
    own, forced async: done
    second: -EACCES
    second, forced async: -EACCES
    unregister = 0
    first: -EINVAL
    first, forced async: -EINVAL
    second: -EACCES
    second, forced async: -EACCES
    exit 0
");

/// A personality can still be used after the thread that registered it has ended.
fn of_another_thread(t: &mut Transcript) {
    let place = rights::Place::new();
    rights::alone(t, |t| {
        let mut ring = Ring::new(8);
        std::thread::scope(|scope| {
            let (t, ring) = (&mut *t, &mut ring);
            scope.spawn(move || {
                rights::set_file_system_user(rights::NOBODY);
                t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
            });
        });
        rights::opens_as(t, &mut ring, "own", &place, 0);
        rights::opens_as(t, &mut ring, "of the thread", &place, 1);
    });
}
case!(of_another_thread => "
    register = 1
    own: done
    own, forced async: done
    of the thread: -EACCES
    of the thread, forced async: -EACCES
    exit 0
");

/// FIXED_FD_INSTALL refuses a personality with -EPERM.
fn install(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    let file = files::memory_file(b"0123");
    let number = file.as_raw_fd();
    t.result("files", ring.register(reg::FILES, &raw const number, 1));
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    let install = sqe(opcode::FIXED_FD_INSTALL, 0, 1).fixed();
    t.entry(&ring.one(install.with(|sqe| sqe.personality = 1)));
    t.entry(&ring.one(install.with(|sqe| sqe.personality = 2)));
}
case!(install => "
    files = 0
    register = 1
    cqe 1: -EPERM
    cqe 1: -EINVAL
");
