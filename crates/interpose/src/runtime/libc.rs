//! Finds the parts of the program's libc that the entry points need, if the program has a libc:
//! `errno`, and the functions that usring replaces.
//!
//! The library is linked against nothing. The loader fills a small table with the addresses that it
//! can bind (weak references: zero without a libc). usring also needs the functions of libc that it
//! replaces. To find such a function, it searches the libraries after this one in the loader's
//! list, as dlsym(RTLD_NEXT) would do. But this search takes no lock of the loader's and calls no
//! malloc, because the first call of a replaced function may come from inside malloc.

use crate::runtime::text;
use core::arch::global_asm;
use core::ffi::{CStr, c_void};
use core::sync::atomic::Ordering;
use usring_sys::{clock, thread};

global_asm!(
    ".pushsection .data.rel.ro.usring_libc,\"aw\",@progbits",
    ".weak __errno_location, mallopt",
    ".weak _r_debug, _dl_debug_addr, gnu_get_libc_version, __environ",
    ".weak __register_atfork, pthread_atfork",
    ".weak __asan_init, __tsan_init, __lsan_init, __msan_init, __hwasan_init",
    ".globl usring_libc",
    ".hidden usring_libc",
    ".p2align 3",
    "usring_libc:",
    ".quad __errno_location",
    ".quad _r_debug",
    ".quad _dl_debug_addr",
    ".quad gnu_get_libc_version",
    ".quad __environ",
    ".quad mallopt",
    ".quad __register_atfork",
    ".quad pthread_atfork",
    ".quad __asan_init",
    ".quad __tsan_init",
    ".quad __lsan_init",
    ".quad __msan_init",
    ".quad __hwasan_init",
    ".popsection",
);

/// A handler of pthread_atfork(3): before the fork, after it in the parent, or in the child.
type Handler = Option<unsafe extern "C" fn()>;

/// The table of addresses that the loader binds when it loads this library.
#[repr(C)]
#[allow(dead_code, reason = "assembler reads it")]
pub struct Bound {
    errno_location: Option<extern "C" fn() -> *mut i32>,
    /// The loader's state, under glibc's name.
    loader: Option<&'static LoaderState>,
    /// A pointer to the loader's state, under musl's name.
    loader_address: Option<&'static &'static LoaderState>,
    /// `gnu_get_libc_version`, only compared with zero.
    glibc: usize,
    environment: Option<&'static *mut *mut u8>,
    mallopt: Option<unsafe extern "C" fn(i32, i32) -> i32>,
    /// glibc's function for `pthread_atfork`. The fourth argument is the library that owns the
    /// handlers.
    register_atfork: Option<unsafe extern "C" fn(Handler, Handler, Handler, *const c_void) -> i32>,
    atfork: Option<unsafe extern "C" fn(Handler, Handler, Handler) -> i32>,
    /// Functions of the sanitizers' runtimes, only compared with zero.
    sanitizers: [usize; 5],
}

unsafe extern "C" {
    #[link_name = "usring_libc"]
    /// Read by assembler, too: its first word is `__errno_location`.
    pub static BOUND: Bound;
}

fn bound() -> &'static Bound {
    // SAFETY: the loader writes `BOUND` before any code of this library runs, and never again.
    unsafe { &BOUND }
}

impl Bound {
    fn loader(&self) -> Option<&'static LoaderState> {
        self.loader.or(self.loader_address.copied())
    }
}

/// Returns whether the program's libc is glibc.
pub fn is_glibc() -> bool {
    bound().glibc != 0
}

/// Returns whether the program has a sanitizer's runtime that tracks memory.
pub fn has_sanitizer() -> bool {
    bound().sanitizers.iter().any(|function| *function != 0)
}

/// Makes glibc's malloc map each block of at least `bytes` bytes separately, for the whole run.
/// Without this call, the limit rises when the program frees a block that was mapped separately.
pub fn map_large_blocks(bytes: usize) {
    const M_MMAP_THRESHOLD: i32 = -3;
    if let (true, Some(mallopt), Ok(bytes)) = (is_glibc(), bound().mallopt, i32::try_from(bytes)) {
        // SAFETY: mallopt(3) is called while the program starts, so no thread is in malloc. A value
        // that is too large is refused and changes nothing.
        unsafe { mallopt(M_MMAP_THRESHOLD, bytes) };
    }
}

