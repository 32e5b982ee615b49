//! Memory that usring shares with the program: ring headers, entries, buffer rings.
//!
//! - The program may write this memory at any moment, so no reference to data in it is ever made.
//!   Words are accessed as atomics. Entries are copied by volatile accesses, each byte once.
//! - Offsets come from usring's own ring layout. An offset out of range is a bug of usring and
//!   panics.
//! - In a loom model each word is a loom atomic, and each eight bytes of entries are a loom cell.
//!   So loom reports an entry that program and engine access concurrently.

pub use crate::plain::Plain;

#[cfg(not(loom))]
pub use machine::{SharedMemory, View, Words};
#[cfg(not(loom))]
pub(crate) use machine::{copy_from, copy_to};
#[cfg(loom)]
pub use model::SharedMemory;

#[cfg(not(loom))]
mod machine {
    use super::*;
    use crate::mapping::{Mapping, PAGE};
    use crate::pinning::PinCheck;
    use crate::sharing::SharingWord;
    use crate::sleep::SleepWord;
    use crate::sync::{Arc, AtomicU16, AtomicU32};
    use crate::width;
    use crate::{Errno, UserAddress, user_memory};
    use core::mem::MaybeUninit;
    use core::ops::{Deref, Range};
    use core::ptr::NonNull;

    /// Least length and alignment of a [`SharedMemory`], in bytes: a cache line. So an access to a
    /// word in the first line (a ring's heads and tails) needs no check against the length.
    pub const LEAST: usize = 64;

    /// A range of shared memory, mapped by usring or provided by the program.
    #[derive(Debug)]
    pub struct SharedMemory {
        address: NonNull<u8>,
        length: usize,
        /// The mapping in which the range lies, if usring owns the mapping. `None` if the memory is
        /// the program's or the kernel's.
        mapping: Option<Arc<Mapping>>,
    }

    // SAFETY: every access is atomic, or a volatile copy of plain bytes.
    unsafe impl Send for SharedMemory {}
    // SAFETY: every access is atomic, or a volatile copy of plain bytes.
    unsafe impl Sync for SharedMemory {}

    impl SharedMemory {
        /// Makes shared memory of a whole mapping that usring owns.
        pub fn new(mapping: Mapping) -> Self {
            let whole = 0..mapping.length();
            Self::part_of(&Arc::new(mapping), whole)
        }

        /// Makes shared memory of some pages of a mapping that usring owns.
        pub fn part_of(mapping: &Arc<Mapping>, part: Range<usize>) -> Self {
            assert!(part.end <= mapping.length() && part.len() >= LEAST, "the part lies in the mapping");
            assert!(part.start.is_multiple_of(PAGE) && part.end.is_multiple_of(PAGE), "the part is whole pages");
            let address = NonNull::new((mapping.address() + part.start) as *mut u8);
            let address = address.expect("the kernel maps nothing at address 0 unasked");
            SharedMemory { address, length: part.len(), mapping: Some(mapping.clone()) }
        }

        /// Makes shared memory of bytes that this value does not own.
        ///
        /// # Safety
        /// `length` bytes at `address` must stay mapped, readable and writable for as long as this
        /// value lives, and no references into them may exist. The address is aligned to `LEAST`,
        /// and `length` is at least `LEAST`.
        pub unsafe fn borrowed(address: usize, length: usize) -> Self {
            assert!(address.is_multiple_of(LEAST) && length >= LEAST, "shared memory is whole cache lines");
            let address = NonNull::new(address as *mut u8).expect("shared memory has an address");
            SharedMemory { address, length, mapping: None }
        }

        /// Makes shared memory of the program's memory for a ring (`IORING_SETUP_NO_MMAP`) or a
        /// buffer ring. Touches every page. The ring's creator vouches that the memory stays mapped
        /// (see the head of the crate).
        ///
        /// Errors: `EFAULT` if the memory cannot be read and written, or if the kernel would not
        /// pin it; `EINVAL` if the address is not aligned.
        pub fn of_program(address: UserAddress, length: usize) -> Result<Self, Errno> {
            if !address.0.is_multiple_of(LEAST as u64) {
                return Err(Errno::EINVAL);
            }
            // The length may be less than a cache line, and is then raised to one. The address is
            // aligned to a cache line, so the added bytes lie on the page of the other bytes.
            let length = length.max(LEAST);
            user_memory::probe_writable(address, length)?;
            PinCheck::default().check(address, length)?;
            // SAFETY: 1. `probe_writable` has accessed every page. 2. The creator of the ring
            // vouches that the pages stay mapped, and that the program uses them as io_uring's
            // interface prescribes.
            Ok(unsafe { SharedMemory::borrowed(width::size(address.0), length) })
        }

