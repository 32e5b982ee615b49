//! Determines the calling thread's id without a system call, for code that needs it very often.
//!
//! A libc keeps each thread's id in a word behind the thread pointer, at an offset that it does not
//! promise. [`find_word`] searches for that word in the first thread. usring's own threads store
//! their ids at this offset, too ([`crate::thread`]). A value of the word is trusted after
//! gettid(2) has returned that value to a thread of this process. If a thread's word holds another
//! value (the thread has no libc), the thread makes the system call each time.
//!
//! Some threads share their creator's thread pointer: those made by clone(2) without CLONE_SETTLS,
//! or by vfork(2). Such a thread gets its creator's id, if the creator has called [`current`]
//! before.

use crate::per_process::PerProcess;
use crate::thread::{self, ID_OFFSET};
use crate::{UserAddress, signals, user_memory, width};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering};

/// Number of entries of [`KNOWN`]. Each entry holds one thread id. If two ids belong to one entry,
/// the later one replaces the earlier one.
const ENTRIES: usize = 1024;
/// Ids of threads whose word behind the thread pointer is known to hold their id. A forked child
/// begins with an empty table, because its thread's word may still hold the id of its parent's
/// thread.
static KNOWN: PerProcess<Box<[AtomicU32]>> = PerProcess::new();
/// The offsets of glibc and of musl.
const USUAL: [usize; 2] = [0x2d0, 0x30];
/// Number of bytes behind the thread pointer that are searched for the thread's id, if it is at no
/// usual offset.
const SEARCHED: usize = 0x400;

/// Searches for the word in which libc keeps the thread's id. The process's first thread calls this
/// function at its start.
pub fn find_word() {
    let own = signals::thread_id();
    let word = |offset: &usize| user_memory::read::<u32>(address(*offset)) == Ok(own);
    // The search tests only the lower half of each 8-byte word. The upper half of a pointer could
    // by chance equal a small id.
    let found = USUAL.into_iter().chain((8..SEARCHED).step_by(8)).find(word);
    ID_OFFSET.store(found.unwrap_or(0), Ordering::Relaxed);
}

/// Returns the calling thread's id.
#[inline]
pub fn current() -> u32 {
    let offset = ID_OFFSET.load(Ordering::Relaxed);
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

fn address(offset: usize) -> UserAddress {
    UserAddress(thread::current().0 as u64).offset(offset as u64)
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
        // A later thread often gets the memory of an earlier one, whose word may still hold the old
        // id.
        for _ in 0..20 {
            std::thread::spawn(check).join().unwrap();
        }
    }
}
