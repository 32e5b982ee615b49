//! Runs cases, each in a process of its own with a time limit. A case that crashes or hangs is
//! reported, and does not affect the other cases.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::syscalls;

/// Time after which a case counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a case and returns its output. If the case crashed or hung, the last line says so.
pub fn transcript(case: &Case) -> String {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.arg("run");
    if syscalls::is_inline() {
        command.arg("--inline");
    }
    let name = case.name();
    command.arg(&name);
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program can be started again");
    collect(child, &name)
}

/// Reads all output of a child and waits for its end, at most [`LIMIT`]. Then kills the child and
/// all processes that it has forked.
fn collect(mut child: Child, name: &str) -> String {
    let mut output = child.stdout.take().expect("the output is a pipe");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let ending = match wait(&mut child) {
        Some(status) if status.success() => String::new(),
        Some(status) => match status.signal() {
            Some(signal) => format!("{name}: died of signal {signal}\n"),
            None => format!("{name}: exit status {}\n", status.code().unwrap_or(-1)),
        },
        None => format!("{name}: hang\n"),
    };
    // The case's forked processes are in the child's process group. None of them may outlive the
    // case.
    // SAFETY: the call accesses no memory. The group was made for this child. The child was reaped
    // just now, if at all, so its number belongs to no other group.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let _ = child.wait();
    reader.join().unwrap_or_default() + &ending
}

fn wait(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs each case `times` times. Prints the cases whose output varies, and returns their number.
pub fn repeat(cases: &[&Case], times: usize) -> usize {
    let mut unstable = 0;
    for case in cases {
        let first = transcript(case);
        let mut other = None;
        for _ in 1..times {
            let again = transcript(case);
            if again != first {
                other = Some(again);
                break;
            }
        }
        if let Some(other) = other {
            unstable += 1;
            println!("{}: not the same every time", case.name());
            println!("--- once\n{first}--- then\n{other}---");
        }
    }
    println!("{} cases, {times} times each, {unstable} unstable", cases.len());
    unstable
}
