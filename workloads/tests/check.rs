//! Tests of `usring run --check`: planted bugs and their fixed twins (`programs/misused.c`).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use workloads::harness::{FIO, Finished, QEMU_IMG, Run, Stage, World, require};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/misused.c");

/// Time limit that ends a program that hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// The path of the program `misused`, compiled on first use. Its stage is in a static, so the
/// stage's folder is never removed.
fn misused() -> &'static PathBuf {
    static PROGRAM: OnceLock<(Stage, PathBuf)> = OnceLock::new();
    &PROGRAM
        .get_or_init(|| {
            let stage = Stage::new();
            let program = stage.compile("misused.c", &["-g", "-luring"]);
            (stage, program)
        })
        .1
}

fn checked(stage: &Stage, program: &Path, options: &[&str]) -> Run {
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    stage.program_with(World::Transparent, &options, program).limit(LIMIT).current_dir(&stage.path(""))
}

fn run(words: &[&str]) -> Finished {
    run_with(&["--check"], words)
}

fn run_with(options: &[&str], words: &[&str]) -> Finished {
    checked(&Stage::new(), misused(), options).args(words).finish()
}

/// Returns the number of the line in `misused.c` that has this comment.
fn line_of(comment: &str) -> usize {
    let source = std::fs::read_to_string(SOURCE).unwrap();
    let has_comment = |line: &str| line.contains(&format!("/* {comment} */"));
    source.lines().position(has_comment).unwrap_or_else(|| panic!("{comment}")) + 1
}

const NOTHING: &str = "usring: --check found no misuse of the rings";

/// Checks that `--check` reports exactly one misuse for a planted bug. `name` is the name of the
/// misuse, `count` how often it occurred ("once"), and `lines` the marked lines of `misused.c` that
/// the report must name.
#[track_caller]
fn is_found(bug: &str, name: &str, count: &str, lines: &[&str]) {
    names(&run(&[bug]).succeeded().stderr, bug, name, count, lines);
}

#[track_caller]
fn names(said: &str, bug: &str, name: &str, count: &str, lines: &[&str]) {
    assert!(said.contains(&format!("usring: --check found 1 misuse of the rings, {count}\n")), "{bug}: {said}");
    assert!(said.contains(&format!("\n{name}: ")), "{bug}: {said}");
    for line in lines {
        let place = format!("misused.c:{}\n", line_of(&format!("{bug}: {line}")));
        assert!(said.contains(&place), "{bug}: no {place} in {said}");
    }
    assert!(!said.contains("libusring"), "{bug}: a stack names functions of usring: {said}");
}

fn is_not_accused(bug: &str) {
    let said = run(&[bug, "fixed"]).succeeded().stderr;
    assert!(said.contains(NOTHING), "{bug}: {said}");
}

#[test]
fn memory_that_is_released_under_a_request_is_found_with_both_lines() {
    for (bug, name) in [("freed", "freed"), ("moved", "freed"), ("unmapped", "unmapped")] {
        is_found(bug, name, "once", &["submission", "misdeed"]);
        is_not_accused(bug);
    }
}

#[test]
fn memory_of_a_send_that_changes_in_flight_is_found() {
    is_found("changed", "changed", "once", &["submission"]);
    is_not_accused("changed");
}

#[test]
fn a_local_variable_of_a_function_that_has_returned_is_found() {
    is_found("dead-frame", "dead-frame", "once", &["submission", "misdeed"]);
    is_not_accused("dead-frame");
}

#[test]
fn a_file_that_is_closed_under_a_request_is_found() {
    is_found("closed-file", "closed-file", "once", &["submission", "misdeed"]);
    is_not_accused("closed-file");
}

#[test]
fn completions_that_the_program_never_reads_are_found() {
    is_found("unreaped", "unreaped", "once", &["submission"]);
    is_not_accused("unreaped");
    is_found("overflowed", "overflowed", "24 times", &["submission"]);
    is_not_accused("overflowed");
}

