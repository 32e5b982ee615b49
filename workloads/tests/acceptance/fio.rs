//! fio's io_uring engine, which calls io_uring_enter by inlined instructions and makes three
//! mappings of a ring. fio verifies its writes.

use serde_json::Value;
use workloads::harness::{FIO, Finished, Run, Stage, World, require};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 512;
const SIZE: u64 = BLOCK * BLOCKS;
const READS: &[&str] = &["read", "readv", "read_fixed"];
const WRITES: &[&str] = &["write", "writev", "write_fixed"];
const READS_AND_WRITES: &[&str] = &["read", "readv", "read_fixed", "write", "writev", "write_fixed"];

/// Options of fio's io_uring engine that are either on or off.
const RING_OPTIONS: [&str; 4] = ["sqthread_poll", "registerfiles", "fixedbufs", "nonvectored"];

/// Prepares fio on a file of the stage. `options` are fio's options without `--`.
fn fio(stage: &Stage, world: World, options: &[&str]) -> Run {
    let run = stage.program(world, require(&FIO)).args(["--ioengine=io_uring", "--output-format=json"]);
    run.arg(format!("--bs={BLOCK}")).args(options.iter().map(|option| format!("--{option}")))
}

/// Parses fio's JSON report, before which there may be other output.
pub fn report(finished: &Finished) -> Value {
    let begin = finished.stdout.find('{').unwrap_or_else(|| panic!("no JSON: {}", finished.report()));
    serde_json::from_str(&finished.stdout[begin..]).unwrap_or_else(|error| panic!("{error}: {}", finished.report()))
}

pub fn number(job: &Value, place: &str) -> u64 {
    job.pointer(place).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at {place}: {job:#}"))
}

/// Returns a job's part of the report. Fails the test if the job had an error.
pub fn job<'a>(document: &'a Value, name: &str, finished: &Finished) -> &'a Value {
    let jobs = document["jobs"].as_array().expect("a list of jobs");
    let found = jobs.iter().find(|job| job["jobname"] == name);
    let job = found.unwrap_or_else(|| panic!("no job {name}: {}", finished.report()));
    assert_eq!(number(job, "/error"), 0, "{}", finished.report());
    job
}

/// Runs fio with two jobs: random writes of `blocks` blocks with verification, then random reads.
/// The second job starts after the first, and has a ring of its own.
fn write_verify_read(stage: &Stage, world: World, blocks: u64, options: &[&str]) {
    let bytes = blocks * BLOCK;
    let size = format!("size={bytes}");
    let jobs = [
        &[size.as_str()],
        options,
        &["name=write", "rw=randwrite", "verify=crc32c", "verify_fatal=1", "randseed=7"],
        &["name=read", "rw=randread", "stonewall"],
    ];
    let finished = fio(stage, world, &jobs.concat()).finish().succeeded();
    let document = report(&finished);
    let write = job(&document, "write", &finished);
    assert_eq!(number(write, "/write/io_bytes"), bytes, "{}", finished.report());
    assert_eq!(number(write, "/read/io_bytes"), bytes, "verification read too little: {}", finished.report());
    let read = job(&document, "read", &finished);
    assert_eq!(number(read, "/read/io_bytes"), bytes, "{}", finished.report());
    for (job, place) in [(write, "/write/short_ios"), (write, "/read/short_ios"), (read, "/read/short_ios")] {
        assert_eq!(number(job, place), 0, "short I/O: {}", finished.report());
    }
    let finished = finished.served(WRITES, blocks).served(READS, 2 * blocks).without_errors(&[]);
    if options.contains(&"direct=1") {
        // usring makes direct transfers by kernel AIO, so no request finishes inline, and no read
        // needs a worker. (A write that makes the file longer goes to a worker.)
        finished.none_inline(READS_AND_WRITES).none_by_worker(READS);
    }
}

/// Runs all 16 combinations of the ring options. For each combination, two fios run at once, one of
/// them with a deep queue. One fio makes its requests in a thread of its process, and the other in
/// a forked process. The thread has the deep queue with buffered I/O, and the forked process has it
/// with direct I/O.
pub fn every_combination(world: World, direct: bool) {
    let stage = Stage::new();
    let is_direct = format!("direct={}", u8::from(direct));
    for combination in 0..1_u32 << RING_OPTIONS.len() {
        let chosen = |(bit, option)| format!("{option}={}", combination >> bit & 1);
        let ring_options: Vec<_> = RING_OPTIONS.iter().enumerate().map(chosen).collect();
        let run = |deep: bool| {
            let place = if deep { ["iodepth=32", "filename=deep"] } else { ["iodepth=1", "filename=shallow"] };
            let thread = if deep != direct { "thread=1" } else { "thread=0" };
            let mut options: Vec<_> = ring_options.iter().map(String::as_str).collect();
            options.extend(place);
            options.extend([thread, is_direct.as_str()]);
            write_verify_read(&stage, world, if deep { BLOCKS } else { BLOCKS / 4 }, &options);
        };
        // Runs both queue depths at once, to save time. fio mostly sleeps, so neither run slows the
        // other.
        std::thread::scope(|scope| {
            scope.spawn(|| run(false));
            run(true);
        });
    }
}

