//! `usring ctl inject`: rules that are added and removed while the program runs.

use crate::prepare;
use nix::sys::stat::Mode;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use workloads::harness::{Finished, Run, Stage, Started, World};

/// A running program that makes its next call only when the test asks for it.
struct Stepped {
    stage: Stage,
    started: Option<Started>,
    go: File,
    done: File,
}

impl Stepped {
    fn start(options: &[&str], calls: &str) -> Stepped {
        let stage = Stage::new();
        let fifo = |name: &str| {
            let path = stage.path(name);
            nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).unwrap();
            File::options().read(true).write(true).open(path).unwrap()
        };
        let (go, done) = (fifo("go"), fifo("done"));
        let run: Run = prepare(&stage, options, calls).arg("step");
        Stepped { started: Some(run.start()), stage, go, done }
    }

    /// Lets the program make its next call, and waits for the end of the call.
    fn step(&mut self) {
        self.go.write_all(b"x").unwrap();
        self.done.read_exact(&mut [0]).unwrap();
    }

    /// Runs `usring ctl inject`, and returns whether it succeeded, and its output.
    fn ctl(&self, words: &[&str]) -> (bool, String) {
        let mut command = Command::new(self.stage.path("tools/usring"));
        command.args(["ctl", "inject"]).args(words).env("XDG_RUNTIME_DIR", self.stage.path(""));
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    fn finish(&mut self) -> Finished {
        self.started.take().unwrap().finish().succeeded()
    }
}

#[test]
fn rules_are_added_listed_and_removed_while_the_program_runs() {
    for (kind, rule) in [("ring", "ring:fsync"), ("call", "call:fsync"), ("aio", "aio:fsync"), ("call", "fsync")] {
        let mut program = Stepped::start(&["--inject=none", "--seed=3"], &format!("{kind} fsync 6"));
        program.step();
        let (added, said) = program.ctl(&["add", &format!("{rule}:error=EIO")]);
        assert!(added && said.contains("rule 1 added"), "{said}");
        program.step();
        assert!(program.ctl(&["add", &format!("{rule}:error=ENOSPC:when=1")]).0);
        program.step();
        program.step();
        let (_, said) = program.ctl(&["list"]);
        assert!(said.contains("seed 3: 2 active rules"), "{said}");
        assert!(said.contains(&format!("  2 {rule}:error=ENOSPC:when=1\n")), "{said}");
        assert!(program.ctl(&["remove", "2"]).0);
        program.step();
        assert!(program.ctl(&["remove", "1"]).0);
        assert!(!program.ctl(&["remove", "1"]).0);
        program.step();
        let finished = program.finish();
        // A busy disk may make an fsync late.
        let said = finished.stdout.replace(" late", "");
        assert_eq!(said, "1 0\n2 EIO\n3 ENOSPC\n4 0\n5 EIO\n6 0\n", "{kind} {rule}");
        assert!(finished.stderr.contains("usring: 3 faults were injected (seed 3)"), "{}", finished.stderr);
    }
}

#[test]
fn a_rule_for_a_call_that_the_run_does_not_trap_is_refused() {
    let mut program = Stepped::start(&["--inject=ring:nop:delay=1ms"], "ring nop 2");
    program.step();
    let (added, said) = program.ctl(&["add", "write:error=EIO"]);
    assert!(!added && said.contains("does not trap the system call write"), "{said}");
    assert!(program.ctl(&["add", "ring:write:error=EIO"]).0);
    program.step();
    program.finish();
}

#[test]
fn a_rule_can_mean_a_single_thread() {
    let stage = Stage::new();
    let usring = stage.path("tools/usring");
    let add = format!("{} ctl inject add \"call:write:error=EIO:tid=$$\" > /dev/null", usring.display());
    let options = ["--inject=none".to_owned()];
    let run = stage.program_with(World::Transparent, &options, Path::new("/bin/sh"));
    // The shell's own thread makes the second write, and a forked child's thread the first.
    let finished = run.args(["-c", &format!("{add}; (echo child); echo shell")]).finish();
    assert_eq!(finished.stdout, "child\n", "{}", finished.report());
}

#[test]
fn without_a_run_with_rules_the_command_says_so() {
    let stage = Stage::new();
    let mut command = Command::new(stage.path("tools/usring"));
    command.args(["ctl", "inject", "list"]).env("XDG_RUNTIME_DIR", stage.path(""));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("start one with `usring run --inject none -- PROGRAM`"));
    let names = Command::new(stage.path("tools/usring")).args(["ctl", "inject", "names"]).output().unwrap();
    let text = String::from_utf8_lossy(&names.stdout);
    assert!(text.contains("poll_add") && text.contains("renameat2") && text.contains("%sync"), "{text}");
}
