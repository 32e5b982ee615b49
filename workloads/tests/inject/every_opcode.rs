//! Every opcode with every action that all requests have. A program makes one request of each
//! opcode, and prints the fault that each request got.

use crate::LIMIT;
use std::collections::BTreeSet;
use std::process::Command;
use workloads::harness::{Stage, World};

/// Opcodes that `every_opcode.c` leaves out, because one request alone is not enough. LINK_TIMEOUT
/// needs a chain, a command and a zero-copy receive need devices, and a multishot has many results.
const LEFT_OUT: [&str; 7] = [
    "link_timeout",
    "uring_cmd",
    "recv_zc",
    "read_multishot",
    // usring refuses these opcodes.
    "futex_wait",
    "futex_wake",
    "futex_waitv",
];

/// Runs the program with a rule for all opcodes. Returns its lines, as opcode and result.
fn results(action: &str, word: &str) -> Vec<(String, String)> {
    let stage = Stage::new();
    let program = stage.compile("every_opcode.c", &["-luring"]);
    let run = stage.program_with(World::Transparent, &[format!("--inject=ring:{action}")], program);
    let finished = run.arg(word).limit(LIMIT).finish().succeeded();
    let lines = finished.stdout.lines().map(|line| line.split_once(' ').expect("an opcode and its result"));
    lines.map(|(name, result)| (name.to_owned(), result.to_owned())).collect()
}

/// Checks the results of all opcodes. `expected` gets an opcode and its result without a fault, and
/// returns the result with the fault.
fn each(action: &str, word: &str, expected: impl Fn(&str, &str) -> String) {
    let usual = results("none:error=EIO", "");
    for ((name, usual), (same, result)) in usual.iter().zip(results(action, word)) {
        assert_eq!(*name, same);
        if name != "signals" {
            // On a busy machine a request may be late without a fault.
            let result = if action.contains("delay") { result } else { result.replace(" late", "") };
            assert_eq!(result, expected(name, usual), "{name}: {action}");
        }
    }
}

#[test]
fn the_program_makes_all_opcodes() {
    let made: BTreeSet<String> = results("none:error=EIO", "").into_iter().map(|(name, _)| name).collect();
    let missing = usring_names().into_iter().filter(|name| !made.contains(name) && !LEFT_OUT.contains(&&**name));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<String>::new());
}

/// Returns the opcodes that `usring ctl inject names` lists.
fn usring_names() -> Vec<String> {
    let stage = Stage::new();
    let output = Command::new(stage.path("tools/usring")).args(["ctl", "inject", "names"]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let of_rings = text.lines().skip_while(|line| !line.contains("(ring:)")).skip(1);
    let names = of_rings.take_while(|line| line.starts_with(' ')).flat_map(str::split_whitespace);
    names.map(str::to_owned).collect()
}

#[test]
fn an_error_or_a_value_replaces_each_opcode() {
    each("all:error=EIO", "", |_, _| "EIO".into());
    each("all:retval=77", "", |_, _| "77".into());
    each("all:error=ENOSPC:effect=done", "", |_, _| "ENOSPC".into());
}

#[test]
fn a_delay_holds_each_opcode_up() {
    for action in ["all:delay=25ms", "all:delay_exit=25ms"] {
        each(action, "", |_, usual| format!("{} late", usual.trim_end_matches(" late")));
    }
}

#[test]
fn a_signal_comes_with_each_opcode() {
    let results = results("all:signal=USR1", "");
    let (_, signals) = results.last().unwrap();
    assert!(signals.parse::<usize>().unwrap() >= results.len() - 1, "{signals}");
}

#[test]
fn each_opcode_can_be_overtaken_overflow_and_be_signalled_without_a_completion() {
    // `every_opcode.c` submits each request in a batch with a NOP, which overtakes the request.
    each("!nop:reorder=1", "reorder", |name, usual| match name {
        "nop" => usual.into(),
        _ => format!("{} overtaken", usual.trim_end_matches(" late")),
    });
    each("all:overflow", "overflow", |_, usual| format!("{} overflow", usual.trim_end_matches(" late")));
    each("all:spurious", "spurious", |_, usual| format!("{} spurious", usual.trim_end_matches(" late")));
}
