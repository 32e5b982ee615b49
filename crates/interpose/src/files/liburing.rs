//! liburing's `struct io_uring`, as far as usring reads it. The offsets are equal in all versions
//! of liburing 2.

use crate::files::descriptors::{self, Found};
use alloc::sync::Arc;
use usring_sys::{UserAddress, user_memory, width};
use usring_uapi::{Sqe, io_uring as abi};

// Offsets in `struct io_uring`. Some fields hold the address of a word or of the SQEs, and others
// are plain words.
const SQ_TAIL: u64 = 8;
const SQ_MASK: u64 = 16;
const SQES: u64 = 56;
const SQE_HEAD: u64 = 64;
const SQE_TAIL: u64 = 68;
const CQ_TAIL: u64 = 112;
const FLAGS: u64 = 192;
const DESCRIPTOR: u64 = 196;

/// A `struct io_uring` of the program.
pub struct OfLiburing(pub UserAddress);

/// The SQEs that the program has filled in, and that the next submission publishes.
pub struct Unpublished {
    /// The ring, by its address in usring.
    pub ring: u64,
    /// Position of the first SQE in the SQ.
    pub first: u32,
    sqes: u64,
    mask: u32,
    head: u32,
    tail: u32,
}

impl OfLiburing {
    fn word(&self, offset: u64) -> Option<u32> {
        user_memory::read(self.0.offset(offset)).ok()
    }

    fn address(&self, offset: u64) -> Option<u64> {
        user_memory::read(self.0.offset(offset)).ok()
    }

    /// Returns the word at the address that liburing's structure holds at `offset`. `None`: the
    /// memory cannot be read.
    fn word_at(&self, offset: u64) -> Option<u32> {
        user_memory::read(UserAddress(self.address(offset)?)).ok()
    }

    /// Returns the address of the CQ tail in the program's mapping. Returns 0 if the structure is
    /// not that of a ring of usring's.
    pub fn known_tail(&self) -> u64 {
        self.ring().map_or(0, |(_, tail)| tail)
    }

    /// Returns two addresses: that of usring's `Ring` object, and that of the CQ tail in the
    /// program's mapping. `None`: the structure is not that of a ring of usring's.
    fn ring(&self) -> Option<(u64, u64)> {
        let tail = self.address(CQ_TAIL)?;
        let number = self.word(DESCRIPTOR)?.cast_signed();
        match descriptors::with(number, |file| (Arc::as_ptr(&file.ring) as u64, file.cq_tail())) {
            Found::Ring((ring, known)) if known == tail => Some((ring, tail)),
            _ => None,
        }
    }

    /// Returns the SQEs that an SQ thread will take after the next submission. `None`: the ring has
    /// no SQ thread, has wide SQEs, or is none of usring's.
    pub fn unpublished(&self) -> Option<Unpublished> {
        let flags = self.word(FLAGS)?;
        if flags & abi::IORING_SETUP_SQPOLL == 0 || flags & abi::IORING_SETUP_SQE128 != 0 {
            return None;
        }
        let (ring, _) = self.ring()?;
        Some(Unpublished {
            ring,
            first: self.word_at(SQ_TAIL)?,
            sqes: self.address(SQES)?,
            mask: self.word_at(SQ_MASK)?,
            head: self.word(SQE_HEAD)?,
            tail: self.word(SQE_TAIL)?,
        })
    }
}

impl Unpublished {
    /// Returns the SQEs, in the order of their positions.
    pub fn sqes(&self) -> impl Iterator<Item = Sqe> + '_ {
        let count = self.tail.wrapping_sub(self.head).min(self.mask.wrapping_add(1));
        (0..count).map_while(|index| {
            let slot = self.head.wrapping_add(index) & self.mask;
            let address = UserAddress(self.sqes).offset(u64::from(slot) * size_of::<Sqe>() as u64);
            let [first, fd_and_more, ..] = user_memory::read::<[u32; 16]>(address).ok()?;
            let words = user_memory::read::<[u64; 8]>(address).ok()?;
            Some(Sqe {
                opcode: width::byte(u64::from(first & 0xff)),
                fd: fd_and_more.cast_signed(),
                off: words[1],
                addr: words[2],
                len: width::low(words[3]),
                user_data: words[4],
                ..Sqe::default()
            })
        })
    }
}
