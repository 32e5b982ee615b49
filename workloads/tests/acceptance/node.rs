//! Node's fs: libuv gives requests to a ring with an SQ thread and learns of
//! completions by watching the descriptor of another with epoll.

use workloads::harness::{self, Stage, World};

const FILES: u64 = 300;

pub fn files(world: World) {
    let stage = Stage::new();
    // Wherever it was found: nobody has to reach it.
    let node = stage.copy(&harness::node(), "tools/node");
    let script = stage.copy(&Stage::script("files.js"), "files.js");
    stage.make_folder("many");
    let run = stage.program(world, &node).env("UV_USE_IO_URING", "1").arg(script).args(["many", &FILES.to_string()]);
    let finished = run.finish().succeeded();
    let bytes: u64 = (0..FILES).map(|index| 128 * (1 + index % 97)).sum();
    assert_eq!(finished.stdout, format!("{FILES} files, {bytes} bytes\n"), "{}", finished.report());
    // libuv gives to threads what finds the ring full, and how much that is
    // depends on how soon the SQ thread has its turn.
    finished.served(&["read", "readv"], 1).served(&["write", "writev"], 1).served(&["statx"], 1);
}

#[test]
fn node_writes_reads_and_stats_many_files_at_once() {
    files(World::Denied);
}
