//! Finds the swapped memory that a system call names, by its arguments ([`crate::table`]), and by
//! structures to which arguments point. [`crate::data`] finds the buffers of data.
//!
//! ioctl(2), bpf(2) and similar calls have so many structures that usring does not know them. If a
//! word in such a structure is an address of swapped memory, usring assumes that the kernel uses
//! the memory there. The assumed length is the largest number in the structure that is at most 1
//! MiB, with a minimum of 16 KiB.

use crate::few::Few;
use crate::is_in_window;
use crate::table::{self, Extent};
use core::ops::ControlFlow;
use usring_swap::Access;
use usring_sys::mapping::PAGE;
use usring_sys::message::VECTOR_LIMIT;
use usring_sys::plain::IoVector;
use usring_sys::{UserAddress, user_memory, width};
use usring_uapi::general as linux;

/// A range of memory that a call names. The range lies in the addresses that usring reserves for
/// swapped memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRange {
    pub start: usize,
    pub length: usize,
    pub access: Access,
}

impl Default for MemoryRange {
    fn default() -> MemoryRange {
        MemoryRange { start: 0, length: 0, access: Access::Read }
    }
}

pub type MemoryRanges = Few<MemoryRange>;

pub type Arguments = [u64; 6];

/// Returns the memory that a call names. Omits memory outside the addresses for swapped memory.
pub fn of(number: u32, arguments: &Arguments) -> MemoryRanges {
    let mut ranges = MemoryRanges::default();
    for (argument, extent, access) in table::pointers(number) {
        let start = arguments[*argument];
        if is_in_window(start) {
            add(&mut ranges, start, length_of(*extent, start, arguments), *access);
        }
    }
    add_indirect(&mut ranges, number, arguments);
    ranges
}

fn length_of(extent: Extent, start: u64, arguments: &Arguments) -> u64 {
    match extent {
        Extent::Bytes(length) => length,
        Extent::Each(count, each) => arguments[count].saturating_mul(each),
        // The kernel refuses a negative count and uses no memory.
        Extent::EachOfInt(count, each) => u64::try_from(width::int(arguments[count])).unwrap_or(0) * each,
        Extent::Declared(place) => u64::from(user_memory::read::<u32>(UserAddress(arguments[place])).unwrap_or(0)),
        Extent::Bits(count) => u64::from(width::low(arguments[count])).div_ceil(64) * 8,
        Extent::Pages(length) => arguments[length].div_ceil(PAGE as u64),
        Extent::Text => text_length(start),
    }
}

/// Maximum length of a path, in bytes, including its NUL.
const MOST_TEXT: u64 = 4096;

/// Returns the length of a string in bytes, rounded up to the end of the aligned 8 bytes that
/// contain its NUL. The search for the NUL ends after about [`MOST_TEXT`] bytes, or where memory
/// cannot be read. The length then counts up to there.
fn text_length(start: u64) -> u64 {
    let mut length = 0;
    while length < MOST_TEXT {
        let at = UserAddress(start + length);
        // Eight aligned bytes lie on one page, so one access reads them all.
        let step = 8 - at.0 % 8;
        let ended = if step == 8 {
            user_memory::read::<[u8; 8]>(at).map(|bytes| bytes.contains(&0))
        } else {
            user_memory::read::<u8>(at).map(|byte| byte == 0)
        };
        length += if step == 8 { 8 } else { 1 };
        if ended != Ok(false) {
            break;
        }
    }
    length
}

pub fn add(ranges: &mut MemoryRanges, start: u64, length: u64, access: Access) {
    if is_in_window(start) && length > 0 {
        ranges.push(MemoryRange { start: width::size(start), length: width::size(length), access });
    }
}

/// Returns whether usring only guesses which memory a call names, as for the structures of ioctl(2)
/// and bpf(2).
pub fn is_guess(number: u32) -> bool {
    matches!(number, linux::__NR_ioctl | linux::__NR_setsockopt | linux::__NR_bpf) || !table::is_known(number)
}

