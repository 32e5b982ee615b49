//! Decodes the code around a call site. Decides whether the bytes before a `syscall` are a whole
//! instruction, and not the end of a longer one.
//!
//! x86 code cannot be read backwards: five bytes that look like `mov $number,%eax` may be the end
//! of a longer instruction (`movl $426,-0x48(%rsp)`). So the code is decoded forward, from an
//! address that certainly begins an instruction. Such an address is the start of the function,
//! which is in the unwind tables:
//! 1. The program headers of the file lead to `.eh_frame_hdr`, a sorted table of the functions'
//!    starts.
//! 2. The function's entry (FDE) gives its extent. The call site has to lie inside.
//! 3. From the start on, each instruction is decoded up to the `syscall`. Compilers put no data
//!    there.
//!
//! If a step fails (no table, an encoding that compilers do not use, unknown bytes), the call site
//! is not rewritten and keeps trapping.

use crate::entry::maps::CodeArea;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};
use usring_sys::mapping::PAGE;
use usring_sys::plain::Plain;
use usring_sys::{UserAddress, user_memory, width};
use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::long_mode::InstDecoder;

/// Opcode of `mov $imm32,%eax`, an instruction of [`MOV`] bytes.
pub const MOV_EAX: u8 = 0xb8;
/// The bytes of the instruction `syscall`.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
pub const MOV: usize = 5;
/// Maximum number of bytes between the `mov` and the `syscall` of a call site.
pub const MOST_BETWEEN: usize = 12;

/// Longest x86 instruction, in bytes.
const MOST_INSTRUCTION_BYTES: usize = 15;
/// Maximum number of bytes of code that are decoded for one call site.
const MOST_CODE: usize = 256 * 1024;

pub fn byte(address: usize) -> u8 {
    // SAFETY: a thread has just executed code on this page or in this function, or a function of
    // libc begins there. So the address is mapped. (A library that unmaps its code while a thread
    // executes it would crash anyway.)
    unsafe { (*(address as *const AtomicU8)).load(Ordering::Relaxed) }
}

/// Returns the four bytes after an opcode.
pub fn immediate(address: usize) -> [u8; 4] {
    [1, 2, 3, 4].map(|offset| byte(address + offset))
}

/// Returns the start and length of each instruction of `code`. Ends at the first instruction that
/// is unknown or reaches beyond `code`.
fn instructions(code: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let mut at = code.start;
    core::iter::from_fn(move || {
        let mut bytes = [0; MOST_INSTRUCTION_BYTES];
        let within = MOST_INSTRUCTION_BYTES.min(code.end.checked_sub(at)?);
        for (offset, place) in bytes[..within].iter_mut().enumerate() {
            *place = byte(at + offset);
        }
        let instruction = InstDecoder::default().decode_slice(&bytes[..within]).ok()?;
        let found = (at, width::size(instruction.len().to_const()));
        at += found.1;
        Some(found)
    })
}

fn is_call((start, length): (usize, usize)) -> bool {
    length == SYSCALL.len() && [byte(start), byte(start + 1)] == SYSCALL
}

/// Returns the addresses of the `syscall` instructions in `code`, which must start at the first
/// byte of an instruction.
pub fn calls_in(code: Range<usize>) -> impl Iterator<Item = usize> {
    instructions(code).filter(|found| is_call(*found)).map(|(start, _)| start)
}

/// The decoded code of a call site that can be rewritten.
pub struct Form {
    pub number: u32,
    /// Address of the `mov`.
    pub start: usize,
    /// Address of the instruction after the `syscall`.
    pub end: usize,
    /// The bytes of the instructions between the `mov` and the `syscall`. Only the first `length`
    /// bytes are used.
    pub between: [u8; MOST_BETWEEN],
    pub length: usize,
}

