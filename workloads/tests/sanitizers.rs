//! Tests of requests' memory in programs that are built with AddressSanitizer, under `--check`, and
//! in programs that Valgrind runs. The planted bugs, and their fixed twins, are in
//! `programs/sanitized.c` and `programs/memcheck.c`. With `programs/handed_over.c`, also tests that
//! ThreadSanitizer knows how rings order threads.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use workloads::harness::{Finished, LIBURING, Stage, VALGRIND, World, require};

/// Time limit that ends a program that hangs.
const LIMIT: Duration = Duration::from_secs(120);

const NOTHING: &str = "usring: --check found no misuse of the rings";

/// Returns the number of the line in `programs/SOURCE` that has this comment.
fn line_of(source: &str, comment: &str) -> usize {
    let text = std::fs::read_to_string(Stage::script(source)).unwrap();
    let has_comment = |line: &str| line.contains(&format!("/* {comment} */"));
    text.lines().position(has_comment).unwrap_or_else(|| panic!("{comment}")) + 1
}

/// The path of the program `sanitized`, compiled on first use. Its stage is in a static, so the
/// stage's folder is never removed.
fn sanitized() -> &'static Path {
    static PROGRAM: OnceLock<(Stage, PathBuf)> = OnceLock::new();
    let compile = || {
        require(&LIBURING);
        let stage = Stage::new();
        let flags = ["-g", "-luring", "-fsanitize=address", "-Wno-use-after-free"];
        let program = stage.compile("sanitized.c", &flags);
        (stage, program)
    };
    &PROGRAM.get_or_init(compile).1
}

fn run(words: &[&str]) -> Finished {
    let stage = Stage::new();
    let options = ["--check".to_owned()];
    let run = stage.program_with(World::Denied, &options, sanitized()).limit(LIMIT);
    run.current_dir(&stage.path("")).args(words).finish()
}

/// Checks that a report names exactly one misuse for a planted bug, and the marked lines of the
/// program.
#[track_caller]
fn names(said: &str, bug: &str, misuse: &str, lines: &[&str]) {
    assert!(said.contains("usring: --check found 1 misuse of the rings, once\n"), "{bug}: {said}");
    let report = said.split_once(&format!("\n{misuse}: ")).unwrap_or_else(|| panic!("{bug}: {said}")).1;
    for line in lines {
        let place = format!("sanitized.c:{}\n", line_of("sanitized.c", &format!("{bug}: {line}")));
        assert!(report.contains(&place), "{bug}: no {place} in {said}");
    }
}

#[track_caller]
fn is_not_accused(bug: &str) {
    let finished = run(&[bug, "fixed"]).succeeded();
    assert!(finished.stderr.contains(NOTHING), "{bug}: {}", finished.report());
    assert!(!finished.stderr.contains("AddressSanitizer"), "{bug}: {}", finished.report());
}

#[test]
fn memory_that_a_request_must_not_have_is_found_at_its_submission() {
    let bugs = [
        ("use-freed", "byte 0 of this memory was freed", &["submission", "recorded"][..]),
        ("overrun", "byte 100 of this memory lies past the end of", &["submission", "recorded"]),
        ("global-overrun", "byte 100 of this memory lies past the end of", &["submission"]),
        ("local-overrun", "byte 100 of this memory lies past the end of", &["submission"]),
    ];
    for (bug, byte, lines) in bugs {
        let said = run(&[bug]).succeeded().stderr;
        names(&said, bug, "bad-memory", lines);
        assert!(said.contains(byte), "{bug}: {said}");
        is_not_accused(bug);
    }
}

#[test]
fn a_use_of_memory_into_which_a_request_reads_is_found_by_both_checkers() {
    for bug in ["touched", "copied", "second-target"] {
        let finished = run(&[bug]);
        assert_eq!(finished.status.code(), Some(1), "{}", finished.report());
        assert!(finished.stderr.contains("AddressSanitizer: use-after-poison"), "{}", finished.report());
        names(&finished.stderr, bug, "touched", &["submission", "misdeed"]);
        is_not_accused(bug);
    }
}

#[test]
fn memory_of_requests_that_are_no_longer_in_flight_is_the_programs() {
    is_not_accused("allowed");
}

