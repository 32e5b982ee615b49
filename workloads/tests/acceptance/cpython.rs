//! CPython's own regression tests of areas in which usring could interfere: processes, signals,
//! threads, memory maps, select, sockets, posix. A test that passes without usring must also pass
//! under it.

use std::collections::BTreeSet;
use std::time::Duration;
use workloads::harness::{self, Finished, Run, Stage, World};

/// Time limit of a test module. Some modules take most of a minute.
const RUN_TIMEOUT: Duration = Duration::from_secs(480);

/// A test that needs a vsock address, which only a virtual machine has. On other machines the test
/// waits for ever, so it is left out.
const NEEDS_VSOCK: &str = "ThreadedVSOCKSocketStreamTest";

fn python(stage: &Stage, world: World, module: &str, only: &BTreeSet<String>) -> Run {
    let name = |number: usize| format!("{module}-{world:?}-{number}");
    let number = (0..).find(|number| !stage.path(&name(*number)).exists()).expect("numbers do not end");
    let folder = stage.make_folder(&name(number));
    // With -E Python ignores the user's environment.
    let run = stage.program(world, harness::python()).args(["-E", "-m", "test", "-v", "-i", NEEDS_VSOCK]);
    let run = only.iter().fold(run, |run, test| run.args(["-m", test]));
    run.arg(module).current_dir(&folder).limit(RUN_TIMEOUT)
}

/// Returns the names of the tests that ended as `how` says, such as `ok`. unittest's report has a
/// line `name (module.Class.name) ... ok` for each test. Output of the test may be in the middle of
/// that line.
fn ended(finished: &Finished, how: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut last = None;
    let report = format!("{}\n{}", finished.stdout, finished.stderr);
    for line in report.lines() {
        if let Some((name, rest)) = line.split_once(" (test.").filter(|(name, _)| !name.contains(' ')) {
            last = rest
                .split_once(')')
                .map(|(place, _)| if place.ends_with(name) { place.to_owned() } else { format!("{place}.{name}") });
        }
        if line == how || line.ends_with(&format!(" ... {how}")) {
            found.extend(last.take());
        }
    }
    found
}

fn no_test_newly_fails(module: &str, at_least: usize) {
    let stage = Stage::new();
    let everything = BTreeSet::new();
    // Runs the tests with and without usring at the same time, to save time. The tests mostly
    // sleep, so neither run slows the other.
    let bare = python(&stage, World::Bare, module, &everything).start();
    let served = python(&stage, World::Transparent, module, &everything).finish();
    let bare = bare.finish();
    let (passed_bare, passed_served) = (ended(&bare, "ok"), ended(&served, "ok"));
    assert!(passed_bare.len() >= at_least, "only {} tests pass without usring: {}", passed_bare.len(), bare.report());
    let mut suspects: BTreeSet<_> = passed_bare.difference(&passed_served).cloned().collect();
    if suspects.is_empty() {
        return;
    }
    // Some of CPython's tests measure time, and sometimes fail on a busy machine. So a failed test
    // runs once more alone, and counts only if it fails again.
    let again = python(&stage, World::Transparent, module, &suspects).finish();
    let passed_again = ended(&again, "ok");
    suspects.retain(|test| !passed_again.contains(test));
    assert!(suspects.is_empty(), "newly failing: {suspects:?}\n{}\n{}", served.report(), again.report());
}

#[test]
fn cpythons_subprocess_tests_pass_as_before() {
    no_test_newly_fails("test_subprocess", 200);
}

#[test]
fn cpythons_signal_tests_pass_as_before() {
    no_test_newly_fails("test_signal", 40);
}

#[test]
fn cpythons_threading_tests_pass_as_before() {
    no_test_newly_fails("test_threading", 120);
}

#[test]
fn cpythons_mmap_tests_pass_as_before() {
    no_test_newly_fails("test_mmap", 20);
}

#[test]
fn cpythons_select_tests_pass_as_before() {
    no_test_newly_fails("test_select", 5);
}

#[test]
fn cpythons_socket_tests_pass_as_before() {
    no_test_newly_fails("test_socket", 400);
}

#[test]
fn cpythons_posix_tests_pass_as_before() {
    no_test_newly_fails("test_posix", 80);
}
