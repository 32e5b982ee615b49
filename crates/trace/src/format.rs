//! The records of a trace, as words in shared memory ([`crate::page`]) and in a file.
//!
//! A file is a header, the names, and the records:
//!
//! | bytes | content |
//! |---|---|
//! | [`HEADER_BYTES`] | the words of [`Header`] |
//! | [`Header::names`] words | the names; a record refers to a name by the index of its first word, plus 1 |
//! | [`Header::records`] records of [`RECORD_BYTES`] | the events, in the order of their numbers |
//!
//! All words are little-endian.

use alloc::vec::Vec;
use usring_engine::observers::{AIO_CONTEXT, WorkerReason};
use usring_sys::spread::GOLDEN;
use usring_sys::width;

/// First word of a file and of the shared memory, "usrtrace".
pub const MAGIC: u64 = u64::from_le_bytes(*b"usrtrace");
/// Second word: the version of the layout.
pub const VERSION: u64 = 1;
/// Words of a record.
pub const RECORD: usize = 8;
/// Bytes of a record.
pub const RECORD_BYTES: usize = RECORD * 8;
/// Bytes of a file's header.
pub const HEADER_BYTES: usize = 128;

/// The header of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Words of all names.
    pub names: u64,
    /// Number of records in the file.
    pub records: u64,
    /// Number of events of the traced processes, including events that are not in the file.
    pub events: u64,
    /// Number of events of the traced processes for which there was no room.
    pub lost: u64,
    /// Number of names for which there was no room. Each process counts its own names. It may count
    /// one of them twice, if it has used 2¹⁴ other names in between.
    pub lost_names: u64,
    /// If there was no room for all events: 1 if the file has the last ones, 0 if it has the first
    /// ones.
    pub keeps_last: u64,
    /// The ring to which the trace is limited; 0: all rings.
    pub ring: u64,
    /// Two moments: the start of the run, and the time at which the header was made. For each, the
    /// first number is in ticks of the processor's counter, and the second in nanoseconds of the
    /// monotonic clock.
    pub start: [u64; 2],
    pub end: [u64; 2],
    /// The start of the run in nanoseconds since 1970.
    pub start_of_day: u64,
}

impl Header {
    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let words = [
            MAGIC,
            VERSION,
            self.names,
            self.records,
            self.events,
            self.lost,
            self.lost_names,
            self.keeps_last,
            self.ring,
            self.start[0],
            self.start[1],
            self.end[0],
            self.end[1],
            self.start_of_day,
        ];
        let mut bytes = [0; HEADER_BYTES];
        for (target, word) in bytes.chunks_exact_mut(8).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a header. Errors: [`NotATrace::Other`] if the bytes are no header;
    /// [`NotATrace::Version`] if the header has another version than [`VERSION`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, NotATrace> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        if word(0) != MAGIC {
            return Err(NotATrace::Other);
        }
        if word(1) != VERSION {
            return Err(NotATrace::Version(word(1)));
        }
        Ok(Header {
            names: word(2),
            records: word(3),
            events: word(4),
            lost: word(5),
            lost_names: word(6),
            keeps_last: word(7),
            ring: word(8),
            start: [word(9), word(10)],
            end: [word(11), word(12)],
            start_of_day: word(13),
        })
    }

    /// Returns the time of a record in nanoseconds since the trace began.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let since = u128::from(ticks.saturating_sub(self.start[0]));
        let span = u128::from(self.end[0].saturating_sub(self.start[0])).max(1);
        let nanoseconds = u128::from(self.end[1].saturating_sub(self.start[1]));
        u64::try_from(since * nanoseconds / span).unwrap_or(u64::MAX)
    }
}

/// The reason why bytes are not the header of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotATrace {
    Other,
    /// The trace has another version.
    Version(u64),
}

