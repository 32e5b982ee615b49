//! Tests of `usring crash`: programs with planted bugs and their fixed twins, databases, and runs
//! that end without a verdict.
//!
//! - `planted`: `usring crash` finds each bug of `programs/durable.c`, by plain calls and by rings,
//!   and accuses no fixed twin.
//! - `ends`: unknown results, commands that cannot run, and the replay of a case.
//! - `sqlite`: Debian's SQLite with its settings for durability.
//! - `databases`: Redis, MariaDB, PostgreSQL, LevelDB and RocksDB.

mod databases;
mod ends;
mod planted;
mod sqlite;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;
use workloads::harness::Stage;

/// Returns the path of the release build, or of the one that USRING_BIN names.
fn usring() -> PathBuf {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/usring");
    std::env::var_os("USRING_BIN").map_or_else(|| built.into(), PathBuf::from)
}

/// The compiled programs. Their stage is in a static, so the stage's folder is never removed.
struct Programs {
    _stage: Stage,
    durable: PathBuf,
    check: PathBuf,
}

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let stage = Stage::new();
        let durable = stage.compile("durable.c", &["-luring"]);
        let check = stage.compile("durable_check.c", &[]);
        Programs { _stage: stage, durable, check }
    })
}

/// The result of `usring crash`.
struct Crash {
    status: Option<i32>,
    said: String,
    stderr: String,
}

/// Runs `usring crash` in an empty folder with these further arguments.
fn crash(arguments: &[&str]) -> Crash {
    crash_for("20s", arguments)
}

/// Runs `usring crash` in an empty folder with this budget and these further arguments.
fn crash_for(budget: &str, arguments: &[&str]) -> Crash {
    let work = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(work.path().join("empty")).expect("a folder");
    let mut command = Command::new(usring());
    command.current_dir(work.path()).args(["crash", "--state", "empty", "--seed", "1", "--budget", budget]);
    let Output { status, stdout, stderr } = command.args(arguments).output().expect("usring runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Crash { status: status.code(), said: text(stdout), stderr: text(stderr) }
}

impl Crash {
    /// Fails the test unless usring has found a state on which the check fails. Returns what usring
    /// printed.
    fn found(self) -> String {
        assert_eq!(self.status, Some(1), "{}{}", self.said, self.stderr);
        self.said
    }

    fn found_nothing(self) {
        assert_eq!(self.status, Some(0), "{}{}", self.said, self.stderr);
    }
}
