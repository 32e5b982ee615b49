//! Programs built with a compiler's sanitizers. A sanitizer's runtime must be loaded before
//! libusring.so, and must find the same errors as without usring.

use workloads::harness::{Finished, LIBURING, Stage, World, require};

const ADDRESSES: &str = "-fsanitize=address,undefined";
const THREADS: &str = "-fsanitize=thread";

/// Options of ThreadSanitizer. By default it ends a forked child that starts a thread, as rings do,
/// and waits for a second at exit.
const OPTIONS: &str = "die_after_fork=0:atexit_sleep_ms=0";

fn run(sanitizer: &str, source: &str) -> Finished {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile(source, &["-luring", "-g", "-Wno-maybe-uninitialized", sanitizer]);
    stage.program(World::Denied, program).env("TSAN_OPTIONS", OPTIONS).finish()
}

fn is_clean(sanitizer: &str, programs: &[(&str, u32)]) {
    for (source, checks) in programs {
        let finished = run(sanitizer, source).succeeded();
        assert_eq!(finished.stdout, format!("{checks} checks hold\n"), "{}", finished.report());
        assert!(!finished.stderr.contains("Sanitizer"), "{}", finished.report());
        finished.served(&[], 16);
    }
}

#[test]
fn address_sanitizer_finds_nothing_in_correct_programs() {
    let programs =
        [("liburing_files.c", 12), ("liburing_waiting.c", 13), ("liburing_buffers.c", 3), ("liburing_sharing.c", 13)];
    is_clean(ADDRESSES, &programs);
}

/// (`liburing_waiting.c` is left out: it needs a signal that interrupts a wait, and ThreadSanitizer
/// delays signals, also on the kernel's io_uring.)
#[test]
fn thread_sanitizer_finds_nothing_in_correct_programs() {
    is_clean(THREADS, &[("liburing_files.c", 12), ("liburing_buffers.c", 3), ("liburing_sharing.c", 13)]);
}

#[test]
fn a_sanitized_program_behind_a_shell_is_recognised_and_finds_its_error() {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("freed.c", &["-luring", "-g", "-Wno-use-after-free", ADDRESSES]);
    let text = stage.write("text", [b'x'; 64]);
    // `env` prints the environment of a child of the program.
    let script = format!("{} {}; echo ended with $?; env", program.display(), text.display());
    let finished = stage.program(World::Denied, "/bin/sh").args(["-c", &script]).finish();
    let (out, report) = (&finished.stdout, finished.report());
    assert!(out.contains("read by a ring\n"), "{report}");
    assert!(out.contains("ended with 1\n"), "{report}");
    assert!(finished.stderr.contains("heap-use-after-free"), "{report}");
    assert!(!out.contains("libasan") && !out.contains("USRING_RUNTIME"), "{report}");
    finished.served(&["read"], 1);
}

#[test]
fn the_memory_of_a_sanitized_program_is_not_swapped() {
    require(&LIBURING);
    let stage = Stage::new();
    let swap = ["--swap=ram:size=64M,limit=16M".to_owned()];
    for sanitizer in [ADDRESSES, THREADS] {
        let program = stage.compile("liburing_buffers.c", &["-luring", "-g", sanitizer]);
        let run = stage.program_with(World::Denied, &swap, program).env("TSAN_OPTIONS", OPTIONS);
        let finished = run.finish().succeeded();
        assert!(finished.stderr.contains("does not swap the memory of process "), "{}", finished.report());
        assert_eq!(finished.stdout, "3 checks hold\n", "{}", finished.report());
    }
}
