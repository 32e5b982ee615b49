//! Programs without code for swap that use more memory than their limit (`usring run --swap`).
//! Their results must be those of a run without swap. Their resident memory must stay within the
//! limit, as counted by usring and by the kernel.

use nix::sys::statvfs::statvfs;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempPath;
use usring_swap::mappings::WINDOW;
use workloads::harness::{Finished, REDIS_SERVER, Run, Stage, World, python, require};

pub const MIB: u64 = 1 << 20;

/// A test's folder, and the `--swap` option that selects the store and the limit.
pub struct Swapped {
    pub stage: Stage,
    options: String,
    /// The store, if it is not in the test's folder. It is removed when this value is dropped.
    _store: Option<TempPath>,
}

impl Swapped {
    /// Makes a store of `capacity` MiB in a file, with a limit of `limit` MiB. `more` is appended
    /// to the option.
    pub fn new(capacity: u64, limit: u64, more: &str) -> Swapped {
        let stage = Stage::new();
        let path = stage.write("swap", "");
        File::options().write(true).open(&path).and_then(|file| file.set_len(capacity * MIB)).unwrap();
        let options = format!("--swap=file:path={},limit={limit}M{more}", path.display());
        Swapped { stage, options, _store: None }
    }

    /// Makes a store as [`Swapped::new`] does, but in the file system /dev/shm, if that has room.
    /// For tests that evict very often and do not depend on a disk.
    pub fn in_memory(capacity: u64, limit: u64, more: &str) -> Swapped {
        const FOLDER: &str = "/dev/shm";
        let room = statvfs(FOLDER).map_or(0, |state| state.blocks_available() * state.fragment_size());
        if room < 8 * capacity * MIB {
            return Swapped::new(capacity, limit, more);
        }
        let store = tempfile::NamedTempFile::new_in(FOLDER).unwrap();
        store.as_file().set_len(capacity * MIB).unwrap();
        store.as_file().set_permissions(Permissions::from_mode(0o666)).unwrap();
        let options = format!("--swap=file:path={},limit={limit}M{more}", store.path().display());
        Swapped { stage: Stage::new(), options, _store: Some(store.into_temp_path()) }
    }

    /// Uses the device `device` as the store, with a limit of `limit` MiB. `more` is appended to
    /// the option.
    pub fn on(device: &str, limit: u64, more: &str) -> Swapped {
        Swapped { stage: Stage::new(), options: format!("--swap={device},limit={limit}M{more}"), _store: None }
    }

    pub fn program(&self, program: impl AsRef<Path>) -> Run {
        let options = ["--stats".to_owned(), self.options.clone()];
        self.stage.program_with(World::Transparent, &options, program).limit(Duration::from_secs(600))
    }

    /// Prepares a program in the world `world`, with the option `--swap`.
    pub fn program_in(&self, world: World, program: impl AsRef<Path>) -> Run {
        self.stage.program_with(world, std::slice::from_ref(&self.options), program)
    }

    /// Prepares a program that also has a device with the SPEC `device`, named `disk`.
    pub fn program_on_device(&self, device: &str, program: impl AsRef<Path>) -> Run {
        let options = [self.options.clone(), format!("--device=disk={device}")];
        self.stage.program_with(World::Denied, &options, program)
    }

    /// Prepares a program without `--stats`, so that the launcher replaces itself by the program.
    pub fn bare(&self, program: impl AsRef<Path>) -> Run {
        self.program_in(World::Transparent, program)
    }
}

/// Fails unless the table of `--stats` shows evictions and a peak within the limit.
#[track_caller]
pub fn within_limit(finished: Finished) -> Finished {
    let finished = finished.succeeded();
    let line = finished.stderr.lines().find(|line| line.contains("resident at most"));
    let line = line.unwrap_or_else(|| panic!("nothing was swapped: {}", finished.report()));
    let numbers: Vec<u64> = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [limit, most, ..] = numbers[..] else { panic!("{line}") };
    assert!(most <= limit && line.contains(" 0 above the limit"), "{line}");
    assert!(!line.contains(" 0 evicted"), "{line}");
    finished
}

