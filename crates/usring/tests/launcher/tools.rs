//! `usring doctor`, `demo` and `bench` with a stub in place of libusring.so, so that io_uring calls
//! reach the kernel. The three commands must not take the kernel's io_uring for usring's.

use crate::skipped::skip;
use crate::{installation, text, usring};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn the_doctor_names_the_failed_checks() {
    let mut command = usring(&["doctor"]);
    if nix::unistd::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("usring              does not work: io_uring fails with EPERM: operation not permitted"),
        "{said}"
    );
    assert!(said.contains("kernel's io_uring"), "{said}");
}

#[test]
fn the_doctor_tries_each_mechanism_of_swap() {
    let said = text(&usring(&["doctor"]).output().unwrap().stdout);
    assert!(said.contains("swap                userfault ") && said.contains("; usring uses this one"), "{said}");
    // The mechanism mprotect works on every kernel and in every sandbox.
    assert!(said.contains("mprotect works, ") && said.contains(" µs for a page from memory"), "{said}");
    // `run --swap` fails, because the stub serves no program.
    assert!(said.contains("  run --swap        does not work: "), "{said}");
}

#[test]
fn the_doctor_says_that_it_runs_inside_a_run() {
    let doctor = installation().path("usring");
    let inside = text(&crate::run(&[crate::utf8(&doctor), "doctor"]).stdout);
    assert!(inside.starts_with("inside a run        this command itself runs under usring"), "{inside}");
    let outside = text(&usring(&["doctor"]).output().unwrap().stdout);
    assert!(!outside.contains("inside a run"), "{outside}");
}

#[test]
fn without_proc_the_doctor_says_so_in_one_sentence() {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "umount --lazy /proc && exec \"$0\" doctor"]);
    let output = command.arg(installation().path("usring")).output().unwrap();
    let said = text(&output.stdout);
    if said.is_empty() {
        return skip("/proc cannot be unmounted here");
    }
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("it needs /proc, which is not mounted"), "{said}");
}

#[test]
fn a_verdict_has_colour_on_a_terminal_alone() {
    let doctor = format!("{} doctor", installation().path("usring").display());
    let said = |command: &mut Command| text(&command.output().unwrap().stdout);
    let on_terminal = |variable: &str| {
        let mut command = Command::new("script");
        said(
            command.args(["--quiet", "--command", &doctor, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", variable),
        )
    };
    let coloured = on_terminal("");
    assert!(coloured.contains("\x1b[31musring does not work here\x1b[0m"), "{coloured:?}");
    assert!(!on_terminal("1").contains('\x1b'));
    assert!(!said(&mut usring(&["doctor"])).contains('\x1b'));
}

#[test]
fn the_doctor_sees_a_filter() {
    let launcher = installation().path("usring");
    let output = usring(&["denied", "--"]).arg(launcher).arg("doctor").output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("blocked by ") && said.contains("no_new_privs set"), "{said}");
}

#[test]
fn the_demo_fails_where_usring_does_not_serve() {
    let output = usring(&["demo", "--megabytes", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("io_uring_setup failed: EPERM: operation not permitted"),
        "{}",
        text(&output.stdout)
    );
    assert!(
        text(&output.stderr).contains("io_uring_setup failed: EPERM: operation not permitted"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_demos_program_verifies_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let output = usring(&["demo-program", "--blocks", "2048", "--file"]).arg(&file).output().unwrap();
    if text(&output.stderr).contains("io_uring_setup failed") {
        return skip("the kernel's io_uring is not to be had here");
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 2048 * 4096);
    let figures: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .filter_map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap().get_mut("Finished").map(|it| it.take())
        })
        .collect();
    assert_eq!(figures.len(), 2);
    for of_phase in figures {
        let latencies: Vec<_> = (0..4).map(|index| of_phase["latencies"][index].as_u64().unwrap()).collect();
        assert!(latencies[0] > 100 && latencies.is_sorted(), "nanoseconds: {latencies:?}");
    }
}

#[test]
fn a_benchmark_never_measures_the_kernel_as_usring() {
    // Scripts in place of the workloads. `workload-floor` succeeds. `workload-nop` and
    // `workload-read` fail under a seccomp filter, as programs do that usring does not serve if the
    // filter denies the kernel's io_uring.
    installation().write("workload-floor", b"#!/bin/sh\necho '{\"operations\": 1, \"nanoseconds\": 1}'\n", 0o755);
    for name in ["workload-nop", "workload-read"] {
        installation().write(name, b"#!/bin/sh\ngrep -q '^Seccomp:.*2' /proc/self/status && exit 1\necho '{\"operations\": 1, \"nanoseconds\": 1}'\n", 0o755);
    }
    let output = usring(&["bench", "nop", "--quick"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("is not served by usring"), "{}", text(&output.stderr));
}

/// Waits until `condition` holds. Fails after a minute.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a process runs. A zombie does not count.
fn runs(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// A script stands for the storage back end. It never listens on its socket, so the benchmark waits
/// for it.
#[test]
fn the_back_end_of_a_benchmark_ends_with_it_and_an_ignored_signal_ends_neither() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
    let script = format!("#!/bin/sh\necho $$ > {}/started\nexec sleep 100\n", folder.path().display());
    let daemon = installation().write(&format!("{name}/qemu-storage-daemon"), script.as_bytes(), 0o755);
    let path = format!("{}:{}", daemon.parent().unwrap().display(), std::env::var("PATH").unwrap());
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut command = Command::new("sh");
        // nohup(1) would also redirect the output.
        command.args(["-c", "trap '' HUP; exec \"$0\" bench polling --quick"]).arg(installation().path("usring"));
        command.env("PATH", &path).env("TMPDIR", folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut bench = command.spawn().unwrap();
        let started = || std::fs::read_to_string(folder.path().join("started")).unwrap_or_default();
        wait_until("the back end does not start", || started().ends_with('\n'));
        let back_end = started().trim().to_owned();
        for sent in [Signal::SIGHUP, signal] {
            kill(Pid::from_raw(bench.id().cast_signed()), sent).unwrap();
        }
        assert_eq!(bench.wait().unwrap().signal(), Some(signal as i32));
        wait_until("the back end outlives the benchmark", || !runs(&back_end));
        std::fs::remove_file(folder.path().join("started")).unwrap();
    }
}

#[test]
fn a_failed_write_to_standard_output_is_an_error() {
    for arguments in [&["--help"][..], &["--version"], &["ctl"], &["ctl", "--help"], &["doctor"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = usring(arguments).stdout(full).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {said}");
        assert!(said.contains("cannot write to standard output") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn the_doctor_names_the_limit_that_is_too_low() {
    let hard = |limit: &str| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={limit}")).arg(installation().path("usring")).arg("doctor");
        text(&command.output().unwrap().stdout)
    };
    assert!(hard("400:500").contains("limit of open files is 500: raise"), "{}", hard("400:500"));
    assert!(!hard("400:1024").contains("limit of open files is"), "{}", hard("400:1024"));
}
