//! Unknown results, commands that cannot run, and the replay of a case.

use crate::{crash, crash_for, programs, usring};
use std::fs;
use std::process::Command;

#[test]
fn a_case_repeats_the_failing_check() {
    let programs = programs();
    let work = tempfile::tempdir().unwrap();
    let case = work.path().join("case").display().to_string();
    let run = format!("{} rename folder call", programs.durable.display());
    let check = programs.check.display().to_string();
    crash(&["--setup", "echo 0 > value", "--run", &run, "--check", &check, "--case", &case]).found();
    let replayed = Command::new(usring()).args(["crash", "--replay", &case]).output().unwrap();
    let said = String::from_utf8_lossy(&replayed.stdout);
    assert_eq!(replayed.status.code(), Some(1), "{said}");
    assert!(said.contains("lost: #3 rename of \"new\" to \"value\""), "{said}");
    assert!(said.contains("the check fails on this state"), "{said}");
}

#[test]
fn a_writer_by_mmap_is_unknown_and_never_passes() {
    let write = "python3 -c 'import mmap; f=open(\"m\",\"r+b\"); m=mmap.mmap(f.fileno(),4); m[0:1]=b\"x\"; m.flush()'";
    let arguments = ["--setup", "printf 1234 > m", "--run", write, "--check", "test -e m"];
    let unknown = crash(&arguments);
    assert_eq!(unknown.status, Some(2), "{}{}", unknown.said, unknown.stderr);
    assert!(
        unknown.said.contains("unknown: a process writes to a file by a shared mapping (mmap): \"m\""),
        "{}",
        unknown.said
    );
    let with_scratch = crash(&[&arguments[..], &["--scratch", "m"]].concat());
    assert_eq!(with_scratch.status, Some(3), "{}", with_scratch.stderr);
    assert!(with_scratch.stderr.contains("changed nothing"), "{}", with_scratch.stderr);
}

#[test]
fn a_budget_that_is_too_short_for_one_state_is_unknown() {
    let check = "[ ! -s \"$USRING_CRASH_OUTPUT\" ] || test -e file";
    let unknown = crash_for("0s", &["--run", "echo 1 > file; echo done", "--check", check]);
    assert_eq!(unknown.status, Some(2), "{}{}", unknown.said, unknown.stderr);
    assert!(unknown.said.contains("unknown: there was no time for a state"), "{}", unknown.said);
}

#[test]
fn a_shared_mapping_that_fails_is_no_writer() {
    let map = "python3 -c 'import mmap,os; f=os.open(\"m\",os.O_RDONLY)\ntry: mmap.mmap(f,4)\nexcept PermissionError: print(1)'";
    let run = format!("echo 5678 > m; {map}");
    let check = "[ ! -s \"$USRING_CRASH_OUTPUT\" ] || [ \"$(cat m)\" = 5678 ]";
    let said = crash(&["--setup", "printf 1234 > m", "--run", &run, "--check", check]).found();
    assert!(said.contains("no fsync of \"m\" came after it"), "{said}");
}

#[test]
fn a_check_that_cannot_fail_or_always_fails_is_refused() {
    for (check, sentence) in [
        ("true", "passes on an emptied folder"),
        ("false", "fails on the folder as the command left it"),
        ("test -e file", "fails on the folder before the command"),
    ] {
        let refused = crash(&["--run", "echo 1 > file", "--check", check]);
        assert_eq!(refused.status, Some(3), "{}", refused.said);
        assert!(refused.stderr.contains(sentence), "{}", refused.stderr);
    }
}

#[test]
fn the_users_folder_stays_as_it_is_and_no_copy_is_left() {
    let work = tempfile::tempdir().unwrap();
    let (state, temporary) = (work.path().join("state"), work.path().join("tmp"));
    fs::create_dir(&state).unwrap();
    fs::create_dir(&temporary).unwrap();
    fs::write(state.join("value"), "0\n").unwrap();
    let programs = programs();
    let run = format!("{} rename none call", programs.durable.display());
    let mut command = Command::new(usring());
    command.env("TMPDIR", &temporary).current_dir(work.path()).args(["crash", "--state", "state", "--run", &run]);
    let output = command.arg("--check").arg(&programs.check).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(state.join("value")).unwrap(), b"0\n");
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn changes_by_several_processes_and_kinds_of_calls_make_the_folder_that_is_there() {
    let run = "mkdir d && echo a > d/one && cat d/one d/one > d/two && cp d/two three && ln three four && \
               echo b >> three && mv d e && rm four && ln -s three five && truncate -s 3 e/two && \
               dd if=e/one of=six bs=1 seek=3 conv=notrunc 2>/dev/null; echo done";
    // The check passes if the command has printed nothing yet, or if the renamed folder is there.
    let check = "[ ! -s \"$USRING_CRASH_OUTPUT\" ] || test -e e/one";
    let result = crash(&["--run", run, "--check", check]);
    // The command prints "done" without a sync before it. So a power loss can leave the printed
    // line and no renamed folder: the search finds this state, and the exit status is 1. If the
    // recorded history did not explain the folder, the status would be 2.
    let said = result.found();
    assert!(said.contains("the last line printed before the power loss: \"done\""), "{said}");
}

#[test]
fn a_wrong_command_line_has_the_status_of_what_could_not_run() {
    let wrong = Command::new(usring()).args(["crash", "--run", "true"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(3));
}
