//! Random programs on the kernel and on usring, seed by seed.
//!
//! - Each side runs up to [`TIMES`] times, until one transcript of the kernel's
//!   equals one of usring's: where time decides, the kernel disagrees with itself.
//! - A difference that the kernel does not promise away stands in [`KNOWN`], with
//!   its reason. `compare` names it and does not fail for it.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lines `SEED REASON`.
const KNOWN: &str = include_str!("../../known-differences.txt");
/// A program that takes longer counts as hung.
const LIMIT: Duration = Duration::from_secs(60);
/// Most runs of each side before they are said to disagree.
const TIMES: usize = 6;
/// Seeds that run at once. The programs mostly wait.
const WORKERS: usize = 6;

/// Prints the first differing line of each seed in which the transcripts never
/// agree. Fails if one of these seeds is not known.
pub fn compare(usring: &str, first: u64, count: u64) -> ExitCode {
    let known = known();
    let next = AtomicU64::new(first);
    let end = first.saturating_add(count);
    let differences = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    if let Some(difference) = difference(usring, seed) {
                        differences.lock().expect("no thread panics with it").insert(seed, difference);
                    }
                }
            });
        }
    });
    let differences = differences.into_inner().expect("no thread panics with it");
    let mut unknown = 0;
    for (seed, [wanted, got]) in &differences {
        let reason = known.get(seed);
        unknown += u64::from(reason.is_none());
        println!("{seed}:\n  kernel {wanted}\n  usring {got}");
        if let Some(reason) = reason {
            println!("  known: {reason}");
        }
    }
    println!("{count} programs, {} differ, {unknown} of them unknown", differences.len());
    if unknown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn known() -> BTreeMap<u64, &'static str> {
    let lines = KNOWN.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let entry = |line: &'static str| {
        let (seed, reason) = line.split_once(' ').expect("a seed and a reason");
        (seed.parse().expect("a seed is a number"), reason)
    };
    lines.map(entry).collect()
}

/// The first line in which the transcripts of a seed differ, the kernel's and
/// usring's. `None` if they agree in one of the runs.
fn difference(usring: &str, seed: u64) -> Option<[String; 2]> {
    let (mut kernels, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        kernels.push(transcript(None, seed));
        ours.push(transcript(Some(usring), seed));
        if kernels.iter().any(|kernel| ours.contains(kernel)) {
            return None;
        }
    }
    let (wanted, got) = first_difference(&kernels[0], &ours[0]);
    Some([wanted.to_owned(), got.to_owned()])
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
