//! stress-ng's io_uring stressor. It makes its calls by libc's `syscall`, and uses most opcodes
//! that work on files.

use std::time::Duration;
use workloads::harness::{STRESS_NG, Stage, World, require};

const OPERATIONS: u64 = 4000;

pub fn stress(world: World) {
    let stage = Stage::new();
    let options = ["--io-uring", "2", "--timeout", "300", "--metrics", "--verify", "--temp-path", "."];
    let run = stage.program(world, require(&STRESS_NG)).args(options).arg("--io-uring-ops").arg(OPERATIONS.to_string());
    let finished = run.limit(Duration::from_secs(330)).finish().succeeded();
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert!(said.contains("successful run completed"), "{}", finished.report());
    assert!(!said.contains("fail"), "{}", finished.report());
    assert_eq!(operations_done(&said), Some(OPERATIONS), "{}", finished.report());
    finished.served(&[], OPERATIONS);
}

/// Parses the count in `stress-ng: metrc: [1] io-uring   4000   0.12 ...`.
fn operations_done(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("] io-uring "))?;
    line.split("] io-uring ").nth(1)?.split_whitespace().next()?.parse().ok()
}

#[test]
fn stress_ng_finds_no_fault() {
    stress(World::Denied);
}
