//! The counters of `usring run --stats` and of `USRING_STATS`, and the file that holds them. The
//! launcher makes the file; without the launcher, the program's first process makes it. Every
//! process of the program maps the file. The counts survive the end of every process, even by
//! SIGKILL.
//!
//! Each ring claims a [`Block`] for itself. A thread that holds the ring's lock counts in this
//! block with plain loads and stores, so counting costs no locked instruction. When the ring is
//! closed, its block is added to [`Statistics::totals`] and becomes free. The blocks of a process
//! that dies stay readable. [`Statistics::reclaim`] adds them to the totals when blocks run short.
//!
//! Processes with different builds of usring may map one file. So each change of the layout needs a
//! new [`VERSION`].

use core::mem::size_of;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::width;

/// Environment variable of the program that names the file.
pub const ENVIRONMENT: &str = "USRING_STATS";
/// First word of the file, "usrstats".
pub const MAGIC: u64 = u64::from_le_bytes(*b"usrstats");
/// Second word of the file: the version of the layout below.
pub const VERSION: u64 = 1;
/// Number of rings that can be counted at one time.
pub const BLOCKS: usize = 4096;
/// Rows of a block: one per opcode. The last row counts unknown opcodes.
pub const OPCODES: usize = 64;
/// Counters in each row of a block: one per [`Column`].
pub const COLUMNS: usize = 6;

const _: () = assert!(usring_uapi::opcode::COUNT < OPCODES);

/// The kinds of events that are counted for each opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Column {
    /// Requests taken from the SQ.
    Submitted = 0,
    /// Requests that completed, with a CQE or silently (CQE_SKIP_SUCCESS). A multishot counts once.
    Completed = 1,
    /// Completions with a negative result.
    Errors = 2,
    /// Requests that completed in an attempt without blocking, and had not waited for their file
    /// before.
    Inline = 3,
    /// Events that ended a request's wait for its file, and transfers that a device carried out.
    Polled = 4,
    /// Requests that a worker ran.
    Worker = 5,
}

impl Column {
    /// All columns, in the order in which they lie in a row.
    pub const ALL: [Column; COLUMNS] =
        [Column::Submitted, Column::Completed, Column::Errors, Column::Inline, Column::Polled, Column::Worker];

    pub const fn name(self) -> &'static str {
        match self {
            Column::Submitted => "submitted",
            Column::Completed => "completed",
            Column::Errors => "errors",
            Column::Inline => "inline",
            Column::Polled => "polled",
            Column::Worker => "by worker",
        }
    }
}

/// The contents of the file.
#[repr(C)]
pub struct Statistics {
    pub header: Header,
    /// Owner of the block with the same index in `blocks`: a process id; 0 if the block is free.
    pub owners: [AtomicU64; BLOCKS],
    /// The counters of all released blocks, added up.
    pub totals: Block,
    pub blocks: [Block; BLOCKS],
}

/// The first words of the file. The process that makes the file writes `magic`, `version` and
/// `block_count`.
#[repr(C)]
pub struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    pub block_count: AtomicU64,
    /// Number of processes in which usring has started and opened this file. Forked children do not
    /// count.
    pub processes: AtomicU64,
    /// Number of rings ever set up.
    pub rings: AtomicU64,
    /// Number of rings that found no free block and so are not counted.
    pub uncounted_rings: AtomicU64,
    pub reserved: [AtomicU64; 2],
}

/// The counters of one ring.
#[repr(C)]
pub struct Block {
    pub rows: [[AtomicU64; COLUMNS]; OPCODES],
}

/// Bytes of the file.
pub const SIZE: usize = size_of::<Statistics>();

const _: () = assert!(size_of::<Header>() == 64 && size_of::<Block>() == OPCODES * COLUMNS * 8);

/// Returns the row in which an opcode is counted.
#[inline]
pub const fn row_of(opcode: u8) -> usize {
    if (opcode as usize) < OPCODES { opcode as usize } else { OPCODES - 1 }
}

impl Statistics {
    /// Returns whether the file is complete and has this build's layout.
    pub fn is_valid(&self) -> bool {
        self.header.magic.load(Ordering::Acquire) == MAGIC
            && self.header.version.load(Ordering::Relaxed) == VERSION
            && self.header.block_count.load(Ordering::Relaxed) == BLOCKS as u64
    }

    /// Returns whether the file is new: no process has written its header.
    pub fn is_empty(&self) -> bool {
        self.header.magic.load(Ordering::Relaxed) == 0
    }

    /// Writes the header of a new file. No other process writes the header.
    pub fn fill_header(&self) {
        self.header.version.store(VERSION, Ordering::Relaxed);
        self.header.block_count.store(BLOCKS as u64, Ordering::Relaxed);
        // The magic number is written last: a process that sees it also sees the other words.
        self.header.magic.store(MAGIC, Ordering::Release);
    }

    /// Claims a block for a new ring of this process; returns the block's index. `None`: no block
    /// is free, and the ring runs uncounted.
    pub fn claim(&self, process: u32) -> Option<usize> {
        self.header.rings.fetch_add(1, Ordering::Relaxed);
        let free = |owner: &AtomicU64| {
            // Pairs with the store in `release`: this process sees the zeros that `release` has
            // left in the block.
            owner.compare_exchange(0, u64::from(process), Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = self.owners.iter().position(free);
        if index.is_none() {
            self.header.uncounted_rings.fetch_add(1, Ordering::Relaxed);
        }
        index
    }

    /// Returns whether no block is free. The caller should then [`Statistics::reclaim`] blocks.
    pub fn is_exhausted(&self) -> bool {
        self.owners.iter().all(|owner| owner.load(Ordering::Relaxed) != 0)
    }

    /// Adds a block to the totals and frees it.
    pub fn release(&self, index: usize) {
        for (row, total) in self.blocks[index].rows.iter().zip(&self.totals.rows) {
            for (counter, sum) in row.iter().zip(total) {
                sum.fetch_add(counter.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        // Pairs with the compare-exchange in `claim`.
        self.owners[index].store(0, Ordering::Release);
    }

    /// Releases each block whose owner no longer exists. `is_alive` returns whether a process with
    /// this id exists.
    pub fn reclaim(&self, is_alive: impl Fn(u32) -> bool) {
        for (index, owner) in self.owners.iter().enumerate() {
            let process = owner.load(Ordering::Relaxed);
            if process == 0 || is_alive(width::low(process)) {
                continue;
            }
            // If several processes reclaim blocks at once, only one of them releases this block.
            // `u64::MAX` is no process's id.
            if owner.compare_exchange(process, u64::MAX, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.release(index);
            }
        }
    }
}

impl Block {
    /// Counts one request. The caller holds the ring's lock, so no other thread writes this block.
    #[inline]
    pub fn count(&self, opcode: u8, column: Column) {
        self.add(opcode, column, 1);
    }

    /// Counts `number` requests. The caller holds the ring's lock.
    #[inline]
    pub fn add(&self, opcode: u8, column: Column, number: u64) {
        let counter = &self.rows[row_of(opcode)][column as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
    }
}
