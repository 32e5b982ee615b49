//! Runs cases, each in its own process and with a time limit. If a case crashes or hangs, its
//! output says so, and the other cases are not affected.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::syscalls;

/// Time after which a case counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a case and returns its output. If the case crashes or hangs, the last line says so.
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

/// Reads all output of a child. Waits until the child ends, for at most [`LIMIT`]. Then kills the
/// child, and all processes that it has forked.
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
    // The processes that the case has forked are in the child's process group. None of them may
    // outlive the case.
    // SAFETY: the call accesses no memory. The process group was made for this child. If the child
    // was reaped, that was just now, so no other group has got its number.
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

/// Runs each case `times` times. Prints the cases whose output varies between the runs, and returns
/// how many there are.
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
