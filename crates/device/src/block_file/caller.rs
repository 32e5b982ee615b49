//! Runs one blocking call at a time on one queue pair. Splits long transfers into requests
//! (*pieces*), keeps several pieces in flight, and waits according to the device's policy.

use super::cursor::Cursor;
use crate::channel::{Channel, Pause};
use crate::device::Device;
use crate::driver::{QueueOptions, Submission};
use crate::request::{Completions, DeviceRequest, NamedFile, Operation};
use crate::tracker::WaiterKind;
use alloc::vec::Vec;
use usring_sys::plain::IoVector;
use usring_sys::sync::relax;
use usring_sys::{Errno, epoll, processor, timer_slack};

/// Maximum number of pieces (requests) of one call that are in flight at a time.
const DEPTH: u32 = 32;
/// Maximum number of segments of a piece, which is one request of a call.
const SEGMENTS: usize = 64;
/// Bytes of the bounce buffer. If the device's block is larger, the buffer is one block.
const BOUNCE: u32 = 64 << 10;

pub struct Caller {
    channel: Channel,
    completions: Completions,
    /// For each request in flight: the part of the call's transfer that this request makes. The
    /// index is the request's token.
    pieces: [Piece; DEPTH as usize],
    /// One bit for each token (number of a request in flight), set if no request uses the token.
    free: u32,
    /// Segments of the piece that is being made.
    segments: Vec<IoVector>,
    /// Empty until a call needs the bounce buffer.
    bounce: Bounce,
}

/// A transfer of whole blocks, or an operation without data (such as a flush).
#[derive(Clone, Copy)]
pub struct Whole {
    pub operation: Operation,
    pub durable: bool,
    pub offset: u64,
    pub length: u64,
}

#[derive(Clone, Copy, Default)]
struct Piece {
    /// Offset of this request's data in bytes, from the start of the call's transfer.
    start: u64,
    length: u64,
}

/// The failed request with the lowest offset in a transfer.
struct Failure {
    at: u64,
    error: Errno,
}

/// Result of an attempt to submit another piece.
enum PieceOutcome {
    Made,
    /// No token is free, or the queue pair has no room.
    Full,
    /// The device must not access the program's memory at the point that the transfer has reached.
    Unreachable,
}

/// Progress of a transfer through its pieces.
struct Progress {
    whole: Whole,
    /// Whether the program's memory is registered; see [`DeviceRequest::registered`].
    registered: bool,
    /// Bytes of the call's transfer for which requests have been submitted.
    made: u64,
    unreachable: bool,
    failure: Option<Failure>,
}

impl Progress {
    /// Records the result of a completed request (piece) of the call: the bytes transferred, or its
    /// error.
    fn note_result(&mut self, piece: Piece, answer: Result<u64, Errno>) {
        let failure = match answer {
            Ok(transferred) if transferred >= piece.length => return,
            Ok(transferred) => Failure { at: piece.start + transferred, error: Errno::EIO },
            Err(error) => Failure { at: piece.start, error },
        };
        if self.failure.as_ref().is_none_or(|first| failure.at < first.at) {
            self.failure = Some(failure);
        }
    }

    fn wants_more(&self) -> bool {
        self.made < self.whole.length && !self.unreachable && self.failure.is_none()
    }
}

impl Caller {
    pub fn new(device: &Device, interrupts: bool) -> Result<Self, Errno> {
        let options = QueueOptions { depth: DEPTH, interrupts };
        Ok(Caller {
            channel: device.open_channel_for(WaiterKind::Call, options)?,
            completions: Completions::new(),
            pieces: [Piece::default(); DEPTH as usize],
            free: u32::MAX,
            segments: Vec::with_capacity(SEGMENTS),
            bounce: Bounce::default(),
        })
    }

    pub fn has_interrupts(&self) -> bool {
        self.channel.interrupt().is_some()
    }

    /// Transfers whole blocks directly from or to the program's memory. Stops at memory that the
    /// device must not access. Advances the cursor. Returns the bytes transferred: 0 if the device
    /// must not access even the memory at the cursor. Error: the error of the device, if the first
    /// byte was not transferred.
    pub fn transfer_directly(
        &mut self,
        device: &Device,
        whole: Whole,
        registered: bool,
        cursor: &mut Cursor,
    ) -> Result<u64, Errno> {
        let mut progress = Progress { whole, registered, made: 0, unreachable: false, failure: None };
        let mut ahead = *cursor;
        loop {
            while progress.wants_more() {
                match self.submit_piece(device, &mut progress, &mut ahead) {
                    PieceOutcome::Made => {}
                    PieceOutcome::Unreachable => progress.unreachable = true,
                    PieceOutcome::Full => break,
                }
            }
            self.channel.ring_doorbell();
            if self.channel.in_flight() > 0 {
                self.wait();
                self.collect(&mut progress);
            } else if progress.wants_more() {
                // The device has no room for a request, although none of this call's requests are
                // in flight. So other users of the device have filled it, and the call tries again.
                processor::yield_now();
            } else {
                break;
            }
        }
        match progress.failure {
            Some(Failure { at: 0, error }) => Err(error),
            failure => {
                let done = failure.map_or(progress.made, |failure| failure.at);
                cursor.skip(done);
                Ok(done)
            }
        }
    }

