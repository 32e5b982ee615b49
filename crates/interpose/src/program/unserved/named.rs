//! Remembers which unserved programs a message has named, so that a script that starts a static
//! tool a thousand times causes one message.
//!
//! The memory is a page that a process shares with the children that it forks. So a shell and its
//! children together name each program once. If one of them executes a program that usring serves,
//! that program begins with an empty page.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use usring_sys::descriptor::FileIdentity;
use usring_sys::mapping;

/// The page that this process shares with its forked children: one word per unserved program that a
/// message has named. The word identifies the program's file ([`mark`]). Unused words are 0.
static NAMED: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
const ENTRIES: usize = mapping::PAGE / size_of::<AtomicU64>();

/// Maps the page. If it cannot be mapped, every exec of an unserved program causes a message.
pub fn prepare() {
    if let Ok(page) = mapping::shared_page_of_words() {
        NAMED.store(page.as_ptr().cast_mut(), Ordering::Relaxed);
    }
}

/// Records that a message names the program in this file. Returns `false` if an earlier message has
/// named the program. If the page is full, the program cannot be recorded, and each call returns
/// `true`.
pub fn is_new(file: &FileIdentity) -> bool {
    let page = NAMED.load(Ordering::Relaxed);
    if page.is_null() {
        return true;
    }
    // SAFETY: `prepare` stores a page of this many words, which is never unmapped.
    let entries = unsafe { core::slice::from_raw_parts(page, ENTRIES) };
    is_new_in(entries, mark(file))
}

fn is_new_in(entries: &[AtomicU64], mark: u64) -> bool {
    for entry in entries {
        match entry.compare_exchange(0, mark, Ordering::Relaxed, Ordering::Relaxed) {
            Err(other) if other == mark => return false,
            Err(_) => {}
            Ok(_) => return true,
        }
    }
    true
}

/// Returns the file's mark, a number that is never 0. Two files hardly ever have equal marks.
fn mark(file: &FileIdentity) -> u64 {
    file.inode.wrapping_add(file.device.rotate_left(40)).max(1)
}
