//! Random programs on the kernel and on usring, seed by seed. What disagrees
//! once is run again, for where time decides the kernel disagrees with itself.

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// After this a program counts as hung.
const LIMIT: Duration = Duration::from_secs(20);
/// So often each side is asked before the two are said to disagree.
const TIMES: usize = 3;

/// Prints the first line of each seed in which the transcripts never agree.
pub fn compare(usring: &str, first: u64, count: u64) -> ExitCode {
    let mut differing = 0;
    for seed in first..first.saturating_add(count) {
        let sides = [None, Some(usring)].map(|side| (0..TIMES).map(move |_| transcript(side, seed)));
        let (mut kernels, mut ours) = (Vec::new(), Vec::new());
        let [kernel, own] = sides;
        let agree = kernel.zip(own).any(|(kernel, own)| {
            kernels.push(kernel);
            ours.push(own);
            kernels.iter().any(|kernel| ours.contains(kernel))
        });
        if !agree {
            differing += 1;
            let (wanted, got) = first_difference(&kernels[0], &ours[0]);
            println!("{seed}:\n  kernel {wanted}\n  usring {got}");
        }
    }
    println!("{count} programs, {differing} differ");
    if differing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn first_difference<'a>(wanted: &'a str, got: &'a str) -> (&'a str, &'a str) {
    let (mut wanted, mut got) = (wanted.lines(), got.lines());
    loop {
        match (wanted.next(), got.next()) {
            (Some(left), Some(right)) if left == right => {}
            (left, right) => return (left.unwrap_or("(nothing)"), right.unwrap_or("(nothing)")),
        }
    }
}

fn transcript(usring: Option<&str>, seed: u64) -> String {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = match usring {
        None => Command::new(program),
        Some(usring) => {
            let mut command = Command::new(usring);
            command.args(["run", "--deny-kernel", "--"]).arg(program);
            command
        }
    };
    command.args(["random", &seed.to_string()]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program can be started");
    let mut output = child.stdout.take().expect("the output is a pipe");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = output.read_to_string(&mut text);
        text
    });
    let deadline = Instant::now() + LIMIT;
    let ending = loop {
        match child.try_wait() {
            Ok(Some(status)) => break format!("{status}"),
            _ if Instant::now() >= deadline => break "hang".into(),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    reader.join().unwrap_or_default() + &ending
}