fn add_indirect(ranges: &mut MemoryRanges, number: u32, arguments: &Arguments) {
    let [first, second, third, fourth, ..] = *arguments;
    // For prctl(2), keyctl(2) and ptrace(2), the first argument is the number of the operation.
    let operation = width::low(first);
    match number {
        linux::__NR_pselect6 => add_signal_set(ranges, arguments[5]),
        // The second `iovec` array names memory of the target process. The target may be this
        // process itself.
        linux::__NR_process_vm_readv => add_vector(ranges, fourth, arguments[4], Access::Read),
        linux::__NR_process_vm_writev => add_vector(ranges, fourth, arguments[4], Access::Write),
        linux::__NR_futex_waitv => add_futexes(ranges, first, u64::from(width::low(second))),
        linux::__NR_ioctl => add_structure(ranges, third, ioctl_size(width::low(second))),
        linux::__NR_setsockopt => add_words(ranges, fourth, u64::from(width::low(arguments[4])).min(MOST_STRUCTURE)),
        linux::__NR_bpf => add_words(ranges, second, u64::from(width::low(third)).min(MOST_STRUCTURE)),
        // `struct xattr_args`: an address and a length.
        SETXATTRAT | GETXATTRAT => add_words(ranges, arguments[4], 16),
        linux::__NR_seccomp => add_words(ranges, third, SOCK_FPROG),
        linux::__NR_prctl if operation == PR_SET_SECCOMP => add_words(ranges, third, SOCK_FPROG),
        linux::__NR_ptrace if matches!(operation, PTRACE_GETREGSET | PTRACE_SETREGSET) => {
            add_vector(ranges, fourth, 1, Access::Write);
        }
        linux::__NR_keyctl if operation == KEYCTL_INSTANTIATE_IOV => {
            add_vector(ranges, third, fourth, Access::Read);
        }
        linux::__NR_execve => add_strings(ranges, &arguments[1..3]),
        linux::__NR_execveat => add_strings(ranges, &arguments[2..4]),
        _ => {}
    }
}

const SETXATTRAT: u32 = 463;
const GETXATTRAT: u32 = 464;
const PR_SET_SECCOMP: u32 = 22;
const PTRACE_GETREGSET: u32 = 0x4204;
const PTRACE_SETREGSET: u32 = 0x4205;
const KEYCTL_INSTANTIATE_IOV: u32 = 20;

/// `struct sock_fprog`: a length and an address.
const SOCK_FPROG: u64 = 16;
/// Maximum number of bytes of a structure that are searched for addresses.
const MOST_STRUCTURE: u64 = 4096;

/// Adds an `iovec` array and its buffers.
fn add_vector(ranges: &mut MemoryRanges, address: u64, count: u64, access: Access) {
    let count = count.min(VECTOR_LIMIT);
    add(ranges, address, count * size_of::<IoVector>() as u64, Access::Write);
    let _ = each_word(address, count * 2, |words: [u64; 2]| add(ranges, words[0], words[1], access));
}

/// Lowest address that programs can map (the usual vm.mmap_min_addr).
const LEAST_ADDRESS: u64 = 64 << 10;

/// Calls `visit` for each group of `N` words, among the `words` words at `address`. Ends with
/// `Break` at the first group that cannot be read.
fn each_word<const N: usize>(address: u64, words: u64, mut visit: impl FnMut([u64; N])) -> ControlFlow<()> {
    // Nothing is mapped below this address, so the argument is a number and not an address. A read
    // would only fault.
    if address < LEAST_ADDRESS {
        return ControlFlow::Break(());
    }
    for index in 0..words / N as u64 {
        let place = UserAddress(address).offset(index * N as u64 * 8);
        match user_memory::read::<[u64; N]>(place) {
            Ok(words) => visit(words),
            Err(_) => return ControlFlow::Break(()),
        }
    }
    ControlFlow::Continue(())
}

/// Adds the signal set of pselect6(2). Two words at `address` hold the set's address and its
/// length.
fn add_signal_set(ranges: &mut MemoryRanges, address: u64) {
    let _ = each_word(address, 2, |words: [u64; 2]| add(ranges, words[0], words[1], Access::Read));
}

/// Adds the words of an array of `struct futex_waitv` (value, address, flags).
fn add_futexes(ranges: &mut MemoryRanges, address: u64, count: u64) {
    const MOST: u64 = 128;
    let _ = each_word(address, count.min(MOST) * 3, |words: [u64; 3]| add(ranges, words[1], 4, Access::Write));
}

/// Returns the size of the structure that an ioctl(2) takes, as the ioctl's number declares it.
/// Assumes 64 bytes if the number declares no size.
fn ioctl_size(command: u32) -> u64 {
    const OLD: u64 = 64;
    match u64::from(command >> 16 & 0x3fff) {
        0 => OLD,
        size => size,
    }
}

