//! An array in shared memory, with equal distances between its values: the entries of a ring, the
//! slots of a queue. Its length is a power of two, and only the low bits of an index are used, so
//! no index is out of range. The array's own range is checked once, when the array is made.

#[cfg(not(loom))]
pub use machine::SharedArray;
#[cfg(loom)]
pub use model::SharedArray;

#[cfg(not(loom))]
mod machine {
    use crate::plain::Plain;
    use crate::shared::{self, SharedMemory};
    use crate::sync::{Arc, AtomicU16};
    use core::marker::PhantomData;
    use core::ptr::NonNull;

    /// An array of values in shared memory. The distance between the starts of two values is
    /// `STRIDE` bytes.
    pub struct SharedArray<T, const STRIDE: usize> {
        /// Keeps the memory mapped.
        _memory: Arc<SharedMemory>,
        first: NonNull<u8>,
        mask: usize,
        values: PhantomData<T>,
    }

    // SAFETY: all accesses are those of `SharedMemory`, which is `Send`.
    unsafe impl<T, const STRIDE: usize> Send for SharedArray<T, STRIDE> {}
    // SAFETY: all accesses are those of `SharedMemory`, which is `Sync`.
    unsafe impl<T, const STRIDE: usize> Sync for SharedArray<T, STRIDE> {}

    impl<T, const STRIDE: usize> SharedArray<T, STRIDE> {
        /// Makes an array of `count` values, the first at `offset`.
        pub fn new(memory: &Arc<SharedMemory>, offset: usize, count: usize) -> Self {
            const { assert!(STRIDE.is_multiple_of(align_of::<T>()) && STRIDE >= size_of::<T>()) };
            assert!(count.is_power_of_two(), "the length of a shared array is a power of two");
            let first = memory.part(offset, (count - 1) * STRIDE + size_of::<T>(), align_of::<T>());
            SharedArray { _memory: Arc::clone(memory), first, mask: count - 1, values: PhantomData }
        }

        #[inline(always)]
        fn at(&self, index: usize) -> *mut u8 {
            self.first.as_ptr().wrapping_add((index & self.mask) * STRIDE)
        }

        /// Prefetches the cache line of a value that is about to be written. The processor gets
        /// exclusive ownership of the line.
        #[inline(always)]
        pub fn prefetch_to_write(&self, index: usize) {
            // SAFETY: `prefetchw` changes no memory and never faults. On a processor that does not
            // know this instruction, it has no effect.
            unsafe { core::arch::asm!("prefetchw [{}]", in(reg) self.at(index), options(nostack, preserves_flags)) };
        }

        /// Prefetches the cache line of a value that is about to be read.
        #[inline(always)]
        pub fn prefetch(&self, index: usize) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch changes no memory and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at(index).cast()) };
        }
    }

    impl<T: Plain, const STRIDE: usize> SharedArray<T, STRIDE> {
        /// Copies the value at `index` out of the array, reading each byte once.
        #[inline(always)]
        pub fn read(&self, index: usize) -> T {
            // SAFETY: `new` has checked that all values lie in the memory, aligned.
            unsafe { shared::copy_from(self.at(index)) }
        }

        /// Copies a value into the array at `index`.
        #[inline(always)]
        pub fn write(&self, index: usize, value: T) {
            // SAFETY: `new` has checked that all values lie in the memory, aligned.
            unsafe { shared::copy_to(self.at(index), value) };
        }
    }

    impl<const STRIDE: usize> SharedArray<AtomicU16, STRIDE> {
        /// Returns the 16-bit word at `index`, as an atomic. The caller chooses the ordering.
        #[inline(always)]
        pub fn half_word(&self, index: usize) -> &AtomicU16 {
            // SAFETY: `new` has checked that the half word lies in the memory, aligned. usring
            // accesses it only as an atomic.
            unsafe { &*self.at(index).cast() }
        }
    }
}

#[cfg(loom)]
mod model {
    use crate::plain::Plain;
    use crate::shared::SharedMemory;
    use crate::sync::{Arc, AtomicU16};
    use core::marker::PhantomData;

    pub struct SharedArray<T, const STRIDE: usize> {
        memory: Arc<SharedMemory>,
        offset: usize,
        mask: usize,
        values: PhantomData<T>,
    }

    impl<T, const STRIDE: usize> SharedArray<T, STRIDE> {
        pub fn new(memory: &Arc<SharedMemory>, offset: usize, count: usize) -> Self {
            assert!(count.is_power_of_two());
            SharedArray { memory: Arc::clone(memory), offset, mask: count - 1, values: PhantomData }
        }

        fn at(&self, index: usize) -> usize {
            self.offset + (index & self.mask) * STRIDE
        }

        /// Does nothing: models have no caches.
        pub fn prefetch_to_write(&self, _: usize) {}

        /// Does nothing: models have no caches.
        pub fn prefetch(&self, _: usize) {}
    }

    impl<T: Plain, const STRIDE: usize> SharedArray<T, STRIDE> {
        pub fn read(&self, index: usize) -> T {
            self.memory.read(self.at(index))
        }

        pub fn write(&self, index: usize, value: T) {
            self.memory.write(self.at(index), value);
        }
    }

    impl<const STRIDE: usize> SharedArray<AtomicU16, STRIDE> {
        pub fn half_word(&self, index: usize) -> &AtomicU16 {
            self.memory.half_word(self.at(index))
        }
    }
}
