//! Memory that usring shares with the program: ring headers, entries, buffer
//! rings. The program may write any of it at any moment, so nothing in it is
//! ever borrowed as data: words are atomics, entries are copied out or in,
//! each byte once, by volatile accesses.
//!
//! Offsets are ours (a ring's layout), so one that is out of range is a fault
//! of ours and panics.
//!
//! In a model each word is a loom atomic and each eight bytes of entries a
//! loom cell, so that an entry touched by both sides at once is found.

pub use crate::plain::Plain;

#[cfg(not(loom))]
pub use machine::SharedMemory;
#[cfg(not(loom))]
pub(crate) use machine::{copy_from, copy_to};
#[cfg(loom)]
pub use model::SharedMemory;

#[cfg(not(loom))]
mod machine {
    use super::*;
    use crate::mapping::{Mapping, PAGE};
    use crate::sync::{AtomicU16, AtomicU32};
    use crate::{Errno, UserAddress, user_memory};
    use core::mem::MaybeUninit;
    use core::ptr::NonNull;

    /// A piece of it is never smaller than a cache line, and starts on one: so
    /// a word whose offset is a constant (a ring's heads and tails) needs no
    /// look at the length.
    pub const LEAST: usize = 64;

    /// A piece of shared memory, ours or lent by the program.
    #[derive(Debug)]
    pub struct SharedMemory {
        address: NonNull<u8>,
        length: usize,
        mapping: Option<Mapping>,
    }

    // SAFETY: every access is atomic or a volatile copy of plain bytes.
    unsafe impl Send for SharedMemory {}
    // SAFETY: as above.
    unsafe impl Sync for SharedMemory {}

    impl SharedMemory {
        /// Takes over a mapping of ours.
        pub fn new(mapping: Mapping) -> Self {
            let address =
                NonNull::new(mapping.address() as *mut u8).expect("the kernel maps nothing at address 0 unasked");
            assert!(mapping.length() >= LEAST, "a mapping is whole pages");
            SharedMemory { address, length: mapping.length(), mapping: Some(mapping) }
        }

        /// Memory that somebody else owns.
        ///
        /// # Safety
        /// `length` bytes at `address` (aligned to `LEAST`, and as many at
        /// least) stay mapped, readable and writable for as long as this lives,
        /// and nobody holds references into them.
        pub unsafe fn borrowed(address: usize, length: usize) -> Self {
            assert!(address.is_multiple_of(LEAST) && length >= LEAST, "shared memory is whole cache lines");
            let address = NonNull::new(address as *mut u8).expect("shared memory has an address");
            SharedMemory { address, length, mapping: None }
        }

        /// Memory of the program that it lends for a ring
        /// (`IORING_SETUP_NO_MMAP`, a buffer ring of its own), tried page by
        /// page: `EFAULT` where it cannot be read and written, `EINVAL` where
        /// it is not aligned. That it stays mapped is part of what the ring's
        /// creator vouches for (see the crate's head).
        pub fn of_program(address: UserAddress, length: usize) -> Result<Self, Errno> {
            if !address.0.is_multiple_of(LEAST as u64) {
                return Err(Errno::EINVAL);
            }
            // The rest of a cache line lies on the same page.
            let length = length.max(LEAST);
            user_memory::probe_writable(address, length)?;
            // SAFETY: 1. Every page answered a moment ago. 2. The creator of
            // the ring vouches for the rest; the program knows it as memory
            // that the ring writes.
            Ok(unsafe { SharedMemory::borrowed(address.0 as usize, length) })
        }

        /// Whole pages of the program that it lends for a ring
        /// (`IORING_SETUP_NO_MMAP`): pages of ours take their place, at the
        /// same addresses and with the same contents, so that the ring outlives
        /// whatever the program does to its own view of them, as it does in
        /// the kernel, which pins them. Where they cannot be replaced (huge
        /// pages) they are used as they are.
        pub fn in_place_of(address: UserAddress, length: usize) -> Result<Self, Errno> {
            let lent = Self::of_program(address, length)?;
            let mut mapping = Mapping::shared(length)?;
            if mapping.replace(address).is_err() {
                return Ok(lent);
            }
            Ok(Self::new(mapping))
        }

        pub fn mapping(&self) -> Option<&Mapping> {
            self.mapping.as_ref()
        }

        pub fn length(&self) -> usize {
            self.length
        }

        /// Where it lies in this process.
        pub fn address(&self) -> usize {
            self.address.as_ptr() as usize
        }

        #[inline(always)]
        fn at(&self, offset: usize, size: usize, alignment: usize) -> *mut u8 {
            // What is no larger than a cache line is no larger than the whole.
            let fits = match size <= LEAST {
                true => offset <= self.length - size,
                false => offset.checked_add(size).is_some_and(|end| end <= self.length),
            };
            if !fits || !offset.is_multiple_of(alignment) {
                out_of_range(offset, size, self.length);
            }
            self.address.as_ptr().wrapping_add(offset)
        }