impl Form {
    /// Decodes a call site. Its `syscall` is at `address`, in the function that begins at
    /// `function`. `None`: the call site cannot be rewritten.
    pub fn of(function: usize, address: usize, number: u32) -> Option<Form> {
        if address.checked_sub(function)? > MOST_CODE {
            return None;
        }
        // Finds the last `mov` that loads the call's number. Between this `mov` and the `syscall`,
        // only moves between registers are allowed.
        let (mut start, mut call) = (None, None);
        for (at, length) in instructions(function..address + SYSCALL.len()) {
            if at >= address {
                call = is_call((at, length)).then_some(at);
                break;
            } else if length == MOV && byte(at) == MOV_EAX {
                start = (immediate(at) == number.to_le_bytes()).then_some(at);
            } else if !is_between_registers(at, length) {
                start = None;
            }
        }
        let start = start.filter(|_| call == Some(address))?;
        let length = address - start - MOV;
        // The `mov`, the `syscall` and all bytes between them must lie on one page.
        if length > MOST_BETWEEN || start / PAGE != (address + 1) / PAGE {
            return None;
        }
        let mut between = [0; MOST_BETWEEN];
        for (offset, place) in between[..length].iter_mut().enumerate() {
            *place = byte(start + MOV + offset);
        }
        Some(Form { number, start, end: address + SYSCALL.len(), between, length })
    }
}

/// Returns whether an instruction is `mov` or `xor` between registers. Only these instructions are
/// copied to the stub, because they work at any address.
fn is_between_registers(start: usize, length: usize) -> bool {
    let has_prefix = matches!(byte(start), 0x40..=0x4f);
    let opcode = start + usize::from(has_prefix);
    length == 2 + usize::from(has_prefix)
        && matches!(byte(opcode), 0x89 | 0x8b | 0x31 | 0x33)
        && matches!(byte(opcode + 1), 0xc0..=0xff)
}

// ELF64: offsets in the header and in a program header.
const PHOFF: u64 = 32;
const PHENTSIZE: u64 = 54;
const PHNUM: u64 = 56;
const PROGRAM_HEADER: u64 = 56;
const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const MOST_HEADERS: u16 = 64;

fn read<T: Plain>(address: u64) -> Option<T> {
    user_memory::read(UserAddress(address)).ok()
}

/// Returns the address of `.eh_frame_hdr`, the table of unwind information, in the file that is
/// mapped at `image`. `None`: the file has no such section, or is not ELF64.
fn unwind_table(image: u64) -> Option<u64> {
    const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
    if read::<u32>(image)? != ELF || u64::from(read::<u16>(image + PHENTSIZE)?) != PROGRAM_HEADER {
        return None;
    }
    let headers = image.checked_add(read(image + PHOFF)?)?;
    let (mut first, mut table) = (None, None);
    for index in 0..read::<u16>(image + PHNUM)?.min(MOST_HEADERS) {
        let [kind, _offset, address, ..] = read::<[u64; 7]>(headers + u64::from(index) * PROGRAM_HEADER)?;
        match width::low(kind) {
            PT_LOAD if first.is_none() => first = Some(address / PAGE as u64 * PAGE as u64),
            PT_GNU_EH_FRAME => table = Some(address),
            _ => {}
        }
    }
    Some(image.wrapping_sub(first?).wrapping_add(table?))
}

/// The beginning of `.eh_frame_hdr`, in the form that linkers write:
/// - version 1;
/// - the address of `.eh_frame`, four bytes, relative to the address of these four bytes;
/// - the number of entries, four bytes;
/// - the table: pairs of addresses, four bytes each, relative to the beginning of the header.
const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const COUNT: u64 = 8;
const TABLE: u64 = 12;

fn relative(base: u64, offset: i32) -> u64 {
    base.wrapping_add_signed(i64::from(offset))
}

/// Returns the start of the function that contains `address`, an address in `area`. `None`: the
/// unwind tables do not have the function.
pub fn function_around(address: usize, area: &CodeArea) -> Option<usize> {
    let address = address as u64;
    let header = unwind_table(area.image? as u64)?;
    if read::<[u8; 4]>(header)? != HEADER {
        return None;
    }
    let entry = |index: u64| read::<[i32; 2]>(header + TABLE + 8 * index);
    let (mut low, mut high) = (0, u64::from(read::<u32>(header + COUNT)?));
    while low < high {
        let middle = low.midpoint(high);
        if relative(header, entry(middle)?[0]) <= address {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let [start, description] = entry(low.checked_sub(1)?)?;
    let (start, description) = (relative(header, start), relative(header, description));
    // The words of an FDE: its length, the distance to its CIE, the function's start relative to
    // this third word, and the function's size.
    let [length, _, own_start, size] = read::<[i32; 4]>(description)?;
    let is_one = length > 0 && relative(description + 8, own_start) == start;
    let holds = is_one && address + SYSCALL.len() as u64 <= start + u64::from(size.cast_unsigned());
    let start = width::size(start);
    (holds && area.code.contains(&start)).then_some(start)
}
