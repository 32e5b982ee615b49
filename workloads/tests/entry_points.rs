//! The entry points of libusring.so: which state of the program they preserve, which calls they
//! pass to the kernel, and which children they serve. Each program runs in two ways: with call
//! sites that usring rewrites after their first trap, and with call sites that it leaves unchanged.

use nix::errno::Errno;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use workloads::harness::skipped::skip;
use workloads::harness::{GO, LIBURING, MUSL, Stage, World, on_kernel, require};

/// Runs a program with call sites that usring rewrites, and again with call sites that it leaves
/// unchanged. Fails unless all of the program's `checks` checks pass.
#[track_caller]
fn holds(source: &str, checks: u32) {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile(source, &["-luring"]);
    for no_patch in ["0", "1"] {
        let run = stage.program(World::Denied, &program).env("USRING_NO_PATCH", no_patch);
        let finished = run.finish().succeeded();
        assert!(finished.stdout.ends_with(&format!("{checks} checks hold\n")), "{}", finished.report());
    }
}

#[test]
fn a_call_changes_no_register_that_a_system_call_preserves() {
    holds("entry_registers.c", 4);
}

#[test]
fn signal_handlers_run_around_the_engine_and_never_inside_it() {
    holds("entry_signals.c", 15);
}

#[test]
fn a_signal_ends_a_wait_that_pauses_while_events_gather() {
    holds("entry_gathering.c", 1);
}

#[test]
fn a_rings_descriptor_behaves_like_any_descriptor() {
    holds("entry_descriptors.c", 14);
}

#[test]
fn a_server_can_use_its_whole_limit_of_open_files_for_connections() {
    holds("many_waiting.c", 3);
}

#[test]
fn children_leave_the_parents_rings_unchanged_and_have_their_own() {
    holds("entry_children.c", 13);
}

#[test]
fn every_call_completes_under_a_storm_of_signals() {
    holds("entry_storm.c", 7);
}

#[test]
fn every_call_completes_under_a_storm_of_signals_in_a_run_with_swap() {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("entry_storm.c", &["-luring"]);
    let options = [format!("--swap=file:path={},limit=16M", swap_store(&stage).display())];
    let finished = stage.program_with(World::Transparent, &options, &program).finish().succeeded();
    assert!(finished.stdout.ends_with("7 checks hold\n"), "{}", finished.report());
}

