//! The output of `usring run --inject`: the message about a wrong rule, the report at the end, and
//! the log, from which another run repeats the faults.

use crate::{prepare, said};
use workloads::harness::{Stage, World};

#[test]
fn a_wrong_rule_is_shown_with_a_caret_and_advice() {
    let message = |rule: &str| {
        let stage = Stage::new();
        let finished = stage.program_with(World::Transparent, &[format!("--inject={rule}")], "true").finish();
        assert_eq!(finished.status.code(), Some(125), "{}", finished.report());
        finished.stderr
    };
    let said = message("write,raed:error=EIO");
    assert!(said.contains("did you mean 'read'?\n  write,raed:error=EIO\n        ^^^^\n"), "{said}");
    let said = message("read,fsync:short=10");
    assert!(said.contains("'fsync', which transfers no bytes"), "{said}");
}

#[test]
fn the_report_says_what_was_injected_how_often_and_with_which_seed() {
    let options = ["--inject=ring:read:error=EIO:when=2+2", "--inject=fsync:delay=1ms", "--seed", "77"];
    let finished = prepare(&Stage::new(), &options, "ring read 5").finish().succeeded();
    let expected = "\
usring: 2 faults were injected (seed 77)
rule                            call       calls  faults
1 ring:read:error=EIO:when=2+2  ring read      5       2
";
    assert_eq!(finished.stderr, expected);
    let finished = prepare(&Stage::new(), &["--inject=recv:error=EIO", "--seed=3"], "ring read 1").finish();
    assert!(finished.stderr.contains("no fault was injected: no rule matched a call of the program (seed 3)"));
}

#[test]
fn a_log_repeats_the_same_faults() {
    let actions = ["error=EIO:p=40%", "short=random:p=60%", "error=ENOSPC:effect=partial:short=random:p=50%"];
    for (kind, rule) in [("ring", "ring:write"), ("call", "call:write:path=written"), ("aio", "aio:write")] {
        for action in actions {
            let stage = Stage::new();
            let log = stage.path("log");
            let log = log.to_str().unwrap();
            let calls = format!("{kind} write 20");
            let inject = format!("--inject={rule}:{action}");
            let first = prepare(&stage, &[&inject, "--inject-log", log], &calls).finish().succeeded();
            let again = prepare(&stage, &[&format!("--inject=@{log}")], &calls).finish().succeeded();
            assert_eq!(said(&again), said(&first), "{rule}:{action}");
            let lines = std::fs::read_to_string(log).unwrap();
            assert!(lines.contains(&format!("{kind}:write:process=1:nth=")), "{lines}");
        }
    }
}

#[test]
fn a_wrong_line_of_a_file_is_named() {
    let stage = Stage::new();
    let file = stage.write("rules", "# rules\n\nread:error=EIO # a comment\nread:eror=EIO\n");
    let run = stage.program_with(World::Transparent, &[format!("--inject=@{}", file.display())], "true");
    let finished = run.finish();
    assert_eq!(finished.status.code(), Some(125));
    assert!(finished.stderr.contains("line 4: unknown key 'eror'; did you mean 'error'?"), "{}", finished.stderr);
}
