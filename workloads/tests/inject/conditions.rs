//! Tests of the conditions by which a rule selects calls: counts, chance, files, rings and
//! processes.

use crate::{prepare, run, said};
use std::path::Path;
use workloads::harness::{Stage, World};

#[test]
fn when_names_calls_of_rings_as_it_names_system_calls() {
    for (kind, rule) in [("ring", "ring:read"), ("call", "pread64"), ("aio", "aio:read")] {
        let calls = format!("{kind} read 6");
        let three = "1 4096; 2 4096; 3 EIO";
        assert_eq!(run(&format!("{rule}:error=EIO:when=3"), &calls), format!("{three}; 4 4096; 5 4096; 6 4096"));
        assert_eq!(run(&format!("{rule}:error=EIO:when=3+2"), &calls), format!("{three}; 4 4096; 5 EIO; 6 4096"));
        assert_eq!(run(&format!("{rule}:error=EIO:when=3..4"), &calls), format!("{three}; 4 EIO; 5 4096; 6 4096"));
        assert_eq!(run(&format!("{rule}:error=EIO:when=3+"), &calls), format!("{three}; 4 EIO; 5 EIO; 6 EIO"));
    }
}

#[test]
fn the_same_seed_makes_the_same_random_faults() {
    let with_seed = |seed: &str| {
        let options = ["--inject=ring:nop:error=EIO:p=50%", "--seed", seed];
        said(&prepare(&Stage::new(), &options, "ring nop 40").finish().succeeded())
    };
    assert_eq!(with_seed("5"), with_seed("5"));
    assert_ne!(with_seed("5"), with_seed("6"));
    let faults = with_seed("5").matches("EIO").count();
    assert!((5..35).contains(&faults), "{faults}");
}

#[test]
fn a_file_is_meant_by_its_name_or_its_number() {
    assert_eq!(run("read:error=EIO:path=source", "ring read 1"), "1 EIO");
    assert_eq!(run("read:error=EIO:path=*/sour?e", "ring read 1"), "1 EIO");
    assert_eq!(run("read:error=EIO:path=written", "ring read 1"), "1 4096");
    assert_eq!(run("read:error=EIO:fd=3", "ring read 1"), "1 EIO");
    assert_eq!(run("read:error=EIO:fd=4", "ring read 1"), "1 4096");
    assert_eq!(run("openat:error=EIO:path=/dev/nul?", "ring openat 1"), "1 EIO");
    assert_eq!(run("openat:error=EIO:path=other", "ring openat 1"), "1 0");
    assert_eq!(run("mkdirat:error=EIO:path=folder", "ring mkdirat 1"), "1 EIO");
    assert_eq!(run("mkdirat:error=EIO:path=folder", "call mkdirat 1"), "1 EIO");
    assert_eq!(run("aio:read:error=EIO:path=source", "aio read 1"), "1 EIO");
}

#[test]
fn a_request_is_meant_by_its_user_data_and_its_ring() {
    assert_eq!(run("nop:error=EIO:user_data=102", "ring nop 3"), "1 0; 2 EIO; 3 0");
    assert_eq!(run("nop:error=EIO:user_data=0x66", "ring nop 3"), "1 0; 2 EIO; 3 0");
    assert_eq!(run("nop:error=EIO:ring=1", "ring nop 1"), "1 EIO");
    assert_eq!(run("nop:error=EIO:ring=2", "ring nop 1"), "1 0");
}

#[test]
fn a_rule_begins_after_its_time() {
    assert_eq!(run("nop:error=EIO:after=0", "ring nop 1"), "1 EIO");
    assert_eq!(run("nop:error=EIO:after=1000s", "ring nop 1"), "1 0");
}

#[test]
fn the_three_calls_of_io_uring_can_fail() {
    let failed = |rule: &str| {
        let finished = prepare(&Stage::new(), &[&format!("--inject={rule}:error=EPERM")], "ring nop 1").finish();
        assert!(!finished.status.success(), "{rule}: {}", finished.report());
        finished.stdout
    };
    assert!(failed("setup").contains("io_uring_queue_init"));
    assert!(failed("enter").contains("io_uring_submit"));
}

#[test]
fn each_process_counts_for_itself_and_goes_on_after_exec() {
    let stage = Stage::new();
    let shell = |script: &str| {
        let options = ["--inject=call:write:error=EIO:when=2".to_owned()];
        let run = stage.program_with(World::Transparent, &options, Path::new("/bin/sh"));
        run.args(["-c", script]).finish().stdout
    };
    // The second write of each process fails. Each echo is one write. After a failed echo, the
    // shell writes a message to standard error.
    assert_eq!(shell("echo a; (echo b); echo c"), "a\nb\n");
    assert_eq!(shell("echo a; exec sh -c 'echo b; echo c'"), "a\nc\n");
}

#[test]
fn the_last_rule_that_means_a_call_decides_alone() {
    let options = ["--inject=read:error=EIO", "--inject=read:error=EPERM:when=2"];
    let finished = prepare(&Stage::new(), &options, "ring read 3").finish().succeeded();
    assert_eq!(said(&finished), "1 4096; 2 EPERM; 3 4096", "as strace does");
    let options = ["--inject=read:error=EIO", "--inject=read:error=EPERM:path=other"];
    let finished = prepare(&Stage::new(), &options, "ring read 1").finish().succeeded();
    assert_eq!(said(&finished), "1 EIO");
}
