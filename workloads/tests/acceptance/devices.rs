//! fio on devices of a run, by rings that poll for completions (`hipri`) and by ordinary system
//! calls. fio reads its writes back and verifies them.

use crate::fio::{job, number, report};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};
use workloads::harness::{FIO, Finished, Run, Stage, World, require};

const READS: &[&str] = &["read", "readv", "read_fixed"];
const WRITES: &[&str] = &["write", "writev", "write_fixed"];
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1024;
const SIZE: u64 = BLOCK * BLOCKS;

/// fio's options for a polled ring. `INTERRUPT_RING` has the options for a ring that is notified of
/// completions.
const RING: [&str; 4] = ["ioengine=io_uring", "hipri=1", "direct=1", "bs=4k"];
const INTERRUPT_RING: [&str; 3] = ["ioengine=io_uring", "direct=1", "bs=4k"];

/// Prepares fio on the device `disk` with the SPEC `spec`. `options` are fio's options without
/// `--`.
fn fio(stage: &Stage, world: World, spec: &str, options: &[&str]) -> Run {
    let run = stage.program_on_devices(world, &[&format!("disk={spec}")], require(&FIO));
    let run = run.args(["--output-format=json", "--name=job", "--filename=disk"]);
    run.args(options.iter().map(|option| format!("--{option}")))
}

/// Fails unless the run has removed its device's file and its socket.
pub fn is_tidy(stage: &Stage) {
    assert!(!stage.path("disk").exists(), "the device's file is still there");
    assert!(stage.sockets().is_empty(), "the run's socket is still there: {:?}", stage.sockets());
}

/// Runs fio and parses its report. Fails the test if a job had an error.
fn succeeds(stage: &Stage, run: Run) -> (Finished, Value) {
    let finished = run.finish().succeeded();
    is_tidy(stage);
    let document = report(&finished);
    job(&document, "job", &finished);
    (finished, document)
}

/// Returns the sum over all jobs of the value at the JSON pointer `place`. Fails the test if a job
/// had an error.
fn sum(document: &Value, place: &str, finished: &Finished) -> u64 {
    let jobs = document["jobs"].as_array().expect("a list of jobs");
    assert!(jobs.iter().all(|job| number(job, "/error") == 0), "{}", finished.report());
    jobs.iter().map(|job| number(job, place)).sum()
}

/// Returns SPECs of devices that store data.
fn keepers(stage: &Stage) -> [String; 2] {
    let file = stage.write("backing", "");
    File::options().write(true).open(&file).unwrap().set_len(SIZE).unwrap();
    [format!("ram:size={SIZE}"), "file:path=backing".into()]
}

fn verified(stage: &Stage, world: World, spec: &str, options: &[&str]) {
    verified_by(stage, world, spec, &RING, options);
}

fn verified_by(stage: &Stage, world: World, spec: &str, ring: &[&str], options: &[&str]) {
    let size = format!("size={SIZE}");
    let job = [&size, "rw=randwrite", "verify=crc32c", "verify_fatal=1", "randseed=7"];
    let (finished, document) = succeeds(stage, fio(stage, world, spec, &[ring, &job, options].concat()));
    for place in ["/write/io_bytes", "/read/io_bytes"] {
        assert_eq!(sum(&document, place, &finished), SIZE, "{spec} {options:?} {place}: {}", finished.report());
    }
    for place in ["/write/short_ios", "/read/short_ios"] {
        assert_eq!(sum(&document, place, &finished), 0, "{spec} {options:?} {place}: {}", finished.report());
    }
    finished.served(WRITES, BLOCKS).served(READS, BLOCKS).without_errors(&[]);
}

pub fn every_depth(world: World) {
    let stage = Stage::new();
    for spec in keepers(&stage) {
        for depth in ["iodepth=1", "iodepth=32", "iodepth=128"] {
            for ring in [&[][..], &["sqthread_poll=1"], &["registerfiles=1", "fixedbufs=1"]] {
                verified(&stage, world, &spec, &[&[depth], ring].concat());
            }
        }
    }
}

#[test]
fn fio_verifies_its_writes_by_polled_rings_of_every_depth() {
    every_depth(World::Denied);
}

