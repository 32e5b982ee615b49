//! The launcher's side of `--stats`, and of `usring stats`, `ps` and `top`: the file in which the
//! program's processes count their requests, and the table of the counts.

use super::Failure;
use super::table::Table;
use crate::memory_file;
use crate::system_error::words;
use nix::libc;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::iter;
use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use usring_engine::statistics::{BLOCKS, Block, COLUMNS, Column, Header, MAGIC, OPCODES, SIZE, Statistics, VERSION};
use usring_uapi::opcode;

/// A file of counters. The launcher's file is a memory file (memfd), which disappears with its last
/// user. The program's processes map the file. The launcher reads and writes it without a mapping.
pub struct StatisticsFile(File);

impl StatisticsFile {
    pub fn create() -> Result<StatisticsFile, Failure> {
        let create = || {
            let file = memory_file::sealed(c"usring-statistics", SIZE as u64)?;
            write_word(&file, offset_of!(Header, version), VERSION)?;
            write_word(&file, offset_of!(Header, block_count), BLOCKS as u64)?;
            // The magic number is written last. So a process that sees the magic number sees the
            // other words, too.
            write_word(&file, offset_of!(Header, magic), MAGIC)?;
            Ok(file)
        };
        create().map(StatisticsFile).map_err(|error: io::Error| {
            Failure::new(format!(
                "cannot make the memory for the counts of --stats ({error}); run without --stats",
                error = words(&error)
            ))
        })
    }

    /// Opens the file of a program that runs without the launcher. If `path` leads to a FIFO, does
    /// not wait for the FIFO's other end.
    pub fn open(path: &Path) -> io::Result<StatisticsFile> {
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map(StatisticsFile)
    }

    /// Opens the file at `path` if `is_mapped` accepts the file, and it has the size of a
    /// statistics file. Another user's process may have mapped the file, and that user may have put
    /// a device at the path. A device can act when it is opened. So the function first opens the
    /// path with O_PATH, which opens no device.
    pub fn open_mapped(path: &Path, is_mapped: impl FnOnce(&Metadata) -> bool) -> io::Result<StatisticsFile> {
        let named = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
        let found = named.metadata()?;
        if !found.is_file() || found.len() != SIZE as u64 || !is_mapped(&found) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // This path in /proc leads to the file that was examined above, whatever `path` leads to
        // now.
        StatisticsFile::open(Path::new(&format!("/proc/self/fd/{}", named.as_raw_fd())))
    }

    /// Returns whether this file begins with the magic number of a statistics file.
    pub fn begins_as_one(&self) -> io::Result<bool> {
        Ok(self.word(offset_of!(Statistics, header) + offset_of!(Header, magic))? == MAGIC)
    }

    /// Returns whether this build understands the file.
    pub fn is_valid(&self) -> io::Result<bool> {
        if self.0.metadata()?.len() != SIZE as u64 {
            return Ok(false);
        }
        let header = offset_of!(Statistics, header);
        let word = |offset: usize| self.word(header + offset);
        Ok(word(offset_of!(Header, magic))? == MAGIC
            && word(offset_of!(Header, version))? == VERSION
            && word(offset_of!(Header, block_count))? == BLOCKS as u64)
    }

    /// Returns a path in /proc by which the program's processes open the statistics file. With this
    /// path, the processes need not inherit a descriptor.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Returns the counts so far.
    pub fn read(&self) -> io::Result<Snapshot> {
        let header = offset_of!(Statistics, header);
        let mut snapshot = Snapshot {
            processes: self.word(header + offset_of!(Header, processes))?,
            rings: self.word(header + offset_of!(Header, rings))?,
            uncounted_rings: self.word(header + offset_of!(Header, uncounted_rings))?,
            rows: self.rows(offset_of!(Statistics, totals))?,
            with_rings: Vec::new(),
        };
        for ring in self.read_rings()? {
            add_rows(&mut snapshot.rows, &ring.rows);
            if !snapshot.with_rings.contains(&ring.process) {
                snapshot.with_rings.push(ring.process);
            }
        }
        Ok(snapshot)
    }