        /// Maps the range a second time, for the program: see [`Mapping::duplicate`]. `behind`: the
        /// length in bytes of the memory behind this range, if the program is likely to map that
        /// memory next; otherwise 0. Error: `ENOMEM` if the range is not in a mapping of usring.
        pub fn duplicate(&self, length: usize, behind: usize) -> Result<usize, Errno> {
            let mapping = self.mapping().ok_or(Errno::ENOMEM)?;
            let start = self.address() - mapping.address();
            let room = self.length + behind.next_multiple_of(PAGE);
            mapping.duplicate(start..start + self.length, length, if behind == 0 { 0 } else { room })
        }

        pub fn mapping(&self) -> Option<&Mapping> {
            self.mapping.as_deref()
        }

        pub fn length(&self) -> usize {
            self.length
        }

        /// Returns the memory's address in this process.
        pub fn address(&self) -> usize {
            self.address.as_ptr() as usize
        }

        #[inline(always)]
        fn at(&self, offset: usize, size: usize, alignment: usize) -> *mut u8 {
            // The range has at least `LEAST` bytes, so the subtraction cannot wrap.
            let fits = match size <= LEAST {
                true => offset <= self.length - size,
                false => offset.checked_add(size).is_some_and(|end| end <= self.length),
            };
            if !fits || !offset.is_multiple_of(alignment) {
                out_of_range(offset, size, self.length);
            }
            self.address.as_ptr().wrapping_add(offset)
        }

        /// Returns the address of a part of the memory. Panics if the part is out of range or not
        /// aligned. So code that uses the address needs no further check.
        pub(crate) fn part(&self, offset: usize, size: usize, alignment: usize) -> NonNull<u8> {
            NonNull::new(self.at(offset, size, alignment)).expect("shared memory has an address")
        }

        /// Returns the word at `offset`.
        #[inline(always)]
        pub fn word(&self, offset: usize) -> &AtomicU32 {
            // SAFETY: 1. `at` has checked that the word is in range and aligned. 2. usring accesses
            // the word only as an atomic, and the program as io_uring's interface prescribes.
            unsafe { &*self.at(offset, 4, 4).cast() }
        }

        /// Returns the word at `offset`, which must lie in the first cache line. Does not check the
        /// memory's length.
        #[inline(always)]
        pub fn header_word(&self, offset: usize) -> &AtomicU32 {
            assert!(offset <= LEAST - 4 && offset.is_multiple_of(4), "a header is one cache line");
            // SAFETY: 1. The first `LEAST` bytes always lie in the memory, and the word is aligned.
            // 2. usring accesses the word only as an atomic.
            unsafe { &*self.address.as_ptr().wrapping_add(offset).cast() }
        }

        /// Returns the 16-bit word at `offset` (such as the tail of a buffer ring).
        #[inline(always)]
        pub fn half_word(&self, offset: usize) -> &AtomicU16 {
            // SAFETY: 1. `at` has checked that the half word is in range and aligned. 2. usring
            // accesses it only as an atomic.
            unsafe { &*self.at(offset, 2, 2).cast() }
        }

        /// Copies the value at `offset` out of the memory, reading each byte once.
        #[inline(always)]
        pub fn read<T: Plain>(&self, offset: usize) -> T {
            // SAFETY: in range and aligned.
            unsafe { copy_from(self.at(offset, size_of::<T>(), align_of::<T>())) }
        }

        /// Copies a value into the memory at `offset`.
        #[inline(always)]
        pub fn write<T: Plain>(&self, offset: usize, value: T) {
            // SAFETY: in range and aligned.
            unsafe { copy_to(self.at(offset, size_of::<T>(), align_of::<T>()), value) };
        }

        /// Copies `length` bytes from the program's memory to `offset`. After `EFAULT` a part may
        /// have been copied.
        #[inline]
        pub fn copy_in(&self, offset: usize, length: usize, from: UserAddress) -> Result<(), Errno> {
            // SAFETY: `at` has checked that the bytes are in range, and no references into them
            // exist.
            unsafe { user_memory::copy_to_raw(self.at(offset, length, 1), from, length) }
        }

