//! Redirects imported functions: where the program or its libraries would call an imported
//! function, they then call another function. To do so, changes the slots of their global offset
//! tables that hold the imported function's address.

use crate::runtime::libc::{self, Library, Tables};
use crate::runtime::text;
use core::ffi::CStr;
use usring_sys::SystemCall;
use usring_sys::mapping::PAGE;
use usring_sys::process_maps::Maps;
use usring_sys::width;
use usring_uapi::general as linux;

// Tags of the dynamic section.
const DT_PLTRELSZ: usize = 2;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_JMPREL: usize = 23;

// Types of relocations that fill a slot with a function's address.
const R_X86_64_GLOB_DAT: u64 = 6;
const R_X86_64_JUMP_SLOT: u64 = 7;

/// A relocation of ELF64.
#[repr(C)]
struct Relocation {
    offset: usize,
    information: u64,
    addend: i64,
}

/// Returns the address of the first definition of the function `name` in the loader's list of
/// libraries. The loader binds imports of `name` to this definition. `None`: no library defines the
/// function.
pub fn function(name: &CStr) -> Option<usize> {
    // SAFETY: the tables are those of a library in the loader's list.
    libc::entries().find_map(|library| unsafe { Tables::of(library)?.find(name) })
}

/// Binds each import of `name` to `function`, in the program and in all loaded libraries except
/// usring's. Called while the process has one thread.
pub fn redirect(name: &CStr, function: usize) {
    let Some(maps) = Maps::open() else { return };
    for library in libc::entries().filter(|library| library.base() != text::base()) {
        // SAFETY: the tables and relocations are those of a library in the loader's list. A slot is
        // a word of its own, and no other thread uses the slot.
        unsafe {
            let Some(tables) = Tables::of(library) else { continue };
            for (start, bytes) in tables_of_relocations(library) {
                let count = bytes / size_of::<Relocation>();
                for relocation in core::slice::from_raw_parts(start as *const Relocation, count) {
                    let (symbol, kind) = (relocation.information >> 32, relocation.information & 0xffff_ffff);
                    if matches!(kind, R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT)
                        && tables.name(width::size(symbol)) == name
                    {
                        write(&maps, library.base() + relocation.offset, function);
                    }
                }
            }
        }
    }
}

/// Returns the addresses and lengths (in bytes) of a library's two tables of relocations: first
/// that of data, then that of functions.
fn tables_of_relocations(library: &Library) -> [(usize, usize); 2] {
    let mut found = [(0, 0); 2];
    for [tag, value] in library.dynamic() {
        match tag {
            DT_RELA => found[0].0 = library.address(value),
            DT_RELASZ => found[0].1 = value,
            DT_JMPREL => found[1].0 = library.address(value),
            DT_PLTRELSZ => found[1].1 = value,
            _ => {}
        }
    }
    found.map(|(start, bytes)| if start == 0 { (align_of::<Relocation>(), 0) } else { (start, bytes) })
}

/// Writes `value` to a slot, even if the slot is read-only (RELRO).
///
/// # Safety
/// `slot` must be the address of a slot that no other thread uses.
unsafe fn write(maps: &Maps, slot: usize, value: usize) {
    let Some(area) = maps.area_of(slot) else { return };
    let page = slot / PAGE * PAGE;
    let protect = |protection: u32| {
        let arguments = [page as u64, PAGE as u64, u64::from(protection), 0, 0];
        SystemCall::new(linux::__NR_mprotect, arguments).run().is_ok()
    };
    let is_writable = area.protection & linux::PROT_WRITE != 0;
    if is_writable || protect(linux::PROT_READ | linux::PROT_WRITE) {
        // SAFETY: the caller guarantees the slot, which is writable now.
        unsafe { (slot as *mut usize).write(value) };
    }
    if !is_writable {
        protect(area.protection);
    }
}
