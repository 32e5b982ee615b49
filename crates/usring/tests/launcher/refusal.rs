//! `usring run` refuses a program that it cannot serve, before the program starts.

use crate::skipped::skip;
use crate::{STUB, copy, installation, run, stub, text, usring, utf8};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

/// Returns the bytes of true(1), a dynamically linked x86-64 program. Tests change some of them.
fn true_bytes() -> Vec<u8> {
    std::fs::read("/usr/bin/true").unwrap()
}

fn assert_refused(arguments: &[&str], status: i32, reason: &str) {
    let output = run(arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.starts_with("usring run: ") && said.contains(reason), "{said}");
    assert_eq!(said.lines().count(), 1, "one sentence: {said}");
}

#[test]
fn a_static_program_is_refused() {
    let source = installation().write("static.c", b"int main(void) { return 0; }", 0o644);
    let program = installation().compile(&["-static", utf8(&source)], "static");
    assert_refused(&[utf8(&program)], 125, "statically linked");
    let pie = installation().compile(&["-static-pie", utf8(&source)], "static-pie");
    assert_refused(&[utf8(&pie)], 125, "statically linked");
}

#[test]
fn the_refusal_of_a_go_program_says_how_to_link_it() {
    // The note that the Go tool chain writes.
    let source = b"int main(void) { return 0; }\n__asm__(\".section .note.go.buildid,\\\"a\\\",@note\\n\"\n\
        \".long 4, 4, 4\\n.asciz \\\"Go\\\"\\n.byte 0\\n.long 1\\n.text\");\n";
    let source = installation().write("go.c", source, 0o644);
    let program = installation().compile(&["-static", utf8(&source)], "go-program");
    assert_refused(&[utf8(&program)], 125, "go build -ldflags=-linkmode=external");
}

#[test]
fn an_empty_program_name_is_not_found() {
    assert_refused(&[""], 127, "name is empty");
    assert_refused(&["--", ""], 127, "name is empty");
}

#[test]
fn a_program_for_another_architecture_is_refused() {
    let mut bytes = true_bytes();
    bytes[18..20].copy_from_slice(&183u16.to_le_bytes());
    let program = installation().write("foreign", &bytes, 0o755);
    assert_refused(&[utf8(&program)], 125, "aarch64");
}

#[test]
fn a_32_bit_program_is_refused() {
    let mut bytes = true_bytes();
    bytes[4] = 1;
    bytes[18..20].copy_from_slice(&3u16.to_le_bytes());
    let program = installation().write("narrow", &bytes, 0o755);
    assert_refused(&[utf8(&program)], 125, "32-bit");
}

#[test]
fn a_damaged_elf_file_is_refused() {
    let program = installation().write("damaged", &true_bytes()[..40], 0o755);
    assert_refused(&[utf8(&program)], 125, "damaged");
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let source = installation().write("interpreter.c", b"int main(void) { return 0; }", 0o644);
    let interpreter = installation().compile(&["-static", utf8(&source)], "interpreter");
    let script = format!("#!{} -x\n", interpreter.display());
    let script = installation().write("script-of-static", script.as_bytes(), 0o755);
    assert_refused(&[utf8(&script)], 125, "statically linked");

    let script = installation().write("script-of-nothing", b"#!/no/such/interpreter\n", 0o755);
    assert_refused(&[utf8(&script)], 127, "/no/such/interpreter was not found");

    let script = installation().write("script", b"#! /bin/sh -e\necho served; exit 3\n", 0o755);
    let output = run(&[utf8(&script)]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), "served\n"));
}

#[test]
fn a_script_without_a_first_line_is_run_by_the_shell() {
    let script = installation().write("plain-script", b"echo $1; exit 4\n", 0o755);
    let output = run(&[utf8(&script), "argument"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(4), "argument\n"));
}

#[test]
fn a_missing_program_is_127_and_a_program_that_cannot_execute_is_126() {
    assert_refused(&["no-such-program"], 127, "not found in PATH");
    assert_refused(&["/no/such/program"], 127, "not found");
    assert_refused(&["/usr"], 126, "it is a folder");
    let file = installation().write("not-executable", b"", 0o644);
    assert_refused(&[utf8(&file)], 126, "(EACCES: permission denied)");
}

#[test]
fn a_program_that_gains_privileges_is_refused_unless_they_are_denied() {
    let program = installation().write("gains", &true_bytes(), 0o755);
    std::os::unix::fs::chown(&program, Some(12345), Some(12345)).ok();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o6755);
    std::fs::set_permissions(&program, mode).unwrap();
    if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&program).unwrap()) != 12345 {
        return skip("only root can give a file away");
    }
    assert_refused(&[utf8(&program)], 125, "gain privileges");
    assert_eq!(run(&["--deny-kernel", utf8(&program)]).status.code(), Some(0));
}

