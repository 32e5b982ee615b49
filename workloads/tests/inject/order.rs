//! `usring run --order`: completions in an order that a seed chooses (`programs/ordered.c`).

use super::LIMIT;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::OnceLock;
use workloads::harness::{Finished, Run, Stage, World};

/// The path of the program `ordered`, compiled on first use.
fn ordered() -> &'static PathBuf {
    static PROGRAM: OnceLock<(Stage, PathBuf)> = OnceLock::new();
    &PROGRAM
        .get_or_init(|| {
            let stage = Stage::new();
            let program = stage.compile("ordered.c", &["-luring", "-lpthread"]);
            (stage, program)
        })
        .1
}

fn prepare(stage: &Stage, seed: impl Display, program: &str) -> Run {
    let option = format!("--order=seed={seed}");
    stage.program_with(World::Transparent, &[option], ordered()).args([program]).limit(LIMIT)
}

/// `seed`: the seed, or with a further part `N,overflow=on`.
fn run(seed: impl Display, program: &str) -> Finished {
    prepare(&Stage::new(), seed, program).finish()
}

/// Returns the order of completions that the program printed.
fn order_of(seed: impl Display, program: &str) -> String {
    run(seed, program).succeeded().stdout
}

const UNSURE: &str = "another run with this seed may have another order";

#[test]
fn a_seed_gives_a_program_with_one_thread_one_order() {
    let order = order_of(1, "trace");
    assert_eq!(order.lines().next().unwrap().split_whitespace().count(), 72, "{order}");
    for round in 1..100 {
        assert_eq!(order_of(1, "trace"), order, "round {round}");
    }
}

#[test]
fn a_seed_makes_a_cq_overflow_at_the_same_completions_each_time() {
    for (seed, program) in [("2,overflow=on", "trace"), ("2", "overflow")] {
        let first = run(seed, program).succeeded();
        assert!(first.stderr.contains(" a CQ overflowed"), "{program}: {}", first.stderr);
        for round in 1..100 {
            let again = run(seed, program).succeeded();
            assert_eq!((&again.stdout, &again.stderr), (&first.stdout, &first.stderr), "{program}, round {round}");
        }
    }
}

#[test]
fn other_seeds_give_other_orders() {
    let orders: BTreeSet<_> = (1..=10).map(|seed| order_of(seed, "trace")).collect();
    assert!(orders.len() >= 9, "{orders:?}");
}

#[test]
fn a_program_that_looks_without_waiting_gets_all_completions() {
    for program in ["peeking", "listening"] {
        for seed in ["1", "2", "3", "4,overflow=on", "5,overflow=on", "6,overflow=on"] {
            let order = order_of(seed, program);
            let numbers: BTreeSet<&str> = order.lines().next().unwrap().split_whitespace().collect();
            assert_eq!(numbers.len(), 18, "{program} {seed}: {order}");
        }
    }
}

#[test]
fn a_program_that_assumes_the_order_of_submission_is_found() {
    Stage::new().program(World::Transparent, ordered()).args(["assumes"]).limit(LIMIT).finish().succeeded();
    let found = (1..=5).filter(|&seed| run(seed, "assumes").status.code() == Some(1)).count();
    assert!(found >= 3, "found by {found} of 5 seeds");
    for seed in 1..=20 {
        run(seed, "fixed").succeeded();
    }
}

#[test]
fn a_program_that_forgets_to_wake_the_sq_thread_is_found() {
    let found = (1..=3).filter(|&seed| run(seed, "sleepy").status.code() == Some(1)).count();
    assert!(found >= 1, "found by no seed");
    for seed in 1..=5 {
        run(seed, "awake").succeeded();
    }
}

#[test]
fn orders_that_the_kernel_keeps_stay() {
    for seed in 1..=20 {
        run(seed, "promised").succeeded();
        run(format!("{seed},overflow=on"), "promised").succeeded();
    }
}

#[test]
fn sockets_that_are_ready_together_are_served_in_several_orders() {
    let orders: BTreeSet<_> = (1..=5).map(|seed| order_of(seed, "sockets")).collect();
    assert!(orders.len() >= 3, "{orders:?}");
}

#[test]
fn completions_beyond_the_room_of_the_cq_are_not_lost() {
    let overflowed = (1..=10).filter(|&seed| run(seed, "overflow").succeeded().stdout.contains("overflowed")).count();
    assert!(overflowed >= 5, "{overflowed} of 10 seeds");
    for seed in 1..=10 {
        run(format!("{seed},overflow=on"), "overflow").succeeded();
    }
}

