//! Under the launcher a program inherits exactly what it inherits without the launcher.

use crate::{installation, run, text, usring, utf8};
use std::process::Command;

/// Runs a shell line three times and returns the outputs. `RUN` in the line stands for nothing in
/// the first run, for `usring run` in the second, and for `usring run --stats` in the third.
fn three_ways(line: &str) -> [String; 3] {
    let launcher = installation().path("usring");
    [String::new(), format!("{} run", launcher.display()), format!("{} run --stats", launcher.display())].map(
        |prefix| {
            let output = Command::new("sh").arg("-c").arg(line.replace("RUN", &prefix)).output().unwrap();
            text(&output.stdout)
        },
    )
}

fn assert_same(line: &str) {
    let [plain, executed, supervised] = three_ways(line);
    assert!(!plain.is_empty());
    assert_eq!(plain, executed, "`usring run` in: {line}");
    assert_eq!(plain, supervised, "`usring run --stats` in: {line}");
}

#[test]
fn ignored_and_blocked_signals_stay_ignored_and_blocked() {
    const STATUS: &str = "RUN grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status";
    assert_same(&format!("env --ignore-signal=PIPE,CHLD,USR1 {STATUS}"));
    assert_same(&format!("env --block-signal=USR2,CHLD,TERM {STATUS}"));
}

#[test]
fn default_signals_stay_default() {
    assert_same("RUN grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status");
}

#[test]
fn closed_descriptors_stay_closed_and_none_is_added() {
    assert_same("exec 2>/dev/null; RUN ls /proc/self/fd");
    assert_same("RUN ls /proc/self/fd <&- 2>&-");
}

#[test]
fn arguments_reach_the_program_unchanged() {
    assert_same(r#"RUN printf '[%s]' a '' 'b c' -- --stats '*' "$(printf '\351')""#);
    assert_same("RUN sh -c 'echo $0 $*' zero one -x");
}

#[test]
fn the_environment_keeps_its_order() {
    assert_same("env -i Z=1 A=2 PATH=/usr/bin:/bin M=3 RUN env | grep -v -E '^(LD_PRELOAD|USRING_)'");
}

#[test]
fn an_existing_preload_is_kept() {
    let source = installation().write("empty.c", b"", 0o644);
    let other = installation().compile(&["-shared", "-fPIC", utf8(&source)], "other.so");
    let output = usring(&["run", "sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", &other).output().unwrap();
    let library = installation().path("libusring.so");
    assert_eq!(text(&output.stdout), format!("{}:{}\n", other.display(), library.display()));
}

#[test]
fn without_statistics_the_program_keeps_the_launchers_process() {
    let child = usring(&["run", "sh", "-c", "echo $$"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let id = child.id();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), format!("{id}\n"));
}

#[test]
fn the_no_patch_option_sets_the_environment_variable() {
    assert_eq!(text(&run(&["--no-patch", "sh", "-c", "echo $USRING_NO_PATCH"]).stdout), "1\n");
    assert_eq!(text(&run(&["sh", "-c", "echo $USRING_NO_PATCH"]).stdout), "\n");
}

#[test]
fn relative_and_empty_elements_of_path_are_searched() {
    installation().write("found-here", b"#!/bin/sh\necho found\n", 0o755);
    for path in ["", ".:/bin", "/no/such/folder::/bin"] {
        let output =
            usring(&["run", "found-here"]).env("PATH", path).current_dir(installation().path("")).output().unwrap();
        assert_eq!(text(&output.stdout), "found\n", "PATH={path}");
    }
}
