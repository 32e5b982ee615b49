//! `--deny-kernel` denies the kernel's three io_uring calls and nothing else.

use crate::{installation, text, usring, utf8};
use std::os::unix::process::CommandExt;
use std::process::Output;

/// A C program. It prints the errno of five calls: the three calls of io_uring, and the calls with
/// the numbers before and after them. Then it prints the value of no_new_privs.
const SOURCE: &[u8] = b"#include <errno.h>\n#include <stdio.h>\n#include <sys/prctl.h>\n#include <unistd.h>\n\
    static int try(long number) { errno = 0; syscall(number, -1, 0, 0, 0, 0, 0); return errno; }\n\
    int main(void) { for (int n = 424; n <= 428; n++) printf(\"%d \", try(n));\n\
    printf(\"%d\\n\", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)); }\n";

fn calls(options: &[&str]) -> Output {
    static PROGRAM: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let source = installation().write("calls.c", SOURCE, 0o644);
        installation().compile(&[utf8(&source)], "calls")
    });
    let mut command = usring(&["run"]);
    command.args(options).arg(program);
    if nix::unistd::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    command.output().unwrap()
}

#[test]
fn the_three_io_uring_calls_fail_with_eperm_and_their_neighbours_do_not() {
    for options in [&["--deny-kernel"][..], &["--deny-kernel", "--stats"]] {
        let output = calls(options);
        let answers = text(&output.stdout);
        let answers: Vec<_> = answers.split_whitespace().collect();
        assert_eq!(answers[1..4], ["1", "1", "1"], "{answers:?}");
        assert!(answers[0] != "1" && answers[4] != "1", "{answers:?}");
        assert_eq!(answers[5], "1", "no_new_privs");
    }
}

#[test]
fn no_call_is_denied_without_the_option() {
    let already = nix::sys::prctl::get_no_new_privs().unwrap();
    let answers = text(&calls(&[]).stdout);
    assert!(answers.ends_with(&format!(" {}\n", u8::from(already))), "no_new_privs is left alone: {answers}");
}
