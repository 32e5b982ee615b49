//! Finds the calling thread's id without a system call, for code that needs it very often.
//!
//! A libc keeps each thread's id in a word behind the thread pointer, at an offset that it does not
//! promise. [`find_word`] searches for that word in the first thread. In each further thread, the
//! word is trusted after one gettid(2) has returned the same id. A thread whose word is wrong (a
//! thread of usring's own, a thread without libc) makes the system call each time.

use crate::per_process::PerProcess;
use crate::{UserAddress, signals, thread, user_memory, width};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Offset of the word from the thread pointer; 0: not found.
static OFFSET: AtomicU64 = AtomicU64::new(0);
/// Number of ids that are known to be right. Others use the same entry, and replace each other.
const ENTRIES: usize = 1024;
/// Ids of threads whose word is right. A forked child begins with an empty table, because its
/// thread's word may be its parent's.
static KNOWN: PerProcess<Box<[AtomicU32]>> = PerProcess::new();
/// Bytes behind the thread pointer that are searched. glibc's word is at 0x2d0, musl's at 0x30.
const SEARCHED: u64 = 0x400;

/// Searches for the word. Called by the first thread of the process, at its start.
pub fn find_word() {
    let own = signals::thread_id();
    let word = |offset: &u64| user_memory::read::<u32>(address(*offset)) == Ok(own);
    let found = (8..SEARCHED).step_by(4).find(word);
    OFFSET.store(found.unwrap_or(0), Ordering::Relaxed);
}

/// Returns the calling thread's id.
#[inline]
pub fn current() -> u32 {
    let offset = OFFSET.load(Ordering::Relaxed);
    if offset == 0 {
        return signals::thread_id();
    }
    let Ok(word) = user_memory::read::<u32>(address(offset)) else { return signals::thread_id() };
    let entry = &KNOWN.get_or_make(|| (0..ENTRIES).map(|_| AtomicU32::new(0)).collect())[entry_of(word)];
    if word != 0 && entry.load(Ordering::Relaxed) == word {
        return word;
    }
    verify(word, entry)
}

#[cold]
fn verify(word: u32, entry: &AtomicU32) -> u32 {
    let own = signals::thread_id();
    if own == word {
        entry.store(word, Ordering::Relaxed);
    }
    own
}

fn entry_of(id: u32) -> usize {
    width::size(u64::from(id)) % ENTRIES
}

fn address(offset: u64) -> UserAddress {
    UserAddress(thread::current().0 as u64).offset(offset)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_thread_gets_its_own_id() {
        crate::per_process::prepare().unwrap();
        find_word();
        let check = || {
            for _ in 0..3 {
                assert_eq!(current(), signals::thread_id());
            }
        };
        check();
        // A later thread often gets the memory of an earlier one.
        for _ in 0..20 {
            std::thread::spawn(check).join().unwrap();
        }
    }
}