/// Returns the environment of the process. `given` is the third argument of the constructor. glibc
/// passes the environment in this argument, and sets the variable `environ` only later. With musl
/// the argument means nothing, but the variable is set already.
pub fn environment(given: *mut *mut u8) -> *mut *mut u8 {
    match (bound().glibc, bound().environment) {
        (0, Some(environment)) => *environment,
        (0, None) => core::ptr::null_mut(),
        _ => given,
    }
}

/// `struct r_debug`.
#[repr(C)]
struct LoaderState {
    version: i32,
    first: *const Library,
}

/// The public part of `struct link_map`.
#[repr(C)]
pub struct Library {
    base: usize,
    name: *const i8,
    dynamic: *const [usize; 2],
    next: *const Library,
}

// Tags of the dynamic section.
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;

/// A symbol of ELF64.
#[repr(C)]
struct Symbol {
    name: u32,
    information: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

const FUNCTION: u8 = 2;
/// Flag in a symbol's version: the symbol is not the default version of its name.
const HIDDEN_VERSION: u16 = 0x8000;

impl Library {
    pub fn base(&self) -> usize {
        self.base
    }

    /// Returns the address of the dynamic section.
    pub fn dynamic_address(&self) -> usize {
        self.dynamic as usize
    }

    /// Converts the value of an entry of the dynamic section to an address. The value is an address
    /// already if the loader has added the load address to it. Some loaders do not.
    pub fn address(&self, value: usize) -> usize {
        if value < self.base { value + self.base } else { value }
    }

    /// Returns the entries of the dynamic section: tag and value.
    pub fn dynamic(&self) -> impl Iterator<Item = [usize; 2]> + '_ {
        let mut entry = self.dynamic;
        core::iter::from_fn(move || {
            // SAFETY: the section is null, or an array of pairs that ends with tag 0.
            let pair = unsafe { entry.as_ref() }.filter(|[tag, _]| *tag != 0)?;
            entry = entry.wrapping_add(1);
            Some(*pair)
        })
    }
}

/// The parts of a library's dynamic section that a look-up of a symbol needs.
pub struct Tables {
    base: usize,
    strings: usize,
    symbols: usize,
    hash: usize,
    versions: usize,
}

impl Tables {
    /// # Safety
    /// `library` must be an entry of the loader's list.
    pub unsafe fn of(library: &Library) -> Option<Tables> {
        let mut tables = Tables { base: library.base, strings: 0, symbols: 0, hash: 0, versions: 0 };
        for [tag, value] in library.dynamic() {
            match tag {
                DT_STRTAB => tables.strings = library.address(value),
                DT_SYMTAB => tables.symbols = library.address(value),
                DT_GNU_HASH => tables.hash = library.address(value),
                DT_VERSYM => tables.versions = library.address(value),
                _ => {}
            }
        }
        (tables.strings != 0 && tables.symbols != 0 && tables.hash != 0).then_some(tables)
    }

    /// Returns the name of a symbol.
    ///
    /// # Safety
    /// `index` must be a symbol of the library.
    pub unsafe fn name(&self, index: usize) -> &CStr {
        // SAFETY: the caller guarantees the index.
        unsafe {
            let symbol = &*(self.symbols as *const Symbol).add(index);
            CStr::from_ptr((self.strings + symbol.name as usize) as *const i8)
        }
    }

