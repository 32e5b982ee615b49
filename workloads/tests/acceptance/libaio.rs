//! Programs that use libaio, with and without `--aio-poll`:
//!
//! - fio, whose engine either calls io_getevents or reads the context's ring itself;
//! - QEMU, which submits by libaio and reads events only from the ring;
//! - stress-ng, which makes the system calls without libaio;
//! - a C program with polled AIO that is linked to usring's library.
//!
//! (MariaDB has its own module.)

use crate::devices::is_tidy;
use crate::fio::{job, number, report};
use std::fs::File;
use std::time::Duration;
use workloads::harness::{FIO, QEMU_IMG, Run, STRESS_NG, Stage, World, require};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 512;
const SIZE: u64 = BLOCK * BLOCKS;
const READS: &[&str] = &["read", "readv"];
const WRITES: &[&str] = &["write", "writev"];

fn fio(run: Run, options: &[&str]) -> Run {
    let run = run.args(["--ioengine=libaio", "--output-format=json", "--name=job"]);
    run.arg(format!("--bs={BLOCK}")).args(options.iter().map(|option| format!("--{option}")))
}

/// Runs fio with random writes that it verifies, at each queue depth of `depths`: buffered and
/// direct, with events from io_getevents and from the context's ring.
fn verified(run: impl Fn() -> Run, options: &[&str], depths: &[&str]) {
    let size = format!("size={SIZE}");
    for depth in depths {
        for direct in ["direct=0", "direct=1"] {
            for reap in ["userspace_reap=0", "userspace_reap=1"] {
                let depth = format!("iodepth={depth}");
                let all =
                    [&size, "rw=randwrite", "verify=crc32c", "verify_fatal=1", "randseed=7", &depth, direct, reap];
                let finished = fio(run(), &[&all, options].concat()).finish().succeeded();
                let document = report(&finished);
                let written = job(&document, "job", &finished);
                for place in ["/write/io_bytes", "/read/io_bytes"] {
                    assert_eq!(number(written, place), SIZE, "{direct} {reap} {depth}: {}", finished.report());
                }
                finished.served(WRITES, BLOCKS).served(READS, BLOCKS).without_errors(&[]);
            }
        }
    }
}

pub fn on_files(world: World) {
    let stage = Stage::new();
    let run = || stage.program(world, require(&FIO));
    verified(run, &["filename=file"], &["1", "32", "128"]);
    // fio submits in batches, and waits for several events at a time.
    verified(run, &["filename=file", "iodepth_batch=8", "iodepth_batch_complete_min=4"], &["32"]);
    verified(run, &["filename=file", "fdatasync=16"], &["16"]);
}

/// Runs fio on devices of several kinds. `more` are additional options of `usring run`.
pub fn on_devices(world: World, more: &[&str]) {
    let stage = Stage::new();
    let backing = stage.write("backing", "");
    File::options().write(true).open(&backing).unwrap().set_len(SIZE).unwrap();
    for spec in [
        format!("ram:size={SIZE}"),
        format!("ram:size={SIZE},poll=interrupt"),
        format!("delay(ram:size={SIZE},read=20us,write=uniform(5us,50us))"),
        "file:path=backing".into(),
    ] {
        let mut run_options = vec![format!("--device=disk={spec}")];
        run_options.extend(more.iter().map(|option| option.to_string()));
        let run = || stage.program_with(world, &run_options, require(&FIO));
        verified(run, &["filename=disk"], &["1", "128"]);
        is_tidy(&stage);
    }
}

pub fn several_jobs(world: World) {
    const JOBS: usize = 4;
    let stage = Stage::new();
    let size = format!("size={}", SIZE / JOBS as u64);
    let place = format!("offset_increment={}", SIZE / JOBS as u64);
    for thread in ["thread=0", "thread=1"] {
        for direct in ["direct=0", "direct=1"] {
            let jobs = format!("numjobs={JOBS}");
            let options =
                [&size, &place, &jobs, "filename=file", "rw=randwrite", "verify=crc32c", "iodepth=32", thread, direct];
            let finished = fio(stage.program(world, require(&FIO)), &options).finish().succeeded();
            let document = report(&finished);
            let jobs = document["jobs"].as_array().expect("a list of jobs");
            assert_eq!(jobs.len(), JOBS, "{}", finished.report());
            for job in jobs {
                let read = number(job, "/read/io_bytes");
                assert_eq!((number(job, "/error"), read), (0, SIZE / JOBS as u64), "{}", finished.report());
            }
            finished.served(WRITES, BLOCKS).served(READS, BLOCKS).without_errors(&[]);
        }
    }
}

pub fn qemu(world: World) {
    const REQUESTS: u64 = 2000;
    const IMAGE_BLOCKS: u64 = 1024;
    let stage = Stage::new();
    let image = stage.write("image", "");
    File::options().write(true).open(&image).unwrap().set_len(IMAGE_BLOCKS * BLOCK).unwrap();
    let bench = |options: &[&str]| {
        let run = stage.program(world, require(&QEMU_IMG)).args(["bench", "-i", "native", "-f", "raw", "-t", "none"]);
        let run = run.args(["-c", &REQUESTS.to_string(), "-s", &BLOCK.to_string()]);
        let finished = run.args(options).arg("image").finish().succeeded();
        assert!(finished.stdout.contains("Run completed in"), "{}", finished.report());
        finished
    };
    for depth in ["1", "64"] {
        bench(&["-w", "-d", depth, "--pattern", "90"]).served(WRITES, REQUESTS).without_errors(&[]);
        assert!(stage.read("image").iter().all(|byte| *byte == 90), "a byte that was not written");
        bench(&["-d", depth]).served(READS, REQUESTS).without_errors(&[]);
        // QEMU flushes by a plain system call in a thread of its own. So there is no request of a
        // flush for `without_errors` to check.
        bench(&["-w", "-d", depth, "--flush-interval=64"]).served(WRITES, REQUESTS);
    }
}