        /// Where a part of it lies, which is looked at here and nowhere else.
        pub(crate) fn part(&self, offset: usize, size: usize, alignment: usize) -> NonNull<u8> {
            NonNull::new(self.at(offset, size, alignment)).expect("shared memory has an address")
        }

        /// The word at `offset`.
        #[inline(always)]
        pub fn word(&self, offset: usize) -> &AtomicU32 {
            // SAFETY: in range and aligned, and nobody uses it otherwise than
            // atomically; the program's own plain accesses are those of any
            // io_uring program.
            unsafe { &*self.at(offset, 4, 4).cast() }
        }

        /// The word at `offset` of the first cache line; costs no look at the
        /// length.
        #[inline(always)]
        pub fn header_word(&self, offset: usize) -> &AtomicU32 {
            assert!(offset <= LEAST - 4 && offset.is_multiple_of(4), "a header is one cache line");
            // SAFETY: as in `word`; no piece is shorter.
            unsafe { &*self.address.as_ptr().wrapping_add(offset).cast() }
        }

        /// The half word at `offset` (a buffer ring's tail is one).
        #[inline(always)]
        pub fn half_word(&self, offset: usize) -> &AtomicU16 {
            // SAFETY: as in `word`.
            unsafe { &*self.at(offset, 2, 2).cast() }
        }

        /// Copies a value out, each byte once.
        #[inline(always)]
        pub fn read<T: Plain>(&self, offset: usize) -> T {
            // SAFETY: in range and aligned.
            unsafe { copy_from(self.at(offset, size_of::<T>(), align_of::<T>())) }
        }

        /// Copies a value in.
        #[inline(always)]
        pub fn write<T: Plain>(&self, offset: usize, value: T) {
            // SAFETY: in range and aligned.
            unsafe { copy_to(self.at(offset, size_of::<T>(), align_of::<T>()), value) };
        }

        /// Copies bytes of the program in. After `EFAULT` a part may have been copied.
        #[inline]
        pub fn copy_in(&self, offset: usize, length: usize, from: UserAddress) -> Result<(), Errno> {
            // SAFETY: in range; nobody holds references into it.
            unsafe { user_memory::copy_to_raw(self.at(offset, length, 1), from, length) }
        }

        /// Copies bytes out to the program. After `EFAULT` a part may have been copied.
        #[inline]
        pub fn copy_out(&self, offset: usize, length: usize, to: UserAddress) -> Result<(), Errno> {
            // SAFETY: in range; what another process writes meanwhile is copied
            // as it stands, and means nothing to us.
            unsafe { user_memory::copy_from_raw(to, self.at(offset, length, 1), length) }
        }
    }

    /// Copies a value out of shared memory, each byte once.
    ///
    /// # Safety
    /// A `T` fits there, aligned, all of it in shared memory.
    #[inline(always)]
    pub(crate) unsafe fn copy_from<T: Plain>(from: *mut u8) -> T {
        if align_of::<T>() != 8 {
            // SAFETY: the caller's; any bytes are a `T`; volatile, so that the
            // program's writes cannot make two reads differ.
            return unsafe { from.cast::<T>().read_volatile() };
        }
        // Word by word: a volatile copy of a structure goes field by field.
        let mut value = MaybeUninit::<T>::uninit();
        for index in 0..size_of::<T>() / 8 {
            // SAFETY: as above; a type aligned to 8 is whole words long.
            unsafe { value.as_mut_ptr().cast::<u64>().add(index).write(from.cast::<u64>().add(index).read_volatile()) };
        }
        // SAFETY: every word of it was written, and any bytes are a `T`.
        unsafe { value.assume_init() }
    }

    /// Copies a value into shared memory.
    ///
    /// # Safety
    /// As for [`copy_from`].
    #[inline(always)]
    pub(crate) unsafe fn copy_to<T: Plain>(to: *mut u8, value: T) {
        if align_of::<T>() != 8 {
            // SAFETY: the caller's; nobody holds references into it.
            return unsafe { to.cast::<T>().write_volatile(value) };
        }
        // Word by word, out of registers: a volatile copy of a structure would
        // go by way of the stack.
        let from = (&raw const value).cast::<u64>();
        for index in 0..size_of::<T>() / 8 {
            // SAFETY: as above; a type aligned to 8 is whole words long, and has
            // no padding.
            unsafe { to.cast::<u64>().add(index).write_volatile(from.add(index).read()) };
        }
    }

    const _: () = assert!(PAGE.is_multiple_of(8));

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
    // SAFETY: as above.
    unsafe impl Sync for SharedMemory {}

    impl SharedMemory {
        /// `length` bytes of modelled memory.
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
        /// None is needed: what lies at the address is not touched.
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

        /// No model has a program's memory.
        pub fn copy_in(&self, _: usize, _: usize, _: UserAddress) -> Result<(), Errno> {
            Err(Errno::EFAULT)
        }

        /// As above.
        pub fn copy_out(&self, _: usize, _: usize, _: UserAddress) -> Result<(), Errno> {
            Err(Errno::EFAULT)
        }

        /// Half words are kept apart from words: a place is used as one or the other.
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
            // SAFETY: every byte was written above, and any bytes are a `T`.
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
