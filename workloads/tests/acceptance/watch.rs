//! `usring ps` and `usring top` beside fio.

use crate::preloaded::has_no_usring;
use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use workloads::harness::{FIO, Stage, Started, World, require};

/// A fio job that reads for a minute, unless a test ends it.
const JOB: [&str; 8] = [
    "--ioengine=io_uring",
    "--name=watched",
    "--rw=randread",
    "--size=1m",
    "--time_based",
    "--runtime=60",
    "--rate_iops=2000",
    "--thread",
];

/// Time limit for changes that normally appear within a few milliseconds.
const LIMIT: Duration = Duration::from_secs(30);

fn usring(stage: &Stage, arguments: &[&str]) -> Output {
    Command::new(stage.path("tools/usring")).args(arguments).output().unwrap()
}

/// Returns what `usring ps` says of each process below `ancestor`.
fn processes(stage: &Stage, ancestor: u32) -> Vec<Value> {
    let output = usring(stage, &["ps", "--json"]);
    let Ok(Value::Array(all)) = serde_json::from_slice(&output.stdout) else {
        panic!("{}", String::from_utf8_lossy(&output.stderr))
    };
    all.into_iter().filter(|process| is_below(process["pid"].as_u64().unwrap(), ancestor.into())).collect()
}

fn is_below(process: u64, ancestor: u64) -> bool {
    let parent = |process: &u64| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    std::iter::successors(Some(process), parent).take(10).any(|id| id == ancestor)
}

/// Waits until a process below `ancestor` has the wanted property, and returns what `usring ps`
/// says of it.
#[track_caller]
fn wait_for(stage: &Stage, ancestor: u32, wanted: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let found = processes(stage, ancestor);
        if let Some(process) = found.iter().find(|process| wanted(process)) {
            return process.clone();
        }
        assert!(begin.elapsed() < LIMIT, "{found:?}");
    }
}

/// Starts the job and waits until its requests are counted.
fn start_counted(stage: &Stage) -> (Started, Value) {
    let started = stage.program(World::Denied, require(&FIO)).args(JOB).start();
    let process =
        wait_for(stage, started.id(), |process| process["requests"].as_u64().is_some_and(|requests| requests > 0));
    (started, process)
}

fn end(started: Started) {
    started.terminate();
    let _ = started.finish();
}

#[test]
fn ps_lists_a_counted_program_with_its_run() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let (started, process) = start_counted(&stage);
    assert_eq!(process["program"], "fio");
    assert_eq!(process["rings"], 1);
    assert_eq!(process["run"].as_u64(), Some(started.id().into()));
    end(started);
}

#[test]
fn ps_lists_a_preloaded_program_that_is_not_counted() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let library = format!("LD_PRELOAD={}", stage.path("tools/libusring.so").display());
    let started = stage.program(World::Bare, "/usr/bin/env").arg(library).arg(require(&FIO)).args(JOB).start();
    let process = wait_for(&stage, started.id(), |process| process["program"] == "fio");
    assert_eq!((&process["rings"], &process["requests"], &process["run"]), (&Value::Null, &Value::Null, &Value::Null));
    end(started);
}

#[test]
fn top_shows_the_rates_of_a_program_and_of_its_opcodes() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let (started, process) = start_counted(&stage);
    let id = process["pid"].to_string();
    let output = usring(&stage, &["top", &id, "--once", "--json", "--interval", "1"]);
    let rates: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of_process = &rates["processes"][0]["counts"];
    let reads = &rates["opcodes"]["read"];
    for counts in [of_process, reads] {
        let submitted = counts["submitted"].as_u64().unwrap_or_default();
        assert_ne!(submitted, 0, "{rates}");
        // The program continues while `top` reads the counters one after the other, so they differ
        // a little.
        assert!(counts["completed"].as_u64().unwrap().abs_diff(submitted) <= 1 + submitted / 10, "{rates}");
    }
    let table = String::from_utf8(usring(&stage, &["top", "--once", "--interval", "1"]).stdout).unwrap();
    assert!(table.lines().any(|line| line.starts_with("fio ") && line.contains(&id)), "{table}");
    assert!(table.lines().any(|line| line.starts_with("read ")), "{table}");
    end(started);
}

/// Returns a line without the terminal's control sequences.
fn visible(line: &str) -> String {
    let mut parts = line.trim_end().split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.trim_start_matches(|it: char| !it.is_ascii_alphabetic()).get(1..).unwrap()
    })
}

/// Waits for the end of a process. After [`LIMIT`], kills it and fails the test.
#[track_caller]
fn end_of(process: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > LIMIT {
            let _ = process.kill();
            let _ = process.wait();
            panic!("still running after {LIMIT:?}");
        }
        std::thread::yield_now();
    }
}

/// `top` must draw its first table long before the first interval ends. It must notice the key `q`
/// although another key precedes it.
#[test]
fn top_draws_at_once_on_a_terminal_until_q_is_pressed_and_restores_it() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let (started, process) = start_counted(&stage);
    let shown = stage.path("terminal");
    let top = format!("{} top {} -i 600", stage.path("tools/usring").display(), process["pid"]);
    let command = format!("stty rows 6 cols 40; {top}; stty -a");
    let mut script = Command::new("/usr/bin/script");
    script.args(["--quiet", "--flush", "--command", &command]).arg(&shown);
    let mut terminal = script.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while !fs::read_to_string(&shown).unwrap_or_default().contains("REQ/S") {
        if begin.elapsed() > LIMIT {
            let _ = terminal.kill();
            panic!("no table on the terminal");
        }
    }
    terminal.stdin.take().unwrap().write_all(b"xq").unwrap();
    assert!(end_of(&mut terminal).success());
    let text = fs::read_to_string(&shown).unwrap();
    let (before, after) = text.split_once("\x1b[?1049l").expect("the old screen came back");
    assert!(after.contains(" icanon") && after.contains(" echo "), "{after}");
    let (_, last) = before.rsplit_once("\x1b[H").unwrap();
    assert!(last.lines().count() <= 6, "{last:?}");
    last.lines().for_each(|line| assert!(visible(line).chars().count() <= 40, "{line:?}"));
    assert!(last.lines().any(|line| visible(line).starts_with("fio ")), "{last:?}");
    end(started);
}

/// `top` must end when its terminal is gone. The terminal is not its controlling terminal, so no
/// SIGHUP comes.
#[test]
fn top_ends_when_its_terminal_is_gone() {
    if has_no_usring() {
        return;
    }
    let stage = Stage::new();
    let (started, _) = start_counted(&stage);
    // No other process may inherit the terminal's master side, so it has O_CLOEXEC from the start.
    let mut terminal = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let path = ptsname_r(&terminal).unwrap();
    let output = File::options().write(true).custom_flags(libc::O_NOCTTY).open(path).unwrap();
    let mut top = Command::new(stage.path("tools/usring"))
        .args(["top", "-i", "0.1"])
        .stdin(Stdio::null())
        .stdout(output)
        .spawn()
        .unwrap();
    let mut shown = String::new();
    while shown.matches("REQ/S").count() < 3 {
        let mut buffer = [0; 4096];
        let length = terminal.read(&mut buffer).unwrap();
        shown.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    drop(terminal);
    assert!(end_of(&mut top).success());
    end(started);
}

#[test]
fn top_says_that_a_process_is_not_served() {
    let stage = Stage::new();
    let output = usring(&stage, &["top", "1", "--once"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "usring top: process 1 is not served by usring; `usring ps` lists those that are\n"
    );
}
