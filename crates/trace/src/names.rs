//! The names of files. A record of a request names the request's file by a number.
//!
//! A descriptor number may stand for another file soon. So the name of a descriptor's file is
//! looked up again after about a millisecond. It is forgotten at once if a request or a function of
//! libc closes or replaces the descriptor.

use crate::format::MOST_NAME;
use crate::page::Page;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::sync::atomic::{AtomicU64, Ordering};
use usring_sys::SystemCall;
use usring_sys::mutex::Mutex;
use usring_sys::width;
use usring_uapi::general as linux;

/// Number of descriptors whose names are known. Descriptors with the same remainder replace each
/// other.
const ENTRIES: usize = 1024;
/// An entry: a name (20 bits), a descriptor number plus 1 (20 bits), and when it was looked up.
const FIELD_BITS: u32 = 20;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
/// Ticks in one unit of that time: a third of a millisecond at 3 GHz.
const UNIT_SHIFT: u32 = 20;
/// Units after which a name is looked up again.
const MOST_UNITS: u64 = 3;
const TIME: u64 = (1 << (64 - 2 * FIELD_BITS)) - 1;
/// Number of names after which the process forgets which names it has added.
const MOST_KNOWN: usize = 1 << 14;

/// The names that one process has added.
pub struct Names {
    of_descriptors: Box<[AtomicU64]>,
    known: Mutex<BTreeMap<Vec<u8>, u32>>,
}

impl Names {
    pub fn new() -> Names {
        // The table is made in the heap: a signal handler's stack may be too small for it.
        let of_descriptors = (0..ENTRIES).map(|_| AtomicU64::new(0)).collect();
        Names { of_descriptors, known: Mutex::new(BTreeMap::new()) }
    }

    /// Returns the name of a descriptor's file; 0: it has none.
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
        // The buffer is in the heap: the request may come from a signal handler on a small stack.
        let mut path = vec![0u8; MOST_NAME];
        let link = format!("/proc/self/fd/{number}\0");
        let arguments = [link.as_ptr() as u64, path.as_mut_ptr() as u64, path.len() as u64, 0, 0];
        let length = SystemCall::new(linux::__NR_readlink, arguments).run_unhooked().unwrap_or(0);
        if length == 0 {
            // The number stands for no file now, but may soon.
            return 0;
        }
        let name = self.add(page, &path[..width::size(length)]);
        entry.store(u64::from(name) | field(number) << FIELD_BITS | now << (2 * FIELD_BITS), Ordering::Relaxed);
        name
    }

    /// Returns the number of a name. Adds the name if it is new.
    pub fn add(&self, page: &Page, text: &[u8]) -> u32 {
        let mut known = self.known.lock();
        if let Some(name) = known.get(text) {
            return *name;
        }
        let name = page.add_name(text);
        if name != 0 {
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
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

fn field(number: i32) -> u64 {
    width::word(number).wrapping_add(1) & FIELD
}
