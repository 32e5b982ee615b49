//! A Rust program that uses the `io-uring` crate, which makes its calls by libc's `syscall`.

use std::path::Path;
use workloads::harness::{Stage, World};

pub fn program(world: World) {
    let stage = Stage::new();
    let program = stage.copy(Path::new(env!("CARGO_BIN_EXE_io_uring_crate")), "io_uring_crate");
    let finished = stage.program(world, program).finish().succeeded();
    let names = ["probe", "file", "registered", "pipe", "halves"];
    let said: String = names.map(|name| format!("{name}: holds\n")).concat();
    assert_eq!(finished.stdout, said, "{}", finished.report());
    finished.served(&["read"], 3200).served(&["write"], 3200).served(&["nop"], 10_000);
}

#[test]
fn a_program_on_the_io_uring_crate_gets_correct_results() {
    program(World::Denied);
}

#[test]
fn a_program_on_the_io_uring_crate_works_without_patched_call_sites() {
    program(World::Unpatched);
}
