//! The environment: reads the launcher's variables from it, and keeps the library in it without the
//! program seeing it.
//!
//! The constructor takes usring's own variables, and its part of LD_PRELOAD, out of the
//! environment. So a program that prints, compares or empties its environment finds it as it would
//! be without usring. Each exec puts them in again ([`crate::program::exec`]), whatever environment
//! the program passes.

use crate::runtime::message;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};
use usring_engine::statistics::{self, Statistics};
use usring_sys::descriptor::{self, OwnedDescriptor};
use usring_sys::{SystemCall, eventfd};
use usring_uapi::general as linux;

pub const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libusring.so";
const NO_PATCH: &[u8] = b"USRING_NO_PATCH=";
const POLLING_ENTER: &[u8] = b"USRING_POLLING_ENTER=";
const AIO_POLL: &[u8] = b"USRING_AIO_POLL=";
const SPIN: &[u8] = b"USRING_SPIN=";
const PROBE: &[u8] = b"USRING_PROBE_FD=";
/// Padding: makes the number of usring's variables even.
const PAD: &[u8] = b"USRING_PAD=";
pub const PADDING: &[u8] = b"USRING_PAD=1\0";
const DEVICES: &[u8] = b"USRING_DEVICES=";
const STATISTICS: &[u8] = b"USRING_STATS=";
const SWAP: &[u8] = b"USRING_SWAP=";
const SWAP_SOCKET: &[u8] = b"USRING_SWAP_SOCKET=";
/// A library that is in LD_PRELOAD for usring's sake: a sanitizer's runtime, which has to be loaded
/// before this library.
pub const RUNTIME: &[u8] = b"USRING_RUNTIME=";

/// The launcher's variables, kept for this process and its children. They are copies: programs
/// overwrite the originals to change their title.
#[derive(Default)]
pub struct Kept {
    /// The library's path as it was in LD_PRELOAD, and a NUL; empty if it was not there.
    pub library: Vec<u8>,
    /// Whole variables with their NUL, for the next program.
    pub variables: Vec<Box<[u8]>>,
    pub no_patch: bool,
    probe: Option<i32>,
}

impl Kept {
    /// Returns the path without its NUL.
    pub fn path(&self) -> &[u8] {
        self.library.strip_suffix(b"\0").unwrap_or(&[])
    }
}

static KEPT: AtomicPtr<Kept> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the variables that were read at the start; `None` before that.
pub fn kept() -> Option<&'static Kept> {
    // SAFETY: `read` stores a leaked box, once, which is never changed.
    unsafe { KEPT.load(Ordering::Acquire).as_ref() }
}

/// Tag of an ignored entry of the auxiliary vector (AT_IGNORE).
const IGNORED: usize = 1;

/// Takes usring's variables out of the environment, an array that ends with null.
///
/// The auxiliary vector lies behind it, and Go's runtime finds that vector by reading the
/// environment to its end. So the gap that the variables leave is filled with ignored entries of
/// that vector. Entries are pairs, so usring's variables come in an even number ([`PAD`]).
///
/// # Safety
/// `variables` must be the process's environment as the loader passes it to constructors. No other
/// thread may exist.
pub unsafe fn read(variables: *mut *mut u8) {
    let mut kept = Box::<Kept>::default();
    // SAFETY: the caller guarantees the array.
    let runtime = unsafe { runtime(variables) };
    let (mut from, mut to) = (variables, variables);
    let mut last = core::ptr::null_mut();
    // SAFETY: only this function uses the array now. Its strings end with NUL and are writable, as
    // the kernel laid them out.
    unsafe {
        while !variables.is_null() && !(*from).is_null() {
            if keeps(&mut kept, *from, &runtime) {
                *to = *from;
                to = to.add(1);
            } else {
                last = *from;
            }
            from = from.add(1);
        }
        // With an odd number, one variable stays visible.
        if !from.offset_from(to).unsigned_abs().is_multiple_of(2) {
            *to = last;
            to = to.add(1);
        }
        let gap = from.offset_from(to).unsigned_abs();
        if gap > 0 {
            *to = core::ptr::null_mut();
            for place in 1..=gap {
                *to.add(place) = core::ptr::without_provenance_mut(IGNORED);
            }
        }
    }
    KEPT.store(Box::into_raw(kept), Ordering::Release);
}

/// Returns the library that is preloaded for usring's sake; empty if there is none. It is a copy:
/// LD_PRELOAD may lie before or behind it, and is written to.
///
/// # Safety
/// `variables` must be the process's environment, an array that ends with null.
unsafe fn runtime(variables: *mut *mut u8) -> Vec<u8> {
    let mut at = variables;
    // SAFETY: the array ends with null, and its strings end with NUL.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            if let Some(name) = CStr::from_ptr((*at).cast()).to_bytes().strip_prefix(RUNTIME) {
                return name.into();
            }
            at = at.add(1);
        }
    }
    Vec::new()
}

