//! Makes, duplicates and removes usring's own memory mappings.

use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall, UserAddress, user_memory, width};
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general as linux;

pub const PAGE: usize = 4096;

/// A shared mapping, which is unmapped when this value is dropped. [`Mapping::duplicate`] maps its
/// pages a second time, for the program. These duplicates stay mapped.
#[derive(Debug)]
pub struct Mapping {
    address: usize,
    length: usize,
    /// The memfd that holds the memory. `None` if mremap(2) can map the pages a second time, so
    /// that no file is needed.
    file: Option<OwnedDescriptor>,
    /// The last duplicate of pages of this mapping: its address, and the start and end of its pages
    /// in the mapping. Only a hint: the program may have unmapped the duplicate. Two threads that
    /// make duplicates concurrently may mix up these values.
    last_duplicate: [AtomicUsize; 3],
}

impl Mapping {
    /// Maps zeroed pages. Forked children share them, and so do duplicates of the mapping.
    pub fn shared(length: usize) -> Result<Mapping, Errno> {
        let length = length.next_multiple_of(PAGE);
        if can_map_twice() {
            let address = map(length, linux::MAP_SHARED | linux::MAP_ANONYMOUS, None)?;
            return Ok(Mapping { address, length, file: None, last_duplicate: Default::default() });
        }
        Mapping::of_file(memory_file(c"usring", length as u64)?, length)
    }

    /// Maps the first `length` bytes of a memfd, shared with every process that maps them.
    pub fn of_file(file: OwnedDescriptor, length: usize) -> Result<Mapping, Errno> {
        let length = length.next_multiple_of(PAGE);
        let address = map(length, linux::MAP_SHARED, Some((file.number(), 0)))?;
        Ok(Mapping { address, length, file: Some(file), last_duplicate: Default::default() })
    }

    /// Returns the descriptor of the mapping's memfd, if it has one.
    pub fn file(&self) -> Option<i32> {
        self.file.as_ref().map(OwnedDescriptor::number)
    }

