//! Runs a case of two programs: a server on the measured system, and clients. The clients drive the
//! server and print the sample (the measured values).

use super::child;
use super::priority;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Output};
use std::sync::mpsc::channel;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// Starts the server, waits until it listens, and runs the clients with the server's port and
/// process id as arguments. Returns the clients' output. Fails if the server does not end with
/// success.
pub fn drive(mut server: Command, mut clients: Command) -> Result<Output, String> {
    let mut child = start_on_processor(0, &mut server)?;
    let process = child.id();
    let driven = match child.stdout.take().ok_or_else(|| "its standard output is closed".to_owned()).and_then(port) {
        Ok(port) => {
            clients.args(["--port", &port, "--server", &process.to_string()]);
            start_on_processor(1, &mut clients).and_then(|clients| child::wait_within(clients, LIMIT))
        }
        Err(why) => Err(why),
    };
    let _ = kill(Pid::from_raw(process.cast_signed()), Signal::SIGTERM);
    let ended = child::wait_within(child, LIMIT)?;
    match driven {
        Ok(output) if output.status.success() && !ended.status.success() => Err(child::complaint(&ended)),
        // If the server failed, its message explains more than the clients' error does.
        Err(_) if !ended.status.success() => Err(child::complaint(&ended)),
        driven => driven,
    }
}

/// Returns the port from the server's first line, which ends with `listening on 127.0.0.1:PORT`.
fn port(output: ChildStdout) -> Result<String, String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        let _ = output.read_line(&mut line);
        let _ = sender.send(line);
        // Reads all further output of the server, so that it never blocks on a full pipe.
        let _ = std::io::copy(&mut output, &mut std::io::sink());
    });
    let line = receiver.recv_timeout(LIMIT).map_err(|_| "the server did not print its address".to_owned())?;
    let port = line.trim().rsplit_once("listening on 127.0.0.1:").map(|(_, port)| port.to_owned());
    port.ok_or_else(|| format!("the server printed {line:?} instead of its address"))
}

/// Starts a child on one processor. `index`: position of the processor among those that this
/// process may use. Gives the child a real-time priority if the user may do so. So server and
/// clients do not share a processor, do not migrate, and do not wait for other processes. On a
/// machine with one processor the child is ordinary.
fn start_on_processor(index: usize, command: &mut Command) -> Result<Child, String> {
    let this_thread = Pid::from_raw(0);
    let ours = sched_getaffinity(this_thread).unwrap_or_default();
    let processors: Vec<usize> = (0..CpuSet::count()).filter(|at| ours.is_set(*at).unwrap_or(false)).collect();
    let mut one = CpuSet::new();
    if processors.len() > 1 && one.set(processors[index]).is_ok() {
        // The child inherits this affinity. This process's own affinity is restored below.
        let _ = sched_setaffinity(this_thread, &one);
    }
    let child = child::start(command);
    if processors.len() > 1
        && let Ok(child) = &child
    {
        priority::make_realtime(child);
    }
    let _ = sched_setaffinity(this_thread, &ours);
    child
}