/// Whether the program may see this variable; records it if it belongs to usring.
///
/// # Safety
/// `variable` must be a writable string that ends with NUL.
unsafe fn keeps(kept: &mut Kept, variable: *mut u8, runtime: &[u8]) -> bool {
    // SAFETY: the caller guarantees the string.
    let text = unsafe { CStr::from_ptr(variable.cast()) };
    let whole = text.to_bytes_with_nul();
    let value = |name: &[u8]| text.to_bytes().strip_prefix(name);
    if let Some(number) = value(PROBE) {
        kept.probe = number_of(number);
        return false;
    }
    if let Some(value) = value(NO_PATCH) {
        kept.no_patch = value != b"" && value != b"0";
        kept.variables.push(whole.into());
        return false;
    }
    if let Some(value) = value(POLLING_ENTER) {
        if value == b"1" {
            usring_engine::have_enter_poll();
        }
        kept.variables.push(whole.into());
        return false;
    }
    if let Some(value) = value(AIO_POLL) {
        if value == b"1" {
            usring_aio::have_events_looked_for();
        }
        kept.variables.push(whole.into());
        return false;
    }
    if let Some(value) = value(SPIN) {
        let limit = core::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        limit.into_iter().for_each(usring_engine::set_spin_limit);
        kept.variables.push(whole.into());
        return false;
    }
    if value(PAD).is_some() || value(RUNTIME).is_some() {
        return false;
    }
    if [STATISTICS, DEVICES, SWAP, SWAP_SOCKET].iter().any(|name| value(name).is_some()) {
        kept.variables.push(whole.into());
        return false;
    }
    let Some(list) = value(PRELOAD) else { return true };
    let Some(library) = list.split(separates).find(|part| is_library(part)) else { return true };
    kept.library = [library, b"\0"].concat();
    let ours = |part: &[u8]| part.is_empty() || part == runtime || is_library(part);
    let rest: Vec<&[u8]> = list.split(separates).filter(|part| !ours(part)).collect();
    let rest = rest.join(&b':');
    // The program's own list was empty, and stays: an exec appends to it behind a separator.
    let is_given = list.split(separates).any(<[u8]>::is_empty);
    if rest.is_empty() && !is_given {
        return false;
    }
    // SAFETY: the rest is shorter than the original.
    unsafe {
        let start = variable.add(PRELOAD.len());
        start.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        start.add(rest.len()).write(0);
    }
    true
}

/// Returns a variable's name with its `=`.
pub fn name_of(variable: &[u8]) -> &[u8] {
    let end = variable.iter().position(|byte| *byte == b'=').map_or(variable.len(), |at| at + 1);
    &variable[..end]
}

fn separates(byte: &u8) -> bool {
    matches!(byte, b' ' | b':')
}

fn is_library(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next() == Some(LIBRARY)
}

fn number_of(digits: &[u8]) -> Option<i32> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether call sites must not be rewritten.
pub fn forbids_patching() -> bool {
    kept().is_some_and(|kept| kept.no_patch)
}

/// Signals to the launcher that calls reach usring.
pub fn report_probe() {
    if let Some(probe) = kept().and_then(|kept| kept.probe) {
        eventfd::signal(probe);
        let _ = descriptor::close(probe);
    }
}

static STATISTICS_FILE: AtomicPtr<Statistics> = AtomicPtr::new(core::ptr::null_mut());

/// Counts the rings of this process, if the launcher requested it. A forked child calls this again
/// with its own process id.
pub fn count_for(process: u32) {
    // SAFETY: the stored pointer is the mapping, which is never unmapped.
    let known = unsafe { STATISTICS_FILE.load(Ordering::Acquire).as_ref() };
    if let Some(statistics) = known {
        usring_engine::set_statistics(statistics, process);
    } else if let Some(statistics) = open_statistics() {
        statistics.header.processes.fetch_add(1, Ordering::Relaxed);
        STATISTICS_FILE.store(&raw const *statistics as *mut Statistics, Ordering::Release);
        usring_engine::set_statistics(statistics, process);
    }
}

/// Returns the path of the run's socket, if the run has devices.
pub fn devices() -> Option<&'static [u8]> {
    value_of(DEVICES)
}

/// Returns the path of the run's socket, if a back end has its swapped memory.
pub fn swap_socket() -> Option<&'static [u8]> {
    value_of(SWAP_SOCKET)
}

/// Returns the launcher's text about swapped memory, if there is any.
pub fn swap() -> Option<&'static [u8]> {
    value_of(SWAP)
}

fn value_of(name: &[u8]) -> Option<&'static [u8]> {
    let variable = kept()?.variables.iter().find(|variable| variable.starts_with(name))?;
    variable.strip_suffix(b"\0").map(|variable| &variable[name.len()..])
}

fn open_statistics() -> Option<&'static Statistics> {
    let variable = kept()?.variables.iter().find(|variable| variable.starts_with(STATISTICS))?;
    let path = &variable[STATISTICS.len()..];
    let flags = u64::from(linux::O_RDWR | linux::O_CLOEXEC);
    let opened = SystemCall::new(linux::__NR_openat, [linux::AT_FDCWD as u64, path.as_ptr() as u64, flags, 0, 0]).run();
    // A process without the launcher's rights is not counted.
    let file = OwnedDescriptor::from_raw(opened.ok()? as i32);
    let protection = u64::from(linux::PROT_READ | linux::PROT_WRITE);
    let flags = u64::from(linux::MAP_SHARED | linux::MAP_DENYWRITE);
    let arguments = [0, statistics::SIZE as u64, protection, flags, file.number() as u64, 0];
    let address = SystemCall::with_six(linux::__NR_mmap, arguments).run().ok()?;
    // SAFETY: 1. The mapping is as long as the structure, page-aligned, and never unmapped. 2. The
    // structure consists of atomics, for which any bytes are valid.
    let statistics = unsafe { &*(address as *const Statistics) };
    if !statistics.is_valid() {
        message::say(format_args!("the statistics file is not of this build; nothing is counted"));
        return None;
    }
    Some(statistics)
}
