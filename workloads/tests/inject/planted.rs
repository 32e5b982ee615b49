//! Planted bugs that faults bring to light, and their fixed twins (`programs/careless.c`).

use crate::LIMIT;
use std::path::PathBuf;
use std::sync::OnceLock;
use workloads::harness::{Finished, Stage, World};

/// The path of the program `careless`, compiled on first use.
fn careless() -> &'static PathBuf {
    static PROGRAM: OnceLock<(Stage, PathBuf)> = OnceLock::new();
    &PROGRAM
        .get_or_init(|| {
            let stage = Stage::new();
            let program = stage.compile("careless.c", &["-luring"]);
            (stage, program)
        })
        .1
}

fn run(options: &[String], words: &[&str]) -> Finished {
    let stage = Stage::new();
    let run = stage.program_with(World::Transparent, options, careless()).args(words).limit(LIMIT);
    run.current_dir(&stage.path("")).finish()
}

/// Checks that a planted bug stays hidden without the rule, and that faults by the rule bring it to
/// light with most seeds. The fixed twin must give a right answer with every seed.
#[track_caller]
fn is_found(bug: &str, rule: &str) {
    assert_eq!(run(&[], &[bug]).succeeded().stdout, "copied\n", "{bug}");
    let with_seed = |seed: u32| [format!("--inject={rule}:p=20%"), "--seed".to_owned(), seed.to_string()];
    let found = (1..=5).filter(|&seed| run(&with_seed(seed), &[bug]).stdout == "the copy differs\n").count();
    assert!(found >= 4, "{bug} with {rule}: found by {found} of 5 seeds");
    for seed in 1..=10 {
        let twin = run(&with_seed(seed), &[bug, "fixed"]).succeeded();
        assert!(!twin.stderr.contains("no fault"), "{bug} with {rule}: {}", twin.stderr);
        assert!(twin.stdout == "copied\n" || bug == "error" && twin.stdout == "not copied\n", "{bug}: {}", twin.stdout);
    }
}

#[test]
fn a_program_that_ignores_short_transfers_is_found() {
    is_found("short", "ring:read:short=50%");
    is_found("short", "ring:write:short=random");
}

#[test]
fn a_program_that_ignores_the_errors_of_requests_is_found() {
    is_found("error", "ring:write:error=ENOSPC:effect=partial");
    is_found("error", "ring:read:error=EIO");
}

#[test]
fn a_program_that_repeats_an_interrupted_call_wrongly_is_found() {
    is_found("eintr", "enter:error=EINTR");
}

/// The read is the first request of its chain, and the submitting thread issues it.
#[test]
fn a_program_that_does_not_repeat_a_broken_chain_is_found() {
    is_found("chain", "ring:read:short=100");
}
