//! Registered personalities: credentials kept for later requests.

use std::os::fd::AsRawFd;

use super::{reg, rights};
use crate::case::{Case, case};
use crate::files;
use crate::memory::BAD;
use crate::ring::Ring;
use crate::sqe::{Change, nop, read, sqe};
use crate::transcript::Transcript;
use usring_uapi::opcode;

pub const CASES: &[Case] = &[
    case("personality.register", register),
    case("personality.use", use_it),
    case("personality.wrong", wrong),
    case("personality.gone", gone),
    case("personality.rights", rights),
    case("personality.of_another_thread", of_another_thread),
    case("personality.install", install),
];

const NONE: *const u8 = std::ptr::null();

/// Ids start at 1; 0 in a request means none.
fn register(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    t.result("unregister 1", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
    // An unregistered id is not reused at once.
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
}

fn use_it(t: &mut Transcript) {
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

fn wrong(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("argument", ring.register(reg::PERSONALITY, BAD as *const u8, 0));
    t.result("count 1", ring.register(reg::PERSONALITY, NONE, 1));
    t.result("unregister none", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
    t.result("unregister 0", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 0));
    t.result("argument", ring.register(reg::UNREGISTER_PERSONALITY, BAD as *const u8, 1));
}

fn gone(t: &mut Transcript) {
    let mut ring = Ring::new(4);
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    t.result("unregister", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
    t.entry(&ring.one(nop(1).with(|sqe| sqe.personality = 1)));
    t.result("again", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
}

/// A request with a personality has the rights that the registering thread had at registration.
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

/// A personality also outlives the thread that registered it.
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

/// A request with another personality may not install a descriptor.
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
