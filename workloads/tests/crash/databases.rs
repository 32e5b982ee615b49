//! Databases of Debian, and PostgreSQL 18. They keep their promises in a power loss if they sync,
//! and break them if they do not. Scripts in `programs/crash` start them.
//!
//! Redis is quick. The other tests take minutes, so `cargo xtask soak crash` runs them.

use crate::{Crash, crash_for};
use std::path::Path;
use std::time::Duration;
use workloads::harness::skipped::skip;
use workloads::harness::{MARIADB, REDIS_SERVER, Stage, World, require};
use workloads::postgres::Postgres;

/// Time limit of a search with PostgreSQL: its budget, the setup, the run and the last checks.
const POSTGRES_LIMIT: Duration = Duration::from_secs(900);

/// Returns the beginning of a command line: `variables`, and a script of `programs/crash`. The
/// caller adds the subcommand.
fn script(variables: &str, name: &str) -> String {
    format!("{variables} sh {}/programs/crash/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Searches with a script whose subcommands `setup`, `run` and `check` are the commands of `usring
/// crash`.
fn search(script: &str, budget: &str, more: &[&str]) -> Crash {
    let [setup, run, check] = ["setup", "run", "check"].map(|subcommand| format!("{script} {subcommand}"));
    crash_for(budget, &[&["--setup", &setup, "--run", &run, "--check", &check], more].concat())
}

#[test]
fn redis_keeps_what_it_has_acknowledged_only_if_it_syncs_always() {
    require(&REDIS_SERVER);
    search(&script("FSYNC=always", "redis.sh"), "20s", &["--model", "ext4-ordered"]).found_nothing();
    let said = search(&script("FSYNC=everysec", "redis.sh"), "20s", &["--model", "ext4-ordered"]).found();
    assert!(said.contains("key1 is missing"), "{said}");
}

/// With the model posix, a power loss can keep a file's new size but lose the new bytes, which then
/// read as zeroes. Redis does not start from such a file.
#[test]
fn redis_does_not_start_if_its_file_has_grown_by_zeroes() {
    require(&REDIS_SERVER);
    let said = search(&script("FSYNC=always", "redis.sh"), "20s", &["--model", "posix"]).found();
    assert!(said.contains("lost but for the file's new size (zeroes)"), "{said}");
    assert!(said.contains("the server does not start"), "{said}");
}

#[test]
#[ignore = "takes minutes"]
fn mariadb_keeps_what_it_has_committed() {
    require(&MARIADB);
    for model in ["posix", "ext4-ordered"] {
        search(&script("", "mariadb.sh"), "120s", &["--model", model]).found_nothing();
    }
}

#[test]
#[ignore = "takes minutes"]
fn mariadb_loses_commits_if_it_does_not_flush_its_log() {
    require(&MARIADB);
    let said = search(&script("FLUSH=0", "mariadb.sh"), "120s", &[]).found();
    assert!(said.contains("rows of"), "{said}");
}

/// Searches with PostgreSQL 18, which runs as the user `nobody`. If PostgreSQL 18 is not installed,
/// returns `None`, and the test counts as skipped.
fn postgres(fsync: &str) -> Option<Crash> {
    let programs = match Postgres::cached() {
        Ok(postgres) => postgres.program(""),
        Err(why) => {
            skip(&why);
            return None;
        }
    };
    let stage = Stage::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/crash/postgres.sh");
    let program = stage.copy(&source, "postgres.sh");
    let script = format!("PROGRAMS={} FSYNC={fsync} sh {}", programs.display(), program.display());
    let [setup, run, check] = ["setup", "run", "check"].map(|subcommand| format!("{script} {subcommand}"));
    stage.make_folder("empty");
    let usring = stage.program(World::ConfinedBare, stage.path("tools/usring")).limit(POSTGRES_LIMIT);
    let usring = usring.args(["crash", "--state", "empty", "--seed", "1", "--budget", "240s"]);
    let ended = usring.args(["--setup", &setup, "--run", &run, "--check", &check]).finish();
    Some(Crash { status: ended.status.code(), said: ended.stdout, stderr: ended.stderr })
}

#[test]
#[ignore = "takes minutes"]
fn postgresql_keeps_what_it_has_committed() {
    if let Some(crash) = postgres("on") {
        crash.found_nothing();
    }
}

#[test]
#[ignore = "takes minutes"]
fn postgresql_loses_commits_without_fsync() {
    if let Some(crash) = postgres("off") {
        crash.found();
    }
}

/// Searches with LevelDB or RocksDB. If the headers of `library` are not installed, returns `None`,
/// and the test counts as skipped.
fn key_value(library: &str, sync: &str, model: &str) -> Option<Crash> {
    let header = format!("/usr/include/{library}/c.h");
    if !Path::new(&header).exists() {
        skip(&format!("{header} is missing; as root: apt-get install lib{library}-dev"));
        return None;
    }
    let stage = Stage::new();
    let program = stage.path(library);
    let (define, link) = (format!("-D{}", library.to_uppercase()), format!("-l{library}"));
    stage.compile_as("crash/key_value.c", &[&define, &link], &program);
    let program = program.display();
    let [setup, run] = [format!("{program} create"), format!("{program} write {sync}")];
    let check = format!("{program} check");
    // In the model posix, the search checks about 140 states of RocksDB before it finds a failing
    // one. This takes longer than the usual budget.
    Some(crash_for("180s", &["--setup", &setup, "--run", &run, "--check", &check, "--model", model]))
}

/// RocksDB renames a file to CURRENT, which names a new manifest, and syncs the folder afterwards.
/// If names can reach the disk in any order, CURRENT can name a manifest whose own name is lost.
#[test]
#[ignore = "takes minutes"]
fn rocksdb_opens_after_each_power_loss_only_if_the_file_system_orders_names() {
    if let Some(crash) = key_value("rocksdb", "sync", "ext4-ordered") {
        crash.found_nothing();
    }
    if let Some(crash) = key_value("rocksdb", "sync", "posix") {
        let said = crash.found();
        assert!(said.contains("creation of \"db/MANIFEST-"), "{said}");
    }
}

/// LevelDB begins a new log without a sync of its folder, so the log's name may be lost.
#[test]
#[ignore = "takes minutes"]
fn leveldb_keeps_synced_records_only_if_the_file_system_orders_names() {
    if let Some(crash) = key_value("leveldb", "sync", "ext4-ordered") {
        crash.found_nothing();
    }
    if let Some(crash) = key_value("leveldb", "sync", "posix") {
        let said = crash.found();
        assert!(said.contains("creation of \"db/") && said.contains("no fsync of \"db\" came after it"), "{said}");
    }
}

#[test]
#[ignore = "takes minutes"]
fn leveldb_and_rocksdb_lose_records_that_are_not_synced() {
    for library in ["leveldb", "rocksdb"] {
        for model in ["posix", "ext4-ordered"] {
            if let Some(crash) = key_value(library, "nosync", model) {
                let said = crash.found();
                assert!(said.contains("record 1 is missing"), "{said}");
            }
        }
    }
}
