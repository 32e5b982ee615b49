//! Arrays of atomic words on pages of their own. The words are zero at first, and the kernel
//! allocates a page when it is touched. The swap code uses the arrays for tables whose length is
//! known only at run time. Such a table must not lie in swapped memory. The heap may be swapped
//! memory, so the table cannot lie in the heap.

use crate::Errno;

#[cfg(not(loom))]
pub use machine::PageArray;
#[cfg(loom)]
pub use model::PageArray;

/// An atomic word for which zeroed bytes are a valid value.
pub trait Word: Sync + Send + private::Sealed {
    fn zero() -> Self;
}

mod private {
    pub trait Sealed {}
    impl Sealed for crate::sync::AtomicU32 {}
    impl Sealed for crate::sync::AtomicU64 {}
}

impl Word for crate::sync::AtomicU32 {
    fn zero() -> Self {
        Self::new(0)
    }
}

impl Word for crate::sync::AtomicU64 {
    fn zero() -> Self {
        Self::new(0)
    }
}

#[cfg(not(loom))]
mod machine {
    use super::*;
    use crate::descriptor::OwnedDescriptor;
    use crate::mapping;
    use core::ops::Deref;

    pub struct PageArray<T: Word> {
        address: *mut T,
        count: usize,
    }

    // SAFETY: a `PageArray` owns a slice of atomic words, which are `Send` and `Sync`.
    unsafe impl<T: Word> Send for PageArray<T> {}
    // SAFETY: a `PageArray` owns a slice of atomic words, which are `Send` and `Sync`.
    unsafe impl<T: Word> Sync for PageArray<T> {}

    impl<T: Word> PageArray<T> {
        pub fn new(count: usize) -> Result<Self, Errno> {
            let bytes = count.max(1).checked_mul(size_of::<T>()).ok_or(Errno::ENOMEM)?;
            let address = mapping::private_pages(bytes)? as *mut T;
            Ok(PageArray { address, count })
        }
    }

    impl<T: Word> PageArray<T> {
        /// Maps `count` words of a memfd from the byte `offset` on. Every process that maps them
        /// shares them.
        pub fn of_file(file: &OwnedDescriptor, offset: usize, count: usize) -> Result<Self, Errno> {
            let bytes = count.max(1).checked_mul(size_of::<T>()).ok_or(Errno::ENOMEM)?;
            let source = Some((file.number(), offset));
            let address = mapping::map(bytes, linux_raw_sys::general::MAP_SHARED, source)? as *mut _;
            Ok(PageArray { address, count })
        }
    }

    impl<T: Word> Deref for PageArray<T> {
        type Target = [T];

        #[inline(always)]
        fn deref(&self) -> &[T] {
            // SAFETY: 1. `count` words are mapped until `drop`, aligned. 2. Any bytes are a valid
            // `T`, which is an atomic integer (`Word` is sealed). Every process accesses it as an
            // atomic.
            unsafe { core::slice::from_raw_parts(self.address, self.count) }
        }
    }

    impl<T: Word> Drop for PageArray<T> {
        fn drop(&mut self) {
            let bytes = (self.count.max(1) * size_of::<T>()).next_multiple_of(mapping::PAGE);
            let _ = mapping::unmap(self.address as usize, bytes);
        }
    }
}

#[cfg(loom)]
mod model {
    use super::*;
    use crate::descriptor::OwnedDescriptor;
    use core::ops::Deref;

    pub struct PageArray<T: Word>(std::vec::Vec<T>);

    impl<T: Word> PageArray<T> {
        pub fn new(count: usize) -> Result<Self, Errno> {
            Ok(PageArray((0..count).map(|_| T::zero()).collect()))
        }
    }

    impl<T: Word> PageArray<T> {
        /// Makes private words: loom models have no files.
        pub fn of_file(_: &OwnedDescriptor, _: usize, count: usize) -> Result<Self, Errno> {
            Self::new(count)
        }
    }

    impl<T: Word> Deref for PageArray<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }
}