/// Makes a file of 128 MiB for swapped memory, which only its owner may read.
fn swap_store(stage: &Stage) -> PathBuf {
    let store = stage.write("swap", "");
    std::fs::File::options().write(true).open(&store).and_then(|file| file.set_len(128 << 20)).unwrap();
    std::fs::set_permissions(&store, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    store
}

#[test]
fn no_thread_keeps_capabilities_that_the_program_gave_up() {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("dropped_rights.c", &["-luring"]);
    let finished = stage.program(World::Denied, &program).finish().succeeded();
    said_so(&finished.stdout);
    let options = [format!("--swap=file:path={},limit=16M", swap_store(&stage).display())];
    let finished = stage.program_with(World::Transparent, &options, &program).arg("48").finish().succeeded();
    said_so(&finished.stdout);
}

/// Fails unless all checks of the program passed. Skips the test if the program needs root for its
/// checks.
#[track_caller]
fn said_so(stdout: &str) {
    if stdout == "needs a superuser\n" {
        return skip("only a superuser has capabilities to give up");
    }
    assert!(stdout.ends_with("5 checks hold\n"), "{stdout}");
}

/// Checks what docs/compatibility.md says about namespaces: a program with a ring behaves as any
/// multithreaded program.
#[test]
fn namespaces_behave_as_in_a_program_with_threads() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let may = Command::new("unshare").args(["--pid", "--fork", "unshare", "--user", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return skip("PID and user namespaces cannot be made here");
    }
    holds("namespaces.c", 4);
}

#[test]
fn a_process_ends_with_its_last_thread() {
    let stage = Stage::new();
    let mut programs = vec![stage.compile("last_thread.c", &["-pthread"])];
    let on_musl = stage.path("last_thread_musl");
    compile(Command::new(require(&MUSL)).args(["-O2", "-o"]).arg(&on_musl).arg(Stage::script("last_thread.c")));
    programs.push(on_musl);
    for program in programs {
        for way in ["0", "1"] {
            stage.program(World::Transparent, &program).arg(way).finish().succeeded();
        }
    }
}

#[test]
fn a_process_ends_when_its_threads_end_without_libc() {
    let stage = Stage::new();
    require(&LIBURING);
    let program = stage.compile("last_exit.c", &["-pthread", "-luring"]);
    for way in ["0", "1", "2", "3", "4", "5", "7"] {
        let finished = stage.program(World::Transparent, &program).arg(way).finish();
        assert_eq!(finished.status.code(), Some(7), "way {way}: {}", finished.report());
    }
}

/// `shared_rings.c` fails if a completion is lost or comes twice, and prints the number of such
/// completions.
#[test]
fn processes_share_rings_while_some_of_them_are_killed() {
    let stage = Stage::new();
    require(&LIBURING);
    let program = stage.compile("shared_rings.c", &["-pthread", "-luring"]);
    for numbers in [["8", "16", "3"], ["2", "1", "3"]] {
        let finished = stage.program(World::Transparent, &program).args(numbers).finish();
        assert!(finished.status.success(), "{numbers:?}: {}", finished.report());
    }
}

/// Starts `last_exit.c` several times, because the ring watcher seldom polls exactly while a worker
/// ends.
#[test]
fn an_ending_worker_is_not_taken_for_the_last_thread() {
    if on_kernel() {
        return skip("there the status may be a worker's");
    }
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("last_exit.c", &["-pthread", "-luring"]);
    let runs = [(); 24].map(|()| stage.program(World::Transparent, &program).arg("6").start());
    for run in runs {
        let finished = run.finish();
        assert_eq!(finished.status.code(), Some(7), "{}", finished.report());
    }
}

/// `last_exit.c` runs where the kernel does not report how its last thread ended. There can be two
/// reasons for this:
///
/// - The kernel is old: Linux before 6.9 has no pidfds of threads, and before 6.15 a thread's pidfd
///   does not report its status.
/// - The thread has ended before usring could open its pidfd. The case `thread` simulates this.
#[test]
fn a_process_of_unknown_exit_status_ends_without_success() {
    if on_kernel() {
        return skip("there is no usring");
    }
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("last_exit.c", &["-pthread", "-luring"]);
    for missing in ["pidfd_open", "status", "thread"] {
        for (way, status) in [("0", 7), ("1", 7), ("5", 1), ("7", 1)] {
            let finished = stage.program(World::Transparent, &program).args([way, missing]).finish();
            assert_eq!(finished.status.code(), Some(status), "way {way}, no {missing}: {}", finished.report());
        }
    }
}

#[test]
fn a_seccomp_filter_of_the_program_makes_no_request_hang() {
    holds("own_filter.c", 4);
}

#[test]
fn a_program_out_of_address_space_gets_errors_and_continues() {
    holds("no_memory.c", 18);
}

#[test]
fn an_exec_that_would_lose_the_library_is_refused_with_a_message() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let stage = Stage::new();
    let program = stage.compile("other_ids.c", &[]);
    let finished = stage.program(World::Transparent, &program).finish().succeeded();
    if finished.stdout == "needs a superuser\n" {
        return skip("no superuser");
    }
    assert_eq!(finished.stdout, "1 checks hold\n", "{}", finished.report());
    assert!(finished.stderr.contains("its effective user or group is not the real one"), "{}", finished.report());
}

#[test]
fn a_debugger_that_is_served_can_start_a_program() {
    let stage = Stage::new();
    let program = stage.compile("traced_child.c", &[]);
    let finished = stage.program(World::Transparent, program).finish().succeeded();
    assert_eq!(finished.stdout, "1 checks hold\n", "{}", finished.report());
}

#[test]
fn call_sites_are_rewritten_while_threads_run_through_them() {
    require(&LIBURING);
    let stage = Stage::new();
    let program = stage.compile("entry_patching.c", &["-luring"]);
    let rewritten = |no_patch: &str| {
        let run = stage.program(World::Denied, &program).env("USRING_NO_PATCH", no_patch);
        let finished = run.finish().succeeded();
        let numbers = finished.stdout.split(' ').filter_map(|word| word.parse::<u32>().ok());
        match numbers.take(2).collect::<Vec<_>>()[..] {
            [sites, others] => (sites, others),
            _ => panic!("{}", finished.report()),
        }
    };
    assert_eq!(rewritten("1"), (0, 0), "asked to leave them as they are");
    if !on_kernel() {
        // A few of the 256 call sites cross the end of a page, and usring does not rewrite those.
        let (sites, others) = rewritten("0");
        assert!(sites >= 250 && others == 4, "{sites} sites and {others} others");
    }
}

/// Compiles the programs that `unserved.c` executes. Returns the path of the statically linked
/// program.
fn static_programs(stage: &Stage) -> PathBuf {
    require(&LIBURING);
    let child = stage.compile("unserved_child.c", &["-static"]);
    stage.copy(&child, "unserved_busy");
    stage.compile("unserved_grandchild.c", &["-luring"]);
    child
}

