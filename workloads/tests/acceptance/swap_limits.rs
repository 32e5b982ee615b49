//! The limits of `usring run --swap`: the memory limit by the kernel's count, a container, and a
//! store that is full, fails, or cannot be opened.

use crate::swap_run::{self, MIB, Swapped, within_limit};
use crate::vhost_user::BackEnd;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;
use workloads::control_group::ControlGroup;
use workloads::harness::skipped::skip;
use workloads::harness::{Finished, Stage, World, is_root, python};

const LIMIT: u64 = 16;
/// MiB that the program uses: four times the limit.
const MEMORY: u64 = 64;
const THREADS: &str = "4";

/// Returns the mechanisms that work with this user's privileges.
fn mechanisms() -> &'static [&'static str] {
    if is_root() {
        return &["userfault", "guard", "mprotect", "compat"];
    }
    skip("only root can use the mechanism compat");
    &["userfault", "guard", "mprotect"]
}

/// Compiles `swapped_words.c` on the stage of `swapped`.
fn words(swapped: &Swapped) -> PathBuf {
    swapped.stage.compile("swapped_words.c", &[])
}

#[track_caller]
fn adds(finished: Finished) -> Finished {
    let finished = finished.succeeded();
    assert!(finished.stdout.ends_with(" additions hold\n"), "{}", finished.report());
    finished
}

#[test]
fn user_nobody_in_a_container_has_swapped_memory() {
    // The program runs as the user `nobody` under Docker's seccomp rules. Without `mechanism=`
    // usring must select a mechanism that these rules allow.
    for mechanism in ["", ",mechanism=mprotect"] {
        let swapped = Swapped::new(256, LIMIT, mechanism);
        let finished = swapped.program_in(World::Confined, words(&swapped));
        let finished = adds(finished.args([&MEMORY.to_string(), THREADS, "2000"]).finish());
        let unit = if mechanism.is_empty() { "pages of 4 KiB" } else { "pages of 64 KiB" };
        assert!(within_limit(finished).stderr.contains(unit), "{mechanism}");
    }
    let swapped = Swapped::in_memory(64, 4, "");
    let program = swapped.stage.compile("swapped.c", &[]);
    let finished = within_limit(swapped.program_in(World::Confined, program).arg("12").finish());
    assert!(finished.stdout.ends_with(" checks hold\n"), "{}", finished.report());
    let program = swapped.stage.compile("forked.c", &[]);
    let finished = within_limit(swapped.program_in(World::Confined, program).arg("10").finish());
    assert!(finished.stdout.ends_with("all is well\n"), "{}", finished.report());
    // The message names the mechanism that does not work under Docker's seccomp rules, and the
    // errno.
    let swapped = Swapped::new(256, LIMIT, ",mechanism=userfault");
    let finished = swapped.program_in(World::Confined, "/bin/true").finish();
    assert_eq!(finished.status.code(), Some(125), "{}", finished.report());
    assert!(
        finished.stderr.contains("mechanism=userfault does not work here (EPERM: operation not permitted)"),
        "{}",
        finished.report()
    );
}

#[test]
fn user_nobody_in_a_container_forks_with_swapped_memory() {
    swap_run::python_starts_processes(World::Confined);
    swap_run::a_redis_server_saves(World::Confined);
}

#[test]
fn the_doctor_names_the_mechanism_of_swapped_memory() {
    let stage = Stage::new();
    for (world, mechanism) in [(World::Bare, "userfault"), (World::ConfinedBare, "guard")] {
        let said = stage.program(world, stage.path("tools/usring")).arg("doctor").finish().succeeded().stdout;
        let taken: Vec<_> = said.lines().filter(|line| line.ends_with("usring uses this one")).collect();
        assert!(matches!(taken[..], [line] if line.contains(&format!(" {mechanism} works, "))), "{said}");
        assert!(said.contains("  run --swap        works, ") && said.contains("µs for a page from memory\n"), "{said}");
    }
}