pub fn stress(world: World) {
    let stage = Stage::new();
    let options = ["--aiol", "2", "--aiol-ops", "400", "--timeout", "300", "--verify", "--temp-path", "."];
    let run = stage.program(world, require(&STRESS_NG)).args(options);
    let finished = run.limit(Duration::from_secs(330)).finish().succeeded();
    let said = format!("{}{}", finished.stdout, finished.stderr);
    assert!(said.contains("successful run completed") && !said.contains("fail"), "{}", finished.report());
    finished.served(&[], 400);
}

#[test]
fn fio_verifies_its_writes_through_libaio() {
    on_files(World::Denied);
}

#[test]
fn fio_verifies_its_writes_to_devices_through_libaio() {
    on_devices(World::Denied, &[]);
}

#[test]
fn fio_verifies_its_writes_to_devices_with_aio_poll() {
    on_devices(World::Denied, &["--aio-poll"]);
}

#[test]
fn files_are_served_normally_with_aio_poll() {
    let stage = Stage::new();
    let run = || stage.program_with(World::Denied, &["--aio-poll".into()], require(&FIO));
    verified(run, &["filename=file"], &["1", "32", "128"]);
    // Several jobs run, with more requests in flight than a queue pair can hold.
    verified(run, &["filename=file", "iodepth_batch=64", "iodepth_batch_complete_min=16"], &["300"]);
    let options = ["--aiol", "2", "--aiol-ops", "200", "--timeout", "300", "--verify", "--temp-path", "."];
    let run = stage.program_with(World::Denied, &["--aio-poll".into()], require(&STRESS_NG)).args(options);
    run.limit(Duration::from_secs(330)).finish().succeeded().served(&[], 200);
}

/// Under `--aio-poll`, too, usring must signal a request's eventfd. QEMU never calls io_getevents:
/// it waits for the eventfd, and then reads the events from the context's ring in memory.
#[test]
fn an_eventfd_is_signalled_with_aio_poll() {
    let stage = Stage::new();
    let options = ["--aio-poll".into(), "--device=disk=delay(ram:size=4M,read=20us)".into()];
    let run = stage.program_with(World::Denied, &options, require(&QEMU_IMG));
    let run = run.args(["bench", "-i", "native", "-f", "raw", "-t", "none", "-c", "2000", "-d", "32", "disk"]);
    run.finish().succeeded().served(READS, 2000).without_errors(&[]);
}

#[test]
fn a_polled_context_keeps_every_rule_of_its_header() {
    let stage = Stage::new();
    stage.write("plain", vec![0; 1 << 16]);
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../include");
    let tools = stage.path("tools");
    let library = [format!("-L{}", tools.display()), format!("-Wl,--disable-new-dtags,-rpath,{}", tools.display())];
    let program = stage.compile("polled_aio.c", &[include, &library[0], &library[1], "-lusring"]);
    let devices = ["disk=ram:size=1M", "slow=null:size=1M,latency=1s", "told=ram:size=1M,poll=interrupt"];
    let finished = stage.program_on_devices(World::Denied, &devices, &program).finish().succeeded();
    assert_eq!(finished.stdout, "16 checks hold\n", "{}", finished.report());
    // A program that is linked to the library is served without `usring run`, too.
    for check in ["io_setup2 refuses", "ordinary files"] {
        let alone = stage.program(World::Bare, &program).arg(check).finish().succeeded();
        assert_eq!(alone.stdout, "1 checks hold\n", "{}", alone.report());
    }
}

#[test]
fn fio_runs_several_jobs_through_libaio() {
    several_jobs(World::Denied);
}

#[test]
fn qemu_finds_its_events_in_the_contexts_ring() {
    qemu(World::Denied);
}

#[test]
fn stress_ng_finds_no_fault_in_contexts() {
    stress(World::Denied);
}

#[test]
fn destroying_a_context_wakes_every_waiting_thread() {
    const ROUNDS: &str = "200";
    let stage = Stage::new();
    stage.write("file", vec![0; 1 << 18]);
    let program = stage.compile("context_races.c", &[]);
    let said = |run: Run, path: &str| {
        let finished = run.args([path, ROUNDS]).finish().succeeded();
        assert_eq!(finished.stdout, "all gone\n", "{}", finished.report());
    };
    said(stage.program(World::Denied, &program), "file");
    for spec in ["ram:size=256K", "file:path=file", "null:size=256K,latency=normal(20us,5us)"] {
        for more in [None, Some("--aio-poll")] {
            let options: Vec<_> =
                [format!("--device=disk={spec}")].into_iter().chain(more.map(str::to_owned)).collect();
            said(stage.program_with(World::Denied, &options, &program), "disk");
        }
    }
}