/// Returns the number behind `word` in the program's output.
#[track_caller]
fn number_after(finished: &Finished, word: &str) -> u64 {
    let rest = finished.stdout.split(word).nth(1).unwrap_or_else(|| panic!("no {word}: {}", finished.report()));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn sort_sorts_a_file_larger_than_its_resident_memory() {
    let swapped = Swapped::new(256, 16, "");
    let mut lines = String::new();
    let mut state = 1u64;
    for _ in 0..200_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        lines += &format!("{:016x} {}\n", state, "x".repeat(100));
    }
    let input = swapped.stage.write("lines", lines);
    let sorted = swapped.stage.path("sorted");
    // sort(1) has all of its input in memory at once.
    let run = swapped.program("/usr/bin/sort").args(["-S", "64M", "-o"]).arg(&sorted).arg(&input);
    within_limit(run.finish());
    let mut expected = std::fs::read_to_string(&input).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    expected.sort_unstable();
    assert!(std::fs::read_to_string(&sorted).unwrap().lines().eq(expected), "as without swap");
}

const BUILD_AND_CHECK: &str = "\
import array, resource, sys
count = int(sys.argv[1])
numbers = {key: str(key) for key in range(count)}
squares = array.array('Q', (key * key for key in range(4 * count)))
for key in range(count):
    assert numbers[key] == str(key) and squares[3 * key] == 9 * key * key
