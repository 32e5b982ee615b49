//! `cargo xtask check`: everything that CI runs. Cheap steps that fail often come first.

use crate::package::Purpose;
use crate::step::{self, Report, Tally};
use crate::{Outcome, layers, loom, package, packages, product, prose, size, toolchain};

const STEPS: usize = 13;

/// Runs all steps, and returns whether all succeeded. A failing step does not stop the later ones,
/// but if the build fails, no packages are made and no tests run. The last line of the output says
/// how many tests and steps passed and failed, and how many tests were skipped.
pub fn run() -> bool {
    let mut report = Report::of(STEPS);
    report.step("packages", |_| packages::provide());
    report.step("toolchain", |_| toolchain::run());
    report.step("format", |_| step::run(&mut step::cargo(&["fmt", "--all", "--check"])));
    report.step("layers", |_| layers::run(false, false));
    report.step("size", |_| size::run());
    report.step("prose", |_| prose::run(None, false));
    report.step("lints", |_| lints(&["--all-targets"]));
    report.step("lints of the library", |_| lints(&["--package", "usring-interpose", "--all-targets"]));
    // Without a build there are no packages, and no tests: the tests run the launcher and the
    // library from the packages.
    if report.step("build", |_| package::build(false)) {
        report.step("package", |_| package::run(Purpose::Tests));
        report.step("tests", tests);
    }
    report.step("documentation", |_| step::run(step::cargo(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings")));
    report.step("loom models", loom::tests);
    report.finish()
}

fn lints(what: &[&str]) -> Outcome {
    step::run(step::cargo(&["clippy", "--quiet"]).args(what).args(["--", "-D", "warnings"]))
}

/// Runs all tests. Tests that start the product use the release build, which is the one that is
/// shipped. Tests run on twice as many threads as there are processors, because most tests mostly
/// wait.
fn tests(tally: &mut Tally) -> Outcome {
    let mut command = step::cargo(&["test", "--no-fail-fast"]);
    command.env("USRING_BIN", product::folder(true).join("usring"));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    command.env("RUST_TEST_THREADS", (2 * processors).to_string());
    let node = packages::node_folder();
    if node.exists() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(node).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(folders).unwrap_or(path.clone()));
    }
    let (counted, outcome) = step::run_tests(&mut command);
    tally.add(counted);
    // The library's tests need a cargo call of their own, because `default-members` in Cargo.toml
    // leaves the library out. They use the release build, because that build exists already.
    let (of_library, library) =
        step::run_tests(&mut step::cargo(&["test", "--release", "--package", "usring-interpose"]));
    tally.add(of_library);
    outcome.and(library)
}
