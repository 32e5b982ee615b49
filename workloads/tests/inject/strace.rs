//! Runs a program with the same rules under Debian's strace and under usring. The program must
//! print the same results, and end in the same way.

use std::process::Command;
use workloads::harness::{STRACE, Stage, World, require};

/// Examples of strace's manual, and further forms of its grammar. They avoid calls that the dynamic
/// loader makes, because strace counts the loader's calls, too.
const RULES: [&str; 17] = [
    "chdir:error=ENOENT:when=3+",
    "pwrite64:error=EIO:when=3+2",
    "pwrite64:error=28:when=2..4",
    "pwrite64:retval=2:when=2..6+2",
    "fsync:error=EIO",
    "fsync:error=EIO:when=3",
    "fsync:error=EIO:when=2..4+",
    "fsync:error=EIO:when=1:when=2",
    "mkdir,rmdir:error=EACCES:when=2",
    "socket:error=EMFILE:when=3",
    "rename,unlink:retval=0",
    "?nosuchcall,fsync:error=ENOSYS:when=5",
    "ftruncate:signal=SIGTERM",
    "ftruncate:signal=15",
    "fsync:error=EIO:signal=TERM:when=4",
    "fsync:delay_enter=1000:delay_exit=1ms",
    "fsync:delay_enter=.5ms:retval=3",
];

#[test]
fn straces_rules_do_what_they_do_in_strace() {
    let stage = Stage::new();
    let program = stage.compile("strace_calls.c", &[]);
    for rule in RULES {
        let mut strace = Command::new(require(&STRACE));
        strace.args(["-f", "-o", "/dev/null", &format!("--inject={rule}")]).arg(&program).current_dir(stage.path(""));
        let expected = strace.output().unwrap();
        let _ = std::fs::remove_dir(stage.path("folder"));
        let finished = stage.program_with(World::Transparent, &[format!("--inject={rule}")], &program).finish();
        let _ = std::fs::remove_dir(stage.path("folder"));
        assert_eq!(finished.stdout, String::from_utf8_lossy(&expected.stdout), "{rule}");
        assert_eq!(finished.status, expected.status, "{rule}: {}", finished.report());
    }
}

#[test]
fn rules_that_strace_refuses_are_refused() {
    let stage = Stage::new();
    let rules = [
        "fsync",
        "fsync:when=3",
        "nosuchcall:error=EIO",
        "fsync:error=NOERROR",
        "fsync:error=4096",
        "fsync:error=EIO:retval=1",
        "fsync:error=EIO:when=0",
        "fsync:error=EIO:when=3..2",
        "fsync:error=EIO:when=65536",
        "fsync:signal=65",
        "fsync:delay_enter=x",
        "fsync:error=EIO:error=EPERM",
        "fsync:error=EIO:nosuchkey=1",
        "",
    ];
    for rule in rules {
        let mut strace = Command::new(require(&STRACE));
        let refused = strace.args(["-o", "/dev/null", &format!("--inject={rule}"), "true"]).output().unwrap();
        assert!(!refused.status.success(), "strace takes {rule}");
        let run = stage.program_with(World::Transparent, &[format!("--inject={rule}")], "true");
        let finished = run.finish();
        assert_eq!(finished.status.code(), Some(125), "{rule}: {}", finished.report());
    }
}
