//! C programs that use Debian's liburing, which inlines the system call instructions. The programs
//! are linked to its shared library, and in another test to its static library.

use workloads::harness::skipped::skip;
use workloads::harness::{LIBURING, Stage, World, require};

/// The programs, each with its number of checks and the least number of requests that it completes.
const PROGRAMS: [(&str, u32, u64); 5] = [
    ("liburing_files.c", 12, 130),
    ("liburing_waiting.c", 13, 25),
    ("liburing_buffers.c", 3, 25),
    ("liburing_sharing.c", 13, 20_000),
    ("record_locks.c", 5, 16),
];

pub fn shared_library(world: World) {
    all(world, &["-luring"]);
}

pub fn static_library(world: World) {
    all(world, &["-l:liburing.a"]);
}

fn all(world: World, library: &[&str]) {
    require(&LIBURING);
    let stage = Stage::new();
    for (source, checks, requests) in PROGRAMS {
        let program = stage.compile(source, library);
        let finished = stage.program(world, program).finish().succeeded();
        assert_eq!(finished.stdout, format!("{checks} checks hold\n"), "{}", finished.report());
        finished.served(&[], requests);
    }
}

/// Runs `liburing_direct.c`. It fails if a thread that submits has moved the bytes of a direct
/// transfer by a read or write call of its own.
pub fn direct_transfers(world: World) {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("liburing_direct.c", &["-luring"]);
    let finished = stage.program(world, program).finish().succeeded();
    if finished.stdout == "needs the kernel's counts of a thread's calls\n" {
        return skip("the kernel does not count the bytes of a thread's calls");
    }
    assert_eq!(finished.stdout, "5 checks hold\n", "{}", finished.report());
    finished.served(&[], 1000);
}

#[test]
fn no_submitter_makes_direct_transfers_itself() {
    direct_transfers(World::Denied);
    direct_transfers(World::Unpatched);
}

#[test]
fn c_programs_get_correct_results_without_patched_call_sites() {
    shared_library(World::Unpatched);
}

#[test]
fn c_programs_on_the_shared_liburing_get_correct_results() {
    shared_library(World::Denied);
}

#[test]
fn c_programs_with_liburing_linked_in_get_correct_results() {
    static_library(World::Denied);
}
