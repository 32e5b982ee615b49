//! Builds the product (libusring.so and the command) and runs parts of it.

use crate::soname::soname;
use crate::{Outcome, postgres, step};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Builds libusring.so, and then everything else except this crate.
pub fn build(release: bool) -> Outcome {
    build_beside_library(release, &["--workspace", "--exclude", "usring-interpose", "--exclude", "xtask"])
}

fn build_beside_library(release: bool, packages: &[&str]) -> Outcome {
    build_library(release)?;
    let profile = profile(release);
    step::run(step::cargo(&["build"]).args(packages).args(profile))
}

/// Builds libusring.so alone. The library is freestanding, so no other crate may enable features in
/// its dependencies. A cargo call of its own ensures this.
pub fn build_library(release: bool) -> Outcome {
    step::run(step::cargo(&["build", "--package", "usring-interpose"]).args(profile(release)))?;
    link_soname(&folder(release))
}

fn profile(release: bool) -> &'static [&'static str] {
    if release { &["--release"] } else { &[] }
}

/// Makes a link to the library. Its name is the library's soname, which linked programs contain and
/// by which the loader finds the library.
fn link_soname(folder: &Path) -> Outcome {
    let link = folder.join(soname(env!("CARGO_PKG_VERSION")));
    let _ = std::fs::remove_file(&link);
    let made = std::os::unix::fs::symlink("libusring.so", &link);
    made.map_err(|error| format!("cannot make {} ({error})", link.display()))
}

/// Runs the subcommand `name` of `usring` with these arguments, and returns its exit status. First
/// builds `packages`, with `features`, and the library in the release profile.
pub fn run(name: &str, packages: &[&str], features: &[&str], arguments: &[OsString]) -> ExitCode {
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    let packages: Vec<&str> = packages.chain(features.iter().flat_map(|feature| ["--features", feature])).collect();
    let status = build_beside_library(true, &packages).and_then(|()| {
        let mut command = Command::new(folder(true).join("usring"));
        command.arg(name).args(arguments).status().map_err(|error| format!("cannot start usring ({error})"))
    });
    match status {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Groups of conformance cases that are most likely to find a mistake in the engine.
const DEFAULT_GROUPS: [&str; 5] = ["nop", "link", "drain", "timeout", "poll"];

/// Builds the debug product, and runs the unit tests of ring, engine and aio. Then runs the
/// conformance cases of the groups whose names contain one of `groups`. Builds no other tests,
/// which would take most of the time.
pub fn quick(groups: &[String]) -> Outcome {
    build_beside_library(false, &["--package", "usring", "--package", "conformance", "--bins"])?;
    step::run(&mut step::cargo(&[
        "test",
        "--package",
        "usring-ring",
        "--package",
        "usring-engine",
        "--package",
        "usring-aio",
    ]))?;
    let mut command = step::cargo(&["test", "--package", "conformance", "--test", "agree", "--"]);
    command.env("USRING_BIN", folder(false).join("usring"));
    if groups.is_empty() {
        command.args(DEFAULT_GROUPS)
    } else {
        command.args(groups)
    };
    step::run(&mut command)
}

/// Runs the echo server on usring under many kinds of clients.
pub fn soak_sockets(seconds: u32, connections: u32, server: &[OsString]) -> Outcome {
    build_beside_library(true, &["--package", "usring", "--package", "workloads"])?;
    let beside = |name| folder(true).join(name);
    let mut command = Command::new(beside("workload-soak"));
    command.args(["--seconds", &seconds.to_string(), "--connections", &connections.to_string(), "--"]);
    command.arg(beside("usring")).args(["run", "--deny-kernel", "--"]).arg(beside("echo_server")).args(server);
    step::run(&mut command)
}

/// Runs `shared_rings.c`, whose processes share rings while some of them are killed. `numbers`:
/// processes, rings, seconds in all. One run takes at most [`LONGEST_ROUND`] seconds, so a longer
/// time takes several runs.
pub fn soak_shared_rings(numbers: [u32; 3], on_kernel: bool) -> Outcome {
    build(true)?;
    let program = folder(true).join("shared_rings");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).arg(&program).arg(step::root().join("workloads/programs/shared_rings.c"));
    step::run(compiler.args(["-pthread", "-luring"]))?;
    let [processes, rings, mut left] = numbers;
    while left > 0 {
        let seconds = left.min(LONGEST_ROUND);
        left -= seconds;
        let mut command = Command::new(if on_kernel { program.clone() } else { folder(true).join("usring") });
        if !on_kernel {
            command.args(["run", "--deny-kernel", "--"]).arg(&program);
        }
        step::run(command.args([processes, rings, seconds].map(|number| number.to_string())))?;
    }
    Ok(())
}

/// Maximum length of one run of `shared_rings`, in seconds. A longer run would need more request
/// numbers than the program has.
const LONGEST_ROUND: u32 = 30;

/// Kills processes of PostgreSQL on usring under load.
pub fn soak_postgres(options: &[OsString]) -> Outcome {
    postgres::provide();
    build_beside_library(true, &["--package", "usring", "--package", "workloads"])?;
    step::run(Command::new(folder(true).join("workload-postgres-soak")).args(options))
}

/// Runs the tests that are marked as ignored because they take minutes: those in the module
/// `module` of the test file `test` of `workloads`.
pub fn soak_ignored(test: &str, module: &str) -> Outcome {
    build(true)?;
    let mut command = step::cargo(&["test", "--package", "workloads", "--test", test, module]);
    command.args(["--", "--ignored", "--test-threads=1"]).env("USRING_BIN", folder(true).join("usring"));
    step::run(&mut command)
}

/// Runs the conformance cases in a build that delays threads at random (`usring_sys::ordering`).
/// The build goes to a folder of its own.
pub fn soak_interleavings(rounds: u32, groups: &str) -> Outcome {
    let tree = folder(true).with_file_name("perturbed");
    let perturbed = |arguments: &[&str]| {
        let mut command = step::cargo(arguments);
        command.env("RUSTFLAGS", "--cfg perturbed").env("CARGO_TARGET_DIR", &tree);
        command.env("USRING_BIN", tree.join("release/usring"));
        command
    };
    for package in ["usring-interpose", "usring"] {
        step::run(&mut perturbed(&["build", "--release", "--package", package]))?;
    }
    for round in 1..=rounds {
        println!("== round {round} of {rounds}");
        step::run(&mut perturbed(&["test", "--release", "--package", "conformance", "--test", "agree", groups]))?;
    }
    Ok(())
}

/// Returns the folder of a profile's build results.
pub fn folder(release: bool) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| step::root().join("target"), PathBuf::from);
    target.join(if release { "release" } else { "debug" })
}
