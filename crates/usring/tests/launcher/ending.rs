//! A program ends under the launcher as it does without the launcher. `--stats` reports the
//! counters however the program ends.

use crate::{IDENTITY, copy, installation, run, stub, text, usring, utf8};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a shell script under the launcher. Returns after the script has set its signal traps and
/// printed `ready`.
fn start(script: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = usring(&["run", "--stats", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut lines), "ready\n");
    (child, lines)
}

fn line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line
}

fn kill(signal: &str, process: u32) {
    let status = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(status.success());
}

/// Returns the state letter of a process from /proc/PID/stat.
fn state(process: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

fn wait_for_state(process: u32, wanted: char) {
    let start = Instant::now();
    while state(process) != wanted {
        assert!(start.elapsed() < TIMEOUT, "process {process} is {}, not {wanted}", state(process));
        std::thread::yield_now();
    }
}

/// Returns whether a process has ended. It may still be a zombie.
fn has_ended(process: u32) -> bool {
    !Path::new(&format!("/proc/{process}")).exists() || state(process) == 'Z'
}

#[test]
fn a_program_is_killed_together_with_its_supervisor() {
    let (mut child, mut lines) = start("echo ready; echo $$; read -r go; echo went on");
    let program: u32 = line(&mut lines).trim().parse().unwrap();
    kill("-KILL", child.id());
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let start = Instant::now();
    while !has_ended(program) {
        assert!(start.elapsed() < TIMEOUT, "process {program} outlives its supervisor");
        std::thread::yield_now();
    }
}

#[test]
fn exit_statuses_are_the_programs_own() {
    for status in [0, 1, 42, 125, 255] {
        let script = format!("exit {status}");
        assert_eq!(run(&["sh", "-c", &script]).status.code(), Some(status));
        assert_eq!(run(&["--stats", "sh", "-c", &script]).status.code(), Some(status));
    }
}

#[test]
fn the_launcher_dies_by_the_programs_signal() {
    for (name, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("INT", 2), ("RTMIN+3", 37)] {
        let script = format!("kill -{name} $$");
        let sent = |arguments: &[&str]| {
            // env(1) resets the signals that this process ignores. Otherwise the shell would ignore
            // them, too.
            let shell = ["env", "--default-signal", "bash", "-c", &script];
            usring(&["run"]).args(arguments).args(shell).output().unwrap().status.signal()
        };
        assert_eq!(sent(&[]), Some(number), "{name}");
        assert_eq!(sent(&["--stats"]), Some(number), "{name} with --stats");
    }
}

/// Compiles a program whose signal handler itself reports the signal. A shell would not do, because
/// it runs its trap only after its current `read`.
fn listener() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = br#"
            #include <signal.h>
            #include <stdio.h>
            #include <string.h>
            #include <unistd.h>
            static void caught(int n) {
                write(1, "caught\n", 7);
                if (n != SIGINT) _exit(7);
            }
            int main(void) {
                struct sigaction action = { .sa_handler = caught, .sa_flags = SA_RESTART };
                int signals[] = { SIGTERM, SIGUSR1, SIGHUP, SIGINT };
                for (int i = 0; i < 4; i++) sigaction(signals[i], &action, 0);
                char line[64] = "";
                write(1, "ready\n", 6);
                read(0, line, sizeof line - 1);
                line[strcspn(line, "\n")] = 0;
                printf("after %s\n", line);
                return 6;
            }"#;
        let source = installation().write("listener.c", source, 0o644);
        installation().compile(&["-w", utf8(&source)], "listener")
    })
}

#[test]
fn a_signal_to_the_supervisor_reaches_the_program() {
    for (signal, status) in [("TERM", 7), ("USR1", 7), ("HUP", 7), ("INT", 6)] {
        let mut command = usring(&["run", "--stats", utf8(listener())]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(line(&mut lines), "ready\n");
        kill(&format!("-{signal}"), child.id());
        assert_eq!(line(&mut lines), "caught\n");
        // A program that still runs exits at the end of its input.
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(status));
    }
}

#[test]
fn the_terminals_interrupt_reaches_the_program_once() {
    // script(1) gives the program a terminal, on which the test types Ctrl-C. The shell that
    // script(1) starts would get SIGINT too and end by it, so `exec` replaces that shell.
    let usring = installation().path("usring");
    let command = format!("exec {} run --stats {}", usring.display(), listener().display());
    let mut child = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut lines), "ready\r\n");
    let mut terminal = child.stdin.take().unwrap();
    terminal.write_all(b"\x03").unwrap();
    assert_eq!(line(&mut lines), "^Ccaught\r\n");
    terminal.write_all(b"typed\n").unwrap();
    assert_eq!([line(&mut lines), line(&mut lines)], ["typed\r\n", "after typed\r\n"]);
    assert_eq!(child.wait().unwrap().code(), Some(6));
}

