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
    /// Share of one processor, in per cent. `None`: no time has passed.
    pub processor_percent: Option<f64>,
    /// Number of open rings, and the counts of all opcodes. `None`: the process is not counted.
    pub counts: Option<(usize, [u64; COLUMNS])>,
}

impl Rates {
    /// Compares two samples. `only`: the process to show. `None`: all processes are shown.
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

    /// Returns a count as a number per second. `None`: no time has passed.
    pub fn per_second(&self, count: u64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "counts of one interval are below 2^53")]
        let count = count as f64;
        (!self.time.is_zero()).then(|| count / self.time.as_secs_f64())
    }
}

/// Returns the share of `part` in `whole`, in per cent. `None` if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> Option<u64> {
    // A request counts as polled each time that it waits for its file, so `part` can exceed
    // `whole`.
    (whole != 0).then(|| (part.saturating_mul(100) / whole).min(100))
}

const fn empty() -> Rows {
    [[0; COLUMNS]; OPCODES]
}

fn added(mut sum: Rows, rows: &Rows) -> Rows {
    iter::zip(sum.as_flattened_mut(), rows.as_flattened()).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    sum
}

/// Returns how much each counter has grown since `before`. A counter that has fallen counts as
/// unchanged.
fn since(before: &Rows, after: &Rows) -> Rows {
    let mut rows = *after;
    let pairs = iter::zip(rows.as_flattened_mut(), before.as_flattened());
    pairs.for_each(|(count, before)| *count = count.saturating_sub(*before));
    rows
}

/// Returns what a ring has counted since an earlier sample. `before`: the counts that the ring's
/// block of the statistics file had in that sample. If a counter has fallen, the block belongs to
/// another ring now, whose counters all began at 0.
fn of_ring(before: Option<&Rows>, after: &Rows) -> Rows {
    let has_grown =
        |before: &&Rows| iter::zip(before.as_flattened(), after.as_flattened()).all(|(old, new)| old <= new);
    before.filter(has_grown).map_or(*after, |before| since(before, after))
}

/// Returns what all statistics files have counted between two samples, including the counts of
/// rings that were closed in between. While a process closes a ring, the ring's counts can be in
/// the sums twice or not at all, so the sums can fall.
fn of_files(before: &Sample, after: &Sample) -> Rows {
    let counted = after.readings.iter().filter_map(|(file, reading)| {
        // If the earlier sample lacks this statistics file, the file's counts may be older than the
        // interval, so they are left out.
        let before = before.readings.get(file)?;
        Some(since(before.sums.rows(), reading.sums.rows()))
    });
    counted.fold(empty(), |sum, rows| added(sum, &rows))
}

/// Returns the process as it was in an earlier sample. A process with the same id that began at
/// another time is another process.
fn earlier<'a>(before: &'a Sample, process: &Process) -> Option<&'a Process> {
    before.processes.iter().find(|other| (other.id, other.began) == (process.id, process.began))
}

/// Returns the number of a process's open rings, and what they have counted since the sample
/// `before`. `None`: the process is not counted.
fn of_process_rows(before: &Sample, after: &Sample, process: &Process) -> Option<(usize, Rows)> {
    let file = &process.statistics.as_ref()?.file;
    let rings = after.readings.get(file)?.rings.iter().filter(|ring| ring.process == u64::from(process.inner_id));
    let rings: Vec<&RingCounts> = rings.collect();
    // If the earlier sample lacks this statistics file, the file's counts may be older than the
    // interval, so they are left out.
    let Some(known) = before.readings.get(file) else { return Some((rings.len(), empty())) };
    // If the process began within the interval, its rings have counted from 0. Rings with its
    // process id in the earlier sample are then another process's, and are ignored.
    let is_old = earlier(before, process).is_some();
    let rows = rings.iter().fold(empty(), |sum, ring| {
        let is_same = |known: &&RingCounts| is_old && (known.block, known.process) == (ring.block, ring.process);
        let earlier = known.rings.iter().find(is_same);
        added(sum, &of_ring(earlier.map(|earlier| &earlier.rows), &ring.rows))
    });
    Some((rings.len(), rows))
}

fn process_rates(before: &Sample, after: &Sample, process: &Process, time: Duration) -> ProcessRates {
    let used =
        earlier(before, process).map(|earlier| process.processor_time().saturating_sub(earlier.processor_time()));
    let used = used.unwrap_or_default().as_secs_f64();
    let processor_percent = (!time.is_zero()).then(|| used / time.as_secs_f64() * 100.0);
    let counts = of_process_rows(before, after, process).map(|(rings, rows)| {
        (rings, std::array::from_fn(|column| rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row[column]))))
    });
    ProcessRates { process: process.clone(), processor_percent, counts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Snapshot;
    use crate::watch::processes::Mapping;

    const FILE: &str = "00:01/7";

    fn rows(submitted: u64, completed: u64) -> Rows {
        let mut rows = empty();
        rows[1][Column::Submitted as usize] = submitted;
        rows[1][Column::Completed as usize] = completed;
        rows
    }

    /// Returns a sample of a process with one ring, taken `seconds` after the first sample.
    fn sample(seconds: u64, began: u64, rows: Rows) -> Sample {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        let statistics = Some(Mapping { range: String::new(), file: FILE.into(), path: String::new() });
        let (name, library) = (String::new(), "libusring.so".into());
        let process = Process { id: 9, inner_id: 9, name, library, statistics, began, processor: 0 };
        let rings = vec![RingCounts { block: 0, process: 9, rows }];
        let readings = BTreeMap::from([(FILE.to_owned(), Reading { sums: Snapshot::of(rows), rings })]);
        Sample { at: *START + Duration::from_secs(seconds), processes: vec![process], readings }
    }

    fn counted(before: &Sample, after: &Sample) -> [u64; 2] {
        let rates = Rates::between(before, after, Some(9));
        let (rings, row) = rates.processes[0].counts.unwrap();
        assert_eq!(rings, 1);
        [row[Column::Submitted as usize], row[Column::Completed as usize]]
    }

    #[test]
    fn a_ring_is_compared_with_itself_only() {
        let before = sample(0, 1, rows(100, 90));
        assert_eq!(counted(&before, &sample(1, 1, rows(130, 95))), [30, 5]);
        // The ring was closed, and a new ring got its block in the statistics file. Of the new
        // ring's two counters, only the second is smaller than the old ring's. That counter alone
        // must show that the ring is new.
        assert_eq!(counted(&before, &sample(1, 1, rows(110, 20))), [110, 20]);
        // Another process now has the same process id.
        assert_eq!(counted(&before, &sample(1, 2, rows(110, 91))), [110, 91]);
    }

    #[test]
    fn without_an_interval_there_are_no_rates() {
        let first = sample(0, 1, rows(100, 90));
        let rates = Rates::between(&first, &first, None);
        assert_eq!((rates.per_second(0), rates.processes[0].processor_percent), (None, None));
        assert_eq!(Rates::between(&first, &sample(2, 1, rows(100, 90)), None).per_second(3), Some(1.5));
    }
}