numbers = {value: key for key, value in numbers.items()}
assert all(numbers[str(key)] == key for key in range(0, count, 7))
print('most resident', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
";

/// Bytes of the Python interpreter's own memory that may be resident in addition to swapped memory.
const INTERPRETER: u64 = 32 * MIB;

fn python_builds(count: u64, capacity: u64, limit: u64) {
    let swapped = Swapped::new(capacity, limit, ",min=256K");
    let finished = swapped.program(python()).args(["-c", BUILD_AND_CHECK]).arg(count.to_string()).finish();
    let finished = within_limit(finished);
    let most = number_after(&finished, "most resident ") * 1024;
    assert!(most <= limit * MIB + INTERPRETER, "{} MiB were resident", most / MIB);
}

#[test]
fn python_builds_and_checks_a_dictionary_and_an_array_larger_than_its_memory() {
    python_builds(400_000, 512, 24);
}

/// A Python program uses about a GiB of memory, of which a quarter may be resident. The test takes
/// minutes.
#[test]
#[ignore = "takes minutes"]
fn python_builds_and_checks_a_gib_with_256_mib() {
    python_builds(6_500_000, 4096, 256);
}

#[test]
fn system_calls_signals_and_threads_work_on_swapped_memory_by_every_mechanism() {
    for mechanism in MECHANISMS {
        let swapped = Swapped::in_memory(128, 4, &format!(",mechanism={mechanism}"));
        let program = swapped.stage.compile("swapped.c", &[]);
        let finished = within_limit(swapped.program(program).args(["12"]).finish());
        assert_eq!(finished.stdout, "7 checks hold\n", "{mechanism}: {}", finished.report());
    }
}

const MECHANISMS: [&str; 3] = ["userfault", "guard", "mprotect"];

/// `mappings.c` makes random calls on its mappings, and each result must be that of the kernel.
/// With the first `SEEDS` seeds and this number of steps, the test has found each bug known so far.
#[test]
fn calls_on_mappings_have_the_kernels_results_by_every_mechanism() {
    const STEPS: &str = "1000";
    let stage = Stage::new();
    let program = stage.compile("mappings.c", &[]);
    for seed in 1..=SEEDS {
        for mechanism in MECHANISMS {
            // The mechanism mprotect protects 16 pages together: a unit, which is also paged in as
            // a whole. So the program changes protections only of whole units.
            let together = if mechanism == "mprotect" { "16" } else { "1" };
            let arguments = [&seed.to_string(), STEPS, together];
            let expected = Command::new(&program).args(arguments).output().unwrap();
            let swapped = Swapped::in_memory(128, 8, &format!(",mechanism={mechanism}"));
            let finished = within_limit(swapped.program(&program).args(arguments).finish());
            let differs = |(expected, found): &(&str, &str)| expected != found;
            let expected = String::from_utf8(expected.stdout).unwrap();
            let first = expected.lines().zip(finished.stdout.lines()).find(differs);
            assert_eq!(first, None, "{mechanism}, seed {seed}: the kernel's, and ours: {}", finished.stderr);
            assert_eq!(expected.lines().count(), finished.stdout.lines().count(), "{mechanism}, seed {seed}");
        }
    }
}

const SEEDS: u32 = 3;

/// The memory limit is the smallest possible one. 64 threads wait in calls, whose memory together
/// is many times larger than the limit.
#[test]
fn blocking_and_large_calls_work_on_swapped_memory_by_every_mechanism() {
    for mechanism in MECHANISMS {
        for (source, size, holds) in
            [("swapped_waiting.c", "16", "9 checks hold\n"), ("swapped_calls.c", "8", "4 checks hold\n")]
        {
            let swapped = Swapped::in_memory(64, 4, &format!(",mechanism={mechanism}"));
            let program = swapped.stage.compile(source, &[]);
            let finished = swapped.program(program).args([size, "64"]).finish().succeeded();
            assert_eq!(finished.stdout, holds, "{mechanism}: {}", finished.report());
            assert!(finished.stderr.contains("resident at most"), "{mechanism}: {}", finished.report());
        }
    }
}

#[test]
fn fork_copies_swapped_memory_to_the_child_by_every_mechanism() {
    for mechanism in MECHANISMS {
        let swapped = Swapped::in_memory(96, 4, &format!(",mechanism={mechanism}"));
        let program = swapped.stage.compile("forked.c", &[]);
        let expected = Command::new(&program).arg("6").output().unwrap();
        assert!(expected.status.success(), "by the kernel");
        let finished = within_limit(swapped.program(&program).arg("6").finish());
        assert_eq!(finished.stdout, String::from_utf8(expected.stdout).unwrap(), "{mechanism}: {}", finished.report());
    }
}

/// A forked child touches swapped memory that it does not inherit, while other threads fork. During
/// each fork, usring makes a copy of that memory for the new child. The touch must kill the child.
/// The child must read neither the copy nor zeroes.
#[test]
fn a_child_that_does_not_inherit_memory_ends_and_reads_no_zeroes() {
    for mechanism in MECHANISMS {
        let swapped = Swapped::in_memory(96, 4, &format!(",mechanism={mechanism}"));
        let program = swapped.stage.compile("forked.c", &[]);
        let finished = within_limit(swapped.program(&program).args(["10", "touch"]).finish());
        assert_eq!(finished.stdout, "100 killed, 0 fine\n", "{mechanism}: {}", finished.report());
        assert!(finished.stderr.contains("a forked child touched"), "{mechanism}: {}", finished.report());
    }
}

/// Runs Debian's Redis server, and checks values that are computed from their keys.
fn redis_serves(keys: u64, capacity: u64, limit: u64) {
    let swapped = Swapped::new(capacity, limit, "");
    let socket = swapped.stage.path("socket");
    let arguments = ["--port", "0", "--save", "", "--unixsocket"];
    let server = require(&REDIS_SERVER);
    let mut server = swapped.program(server).args(arguments).arg(&socket).args(["--loglevel", "warning"]).start();
    let client = Stage::script("redis_values.py");
    let asked = Command::new(python()).arg(client).arg(&socket).arg(keys.to_string()).output().unwrap();
    assert!(!server.has_ended() || asked.status.success(), "the server has ended");
    let said = String::from_utf8_lossy(&asked.stdout).into_owned() + &String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success(), "{said}{}", server.stderr_so_far());
    let resident: u64 = said.trim().rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
    assert!(resident <= (limit + 24) * MIB, "{} MiB are resident: {said}", resident / MIB);
    within_limit(server.finish());
}

#[test]
fn a_redis_server_holds_four_times_its_resident_memory() {
    redis_serves(128_000, 512, 32);
}

/// The Redis server saves its data by forked children while clients write other values.
pub fn a_redis_server_saves(world: World) {
    const KEYS: &str = "32000";
    let swapped = Swapped::new(256, 16, "");
    let (socket, client) = (swapped.stage.path("socket"), Stage::script("redis_saves.py"));
    let arguments = ["--port", "0", "--save", "", "--loglevel", "warning", "--unixsocketperm", "777", "--unixsocket"];
    for what in ["save", "load"] {
        let program = require(&REDIS_SERVER);
        let server = if what == "save" {
            swapped.program_in(world, program)
        } else {
            swapped.stage.program(World::Bare, program)
        };
        let server = server.args(arguments).arg(&socket).limit(Duration::from_secs(600)).start();
        let asked = Command::new(python()).arg(&client).arg(&socket).args([KEYS, what]).output().unwrap();
        let said = String::from_utf8_lossy(&asked.stderr);
        assert!(asked.status.success(), "{what}: {said}{}", server.stderr_so_far());
        let finished = server.finish();
        if what == "save" {
            let finished = within_limit(finished);
            assert_eq!(finished.stderr.matches("resident at most").count(), 3, "{}", finished.report());
        }
    }
}

