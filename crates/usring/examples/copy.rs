//! Copies a file with many requests in flight:
//!
//! ```text
//! cargo run --example copy -- FROM TO
//! ```
//!
//! The program reads each block and, once its bytes are in memory, writes it. Apart from the `use`
//! line it is an ordinary io_uring program: with `use io_uring::…` it runs on the kernel's
//! io_uring.

use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use usring::{IoUring, opcode, squeue, types};

/// Bytes of a block.
const BLOCK: usize = 128 * 1024;
/// Maximum number of blocks in flight.
const DEPTH: usize = 32;

/// The buffer of one block in flight, and its progress.
struct Slot {
    buffer: Vec<u8>,
    /// Offset of the block in both files.
    offset: u64,
    /// Bytes that were read into the buffer. `written` of these have been written to the new file.
    length: usize,
    written: usize,
    reading: bool,
}

struct Copy {
    from: types::Fd,
    to: types::Fd,
    size: u64,
    /// Offset of the next block to copy.
    next: u64,
    slots: Vec<Slot>,
}

impl Copy {
    /// Assigns the next block to a slot and returns the block's first request. Returns `None` after
    /// the last block.
    fn begin(&mut self, index: usize) -> Option<squeue::Entry> {
        if self.next >= self.size {
            return None;
        }
        let slot = &mut self.slots[index];
        (slot.offset, slot.length, slot.written, slot.reading) = (self.next, 0, 0, true);
        self.next += BLOCK as u64;
        Some(self.request(index))
    }

    /// Returns the next request of a slot's block: its read, or a write of bytes that are not
    /// written yet.
    fn request(&mut self, index: usize) -> squeue::Entry {
        let slot = &mut self.slots[index];
        let entry = if slot.reading {
            opcode::Read::new(self.from, slot.buffer.as_mut_ptr(), BLOCK as u32).offset(slot.offset).build()
        } else {
            let rest = &slot.buffer[slot.written..slot.length];
            opcode::Write::new(self.to, rest.as_ptr(), rest.len() as u32)
                .offset(slot.offset + slot.written as u64)
                .build()
        };
        entry.user_data(index as u64)
    }

    /// Handles the completion of a slot's request, and returns the slot's next request, if any.
    fn advance(&mut self, index: usize, result: i32) -> std::io::Result<Option<squeue::Entry>> {
        if result < 0 {
            return Err(std::io::Error::from_raw_os_error(-result));
        }
        let slot = &mut self.slots[index];
        if slot.reading {
            (slot.length, slot.reading) = (result as usize, false);
        } else {
            slot.written += result as usize;
        }
        let done = slot.written == slot.length;
        Ok(if done { self.begin(index) } else { Some(self.request(index)) })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("usage: copy FROM TO".into());
    };
    let (from, to) = (File::open(from)?, File::create(to)?);
    let empty = || Slot { buffer: vec![0; BLOCK], offset: 0, length: 0, written: 0, reading: false };
    let mut copy = Copy {
        from: types::Fd(from.as_raw_fd()),
        to: types::Fd(to.as_raw_fd()),
        size: from.metadata()?.len(),
        next: 0,
        slots: (0..DEPTH).map(|_| empty()).collect(),
    };

    // Declared after the buffers, so that the ring is dropped before them, even if an error returns
    // early.
    let mut ring = IoUring::new(DEPTH as u32)?;
    let mut ready: Vec<squeue::Entry> = (0..DEPTH).filter_map(|index| copy.begin(index)).collect();
    let mut in_flight = 0;
    while in_flight > 0 || !ready.is_empty() {
        // SAFETY: buffers and files live until the ring is dropped. The program does not touch a
        // buffer while a request uses it.
        unsafe { ring.submission().push_multiple(&ready)? };
        in_flight += ready.len();
        ready.clear();
        ring.submit_and_wait(1)?;
        let completions: Vec<_> = ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        in_flight -= completions.len();
        for (index, result) in completions {
            ready.extend(copy.advance(index as usize, result)?);
        }
    }
    println!("{} bytes", copy.size);
    Ok(())
}
