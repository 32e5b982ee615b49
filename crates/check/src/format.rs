//! The file of findings: a sequence of records, which processes append and the launcher reads.

use crate::stack::Registers;
use alloc::boxed::Box;
use alloc::vec::Vec;
use usring_sys::width;

/// A kind of misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum Kind {
    /// A write's memory changed between its submission and its completion.
    Changed = 1,
    /// Memory of a request in flight was freed.
    Freed,
    /// Memory of a request in flight was unmapped or discarded.
    Unmapped,
    /// Memory of a request in flight is in a stack frame that has ended.
    DeadFrame,
    /// The request's file was closed while the request was in flight. The request then still used
    /// the file, or failed because the file was closed.
    ClosedFile,
    /// The program never consumed a CQE in the CQ. Reported only for a request that changes
    /// something outside the process's memory.
    Unreaped,
    /// The program never fetched a CQE from the backlog (the CQEs that found no room in the CQ).
    /// Reported only for a request that changes something outside the process's memory.
    Overflowed,
    /// A request was in flight when its ring or process ended. Reported only for a request that
    /// changes something outside the process's memory.
    Leaked,
    /// A short transfer cancelled the later requests of its chain, and the program did not submit
    /// these requests again.
    BrokenLink,
    /// Perhaps a [`Kind::DeadFrame`]. The launcher compares the two call stacks of the finding, and
    /// drops the finding unless the memory's stack frame has certainly ended.
    PerhapsDeadFrame,
    /// A request was submitted with memory that the program must not use. AddressSanitizer says
    /// that the memory was freed, or lies outside of any object.
    BadMemory,
    /// A request was submitted with the user_data of a request in flight. Found only if the user
    /// promises that all user_data of requests in flight differ.
    SameUserData,
    /// The program changed an SQE after the submission of the SQE, and before the SQ thread took
    /// it.
    Overwritten,
    /// The program used memory into which a request in flight reads, and AddressSanitizer has
    /// reported the access.
    Touched,
}

impl Kind {
    pub const ALL: [Kind; 14] = [
        Kind::Changed,
        Kind::Freed,
        Kind::Unmapped,
        Kind::DeadFrame,
        Kind::ClosedFile,
        Kind::Unreaped,
        Kind::Overflowed,
        Kind::Leaked,
        Kind::BrokenLink,
        Kind::PerhapsDeadFrame,
        Kind::BadMemory,
        Kind::SameUserData,
        Kind::Overwritten,
        Kind::Touched,
    ];

    fn of(number: u64) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u64 == number)
    }
}

/// A copy of a stack in a record. `bytes` begin at the address in `registers.stack`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiedStack {
    pub registers: Registers,
    pub bytes: Vec<u8>,
}

/// A byte of a request's memory that the program must not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadByte {
    /// Distance from the start of the memory.
    pub offset: u64,
    /// The byte of AddressSanitizer's shadow memory that describes the bad byte. This field is
    /// never 0, because 0 means that the program may use the memory.
    pub shadow: u8,
}

impl BadByte {
    /// Value of `shadow` for memory that free(3) has freed.
    pub const FREED: u8 = 0xfd;

    fn word(self) -> u64 {
        self.offset << 8 | u64::from(self.shadow)
    }

    fn of(word: u64) -> Option<BadByte> {
        let shadow = width::byte(word & 0xff);
        (shadow != 0).then_some(BadByte { offset: word >> 8, shadow })
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: Kind,
    pub process: u32,
    pub ring: u32,
    pub user_data: u64,
    pub opcode: u8,
    /// Descriptor number of the request's file, or −1.
    pub descriptor: i32,
    /// The request's result, if it has one; else 0.
    pub result: i32,
    /// Address and length of the request's memory that the finding concerns; 0 if it concerns no
    /// memory.
    pub address: u64,
    pub length: u64,
    /// Time since the submission, in nanoseconds.
    pub age_ns: u64,
    /// Recognises the same misuse in further records ([`Record::Again`]).
    pub key: u64,
    pub submission: CopiedStack,
    pub misdeed: CopiedStack,
    /// The byte for which a [`Kind::BadMemory`] was found.
    pub bad: Option<BadByte>,
    /// For a [`Kind::BadMemory`]: the stack that AddressSanitizer recorded when the memory was
    /// freed, or if it was not freed, when it was allocated. Eight bytes for each return address,
    /// the innermost first.
    pub recorded: Vec<u8>,
    /// The lines of /proc/PID/maps for mappings that hold code.
    pub maps: Vec<u8>,
    /// Path of the program.
    pub program: Vec<u8>,
}

/// One record of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Finding(Box<Finding>),
    /// How often `process` has made the finding `key` so far.
    Again {
        process: u32,
        key: u64,
        count: u64,
    },
}

