//! Tests every plain system call that a rule can name, with every action that all calls have. Calls
//! that transfer bytes are also tested with the actions that only transfers have.

use crate::{LIMIT, run};
use std::collections::BTreeSet;
use std::process::Command;
use workloads::harness::{Stage, World};

/// Runs the program with a rule. Returns its lines, as call and result.
fn results(rule: &str) -> Vec<(String, String)> {
    let stage = Stage::new();
    let program = stage.compile("every_call.c", &[]);
    let run = stage.program_with(World::Transparent, &[format!("--inject={rule}")], program);
    let finished = run.limit(LIMIT).finish().succeeded();
    let lines = finished.stdout.lines().map(|line| line.split_once(' ').expect("a call and its result"));
    lines.map(|(name, result)| (name.to_owned(), result.to_owned())).collect()
}

/// Checks the results of all calls when the first call of each name gets `action`. `expected` gets
/// a call's result without the fault, and returns the result with the fault. If the rule is not for
/// all calls, leaves out sync(2), which may take long on a busy disk.
fn each(set: &str, action: &str, expected: impl Fn(&str) -> String) {
    let usual = results("none");
    for ((name, usual), (same, result)) in usual.iter().zip(results(&format!("call:{set}:{action}:when=1"))) {
        assert_eq!(*name, same);
        if name == "signals" || name == "sync" && set != "all" {
            continue;
        }
        // On a busy machine a call may be late without a fault.
        let result = if action.contains("delay") { result } else { result.replace(" late", "") };
        assert_eq!(result, expected(usual.trim_end_matches(" late")), "{name}: {action}");
    }
}

#[test]
fn the_program_makes_all_calls_that_rules_can_name() {
    let stage = Stage::new();
    let output = Command::new(stage.path("tools/usring")).args(["ctl", "inject", "names"]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let plain = text.lines().skip_while(|line| !line.contains("(call:)")).skip(1);
    let names = plain.take_while(|line| line.starts_with(' ')).flat_map(str::split_whitespace);
    let names: BTreeSet<String> = names.map(str::to_owned).collect();
    let made: BTreeSet<String> = results("none").into_iter().map(|(name, _)| name).collect();
    assert!(names.len() > 90, "{names:?}");
    assert_eq!(names.difference(&made).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn an_error_or_a_value_replaces_each_call() {
    each("all", "error=EIO", |_| "EIO".into());
    each("all", "retval=77", |_| "77".into());
    each("!sync", "error=ENOSPC:effect=done", |_| "ENOSPC".into());
}

#[test]
fn a_delay_holds_each_call_up() {
    for action in ["delay=25ms", "delay_exit=25ms"] {
        each("!sync", action, |usual| format!("{usual} late"));
    }
}

#[test]
fn a_signal_comes_with_each_call() {
    let results = results("call:!sync:signal=USR1:when=1");
    let (_, signals) = results.last().unwrap();
    // All lines but two stand for a call that got a signal. The two are the line of sync(2), and
    // the line that counts the signals.
    assert_eq!(signals.parse::<usize>().unwrap(), results.len() - 2);
}

/// Each transfer: its name in `faulty.c`, its rule, and whether it adds to the file `written`.
const TRANSFERS: [(&str, &str, bool); 14] = [
    ("read(2)", "call:read:path=source", false),
    ("read", "call:pread64", false),
    ("readv(2)", "call:readv", false),
    ("readv", "call:preadv", false),
    ("preadv2", "call:preadv2", false),
    ("write", "call:write:path=written", true),
    ("pwrite64", "call:pwrite64:path=written", true),
    ("writev", "call:writev", true),
    ("pwritev", "call:pwritev", true),
    ("pwritev2", "call:pwritev2", true),
    ("sendfile", "call:sendfile", false),
    ("splice", "call:splice", false),
    ("tee", "call:tee", false),
    ("copy_file_range", "call:copy_file_range", true),
];

#[test]
fn each_transfer_can_be_short_or_fail_in_the_middle() {
    for (name, rule, adds) in TRANSFERS {
        for (action, result, moved) in
            [("short=7", "7", 7), ("short=50%", "2048", 2048), ("error=EIO:effect=partial", "EIO", 2048)]
        {
            let size = if adds { format!("; size {moved}") } else { String::new() };
            let said = run(&format!("{rule}:{action}"), &format!("call {name} 1"));
            assert_eq!(said, format!("1 {result}{size}"), "{rule}:{action}");
        }
    }
}

#[test]
fn each_read_can_be_damaged() {
    for (name, rule, _) in TRANSFERS.iter().filter(|(name, ..)| name.contains("read")) {
        assert_eq!(run("none", &format!("call {name} 1")), "1 4096", "{name}");
        assert_eq!(run(&format!("{rule}:flip=1"), &format!("call {name} 1")), "1 4096 wrong", "{rule}");
    }
}
