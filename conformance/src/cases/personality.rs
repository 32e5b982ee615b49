//! Registered personalities: credentials kept for later requests.

use std::os::fd::AsRawFd;

use super::reg;
use crate::case::{Case, case};
use crate::files;
use crate::memory::BAD;
use crate::ring::Ring;
use crate::sqe::{Change, nop, read};
use crate::transcript::Transcript;

pub const CASES: &[Case] = &[
    case("personality.register", register),
    case("personality.use", use_it),
    case("personality.wrong", wrong),
    case("personality.gone", gone),
];

const NONE: *const u8 = std::ptr::null();

/// Numbers start with 1; 0 in a request means none.
fn register(t: &mut Transcript) {
    let ring = Ring::new(4);
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    t.result("register", ring.register(reg::PERSONALITY, NONE, 0));
    t.result("unregister 1", ring.register(reg::UNREGISTER_PERSONALITY, NONE, 1));
    // A number given up is not given out again at once.
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
