//! `cargo xtask check`: everything that CI runs. Cheap steps that fail often come first.

use crate::package::Purpose;
use crate::step::{self, Report, Tally};
use crate::{Outcome, layers, loom, package, packages, product, prose, size, toolchain};

const STEPS: usize = 12;

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
    // The release build often occupies one processor only. So the lints run beside it: they use
    // another target folder (`debug`).
    let lints = std::thread::spawn(lints);
    // Without a build there are no packages, and no tests: the tests run the launcher and the
    // library from the packages.
    let is_built = report.step("build", |_| package::build(false));
    report.step("lints", |_| lints.join().unwrap_or_else(|_| Err("the thread that runs clippy has panicked".into())));
    if is_built {
        report.step("package", |_| package::run(Purpose::Tests));
        report.step("tests", tests);
    }
    report.step("documentation", |_| step::run(step::cargo(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings")));
    report.step("loom models", loom::tests);
    report.finish()
}

/// Runs clippy for all crates, and prints its output at its end. The library has a call of its own,
/// because `default-members` in Cargo.toml leaves the library out.
fn lints() -> Outcome {
    let clippy = |what: &[&str]| {
        step::run_beside(step::cargo(&["clippy", "--quiet", "--all-targets"]).args(what).args(["--", "-D", "warnings"]))
    };
    let of_all = clippy(&[]);
    clippy(&["--package", "usring-interpose"]).and(of_all)
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
    // leaves the library out. They use the release build, because it is there already.
    let (of_library, library) =
        step::run_tests(&mut step::cargo(&["test", "--release", "--package", "usring-interpose"]));
    tally.add(of_library);
    outcome.and(library)
}
