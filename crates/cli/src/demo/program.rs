//! The program that `usring demo` runs. It writes a file block by block in random order, syncs the
//! file, reads it back in another order, and compares every byte. It contains no code for usring.

use super::super::{Failure, Outcome};
use crate::system_error::words;
use fastrand::Rng;
use hdrhistogram::Histogram;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Instant;
use usring_sys::width;

pub const BLOCK: usize = 4096;
pub const DEPTH: usize = 32;
const WORDS: usize = BLOCK / 8;
/// Blocks between two reports of progress.
const STEP: u64 = 1024;

/// Longest latency that the histogram resolves: a minute, in nanoseconds.
const LONGEST_RESOLVED_NS: u64 = 60_000_000_000;

#[derive(clap::Args)]
pub struct Options {
    #[arg(long)]
    file: PathBuf,
    #[arg(long)]
    blocks: u64,
}

/// A line of the program's output, as JSON.
#[derive(Debug, Deserialize, Serialize)]
pub enum Event {
    /// Blocks done so far. Each block counts twice: once as written and once as read.
    Progress {
        phase: Phase,
        done: u64,
    },
    Finished(Figures),
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Phase {
    Write,
    Read,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Write => "write",
            Phase::Read => "read",
        }
    }
}

/// Result of a phase (writing or reading).
#[derive(Debug, Deserialize, Serialize)]
pub struct Figures {
    pub phase: Phase,
    pub operations_per_second: f64,
    /// Latencies in nanoseconds: the median, the 99th and 99.9th percentile, and the longest.
    pub latencies: [u64; 4],
}

/// Runs the hidden subcommand.
pub fn run(options: &Options) -> Outcome {
    let mut program = Program::new(options).map_err(|sentence| Failure::with_status(1, sentence))?;
    let outcome = program.phase(Phase::Write).and_then(|()| program.sync()).and_then(|()| program.phase(Phase::Read));
    outcome.map(|()| 0).map_err(|sentence| Failure::with_status(1, sentence))
}

struct Program {
    ring: IoUring,
    file: File,
    buffers: Vec<[u64; WORDS]>,
    order: Vec<u32>,
}

/// A block whose request is in flight: its number, and when its request was pushed.
#[derive(Clone, Copy)]
struct Flight {
    block: u64,
    start: Instant,
}

impl Program {
    fn new(options: &Options) -> Result<Program, String> {
        let ring = IoUring::new(width::count(DEPTH))
            .map_err(|error| format!("io_uring_setup failed: {error}", error = words(&error)))?;
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&options.file);
        let file =
            file.map_err(|error| format!("cannot make {} ({error})", options.file.display(), error = words(&error)))?;
        let blocks = u32::try_from(options.blocks).map_err(|_| "the file is too large")?;
        Ok(Program { ring, file, buffers: vec![[0; WORDS]; DEPTH], order: (0..blocks).collect() })
    }

    /// Writes or reads every block once, with `DEPTH` requests in flight.
    fn phase(&mut self, phase: Phase) -> Result<(), String> {
        Rng::with_seed(phase as u64 + 1).shuffle(&mut self.order);
        let total = self.order.len() as u64;
        let mut histogram =
            Histogram::<u64>::new_with_bounds(1, LONGEST_RESOLVED_NS, 3).map_err(|error| error.to_string())?;
        let mut free: Vec<usize> = (0..DEPTH).collect();
        let mut flights = [Flight { block: 0, start: Instant::now() }; DEPTH];
        let start = Instant::now();
        let (mut next, mut done) = (0, 0);
        while done < total {
            while next < self.order.len()
                && let Some(slot) = free.pop()
            {
                flights[slot] = Flight { block: u64::from(self.order[next]), start: Instant::now() };
                self.push(phase, slot, flights[slot].block)?;
                next += 1;
            }
            self.ring
                .submit_and_wait(1)
                .map_err(|error| format!("io_uring_enter failed: {error}", error = words(&error)))?;
            while let Some(entry) = self.reap() {
                let slot = width::size(entry.user_data());
                histogram.saturating_record(flights[slot].start.elapsed().as_nanos().try_into().unwrap_or(u64::MAX));
                self.accept(phase, slot, flights[slot].block, entry.result())?;
                free.push(slot);
                done += 1;
                if done % STEP == 0 {
                    let before = if phase == Phase::Write { 0 } else { total };
                    tell(&Event::Progress { phase, done: before + done });
                }
            }
        }
        let operations_per_second = total as f64 / start.elapsed().as_secs_f64();
        let latencies = [0.5, 0.99, 0.999, 1.0].map(|share| histogram.value_at_quantile(share));
        tell(&Event::Finished(Figures { phase, operations_per_second, latencies }));
        Ok(())
    }

    fn push(&mut self, phase: Phase, slot: usize, block: u64) -> Result<(), String> {
        let file = types::Fd(self.file.as_raw_fd());
        let buffer = &mut self.buffers[slot];
        let offset = block * BLOCK as u64;
        let entry = match phase {
            Phase::Write => {
                *buffer = contents(block);
                opcode::Write::new(file, buffer.as_ptr().cast(), width::count(BLOCK)).offset(offset).build()
            }
            Phase::Read => {
                opcode::Read::new(file, buffer.as_mut_ptr().cast(), width::count(BLOCK)).offset(offset).build()
            }
        };
        self.submit(&entry.user_data(slot as u64))
    }

    fn submit(&mut self, entry: &squeue::Entry) -> Result<(), String> {
        // SAFETY: the buffer belongs to the slot, which is reused only after the request's
        // completion. Buffers and file live as long as the ring.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| "the SQ is full".into())
    }

    fn reap(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    /// Checks the result of a block's request and, after a read, the block's content.
    fn accept(&self, phase: Phase, slot: usize, block: u64, result: i32) -> Result<(), String> {
        if result < 0 {
            let error = std::io::Error::from_raw_os_error(-result);
            return Err(format!("block {block}: {} failed: {error}", phase.name(), error = words(&error)));
        }
        if width::index(result) != BLOCK {
            return Err(format!("block {block}: {} moved {result} bytes of {BLOCK}", phase.name()));
        }
        if phase == Phase::Read && self.buffers[slot] != contents(block) {
            return Err(format!("block {block} was not read back as it was written"));
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), String> {
        let entry = opcode::Fsync::new(types::Fd(self.file.as_raw_fd())).build();
        self.submit(&entry)?;
        self.ring
            .submit_and_wait(1)
            .map_err(|error| format!("io_uring_enter failed: {error}", error = words(&error)))?;
        match self.reap().map(|entry| entry.result()) {
            Some(0) => Ok(()),
            other => Err(format!("fsync returned {other:?}")),
        }
    }
}

/// Returns the content of a block. Each word depends on the block and on the word's offset.
fn contents(block: u64) -> [u64; WORDS] {
    std::array::from_fn(|word| (block << 16 | word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn tell(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        println!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_different_contents() {
        assert_ne!(contents(0), contents(1));
        assert_ne!(contents(7)[0], contents(7)[1]);
    }
}