    pub fn address(&self) -> usize {
        self.address
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Sets whether forked children inherit the pages of `part` (madvise(2)). Error: `ENOMEM` if
    /// the process has too many mappings.
    pub fn set_inherited(&self, part: Range<usize>, inherited: bool) -> Result<(), Errno> {
        let whole = part.start.is_multiple_of(PAGE) && part.end.is_multiple_of(PAGE);
        assert!(whole && part.end <= self.length, "the part is whole pages of this mapping");
        let advice = if inherited { linux::MADV_DOFORK } else { linux::MADV_DONTFORK };
        let arguments = [(self.address + part.start) as u64, part.len() as u64, advice.into(), 0, 0];
        SystemCall::new(linux::__NR_madvise, arguments).run().map(drop)
    }

    /// Maps the pages of `part` a second time, for the program. The program owns the new mapping,
    /// and unmaps it. If `length` is larger than the part, the addresses behind the part are only
    /// reserved, and must not be accessed. Returns the address.
    ///
    /// If the last duplicate was of neighbouring pages, and the addresses next to it are free, the
    /// new duplicate lies there. The kernel then merges both into one mapping, so fork(2) has less
    /// to copy. A duplicate without such a neighbour lies at the start of `room` free bytes, so
    /// that the next duplicate fits behind it.
    pub fn duplicate(&self, part: Range<usize>, length: usize, room: usize) -> Result<usize, Errno> {
        let whole = part.start.is_multiple_of(PAGE) && part.end.is_multiple_of(PAGE);
        assert!(whole && part.end <= self.length, "the part is whole pages of this mapping");
        if length == 0 {
            return Err(Errno::EINVAL);
        }
        let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
        if length > part.len() {
            let address = reserve(length)?;
            let mapped = self.map_pages(part, address).inspect_err(|_| {
                let _ = unmap(address, length);
            });
            return mapped.map(|()| address);
        }
        let pages = part.start..part.start + length;
        let address = match self.beside_last(&pages) {
            Some(place) => claim(place, length).map_or_else(|| reserve(length), Ok)?,
            None => with_room(length, room)?,
        };
        self.map_pages(pages.clone(), address).inspect_err(|_| {
            let _ = unmap(address, length);
        })?;
        for (place, value) in self.last_duplicate.iter().zip([address, pages.start, pages.end]) {
            place.store(value, Ordering::Relaxed);
        }
        Ok(address)
    }

    /// Returns the address at which a duplicate of `pages` has to lie to be adjacent to the last
    /// duplicate. `None` if the pages of both are not neighbours.
    fn beside_last(&self, pages: &Range<usize>) -> Option<usize> {
        let [address, start, end] = [0, 1, 2].map(|index| self.last_duplicate[index].load(Ordering::Relaxed));
        let borders = address != 0 && (pages.start == end || pages.end == start);
        borders.then(|| address.wrapping_add(pages.start).wrapping_sub(start))
    }

    /// Copies the program's pages at `address` to the pages of `part`. Then maps the pages of
    /// `part` at `address`, in place of the program's pages. No other code may use the part
    /// meanwhile.
    pub fn replace(&self, part: Range<usize>, address: UserAddress) -> Result<(), Errno> {
        let whole = part.start.is_multiple_of(PAGE) && part.end.is_multiple_of(PAGE);
        assert!(whole && part.end <= self.length, "the part is whole pages of this mapping");
        // SAFETY: the pages of `part` are mapped as long as this value lives, and no references
        // into them exist.
        unsafe { user_memory::copy_to_raw((self.address + part.start) as *mut u8, address, part.len())? };
        self.map_pages(part, width::size(address.0))
    }

    /// Maps pages of this mapping a second time, at `address`. They replace any mapping that is
    /// there.
    fn map_pages(&self, pages: Range<usize>, address: usize) -> Result<(), Errno> {
        let again = match &self.file {
            None => map_again(self.address + pages.start, pages.len(), Some(address)),
            Some(file) => {
                let source = Some((file.number(), pages.start));
                map_at(address, pages.len(), linux::MAP_SHARED | linux::MAP_FIXED, source)
            }
        };
        again.map(drop)
    }
}

// A forked child must not drop a mapping that its parent made. The child did not inherit all pages
// of the mapping ([`Mapping::set_inherited`]). At the addresses of the missing pages, the child may
// have other memory, which the drop would unmap. Therefore usring never drops the rings that a
// child has inherited.
impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = unmap(self.address, self.length);
    }
}

/// Makes a memfd of `length` zero bytes (memfd_create(2)), at a number that is private to usring.
pub fn memory_file(name: &CStr, length: u64) -> Result<OwnedDescriptor, Errno> {
    memory_file_with(0, name, length)
}

/// Makes a memfd of `length` zero bytes, at a number that is private to usring. Seals the file's
/// length, so that no process can change it.
pub fn sealed_memory_file(name: &CStr, length: u64) -> Result<OwnedDescriptor, Errno> {
    let file = memory_file_with(linux::MFD_ALLOW_SEALING, name, length)?;
    let seals = u64::from(linux::F_SEAL_SHRINK | linux::F_SEAL_GROW | linux::F_SEAL_SEAL);
    SystemCall::new(linux::__NR_fcntl, [width::word(file.number()), linux::F_ADD_SEALS.into(), seals, 0, 0]).run()?;
    Ok(file)
}

fn memory_file_with(flags: u32, name: &CStr, length: u64) -> Result<OwnedDescriptor, Errno> {
    let flags = u64::from(linux::MFD_CLOEXEC | flags);
    let number = SystemCall::new(linux::__NR_memfd_create, [name.as_ptr() as u64, flags, 0, 0, 0]).run()?;
    let file = OwnedDescriptor::from_raw(width::int(number)).into_private()?;
    SystemCall::new(linux::__NR_ftruncate, [width::word(file.number()), length, 0, 0, 0]).run()?;
    Ok(file)
}

/// Maps the first page of a memfd as words that several processes share. The page is never
/// unmapped.
pub fn shared_words(file: &OwnedDescriptor) -> Result<&'static [AtomicU64], Errno> {
    shared_pages_of_words(file, PAGE)
}

