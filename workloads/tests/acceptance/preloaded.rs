//! Programs that load libusring.so by LD_PRELOAD, without the launcher. They run as in a container
//! whose rules deny the kernel's io_uring.

use crate::fio;
use std::ffi::OsStr;
use std::process::Command;
use workloads::harness::skipped::skip;
use workloads::harness::{FIO, Finished, Run, Stage, World, on_kernel, require};

/// Prepares a program that preloads the library. `variables` are additional environment variables,
/// as `NAME=VALUE`, which a container's configuration would set.
fn preloaded(stage: &Stage, variables: &[String], program: impl AsRef<OsStr>) -> Run {
    let library = format!("LD_PRELOAD={}", stage.path("tools/libusring.so").display());
    stage.program(World::ConfinedBare, "/usr/bin/env").arg(library).args(variables).arg(program)
}

/// Returns `NAME=VALUE`.
fn variable(name: &str, value: impl AsRef<OsStr>) -> String {
    format!("{name}={}", value.as_ref().display())
}

/// fio's arguments for a job that writes a megabyte and verifies it.
const JOB: [&str; 6] =
    ["--ioengine=io_uring", "--output-format=json", "--name=write", "--rw=randwrite", "--size=1m", "--verify=crc32c"];

/// Fails unless the job has written its megabyte through usring and verified it.
#[track_caller]
fn assert_written(finished: &Finished) {
    let document = fio::report(finished);
    let job = fio::job(&document, "write", finished);
    assert_eq!(fio::number(job, "/write/io_bytes"), 1 << 20, "{}", finished.report());
}

/// Returns what `usring stats` prints for a file of the stage.
#[track_caller]
fn stats(stage: &Stage, file: &str) -> String {
    let output = Command::new(stage.path("tools/usring")).arg("stats").arg(stage.path(file)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the number of completed requests of an opcode in a table of `usring stats`.
#[track_caller]
fn completed(table: &str, opcode: &str) -> u64 {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(opcode));
    let line = line.unwrap_or_else(|| panic!("no {opcode}: {table}"));
    line.split_whitespace().nth(2).unwrap().parse().unwrap()
}

/// Skips the test if the tests run without usring. Returns whether they do.
pub fn has_no_usring() -> bool {
    if on_kernel() {
        skip("there is no usring");
    }
    on_kernel()
}

#[test]
fn a_preloaded_program_is_served_and_counted() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let one = || {
        let counts = variable("USRING_STATS", stage.path("stats"));
        assert_written(&preloaded(&stage, &[counts], require(&FIO)).args(JOB).finish().succeeded());
        completed(&stats(&stage, "stats"), "write")
    };
    let first = one();
    assert_eq!(first, 256);
    // A second run of the program adds to the counters in the same file.
    assert_eq!(one(), 2 * first);
}

#[test]
fn programs_that_a_static_manager_starts_are_served() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let manager = stage.compile("static_manager.c", &["-static"]);
    let counts = variable("USRING_STATS", stage.path("stats"));
    let run = preloaded(&stage, &[counts], manager).arg(require(&FIO)).args(JOB);
    assert_written(&run.finish().succeeded());
    assert_eq!(completed(&stats(&stage, "stats"), "write"), 256);
}

#[test]
fn a_preloaded_program_does_not_see_the_variables_but_passes_them_on() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let counts = variable("USRING_STATS", stage.path("stats"));
    let run = preloaded(&stage, &[counts], "/bin/sh").args(["-c", "env; exec \"$0\" \"$@\""]);
    let finished = run.arg(require(&FIO)).args(JOB).finish().succeeded();
    assert!(
        !finished.stdout.contains("USRING_STATS") && !finished.stdout.contains("LD_PRELOAD"),
        "{}",
        finished.report()
    );
    assert_written(&finished);
    assert_eq!(completed(&stats(&stage, "stats"), "write"), 256);
}

/// Variables and values with which the library cannot serve a program, and the message that it
/// prints.
const UNUSABLE: [(&str, &str, &str); 4] = [
    ("USRING_SWAP", "ram:size=64M", "limit= is missing"),
    ("USRING_SWAP", "file:path=swap,limit=8M", "must begin with /"),
    ("USRING_SWAP", "vhost-user:socket=/s,limit=8M", "needs the launcher"),
    ("USRING_DEVICES", "disk=ram:size=1G", "use `usring run --device PATH=SPEC -- PROGRAM`"),
];

