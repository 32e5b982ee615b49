//! Compares the output of random programs on the kernel and on usring, seed by seed.
//!
//! - [`compare`] searches for differences: it runs a range of seeds on the kernel and on usring.
//! - [`check`] runs the fixed seeds of [`FIXED`] on usring. It compares with the kernel's output,
//!   whose digests [`record`] has printed for that list.
//! - A seed runs on the kernel and on usring until the outputs agree, at most once for each of
//!   [`WAIT_FACTORS`]. Busy machines need longer waits, and some programs depend on timing.
//! - [`KNOWN`] lists the differences that the kernel's guarantees allow. Each has the digest of
//!   usring's output and the reason. A difference with another digest counts as unknown.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::digest;

/// The known differences. Each line is `SEED DIGEST REASON`, with the digest of usring's output.
const KNOWN: &str = include_str!("../../known-differences.txt");
/// The fixed seeds. Each line is `SEED DIGEST`, with the digest of the output on Linux 6.18.
const FIXED: &str = include_str!("../../random-seeds.txt");
/// Time after which a random program counts as hanging, and is killed.
const LIMIT: Duration = Duration::from_secs(120);
/// The wait factors of the runs of a seed, in order. A wait factor multiplies the length of a
/// program's waits.
const WAIT_FACTORS: [u32; 6] = [1, 1, 3, 3, 10, 40];
/// Number of seeds that run at one time. It may exceed the number of processors, because the
/// programs wait most of the time.
const WORKERS: usize = 6;

/// Runs `count` seeds, from `first` on, on the kernel and on usring. For each seed whose outputs
/// never agree, prints the first line that differs. Fails if [`KNOWN`] does not list each of these
/// differences.
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

/// Runs the fixed seeds on usring. If `has_kernel`, also runs them on the kernel, which must be
/// Linux 6.18. Prints each output that differs from the recorded one, and fails if there is such an
/// output.
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

/// Prints the lines of [`FIXED`] for the seeds 1 to `count`. Leaves out a seed if its output varies
/// between runs on the kernel.
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

/// Calls `run` for each seed, on [`WORKERS`] threads. Returns the results that are not `None`, by
/// seed.
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

/// Parses lines that each have a seed, a digest, and possibly more text.
fn entries(text: &'static str) -> BTreeMap<u64, (&'static str, &'static str)> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let entry = |line: &'static str| {
        let (seed, rest) = line.split_once(' ').expect("a seed and a digest");
        (seed.parse().expect("a seed is a number"), rest.split_once(' ').unwrap_or((rest, "")))
    };
    lines.map(entry).collect()
}

/// Runs a seed on the kernel, or on usring if `usring` names its program. Repeats that until the
/// output has the digest `wanted`, and then returns `None`. If no run has this output, returns the
/// output of the last run.
fn answers_otherwise(usring: Option<&str>, seed: u64, wanted: &str) -> Option<String> {
    let mut last = None;
    for wait_factor in WAIT_FACTORS {
        let text = transcript(usring, seed, wait_factor);
        if digest(text.as_bytes()) == wanted {
            return None;
        }
        last = Some(text);
    }
    last
}

struct Difference {
    /// The first line that differs. `wanted` is from the kernel's output, and `got` from usring's.
    wanted: String,
    got: String,
    /// The digest of usring's whole output.
    digest: String,
}

/// Runs a seed on the kernel and on usring, several times. Returns `None` if an output of the
/// kernel equals an output of usring. Otherwise returns how the last outputs differ.
fn difference(usring: &str, seed: u64) -> Option<Difference> {
    let (mut kernels, mut ours) = (Vec::new(), Vec::new());
    for wait_factor in WAIT_FACTORS {
        kernels.push(transcript(None, seed, wait_factor));
        ours.push(transcript(Some(usring), seed, wait_factor));
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

fn transcript(usring: Option<&str>, seed: u64, wait_factor: u32) -> String {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = match usring {
        None => Command::new(program),
        Some(usring) => {
            let mut command = Command::new(usring);
            command.args(["run", "--deny-kernel", "--"]).arg(program);
            command
        }
    };
    command.args(["random", &seed.to_string(), &wait_factor.to_string()]);
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
