//! Which memory a system call names: for the calls whose buffers may be large, or are
//! named by way of other memory, as they are documented; for all others a few pages from
//! each address on, which is more than any structure or path takes.

use crate::swapped::managed::is_in_window;
use alloc::vec::Vec;
use usring_swap::Access;
use usring_sys::plain::IoVector;
use usring_sys::{UserAddress, user_memory};
use usring_uapi::general as linux;

/// Memory that a call names, as far as it may be swapped.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub start: usize,
    pub length: usize,
    pub access: Access,
}

/// What no structure and no path is longer than.
const USUAL: usize = 16 << 10;
/// Most entries of a vector that the kernel takes.
pub const MOST_VECTORS: u64 = 1024;

pub type Arguments = [u64; 6];

/// A single buffer: which argument is its address, which its length; what the kernel
/// does with it.
pub struct Buffer {
    pub address: usize,
    pub length: usize,
    pub access: Access,
}

const fn filled(address: usize) -> Option<Buffer> {
    Some(Buffer { address, length: address + 1, access: Access::Write })
}

const fn read(address: usize) -> Option<Buffer> {
    Some(Buffer { address, length: address + 1, access: Access::Read })
}

/// The buffer of a call that has one, of a length that the caller chooses.
pub fn buffer(number: u32) -> Option<Buffer> {
    match number {
        linux::__NR_read
        | linux::__NR_pread64
        | linux::__NR_recvfrom
        | linux::__NR_getdents
        | linux::__NR_getdents64 => filled(1),
        linux::__NR_readlink | linux::__NR_listxattr | linux::__NR_llistxattr | linux::__NR_flistxattr => filled(1),
        linux::__NR_readlinkat | linux::__NR_getxattr | linux::__NR_lgetxattr | linux::__NR_fgetxattr => filled(2),
        linux::__NR_getrandom | linux::__NR_getcwd => filled(0),
        linux::__NR_write | linux::__NR_pwrite64 | linux::__NR_sendto => read(1),
        linux::__NR_setxattr | linux::__NR_lsetxattr | linux::__NR_fsetxattr => read(2),
        _ => None,
    }
}

/// How a call has its vector: which argument is its address (the next is its length), and
/// what the kernel does with the buffers.
pub fn vector(number: u32) -> Option<(usize, Access)> {
    match number {
        linux::__NR_readv | linux::__NR_preadv | linux::__NR_preadv2 => Some((1, Access::Write)),
        linux::__NR_writev | linux::__NR_pwritev | linux::__NR_pwritev2 | linux::__NR_vmsplice => {
            Some((1, Access::Read))
        }
        linux::__NR_process_vm_readv => Some((1, Access::Write)),
        linux::__NR_process_vm_writev => Some((1, Access::Read)),
        _ => None,
    }
}

/// Calls whose addresses are those of mappings, and of what the engine reads by itself.
fn names_no_content(number: u32) -> bool {
    matches!(
        number,
        linux::__NR_mmap
            | linux::__NR_munmap
            | linux::__NR_mremap
            | linux::__NR_mprotect
            | linux::__NR_pkey_mprotect
            | linux::__NR_madvise
            | linux::__NR_msync
            | linux::__NR_mincore
            | linux::__NR_mbind
            | linux::__NR_mlock
            | linux::__NR_mlock2
            | linux::__NR_munlock
            | linux::__NR_brk
            | linux::__NR_fallocate
            | linux::__NR_io_submit
            | linux::__NR_rt_sigreturn
            | linux::__NR_clone
            | linux::__NR_clone3
    )
}

