//! A system call whose memory is pinned, from before the call until the kernel has answered the
//! call.

use crate::data::{self, Data};
use crate::is_in_window;
use crate::pointers::{self, MemoryRange, MemoryRanges};
use crate::transfer::{Pinned, Transfer};
use alloc::boxed::Box;
use usring_swap::mappings::{Mappings, PinLimit};
use usring_sys::{Errno, SystemCall, signals, width};
use usring_uapi::general as linux;

/// The pinned memory and buffers of a call in flight.
pub struct PinnedCall {
    mappings: &'static Mappings,
    pinned: Option<Pinned>,
    transfer: Option<Box<Transfer>>,
    /// The memory that a futex wait names; `None` for all other calls. If the kernel answers
    /// EFAULT, usring pins this memory and makes the call again.
    retried: Option<Box<MemoryRanges>>,
}

impl PinnedCall {
    /// Pins the memory of a call. `region` returns the region of swapped memory. If the call moves
    /// large data, changes `call` to transfer the first part. `None`: the call names no swapped
    /// memory, or there is no region.
    ///
    /// Errors: `ENOMEM` if a range that the call names, other than data, is longer than half of the
    /// region's limit. `EFAULT` for a page that cannot be read back from the store.
    pub fn new(
        call: &mut SystemCall,
        region: impl FnOnce() -> Option<&'static Mappings>,
    ) -> Result<Option<PinnedCall>, Errno> {
        let mut ranges = pointers::of(call.number, &call.arguments);
        let data = Data::of(call.number, &call.arguments, &mut ranges);
        if ranges.is_empty() && data.is_none() {
            return Ok(None);
        }
        let Some(mappings) = region() else { return Ok(None) };
        let most = mappings.most_pinned().1;
        if ranges.iter().any(|range| range.length > most && is_longer(mappings, range, most))
            && !is_execution(call.number)
        {
            return Err(Errno::ENOMEM);
        }
        let mut pinned = Some(Pinned::new(mappings, &ranges, PinLimit::None)?);
        let mut retried = None;
        if is_sleep(call) {
            (pinned, retried) = (None, Some(Box::new(ranges)));
        }
        let mut transfer = data.and_then(|data| Transfer::of(data, call, mappings)).map(Box::new);
        if let Some(transfer) = &mut transfer {
            transfer.begin(call, mappings)?;
        }
        Ok(Some(PinnedCall { mappings, pinned, transfer, retried }))
    }

    /// Handles the kernel's answer to the call. Returns the answer for the program. `None`: the
    /// caller has to make `call` once more, for one of two reasons. Either `call` now transfers the
    /// next part of its data, or the kernel answered EFAULT and the call's memory has been pinned
    /// since.
    pub fn proceed(&mut self, call: &mut SystemCall, answer: u64) -> Option<u64> {
        if answer == error(Errno::EFAULT)
            && let Some(ranges) = self.retried.take()
        {
            return self.pin_again(&ranges);
        }
        let Some(transfer) = &mut self.transfer else { return Some(answer) };
        match transfer.finish_part(answer) {
            Ok(true) => {}
            Ok(false) => return Some(transfer.result(answer)),
            Err(failed) => return Some(error(failed)),
        }
        // After a signal has come, the program gets the number of bytes transferred so far, as from
        // the kernel.
        if transfer.begin(call, self.mappings).is_err() || signals::interrupted() {
            return Some(transfer.cancel_part());
        }
        None
    }

    /// Pins the memory of this call again in a forked child, which has no pins. A signal handler
    /// may have interrupted the call and forked. The child then returns into the call, too, and
    /// needs the pins.
    pub fn inherit(&mut self, mappings: &'static Mappings) {
        self.mappings = mappings;
        if let Some(pinned) = &mut self.pinned {
            pinned.inherit(mappings);
        }
        if let Some(transfer) = &mut self.transfer {
            transfer.inherit(mappings);
        }
    }

    /// Pins the memory of a call that failed with EFAULT because pages were evicted. `None`: the
    /// caller has to make the call again. Otherwise returns the error for the program.
    fn pin_again(&mut self, ranges: &MemoryRanges) -> Option<u64> {
        match Pinned::new(self.mappings, ranges, PinLimit::None) {
            Ok(pinned) => {
                self.pinned = Some(pinned);
                None
            }
            Err(failed) => Some(error(failed)),
        }
    }
}

fn error(error: Errno) -> u64 {
    width::word(error.negative())
}

/// Returns whether the mapping at a range's start continues for more than `most` bytes from there.
/// (The length of the range itself may be an assumption, and exceed the mapping.)
fn is_longer(mappings: &Mappings, range: &MemoryRange, most: usize) -> bool {
    mappings.around(range.start).is_some_and(|around| around.end - range.start > most)
}

/// Returns whether a call is an exec.
pub fn is_execution(number: u32) -> bool {
    matches!(number, linux::__NR_execve | linux::__NR_execveat)
}

/// Returns whether the call is a futex wait, which only sleeps until a word changes. A futex wait
/// that fails with EFAULT has changed nothing, so usring can make the call again.
fn is_sleep(call: &SystemCall) -> bool {
    let operation = width::low(call.arguments[1]) & !(linux::FUTEX_PRIVATE_FLAG | linux::FUTEX_CLOCK_REALTIME);
    match call.number {
        linux::__NR_futex => matches!(operation, linux::FUTEX_WAIT | linux::FUTEX_WAIT_BITSET),
        linux::__NR_futex_wait | linux::__NR_futex_waitv => true,
        _ => false,
    }
}

/// Returns whether a call may name swapped memory: directly, or by an `iovec` array or a message.
pub fn may_name_memory(call: &SystemCall) -> bool {
    call.arguments.iter().any(|argument| is_in_window(*argument)) || data::is_indirect(call.number)
}