#[test]
fn a_program_that_ignores_the_overflow_of_its_cq_is_found() {
    Stage::new().program(World::Transparent, ordered()).args(["loses"]).limit(LIMIT).finish().succeeded();
    let found = (1..=5).filter(|&seed| run(seed, "loses").stdout.contains("no completion is missing")).count();
    assert!(found >= 3, "found by {found} of 5 seeds");
    for seed in 1..=20 {
        run(seed, "flushes").succeeded();
    }
}

#[test]
fn a_cq_with_room_for_all_requests_overflows_only_on_demand() {
    for seed in 1..=5 {
        let usual = run(seed, "roomy-loses").succeeded();
        assert!(!usual.stderr.contains("overflow"), "{}", usual.stderr);
    }
    let with = |seed: u64, program| run(format!("{seed},overflow=on"), program);
    let found = (1..=5).filter(|&seed| with(seed, "roomy-loses").stdout.contains("no completion is missing")).count();
    assert!(found >= 3, "found by {found} of 5 seeds");
    for seed in 1..=20 {
        let rescued = with(seed, "roomy-flushes").succeeded();
        assert!(rescued.stderr.contains(" a CQ overflowed"), "{}", rescued.stderr);
    }
}

#[test]
fn the_report_says_when_a_seed_cannot_promise_the_order() {
    let alone = run(3, "trace").succeeded().stderr;
    assert!(alone.contains("usring: order by seed 3: ") && alone.contains(" completions were moved"), "{alone}");
    assert!(!alone.contains(UNSURE), "{alone}");
    for program in ["threads", "awake"] {
        let several = run(3, program).succeeded().stderr;
        assert!(several.contains(UNSURE), "{program}: {several}");
    }
}

#[test]
fn faults_and_the_order_work_together() {
    let options = ["--order=seed=2".to_owned(), "--inject=ring:fsync:error=EIO".to_owned()];
    let stage = Stage::new();
    let run = stage.program_with(World::Transparent, &options, ordered()).args(["trace"]).limit(LIMIT);
    let said = run.finish().succeeded().stderr;
    assert!(said.contains("8 faults were injected") && said.contains("order by seed 2"), "{said}");
}

#[test]
fn a_wrong_seed_is_refused_before_the_program_starts() {
    let twice = "seed=1,seed=2";
    for wrong in ["7", "seed=", "seed=x", "seed=-1", "overflow=on", "seed=1,overflow", "seed=1,overflow=2", twice] {
        let stage = Stage::new();
        let run = stage.program_with(World::Transparent, &[format!("--order={wrong}")], ordered()).args(["fixed"]);
        let finished = run.limit(LIMIT).finish();
        assert!(!finished.status.success() && finished.stdout.is_empty(), "{wrong}: {finished:?}");
        assert!(finished.stderr.contains("seed=") || finished.stderr.contains("overflow=on"), "{wrong}: {finished:?}");
    }
}

/// The program `name` checks what users of liburing rely on. Its checks must hold in every order of
/// completions. Every second seed has the part `overflow`.
fn holds_under_twenty_seeds(name: &str, overflow: &str) {
    let stage = Stage::new();
    let program = stage.compile(&format!("{name}.c"), &["-luring", "-lpthread"]);
    for seed in 1..=20 {
        let overflow = if seed % 2 == 0 { overflow } else { "" };
        let option = format!("--order=seed={seed}{overflow}");
        let finished = stage.program_with(World::Transparent, &[option], &program).limit(LIMIT * 4).finish();
        assert!(finished.status.success(), "{name}, seed {seed}: {finished:?}");
    }
}

#[test]
fn buffers_of_liburing_hold_under_twenty_seeds() {
    holds_under_twenty_seeds("liburing_buffers", ",overflow=on");
}

#[test]
fn direct_transfers_by_liburing_hold_under_twenty_seeds() {
    holds_under_twenty_seeds("liburing_direct", ",overflow=on");
}

#[test]
fn files_of_liburing_hold_under_twenty_seeds() {
    holds_under_twenty_seeds("liburing_files", ",overflow=on");
}

/// A check of this program counts the signals of an eventfd. An overflow gives none, so it is left
/// out.
#[test]
fn rings_of_liburing_that_threads_share_hold_under_twenty_seeds() {
    holds_under_twenty_seeds("liburing_sharing", "");
}

#[test]
fn waits_of_liburing_hold_under_twenty_seeds() {
    holds_under_twenty_seeds("liburing_waiting", ",overflow=on");
}