#[test]
fn fio_verifies_its_writes_by_interrupt_driven_rings() {
    let stage = Stage::new();
    let [ram, file] = keepers(&stage);
    let slow = format!("delay({ram},read=exponential(50us),write=100us),poll=interrupt");
    for spec in [&ram, &file, &slow] {
        for options in [&["iodepth=1"][..], &["iodepth=64"], &["iodepth=32", "sqthread_poll=1"]] {
            verified_by(&stage, World::Denied, spec, &INTERRUPT_RING, options);
        }
        // This fio job uses buffered I/O and registered buffers.
        verified_by(&stage, World::Denied, spec, &INTERRUPT_RING, &["iodepth=16", "direct=0", "bs=4k", "fixedbufs=1"]);
    }
}

/// A device with poll=interrupt refuses requests of polled rings: fio gets errno 95 (EOPNOTSUPP).
/// With --iopoll-fallback it serves them.
#[test]
fn a_device_without_polling_refuses_polled_rings_unless_fallback_is_on() {
    const EOPNOTSUPP: u64 = 95;
    let stage = Stage::new();
    let job = ["--output-format=json", "--name=job", "--filename=disk", "--size=1m", "--rw=randread"];
    let ring = RING.map(|option| format!("--{option}"));
    let device = "--device=disk=ram:size=1M,poll=interrupt".to_owned();
    let run = |options: &[String]| {
        let run = stage.program_with(World::Denied, options, require(&FIO)).args(job).args(&ring).finish();
        is_tidy(&stage);
        run
    };
    let refused = run(std::slice::from_ref(&device));
    assert_eq!(number(&report(&refused)["jobs"][0], "/error"), EOPNOTSUPP, "{}", refused.report());
    run(&[device, "--iopoll-fallback".into()]).succeeded().served(READS, 256).without_errors(&[]);
}

#[test]
fn fio_verifies_through_the_trap() {
    let stage = Stage::new();
    for spec in keepers(&stage) {
        verified(&stage, World::Unpatched, &spec, &["iodepth=32"]);
    }
}

#[test]
fn processes_and_threads_share_a_device() {
    let stage = Stage::new();
    let [size, place] = [format!("size={}", SIZE / 2), format!("offset_increment={}", SIZE / 2)];
    for spec in keepers(&stage) {
        for thread in ["thread=0", "thread=1"] {
            verified(&stage, World::Denied, &spec, &["iodepth=16", "numjobs=2", thread, &size, &place]);
        }
    }
}

#[test]
fn a_null_device_accepts_every_request() {
    let stage = Stage::new();
    let size = format!("size={SIZE}");
    for spec in ["null:size=1T", "null:size=1T,latency=10us", "null:size=1T,latency=exponential(20us),poll=hybrid"] {
        for (rw, opcodes) in [("rw=randwrite", WRITES), ("rw=randread", READS)] {
            for depth in ["iodepth=1", "iodepth=128"] {
                for thread in ["sqthread_poll=0", "sqthread_poll=1"] {
                    let options = [&RING[..], &[&size, rw, depth, thread]].concat();
                    let (finished, _) = succeeds(&stage, fio(&stage, World::Denied, spec, &options));
                    finished.served(opcodes, BLOCKS).without_errors(&[]);
                }
            }
        }
    }
}

/// fio's writes have many sizes. With O_DIRECT they are whole blocks. Without O_DIRECT, some of
/// them are parts of blocks.
#[test]
fn fio_verifies_its_writes_by_plain_calls() {
    let stage = Stage::new();
    let size = format!("size={SIZE}");
    for spec in keepers(&stage) {
        for call in [
            &["ioengine=psync", "direct=1", "bs=4k"][..],
            &["ioengine=psync", "direct=0", "bs=1k"],
            &["ioengine=psync", "direct=0", "bs=3k"],
            &["ioengine=psync", "direct=0", "bsrange=512-9k", "bs_unaligned=1"],
            &["ioengine=sync", "direct=0", "bs=512"],
            &["ioengine=vsync", "direct=0", "bs=4k"],
            &["ioengine=pvsync", "direct=0", "bs=3k"],
            &["ioengine=pvsync2", "direct=1", "bs=4k"],
            &["ioengine=pvsync2", "direct=1", "bs=4k", "hipri=1"],
        ] {
            let job = [&size, "rw=randwrite", "verify=crc32c", "verify_fatal=1", "norandommap=0", "end_fsync=1"];
            let run = fio(&stage, World::Denied, &spec, &[call, &job].concat());
            let (finished, document) = succeeds(&stage, run);
            let written = sum(&document, "/write/io_bytes", &finished);
            // If the device's size is no multiple of fio's block size, fio does not write to the
            // end of the device.
            assert!(written > SIZE / 4 * 3 && written <= SIZE, "{spec} {call:?}: {}", finished.report());
            assert_eq!(sum(&document, "/read/io_bytes", &finished), written, "{spec} {call:?}: {}", finished.report());
        }
    }
}

