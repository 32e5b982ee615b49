//! The loom models, which try every interleaving of what threads share.

use crate::Outcome;
use crate::step::{self, Tally};

/// The crates that have models, each in a file `tests/loom_….rs`.
const CRATES: [&str; 4] = ["usring-sys", "usring-ring", "usring-device", "usring-swap"];

pub fn run() -> Outcome {
    tests(&mut Tally::default())
}

/// Runs the models. They have a build tree of their own, which keeps `--cfg loom` out of the other.
pub fn tests(tally: &mut Tally) -> Outcome {
    let mut command = step::cargo(&["test", "--release", "--test", "loom_*", "--target-dir", "target/loom"]);
    for name in CRATES {
        command.args(["--package", name]);
    }
    let (models, outcome) = step::run_tests(command.env("RUSTFLAGS", "--cfg loom").env("LOOM_LOG", "error"));
    let count = models.passed;
    tally.add(models);
    outcome?;
    if count == 0 { Err("no loom model was found".into()) } else { Ok(()) }
}
