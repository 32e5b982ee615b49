//! `usring bench`: each benchmark runs, measures all rows of usring, and lists these rows in its
//! JSON. The tests do not check the figures, because other processes may use the machine.

use nix::libc;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use workloads::harness::skipped::skip;
use workloads::harness::{QEMU_STORAGE_DAEMON, Stage, World, on_kernel, require};
use workloads::postgres::Postgres;

/// Labels of rows that may be missing: they measure another product, or need something that not
/// every machine has.
const OTHERS: [&str; 10] = [
    "kernel",
    "io_uring, kernel",
    "kernel, empty filter",
    "kernel, no flags",
    "kernel, singleshot",
    "epoll",
    "blkio",
    "umap",
    "mapped file",
    "floor",
];

fn bench(stage: &Stage, name: &str, options: &[&Path]) -> Value {
    let report = stage.path("report.json");
    let run = stage.program(World::Bare, stage.path("tools/usring")).args(["bench", name, "--quick", "--json"]);
    let finished = run.arg(&report).args(options).limit(Duration::from_secs(240)).finish();
    // With --quick, a missed target is no error.
    assert_eq!(finished.status.code(), Some(0), "{}", finished.report());
    assert!(finished.stdout.contains("too rough to be quoted"), "{}", finished.report());
    assert!(finished.stdout.contains(&format!("usring bench {name}")), "{}", finished.report());
    let report = serde_json::from_slice::<Value>(&stage.read("report.json")).unwrap();
    std::fs::remove_file(stage.path("report.json")).unwrap();
    report
}

fn check(report: &Value, name: &str) {
    assert_eq!(report["bench"], name);
    let units = report["units"].as_object().unwrap();
    assert!(!units.is_empty());
    let rows = report["rows"].as_array().unwrap();
    let mut ours = 0;
    for row in rows {
        if OTHERS.contains(&row["system"].as_str().unwrap()) {
            continue;
        }
        ours += 1;
        assert!(row.get("missing").is_none(), "{row:#}");
        let medians = row["medians"].as_object().unwrap();
        // `wakes` may be 0: a thread that polls for completions need not be woken.
        let is_something =
            |(name, value): (&String, &Value)| value.as_f64().unwrap() > 0.0 || name.starts_with("wakes");
        assert!(medians.keys().eq(units.keys()) && medians.iter().all(is_something), "{row:#}");
        assert_eq!(row["quartiles"].as_object().unwrap().len(), medians.len(), "{row:#}");
    }
    assert!(ours > 0, "{report:#}");
    for bar in report["bars"].as_array().unwrap() {
        assert!(bar["target"].is_f64() && (bar["holds"].is_boolean() || bar["value"].is_null()), "{bar:#}");
    }
}

#[test]
fn every_benchmark_measures_usring() {
    if on_kernel() {
        return skip("there is no usring");
    }
    require(&QEMU_STORAGE_DAEMON);
    let stage = Stage::with_release();
    for (name, path) in [
        ("workload-floor", env!("CARGO_BIN_EXE_workload-floor")),
        ("workload-call", env!("CARGO_BIN_EXE_workload-call")),
        ("workload-start", env!("CARGO_BIN_EXE_workload-start")),
        ("workload-fork", env!("CARGO_BIN_EXE_workload-fork")),
        ("workload-nop", env!("CARGO_BIN_EXE_workload-nop")),
        ("workload-read", env!("CARGO_BIN_EXE_workload-read")),
        ("workload-device", env!("CARGO_BIN_EXE_workload-device")),
        ("workload-aio", env!("CARGO_BIN_EXE_workload-aio")),
        ("workload-swap", env!("CARGO_BIN_EXE_workload-swap")),
        ("workload-tasks", env!("CARGO_BIN_EXE_workload-tasks")),
        ("workload-echo", env!("CARGO_BIN_EXE_workload-echo")),
        ("workload-storm", env!("CARGO_BIN_EXE_workload-storm")),
        ("workload-epoll", env!("CARGO_BIN_EXE_workload-epoll")),
        ("echo_server", env!("CARGO_BIN_EXE_echo_server")),
    ] {
        stage.copy(Path::new(path), &format!("tools/{name}"));
    }
    let of_devices =
        ["nop", "call", "start", "engine", "file", "sqpoll-iopoll", "polling", "polled-aio", "swap", "vhost-user"];
    let of_sockets = ["task-work", "echo", "multishot-accept"];
    for name in of_devices.into_iter().chain(of_sockets) {
        check(&bench(&stage, name, &[]), name);
    }
}

#[test]
fn the_benchmark_of_postgres_measures_usring() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let postgres = match Postgres::cached() {
        Ok(postgres) => postgres,
        Err(why) => return skip(&why),
    };
    let stage = Stage::with_release();
    stage.copy(Path::new(env!("CARGO_BIN_EXE_workload-postgres")), "tools/workload-postgres");
    let programs = postgres.program("postgres");
    check(&bench(&stage, "postgres", &[Path::new("--postgres"), programs.parent().unwrap()]), "postgres");
}

/// Starts `usring` with these arguments, and interrupts it as a terminal's ^C does. The interrupt
/// comes once `usring` has made the file `made`-PID, or a file in the folder `made`-PID. Fails
/// unless `usring` has removed this file or folder at the end.
#[track_caller]
fn assert_an_interrupt_removes(made: &str, arguments: &[&str]) {
    let stage = Stage::with_release();
    stage.copy(Path::new(env!("CARGO_BIN_EXE_workload-read")), "tools/workload-read");
    let mut run = stage.program(World::Bare, stage.path("tools/usring")).args(arguments).start();
    let made = stage.path(&format!("{made}-{}", run.id()));
    let is_there = || made.is_file() || std::fs::read_dir(&made).is_ok_and(|mut entries| entries.next().is_some());
    let begin = Instant::now();
    while !is_there() {
        assert!(!run.has_ended() && begin.elapsed() < Duration::from_secs(60), "{}", run.stderr_so_far());
        std::thread::sleep(Duration::from_millis(2));
    }
    killpg(Pid::from_raw(run.id().cast_signed()), Signal::SIGINT).unwrap();
    let finished = run.finish();
    assert_eq!(finished.status.signal(), Some(libc::SIGINT), "{}", finished.report());
    assert!(!made.exists(), "{}", finished.report());
}

#[test]
fn an_interrupt_removes_the_files_of_a_benchmark() {
    if on_kernel() {
        return skip("there is no usring");
    }
    assert_an_interrupt_removes("usring-bench", &["bench", "file"]);
}

#[test]
fn an_interrupt_removes_the_file_of_the_demo() {
    if on_kernel() {
        return skip("there is no usring");
    }
    assert_an_interrupt_removes("usring-demo", &["demo", "--megabytes", "1024"]);
}

/// A workload must refuse a mistyped option. Otherwise it would silently measure something else.
#[test]
fn workload_refuses_an_unknown_option() {
    let output = Command::new(env!("CARGO_BIN_EXE_workload-nop")).args(["--bach", "32"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--bach"), "{output:?}");
}
