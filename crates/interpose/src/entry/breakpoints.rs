//! Entry points in a program that Valgrind runs. Valgrind makes the program's system calls, and
//! knows no seccomp(2), so there is no trap.
//!
//! libc's functions reach usring by their symbols. But liburing has `syscall` instructions of its
//! own. So before the program begins, each `syscall` in a file with calls of io_uring is replaced
//! by a breakpoint (one byte) and a `nop`. The breakpoint's SIGTRAP then serves as the trap.
//!
//! usring defines no symbols in place of libc's `epoll_ctl` and `close_range`, so their `syscall`s
//! are replaced, too. By these functions, the program adds a ring to an epoll set, and closes
//! rings.
//!
//! A file has calls of io_uring if its code has an instruction that loads one of their numbers. The
//! loader and libc have none. Files that the program loads later are not searched.

use crate::entry::code::{self, MOV_EAX, SYSCALL};
use crate::entry::maps;
use crate::runtime::libc;
use crate::runtime::{imports, text};
use alloc::vec::Vec;
use core::ops::Range;
use usring_sys::mapping::PAGE;
use usring_sys::process_maps::{Line, Maps};
use usring_sys::set_once::SetOnce;
use usring_sys::{SystemCall, UserAddress, user_memory, valgrind};
use usring_uapi::general as linux;

const BREAKPOINT: u8 = 0xcc;
const NOP: u8 = 0x90;

/// The addresses of the breakpoints, in ascending order.
static PLACES: SetOnce<Vec<usize>> = SetOnce::new();

/// Returns the address after the `syscall` that a breakpoint has replaced, if a breakpoint of
/// usring's is directly before `address`.
pub fn replaced(address: usize) -> Option<usize> {
    let place = address.checked_sub(1)?;
    PLACES.get()?.binary_search(&place).is_ok().then_some(place + SYSCALL.len())
}

/// Sets the breakpoints. Called while the process has one thread.
pub fn set() {
    let mut places = Vec::new();
    for code in files_of_program() {
        if contains_calls(&code) {
            places.extend(find(&code, &SYSCALL).filter(|place| is_syscall(*place)));
        }
    }
    places.extend([c"epoll_ctl", c"close_range"].into_iter().filter_map(imports::function).flat_map(calls_of));
    places.sort_unstable();
    places.retain(|place| write(*place));
    PLACES.set(alloc::boxed::Box::leak(alloc::boxed::Box::new(places)));
}

/// Returns the addresses of the `syscall` instructions at the beginning of a function of libc.
fn calls_of(function: usize) -> impl Iterator<Item = usize> {
    /// Bytes of the function that are searched: such a function makes its call at once.
    const REACH: usize = 32;
    code::calls_in(function..function + REACH)
}

/// Returns the address ranges of the code of the program and its libraries, except usring's.
fn files_of_program() -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let Some(maps) = Maps::open() else { return found };
    // A library's base and its code are mappings of one file. Valgrind's own files are not in the
    // loader's list.
    let areas = libc::entries().filter(|library| library.base() != text::base());
    let areas = areas.filter_map(|library| maps.area_of(library.dynamic_address()));
    let files: Vec<_> = areas.map(|area| (area.device, area.inode)).collect();
    let mut lines = maps.lines();
    while let Some(line) = lines.next().and_then(Line::parse) {
        let area = &line.area;
        let is_code = line.is_private_file() && area.protection == linux::PROT_READ | linux::PROT_EXEC;
        if is_code && files.contains(&(area.device, area.inode)) {
            found.push(area.range.clone());
        }
    }
    found
}

/// Returns whether code has an instruction that loads the number of one of io_uring's calls into
/// eax.
fn contains_calls(code: &Range<usize>) -> bool {
    let numbers = [linux::__NR_io_uring_setup, linux::__NR_io_uring_enter, linux::__NR_io_uring_register];
    numbers.iter().any(|number| {
        let mut load = [MOV_EAX, 0, 0, 0, 0];
        load[1..].copy_from_slice(&number.to_le_bytes());
        find(code, &load).next().is_some()
    })
}

/// Returns the addresses at which `code` has the bytes `wanted` (at most 8).
fn find<'a>(code: &Range<usize>, wanted: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let (mut at, end) = (code.start, code.end);
    let mut piece = [0u8; PAGE + 8];
    let mut found: Vec<usize> = Vec::new();
    core::iter::from_fn(move || {
        while found.is_empty() && at < end {
            let length = (end - at).min(PAGE + wanted.len() - 1);
            user_memory::copy_in(&mut piece[..length], UserAddress(at as u64)).ok()?;
            let hits = piece[..length].windows(wanted.len()).enumerate().filter(|(_, bytes)| *bytes == wanted);
            found.extend(hits.map(|(offset, _)| at + offset));
            found.reverse();
            at += PAGE;
        }
        found.pop()
    })
}

/// Returns whether the bytes at an address are a `syscall` instruction, and not a part of another
/// one.
fn is_syscall(address: usize) -> bool {
    let Some(area) = maps::area_of(address) else { return false };
    let function = code::function_around(address, &area);
    function.is_some_and(|function| code::calls_in(function..address + SYSCALL.len()).any(|call| call == address))
}

/// Writes a breakpoint. Returns whether that was possible.
fn write(address: usize) -> bool {
    let (first, last) = (address / PAGE, (address + 1) / PAGE);
    let protect = |protection: u32| {
        let arguments = [(first * PAGE) as u64, ((last - first + 1) * PAGE) as u64, u64::from(protection), 0, 0];
        SystemCall::new(linux::__NR_mprotect, arguments).run().is_ok()
    };
    let is_written = protect(linux::PROT_READ | linux::PROT_WRITE | linux::PROT_EXEC)
        && user_memory::copy_out(UserAddress(address as u64), &[BREAKPOINT, NOP]).is_ok();
    protect(linux::PROT_READ | linux::PROT_EXEC);
    valgrind::forget_code(address, SYSCALL.len());
    is_written
}