/// What of the window a call names.
pub fn of(number: u32, arguments: &Arguments) -> Vec<Span> {
    let mut spans = Vec::new();
    if names_no_content(number) {
        return spans;
    }
    let mut seen = 0;
    if let Some(buffer) = buffer(number) {
        add(&mut spans, arguments[buffer.address], arguments[buffer.length], buffer.access);
        seen |= 1 << buffer.address;
    }
    match number {
        linux::__NR_sendmsg | linux::__NR_recvmsg => add_message(&mut spans, number, arguments[1]),
        linux::__NR_sendmmsg | linux::__NR_recvmmsg => {
            const EACH: u64 = 64;
            let count = arguments[2].min(MOST_VECTORS);
            add(&mut spans, arguments[1], count * EACH, Access::Write);
            seen |= 1 << 1;
            (0..count).for_each(|index| add_message(&mut spans, number, arguments[1].wrapping_add(index * EACH)));
        }
        linux::__NR_poll | linux::__NR_ppoll => {
            add(&mut spans, arguments[0], arguments[1].saturating_mul(8), Access::Write);
            seen |= 1;
        }
        linux::__NR_epoll_wait | linux::__NR_epoll_pwait | linux::__NR_epoll_pwait2 => {
            add(&mut spans, arguments[1], u64::from(arguments[2] as u32) * 12, Access::Write);
            seen |= 1 << 1;
        }
        linux::__NR_pselect6 => add_nested(&mut spans, arguments[5], 0),
        linux::__NR_execve => add_strings(&mut spans, &arguments[1..3]),
        linux::__NR_execveat => add_strings(&mut spans, &arguments[2..4]),
        // A word.
        linux::__NR_futex => {
            add(&mut spans, arguments[0], 4, Access::Write);
            add(&mut spans, arguments[4], 4, Access::Write);
            seen |= 1 | 1 << 4;
        }
        _ => {}
    }
    if let Some((place, access)) = vector(number) {
        add_vector(&mut spans, arguments[place], arguments[place + 1], access);
    }
    for (index, address) in arguments.iter().enumerate() {
        if seen & 1 << index == 0 {
            add(&mut spans, *address, USUAL as u64, Access::Write);
        }
    }
    spans
}

fn add(spans: &mut Vec<Span>, start: u64, length: u64, access: Access) {
    if is_in_window(start) && length > 0 {
        spans.push(Span { start: start as usize, length: length as usize, access });
    }
}

/// The vector itself, and what it names.
fn add_vector(spans: &mut Vec<Span>, address: u64, count: u64, access: Access) {
    let count = count.min(MOST_VECTORS);
    add(spans, address, count * size_of::<IoVector>() as u64, Access::Read);
    for index in 0..count {
        let place = UserAddress(address).offset(index * size_of::<IoVector>() as u64);
        let Ok([base, length]) = user_memory::read::<[u64; 2]>(place) else { return };
        add(spans, base, length, access);
    }
}

/// A `struct msghdr`, and what it names.
fn add_message(spans: &mut Vec<Span>, number: u32, address: u64) {
    let Ok(words) = user_memory::read::<[u64; 7]>(UserAddress(address)) else { return };
    let [name, name_length, vector, count, control, control_length, _] = words;
    let sends = matches!(number, linux::__NR_sendmsg | linux::__NR_sendmmsg);
    let access = if sends { Access::Read } else { Access::Write };
    add(spans, name, u64::from(name_length as u32), access);
    add(spans, control, control_length, access);
    add_vector(spans, vector, count, access);
}

/// An address that stands in memory.
fn add_nested(spans: &mut Vec<Span>, address: u64, offset: u64) {
    if let Ok(nested) = user_memory::read::<u64>(UserAddress(address).offset(offset)) {
        add(spans, nested, 128, Access::Read);
    }
}

/// Arrays of strings that end with null.
fn add_strings(spans: &mut Vec<Span>, arrays: &[u64]) {
    for array in arrays.iter().filter(|array| **array != 0) {
        let mut place = UserAddress(*array);
        let mut count = 0;
        while let Ok(string) = user_memory::read::<u64>(place)
            && string != 0
        {
            add(spans, string, USUAL as u64, Access::Read);
            place = place.offset(8);
            count += 8;
        }
        add(spans, *array, count + 8, Access::Read);
    }
}