pub fn sync_mixes(world: World) {
    let stage = Stage::new();
    let size = format!("size={SIZE}");
    // `syncs` is the least number of syncs: one per N requests, and the last one may be missing.
    // fio does not clear one field of the SQE before SYNC_FILE_RANGE. So some of these requests
    // fail, as on the kernel. Other errors are not allowed.
    for (mix, opcode, syncs) in [
        ("fsync=8", "fsync", BLOCKS / 8 - 1),
        ("fdatasync=4", "fsync", BLOCKS / 4 - 1),
        ("sync_file_range=write:16", "sync_file_range", BLOCKS / 16 - 1),
    ] {
        for direct in ["direct=0", "direct=1"] {
            let options = [
                &size,
                "name=mix",
                "filename=mix",
                "rw=randwrite",
                "iodepth=16",
                "verify=crc32c",
                "end_fsync=1",
                mix,
                direct,
            ];
            let finished = fio(&stage, world, &options).finish().succeeded();
            let document = report(&finished);
            let mixed = job(&document, "mix", &finished);
            assert_eq!(number(mixed, "/write/io_bytes"), SIZE, "{}", finished.report());
            assert_eq!(number(mixed, "/read/io_bytes"), SIZE, "{}", finished.report());
            finished
                .without_errors(READS_AND_WRITES)
                .without_errors(&["fsync"])
                .served(WRITES, BLOCKS)
                .served(READS, BLOCKS)
                .served(&[opcode], syncs);
        }
    }
}

pub fn several_jobs(world: World) {
    const JOBS: u64 = 4;
    let stage = Stage::new();
    let size = format!("size={}", SIZE / JOBS);
    let place = format!("offset_increment={}", SIZE / JOBS);
    for thread in ["thread=0", "thread=1"] {
        for extra in ["force_async=4", "iodepth_batch_submit=8", "sqthread_poll=1"] {
            let options =
                [&size, &place, "name=mixed", "filename=mixed", "rw=randrw", "numjobs=4", "iodepth=32", thread, extra];
            let finished = fio(&stage, world, &options).finish().succeeded();
            let document = report(&finished);
            let jobs = document["jobs"].as_array().expect("a list of jobs");
            let moved = |job: &Value| number(job, "/read/io_bytes") + number(job, "/write/io_bytes");
            assert_eq!(jobs.len() as u64, JOBS, "{}", finished.report());
            for job in jobs {
                assert_eq!((number(job, "/error"), moved(job)), (0, SIZE / JOBS), "{}", finished.report());
            }
            finished.served(READS_AND_WRITES, BLOCKS).without_errors(&[]);
        }
    }
}

/// fio uses blocks of many sizes, at offsets that are not multiples of the page size.
pub fn uneven_blocks(world: World) {
    let stage = Stage::new();
    let options = [
        "size=4m",
        "name=uneven",
        "filename=uneven",
        "rw=randwrite",
        "bsrange=512-128k",
        "ba=512",
        "iodepth=8",
        "verify=crc32c",
    ];
    let finished = fio(&stage, world, &options).finish().succeeded();
    let document = report(&finished);
    let uneven = job(&document, "uneven", &finished);
    assert_eq!(number(uneven, "/write/io_bytes"), 4 << 20, "{}", finished.report());
    assert_eq!(number(uneven, "/read/io_bytes"), 4 << 20, "{}", finished.report());
    let writes = number(uneven, "/write/total_ios");
    finished.served(WRITES, writes).without_errors(&[]);
}

#[test]
fn fio_verifies_its_buffered_writes_with_all_combinations_of_ring_options() {
    every_combination(World::Denied, false);
}

#[test]
fn fio_verifies_its_direct_writes_with_all_combinations_of_ring_options() {
    every_combination(World::Denied, true);
}

#[test]
fn fio_syncs_between_writes() {
    sync_mixes(World::Denied);
}

#[test]
fn fio_runs_several_jobs_at_once() {
    several_jobs(World::Denied);
}

#[test]
fn fio_writes_blocks_of_many_sizes() {
    uneven_blocks(World::Denied);
}

/// fio must fail without usring in this setup. If it did not, the other tests could pass on the
/// kernel's io_uring.
#[test]
fn fio_fails_without_usring_where_the_kernels_io_uring_is_denied() {
    let stage = Stage::new();
    let finished =
        fio(&stage, World::ConfinedBare, &["size=64k", "name=refused", "filename=refused", "rw=write"]).finish();
    assert!(!finished.status.success(), "{}", finished.report());
    assert!(finished.stdout.contains("Operation not permitted"), "{}", finished.report());
}
