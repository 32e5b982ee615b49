//! The stacks that submitted the requests in flight, in memory that a run's processes share.
//! `usring ctl requests` reads them while the run goes on.
//!
//! The memory consists of slots of `SLOT` words:
//!
//! | word | content |
//! |---|---|
//! | `OWNER` | id of the process that has claimed the slot; 0: the slot is free |
//! | `SEAL` | checksum of the words after it; 0: they are not complete |
//! | `REQUEST` | number of the ring, and the lower half of the request's number in its ring |
//! | `REGISTERS` | the three fields of `Registers` |
//! | `LENGTH` | bytes of the stack |
//! | `BYTES` … | the stack |
//!
//! A process frees a slot when the request ends. A killed process leaves its slots occupied. If no
//! slot is free, the next process that needs a slot frees the slots of an ended process.
//!
//! All accesses are relaxed. A reader trusts a slot only if its checksum fits, so no order is
//! needed. The program can write to the memory, too, so usring relies on this memory for nothing
//! else.

use crate::format::CopiedStack;
use crate::stack::{MOST_BYTES, Registers};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use usring_sys::set_once::SetOnce;
use usring_sys::{signals, width};

const OWNER: usize = 0;
const SEAL: usize = 1;
const REQUEST: usize = 2;
const REGISTERS: usize = 3;
const LENGTH: usize = 6;
const BYTES: usize = 7;
/// Words of a slot.
const SLOT: usize = BYTES + MOST_BYTES / WORD;
const WORD: usize = size_of::<u64>();
/// Number of slots. The stacks of further requests are not shared.
const SLOTS: usize = 1024;
/// Maximum number of processes of which one search for a free slot checks whether they have ended.
const MOST_CHECKED: usize = 4;

/// Length of the memory in bytes: whole pages.
pub const MEMORY_BYTES: usize = (SLOTS * SLOT * WORD).next_multiple_of(4096);

static MEMORY: SetOnce<&'static [AtomicU64]> = SetOnce::new();
/// Index of the slot with which the next search for slots of ended processes begins.
static NEXT_CHECKED: AtomicUsize = AtomicUsize::new(0);

/// Begins to share the stacks of this process, whose id is `process`, in `memory`. Frees the slots
/// that this process claimed before an execve(2).
pub fn start(memory: &'static [AtomicU64], process: u32) {
    let slots = memory.chunks_exact(SLOT);
    slots.filter(|slot| load(slot, OWNER) == u64::from(process)).for_each(free);
    MEMORY.set(Box::leak(Box::new(memory)));
}

fn load(slot: &[AtomicU64], word: usize) -> u64 {
    slot[word].load(Ordering::Relaxed)
}

fn store(slot: &[AtomicU64], word: usize, value: u64) {
    slot[word].store(value, Ordering::Relaxed);
}

fn free(slot: &[AtomicU64]) {
    store(slot, SEAL, 0);
    store(slot, OWNER, 0);
}

/// Changes the owner of a slot from `old` to `new`. Returns whether the owner was `old`.
fn exchange_owner(slot: &[AtomicU64], old: u64, new: u64) -> bool {
    slot[OWNER].compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Claims a free slot for a process. Returns its index. `None`: all slots are in use.
fn claim(memory: &[AtomicU64], process: u32) -> Option<usize> {
    let is_claimed = |slot: &[AtomicU64]| load(slot, OWNER) == 0 && exchange_owner(slot, 0, process.into());
    memory.chunks_exact(SLOT).position(is_claimed)
}

/// Frees the slots of one process that has ended. Checks at most [`MOST_CHECKED`] processes.
/// Returns whether it has freed slots.
fn free_slots_of_ended(memory: &[AtomicU64], process: u32) -> bool {
    let mut checked = [u64::from(process); MOST_CHECKED + 1];
    let mut count = 1;
    let first = NEXT_CHECKED.load(Ordering::Relaxed);
    for (index, slot) in memory.chunks_exact(SLOT).enumerate().cycle().skip(first).take(SLOTS) {
        let owner = load(slot, OWNER);
        if checked.contains(&owner) {
            continue;
        }
        if count == checked.len() {
            NEXT_CHECKED.store(index, Ordering::Relaxed);
            return false;
        }
        if !signals::process_exists(width::low(owner)) {
            memory.chunks_exact(SLOT).for_each(|slot| {
                exchange_owner(slot, owner, 0);
            });
            return true;
        }
        checked[count] = owner;
        count += 1;
    }
    false
}

/// Adds a word to a checksum. Never returns 0, because a checksum of 0 marks an incomplete slot.
fn add(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) | 1
}