/// Maps `length` bytes of words that several processes share; they are never unmapped. `length`
/// is a multiple of [`PAGE`], and the file is at least as long.
pub fn shared_pages_of_words(file: &OwnedDescriptor, length: usize) -> Result<&'static [AtomicU64], Errno> {
    assert!(length.is_multiple_of(PAGE), "the mapping is whole pages");
    let address = map(length, linux::MAP_SHARED, Some((file.number(), 0)))?;
    // SAFETY: 1. The mapping is whole pages, aligned for words, and never unmapped.
    // 2. Any bytes are words, and other processes reach them as atomics, too.
    Ok(unsafe { core::slice::from_raw_parts(address as *const AtomicU64, length / size_of::<AtomicU64>()) })
}

/// Maps a zeroed page of words that the process shares with the children that it forks. The page is
/// never unmapped.
pub fn shared_page_of_words() -> Result<&'static [AtomicU64], Errno> {
    let address = map(PAGE, linux::MAP_SHARED | linux::MAP_ANONYMOUS, None)?;
    // SAFETY: 1. The mapping is a whole page, aligned for words, and never unmapped. 2. Other
    // processes reach the words as atomics, too.
    Ok(unsafe { core::slice::from_raw_parts(address as *const AtomicU64, PAGE / size_of::<AtomicU64>()) })
}

/// Maps the pages of a shared mapping a second time, by mremap(2) with an old size of 0. `fixed`:
/// the address of the second mapping; `None`: the kernel chooses it. Needs no descriptor.
fn map_again(address: usize, length: usize, fixed: Option<usize>) -> Result<usize, Errno> {
    let mut flags = linux::MREMAP_MAYMOVE;
    if fixed.is_some() {
        flags |= linux::MREMAP_FIXED;
    }
    let arguments = [address as u64, 0, length as u64, u64::from(flags), fixed.unwrap_or(0) as u64];
    SystemCall::new(linux::__NR_mremap, arguments).run().map(width::size)
}

/// Returns whether all pages of a range are private: a write to them changes no other mapping, in
/// any process. Tests this by mapping each page a second time, which the kernel permits for shared
/// pages only. (Each page may belong to a different mapping.)
pub fn is_private(address: UserAddress, length: usize) -> bool {
    if !can_map_twice() {
        return false;
    }
    (0..length).step_by(PAGE).all(|offset| match map_again(width::size(address.0) + offset, PAGE, None) {
        Err(error) => error == Errno::EINVAL,
        Ok(again) => {
            let _ = unmap(again, PAGE);
            false
        }
    })
}

/// Returns whether mremap(2) can map shared pages a second time. Valgrind emulates mremap(2)
/// without this feature. The first call of this function tests it.
fn can_map_twice() -> bool {
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    let known = ANSWER.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known == YES;
    }
    let Ok(address) = map(PAGE, linux::MAP_SHARED | linux::MAP_ANONYMOUS, None) else { return false };
    let again = map_again(address, PAGE, None);
    let _ = unmap(address, PAGE);
    if let Ok(second) = again {
        let _ = unmap(second, PAGE);
    }
    ANSWER.store(if again.is_ok() { YES } else { NO }, Ordering::Relaxed);
    again.is_ok()
}

/// Maps private zeroed pages, for allocators and stacks.
pub fn private_pages(length: usize) -> Result<usize, Errno> {
    map(length.next_multiple_of(PAGE), linux::MAP_PRIVATE | linux::MAP_ANONYMOUS, None)
}

/// Maps private zeroed pages of which most will never be written. The kernel sets no memory aside
/// for them (MAP_NORESERVE), unless vm.overcommit_memory is 2.
pub fn offered_pages(length: usize) -> Result<usize, Errno> {
    let flags = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_NORESERVE;
    map(length.next_multiple_of(PAGE), flags, None)
}

/// Reserves addresses without memory. Accesses to them fault.
pub fn reserve(length: usize) -> Result<usize, Errno> {
    let flags = u64::from(linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_NORESERVE | linux::MAP_DENYWRITE);
    let arguments = [0, length as u64, u64::from(linux::PROT_NONE), flags, (-1i64).cast_unsigned(), 0];
    SystemCall::with_six(linux::__NR_mmap, arguments).run().map(width::size)
}