/// Minimum number of bytes assumed for a structure that a program passes to ioctl(2), and for each
/// piece of memory that such a structure points to.
const LEAST_ASSUMED: u64 = 16 << 10;

/// Adds the structure of an ioctl(2), and the memory that the structure's words point to. The
/// kernel may use more bytes than the ioctl's number declares. So the structure counts as at least
/// [`LEAST_ASSUMED`] bytes long.
fn add_structure(ranges: &mut MemoryRanges, address: u64, size: u64) {
    add(ranges, address, size.max(LEAST_ASSUMED), Access::Write);
    add_words(ranges, address, size.min(MOST_STRUCTURE));
}

/// Maximum length, in bytes, that is assumed for memory that a structure points to.
const MOST_POINTED_TO: u64 = 1 << 20;

/// Adds the memory that a structure points to: one range for each word that is an address of
/// swapped memory.
fn add_words(ranges: &mut MemoryRanges, address: u64, size: u64) {
    let mut longest = LEAST_ASSUMED;
    let _ = each_word(address, size / 8, |[word]: [u64; 1]| {
        for number in [word, word & 0xffff_ffff, word >> 32] {
            if number <= MOST_POINTED_TO {
                longest = longest.max(number);
            }
        }
    });
    let _ = each_word(address, size / 8, |[word]: [u64; 1]| add(ranges, word, longest, Access::Write));
}

/// Adds arrays of strings (`argv`, `envp`). Each array ends with a null pointer.
fn add_strings(ranges: &mut MemoryRanges, arrays: &[u64]) {
    for array in arrays.iter().filter(|array| **array != 0) {
        let mut place = UserAddress(*array);
        let mut length = 8;
        while let Ok(string) = user_memory::read::<u64>(place)
            && string != 0
        {
            if is_in_window(string) {
                add(ranges, string, string_length(string), Access::Read);
            }
            place = place.offset(8);
            length += 8;
        }
        add(ranges, *array, length, Access::Read);
    }
}

/// Maximum length of one argument of a program, in bytes (MAX_ARG_STRLEN).
const MOST_ARGUMENT: u64 = 128 << 10;

fn string_length(start: u64) -> u64 {
    let mut length = 0;
    while length < MOST_ARGUMENT {
        let piece = text_length(start + length);
        length += piece;
        if piece < MOST_TEXT {
            break;
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use usring_swap::mappings::WINDOW;

    /// The upper half of an argument that is a C `int`, which the kernel must ignore.
    const ANYTHING: u64 = 0x5a5a_5a5a << 32;

    fn lengths(number: u32, arguments: [u64; 6]) -> Vec<usize> {
        of(number, &arguments).iter().map(|range| range.length).collect()
    }

    #[test]
    fn the_upper_half_of_an_int_does_not_lengthen_what_a_call_names() {
        let at = WINDOW.start as u64;
        assert_eq!(lengths(linux::__NR_poll, [at, ANYTHING | 3, 0, 0, 0, 0]), [24]);
        assert_eq!(lengths(linux::__NR_epoll_wait, [0, at, ANYTHING | 2, 0, 0, 0]), [24]);
        assert_eq!(lengths(linux::__NR_connect, [0, at, ANYTHING | 16, 0, 0, 0]), [16]);
        assert_eq!(lengths(linux::__NR_setsockopt, [0, 0, 0, at, ANYTHING | 4, 0]), [4]);
        assert_eq!(lengths(linux::__NR_sched_getaffinity, [0, ANYTHING | 128, at, 0, 0, 0]), [128]);
        let filter = [1, at];
        assert_eq!(lengths(linux::__NR_prctl, [ANYTHING | 22, 2, &raw const filter as u64, 0, 0, 0]), [16384]);
    }

    #[test]
    fn a_length_of_64_bits_counts_in_full() {
        let at = WINDOW.start as u64;
        assert_eq!(lengths(linux::__NR_getcwd, [at, 1 << 32, 0, 0, 0, 0]), [1 << 32]);
    }

    #[test]
    fn a_negative_count_names_no_memory() {
        let at = WINDOW.start as u64;
        assert_eq!(lengths(linux::__NR_poll, [at, 0xffff_ffff, 0, 0, 0, 0]), []);
    }
}
