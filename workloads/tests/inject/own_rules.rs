//! Rules that a program gives itself (`include/usring_inject.h`). The program is run by
//! `usring run`, linked to usring, and without usring.

use crate::LIMIT;
use workloads::harness::{Stage, World};

#[test]
fn a_program_tests_itself_by_faults_under_usring_run() {
    // Tests a program at fixed addresses (`-no-pie`), too. It must find the library's functions,
    // which `usring_inject.h` looks up by dlsym(3).
    for flags in [&["-luring"] as &[&str], &["-luring", "-no-pie", "-fno-pie"]] {
        let stage = Stage::new();
        let program = stage.compile("own_faults.c", flags);
        let finished = stage.program_with(World::Transparent, &[], program).limit(LIMIT).finish().succeeded();
        assert_eq!(finished.stdout, "all faults came\n");
        assert!(finished.stderr.contains("usring_inject_once: "), "{}", finished.stderr);
        assert!(finished.stderr.contains("did you mean 'error'?"), "{}", finished.stderr);
    }
}

/// `own_faults.c` starts children. They inherit the seccomp filter that traps calls for its rules,
/// so they need the library, whose SIGSYS handler makes the trapped calls.
#[test]
fn a_program_that_is_linked_to_usring_tests_itself_and_starts_others() {
    let stage = Stage::new();
    let folder = stage.path("tools").display().to_string();
    let library = [format!("-L{folder}"), format!("-Wl,--no-as-needed,-rpath,{folder}")];
    let program = stage.compile("own_faults.c", &[&library[0], &library[1], "-lusring", "-luring"]);
    let finished = stage.program(World::Bare, program).limit(LIMIT).finish().succeeded();
    assert_eq!(finished.stdout, "all faults came\n");
}

#[test]
fn rules_of_the_program_and_of_the_run_go_together() {
    let stage = Stage::new();
    let program = stage.compile("own_faults.c", &["-luring"]);
    let options = ["--inject=ring:nop:error=EIO".to_owned()];
    let finished = stage.program_with(World::Transparent, &options, program).limit(LIMIT).finish().succeeded();
    assert_eq!(finished.stdout, "all faults came\n");
    assert!(finished.stderr.contains("usring: 7 faults were injected"), "{}", finished.stderr);
}

#[test]
fn without_usring_the_program_hears_that_it_is_missing() {
    let stage = Stage::new();
    let program = stage.compile("own_faults.c", &["-luring"]);
    let finished = stage.program(World::Bare, program).limit(LIMIT).finish().succeeded();
    assert_eq!(finished.stdout, "no usring\n");
}
