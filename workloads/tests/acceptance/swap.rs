//! Swap regions from C. A program that is linked to usring's library calls each function of
//! `usring_swap.h` with every mechanism, alone and under `usring run`.

use workloads::harness::{Stage, World};

#[test]
fn a_c_program_keeps_its_memory_in_a_region_by_every_mechanism() {
    let stage = Stage::new();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../include");
    let tools = stage.path("tools");
    let library = [format!("-L{}", tools.display()), format!("-Wl,-rpath,{}", tools.display())];
    let program = stage.compile("swap_region.c", &[include, &library[0], &library[1], "-lusring"]);
    for mechanism in ["userfault", "guard", "mprotect"] {
        for world in [World::Bare, World::Denied] {
            let finished = stage.program(world, &program).arg(mechanism).finish().succeeded();
            assert_eq!(finished.stdout, "8 checks hold\n", "{mechanism}: {}", finished.report());
        }
    }
}