        /// Copies `length` bytes at `offset` to the program's memory. After `EFAULT` a part may
        /// have been copied.
        #[inline]
        pub fn copy_out(&self, offset: usize, length: usize, to: UserAddress) -> Result<(), Errno> {
            // SAFETY: `at` has checked that the bytes are in range. They may change during the
            // copy; usring does not interpret them.
            unsafe { user_memory::copy_from_raw(to, self.at(offset, length, 1), length) }
        }
    }

    /// A reference to words of usring in shared memory. It keeps the memory mapped.
    #[derive(Debug)]
    pub struct View<T> {
        words: NonNull<T>,
        _memory: Arc<SharedMemory>,
    }

    // SAFETY: a view gives `&T` and nothing else.
    unsafe impl<T: Sync> Send for View<T> {}
    // SAFETY: a view gives `&T` and nothing else.
    unsafe impl<T: Sync> Sync for View<T> {}

    impl<T: Words> View<T> {
        /// Returns the words at `offset`. Panics if they do not lie in the memory.
        pub fn of(memory: &Arc<SharedMemory>, offset: usize) -> View<T> {
            let words = memory.part(offset, size_of::<T>(), align_of::<T>()).cast();
            View { words, _memory: memory.clone() }
        }
    }

    impl<T> Clone for View<T> {
        fn clone(&self) -> View<T> {
            View { words: self.words, _memory: self._memory.clone() }
        }
    }

    impl<T> Deref for View<T> {
        type Target = T;

        #[inline(always)]
        fn deref(&self) -> &T {
            // SAFETY: 1. `of` has checked that the words are in range and aligned, and `_memory`
            // keeps them mapped. 2. Any bytes are a valid `T`, which consists of atomics: see
            // `Words`.
            unsafe { self.words.as_ref() }
        }
    }

    /// Types that consist of atomic words alone.
    ///
    /// # Safety
    /// Any bytes must be a valid value of the type. Every access to a value must be atomic.
    pub unsafe trait Words: Sync {}

    // SAFETY: an atomic word.
    unsafe impl Words for AtomicU32 {}
    // SAFETY: a `SleepWord` consists of two atomic words.
    unsafe impl Words for SleepWord {}
    // SAFETY: an atomic word.
    unsafe impl Words for SharingWord {}

    /// Copies a value out of shared memory, each byte once.
    ///
    /// # Safety
    /// A `T` must fit at `from`, aligned, and lie in shared memory as a whole.
    #[inline(always)]
    pub(crate) unsafe fn copy_from<T: Plain>(from: *mut u8) -> T {
        if align_of::<T>() != 8 {
            // SAFETY: 1. The caller guarantees that a `T` fits at `from`, aligned. 2. Any bytes are
            // a valid `T`. 3. The volatile read reads each byte once, so a write by the program
            // cannot make two reads differ.
            return unsafe { from.cast::<T>().read_volatile() };
        }
        // The value is copied word by word. A volatile copy of a structure is made field by field,
        // which needs more accesses.
        let mut value = MaybeUninit::<T>::uninit();
        for index in 0..size_of::<T>() / 8 {
            // SAFETY: the caller guarantees that a `T` fits at `from`. A type aligned to 8 consists
            // of whole words.
            unsafe { value.as_mut_ptr().cast::<u64>().add(index).write(from.cast::<u64>().add(index).read_volatile()) };
        }
        // SAFETY: every word of the value was written, and any bytes are a valid `T`.
        unsafe { value.assume_init() }
    }

    /// Copies a value into shared memory.
    ///
    /// # Safety
    /// A `T` must fit at `to`, aligned, and lie in shared memory as a whole.
    #[inline(always)]
    pub(crate) unsafe fn copy_to<T: Plain>(to: *mut u8, value: T) {
        if align_of::<T>() != 8 {
            // SAFETY: the caller guarantees that a `T` fits at `to`, aligned. No references into
            // shared memory exist.
            return unsafe { to.cast::<T>().write_volatile(value) };
        }
        // The value is written word by word, so that it stays in registers. A volatile copy of a
        // structure would go through the stack.
        let from = (&raw const value).cast::<u64>();
        for index in 0..size_of::<T>() / 8 {
            // SAFETY: the caller guarantees that a `T` fits at `to`. A type aligned to 8 consists
            // of whole words, and a `Plain` type has no padding.
            unsafe { to.cast::<u64>().add(index).write_volatile(from.add(index).read()) };
        }
    }

