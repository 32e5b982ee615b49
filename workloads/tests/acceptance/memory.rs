//! The memory that idle rings take.

use workloads::harness::{LIBURING, Stage, World, require};

/// Maximum memory, in bytes, that an idle ring of 256 entries may take.
const LIMIT: i64 = 256 * 1024;

/// Returns three costs of a ring in bytes: its proportional set size, its resident set size, and
/// the resident set size that remains after the rings are closed.
fn cost(rings: u64, entries: u32) -> [i64; 3] {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("ring_memory.c", &["-luring"]);
    let run = stage.program(World::Denied, program).args([rings.to_string(), entries.to_string()]);
    let finished = run.finish().succeeded();
    let words: Vec<i64> = finished.stdout.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let cost = words.try_into().unwrap_or_else(|words| panic!("{words:?}: {}", finished.report()));
    finished.served(&["nop"], 2 * rings);
    cost
}

#[test]
fn an_idle_ring_of_256_entries_costs_under_256_kib() {
    let [share, resident, left] = cost(100, 256);
    println!("per ring: {share} bytes (Pss), {resident} (Rss), {left} left behind");
    assert!(share < LIMIT, "{share} bytes (Pss) per ring");
    assert!(resident < LIMIT, "{resident} bytes (Rss) per ring");
}

#[test]
fn a_thousand_rings_can_exist_at_once() {
    let [share, _, left] = cost(1000, 256);
    assert!(share < LIMIT, "{share} bytes (Pss) per ring");
    assert!(left < LIMIT / 8, "{left} bytes per ring stayed when the rings were gone");
}
