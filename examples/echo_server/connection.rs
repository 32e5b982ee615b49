//! A connection's state, and the server's counters.

use std::fmt;
use std::os::fd::RawFd;
use workloads::dialogue::Dialogue;

/// Largest capacity, in bytes, that a connection's buffer keeps after all its bytes have been sent.
/// The next connection in that slot takes the buffer over.
const KEPT: usize = 4 << 10;

/// One connection. The server closes it only when none of its requests is in flight. So no
/// completion of this connection can arrive after another connection has got its slot.
#[derive(Default)]
pub struct Connection {
    pub socket: RawFd,
    dialogue: Dialogue,
    /// The bytes of the current send. The first `sent` of them have been sent.
    outgoing: Vec<u8>,
    pub sent: usize,
    /// The bytes to send after those of `outgoing`.
    queued: Vec<u8>,
    pub received: u64,
    pub receiving: bool,
    pub sending: bool,
    pub cancelling: bool,
    pub closing: bool,
    /// `ended`: the server receives no more bytes from the peer. `broken`: the server sends no
    /// more.
    pub ended: bool,
    pub broken: bool,
}

impl Connection {
    pub fn unsent(&self) -> usize {
        self.outgoing.len() - self.sent + self.queued.len()
    }

    /// Returns the parser, and the buffer to which it appends answers. During a send, this is the
    /// buffer `queued`, because the bytes that are being sent must not move.
    pub fn answers(&mut self) -> (&mut Dialogue, &mut Vec<u8>) {
        let output = if self.sending { &mut self.queued } else { &mut self.outgoing };
        (&mut self.dialogue, output)
    }

    /// Returns the bytes to send next, if there are any.
    pub fn next_to_send(&mut self) -> &[u8] {
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.outgoing.shrink_to(KEPT);
            self.sent = 0;
            std::mem::swap(&mut self.outgoing, &mut self.queued);
        }
        &self.outgoing[self.sent..]
    }

    /// Resets the state to that of a new connection, and keeps the buffers' memory.
    pub fn reset(&mut self) {
        let (mut outgoing, mut queued) = (std::mem::take(&mut self.outgoing), std::mem::take(&mut self.queued));
        for memory in [&mut outgoing, &mut queued] {
            memory.clear();
            memory.shrink_to(KEPT);
        }
        *self = Connection { outgoing, queued, ..Connection::default() };
    }
}

/// The counters of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub accepted: u64,
    pub closed: u64,
    pub received: u64,
    pub sent: u64,
    pub reset: u64,
    /// Receives that found no provided buffer, and accepts that found no free descriptor.
    pub without_buffer: u64,
    pub without_descriptor: u64,
    /// Multishots that ended early and were submitted again.
    pub rearmed: u64,
    /// Requests whose last completion did not arrive before the server's end.
    pub lost: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.accepted += other.accepted;
        self.closed += other.closed;
        self.received += other.received;
        self.sent += other.sent;
        self.reset += other.reset;
        self.without_buffer += other.without_buffer;
        self.without_descriptor += other.without_descriptor;
        self.rearmed += other.rearmed;
        self.lost += other.lost;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { accepted, closed, received, sent, reset, without_buffer, without_descriptor, rearmed, lost } =
            self;
        write!(
            f,
            "{accepted} connections accepted, {closed} closed, {reset} reset; {received} bytes received, {sent} sent; \
             {without_buffer} times no buffer, {without_descriptor} times no descriptor, {rearmed} multishots rearmed; \
             {lost} requests lost"
        )
    }
}
