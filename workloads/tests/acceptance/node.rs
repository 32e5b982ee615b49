//! Node's file functions. libuv submits them to a ring with an SQ thread, and learns of completions
//! from another ring that watches the first ring's descriptor by epoll.

use workloads::harness::{self, Stage, World};

const FILES: u64 = 300;

pub fn files(world: World) {
    let stage = Stage::new();
    // Copies Node to the stage, because the user `nobody` cannot reach Debian's Node or the cached
    // one.
    let node = stage.copy(&harness::node(), "tools/node");
    let script = stage.copy(&Stage::script("files.js"), "files.js");
    stage.make_folder("many");
    let run = stage.program(world, &node).env("UV_USE_IO_URING", "1").arg(script).args(["many", &FILES.to_string()]);
    let finished = run.finish().succeeded();
    let bytes: u64 = (0..FILES).map(|index| 128 * (1 + index % 97)).sum();
    assert_eq!(finished.stdout, format!("{FILES} files, {bytes} bytes\n"), "{}", finished.report());
    // Only one request of each kind is certain to use the ring. If the SQ is full, libuv passes a
    // request to its own threads.
    finished.served(&["read", "readv"], 1).served(&["write", "writev"], 1).served(&["statx"], 1);
}

#[test]
fn node_writes_reads_and_stats_many_files_at_once() {
    files(World::Denied);
}