    fn submit_piece(&mut self, device: &Device, progress: &mut Progress, ahead: &mut Cursor) -> PieceOutcome {
        if self.free == 0 {
            return PieceOutcome::Full;
        }
        let geometry = device.geometry();
        let block = u64::from(geometry.block);
        let room = SEGMENTS.min(geometry.segments as usize);
        let most = (u64::from(geometry.transfer) & !(block - 1)).min(progress.whole.length - progress.made);
        let mut after = *ahead;
        let gathered = after.gather(&mut self.segments, room, most, geometry);
        let length = gathered - gathered % block;
        if length == 0 {
            return PieceOutcome::Unreachable;
        }
        if length < gathered {
            after = *ahead;
            after.gather(&mut self.segments, room, length, geometry);
        }
        let piece = Piece { start: progress.made, length };
        let token = self.free.trailing_zeros();
        let request = DeviceRequest {
            token,
            operation: progress.whole.operation,
            durable: progress.whole.durable,
            offset: progress.whole.offset + piece.start,
            length,
            segments: &self.segments,
            registered: progress.registered,
            file: NamedFile::default(),
        };
        match self.channel.submit(&request) {
            Submission::Accepted => {
                self.pieces[token as usize] = piece;
                self.free &= !(1 << token);
            }
            Submission::Full => return PieceOutcome::Full,
            Submission::NeedsWorker => {
                self.channel.ring_doorbell();
                progress.note_result(piece, device.driver().execute(&request).map(u64::from));
            }
            Submission::Refused(error) => progress.note_result(piece, Err(error)),
        }
        progress.made += length;
        *ahead = after;
        PieceOutcome::Made
    }

    fn collect(&mut self, progress: &mut Progress) {
        for completion in self.completions.as_slice() {
            self.free |= 1 << completion.token;
            progress.note_result(self.pieces[completion.token as usize], answer(completion.result));
        }
    }

    /// Waits until a request has completed.
    fn wait(&mut self) {
        let mut wait = self.channel.begin_wait();
        self.completions.clear();
        loop {
            self.channel.poll(&mut self.completions);
            if !self.completions.as_slice().is_empty() {
                return;
            }
            match self.channel.pause(&mut wait) {
                Pause::Spin => relax(),
                // A signal may end the sleep early. The thread then polls for the remaining time.
                Pause::Sleep(span) => drop(timer_slack::sleep_precisely(span)),
                Pause::Interrupt => self.sleep(),
            }
        }
    }

    fn sleep(&mut self) {
        if self.channel.arm_interrupt()
            && let Some(interrupt) = self.channel.interrupt()
        {
            // The error is ignored: if the kernel has no memory for this wait, the thread polls.
            let _ = epoll::wait_readable(interrupt);
        }
    }

    /// Submits one request and waits for it. The caller has no other request in flight. Returns the
    /// bytes transferred.
    pub fn run_request(&mut self, device: &Device, whole: Whole, segments: &[IoVector]) -> Result<u64, Errno> {
        let Whole { operation, durable, offset, length } = whole;
        let request = DeviceRequest {
            token: 0,
            operation,
            durable,
            offset,
            length,
            segments,
            registered: false,
            file: NamedFile::default(),
        };
        loop {
            match self.channel.submit(&request) {
                Submission::Accepted => break,
                Submission::Full => processor::yield_now(),
                Submission::NeedsWorker => return device.driver().execute(&request).map(u64::from),
                Submission::Refused(error) => return Err(error),
            }
        }
        self.channel.ring_doorbell();
        self.wait();
        answer(self.completions.as_slice()[0].result)
    }

    /// Returns the maximum number of bytes that [`Caller::bounce`] can transfer.
    pub fn bounce_length(&mut self, device: &Device) -> u64 {
        self.bounce.ensure_memory(device);
        self.bounce.length as u64
    }

    pub fn bounce_memory(&mut self) -> &mut [u8] {
        self.bounce.memory()
    }

    /// Transfers data in one request: from the device to the start of the bounce buffer, or from
    /// there to the device. Returns the bytes transferred, at least one.
    pub fn bounce(&mut self, device: &Device, whole: Whole) -> Result<u64, Errno> {
        self.bounce.ensure_memory(device);
        let base = self.bounce.memory().as_mut_ptr().expose_provenance() as u64;
        match self.run_request(device, whole, &[IoVector { base, length: whole.length }])? {
            0 => Err(Errno::EIO),
            bytes => Ok(bytes),
        }
    }
}

fn answer(result: i32) -> Result<u64, Errno> {
    u64::try_from(result).map_err(|_| Errno::new(result.unsigned_abs()))
}

/// Memory of usring's own, which every device may access.
#[derive(Default)]
struct Bounce {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Bounce {
    fn ensure_memory(&mut self, device: &Device) {
        if self.length == 0 {
            let geometry = device.geometry();
            let alignment = geometry.alignment as usize;
            let length = geometry.transfer.min(BOUNCE).max(geometry.block);
            self.length = (length & !(geometry.block - 1)) as usize;
            self.bytes.resize(self.length + alignment, 0);
            self.start = self.bytes.as_ptr().align_offset(alignment);
        }
    }

    fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}