    /// Returns the counts of each open ring. The rings of a process that was killed count as open
    /// until another process takes over the blocks of the file that hold their counts.
    pub fn read_rings(&self) -> io::Result<Vec<RingCounts>> {
        let owners = self.words(offset_of!(Statistics, owners), BLOCKS)?;
        let used = owners.iter().enumerate().filter(|(_, owner)| **owner != 0);
        used.map(|(block, owner)| {
            let rows = self.rows(offset_of!(Statistics, blocks) + block * size_of::<Block>())?;
            Ok(RingCounts { block, process: *owner, rows })
        })
        .collect()
    }

    fn rows(&self, offset: usize) -> io::Result<Rows> {
        let mut rows = [[0; COLUMNS]; OPCODES];
        rows.as_flattened_mut().copy_from_slice(&self.words(offset, OPCODES * COLUMNS)?);
        Ok(rows)
    }

    fn word(&self, offset: usize) -> io::Result<u64> {
        Ok(self.words(offset, 1)?[0])
    }

    fn words(&self, offset: usize, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.0.read_exact_at(&mut bytes, offset as u64)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }
}

fn write_word(file: &File, offset_in_header: usize, word: u64) -> io::Result<()> {
    file.write_all_at(&word.to_ne_bytes(), (offset_of!(Statistics, header) + offset_in_header) as u64)
}

fn add_rows(sum: &mut Rows, rows: &Rows) {
    for (sum, count) in sum.as_flattened_mut().iter_mut().zip(rows.as_flattened()) {
        *sum = sum.wrapping_add(*count);
    }
}

/// Counts by opcode. Each opcode has a row, which has a counter for each [`Column`].
pub type Rows = [[u64; COLUMNS]; OPCODES];

/// The counts of one open ring.
pub struct RingCounts {
    /// Index of the block of the statistics file that holds the ring's counts. A later ring may get
    /// the block of a closed ring.
    pub block: usize,
    /// Id of the process that set the ring up.
    pub process: u64,
    pub rows: Rows,
}

/// A message names at most this many processes by their ids.
const MOST_NAMED: usize = 8;

/// The sums over all rings.
pub struct Snapshot {
    processes: u64,
    rings: u64,
    uncounted_rings: u64,
    rows: Rows,
    /// Ids of the processes that had a ring open when the counts were read.
    with_rings: Vec<u64>,
}

impl Snapshot {
    /// Makes a snapshot with these sums, for tests.
    #[cfg(test)]
    pub fn of(rows: Rows) -> Snapshot {
        Snapshot { processes: 1, rings: 1, uncounted_rings: 0, rows, with_rings: Vec::new() }
    }

    pub fn processes(&self) -> u64 {
        self.processes
    }

    pub fn rings(&self) -> u64 {
        self.rings
    }

    pub fn uncounted_rings(&self) -> u64 {
        self.uncounted_rings
    }

    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Returns the counts of each opcode that has any.
    pub fn opcodes(&self) -> impl Iterator<Item = (&'static str, &[u64; COLUMNS])> {
        let counted = self.rows.iter().enumerate().filter(|(_, row)| row.iter().any(|count| *count != 0));
        counted.map(|(opcode, row)| (opcode_name(opcode), row))
    }

    /// Returns the ids of the processes that still run and have a ring open.
    pub fn running(&self) -> Vec<u64> {
        self.with_rings.iter().copied().filter(|process| is_running(*process)).collect()
    }

    /// Returns a line about the processes that outlive the program, or an empty text if there are
    /// none.
    pub fn still_running(&self) -> String {
        match &self.running()[..] {
            [] => String::new(),
            [process] => {
                format!("usring: 1 process still runs ({process}); its further requests are not counted here\n")
            }
            many => {
                let ids: Vec<_> = many.iter().take(MOST_NAMED).map(u64::to_string).collect();
                let more = if many.len() > MOST_NAMED { ", …" } else { "" };
                format!(
                    "usring: {} processes still run ({}{more}); their further requests are not counted here\n",
                    many.len(),
                    ids.join(", ")
                )
            }
        }
    }

    /// Returns whether any process of the run has loaded libusring.so.
    pub fn was_used(&self) -> bool {
        self.processes != 0 || self.rings != 0
    }