/// Reserves addresses for `length` bytes, at the start of a free range of `room` bytes. The rest of
/// that range stays free.
fn with_room(length: usize, room: usize) -> Result<usize, Errno> {
    let address = reserve(length.max(room))?;
    if room > length {
        let _ = unmap(address + length, room - length);
    }
    Ok(address)
}

/// Reserves the addresses of a range. `None` if some of them are in use.
fn claim(address: usize, length: usize) -> Option<usize> {
    map_where(address, length, linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_NORESERVE, None).ok()
}

/// Changes the length of private pages by mremap(2), which may move them.
pub fn resize(address: usize, length: usize, new_length: usize) -> Result<usize, Errno> {
    let flags = u64::from(linux::MREMAP_MAYMOVE);
    let arguments = [address as u64, length as u64, new_length as u64, flags, 0];
    SystemCall::new(linux::__NR_mremap, arguments).run().map(width::size)
}

/// Unmaps memory by munmap(2).
pub fn unmap(address: usize, length: usize) -> Result<(), Errno> {
    SystemCall::new(linux::__NR_munmap, [address as u64, length as u64, 0, 0, 0]).run().map(drop)
}

/// The source of a file mapping: a descriptor of usring, and an offset in bytes in its file.
pub(crate) type Source = (i32, usize);

/// Maps readable and writable memory, either of the file `source` or without a file. Returns the
/// address.
pub(crate) fn map(length: usize, flags: u32, source: Option<Source>) -> Result<usize, Errno> {
    map_at(0, length, flags, source)
}

/// Maps memory as [`map`] does, at an address that is a multiple of `alignment`.
pub(crate) fn map_aligned(length: usize, alignment: usize, flags: u32, source: Option<Source>) -> Result<usize, Errno> {
    let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
    let room = length.checked_add(alignment).ok_or(Errno::ENOMEM)?;
    let start = reserve(room)?;
    let address = start.next_multiple_of(alignment);
    let mapped = map_at(address, length, flags | linux::MAP_FIXED, source);
    if mapped.is_err() {
        let _ = unmap(start, room);
        return mapped;
    }
    if address > start {
        let _ = unmap(start, address - start);
    }
    if start + room > address + length {
        let _ = unmap(address + length, start + room - address - length);
    }
    mapped
}

/// Maps memory as [`map`] does, at exactly the address `address`. Errors: `EEXIST` if some of the
/// addresses are in use.
pub(crate) fn map_where(address: usize, length: usize, flags: u32, source: Option<Source>) -> Result<usize, Errno> {
    let mapped = map_at(address, length, flags | linux::MAP_FIXED_NOREPLACE, source)?;
    if mapped != address {
        // A kernel that does not know MAP_FIXED_NOREPLACE treats the address as a hint, and has
        // mapped the memory elsewhere.
        let _ = unmap(mapped, length);
        return Err(Errno::EEXIST);
    }
    Ok(mapped)
}

fn map_at(address: usize, length: usize, flags: u32, source: Option<Source>) -> Result<usize, Errno> {
    map_protected(address, length, linux::PROT_READ | linux::PROT_WRITE, flags, source)
}

/// Maps memory as [`map`] does, in place of any mapping at `address`. The new memory permits no
/// access yet (PROT_NONE).
pub(crate) fn map_closed_over(address: usize, length: usize, flags: u32, source: Option<Source>) -> Result<(), Errno> {
    map_protected(address, length, linux::PROT_NONE, flags | linux::MAP_FIXED, source).map(drop)
}

fn map_protected(
    address: usize,
    length: usize,
    protection: u32,
    flags: u32,
    source: Option<Source>,
) -> Result<usize, Errno> {
    // MAP_DENYWRITE lets the call pass usring's seccomp filter; Linux ignores this flag.
    let flags = u64::from(flags | linux::MAP_DENYWRITE);
    let (number, offset) = source.unwrap_or((-1, 0));
    let arguments = [address as u64, length as u64, u64::from(protection), flags, width::word(number), offset as u64];
    SystemCall::with_six(linux::__NR_mmap, arguments).run().map(width::size)
}