#[test]
fn a_request_in_flight_at_the_end_is_found() {
    is_found("leaked", "leaked", "once", &["submission"]);
    is_not_accused("leaked");
}

#[test]
fn a_chain_that_a_short_read_broke_is_found_unless_it_is_continued() {
    is_found("broken-link", "broken-link", "once", &["submission"]);
    is_not_accused("broken-link");
}

#[test]
fn an_sqe_that_changes_before_the_sq_thread_takes_it_is_found() {
    is_found("overwritten", "overwritten", "once", &["submission"]);
    is_not_accused("overwritten");
}

#[test]
fn user_data_that_two_requests_in_flight_share_is_found_on_demand() {
    let options = ["--check", "--check-user-data"];
    let said = run_with(&options, &["user-data"]).succeeded().stderr;
    names(&said, "user-data", "user-data", "once", &["submission", "misdeed"]);
    assert!(run_with(&options, &["user-data", "fixed"]).succeeded().stderr.contains(NOTHING));
    assert!(run(&["user-data"]).succeeded().stderr.contains(NOTHING));
}

#[test]
fn abort_ends_the_program_at_its_first_misuse_and_prints_it() {
    const SIGABRT: i32 = 6;
    let finished = checked(&Stage::new(), misused(), &["--check=abort"]).arg("freed").finish();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&finished.status), Some(SIGABRT), "{}", finished.stderr);
    assert!(!finished.stdout.contains("is done"), "{}", finished.stdout);
    assert!(finished.stderr.contains("\nfreed: "), "{}", finished.stderr);
    let fixed = checked(&Stage::new(), misused(), &["--check=abort"]).args(["freed", "fixed"]).finish();
    assert!(fixed.succeeded().stderr.contains(NOTHING));
}

#[test]
fn requests_left_in_flight_by_a_failed_program_are_no_misuse() {
    let finished = run(&["unknown"]);
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains(NOTHING), "{}", finished.stderr);
}

/// Checks that a correct program runs without a report of misuse.
#[track_caller]
fn uses_rings_rightly(run: Run) {
    let finished = run.finish().succeeded();
    assert!(finished.stderr.contains(NOTHING), "{}", finished.report());
}

#[test]
fn programs_that_use_liburing_are_not_accused() {
    // With late completions, more requests are in flight.
    for options in [&["--check"][..], &["--check", "--inject=ring:all:delay_exit=500us:p=30%"]] {
        for source in ["liburing_files.c", "liburing_waiting.c", "liburing_buffers.c"] {
            let stage = Stage::new();
            let program = stage.compile(source, &["-luring"]);
            uses_rings_rightly(checked(&stage, &program, options));
        }
    }
}

/// `liburing_sharing.c` has rings with SQ threads. Late completions would change the counts that it
/// expects.
#[test]
fn a_program_that_shares_rings_is_not_accused() {
    let stage = Stage::new();
    let program = stage.compile("liburing_sharing.c", &["-luring"]);
    uses_rings_rightly(checked(&stage, &program, &["--check"]));
}

#[test]
fn a_program_that_uses_the_io_uring_crate_is_not_accused() {
    let program = Path::new(env!("CARGO_BIN_EXE_io_uring_crate"));
    uses_rings_rightly(checked(&Stage::new(), program, &["--check"]));
}

#[test]
fn fio_and_qemu_img_are_not_accused() {
    let options = ["--ioengine=io_uring", "--name=job", "--rw=randrw", "--bs=4k", "--size=2m", "--iodepth=16"];
    let stage = Stage::new();
    uses_rings_rightly(checked(&stage, Path::new(require(&FIO)), &["--check"]).args(options).arg("--verify=crc32c"));
    stage.write("image", vec![0; 1 << 20]);
    let bench = ["bench", "-i", "io_uring", "-f", "raw", "-t", "none", "-c", "1000", "-w", "image"];
    uses_rings_rightly(checked(&stage, Path::new(require(&QEMU_IMG)), &["--check"]).args(bench));
}