/// Returns how many bytes swap itself may use beyond its limit, as `docs/swap.md` says.
fn slack() -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    2 * MIB + processors * (MIB / 4) + MEMORY * MIB / 64
}

/// Bytes that the program uses outside of swapped memory: its stacks and its libraries' variables.
const OF_ITS_OWN: u64 = 2 * MIB;

#[test]
fn a_control_group_of_limit_plus_slack_holds_four_times_as_much_memory() {
    for mechanism in mechanisms() {
        let group = match ControlGroup::make((LIMIT * MIB + slack() + OF_ITS_OWN) as usize) {
            Ok(group) => group.without_swap(),
            Err(why) => return skip(&why.to_string()),
        };
        let swapped = Swapped::new(512, LIMIT, &format!(",mechanism={mechanism}"));
        let run = swapped.bare(words(&swapped)).args([&MEMORY.to_string(), THREADS, "3000"]);
        // `swapped_words.c` prints its result only if it has stayed within the group's limit.
        // Otherwise the kernel has killed it.
        adds(run.within(&group).finish());
        println!("{mechanism}: {:?} bytes at most", group.peak());
    }
}

/// Returns the resident bytes of a process's swapped memory, by the kernel's count.
fn resident(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/smaps")).unwrap();
    let (mut sum, mut is_window) = (0, false);
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or("");
        if let Some((start, _)) = first.split_once('-') {
            is_window = u64::from_str_radix(start, 16).is_ok_and(|start| start >> 40 == 0x20);
        } else if is_window && first == "Rss:" {
            sum += line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap() << 10;
        }
    }
    sum.max(of_file(process))
}

/// Returns the resident bytes of the memory file that some mechanisms map. Parts of the file may be
/// resident without being mapped.
fn of_file(process: u32) -> u64 {
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let ours = files.filter(|path| fs::read_link(path).is_ok_and(|name| name.starts_with("/memfd:usring-swap")));
    ours.map(|path| fs::metadata(path).unwrap().blocks() * 512).sum()
}

#[test]
fn no_more_than_the_limit_is_resident_at_any_moment() {
    const LOOKS: u32 = 15;
    for mechanism in mechanisms() {
        let swapped = Swapped::new(256, LIMIT, &format!(",mechanism={mechanism}"));
        let mut program = swapped.bare(words(&swapped)).args([&MEMORY.to_string(), THREADS, "0"]).start();
        program.wait_for_line(Duration::from_secs(60));
        let looks: Vec<u64> = (0..LOOKS)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(7));
                program.stopped(resident)
            })
            .collect();
        program.terminate();
        adds(program.finish());
        assert!(looks.iter().all(|bytes| *bytes <= LIMIT * MIB), "{mechanism}: {looks:?}");
        // The program must also use its memory: at some moment, more than half of the limit is
        // resident.
        assert!(looks.iter().any(|bytes| *bytes > LIMIT * MIB / 2), "{mechanism}: {looks:?}");
    }
}

#[test]
fn a_full_store_is_reported_and_loses_no_page() {
    for mechanism in mechanisms() {
        let swapped = Swapped::new(24, LIMIT, &format!(",mechanism={mechanism}"));
        let run = swapped.program(words(&swapped)).args([&MEMORY.to_string(), THREADS, "1000"]);
        let finished = adds(run.finish());
        let reports = finished.stderr.matches("the backing store is full (245").count();
        assert_eq!(reports, 1, "{}", finished.report());
        assert!(!finished.stderr.contains(" 0 above the limit"), "{}", finished.report());
    }
}

#[track_caller]
fn died_of_a_page(finished: &Finished) {
    const SIGBUS: i32 = 7;
    assert_eq!(finished.status.signal(), Some(SIGBUS), "{}", finished.report());
    let said = &finished.stderr;
    assert!(said.contains("cannot be read back: slot ") && said.contains("EIO"), "{}", finished.report());
}