    /// Returns a line for each opcode with a count above 0 and, if there are several lines, one
    /// with the sums.
    fn lines(&self) -> Vec<(&'static str, [u64; COLUMNS])> {
        let mut lines: Vec<_> = self.opcodes().map(|(opcode, row)| (opcode, *row)).collect();
        if lines.len() > 1 {
            let sum = |column| self.rows.iter().map(|row: &[u64; COLUMNS]| row[column]).sum();
            lines.push(("total", std::array::from_fn(sum)));
        }
        lines
    }
}

/// Returns whether the process exists and has not ended. (A zombie has ended.)
fn is_running(process: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // In /proc/PID/stat the state follows the name, which is in parentheses and may contain any
    // character.
    let state = status.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    state.is_some_and(|state| !matches!(state, "Z" | "X"))
}

/// Returns the name of the opcode that a row counts.
pub fn opcode_name(row: usize) -> &'static str {
    opcode::NAMES.get(row).copied().unwrap_or("(unknown)")
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rings {
            0 => return writeln!(f, "usring: no ring was created"),
            1 => write!(f, "usring: 1 ring")?,
            rings => write!(f, "usring: {rings} rings")?,
        }
        if self.uncounted_rings != 0 {
            write!(f, ", {} of them not counted (more than {BLOCKS} at once)", self.uncounted_rings)?;
        }
        let lines = self.lines();
        if lines.is_empty() {
            return writeln!(f, ", no request was submitted");
        }
        writeln!(f)?;
        let head = iter::once("opcode").chain(Column::ALL.map(Column::name));
        let mut table = Table::new(head, 1);
        for (name, row) in lines {
            table.add(iter::once(name.to_owned()).chain(row.map(|count| count.to_string())));
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usring_engine::statistics::row_of;

    fn empty() -> Snapshot {
        Snapshot::of([[0; COLUMNS]; OPCODES])
    }

    #[test]
    fn a_run_without_rings_or_requests_prints_a_sentence() {
        let snapshot = Snapshot { rings: 0, ..empty() };
        assert_eq!(snapshot.to_string(), "usring: no ring was created\n");
        assert_eq!(empty().to_string(), "usring: 1 ring, no request was submitted\n");
    }

    #[test]
    fn columns_line_up_under_their_heads() {
        let mut snapshot = Snapshot { rings: 2, ..empty() };
        snapshot.rows[row_of(opcode::READ)] = [12_345_678_901, 12_345_678_901, 0, 1, 2, 3];
        snapshot.rows[row_of(200)][Column::Errors as usize] = 7;
        let text = snapshot.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "usring: 2 rings");
        assert_eq!(lines[1], "opcode       submitted    completed  errors  inline  polled  by worker");
        assert_eq!(lines[2], "read       12345678901  12345678901       0       1       2          3");
        assert_eq!(lines[3], "(unknown)            0            0       7       0       0          0");
        assert_eq!(lines[4], "total      12345678901  12345678901       7       1       2          3");
    }

    #[test]
    fn processes_that_still_run_are_named() {
        let mine = std::process::id().into();
        let snapshot = Snapshot { with_rings: vec![mine, u64::from(u32::MAX)], ..empty() };
        assert_eq!(snapshot.running(), [mine]);
        assert!(snapshot.still_running().starts_with(&format!("usring: 1 process still runs ({mine})")));
        assert_eq!(empty().still_running(), "");
    }

    #[test]
    fn the_rings_counters_in_the_statistics_file_are_read_back() {
        let file = StatisticsFile::create().unwrap();
        let add = |offset: usize, value: u64| file.0.write_all_at(&value.to_ne_bytes(), offset as u64).unwrap();
        add(offset_of!(Statistics, header) + offset_of!(Header, rings), 3);
        let write_row = (row_of(opcode::WRITE) * COLUMNS + Column::Worker as usize) * 8;
        add(offset_of!(Statistics, totals) + write_row, 5);
        add(offset_of!(Statistics, owners) + 8, 4711);
        add(offset_of!(Statistics, blocks) + size_of::<Block>() + write_row, 20);
        // This block has no owner, because its ring was closed and its counts were added to the
        // totals.
        add(offset_of!(Statistics, blocks) + 2 * size_of::<Block>() + write_row, 100);
        let snapshot = file.read().unwrap();
        assert_eq!(snapshot.rings, 3);
        assert_eq!(snapshot.with_rings, [4711]);
        assert_eq!(snapshot.rows[row_of(opcode::WRITE)], [0, 0, 0, 0, 0, 25]);
    }
}