    /// Returns the address of the function `name`, if the library defines it.
    ///
    /// # Safety
    /// The tables must be those of a loaded library.
    pub unsafe fn find(&self, name: &CStr) -> Option<usize> {
        let hash =
            name.to_bytes().iter().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: this is the layout of DT_GNU_HASH: bucket count, first symbol, number of bloom
        // words, shift, the bloom filter, the buckets, the chains.
        unsafe {
            let head = self.hash as *const u32;
            let (buckets, first, bloom) = (*head, *head.add(1), *head.add(2));
            let bucket_array = head.add(4 + 2 * bloom as usize);
            let chains = bucket_array.add(buckets as usize);
            let mut index = *bucket_array.add((hash % buckets.max(1)) as usize);
            if buckets == 0 || index < first {
                return None;
            }
            loop {
                let chain = *chains.add((index - first) as usize);
                if chain | 1 == hash | 1
                    && let Some(address) = self.matching(index as usize, name)
                {
                    return Some(address);
                }
                if chain & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// Returns the address of the symbol with this index. `None` if the symbol is not the function
    /// `name`.
    ///
    /// # Safety
    /// `index` must be a symbol of the library.
    unsafe fn matching(&self, index: usize, name: &CStr) -> Option<usize> {
        // SAFETY: the caller guarantees the index, which is valid in the arrays of symbols and of
        // versions.
        unsafe {
            let symbol = &*(self.symbols as *const Symbol).add(index);
            let hidden = self.versions != 0 && *(self.versions as *const u16).add(index) & HIDDEN_VERSION != 0;
            let usable = symbol.section != 0 && symbol.information & 15 == FUNCTION && !hidden;
            (usable && self.name(index) == name).then(|| self.base + symbol.value)
        }
    }
}

/// Returns the addresses at which the loader has mapped the program and its libraries.
pub fn libraries() -> impl Iterator<Item = usize> {
    entries().map(Library::base)
}

/// Returns the loader's list of the program and its libraries.
pub fn entries() -> impl Iterator<Item = &'static Library> {
    let mut library = bound().loader().map_or(core::ptr::null(), |loader| loader.first);
    core::iter::from_fn(move || {
        // SAFETY: this is the loader's list; no thread changes it while the program starts.
        let this = unsafe { library.as_ref()? };
        library = this.next;
        Some(this)
    })
}

/// Returns the path from which the loader has loaded this library. `None`: the loader's list of
/// libraries is not found, or this library is not in it.
pub fn own_path() -> Option<&'static CStr> {
    let own = entries().find(|library| library.base == text::base()).filter(|library| !library.name.is_null())?;
    // SAFETY: the loader's names end with NUL, and stay as long as their libraries.
    Some(unsafe { CStr::from_ptr(own.name) })
}

/// Returns the address of `name` in the first library after usring's that defines it, as dlsym(3)
/// does with RTLD_NEXT. `None`: no library after usring's defines it.
pub fn next(name: &CStr) -> Option<usize> {
    let loader = bound().loader()?;
    let own = text::base();
    let mut behind_us = false;
    let mut library = loader.first;
    // SAFETY: this is the loader's list; no thread changes it while the program starts.
    unsafe {
        while let Some(this) = library.as_ref() {
            if behind_us
                && let Some(tables) = Tables::of(this)
                && let Some(address) = tables.find(name)
            {
                return Some(address);
            }
            behind_us |= this.base == own;
            library = this.next;
        }
    }
    None
}

/// Finds the vDSO's function that reads the clock. The vDSO is in the loader's list like a library.
pub fn find_vdso_clock() {
    let mut library = bound().loader().map_or(core::ptr::null(), |loader| loader.first);
    // SAFETY: 1. No thread changes the loader's list while the program starts. 2. The function with
    // this name is the kernel's, has this signature, and stays mapped.
    unsafe {
        while let Some(this) = library.as_ref() {
            if let Some(address) = Tables::of(this).and_then(|tables| tables.find(c"__vdso_clock_gettime")) {
                return clock::set_vdso(core::mem::transmute::<usize, clock::Reader>(address));
            }
            library = this.next;
        }
    }
}

/// Makes libc run `handler` in each child that it forks.
pub fn run_in_children(handler: unsafe extern "C" fn()) {
    // SAFETY: the handler has the type that pthread_atfork(3) requires, and the library is never
    // unloaded.
    unsafe {
        match (bound().register_atfork, bound().atfork) {
            (Some(register), _) => register(None, None, Some(handler), core::ptr::null()),
            (None, Some(register)) => register(None, None, Some(handler)),
            (None, None) => return,
        };
    }
}

/// Stores the number of the signal by which this libc makes every thread change its credentials.
pub fn store_change_user_signal() {
    if !is_glibc() {
        thread::CHANGE_USER.store(thread::CHANGE_USER_MUSL, Ordering::Relaxed);
    }
}
