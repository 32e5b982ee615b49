//! Faults that only requests have: overflow, late completions, cancellation, spurious signals; and
//! damage to data that was read.

use crate::{LIMIT, run};
use workloads::harness::{Stage, World};

/// Runs `programs/faulty_ring.c` with a rule, and returns what it printed.
fn ring(rule: &str, words: &[&str]) -> String {
    let stage = Stage::new();
    let program = stage.compile("faulty_ring.c", &["-luring"]);
    let run = stage.program_with(World::Transparent, &[format!("--inject={rule}")], program);
    run.args(words).limit(LIMIT).finish().succeeded().stdout.trim().to_owned()
}

#[test]
fn an_overflow_puts_completions_into_the_backlog_and_loses_none() {
    assert_eq!(ring("none", &[]), "ready 5 overflow 0 signals 1: 1 2 3 4 5");
    assert_eq!(ring("nop:overflow:when=2", &[]), "ready 1 overflow 1 signals 1: 1 2 3 4 5");
    assert_eq!(ring("nop:overflow:user_data=5", &[]), "ready 4 overflow 1 signals 1: 1 2 3 4 5");
}

#[test]
fn a_completion_that_is_held_back_comes_behind_later_ones() {
    assert_eq!(ring("nop:reorder=4:when=1", &[]), "ready 5 overflow 0 signals 1: 2 3 4 5 1");
    // The rule would hold the second completion back until 100 later ones have come. Only three
    // follow, so usring releases it at a time limit.
    assert_eq!(ring("nop:reorder=100:when=2", &[]), "ready 4 overflow 0 signals 1: 1 3 4 5 2");
}

#[test]
fn a_spurious_signal_is_one_more_than_the_completions_make() {
    assert_eq!(ring("nop:spurious:when=1", &[]), "ready 5 overflow 0 signals 2: 1 2 3 4 5");
}

#[test]
fn a_request_that_has_to_wait_is_cancelled_and_no_other_is() {
    assert_eq!(ring("ring:read:cancel", &["wait"]), "ECANCELED");
    assert_eq!(ring("nop:cancel", &[]), "ready 5 overflow 0 signals 1: 1 2 3 4 5");
}

#[test]
fn a_rule_can_mean_requests_by_how_they_are_carried_out() {
    assert_eq!(ring("none", &["ways"]), "inline 2 poll 2 worker 2");
    assert_eq!(ring("ring:read:error=EIO:effect=done:by=inline", &["ways"]), "inline -5 poll 2 worker 2");
    assert_eq!(ring("ring:read:error=EIO:by=poll", &["ways"]), "inline 2 poll -5 worker 2");
    assert_eq!(ring("ring:read:error=EIO:by=worker", &["ways"]), "inline 2 poll 2 worker -5");
    for by in ["poll", "worker"] {
        let short = ring(&format!("ring:read:short=1:by={by}"), &["ways"]);
        assert_eq!(short, "inline 2 poll 2 worker 2".replace(&format!("{by} 2"), &format!("{by} 1")));
    }
    assert_eq!(ring("ring:read:delay_exit=1ms:retval=7:effect=done:by=inline", &["ways"]), "inline 7 poll 2 worker 2");
}

#[test]
fn bits_are_flipped_in_the_data_that_a_call_reads() {
    for (kind, name, rule) in [
        ("ring", "read", "ring:read"),
        ("ring", "readv", "ring:readv"),
        ("call", "read", "pread64"),
        ("call", "readv", "preadv"),
        ("aio", "read", "aio:read"),
    ] {
        let said = run(&format!("{rule}:flip=1:when=2"), &format!("{kind} {name} 3"));
        assert_eq!(said, "1 4096; 2 4096 wrong; 3 4096", "{rule}");
    }
}
