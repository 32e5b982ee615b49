//! Runs the loom models: tests of shared words that try every order in which threads can act.

use crate::Outcome;
use crate::step::{self, Tally};

/// The crates that have models, in files `tests/loom_….rs`.
const CRATES: [&str; 4] = ["usring-sys", "usring-ring", "usring-device", "usring-swap"];

pub fn run() -> Outcome {
    tests(&mut Tally::default())
}

/// Runs the models in a build folder of their own, because `--cfg loom` would rebuild everything
/// else.
pub fn tests(tally: &mut Tally) -> Outcome {
    let mut command = step::cargo(&["test", "--release", "--test", "loom_*", "--target-dir", "target/loom"]);
    for name in CRATES {
        command.args(["--package", name]);
    }
    // Without these two settings, linking takes far longer than the models do.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let (models, outcome) = step::run_tests(command.env("RUSTFLAGS", "--cfg loom").env("LOOM_LOG", "error"));
    let count = models.passed;
    tally.add(models);
    outcome?;
    if count == 0 { Err("no loom model was found".into()) } else { Ok(()) }
}