#[test]
fn a_redis_server_saves_the_data_of_the_moment_of_its_fork() {
    a_redis_server_saves(World::Denied);
}

/// Starts processes in every way that Python has.
pub fn python_starts_processes(world: World) {
    let swapped = Swapped::new(256, 8, ",min=256K");
    let script = swapped.stage.copy(&Stage::script("children.py"), "children.py");
    let run = swapped.program_in(world, python()).arg(script);
    let finished = within_limit(run.limit(Duration::from_secs(600)).finish());
    assert_eq!(finished.stdout, "all is well\n", "{}", finished.report());
}

#[test]
fn python_child_processes_work_on_swapped_memory() {
    python_starts_processes(World::Denied);
}

#[test]
#[ignore = "takes minutes"]
fn a_redis_server_holds_a_gib_with_256_mib_resident() {
    redis_serves(1_024_000, 4096, 256);
}

#[test]
fn a_second_process_does_not_use_the_firsts_swap_file() {
    let swapped = Swapped::new(64, 16, ",min=256K");
    let inner = "kept = bytearray(4 << 20); print(sum(kept))";
    let outer = format!(
        "import subprocess, sys\nkept = bytearray(4 << 20)\n\
         subprocess.run([sys.executable, '-c', '{inner}'], check=True)\nprint(sum(kept))"
    );
    let finished = swapped.program(python()).args(["-c", &outer]).finish().succeeded();
    assert_eq!(finished.stdout, "0\n0\n", "{}", finished.report());
    assert!(finished.stderr.contains("is in use by another process"), "{}", finished.report());
}

/// A program of the run executes a program with a large thread-local block. The loader maps this
/// block before usring's library is initialised and can handle faults.
#[test]
fn a_program_of_the_run_starts_one_with_large_thread_local_storage() {
    let swapped = Swapped::on("ram:size=64M", 4, "");
    let program = swapped.stage.compile("thread_local.c", &[]);
    let script = format!("{0}; {0}", program.display());
    let finished = swapped.program("/bin/sh").args(["-c", &script]).finish().succeeded();
    assert_eq!(finished.stdout, "2312\n2312\n", "{}", finished.report());
    assert!(finished.stderr.contains("resident at most"), "{}", finished.report());
}

/// execve(2) keeps the seccomp filter of traps, but not the handler of SIGSYS. So none of the
/// loader's calls must trap, whatever the registers contain that a call does not use.
#[test]
fn a_program_of_the_run_starts_one_whose_unused_registers_name_swapped_memory() {
    let swapped = Swapped::on("ram:size=64M", 4, "");
    let program = swapped.stage.compile("early_calls.c", &[&format!("-DSWAPPED={:#x}", WINDOW.start)]);
    let script = format!("{0}; {0}", program.display());
    let finished = swapped.program("/bin/sh").args(["-c", &script]).finish().succeeded();
    assert_eq!(finished.stdout, "68 calls, 0 missing\n68 calls, 0 missing\n", "{}", finished.report());
    assert!(finished.stderr.contains("resident at most"), "{}", finished.report());
}

#[test]
fn wrong_swap_options_are_reported_before_the_program_starts() {
    let stage = Stage::new();
    let said = |option: String| {
        let run = stage.program_with(World::Transparent, &[option], PathBuf::from("/bin/true")).finish();
        assert_eq!(run.status.code(), Some(125), "{}", run.report());
        run.stderr
    };
    assert!(said("--swap=ram:size=1G".into()).contains("limit= is missing"));
    assert!(said("--swap=file:path=nowhere,limit=8M".into()).contains("does not exist"));
    assert!(said("--swap=ram:size=1G,limit=1M".into()).contains("too small"));
}
