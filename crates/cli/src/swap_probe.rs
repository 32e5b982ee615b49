//! The program that `usring doctor` runs for its lines on swap. It tests whether a mechanism pages
//! memory in on this machine, and measures how long that takes.

use super::child::System;
use super::{Failure, Outcome, child};
use crate::system_error::words;
use nix::libc;
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::{Duration, Instant};
use usring_swap::mappings::WINDOW;
use usring_swap::{Builder, Mechanism, Refusal, SwapRegion};

/// The mechanism to try, or [`PROGRAM`].
#[derive(clap::Args)]
pub struct Options {
    mechanism: String,
}

/// The probe's output, as one line of JSON.
#[derive(Debug, Deserialize, Serialize)]
enum ProbeResult {
    /// Median time of touching an evicted page whose backing is a device in memory, in nanoseconds.
    Works(u64),
    /// The errno of the failure.
    Fails(i32),
}

/// Argument in place of a mechanism's name. With this argument, the probe measures a program's
/// ordinary memory, under `usring run --swap`.
const PROGRAM: &str = "program";

const TIMEOUT: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;
/// Number of page faults that are measured.
const SAMPLES: usize = 1001;

/// Runs the hidden subcommand.
pub fn run(options: &Options) -> Outcome {
    let measured = match Mechanism::of_name(&options.mechanism) {
        Some(mechanism) => measure(mechanism),
        None if options.mechanism == PROGRAM => measure_program(),
        None => return Err(Failure::new("no such mechanism")),
    };
    let answer = match measured {
        Ok(median) => ProbeResult::Works(median),
        Err(error) => ProbeResult::Fails(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    let line = serde_json::to_string(&answer).map_err(|error| Failure::new(error.to_string()))?;
    println!("{line}");
    Ok(0)
}

/// Makes a region whose evicted pages go to memory: `store` is a SPEC such as `ram:size=65M`.
pub fn region_in_memory(builder: Builder, store: &str) -> std::io::Result<SwapRegion> {
    usring_std_threads::prepare();
    let builder = builder.backing(store).map_err(|error| std::io::Error::other(error.to_string()))?;
    builder.build().map_err(|refusal| match refusal {
        Refusal::Failed(error) => std::io::Error::from_raw_os_error(-error.negative()),
        other => std::io::Error::other(other),
    })
}

/// Touches pages of a region until [`SAMPLES`] of them had to be read back, and returns the median
/// time in nanoseconds. Checks that each page holds what was written to it.
fn measure(mechanism: Mechanism) -> std::io::Result<u64> {
    let builder = SwapRegion::builder().size(64 * MIB).limit(16 * MIB).readahead(0).mechanism(mechanism);
    let mut region = region_in_memory(builder, "ram:size=65M")?;
    let page = region.page_size();
    for (index, bytes) in region.as_mut_slice().chunks_mut(page).enumerate() {
        bytes[..8].copy_from_slice(&(index as u64 + 1).to_le_bytes());
    }
    let count = || region.statistics().swap_ins;
    let before = std::cell::Cell::new(count());
    visit(region.as_slice(), page, || before.replace(count()) != before.get())
}

/// Touches pages far from one another, and calls `counts` after each touch. Returns the median time
/// of [`SAMPLES`] touches for which `counts` returned `true`. Fails with EBADMSG if a page holds
/// wrong content.
fn visit(memory: &[u8], page: usize, counts: impl Fn() -> bool) -> std::io::Result<u64> {
    let count = memory.len() / page;
    let mut times = Vec::new();
    let mut index = 0;
    while times.len() < SAMPLES {
        index = (index + count / 2 + count / 8 + 1) % count;
        let start = Instant::now();
        let found = std::hint::black_box(&memory[index * page..index * page + 8]);
        let is_right = found == (index as u64 + 1).to_le_bytes();
        let time = start.elapsed();
        if !is_right {
            return Err(std::io::Error::from_raw_os_error(libc::EBADMSG));
        }
        if counts() {
            times.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
    }
    times.sort_unstable();
    Ok(times[SAMPLES / 2])
}

/// Returns the median time, in nanoseconds, to touch a page of this program's own memory, most of
/// which is evicted. The program runs under `usring run --swap`. Error: EOPNOTSUPP if the memory is
/// not swapped.
fn measure_program() -> std::io::Result<u64> {
    const PAGE: usize = 4096;
    let mut memory = vec![0u8; 64 * MIB];
    if !WINDOW.contains(&memory.as_ptr().addr()) {
        return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    for (index, bytes) in memory.chunks_mut(PAGE).enumerate() {
        bytes[..8].copy_from_slice(&(index as u64 + 1).to_le_bytes());
    }
    visit(&memory, PAGE, || true)
}

/// Returns a line of `doctor` per mechanism, in the order in which usring tries them.
pub fn findings() -> Vec<String> {
    let mut taken = false;
    let finding = |mechanism: Mechanism| {
        let answer = ask(mechanism);
        let works = matches!(answer, Ok(ProbeResult::Works(_)));
        let is_taken = works && !taken && mechanism != Mechanism::Thread;
        taken |= is_taken;
        let worth = match mechanism {
            _ if is_taken => "; usring uses this one",
            Mechanism::Protect => " (64 KiB at a time)",
            Mechanism::Thread => " (only with mechanism=compat; system calls can access evicted pages)",
            _ => "",
        };
        format!("{mechanism} {}{}", in_words(answer), if works { worth } else { "" })
    };
    Mechanism::ALL.into_iter().map(finding).collect()
}

/// Returns the line of `doctor` about an unchanged program under `run --swap`.
pub fn of_a_program() -> String {
    let command = child::ourselves().and_then(|ourselves| {
        let options = System::Usring(&["--swap", "ram:size=65M,limit=16M"]);
        child::command_on(options, &[], &ourselves)
    });
    in_words(command.and_then(|mut command| answer_of(command.args(["swap-probe", PROGRAM]))))
}

fn in_words(answer: Result<ProbeResult, String>) -> String {
    match answer {
        Ok(ProbeResult::Works(median)) => format!("works, {:.1} µs for a page from memory", median as f64 / 1000.0),
        Ok(ProbeResult::Fails(error)) => {
            format!("does not work: {}", words(&nix::errno::Errno::from_raw(error)))
        }
        Err(why) => format!("does not work: {why}"),
    }
}

fn ask(mechanism: Mechanism) -> Result<ProbeResult, String> {
    answer_of(Command::new(child::ourselves()?).args(["swap-probe", mechanism.name()]))
}

fn answer_of(command: &mut Command) -> Result<ProbeResult, String> {
    let output = child::output_within(command, TIMEOUT)?;
    if !output.status.success() {
        return Err(child::complaint(&output));
    }
    serde_json::from_slice(&output.stdout).map_err(|_| "the probe's output cannot be parsed".into())
}