const MAGIC: u64 = u64::from_le_bytes(*b"uschk001");
const WORD: usize = size_of::<u64>();
/// Words of a record's head.
const HEAD: usize = 24;
/// Kind of [`Record::Again`].
const AGAIN: u64 = u64::MAX;

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        let (words, blobs): ([u64; HEAD - 2], [&[u8]; 5]) = match self {
            Record::Again { process, key, count } => {
                let mut words = [0; HEAD - 2];
                words[..4].copy_from_slice(&[AGAIN, u64::from(*process), *key, *count]);
                (words, [&[]; 5])
            }
            Record::Finding(finding) => (finding.words(), finding.blobs()),
        };
        let total = HEAD * WORD + blobs.iter().map(|blob| blob.len()).sum::<usize>();
        let mut bytes = Vec::with_capacity(total);
        for word in [MAGIC, total as u64].into_iter().chain(words) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        blobs.into_iter().for_each(|blob| bytes.extend_from_slice(blob));
        bytes
    }

    /// Takes the first record off `bytes`. `None`: there is no further whole record.
    pub fn decode(bytes: &mut &[u8]) -> Option<Record> {
        let word = |index: usize| {
            let bytes = bytes.get(index * WORD..(index + 1) * WORD)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let total = usize::try_from(word(1)?).ok()?;
        if word(0)? != MAGIC || total < HEAD * WORD || total > bytes.len() {
            return None;
        }
        let mut words = [0; HEAD - 2];
        for (index, value) in words.iter_mut().enumerate() {
            *value = word(index + 2)?;
        }
        let blobs = &bytes[HEAD * WORD..total];
        *bytes = &bytes[total..];
        if words[0] == AGAIN {
            return Some(Record::Again { process: width::low(words[1]), key: words[2], count: words[3] });
        }
        Finding::of(&words, blobs).map(|finding| Record::Finding(Box::new(finding)))
    }
}

impl Finding {
    fn words(&self) -> [u64; HEAD - 2] {
        let Finding { submission, misdeed, .. } = self;
        let narrow = u64::from(self.descriptor.cast_unsigned()) << 32 | u64::from(self.result.cast_unsigned());
        [
            self.kind as u64,
            u64::from(self.process),
            self.key,
            u64::from(self.ring),
            self.user_data,
            u64::from(self.opcode),
            narrow,
            self.address,
            self.length,
            self.age_ns,
            submission.registers.instruction,
            submission.registers.stack,
            submission.registers.frame,
            submission.bytes.len() as u64,
            misdeed.registers.instruction,
            misdeed.registers.stack,
            misdeed.registers.frame,
            misdeed.bytes.len() as u64,
            self.maps.len() as u64,
            self.program.len() as u64,
            self.bad.map_or(0, BadByte::word),
            self.recorded.len() as u64,
        ]
    }

    fn blobs(&self) -> [&[u8]; 5] {
        [&self.submission.bytes, &self.misdeed.bytes, &self.maps, &self.program, &self.recorded]
    }

    fn of(words: &[u64; HEAD - 2], mut blobs: &[u8]) -> Option<Finding> {
        let mut blob = |length: u64| {
            let (first, rest) = blobs.split_at_checked(usize::try_from(length).ok()?)?;
            blobs = rest;
            Some(first.to_vec())
        };
        let registers = |at: usize| Registers { instruction: words[at], stack: words[at + 1], frame: words[at + 2] };
        Some(Finding {
            kind: Kind::of(words[0])?,
            process: width::low(words[1]),
            key: words[2],
            ring: width::low(words[3]),
            user_data: words[4],
            opcode: width::byte(words[5]),
            descriptor: (words[6] >> 32) as i32,
            result: width::int(words[6]),
            address: words[7],
            length: words[8],
            age_ns: words[9],
            submission: CopiedStack { registers: registers(10), bytes: blob(words[13])? },
            misdeed: CopiedStack { registers: registers(14), bytes: blob(words[17])? },
            maps: blob(words[18])?,
            program: blob(words[19])?,
            bad: BadByte::of(words[20]),
            recorded: blob(words[21])?,
        })
    }
}