/// The event that a record describes, and the meaning of its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventKind {
    /// A process begins to record. `name`: its program. Several threads of a forked child may begin
    /// to record at the same time, so other events of the process may come before this one.
    Process = 1,
    /// A ring was made. `extra`: the flags of io_uring_setup(2); `b`: SQ and CQ entries.
    Opened = 2,
    /// A ring ends. `b`: the CQ's tail and head.
    Closed = 3,
    /// A request was submitted. `extra`: the opcode's flags; `a`: the offset; `b`: the descriptor
    /// or the slot of registered files, and the length; `detail`: [`HELD_BY_CHAIN`] and so on.
    Submitted = 4,
    /// A request is issued after it had to wait, for its file or for another condition.
    Issued = 5,
    /// A request waits for its file.
    AwaitsFile = 6,
    /// A request waits for a time to pass or for a number of completions.
    AwaitsTime = 7,
    /// A request waits for other processes that share its ring.
    AwaitsProcesses = 8,
    /// A fault delays a request.
    Delayed = 9,
    /// A request is queued for a worker; `detail`: why ([`reason_of`]).
    Queued = 10,
    /// A worker begins to carry out a request.
    WorkerBegan = 11,
    /// A worker has carried out a request; `a`: the result.
    WorkerEnded = 12,
    /// A request is handed to a device; `a`: the index of the ring's channel (queue pair) to the
    /// device.
    OnDevice = 13,
    /// A request goes to another ring.
    OnOtherRing = 14,
    /// A request posts a CQE and continues. `extra`: the CQE's flags; `a`: its result; `b`: its
    /// position in the CQ, and the CQ's head.
    Posted = 15,
    /// A request is complete. The fields are those of [`EventKind::Posted`]. `detail`: [`NO_CQE`],
    /// or [`NOT_BEGUN`].
    Completed = 16,
    /// The program has taken CQEs from the CQ. `b`: 0 in place of a position, and the CQ's head.
    Reaped = 17,
}

const KINDS: [EventKind; 17] = [
    EventKind::Process,
    EventKind::Opened,
    EventKind::Closed,
    EventKind::Submitted,
    EventKind::Issued,
    EventKind::AwaitsFile,
    EventKind::AwaitsTime,
    EventKind::AwaitsProcesses,
    EventKind::Delayed,
    EventKind::Queued,
    EventKind::WorkerBegan,
    EventKind::WorkerEnded,
    EventKind::OnDevice,
    EventKind::OnOtherRing,
    EventKind::Posted,
    EventKind::Completed,
    EventKind::Reaped,
];

/// Detail of [`EventKind::Submitted`]: the request waits for the request before it in its chain.
pub const HELD_BY_CHAIN: u8 = 1;
/// Detail of [`EventKind::Submitted`]: the request waits for earlier requests because of the flag
/// IO_DRAIN.
pub const HELD_BY_DRAIN: u8 = 2;
/// Detail of [`EventKind::Submitted`]: the request works on a file.
pub const HAS_FILE: u8 = 4;
/// Detail of [`EventKind::Completed`]: the request posts no CQE.
pub const NO_CQE: u8 = 1;
/// Detail of [`EventKind::Completed`]: the request never began, because its chain broke.
pub const NOT_BEGUN: u8 = 2;

const REASONS: [WorkerReason; 5] = [
    WorkerReason::Asked,
    WorkerReason::Rights,
    WorkerReason::WouldBlock,
    WorkerReason::Opcode,
    WorkerReason::AfterDrain,
];

/// Returns the detail of [`EventKind::Queued`] for a reason.
pub fn detail_of(reason: WorkerReason) -> u8 {
    match reason {
        WorkerReason::Asked => 0,
        WorkerReason::Rights => 1,
        WorkerReason::WouldBlock => 2,
        WorkerReason::Opcode => 3,
        WorkerReason::AfterDrain => 4,
    }
}

/// Returns the reason in the detail of [`EventKind::Queued`].
pub fn reason_of(detail: u8) -> Option<WorkerReason> {
    REASONS.get(usize::from(detail)).copied()
}

/// Number of bits of a process id and of a thread id. The kernel's limit of ids is 2²².
const ID_BITS: u32 = 22;
const ID_MASK: u64 = (1 << ID_BITS) - 1;
/// Number of bits of a ring's number. The highest bit marks a context of libaio.
const RING_BITS: u32 = 64 - 2 * ID_BITS;
const OF_AIO: u32 = 1 << (RING_BITS - 1);

/// Number of bits of a name in a record. A name is the index of a word among the names in
/// [`crate::page`], and such an index needs fewer bits.
pub const NAME_BITS: u32 = 21;
const NAME_MASK: u32 = (1 << NAME_BITS) - 1;

/// Returns the number that a ring has in records. `number` is its number in the engine, where
/// [`usring_engine::observers::AIO_CONTEXT`] marks a context of libaio.
#[inline]
pub fn ring_of(number: u32) -> u32 {
    let context = if number & AIO_CONTEXT != 0 { OF_AIO } else { 0 };
    number & (OF_AIO - 1) | context
}

