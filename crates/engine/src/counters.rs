//! The counters of one ring: a block of the shared statistics file. Without such a file, nothing is
//! counted.

use crate::statistics::{Column, Statistics};
use alloc::boxed::Box;
use usring_sys::set_once::SetOnce;
use usring_sys::{Errno, SystemCall};
use usring_uapi::general as linux;

static STATISTICS: SetOnce<StatisticsSource> = SetOnce::new();

#[derive(Clone, Copy)]
struct StatisticsSource {
    statistics: &'static Statistics,
    process: u32,
}

/// Sets the file of statistics that all rings of this process count in. Called before the first
/// ring. `process`: this process's id, which is written into the file as the owner of the rings'
/// blocks.
pub fn set_statistics(statistics: &'static Statistics, process: u32) {
    STATISTICS.set(Box::leak(Box::new(StatisticsSource { statistics, process })));
}

/// The block of the shared statistics in which one ring counts. `None`: the ring is not counted.
#[derive(Default)]
pub(crate) struct RingCounters(Option<Counting>);

struct Counting {
    statistics: &'static Statistics,
    block: usize,
}

impl RingCounters {
    /// Claims a block for a ring, if statistics are kept at all. If all blocks are taken, first
    /// releases the blocks of processes that no longer exist.
    pub fn claim() -> Self {
        let Some(source) = STATISTICS.get() else { return RingCounters(None) };
        if source.statistics.is_exhausted() {
            source.statistics.reclaim(process_exists);
        }
        let block = source.statistics.claim(source.process);
        RingCounters(block.map(|block| Counting { statistics: source.statistics, block }))
    }

    #[inline]
    fn count(&self, opcode: u8, column: Column) {
        if let Some(counting) = &self.0 {
            counting.statistics.blocks[counting.block].count(opcode, column);
        }
    }

    #[inline]
    pub fn count_submitted(&self, opcode: u8) {
        self.count(opcode, Column::Submitted);
    }

    #[inline]
    pub fn count_completed(&self, opcode: u8, result: i32) {
        self.count(opcode, Column::Completed);
        if result < 0 {
            self.count(opcode, Column::Errors);
        }
    }

    #[inline]
    pub fn count_inline(&self, opcode: u8) {
        self.count(opcode, Column::Inline);
    }

    pub fn count_polled(&self, opcode: u8) {
        self.count(opcode, Column::Polled);
    }

    pub fn count_worker(&self, opcode: u8) {
        self.count(opcode, Column::Worker);
    }
}

/// Returns whether a process exists, by kill(2) without a signal.
fn process_exists(process: u32) -> bool {
    let call = SystemCall::new(linux::__NR_kill, [u64::from(process), 0, 0, 0, 0]);
    call.run() != Err(Errno::ESRCH)
}

impl Drop for RingCounters {
    fn drop(&mut self) {
        if let Some(counting) = &self.0 {
            counting.statistics.release(counting.block);
        }
    }
}
