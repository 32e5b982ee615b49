//! Compares random programs on the kernel and on usring, seed by seed.
//!
//! - [`compare`] searches: it runs a range of seeds on both.
//! - [`check`] runs the fixed seeds of [`FIXED`] on usring, against the kernel's answers that
//!   [`record`] has written down.
//! - Each side runs up to as many times as [`PATIENCE`] has entries, until the transcripts agree. A
//!   busy machine needs more patience, and some programs depend on timing.
//! - Differences on which the kernel makes no promise are listed in [`KNOWN`], with usring's answer
//!   and the reason. A listed seed with any other answer is an unknown difference.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::digest;

/// Lines `SEED DIGEST REASON`; the digest is that of usring's transcript.
const KNOWN: &str = include_str!("../../known-differences.txt");
/// Lines `SEED DIGEST`; the digest is that of the transcript on Linux 6.18.
const FIXED: &str = include_str!("../../random-seeds.txt");
/// A program that takes longer counts as hung.
const LIMIT: Duration = Duration::from_secs(120);
/// The patience of each run, in order.
const PATIENCE: [u32; 6] = [1, 1, 3, 3, 10, 40];
/// Number of seeds that run at once. The programs mostly wait.
const WORKERS: usize = 6;

/// Prints the first differing line of each seed in which the transcripts never
/// agree. Fails if one of these seeds is not known.
pub fn compare(usring: &str, first: u64, count: u64) -> ExitCode {
    let known = entries(KNOWN);
    let seeds: Vec<u64> = (first..first.saturating_add(count)).collect();
    let differences = in_parallel(&seeds, |seed| difference(usring, seed));
    let mut unknown = 0;
    for (seed, Difference { wanted, got, digest }) in &differences {
        let reason = known.get(seed).filter(|(listed, _)| listed == digest).map(|(_, reason)| reason);
        unknown += u64::from(reason.is_none());
        println!("{seed}: {digest}\n  kernel {wanted}\n  usring {got}");
        if let Some(reason) = reason {
            println!("  known: {reason}");
        }
    }
    println!("{count} programs, {} differ, {unknown} of them unknown", differences.len());
    if unknown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the fixed seeds on usring and, if it is the recorded release, on the kernel. Prints the
/// seeds whose answers differ from the recorded ones, and fails if there are any.
pub fn check(usring: &str, has_kernel: bool) -> ExitCode {
    let fixed = entries(FIXED);
    let seeds: Vec<u64> = fixed.keys().copied().collect();
    let wrong = in_parallel(&seeds, |seed| {
        let (wanted, _) = fixed[&seed];
        let kernel = has_kernel.then(|| answers_otherwise(None, seed, wanted)).flatten();
        let usring = answers_otherwise(Some(usring), seed, wanted);
        (kernel.is_some() || usring.is_some()).then_some((kernel, usring))
    });
    for (seed, (kernel, usring)) in &wrong {
        for (who, transcript) in [("the kernel", kernel), ("usring", usring)] {
            if let Some(transcript) = transcript {
                println!("{seed}: {who} does not answer as recorded, but:\n{transcript}");
            }
        }
    }
    println!("{} programs, {} answered not as recorded", fixed.len(), wrong.len());
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the lines of [`FIXED`] for `count` seeds. Leaves out seeds in which the kernel's runs
/// differ from each other.
pub fn record(count: u64) -> ExitCode {
    const RUNS: usize = 3;
    let seeds: Vec<u64> = (1..=count).collect();
    let answers = in_parallel(&seeds, |seed| {
        let first = transcript(None, seed, 3);
        (1..RUNS).all(|_| transcript(None, seed, 3) == first).then(|| digest(first.as_bytes()))
    });
    for (seed, digest) in answers {
        println!("{seed} {digest}");
    }
    ExitCode::SUCCESS
}

/// Runs `run` for each seed, and returns its results by seed.
fn in_parallel<T: Send>(seeds: &[u64], run: impl Fn(u64) -> Option<T> + Sync) -> BTreeMap<u64, T> {
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(answer) = run(*seed) {
                        answers.lock().expect("no thread panics with it").insert(*seed, answer);
                    }
                }
            });
        }
    });
    answers.into_inner().expect("no thread panics with it")
}

/// Parses lines of a seed, its digest and the text after it.
fn entries(text: &'static str) -> BTreeMap<u64, (&'static str, &'static str)> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let entry = |line: &'static str| {
        let (seed, rest) = line.split_once(' ').expect("a seed and a digest");
        (seed.parse().expect("a seed is a number"), rest.split_once(' ').unwrap_or((rest, "")))
    };
    lines.map(entry).collect()
}

/// Runs a seed until its digest is `wanted`. Returns the last transcript if no run had that digest.
fn answers_otherwise(usring: Option<&str>, seed: u64, wanted: &str) -> Option<String> {
    let mut last = None;
    for patience in PATIENCE {
        let text = transcript(usring, seed, patience);
        if digest(text.as_bytes()) == wanted {
            return None;
        }
        last = Some(text);
    }
    last
}

struct Difference {
    /// The first differing line, of the kernel and of usring.
    wanted: String,
    got: String,
    /// The digest of usring's whole transcript.
    digest: String,
}

/// Returns how the transcripts of a seed differ. `None` if they agree in one of the runs.
fn difference(usring: &str, seed: u64) -> Option<Difference> {
    let (mut kernels, mut ours) = (Vec::new(), Vec::new());
    for patience in PATIENCE {
        kernels.push(transcript(None, seed, patience));
        ours.push(transcript(Some(usring), seed, patience));
        if kernels.iter().any(|kernel| ours.contains(kernel)) {
            return None;
        }
    }
    let (kernel, ours) = (kernels.last()?, ours.last()?);
    let (wanted, got) = first_difference(kernel, ours);
    Some(Difference { wanted: wanted.to_owned(), got: got.to_owned(), digest: digest(ours.as_bytes()) })
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

fn transcript(usring: Option<&str>, seed: u64, patience: u32) -> String {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = match usring {
        None => Command::new(program),
        Some(usring) => {
            let mut command = Command::new(usring);
            command.args(["run", "--deny-kernel", "--"]).arg(program);
            command
        }
    };
    command.args(["random", &seed.to_string(), &patience.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
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
