//! Debian's SQLite. With settings that promise durability the search finds no failing state. With
//! weaker settings it finds one.

use crate::{Crash, crash};
use workloads::harness::{SQLITE, require};

/// Searches with a command that makes 3 transactions of two rows each, and prints the number of
/// each transaction after its commit.
fn transactions(settings: &str) -> Crash {
    let sqlite = require(&SQLITE);
    let insert = "BEGIN; INSERT INTO t VALUES('$i', hex(randomblob(3000))); INSERT INTO t VALUES('$i', ''); COMMIT;";
    let run = format!("for i in 1 2 3; do {sqlite} db \"{settings} {insert}\" > /dev/null && echo $i; done");
    let check = format!(
        "[ \"$({sqlite} db 'PRAGMA integrity_check')\" = ok ] || exit 1
         last=$(tail -n 1 \"$USRING_CRASH_OUTPUT\")
         rows=$({sqlite} db \"SELECT count(*) FROM t WHERE a <= ${{last:-0}}\")
         [ \"$rows\" = $((2 * ${{last:-0}})) ]"
    );
    let setup = format!("{sqlite} db 'CREATE TABLE t(a INTEGER, b)'");
    crash(&["--setup", &setup, "--run", &run, "--check", &check, "--scratch", "*-shm"])
}

#[test]
fn no_state_is_found_with_full_and_a_write_ahead_log() {
    transactions("PRAGMA synchronous=FULL; PRAGMA journal_mode=WAL;").found_nothing();
}

#[test]
fn no_state_is_found_with_full_and_a_truncated_journal() {
    transactions("PRAGMA synchronous=FULL; PRAGMA journal_mode=TRUNCATE;").found_nothing();
}

#[test]
fn no_state_is_found_with_extra_and_a_removed_journal() {
    transactions("PRAGMA synchronous=EXTRA; PRAGMA journal_mode=DELETE;").found_nothing();
}

#[test]
fn a_state_is_found_with_synchronous_off() {
    transactions("PRAGMA synchronous=OFF; PRAGMA journal_mode=WAL;").found();
    transactions("PRAGMA synchronous=OFF; PRAGMA journal_mode=DELETE;").found();
}

/// SQLite commits a transaction by removing the journal. With synchronous=FULL, SQLite does not
/// sync the folder after the removal, so the journal can be there again after a power loss.
/// SQLite's documentation of synchronous=EXTRA says so.
#[test]
fn with_full_and_a_removed_journal_the_last_transaction_can_be_undone() {
    let said = transactions("PRAGMA synchronous=FULL; PRAGMA journal_mode=DELETE;").found();
    assert!(said.contains("removal of \"db-journal\""), "{said}");
    assert!(said.contains("no fsync of the folder itself came after it"), "{said}");
}
