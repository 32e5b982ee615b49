//! Rates: the difference of two readings of the counters.

use super::counts::Reading;
use super::processes::Process;
use crate::statistics::{RingCounts, Rows, opcode_name};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::iter;
use std::time::{Duration, Instant};
use usring_engine::statistics::{COLUMNS, Column, OPCODES};

/// The processes and their counts at one moment.
pub struct Sample {
    pub at: Instant,
    pub processes: Vec<Process>,
    pub readings: BTreeMap<String, Reading>,
}

/// The counts of the time between two samples.
pub struct Rates {
    pub time: Duration,
    pub processes: Vec<ProcessRates>,
    /// Counts of each opcode, summed over the shown processes. The most frequent is first.
    pub opcodes: Vec<(&'static str, [u64; COLUMNS])>,
}

pub struct ProcessRates {
    pub process: Process,
    /// Share of one processor, in per cent.
    pub processor_percent: f64,
    /// Number of open rings, and the counts of all opcodes. `None`: the process is not counted.
    pub counts: Option<(usize, [u64; COLUMNS])>,
}

impl Rates {
    /// Compares two samples. `only`: the process to show, or all.
    pub fn between(before: &Sample, after: &Sample, only: Option<u32>) -> Rates {
        let time = after.at - before.at;
        let is_shown = |process: &&Process| only.is_none_or(|only| only == process.id);
        let shown: Vec<&Process> = after.processes.iter().filter(is_shown).collect();
        let of_process = |process: &&Process| process_rates(before, after, process, time);
        let rows = match only {
            None => of_files(before, after),
            Some(_) => shown.iter().fold(empty(), |sum, process| {
                added(sum, &of_process_rows(before, after, process).unwrap_or_else(|| (0, empty())).1)
            }),
        };
        let opcodes = rows.iter().enumerate().filter(|(_, row)| row.iter().any(|count| *count != 0));
        let mut opcodes: Vec<_> = opcodes.map(|(opcode, row)| (opcode_name(opcode), *row)).collect();
        opcodes.sort_by_key(|(_, row)| Reverse(row[Column::Submitted as usize]));
        Rates { time, processes: shown.iter().map(of_process).collect(), opcodes }
    }

    /// Returns a count as a number per second.
    pub fn per_second(&self, count: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of one interval are below 2^53")]
        let count = count as f64;
        count / self.time.as_secs_f64()
    }
}

/// Returns the share of `part` in `whole`, in per cent. `None` if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> Option<u64> {
    // A request may be counted as polled more than once, each time that it waits.
    (whole != 0).then(|| (part.saturating_mul(100) / whole).min(100))
}

const fn empty() -> Rows {
    [[0; COLUMNS]; OPCODES]
}

fn added(mut sum: Rows, rows: &Rows) -> Rows {
    iter::zip(sum.as_flattened_mut(), rows.as_flattened()).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    sum
}

/// Returns what was counted since `before`. A counter that is smaller than before belongs to
/// another ring, which began at 0.
fn since(before: Option<&Rows>, after: &Rows) -> Rows {
    let mut rows = *after;
    if let Some(before) = before {
        let pairs = iter::zip(rows.as_flattened_mut(), before.as_flattened());
        pairs.for_each(|(count, before)| *count = count.checked_sub(*before).unwrap_or(*count));
    }
    rows
}

/// Returns the counts of all files. Rings that were closed meanwhile are included.
fn of_files(before: &Sample, after: &Sample) -> Rows {
    let counted = after.readings.iter().filter_map(|(file, reading)| {
        // The counts of a file that was not known before are older than the interval.
        let before = before.readings.get(file)?;
        Some(since(Some(before.sums.rows()), reading.sums.rows()))
    });
    counted.fold(empty(), |sum, rows| added(sum, &rows))
}

/// Returns the number of a process's open rings and what they have counted. `None`: the process is
/// not counted.
fn of_process_rows(before: &Sample, after: &Sample, process: &Process) -> Option<(usize, Rows)> {
    let file = &process.statistics.as_ref()?.file;
    let rings = after.readings.get(file)?.rings.iter().filter(|ring| ring.process == u64::from(process.inner_id));
    let rings: Vec<&RingCounts> = rings.collect();
    // The counts of a file that was not known before are older than the interval.
    let Some(known) = before.readings.get(file) else { return Some((rings.len(), empty())) };
    let rows = rings.iter().fold(empty(), |sum, ring| {
        let earlier = known.rings.iter().find(|known| (known.block, known.process) == (ring.block, ring.process));
        added(sum, &since(earlier.map(|earlier| &earlier.rows), &ring.rows))
    });
    Some((rings.len(), rows))
}

fn process_rates(before: &Sample, after: &Sample, process: &Process, time: Duration) -> ProcessRates {
    let is_same = |other: &&Process| other.id == process.id && other.began == process.began;
    let earlier = before.processes.iter().find(is_same);
    let used = earlier.map(|earlier| process.processor_time().saturating_sub(earlier.processor_time()));
    let processor_percent = used.unwrap_or_default().as_secs_f64() / time.as_secs_f64() * 100.0;
    let counts = of_process_rows(before, after, process).map(|(rings, rows)| {
        (rings, std::array::from_fn(|column| rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row[column]))))
    });
    ProcessRates { process: process.clone(), processor_percent, counts }
}
