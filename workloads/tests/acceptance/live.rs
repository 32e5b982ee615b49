//! `usring ctl trace`, `requests` and `metrics` on a run that goes on.

use crate::preloaded::has_no_usring;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use workloads::harness::{LIBURING, Stage, Started, World, require};

fn usring(stage: &Stage, arguments: &[&str]) -> Output {
    Command::new(stage.path("tools/usring")).args(arguments).output().unwrap()
}

#[track_caller]
fn printed(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn start(stage: &Stage, trace: &str) -> (Started, OwnedFd) {
    start_with(stage, &[format!("--trace={}", stage.path(trace).display())])
}

/// Starts a program whose requests wait. The program ends when the test closes the returned pipe.
fn start_with(stage: &Stage, options: &[String]) -> (Started, OwnedFd) {
    require(&LIBURING);
    let program = stage.compile("waiting_requests.c", &["-g", "-luring"]);
    let (input, end) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    let run = stage.program_with(World::Transparent, options, program);
    let mut started = run.stdin(input.into()).start();
    assert_eq!(started.wait_for_line(Duration::from_secs(60)), "waiting");
    (started, end)
}

#[test]
fn ctl_requests_lists_what_a_traced_program_waits_for() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let (started, end) = start(&stage, "out.trace");
    let run = started.id().to_string();
    let text = printed(usring(&stage, &["ctl", "requests", "--run", &run]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("run {run}: 3 requests are in flight"), "{text}");
    for (call, user_data, state) in [
        ("read(", "0x77", "waits for its file"),
        ("nop(", "0x78", "waits for the request before it in its chain"),
        ("timeout(", "0x79", "waits for a time or completions"),
    ] {
        let line = lines.iter().find(|line| line.contains(&format!("user_data {user_data})")));
        let line = line.unwrap_or_else(|| panic!("no {user_data}: {text}"));
        assert!(line.contains(call) && line.ends_with(state), "{line}");
    }
    assert!(!text.contains("poll_add"), "the child and its ring are gone: {text}");
    drop(end);
    started.finish().succeeded();
}

#[test]
fn ctl_requests_shows_the_stacks_of_a_checked_program() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let trace = format!("--trace={}", stage.path("out.trace").display());
    let (started, end) = start_with(&stage, &["--check".into(), trace]);
    let run = started.id().to_string();
    let text = printed(usring(&stage, &["ctl", "requests", "--run", &run]));
    let source = std::fs::read_to_string(Stage::script("waiting_requests.c")).unwrap();
    let line = source.lines().position(|line| line.contains("/* submission */")).unwrap() + 1;
    for user_data in ["0x77", "0x78", "0x79"] {
        let stack = text.split_once(&format!("user_data {user_data}) was submitted at\n"));
        let stack = stack.unwrap_or_else(|| panic!("no stack of {user_data}: {text}")).1;
        let main = stack.lines().find(|line| line.trim_start().starts_with("main ")).unwrap_or_default();
        assert!(main.ends_with(&format!("waiting_requests.c:{line}")), "{text}");
    }
    // With a process's id, `usring ctl requests` selects the run of that process, and lists the
    // requests of that process only.
    let process = text.lines().nth(2).and_then(|line| line.split_whitespace().nth(2)).unwrap();
    let of_process = printed(usring(&stage, &["ctl", "requests", process]));
    assert!(of_process.starts_with(&format!("run {run}: 3 requests are in flight\n")), "{of_process}");
    let of_launcher = printed(usring(&stage, &["ctl", "requests", "--run", &run, &run]));
    assert_eq!(of_launcher, format!("run {run}: no request is in flight\n"));
    drop(end);
    started.finish().succeeded();
}

#[test]
fn ctl_trace_writes_the_trace_so_far_and_the_run_goes_on() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let (started, end) = start(&stage, "out.trace,last=1M");
    let run = started.id().to_string();
    let so_far = stage.path("so_far.trace");
    let so_far = so_far.to_str().unwrap();
    let text = printed(usring(&stage, &["ctl", "trace", "--run", &run, so_far]));
    assert!(text.contains("of 4 requests"), "{text}");
    let lines = printed(usring(&stage, &["trace", so_far]));
    assert_eq!(lines.matches("(in flight)").count(), 4, "{lines}");
    drop(end);
    started.finish().succeeded();
    let whole = printed(usring(&stage, &["trace", stage.path("out.trace").to_str().unwrap()]));
    assert!(whole.contains("user_data 0x77"), "{whole}");
}

#[test]
fn ctl_overwrites_no_file_that_is_no_trace_and_names_what_is_missing() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let (started, end) = start(&stage, "out.trace");
    let run = started.id().to_string();
    let other = stage.write("other", "contents");
    let refused = usring(&stage, &["ctl", "trace", "--run", &run, other.to_str().unwrap()]);
    assert!(!refused.status.success());
    assert_eq!(stage.read("other"), b"contents");
    drop(end);
    started.finish().succeeded();
    let gone = usring(&stage, &["ctl", "requests", "--run", &run]);
    assert_eq!(gone.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&gone.stderr),
        format!("usring ctl: no run {run} of yours has --trace; `usring ps` lists your runs\n")
    );
}

/// A metrics server, which is killed when this value is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Sends a request to a server, and returns the answer.
fn ask(address: &str, request: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(connection, "{request} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn ctl_metrics_prints_and_serves_the_counts_of_programs_that_run() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let (started, end) = start_with(&stage, &["--stats".into()]);
    let wanted = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("program=\"waiting_request\""));
        let line = lines.clone().find(|line| line.starts_with("usring_requests_submitted_total{pid=\""));
        let reads = lines.clone().any(|line| line.contains("opcode=\"read\"} 1"));
        assert!(line.is_some() && reads && text.ends_with("# EOF\n"), "{text}");
    };
    wanted(&printed(usring(&stage, &["ctl", "metrics"])));
    let mut command = Command::new(stage.path("tools/usring"));
    let command = command.args(["ctl", "metrics", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
    let mut server = Server(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("metrics are at http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line}"));
    // A client that sends nothing does not delay the server's answers to other clients.
    let silent = TcpStream::connect(address).unwrap();
    let answer = ask(address, "GET /metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text"), "{answer}");
    wanted(&answer);
    drop(silent);
    assert!(ask(address, "GET /other").starts_with("HTTP/1.1 404"));
    assert!(ask(address, "POST /metrics").starts_with("HTTP/1.1 405"));
    drop(server);
    drop(end);
    started.finish().succeeded();
}
