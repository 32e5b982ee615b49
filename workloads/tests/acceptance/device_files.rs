//! Programs without code for devices, which use a device of their run as a file: shells with
//! redirections, coreutils, Python, and a C program. The C program makes every kind of call through
//! every entry point and checks the results.

use crate::devices::is_tidy;
use workloads::harness::{MUSL, PYTHON, Stage, World, require};

const SIZE: usize = 1 << 20;

/// Returns bytes in which no two blocks are equal.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ at >> 9 ^ at >> 14) as u8).collect()
}

/// Runs a bash script in a folder that has the device `disk` and the file `pattern`. The script
/// ends at the first command that fails.
#[track_caller]
fn script(world: World, lines: &str) {
    let stage = Stage::new();
    stage.write("pattern", pattern(SIZE));
    stage.write("backing", vec![0; SIZE]);
    for spec in ["ram:size=1M", "file:path=backing"] {
        let run = stage.program_on_devices(world, &[&format!("disk={spec}")], "/bin/bash");
        let finished = run.args(["-euxc", lines]).finish();
        assert!(finished.status.success(), "{spec}: {}", finished.report());
        is_tidy(&stage);
    }
}

#[test]
fn coreutils_copy_to_and_from_a_device() {
    script(
        World::Denied,
        "test $(stat -c %s disk) = 1048576
        dd if=pattern of=disk bs=64k conv=notrunc,fsync
        cmp pattern disk
        test \"$(md5sum < pattern)\" = \"$(md5sum < disk)\"
        test $(md5sum pattern | cut -c-32) = $(md5sum disk | cut -c-32)
        cp disk copy; cmp pattern copy
        cp --sparse=always disk copy; cmp pattern copy
        cat disk > copy; cmp pattern copy
        tar -cf - disk | tar -xOf - > copy; cmp pattern copy
        # Without notrunc: dd opens with O_TRUNC, and a device keeps its size.
        dd if=/dev/zero of=disk bs=4k count=2
        test $(stat -c %s disk) = 1048576
        cmp -n 8192 disk /dev/zero
        cmp -i 8192 disk pattern
        # A part of a block, somewhere in it.
        printf hello | dd of=disk bs=1 seek=12345 conv=notrunc
        test \"$(dd if=disk bs=1 skip=12345 count=5)\" = hello
        cmp -n 4153 -i 8192 disk pattern
        cp pattern disk; cmp pattern disk
        dd if=disk of=copy iflag=direct oflag=direct bs=128k; cmp pattern copy
        ! dd if=pattern of=disk bs=1M seek=1 conv=notrunc
        test $(tail -c 100 disk | wc -c) = 100
        cmp <(tail -c 100 disk) <(tail -c 100 pattern)
        sync disk; truncate -s 1M disk; ls -l disk; cmp pattern disk",
    );
}

#[test]
fn a_shell_redirects_to_and_from_a_device() {
    let lines = "cat pattern > disk
        cat < disk > copy; cmp pattern copy
        # One position for all who have the descriptor.
        exec 3<>disk
        printf 'first ' >&3; /bin/echo -n 'second ' >&3; sh -c 'printf third >&3'
        exec 4<disk
        test \"$(head -c 18 <&4)\" = 'first second third'
        exec 4<&-; exec 3<&-
        exec 5<disk
        dd bs=6 count=1 status=none <&5 | grep -qx 'first '
        dd bs=7 count=1 status=none <&5 | grep -qx 'second '
        exec 5<&-
        printf FIRST 1<>disk; test \"$(head -c 18 disk)\" = 'FIRST second third'
        # Linux does not append to a block device.
        printf again >> disk; test \"$(head -c 18 disk)\" = 'again second third'
        # Handed on to a program that reads it by stdio's own instructions.
        test \"$(perl -e 'open(F, \"<&=\", 6); print scalar <F>' 6< <(head -c 5 disk))\" = again
        exec 7<disk; test \"$(perl -e 'open(F, \"<&=\", 7); read(F, $x, 5); print $x')\" = again; exec 7<&-
        # Closed standard streams: the loader then has those numbers.
        /bin/true <&-; /bin/true <&- >&-; /bin/true <&- >&- 2>&-
        test \"$(/bin/cat pattern <&- | md5sum)\" = \"$(md5sum < pattern)\"
        test \"$(head -c 5 disk <&-)\" = again";
    for world in [World::Denied, World::Unpatched] {
        script(world, lines);
    }
}

#[test]
fn python_uses_a_device_by_every_call_of_its_os_module() {
    for world in [World::Denied, World::Unpatched, World::Confined] {
        // Copies the script to the stage, where every user can read it.
        let stage = Stage::new();
        let program = stage.copy(&Stage::script("devices.py"), "devices.py");
        let run = stage.program_on_devices(world, &["disk=ram:size=1M,poll=hybrid"], require(&PYTHON));
        let finished = run.arg("-E").arg(program).arg("disk").finish().succeeded();
        assert_eq!(finished.stdout, "all held\n", "{}", finished.report());
        is_tidy(&stage);
    }
}

#[test]
fn every_symbol_of_a_call_reaches_a_device() {
    let stage = Stage::new();
    // Compiles with _FORTIFY_SOURCE, as Debian builds its programs. The program then calls other
    // symbols of libc, such as `__read_chk`.
    let program = stage.compile("device_calls.c", &["-D_FORTIFY_SOURCE=2"]);
    for world in [World::Denied, World::Unpatched] {
        let run = stage.program_on_devices(world, &["disk=ram:size=1M"], &program);
        let finished = run.finish().succeeded();
        assert!(finished.stdout.ends_with(" checks hold\n"), "{}", finished.report());
        is_tidy(&stage);
    }
}

#[test]
fn programs_on_another_libc_use_a_device() {
    let stage = Stage::new();
    let program = stage.path("device_streams");
    let source = Stage::script("device_streams.c");
    let compiled = std::process::Command::new(require(&MUSL)).args(["-O2", "-o"]).arg(&program).arg(source).status();
    assert!(compiled.unwrap().success());
    let run = stage.program_on_devices(World::Transparent, &["disk=ram:size=1M"], "/bin/sh");
    let lines = "./device_streams disk < disk && ./device_streams disk <&- > streams && exec ./device_streams disk < disk > disk";
    let finished = run.args(["-ec", lines]).finish().succeeded();
    assert_eq!(finished.stdout, "all held\n", "{}", finished.report());
    is_tidy(&stage);
}