#[test]
fn an_unreadable_page_kills_the_program_and_is_never_invented() {
    for mechanism in mechanisms() {
        // Reads and writes of this store sometimes fail. The program must die of the first page
        // that cannot be read back, and must never see wrong content.
        let failing = "error(delay(ram:size=256M,read=10us),eio=0.02,seed=3),poll=hybrid";
        let swapped = Swapped::on(failing, LIMIT, &format!(",mechanism={mechanism}"));
        let finished = swapped.bare(words(&swapped)).args([&MEMORY.to_string(), THREADS, "0"]).finish();
        died_of_a_page(&finished);
    }
}

#[test]
fn a_back_end_in_another_process_holds_swapped_memory_of_one_process() {
    let swapped = Swapped::on("vhost-user:socket=back-end,poll=hybrid", 4, ",min=256K");
    let mut back_end = BackEnd::start(&swapped.stage, "raw");
    let program = words(&swapped);
    let finished = within_limit(adds(swapped.program(&program).args(["14", THREADS, "1000"]).finish()));
    // Swap uses as many queues as the device has. If it asked for more, usring would print this
    // message.
    assert!(!finished.stderr.contains("all in use"), "{}", finished.report());
    let nested = "import subprocess, sys\nkept = bytearray(4 << 20)\n\
                  subprocess.run(sys.argv[1:], check=True)\nprint(sum(kept))";
    let finished = swapped.program(python()).args(["-c", nested]).arg(&program).args(["14", "1", "100"]).finish();
    assert!(finished.stderr.contains("is in use by another process"), "{}", finished.report());
    assert_eq!(finished.succeeded().stdout, "at work\n100 additions hold\n0\n");
    // The Python process has ended and has given the device's queues back. So the next process can
    // have its swapped memory on the device.
    let mut started = swapped.bare(&program).args(["14", THREADS, "0"]).start();
    started.wait_for_line(Duration::from_secs(60));
    back_end.kill();
    died_of_a_page(&started.finish());
}

#[test]
fn an_unusable_swap_store_is_refused_before_the_program_starts() {
    let stage = Stage::new();
    let refused = |world, option: &str| {
        let finished = stage.program_with(world, &[format!("--swap={option}")], "/bin/true").finish();
        assert_eq!(finished.status.code(), Some(125), "{}", finished.report());
        finished.stderr
    };
    let here = |option: &str| refused(World::Transparent, option);
    stage.write("empty", "");
    assert!(here("file:path=empty,limit=16M").contains("truncate -s 8G "));
    stage.write("tiny", [0; 6000]);
    assert!(here("file:path=tiny,limit=16M").contains("less than a header and a page"));
    stage.write("notes", [7; 2000]);
    assert!(here("file:path=notes,limit=16M").contains("holds data that usring did not write"));
    stage.make_folder("folder");
    assert!(here("file:path=folder,limit=16M").contains("is a folder"));
    assert!(here("file:path=/dev/null,limit=16M").contains("is neither a file nor a block device"));
    assert!(here("file:path=empty,limt=16M").contains("limit="));
    assert!(here("vhost-user:socket=nowhere,limit=16M").contains("nowhere cannot be reached"));
    assert!(here("null:size=1G,limit=16M").contains("keeps no data"));
    let inside = here("error(delay(null:size=1G,read=1us),eio=1%),limit=16M");
    assert!(inside.contains("keeps no data"), "{inside}");
    fs::File::create(stage.path("large")).unwrap().set_len(64 << 30).unwrap();
    assert!(here("file:path=large,limit=16M,mechanism=mprotect").contains("at least limit=1024M"));
    fs::set_permissions(stage.path("large"), fs::Permissions::from_mode(0o444)).unwrap();
    assert!(
        refused(World::Confined, "file:path=large,limit=16M")
            .contains("cannot be written to (EACCES: permission denied)")
    );
}