/// The device makes some requests fail, and fio must get their errno 5 (EIO).
#[test]
fn an_error_of_the_device_reaches_the_program() {
    const EIO: u64 = 5;
    let stage = Stage::new();
    for call in [&RING[..], &["ioengine=psync", "direct=1", "bs=4k"]] {
        let job = [&["size=1m", "rw=randwrite"], call].concat();
        let finished = fio(&stage, World::Denied, "error(ram:size=1M,eio=0.05,seed=1)", &job).finish();
        is_tidy(&stage);
        assert!(!finished.status.success(), "{}", finished.report());
        let document = report(&finished);
        assert_eq!(number(&document["jobs"][0], "/error"), EIO, "{}", finished.report());
        // With continue_on_error fio counts the errors and goes on.
        let job = [&job[..], &["continue_on_error=all", "ignore_error=,EIO"]].concat();
        let finished = fio(&stage, World::Denied, "error(ram:size=1M,eio=0.5,seed=1)", &job).finish();
        let document = report(&finished);
        let errors = number(&document["jobs"][0], "/total_err");
        assert!((20..236).contains(&errors), "{errors} of 256: {}", finished.report());
    }
}

#[test]
fn a_delayed_device_has_its_configured_latency() {
    let stage = Stage::new();
    let job = ["size=64k", "rw=write", "iodepth=1"];
    let run = fio(&stage, World::Denied, "delay(ram:size=1M,write=10ms)", &[&RING[..], &job].concat());
    let (finished, document) = succeeds(&stage, run);
    // The job makes sixteen writes, one after the other, and the device delays each by 10 ms. fio
    // reports its runtime in whole milliseconds.
    let runtime = sum(&document, "/write/runtime", &finished);
    assert!((155..60_000).contains(&runtime), "{runtime} ms: {}", finished.report());
}

/// Calls `attempt` repeatedly until it returns a value. Fails the test after a time limit.
pub fn soon<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_program_on_a_device_that_never_answers_can_be_killed() {
    let stage = Stage::new();
    let ring = [&RING[..], &["size=1m", "rw=randread"]].concat();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT] {
        let devices = ["disk=error(ram:size=1M,never=1)"];
        let shell = stage.program_on_devices(World::Denied, &devices, "/bin/sh");
        let started = shell.args(["-c", "echo started >&2; exec cat disk"]).start();
        soon("the shell's word", || started.stderr_so_far().contains("started").then_some(()));
        kill(Pid::from_raw(started.id().cast_signed()), signal).unwrap();
        let finished = started.finish();
        assert_eq!(finished.status.signal(), Some(signal as i32), "{}", finished.report());
        is_tidy(&stage);
    }
    // After a signal that it handles, fio would wait for its requests, which never complete. So the
    // test sends SIGKILL.
    let started =
        fio(&stage, World::Denied, "error(ram:size=1M,never=1)", &[&ring[..], &["thread=1"]].concat()).start();
    let children = format!("/proc/{0}/task/{0}/children", started.id());
    let program = soon("fio's process", || {
        std::fs::read_to_string(&children).unwrap().split_whitespace().next().map(|child| child.parse().unwrap())
    });
    kill(Pid::from_raw(program), Signal::SIGKILL).unwrap();
    let finished = started.finish();
    assert_eq!(finished.status.signal(), Some(Signal::SIGKILL as i32), "{}", finished.report());
    is_tidy(&stage);
}

#[test]
fn fio_verifies_as_user_nobody_under_dockers_rules() {
    every_depth(World::Confined);
}