#[test]
fn a_program_that_cannot_be_served_runs_with_a_sentence() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    for (name, value, sentence) in UNUSABLE {
        let run = preloaded(&stage, &[variable(name, value)], "/bin/sh").args(["-c", "echo $LD_PRELOAD"]);
        let finished = run.finish().succeeded();
        assert!(finished.stderr.contains(sentence) && finished.stderr.contains("runs without usring"), "{finished:?}");
        // The library stays in LD_PRELOAD, so that the programs that this program executes load it.
        assert!(finished.stdout.contains("libusring.so"), "{finished:?}");
    }
    let run = preloaded(&stage, &[], "/bin/sh").args(["-c", "ulimit -n 256; exec /bin/echo alive"]);
    let finished = run.finish().succeeded();
    assert_eq!((finished.stdout.as_str(), finished.stderr.contains("limit of open files")), ("alive\n", true));
}

#[test]
fn a_strict_program_that_cannot_be_served_does_not_run() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    for (name, value, sentence) in UNUSABLE {
        let variables = [variable(name, value), variable("USRING_STRICT", "1")];
        let finished = preloaded(&stage, &variables, "/bin/echo").arg("alive").finish();
        assert_eq!(finished.status.code(), Some(125), "{finished:?}");
        assert!(finished.stderr.contains(sentence) && finished.stdout.is_empty(), "{finished:?}");
    }
}

/// libusring.so replaces some functions of libc by its own. In a program that loads the library but
/// is not served, these functions must do what libc's functions do.
#[test]
fn functions_of_libc_work_in_a_program_that_runs_without_usring() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let program =
        "import os, resource; print(os.sysconf('SC_PAGESIZE'), resource.getrlimit(resource.RLIMIT_NOFILE)[0])";
    let run = |variables: &[String]| {
        preloaded(&stage, variables, "/usr/bin/python3").args(["-c", program]).finish().succeeded()
    };
    let unserved = run(&[variable("USRING_SWAP", "nonsense")]);
    assert!(unserved.stderr.contains("runs without usring"), "{}", unserved.report());
    assert_eq!(unserved.stdout, run(&[]).stdout);
}

#[test]
fn messages_go_to_the_log() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let variables = [variable("USRING_LOG", stage.path("log")), variable("USRING_SWAP", "nonsense")];
    let finished = preloaded(&stage, &variables, "/bin/echo").arg("alive").finish().succeeded();
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("alive\n", ""));
    assert!(String::from_utf8(stage.read("log")).unwrap().contains("runs without usring"));
}

#[test]
fn a_users_file_is_not_overwritten_by_statistics() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let file = stage.write("mine", "my own text");
    let counts = variable("USRING_STATS", &file);
    let finished = preloaded(&stage, &[counts], require(&FIO)).args(JOB).finish().succeeded();
    assert_written(&finished);
    assert!(finished.stderr.contains("nothing is counted"), "{}", finished.report());
    assert_eq!(stage.read("mine"), b"my own text");
    let output = Command::new(stage.path("tools/usring")).arg("stats").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a statistics file"));
}

#[test]
fn the_memory_of_a_preloaded_program_is_swapped() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let store = stage.write("swap", "");
    std::fs::File::options().write(true).open(&store).and_then(|file| file.set_len(256 << 20)).unwrap();
    let swap = format!("file:path={},limit=16M", store.display());
    let program = "data = bytearray(64 << 20)\nfor at in range(0, len(data), 4096): data[at] = 1 + at // 4096 % 255\n\
                   print(all(data[at] == 1 + at // 4096 % 255 for at in range(0, len(data), 4096)))";
    let run = preloaded(&stage, &[variable("USRING_SWAP", swap)], "/usr/bin/python3").args(["-c", program]);
    assert_eq!(run.finish().succeeded().stdout, "True\n");
    let written = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&store).unwrap()) * 512;
    assert!(written > 32 << 20, "{written} bytes were swapped");
}
