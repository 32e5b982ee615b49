//! The tests of `tests/api`, run as an ordinary program that uses the `io-uring` crate and libc and
//! has no code for usring. It runs under `usring run --deny-kernel`. So every call goes through the
//! entry points of libusring.so, and none can reach the kernel's io_uring.
//!
//! Needs `cargo xtask build`, or the path of another `usring` in `USRING_BIN`.

use io_uring as ring;

#[path = "../api/bad_input.rs"]
mod bad_input;
#[path = "../api/basics.rs"]
mod basics;
#[path = "../api/cancel.rs"]
mod cancel;
#[path = "../api/descriptor.rs"]
mod descriptor;
#[path = "../api/files.rs"]
mod files;
#[path = "../api/habits.rs"]
mod habits;
#[path = "../api/links.rs"]
mod links;
#[path = "../api/overflow.rs"]
mod overflow;
#[path = "../api/poll.rs"]
mod poll;
#[path = "../api/provided_buffers.rs"]
mod provided_buffers;
#[path = "../api/read_write.rs"]
mod read_write;
#[path = "../api/registered.rs"]
mod registered;
#[path = "../api/shared_listener.rs"]
mod shared_listener;
#[path = "../api/sq_thread.rs"]
mod sq_thread;
#[path = "../api/support.rs"]
#[allow(dead_code, reason = "each suite uses its part")]
mod support;
#[path = "../api/task_run.rs"]
mod task_run;
#[path = "../api/threads.rs"]
mod threads;
#[path = "../api/timeouts.rs"]
mod timeouts;
#[path = "../api/waiting.rs"]
mod waiting;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Environment variable that is set only in the program that runs under `usring run`.
const INSIDE: &str = "USRING_TEST_INSIDE";

/// Whether the tests run in this process: only in the program under `usring run`.
const RUNS_HERE: fn() -> bool = || std::env::var_os(INSIDE).is_some();

/// Time limit of the whole program, which normally takes seconds.
const LONG: Duration = Duration::from_secs(300);

/// Returns the path of `usring`: `USRING_BIN`, or the executable that cargo has built with this
/// test.
fn usring() -> PathBuf {
    let named = std::env::var_os("USRING_BIN").map(PathBuf::from);
    let path = named.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_usring")));
    let library = path.with_file_name("libusring.so");
    assert!(library.is_file(), "{} is missing; build it with `cargo xtask build`", library.display());
    path
}

/// Runs this executable under `usring run` with these arguments and the time limit [`LONG`].
/// Returns its output.
fn run(arguments: &[&str]) -> Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(usring());
    command.args(arguments).arg("--").arg(program).env(INSIDE, "1");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + LONG;
    // Two threads read the output while the program runs. Otherwise a program that prints more than
    // a pipe holds would block.
    let readers = (reader(child.stdout.take().unwrap()), reader(child.stderr.take().unwrap()));
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            let _ = child.kill();
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = child.wait().unwrap();
    Output { status, stdout: readers.0.join().unwrap(), stderr: readers.1.join().unwrap() }
}

fn reader(mut pipe: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

#[track_caller]
fn passes(arguments: &[&str]) {
    if RUNS_HERE() {
        return;
    }
    let Output { status, stdout, stderr } = run(arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "usring {arguments:?}: {status}\n{stdout}\n{stderr}");
    let passed = stdout.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(passed > 150, "only {passed} tests ran:\n{stdout}");
}

#[test]
fn the_tests_of_the_api_pass_through_patched_call_sites() {
    passes(&["run", "--deny-kernel"]);
}

#[test]
fn the_tests_of_the_api_pass_through_the_trap_alone() {
    passes(&["run", "--deny-kernel", "--no-patch"]);
}