#[test]
fn a_program_that_gains_capabilities_is_refused_unless_they_are_denied() {
    let program = installation().write("capable", &true_bytes(), 0o755);
    let set = |capabilities: &str| {
        let set = Command::new("setcap").arg(capabilities).arg(&program).status();
        set.expect("setcap; as root: apt-get install libcap2-bin").success()
    };
    if !set("cap_net_raw+p") {
        return skip("only root can give a file capabilities");
    }
    let as_nobody = |arguments: &[&str]| {
        let mut command = usring(&["run"]);
        command.args(arguments).uid(65534).gid(65534).output().unwrap()
    };
    let refused = |output: Output, advice: &str| {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("would gain capabilities") && said.contains(advice), "{said}");
    };
    refused(as_nobody(&[utf8(&program)]), "add --deny-kernel, with which it gains none");
    // `--stats` makes the run fail if the program has not loaded the library.
    let output = as_nobody(&["--deny-kernel", "--stats", utf8(&program)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // If the file has effective capabilities, the loader ignores the library even though the
    // program gains none of them.
    assert!(set("cap_net_raw+ep"));
    refused(as_nobody(&[utf8(&program)]), "run a copy of it without capabilities");
    refused(as_nobody(&["--deny-kernel", utf8(&program)]), "run a copy of it without capabilities");
}

#[test]
fn a_user_with_a_different_effective_id_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can take another effective id");
    }
    let mut command = usring(&["run", "true"]);
    let own_id = || Ok(nix::unistd::seteuid(nix::unistd::Uid::from_raw(65534))?);
    // SAFETY: between fork and exec, the closure makes a single system call.
    unsafe { command.pre_exec(own_id) };
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("other effective ids (65534:0)"), "{}", text(&output.stderr));
}

#[test]
fn a_library_of_another_build_or_of_another_product_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("usring");
    copy(Path::new(env!("CARGO_BIN_EXE_usring")), &alone);
    let older = stub("0.0.9-0123456789abcdef");
    let nameless = ["-shared", "-fPIC", STUB].map(String::from);
    for (arguments, reason) in
        [(&older[..], "is of another build (0.0.9-0123456789abcdef)"), (&nameless, "not usring's")]
    {
        let library = installation().compile(arguments, "other-build.so");
        copy(&library, &folder.path().join("libusring.so"));
        let output = Command::new(&alone).args(["run", "true"]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(reason) && said.contains("cargo xtask build") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn a_hard_limit_of_open_files_too_low_for_rings_is_refused() {
    let limited = |limit: &str| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={limit}")).arg(installation().path("usring")).args(["run", "true"]);
        command.output().unwrap()
    };
    let output = limited("400:500");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("rings use descriptors from 600 on, but the limit of open files is 500: raise the hard limit"),
        "{said}"
    );
    // The launcher accepts a low soft limit of open files, because usring raises it.
    assert_eq!(limited("400:1024").status.code(), Some(0));
}

#[test]
fn wrong_options_of_run_exit_with_125_and_help_with_0() {
    assert_eq!(run(&[]).status.code(), Some(125));
    assert_eq!(run(&["--no-such-option", "true"]).status.code(), Some(125));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    assert_eq!(usring(&["no-such-command"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_missing_library_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("usring");
    copy(Path::new(env!("CARGO_BIN_EXE_usring")), &alone);
    let output = std::process::Command::new(&alone).args(["run", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("cannot find libusring.so"), "{}", text(&output.stderr));
}

#[test]
fn a_damaged_library_is_refused_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("usring");
    copy(Path::new(env!("CARGO_BIN_EXE_usring")), &alone);
    let whole = std::fs::read(installation().path("libusring.so")).unwrap();
    for damaged in [&b"not a library"[..], &whole[..whole.len() / 8], b""] {
        std::fs::write(folder.path().join("libusring.so"), damaged).unwrap();
        let output = std::process::Command::new(&alone).args(["run", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains("libusring.so is damaged"), "{}", text(&output.stderr));
    }
}

#[test]
fn an_installed_library_is_found_under_lib() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("bin")).unwrap();
    std::fs::create_dir_all(folder.path().join("lib/usring")).unwrap();
    let alone = folder.path().join("bin/usring");
    copy(Path::new(env!("CARGO_BIN_EXE_usring")), &alone);
    std::fs::copy(installation().path("libusring.so"), folder.path().join("lib/usring/libusring.so")).unwrap();
    let output = std::process::Command::new(&alone).args(["run", "sh", "-c", "echo $LD_PRELOAD"]).output().unwrap();
    assert!(text(&output.stdout).ends_with("/lib/usring/libusring.so\n"), "{}", text(&output.stderr));
}