#[test]
fn a_static_program_executed_by_a_served_program_runs_unserved() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let stage = Stage::new();
    static_programs(&stage);
    let program = stage.compile("unserved.c", &["-luring"]);
    for (world, error) in [(World::Denied, Errno::EPERM), (World::Unpatched, Errno::EPERM)] {
        let run = stage.program(world, &program).env("UNSERVED_ERROR", (error as i32).to_string());
        // `unserved.c` executes its child in three ways directly, and twice by the shell. Each
        // child starts four grandchildren. Each grandchild makes one NOP, and so does `unserved.c`
        // itself.
        let finished = run.finish().succeeded().served(&["nop"], 5 * 4 + 1);
        assert!(finished.stdout.ends_with("9 checks hold\n"), "{}", finished.report());
        assert!(finished.stderr.contains("it is statically linked; it runs without usring"), "{}", finished.report());
        assert!(finished.stderr.contains("this process cannot be traced"), "{}", finished.report());
    }
    let run = stage.program(World::Transparent, &program).env("UNSERVED_ERROR", (Errno::ENOSYS as i32).to_string());
    run.finish().succeeded();
}

/// A script starts two static programs, several times each. usring must print one message for each
/// program.
#[test]
fn a_message_names_each_unserved_program_once() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let stage = Stage::new();
    let program = stage.compile("nothing.c", &["-static"]);
    stage.copy(&program, "other");
    let script = "for i in 1 2 3; do ./nothing; ./other; (./nothing); done; exec ./other";
    let finished = stage.program(World::Transparent, "/bin/sh").arg("-c").arg(script).finish();
    assert!(finished.status.success(), "{}", finished.report());
    let named =
        |name: &str| finished.stderr.matches(&format!("cannot serve ./{name}: it is statically linked")).count();
    assert_eq!((named("nothing"), named("other")), (1, 1), "{}", finished.report());
}

#[test]
fn a_static_program_is_refused_where_the_run_has_devices_or_swap() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let stage = Stage::new();
    let program = static_programs(&stage);
    let store = stage.write("swap", "");
    std::fs::File::options().write(true).open(&store).and_then(|file| file.set_len(128 << 20)).unwrap();
    std::fs::set_permissions(&store, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let swap = format!("--swap=file:path={},limit=16M", store.display());
    for option in ["--device=disk=ram:size=1M".to_owned(), swap] {
        let run = stage.program_with(World::Transparent, &[option], "/bin/sh").arg("-c").arg(&program);
        let finished = run.finish();
        assert_eq!(finished.status.code(), Some(126), "{}", finished.report());
        assert!(finished.stderr.contains("it is statically linked, and"), "{}", finished.report());
    }
}

#[test]
fn the_launcher_refuses_a_static_program() {
    if on_kernel() {
        return skip("there is no usring");
    }
    let stage = Stage::new();
    let program = static_programs(&stage);
    let finished = stage.program(World::Transparent, &program).finish();
    assert_eq!(finished.status.code(), Some(125), "{}", finished.report());
    assert!(finished.stderr.contains("statically linked"), "{}", finished.report());
}

