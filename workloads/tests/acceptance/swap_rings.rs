//! Programs on io_uring and libaio whose buffers are swapped (`usring run --swap`). The memory of a
//! request must be resident while the request uses it, however long the request waits and whichever
//! thread carries it out.

use crate::fio::{job, number, report};
use crate::swap_run::{Swapped, within_limit};
use std::fs::File;
use workloads::harness::{FIO, Finished, LIBURING, Run, World, require};

/// MiB of swapped memory that may be resident. fio's buffers are larger than this.
const LIMIT: u64 = 8;
const BUFFERS: &[&str] = &["--size=24m", "--bs=256k", "--iodepth=64"];

fn swapped() -> Swapped {
    Swapped::new(128, LIMIT, ",min=128K")
}

/// Runs fio with random writes and reads, and verifies each block.
fn verified(run: Run, options: &[&str]) -> Finished {
    let run = run.args(BUFFERS).args(options);
    let run = run.args(["--name=job", "--rw=randrw", "--verify=crc32c", "--verify_fatal=1"]);
    let finished = run.args(["--thread", "--output-format=json"]).finish().succeeded();
    let document = report(&finished);
    let done = job(&document, "job", &finished);
    // The verification reads the written bytes in addition to the job's own reads.
    assert_eq!(number(done, "/read/io_bytes"), 24 << 20, "{}", finished.report());
    within_limit(finished)
}

fn fio_verifies(options: &[&str]) {
    let swapped = swapped();
    let run = swapped.program_in(World::Denied, require(&FIO)).args(["--filename=file"]);
    verified(run, options).served(&[], 90).without_errors(&[]);
}

/// Checks that fio verifies its writes on a device of the run in four ways. These are a ring that
/// is notified of completions, a polled ring, libaio, and ordinary calls.
fn fio_verifies_on_device(device: &str) {
    let swapped = swapped();
    let backing = swapped.stage.write("backing", "");
    File::options().write(true).open(backing).and_then(|file| file.set_len(24 << 20)).unwrap();
    let on_device = |options: &[&str]| {
        let run = swapped.program_on_device(device, require(&FIO)).args(["--filename=disk", "--direct=1"]);
        verified(run, options)
    };
    let finished_job = on_device(&["--ioengine=io_uring", "--mem=malloc"]);
    finished_job.served(&[], 90).without_errors(&[]);
    let polls = ["--ioengine=io_uring", "--mem=mmap", "--hipri=1", "--fixedbufs=1", "--registerfiles=1"];
    on_device(&polls).served(&[], 90).without_errors(&[]);
    on_device(&["--ioengine=libaio", "--mem=mmap"]).served(&[], 90).without_errors(&[]);
    on_device(&["--ioengine=psync", "--mem=malloc"]);
}

#[test]
fn fio_verifies_transfers_of_swapped_buffers_on_a_ram_device() {
    fio_verifies_on_device("ram:size=24M");
    fio_verifies_on_device("delay(ram:size=24M,read=uniform(1us,100us))");
}

#[test]
fn fio_verifies_transfers_of_swapped_buffers_on_a_file_device() {
    fio_verifies_on_device("file:path=backing,direct=on");
    fio_verifies_on_device("file:path=backing,direct=off");
}

#[test]
fn fio_verifies_transfers_of_swapped_buffers_by_rings() {
    fio_verifies(&["--ioengine=io_uring", "--mem=malloc", "--direct=0"]);
    fio_verifies(&["--ioengine=io_uring", "--mem=mmap", "--direct=1", "--fixedbufs=1", "--registerfiles=1"]);
    fio_verifies(&["--ioengine=io_uring", "--mem=malloc", "--direct=1", "--sqthread_poll=1"]);
    fio_verifies(&["--ioengine=io_uring", "--mem=mmap", "--direct=0", "--force_async=3", "--nonvectored=0"]);
}

#[test]
fn fio_verifies_transfers_of_swapped_buffers_by_libaio() {
    fio_verifies(&["--ioengine=libaio", "--mem=malloc", "--direct=1"]);
    fio_verifies(&["--ioengine=libaio", "--mem=mmap", "--direct=0"]);
}

#[test]
fn ring_requests_can_name_any_structure_in_swapped_memory() {
    require(&LIBURING);
    for mechanism in ["userfault", "guard", "mprotect"] {
        let swapped = Swapped::on("ram:size=64M", 4, &format!(",mechanism={mechanism}"));
        let program = swapped.stage.compile("swapped_rings.c", &["-luring"]);
        let finished = within_limit(swapped.program_in(World::Denied, program).finish());
        assert_eq!(finished.stdout, "7 checks hold\n", "{mechanism}: {}", finished.report());
    }
}