/// Returns whether a ring, by its number in records, is a context of libaio.
pub fn is_aio(ring: u32) -> bool {
    ring & OF_AIO != 0
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Ticks of the processor's counter ([`Header::nanoseconds`] converts them).
    pub ticks: u64,
    pub kind: EventKind,
    pub opcode: u8,
    /// `IOSQE_*`.
    pub sqe_flags: u8,
    pub detail: u8,
    pub extra: u32,
    /// The process's id in its own PID namespace.
    pub process: u32,
    /// The lower bits of the number that the process got when it began to record. This number
    /// distinguishes processes with equal ids: in different PID namespaces, or one after the other.
    pub turn: u32,
    pub thread: u32,
    /// Number of the ring in its process ([`ring_of`]).
    pub ring: u32,
    /// The lower 32 bits of the request's number in its ring.
    pub request: u32,
    /// The name of the request's file, as the index of its first word plus 1; 0: unknown.
    pub name: u32,
    pub user_data: u64,
    pub a: u64,
    pub b: [u32; 2],
}

impl Record {
    pub const fn new(kind: EventKind) -> Record {
        Record {
            ticks: 0,
            kind,
            opcode: 0,
            sqe_flags: 0,
            detail: 0,
            extra: 0,
            process: 0,
            turn: 0,
            thread: 0,
            ring: 0,
            request: 0,
            name: 0,
            user_data: 0,
            a: 0,
            b: [0; 2],
        }
    }

    /// Returns the words of a record, without the last one. [`seal`] makes the last word.
    #[inline]
    pub fn words(&self) -> [u64; RECORD - 1] {
        let bytes = [self.kind as u8, self.opcode, self.sqe_flags, self.detail];
        let ids = u64::from(self.process) & ID_MASK | (u64::from(self.thread) & ID_MASK) << ID_BITS;
        [
            self.ticks,
            u64::from(u32::from_le_bytes(bytes)) | u64::from(self.extra) << 32,
            ids | u64::from(self.ring) << (2 * ID_BITS),
            pair([self.request, self.name & NAME_MASK | self.turn << NAME_BITS]),
            self.user_data,
            self.a,
            pair(self.b),
        ]
    }

    /// Reads a record, and returns its event number and the record. `None` if the words are no
    /// whole record.
    pub fn read(words: &[u64; RECORD]) -> Option<(u64, Record)> {
        let [ticks, first, ids, second, user_data, a, b, last] = *words;
        let number = unseal(&[ticks, first, ids, second, user_data, a, b], last)?;
        let [kind, opcode, sqe_flags, detail] = width::low(first).to_le_bytes();
        let ([request, name_and_turn], b) = (halves(second), halves(b));
        let record = Record {
            ticks,
            kind: KINDS.into_iter().find(|it| *it as u8 == kind)?,
            opcode,
            sqe_flags,
            detail,
            extra: width::low(first >> 32),
            process: width::low(ids & ID_MASK),
            turn: name_and_turn >> NAME_BITS,
            thread: width::low(ids >> ID_BITS & ID_MASK),
            ring: width::low(ids >> (2 * ID_BITS)),
            request,
            name: name_and_turn & NAME_MASK,
            user_data,
            a,
            b,
        };
        Some((number, record))
    }

    /// Returns the result in `a`.
    pub fn result(&self) -> i32 {
        width::int(self.a)
    }
}

fn pair(halves: [u32; 2]) -> u64 {
    u64::from(halves[0]) | u64::from(halves[1]) << 32
}

fn halves(word: u64) -> [u32; 2] {
    [width::low(word), width::low(word >> 32)]
}

/// Upper limit of the event numbers in records, which are all below it. A run does not reach it: at
/// 10⁸ events per second it would take a month.
const MOST_NUMBERS: u64 = 1 << 48;
/// The inverse of [`GOLDEN`] modulo 2⁶⁴.
const INVERSE: u64 = inverse(GOLDEN);

const fn inverse(odd: u64) -> u64 {
    // Newton's iteration: each step doubles the number of correct low bits. The first value, `odd`
    // itself, has three correct bits, because the square of an odd number is 1 modulo 8.
    let mut found = odd;
    let mut step = 0;
    while step < 5 {
        found = found.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(found)));
        step += 1;
    }
    found
}

/// Returns the last word of a record or a name: its number, and a checksum of the other words.
#[inline]
pub fn seal(words: &[u64], number: u64) -> u64 {
    fold(words).wrapping_add((number + 1).wrapping_mul(GOLDEN))
}

/// Returns the number that the last word of a record contains. `None`: the words do not belong to
/// one record, because another thread was writing them.
pub fn unseal(words: &[u64], last: u64) -> Option<u64> {
    let number = last.wrapping_sub(fold(words)).wrapping_mul(INVERSE).wrapping_sub(1);
    (number < MOST_NUMBERS).then_some(number)
}