/// Runs a compiler that the harness does not provide. Fails the test if the compiler fails.
#[track_caller]
fn compile(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_program_on_musl_is_served() {
    let stage = Stage::new();
    let program = stage.path("entry_musl");
    compile(Command::new(require(&MUSL)).args(["-O2", "-o"]).arg(&program).arg(Stage::script("entry_musl.c")));
    for no_patch in ["0", "1"] {
        let run = stage.program(World::Transparent, &program).env("USRING_NO_PATCH", no_patch);
        let finished = run.finish().succeeded();
        assert_eq!(finished.stdout, "5 checks hold\n", "{}", finished.report());
    }
}

#[test]
fn the_engine_does_not_overflow_a_go_programs_small_stacks() {
    let stage = Stage::new();
    let program = stage.path("goroutines");
    let mut build = Command::new(require(&GO));
    build.args(["build", "-o"]).arg(&program).arg(".").current_dir(Stage::script("goroutines"));
    // The cache in this folder keeps Go's own packages compiled between runs.
    build
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"))
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-buildvcs=false");
    compile(&mut build);
    for no_patch in ["0", "1"] {
        let run = stage.program(World::Transparent, &program).env("USRING_NO_PATCH", no_patch);
        let finished = run.finish().succeeded();
        assert_eq!(finished.stdout, "16 goroutines held\n", "{}", finished.report());
    }
}

/// Returns the lines that a tool prints about libusring.so.
fn lines_about_the_library(stage: &Stage, tool: &str, arguments: &[&str]) -> Vec<String> {
    let library = stage.path("tools/libusring.so");
    let output = Command::new(tool).args(arguments).arg(library).output().expect("binutils come with the compiler");
    assert!(output.status.success(), "{tool} {arguments:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// The symbols that libusring.so exports: those of libc that it replaces, and its own.
const OFFERED: [&str; 74] = [
    "_Fork",
    "__poll_chk",
    "__ppoll_chk",
    "__pread64_chk",
    "__pread_chk",
    "__read_chk",
    "clone",
    "close",
    "dup",
    "dup2",
    "dup3",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "fallocate",
    "fallocate64",
    "fcntl",
    "fcntl64",
    "fdatasync",
    "fsync",
    "ftruncate",
    "ftruncate64",
    "getdtablesize",
    "getrlimit",
    "getrlimit64",
    "io_setup2",
    "mmap",
    "mmap64",
    "open",
    "open64",
    "openat",
    "openat64",
    "poll",
    "ppoll",
    "pread",
    "pread64",
    "preadv",
    "preadv64",
    "prlimit",
    "prlimit64",
    "pselect",
    "pthread_attr_setstack",
    "pwrite",
    "pwrite64",
    "pwritev",
    "pwritev64",
    "read",
    "readv",
    "select",
    "setrlimit",
    "setrlimit64",
    "syscall",
    "sysconf",
    "usring_arena_create",
    "usring_arena_destroy",
    "usring_arena_free",
    "usring_arena_malloc",
    "usring_arena_region",
    "usring_arena_usable_size",
    "usring_inject_once",
    "usring_injected",
    "usring_swap_address",
    "usring_swap_advise",
    "usring_swap_error",
    "usring_swap_map",
    "usring_swap_pin",
    "usring_swap_set_limit",
    "usring_swap_set_policy",
    "usring_swap_statistics",
    "usring_swap_unmap",
    "usring_swap_unpin",
    "vfork",
    "write",
    "writev",
];

#[test]
fn the_library_exports_and_imports_only_the_expected_symbols() {
    if on_kernel() {
        return skip("there is no usring");
    }
    require(&LIBURING);
    let stage = Stage::new();
    let symbols = lines_about_the_library(&stage, "nm", &["-D"]);
    let of_kind = |kind: &str| -> BTreeSet<&str> {
        let words = symbols.iter().map(|line| line.split_whitespace().rev());
        words.filter_map(|mut words| words.next().filter(|_| words.next() == Some(kind))).collect()
    };
    assert_eq!(of_kind("T"), BTreeSet::from(OFFERED));
    let taken = [
        // Sanitizer runtimes define these symbols. The library looks them up but never calls them.
        "__asan_init",
        "__hwasan_init",
        "__lsan_init",
        "__msan_init",
        "__tsan_init",
        "__environ",
        "__errno_location",
        // The library calls `__register_atfork` at its start, to register a handler for forked
        // children.
        "__register_atfork",
        "pthread_atfork",
        "_dl_debug_addr",
        "_r_debug",
        "gnu_get_libc_version",
        "mallopt",
    ];
    assert_eq!(of_kind("w"), BTreeSet::from(taken));
    assert_eq!(symbols.len(), OFFERED.len() + taken.len(), "{symbols:?}");
    // The library must need no other library, and must have no thread-local block.
    let headers = lines_about_the_library(&stage, "readelf", &["-ldW"]);
    assert!(
        !headers.iter().any(|line| line.contains("(NEEDED)") || line.trim_start().starts_with("TLS")),
        "{headers:#?}"
    );
}

#[test]
fn the_library_uses_no_register_that_the_entry_points_do_not_save() {
    if on_kernel() {
        return skip("there is no usring");
    }
    require(&LIBURING);
    let stage = Stage::new();
    let code = lines_about_the_library(&stage, "objdump", &["-d", "--no-show-raw-insn"]);
    // The code must not use these registers: wide vectors, vector masks, and the x87 stack with its
    // state.
    let touches = |line: &&String| {
        let instruction = line.split('\t').nth(1).unwrap_or("");
        let name = instruction.split_whitespace().next().unwrap_or("");
        ["%ymm", "%zmm", "%k0", "%k1", "%mm", "%st"].iter().any(|register| instruction.contains(register))
            || name.starts_with('v')
            || matches!(name, "emms" | "ldmxcsr" | "fldcw" | "fninit" | "xrstor" | "fxrstor")
    };
    assert_eq!(code.iter().filter(touches).collect::<Vec<_>>(), Vec::<&String>::new());
}