/// Shares the stack that has submitted a request. Returns the index of the slot with the stack.
/// `None`: the run shares no stacks, or all slots are in use. See [`free_slots_of_ended`] for the
/// slots of killed processes.
pub(crate) fn share(process: u32, ring: u32, number: u64, stack: &CopiedStack) -> Option<u16> {
    let memory = MEMORY.get()?;
    let claim_again = || free_slots_of_ended(memory, process).then(|| claim(memory, process)).flatten();
    let index = claim(memory, process).or_else(claim_again)?;
    let slot = &memory[index * SLOT..][..SLOT];
    store(slot, SEAL, 0);
    let Registers { instruction, stack: pointer, frame } = stack.registers;
    let bytes = &stack.bytes[..stack.bytes.len().min(MOST_BYTES)];
    let request = u64::from(ring) << 32 | u64::from(width::low(number));
    let head = [request, instruction, pointer, frame, bytes.len() as u64];
    let words = bytes.chunks(WORD).map(|bytes| {
        let mut word = [0; WORD];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    let mut sum = u64::from(process);
    for (word, value) in head.into_iter().chain(words).enumerate() {
        store(slot, REQUEST + word, value);
        sum = add(sum, value);
    }
    store(slot, SEAL, sum);
    Some(width::short(index as u64))
}

/// Frees a slot of the process `process`.
pub(crate) fn end(process: u32, index: u16) {
    let slot = MEMORY.get().and_then(|memory| memory.chunks_exact(SLOT).nth(index.into()));
    slot.into_iter().filter(|slot| load(slot, OWNER) == u64::from(process)).for_each(free);
}

/// A shared stack.
#[derive(Debug, PartialEq, Eq)]
pub struct Shared {
    pub process: u32,
    pub ring: u32,
    /// The lower half of the request's number in its ring.
    pub request: u32,
    pub stack: CopiedStack,
}

/// Reads the stacks from a copy of the memory.
pub fn read(memory: &[u8]) -> Vec<Shared> {
    let words: Vec<u64> = memory.as_chunks::<WORD>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words.chunks_exact(SLOT).filter_map(read_slot).collect()
}

fn read_slot(slot: &[u64]) -> Option<Shared> {
    let length = usize::try_from(slot[LENGTH]).ok().filter(|length| *length <= MOST_BYTES)?;
    let content = &slot[REQUEST..BYTES + length.div_ceil(WORD)];
    if slot[OWNER] == 0 || slot[SEAL] != content.iter().fold(slot[OWNER], |sum, word| add(sum, *word)) {
        return None;
    }
    let [instruction, stack, frame] = [0, 1, 2].map(|register| slot[REGISTERS + register]);
    let mut bytes: Vec<u8> = slot[BYTES..].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(length);
    Some(Shared {
        process: width::low(slot[OWNER]),
        ring: width::low(slot[REQUEST] >> 32),
        request: width::low(slot[REQUEST]),
        stack: CopiedStack { registers: Registers { instruction, stack, frame }, bytes },
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn bytes(memory: &[AtomicU64]) -> Vec<u8> {
        memory.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    #[test]
    fn a_shared_stack_is_read_until_its_request_ends() {
        let memory: &'static [AtomicU64] = (0..SLOTS * SLOT).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
        start(memory, 7);
        let registers = Registers { instruction: 1, stack: 2, frame: 3 };
        let stack = CopiedStack { registers, bytes: (0..=20).collect() };
        let first = share(7, 1, 5 << 32 | 9, &stack).unwrap();
        let second = share(7, 1, 10, &CopiedStack::default()).unwrap();
        assert_ne!(first, second);
        let shared = read(&bytes(memory));
        assert_eq!(shared[0], Shared { process: 7, ring: 1, request: 9, stack });
        assert_eq!(shared.len(), 2);
        // `read` leaves out a slot that a thread is just writing, or that the program has damaged.
        memory[BYTES].fetch_add(1, Ordering::Relaxed);
        assert_eq!(read(&bytes(memory)).len(), 1);
        end(7, second);
        assert_eq!(read(&bytes(memory)), []);
        // After execve(2), the process's next program begins without the stacks of this program.
        start(memory, 7);
        assert_eq!(share(7, 1, 11, &CopiedStack::default()), Some(first));
        // Ended processes that have not freed their slots occupy all slots. The slots of one ended
        // process are then freed.
        end(7, first);
        let [own, ended] = [std::process::id(), ended_process()];
        let kept = share(own, 1, 12, &CopiedStack::default());
        while share(ended, 1, 13, &CopiedStack::default()).is_some() {}
        assert_eq!(read(&bytes(memory)).len(), SLOTS);
        assert!(share(own, 1, 14, &CopiedStack::default()).is_some_and(|index| Some(index) != kept));
        let requests: Vec<_> = read(&bytes(memory)).iter().map(|shared| shared.request).collect();
        assert_eq!(requests, [12, 14]);
    }

    /// Returns the id of a process that has ended.
    fn ended_process() -> u32 {
        let mut process = std::process::Command::new("true").spawn().unwrap();
        process.wait().unwrap();
        process.id()
    }
}
