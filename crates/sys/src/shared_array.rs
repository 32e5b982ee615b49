//! Values of one kind at even distances in shared memory, a power of two of
//! them: the entries of a ring, the slots of a queue. Of an index only the low
//! bits count, so that what was looked at when an array was made needs no other
//! look on the way of a request.

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

    /// Values with `STRIDE` bytes from one to the next.
    pub struct SharedArray<T, const STRIDE: usize> {
        /// Keeps it mapped.
        _memory: Arc<SharedMemory>,
        first: NonNull<u8>,
        mask: usize,
        values: PhantomData<T>,
    }

    // SAFETY: as for `SharedMemory`, of which this is a part.
    unsafe impl<T, const STRIDE: usize> Send for SharedArray<T, STRIDE> {}
    // SAFETY: as above.
    unsafe impl<T, const STRIDE: usize> Sync for SharedArray<T, STRIDE> {}

    impl<T, const STRIDE: usize> SharedArray<T, STRIDE> {
        /// `count` values, the first of them at `offset`.
        pub fn new(memory: &Arc<SharedMemory>, offset: usize, count: usize) -> Self {
            const { assert!(STRIDE.is_multiple_of(align_of::<T>()) && STRIDE >= size_of::<T>()) };
            assert!(count.is_power_of_two(), "an index wraps by its low bits");
            let first = memory.part(offset, (count - 1) * STRIDE + size_of::<T>(), align_of::<T>());
            SharedArray { _memory: Arc::clone(memory), first, mask: count - 1, values: PhantomData }
        }

        #[inline(always)]
        fn at(&self, index: usize) -> *mut u8 {
            self.first.as_ptr().wrapping_add((index & self.mask) * STRIDE)
        }

        /// Says that the line of a value is going to be written soon: it is
        /// fetched from whoever has it, who loses it.
        #[inline(always)]
        pub fn prefetch_to_write(&self, index: usize) {
            // SAFETY: the instruction changes nothing and never faults; where a
            // processor does not know it, it does nothing.
            unsafe { core::arch::asm!("prefetchw [{}]", in(reg) self.at(index), options(nostack, preserves_flags)) };
        }

        /// Says that the line of a value is going to be read soon.
        #[inline(always)]
        pub fn prefetch(&self, index: usize) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: the instruction changes nothing and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at(index).cast()) };
        }
    }

    impl<T: Plain, const STRIDE: usize> SharedArray<T, STRIDE> {
        /// Copies a value out, each byte once.
        #[inline(always)]
        pub fn read(&self, index: usize) -> T {
            // SAFETY: `new` has seen that all of them lie in the memory, aligned.
            unsafe { shared::copy_from(self.at(index)) }
        }

        /// Copies a value in.
        #[inline(always)]
        pub fn write(&self, index: usize, value: T) {
            // SAFETY: as above.
            unsafe { shared::copy_to(self.at(index), value) };
        }
    }

    impl<const STRIDE: usize> SharedArray<AtomicU16, STRIDE> {
        /// A half word, for whatever order its user needs.
        #[inline(always)]
        pub fn half_word(&self, index: usize) -> &AtomicU16 {
            // SAFETY: as above, and nobody uses it otherwise than atomically.
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

        /// No model has caches.
        pub fn prefetch_to_write(&self, _: usize) {}

        /// As above.
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