/// Returns the sum of the words, each multiplied by another power of [`GOLDEN`]. The products do
/// not depend on each other, so the processor computes them at the same time.
#[inline]
fn fold(words: &[u64]) -> u64 {
    let (mut sum, mut factor) = (0u64, GOLDEN);
    for word in words {
        factor = factor.wrapping_mul(GOLDEN);
        sum = sum.wrapping_add(word.wrapping_mul(factor));
    }
    sum
}

/// Longest name, in bytes. A longer one loses its end.
pub const MOST_NAME: usize = 4096;

/// Returns the words of a name: its length, its text, and a last word. By the last word,
/// [`read_name`] checks that the name is whole. `place`: the index of the first word.
pub fn name_words(text: &[u8], place: u64) -> Vec<u64> {
    let text = &text[..text.len().min(MOST_NAME)];
    let mut words = Vec::with_capacity(text.len() / 8 + 3);
    words.push(text.len() as u64);
    for chunk in text.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        words.push(u64::from_le_bytes(bytes));
    }
    words.push(seal(&words, place));
    words
}

/// Returns the number of words that a name of this many bytes takes.
pub fn name_length(bytes: usize) -> u64 {
    bytes.min(MOST_NAME).div_ceil(8) as u64 + 2
}

/// Returns the name to which a record refers. `words`: all names. `None` if there is no such name.
pub fn read_name(words: &[u64], name: u32) -> Option<Vec<u8>> {
    let place = width::size(u64::from(name).checked_sub(1)?);
    let length = width::size(*words.get(place)?);
    if length > MOST_NAME {
        return None;
    }
    let end = place + 1 + length.div_ceil(8);
    let whole = words.get(place..end)?;
    if unseal(whole, *words.get(end)?) != Some(place as u64) {
        return None;
    }
    let mut text: Vec<u8> = whole[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
    text.truncate(length);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Record {
        Record {
            ticks: 1,
            kind: EventKind::Submitted,
            opcode: 2,
            sqe_flags: 3,
            detail: 4,
            extra: u32::MAX,
            process: (1 << 22) - 1,
            turn: (1 << 11) - 1,
            thread: 5,
            ring: ring_of(u32::MAX),
            request: 6,
            name: (1 << 21) - 1,
            user_data: u64::MAX,
            a: u64::MAX - 1,
            b: [8, u32::MAX],
        }
    }

    fn sealed(record: &Record, number: u64) -> [u64; RECORD] {
        let words = record.words();
        let mut all = [0; RECORD];
        all[..RECORD - 1].copy_from_slice(&words);
        all[RECORD - 1] = seal(&words, number);
        all
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for kind in KINDS {
            let record = Record { kind, ..some() };
            assert_eq!(Record::read(&sealed(&record, 99)), Some((99, record)));
        }
    }

    #[test]
    fn a_record_with_a_word_of_another_is_not_read() {
        assert_eq!(Record::read(&[0; RECORD]), None);
        let (older, newer) = (sealed(&some(), 3), sealed(&Record { ticks: 9, request: 8, a: 1, ..some() }, 3 + 1024));
        for kept in 1..1u32 << RECORD {
            let mixed: [u64; RECORD] =
                core::array::from_fn(|index| if kept & 1 << index != 0 { older[index] } else { newer[index] });
            let is_whole = mixed == older || mixed == newer;
            assert_eq!(Record::read(&mixed).is_some(), is_whole, "{kept:b}");
        }
    }

    #[test]
    fn a_name_is_read_only_where_it_begins() {
        let mut words = name_words(b"/first", 0);
        let place = words.len();
        words.extend(name_words(b"", place as u64));
        let second = words.len();
        words.extend(name_words(&[b'x'; 5000], second as u64));
        assert_eq!(read_name(&words, 1).unwrap(), b"/first");
        assert_eq!(read_name(&words, place as u32 + 1).unwrap(), b"");
        assert_eq!(read_name(&words, second as u32 + 1).unwrap().len(), MOST_NAME);
        assert_eq!(name_length(5000), (words.len() - second) as u64);
        assert_eq!(read_name(&words, 2), None);
        assert_eq!(read_name(&words, 0), None);
        words.truncate(second + 5);
        assert_eq!(read_name(&words, second as u32 + 1), None);
    }

    #[test]
    fn a_header_is_read_as_it_was_written_and_knows_its_version() {
        let header = Header { names: 1, records: 2, start: [3, 1000], end: [1003, 2000], ..Header::default() };
        let mut bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Ok(header));
        assert_eq!(header.nanoseconds(503), 500);
        assert_eq!(header.nanoseconds(0), 0);
        bytes[8] = 9;
        assert_eq!(Header::decode(&bytes), Err(NotATrace::Version(9)));
        bytes[0] = 0;
        assert_eq!(Header::decode(&bytes), Err(NotATrace::Other));
    }
}
