//! QEMU's block layer with `-i io_uring`. It uses liburing with inlined system calls, vectored
//! requests, and an event loop in which one ring watches another ring's descriptor.

use std::fs::File;
use workloads::harness::{QEMU_IMG, Run, Stage, World, require};

const REQUESTS: u64 = 2000;
const BLOCK: u64 = 4096;
/// Number of blocks of the image. The benchmark makes more requests than this, so it reaches the
/// end and starts again at the beginning.
const IMAGE_BLOCKS: u64 = 1024;

fn image(stage: &Stage) {
    let path = stage.write("image", "");
    File::options().write(true).open(path).unwrap().set_len(IMAGE_BLOCKS * BLOCK).unwrap();
}

fn bench(stage: &Stage, world: World, cache: &str, options: &[&str]) -> Run {
    let run = stage.program(world, require(&QEMU_IMG)).args(["bench", "-i", "io_uring", "-f", "raw", "-t", cache]);
    run.args(["-c", &REQUESTS.to_string(), "-s", &BLOCK.to_string()]).args(options).arg("image")
}

pub fn reads(world: World) {
    let stage = Stage::new();
    image(&stage);
    for (cache, depth) in [("none", "32"), ("none", "1"), ("writeback", "64")] {
        let finished = bench(&stage, world, cache, &["-d", depth]).finish().succeeded();
        assert!(finished.stdout.contains("Run completed in"), "{}", finished.report());
        finished.served(&["read", "readv"], REQUESTS);
    }
}

pub fn writes(world: World) {
    let stage = Stage::new();
    image(&stage);
    for (cache, pattern) in [("none", 0x5a_u8), ("writeback", 0xa5)] {
        let options = ["-w", "-d", "32", "--pattern", &pattern.to_string()];
        let finished = bench(&stage, world, cache, &options).finish().succeeded();
        assert!(finished.stdout.contains("Run completed in"), "{}", finished.report());
        let written = stage.read("image");
        assert_eq!(written.len() as u64, IMAGE_BLOCKS * BLOCK);
        let stray = written.iter().position(|byte| *byte != pattern);
        assert_eq!(stray, None, "a byte that was not written: {}", finished.report());
        finished.served(&["write", "writev"], REQUESTS);
    }
}

pub fn flushes(world: World) {
    let stage = Stage::new();
    image(&stage);
    // QEMU merges flushes that wait for a running flush. With --no-drain many flushes wait, so few
    // are carried out.
    for (options, at_least) in [(&["--flush-interval=64"][..], 15), (&["--flush-interval=40", "--no-drain"], 1)] {
        let all = [&["-w", "-d", "32"], options].concat();
        let finished = bench(&stage, world, "none", &all).finish().succeeded();
        assert!(finished.stdout.contains("Run completed in"), "{}", finished.report());
        finished.served(&["write", "writev"], REQUESTS).served(&["fsync"], at_least).without_errors(&[]);
    }
}

#[test]
fn qemu_reads_an_image() {
    reads(World::Denied);
}

#[test]
fn qemu_writes_every_block_of_an_image() {
    writes(World::Denied);
}

#[test]
fn qemu_flushes_between_writes() {
    flushes(World::Denied);
}
