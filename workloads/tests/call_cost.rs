//! A system call that is not ours costs at most 50 ns more under `usring run`.
//!
//! Measured on the release profile, if that is built: the other one is slower by
//! its own checks. Alone in its test program, so that cargo runs nothing else of ours meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use workloads::harness::{Stage, World};

/// Rounds of one run bare, one under usring: on a busy machine it takes more of
/// them until both sides have had a quiet moment.
const ROUNDS: usize = 8;
const LIMIT: f64 = 50.0;
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_call_that_is_not_ours_costs_at_most_50_ns_more() {
    let stage = Stage::with_release();
    let program = stage.compile("call_cost.c", &[]);
    let mut least: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    let within = |[bare, served]: &[f64; 2]| served - bare <= LIMIT;
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS || !least.values().all(within) && start.elapsed() < PATIENCE {
        rounds += 1;
        for (side, world) in [World::Bare, World::Transparent].into_iter().enumerate() {
            let finished = stage.program(world, &program).finish().succeeded();
            for line in finished.stdout.lines() {
                let (call, nanoseconds) = line.split_once(' ').expect("a call and its cost");
                let seen = &mut least.entry(call.to_owned()).or_insert([f64::INFINITY; 2])[side];
                *seen = seen.min(nanoseconds.parse().expect("a number"));
            }
        }
    }
    assert_eq!(least.len(), 5, "{least:?}");
    let report =
        |(call, [bare, served]): (&String, &[f64; 2])| format!("{call}: {bare} ns, under usring {served} ns\n");
    let report: String = least.iter().map(report).collect();
    println!("{report}");
    assert!(least.values().all(within), "more than {LIMIT} ns:\n{report}");
}