#[test]
fn a_realtime_signal_reaches_the_program() {
    let source = b"#include <signal.h>\n#include <stdio.h>\n#include <unistd.h>\n\
        static void caught(int n) { _exit(n - SIGRTMIN + 50); }\n\
        int main(void) { signal(SIGRTMIN + 5, caught); puts(\"ready\"); fflush(stdout); for (;;) pause(); }\n";
    let source = installation().write("realtime.c", source, 0o644);
    let program = installation().compile(&[utf8(&source)], "realtime");
    let mut child =
        usring(&["run", "--stats", utf8(&program)]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(line(&mut BufReader::new(child.stdout.take().unwrap())), "ready\n");
    kill("-39", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(55));
}

#[test]
fn the_supervisor_stops_and_continues_with_the_program() {
    let (mut child, mut lines) = start("echo ready; echo $$; read -r go; echo went on; exit 5");
    let program: u32 = line(&mut lines).trim().parse().unwrap();
    kill("-STOP", program);
    wait_for_state(child.id(), 'T');
    kill("-CONT", child.id());
    wait_for_state(program, 'S');
    drop(child.stdin.take());
    assert_eq!(line(&mut lines), "went on\n");
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn statistics_report_that_no_ring_was_created() {
    let output = run(&["--stats", "true"]);
    assert_eq!(text(&output.stderr), "usring: no ring was created\n");
}

#[test]
fn statistics_are_printed_even_after_kill_9() {
    let expected = "usring: 1 ring\n\
        opcode  submitted  completed  errors  inline  polled  by worker\n\
        read            5          5       0       5       0          0\n";
    for script in ["exit 0", "exit 3", "kill -9 $$"] {
        let output = usring(&["run", "--stats", "sh", "-c", script]).env("STUB_COUNTS", "1").output().unwrap();
        assert_eq!(text(&output.stderr), expected, "{script}");
    }
}

#[test]
fn statistics_in_files_have_the_counts_and_standard_error_stays_empty() {
    let folder = tempfile::tempdir().unwrap();
    let write = |kind: &str| {
        let file = folder.path().join(kind);
        let option = format!("--stats={kind}:{}", file.display());
        let output = usring(&["run", &option, "sh", "-c", "exit 3"]).env("STUB_COUNTS", "1").output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(3), String::new()));
        std::fs::read_to_string(file).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&write("json")).unwrap();
    let read = serde_json::json!({
        "submitted": 5, "completed": 5, "errors": 0, "inline": 5, "polled": 0, "worker": 0
    });
    assert_eq!((&json["rings"], &json["running"]), (&1.into(), &serde_json::json!([])));
    assert_eq!(json["opcodes"], serde_json::json!({ "read": read }));
    let metrics = write("openmetrics");
    for line in [
        "# TYPE usring_rings counter",
        "usring_rings_total 1",
        "usring_requests_submitted_total{opcode=\"read\"} 5",
        "usring_completion_errors_total{opcode=\"read\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    assert!(metrics.ends_with("\n# EOF\n"), "{metrics}");
}

#[test]
fn a_file_for_statistics_that_cannot_be_written_is_named_before_the_program_starts() {
    let output = run(&["--stats=json:/nonexistent/file", "echo", "started"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(125), String::new()));
    assert!(text(&output.stderr).contains("/nonexistent/file"), "{}", text(&output.stderr));
}

#[test]
fn statistics_name_a_process_that_outlives_the_program() {
    let folder = tempfile::tempdir().unwrap();
    // The script's cat(1) first loads libusring.so, then copies the line, and ends when its
    // standard input ends.
    let script = "mkfifo \"$0\"; exec 3<&0; cat <&3 >\"$0\" & read line <\"$0\"; echo $!";
    let fifo = folder.path().join("fifo");
    let mut command = usring(&["run", "--stats", "sh", "-c", script, utf8(&fifo)]);
    command.env("STUB_COUNTS", "1").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"line\n").unwrap();
    let cat = line(&mut BufReader::new(child.stdout.take().unwrap()));
    assert!(child.wait().unwrap().success());
    drop(input);
    let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    let expected = format!("usring: 1 process still runs ({}); its further requests", cat.trim());
    assert!(said.lines().any(|line| line.starts_with(&expected)), "{said}");
}

#[test]
fn a_run_whose_program_never_loaded_the_library_fails() {
    // The library does not fit into the limited address space, so the loader warns and runs the
    // program without it.
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("usring");
    copy(Path::new(env!("CARGO_BIN_EXE_usring")), &alone);
    let source = installation().write("large.c", b"char large[1 << 30];", 0o644);
    let library = installation().compile(&[&stub(IDENTITY)[..], &[utf8(&source).to_owned()]].concat(), "large.so");
    std::fs::rename(library, folder.path().join("libusring.so")).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new("prlimit");
        command.arg("--as=500000000").arg(&alone).arg("run").args(words).output().unwrap()
    };
    for words in [&["--stats", "true"][..], &["true"]] {
        let output = run(words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("it ended before libusring.so had been loaded"), "{said}");
    }
    // io_uring_setup(2) answers EPERM (1), not the kernel's EFAULT.
    let setup = "import ctypes; c = ctypes.CDLL(None, use_errno=True); c.syscall(425, 1, 0); print(ctypes.get_errno())";
    assert_eq!(text(&run(&["python3", "-c", setup]).stdout), "1\n");
}