    const _: () = assert!(PAGE.is_multiple_of(8) && PAGE >= LEAST);

    #[cold]
    #[inline(never)]
    fn out_of_range(offset: usize, size: usize, length: usize) -> ! {
        panic!("{size} bytes at {offset} do not lie in shared memory of {length}")
    }
}

#[cfg(loom)]
mod model {
    use super::*;
    use crate::mapping::Mapping;
    use crate::sync::{AtomicU16, AtomicU32, UnsafeCell};
    use crate::{Errno, UserAddress};
    use core::mem::MaybeUninit;
    use std::vec::Vec;

    pub struct SharedMemory {
        words: Vec<AtomicU32>,
        half_words: Vec<AtomicU16>,
        entries: Vec<UnsafeCell<u64>>,
    }

    // SAFETY: loom checks the accesses.
    unsafe impl Send for SharedMemory {}
    // SAFETY: loom checks the accesses.
    unsafe impl Sync for SharedMemory {}

    impl SharedMemory {
        /// Makes `length` bytes of modelled memory.
        pub fn model(length: usize) -> Self {
            SharedMemory {
                words: (0..length.div_ceil(4)).map(|_| AtomicU32::new(0)).collect(),
                half_words: (0..length.div_ceil(2)).map(|_| AtomicU16::new(0)).collect(),
                entries: (0..length.div_ceil(8)).map(|_| UnsafeCell::new(0)).collect(),
            }
        }

        pub fn new(mapping: Mapping) -> Self {
            SharedMemory::model(mapping.length())
        }

        /// # Safety
        /// The function is safe: a model does not access the memory at the address.
        pub unsafe fn borrowed(_: usize, length: usize) -> Self {
            SharedMemory::model(length)
        }

        pub fn mapping(&self) -> Option<&Mapping> {
            None
        }

        pub fn length(&self) -> usize {
            self.entries.len() * 8
        }

        pub fn word(&self, offset: usize) -> &AtomicU32 {
            assert!(offset.is_multiple_of(4));
            &self.words[offset / 4]
        }

        pub fn header_word(&self, offset: usize) -> &AtomicU32 {
            self.word(offset)
        }

        /// Answers `EFAULT`: no model has a program's memory.
        pub fn copy_in(&self, _: usize, _: usize, _: UserAddress) -> Result<(), Errno> {
            Err(Errno::EFAULT)
        }

        /// Answers `EFAULT`: no model has a program's memory.
        pub fn copy_out(&self, _: usize, _: usize, _: UserAddress) -> Result<(), Errno> {
            Err(Errno::EFAULT)
        }

        /// Returns the 16-bit word at `offset`. These words are stored apart from the 32-bit words.
        /// So a model must not use one part of the memory as both.
        pub fn half_word(&self, offset: usize) -> &AtomicU16 {
            assert!(offset.is_multiple_of(2));
            &self.half_words[offset / 2]
        }

        pub fn read<T: Plain>(&self, offset: usize) -> T {
            let mut value = MaybeUninit::<T>::uninit();
            assert!(offset.is_multiple_of(8) && size_of::<T>().is_multiple_of(8));
            for index in 0..size_of::<T>() / 8 {
                // SAFETY: within `value`; loom checks the cell.
                self.entries[offset / 8 + index]
                    .with(|cell| unsafe { value.as_mut_ptr().cast::<u64>().add(index).write_unaligned(*cell) });
            }
            // SAFETY: every byte was written above, and any bytes are a valid `T`.
            unsafe { value.assume_init() }
        }

        pub fn write<T: Plain>(&self, offset: usize, value: T) {
            assert!(offset.is_multiple_of(8) && size_of::<T>().is_multiple_of(8));
            for index in 0..size_of::<T>() / 8 {
                // SAFETY: within `value`; loom checks the cell.
                self.entries[offset / 8 + index]
                    .with_mut(|cell| unsafe { *cell = (&raw const value).cast::<u64>().add(index).read_unaligned() });
            }
        }
    }
}
