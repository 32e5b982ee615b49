//! The program behind `usring doctor`'s lines on swap: whether one mechanism
//! brings pages back on this machine, and how long that takes.

use super::{Failure, Outcome, child};
use nix::libc;
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::{Duration, Instant};
use usring::swap::{Mechanism, SwapRegion};

/// Which mechanism to try.
#[derive(clap::Args)]
pub struct Options {
    mechanism: String,
}

/// What the probe prints, as one line of JSON.
#[derive(Debug, Deserialize, Serialize)]
enum Answer {
    /// Median nanoseconds of touching a page that is out, with a device in memory.
    Works(u64),
    /// The error's number.
    Fails(i32),
}

const PATIENCE: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;
/// Swap-ins that are measured.
const SAMPLES: usize = 1001;

/// The hidden subcommand.
pub fn run(options: &Options) -> Outcome {
    let mechanism = Mechanism::of_name(&options.mechanism).ok_or_else(|| Failure::new("no such mechanism"))?;
    let answer = match measure(mechanism) {
        Ok(median) => Answer::Works(median),
        Err(error) => Answer::Fails(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    let line = serde_json::to_string(&answer).map_err(|error| Failure::new(error.to_string()))?;
    println!("{line}");
    Ok(0)
}

/// Touches pages all over a region until enough of them were out; each must
/// hold what was written to it.
fn measure(mechanism: Mechanism) -> std::io::Result<u64> {
    let builder = SwapRegion::builder().backing("ram:size=65M")?;
    let mut region = builder.size(64 * MIB).limit(16 * MIB).readahead(0).mechanism(mechanism).build()?;
    let page = region.page_size();
    let count = region.size() / page;
    for (index, bytes) in region.as_mut_slice().chunks_mut(page).enumerate() {
        bytes[..8].copy_from_slice(&(index as u64 + 1).to_le_bytes());
    }
    let mut times = Vec::new();
    let mut index = 0;
    while times.len() < SAMPLES {
        // Visits all pages, far from one another.
        index = (index + count / 2 + count / 8 + 1) % count;
        let before = region.statistics().swap_ins;
        let start = Instant::now();
        let found = std::hint::black_box(&region.as_slice()[index * page..index * page + 8]);
        let is_right = found == (index as u64 + 1).to_le_bytes();
        let time = start.elapsed();
        if !is_right {
            return Err(std::io::Error::from_raw_os_error(libc::EBADMSG));
        }
        if region.statistics().swap_ins != before {
            times.push(time.as_nanos() as u64);
        }
    }
    times.sort_unstable();
    Ok(times[SAMPLES / 2])
}

/// What `doctor` says of each mechanism, in the order in which they are tried.
pub fn findings() -> impl Iterator<Item = (Mechanism, String)> {
    Mechanism::ALL.into_iter().map(|mechanism| (mechanism, finding(mechanism)))
}

fn finding(mechanism: Mechanism) -> String {
    let worth = match mechanism {
        Mechanism::Protect => " (64 KiB at a time)",
        Mechanism::Thread => " (only if asked for; system calls reach pages that are out)",
        _ => "",
    };
    match ask(mechanism) {
        Ok(Answer::Works(median)) => format!("works, {:.1} µs for a page from memory{worth}", median as f64 / 1000.0),
        Ok(Answer::Fails(error)) => {
            format!("does not work: errno {error}, {}", nix::errno::Errno::from_raw(error).desc().to_lowercase())
        }
        Err(why) => format!("does not work: {why}"),
    }
}

fn ask(mechanism: Mechanism) -> Result<Answer, String> {
    let mut command = Command::new(child::ourselves()?);
    let output = child::output_within(command.args(["swap-probe", mechanism.name()]), PATIENCE)?;
    if !output.status.success() {
        return Err(child::complaint(&output));
    }
    serde_json::from_slice(&output.stdout).map_err(|_| "the probe said something that cannot be understood".into())
}
