//! Every action on every kind of call: the results that the program gets, and the effects of the
//! calls.

use crate::{run, said, said_with_times, with_rule};

/// Calls by their kind. Each row: kind, name in `faulty.c`, name in a rule.
const CALLS: [(&str, &str, &str); 29] = [
    ("ring", "nop", "ring:nop"),
    ("ring", "read", "ring:read"),
    ("ring", "readv", "ring:readv"),
    ("ring", "write", "ring:write"),
    ("ring", "writev", "ring:writev"),
    ("ring", "fsync", "ring:fsync"),
    ("ring", "openat", "ring:openat"),
    ("ring", "send", "ring:send"),
    ("ring", "recv", "ring:recv"),
    ("ring", "timeout", "ring:timeout"),
    ("ring", "mkdirat", "ring:mkdirat"),
    ("call", "read", "pread64"),
    ("call", "readv", "preadv"),
    ("call", "write", "call:write:path=written"),
    ("call", "writev", "call:writev"),
    ("call", "fsync", "call:fsync"),
    ("call", "openat", "call:openat:path=/dev/null"),
    ("call", "send", "sendto"),
    ("call", "recv", "recvfrom"),
    ("call", "ftruncate", "ftruncate"),
    ("call", "mkdirat", "call:mkdirat"),
    ("aio", "read", "aio:read"),
    ("aio", "write", "aio:write"),
    ("aio", "fsync", "aio:fsync"),
    ("aio", "readv", "aio:readv"),
    ("aio", "writev", "aio:pwritev"),
    ("aio", "fdsync", "aio:fdsync"),
    ("aio", "poll_add", "aio:poll_add"),
    ("ring", "read", "read"),
];

/// Runs the program for each call. `expected` gets the call's name and its result without a fault,
/// and returns the result with the fault.
fn each(count: u32, action: &str, expected: impl Fn(&str, &str) -> String) {
    for (kind, name, rule) in CALLS {
        let usual = match (kind, name) {
            (_, "read" | "readv" | "write" | "writev") => "4096",
            (_, "send") => "16",
            (_, "recv") => "8",
            (_, "timeout") => "ETIME",
            (_, "poll_add") => "1",
            _ => "0",
        };
        let finished = with_rule(&format!("{rule}:{action}"), &format!("{kind} {name} {count}"));
        let said = if action.contains("delay") { said_with_times(&finished) } else { said(&finished) };
        assert_eq!(said, expected(name, usual), "{rule}:{action}");
    }
}

fn writes(name: &str) -> bool {
    matches!(name, "write" | "writev")
}

#[test]
fn an_error_replaces_every_kind_of_call() {
    each(1, "error=EIO", |_, _| "1 EIO".into());
}

#[test]
fn a_value_replaces_every_kind_of_call() {
    each(1, "retval=0", |_, _| "1 0".into());
    assert_eq!(run("ring:nop:res=7", "ring nop 1"), "1 7");
    assert_eq!(run("fsync:retval=7", "call fsync 1"), "1 7");
}

#[test]
fn a_call_with_effect_done_is_made_and_fails_all_the_same() {
    each(
        1,
        "error=ENOSPC:effect=done",
        |name, _| {
            if writes(name) { "1 ENOSPC; size 4096".into() } else { "1 ENOSPC".into() }
        },
    );
    assert_eq!(run("ring:mkdirat:error=EIO:effect=done:when=1", "ring mkdirat 2"), "1 EIO; 2 EEXIST");
    assert_eq!(run("call:mkdirat:error=EIO:effect=done:when=1", "call mkdirat 2"), "1 EIO; 2 EEXIST");
    assert_eq!(run("call:mkdirat:error=EIO:when=1", "call mkdirat 2"), "1 EIO; 2 0", "without it, nothing was made");
}

#[test]
fn a_delay_holds_every_kind_of_call_up() {
    for delay in ["delay=30ms", "delay_enter=30000", "delay_exit=30ms"] {
        each(
            1,
            delay,
            |name, usual| {
                if writes(name) { format!("1 {usual} late; size 4096") } else { format!("1 {usual} late") }
            },
        );
    }
}

#[test]
fn a_delayed_error_comes_late() {
    each(1, "error=EIO:delay=15ms:delay_exit=15ms", |_, _| "1 EIO late".into());
}

#[test]
fn a_signal_arrives_with_every_kind_of_call() {
    each(2, "error=EIO:signal=SIGUSR1:when=2", |name, usual| match name {
        _ if writes(name) => format!("1 {usual}; 2 EIO; signals 1; size 4096"),
        _ => format!("1 {usual}; 2 EIO; signals 1"),
    });
    assert_eq!(run("call:fsync:signal=USR1", "call fsync 2"), "1 0; 2 0; signals 2");
}

const TRANSFERS: [(&str, &str, &str); 16] = [
    ("ring", "read", "ring:read"),
    ("ring", "readv", "ring:readv"),
    ("ring", "write", "ring:write"),
    ("ring", "writev", "ring:writev"),
    ("ring", "send", "ring:send"),
    ("ring", "recv", "ring:recv"),
    ("call", "read", "pread64"),
    ("call", "readv", "preadv"),
    ("call", "write", "call:write:path=written"),
    ("call", "writev", "call:writev"),
    ("call", "send", "sendto"),
    ("call", "recv", "recvfrom"),
    ("aio", "read", "aio:read"),
    ("aio", "write", "aio:write"),
    ("aio", "readv", "aio:readv"),
    ("aio", "writev", "aio:writev"),
];

#[test]
fn a_short_transfer_moves_only_a_part() {
    for (kind, name, rule) in TRANSFERS {
        let said = run(&format!("{rule}:short=7"), &format!("{kind} {name} 1"));
        let size = if writes(name) { "; size 7" } else { "" };
        assert_eq!(said, format!("1 7{size}"), "{rule}");
        let said = run(&format!("{rule}:short=50%"), &format!("{kind} {name} 1"));
        let half = match name {
            "send" => 8,
            "recv" => 4,
            _ => 2048,
        };
        let size = if writes(name) { "; size 2048" } else { "" };
        assert_eq!(said, format!("1 {half}{size}"), "{rule}");
    }
}

#[test]
fn a_part_of_a_write_with_effect_partial_is_there_although_it_fails() {
    for (kind, name, rule) in TRANSFERS {
        let said = run(&format!("{rule}:error=EIO:effect=partial"), &format!("{kind} {name} 1"));
        let size = if writes(name) { "; size 2048" } else { "" };
        assert_eq!(said, format!("1 EIO{size}"), "{rule}");
    }
}
