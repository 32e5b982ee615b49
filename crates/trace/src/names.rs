//! The names of files. A record of a request names the request's file by a number.
//!
//! A descriptor number may soon refer to another file. So the process looks up the name of a
//! descriptor's file again after about a millisecond. It forgets the name at once if a request or a
//! function of libc closes or replaces the descriptor.

use crate::format::MOST_NAME;
use crate::page::Page;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::ffi::CString;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::SystemCall;
use usring_sys::mutex::Mutex;
use usring_sys::width;
use usring_uapi::general as linux;

/// Number of entries of the table `of_descriptors`. Two descriptors that are equal modulo this
/// number share an entry, and replace each other's name.
const ENTRIES: usize = 1024;
/// Width, in bits, of the two low fields of an entry of the table `of_descriptors`. They hold the
/// number of a name, and a descriptor number plus 1. The other 24 bits hold the time at which the
/// name was looked up.
const FIELD_BITS: u32 = 20;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
/// log2 of the ticks in a unit of the look-up time: 2^20 ticks are a third of a millisecond at
/// 3 GHz.
const UNIT_SHIFT: u32 = 20;
/// Units after which a name is looked up again.
const MOST_UNITS: u64 = 3;
const TIME: u64 = (1 << (64 - 2 * FIELD_BITS)) - 1;
/// Maximum number of added names that the process remembers, so that it does not add them again. If
/// the process adds one more name, it first forgets all of them.
const MOST_KNOWN: usize = 1 << 14;

/// The names of one process: those of its descriptors' files, and all that it has added to the
/// trace.
pub struct Names {
    of_descriptors: Box<[AtomicU64]>,
    known: Mutex<BTreeMap<Vec<u8>, u32>>,
}

impl Names {
    pub fn new() -> Names {
        // The table of descriptors is made in the heap, because a signal handler's stack may be too
        // small for it.
        let of_descriptors = (0..ENTRIES).map(|_| AtomicU64::new(0)).collect();
        Names { of_descriptors, known: Mutex::new(BTreeMap::new()) }
    }

    /// Returns the number of the name of a descriptor's file; 0: there is no name.
    #[inline]
    pub fn of_descriptor(&self, page: &Page, number: i32, ticks: u64) -> u32 {
        let Some(entry) = self.entry(number) else { return 0 };
        let (word, now) = (entry.load(Ordering::Relaxed), ticks >> UNIT_SHIFT & TIME);
        let age = now.wrapping_sub(word >> (2 * FIELD_BITS)) & TIME;
        let is_it = word >> FIELD_BITS & FIELD == field(number);
        if is_it && age < MOST_UNITS { width::low(word & FIELD) } else { self.look_up(page, number, now, entry) }
    }

    #[cold]
    fn look_up(&self, page: &Page, number: i32, now: u64, entry: &AtomicU64) -> u32 {
        let target = link_target(&CString::new(format!("/proc/self/fd/{number}")).unwrap_or_default());
        if target.is_empty() && !link_target(PROGRAM).is_empty() {
            // The descriptor number refers to no file now, but may refer to one soon. So the
            // process does not remember that there is no name.
            return 0;
        }
        // Without /proc, the look-up of the file's name fails. The process remembers the failure
        // for as long as it remembers a name.
        let name = if target.is_empty() { 0 } else { self.add(page, &target) };
        entry.store(u64::from(name) | field(number) << FIELD_BITS | now << (2 * FIELD_BITS), Ordering::Relaxed);
        name
    }

    /// Returns the number of a name. Adds the name if it is new. Returns 0 if there is no room.
    pub fn add(&self, page: &Page, text: &[u8]) -> u32 {
        let mut known = self.known.lock();
        if let Some(name) = known.get(text) {
            return *name;
        }
        let name = page.add_name(text);
        // A name for which there is no room is remembered as 0, so that it is counted only once.
        // But the process does not forget other names to remember such a name.
        if known.len() >= MOST_KNOWN && name != 0 {
            known.clear();
        }
        if known.len() < MOST_KNOWN {
            known.insert(text.to_owned(), name);
        }
        name
    }

    /// Forgets the name of a descriptor's file.
    pub fn forget(&self, number: i32) {
        self.entry(number).into_iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
    }

    fn entry(&self, number: i32) -> Option<&AtomicU64> {
        let index = width::size(u64::try_from(number).ok()?);
        Some(&self.of_descriptors[index % ENTRIES])
    }
}

/// The link in /proc to this process's program.
pub const PROGRAM: &CStr = c"/proc/self/exe";

/// Returns the target of a symbolic link. It is empty if there is no such link.
pub fn link_target(link: &CStr) -> Vec<u8> {
    // The buffer is in the heap, because the calling thread may run a signal handler with a small
    // stack.
    let mut target = vec![0u8; MOST_NAME];
    let arguments = [link.as_ptr() as u64, target.as_mut_ptr() as u64, target.len() as u64, 0, 0];
    let length = SystemCall::new(linux::__NR_readlink, arguments).run_unhooked().unwrap_or(0);
    target.truncate(width::size(length));
    target
}

fn field(number: i32) -> u64 {
    width::word(number).wrapping_add(1) & FIELD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Settings;
    use usring_sys::mapping;

    #[test]
    fn a_name_without_room_is_counted_once_and_the_first_names_stay() {
        let settings = Settings { size: 64 << 10, keeps_last: true, ring: 0 };
        let memory = mapping::sealed_memory_file(c"usring-test", settings.length()).unwrap();
        let page = Page::create(&memory, &settings).unwrap();
        let names = Names::new();
        let name = |number: usize| format!("{number:0>4000}").into_bytes();
        let numbers: Vec<u32> = (0..20).map(|number| names.add(&page, &name(number))).collect();
        assert_eq!(numbers.iter().filter(|number| **number != 0).count(), 16, "{numbers:?}");
        assert_eq!(page.header().lost_names, 4);
        let again: Vec<u32> = (0..20).map(|number| names.add(&page, &name(number))).collect();
        assert_eq!(again, numbers);
        assert_eq!(page.header().lost_names, 4);
    }
}