#[test]
fn programs_that_use_rings_rightly_are_not_accused() {
    require(&LIBURING);
    for source in ["liburing_files.c", "liburing_waiting.c", "liburing_buffers.c", "liburing_sharing.c"] {
        let stage = Stage::new();
        let flags = ["-g", "-luring", "-Wno-maybe-uninitialized", "-fsanitize=address"];
        let program = stage.compile(source, &flags);
        let run = stage.program_with(World::Denied, &["--check".to_owned()], program).limit(LIMIT);
        let finished = run.current_dir(&stage.path("")).finish().succeeded();
        assert!(finished.stderr.contains(NOTHING), "{}", finished.report());
        assert!(!finished.stderr.contains("AddressSanitizer"), "{}", finished.report());
    }
}

/// Runs `memcheck.c` under Valgrind, which ends with status 9 if it has reported an error.
fn memcheck(options: &[&str], words: &[&str]) -> Finished {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("memcheck.c", &["-g", "-luring", "-Wno-use-after-free"]);
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    let run = stage.program_with(World::Denied, &options, require(&VALGRIND)).limit(LIMIT);
    run.current_dir(&stage.path("")).args(["-q", "--error-exitcode=9"]).arg(program).args(words).finish()
}

#[test]
fn memcheck_knows_the_memory_of_requests() {
    let bugs = [
        ("undefined-write", "Uninitialised byte(s) found"),
        ("undefined-send", "Uninitialised byte(s) found"),
        ("short-read", "Conditional jump or move depends on uninitialised value(s)"),
        ("freed-target", "Unaddressable byte(s) found"),
    ];
    for (bug, error) in bugs {
        let finished = memcheck(&[], &[bug]);
        assert_eq!(finished.status.code(), Some(9), "{}", finished.report());
        let (said, report) = (&finished.stderr, finished.report());
        assert!(finished.stdout.contains("is done") && said.contains(error), "{report}");
        let place = format!("(memcheck.c:{})", line_of("memcheck.c", &format!("{bug}: misdeed")));
        assert!(said.contains(&place), "no {place}: {report}");
        // Each error is reported once, and not again where usring carries the request out.
        assert_eq!(said.matches(" byte(s)").count() + said.matches("Conditional").count(), 1, "{report}");
        let fixed = memcheck(&[], &[bug, "fixed"]).succeeded();
        assert!(!fixed.stderr.contains("=="), "{}", fixed.report());
    }
}

#[test]
fn a_program_that_valgrind_runs_is_served_and_not_accused() {
    // The address at which the stack ends depends on the length of the arguments, so the test runs
    // with several lengths.
    for length in (0..2048).step_by(512) {
        let finished = memcheck(&["--check"], &["allowed", &"x".repeat(length)]).succeeded();
        assert!(finished.stderr.contains(NOTHING), "{}", finished.report());
    }
    let finished = memcheck(&[], &["allowed"]).succeeded();
    finished.served(&["read", "write", "nop"], 4);
}

#[test]
fn programs_that_use_rings_rightly_have_no_errors_under_valgrind() {
    require(&LIBURING);
    for (source, checks) in [("liburing_waiting.c", 13), ("liburing_buffers.c", 3), ("liburing_sharing.c", 13)] {
        let stage = Stage::new();
        let program = stage.compile(source, &["-g", "-luring", "-Wno-maybe-uninitialized"]);
        let run = stage.program_with(World::Denied, &[], require(&VALGRIND)).limit(LIMIT);
        let run = run.current_dir(&stage.path("")).args(["-q", "--error-exitcode=9"]);
        let finished = run.arg(program).finish().succeeded();
        assert_eq!(finished.stdout, format!("{checks} checks hold\n"), "{}", finished.report());
    }
}

/// The ways in which `handed_over.c` hands memory over by a ring.
const WAYS: [&str; 7] = ["wait", "write", "peek", "look", "event", "message", "sq-thread"];

#[test]
fn thread_sanitizer_knows_that_rings_order_threads() {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("handed_over.c", &["-g", "-luring", "-fsanitize=thread"]);
    let run = |words: &[&str]| {
        let run = stage.program(World::Denied, &program).env("TSAN_OPTIONS", "atexit_sleep_ms=0").limit(LIMIT);
        run.current_dir(&stage.path("")).args(words).finish()
    };
    let place = format!("handed_over.c:{}", line_of("handed_over.c", "the race"));
    for way in WAYS {
        let ordered = run(&[way]).succeeded();
        assert!(!ordered.stderr.contains("ThreadSanitizer"), "{}", ordered.report());
        let racing = run(&[way, "race"]);
        assert!(racing.stderr.contains("ThreadSanitizer: data race"), "{}", racing.report());
        assert!(racing.stderr.contains(&place), "no {place}: {}", racing.report());
    }
}
