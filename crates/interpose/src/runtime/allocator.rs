//! The allocator of all of usring's data. It maps its own pages by mmap(2). So a call that arrives
//! while the program is inside malloc needs no lock of the program's.
//!
//! Each size class of blocks has a free list. New blocks are cut off a *region*: unused memory from
//! the last mmap(2). Blocks of more than [`LARGEST`] bytes are mappings of their own. One lock
//! protects all lists. No call on a ring's hot path allocates in the steady state. No signal
//! handler interrupts a holder of the lock, because signals are deferred (see `signals`).
//!
//! # When the kernel has no more memory
//! The allocator keeps a reserve of [`RESERVE`] bytes of mapped memory
//! ([`Allocator::keep_reserve`]). If the kernel has no memory for a block, the block comes off the
//! end of the reserve, and is freed like any other. From then on [`memory_reserve`] refuses the
//! program's calls until [`Allocator::refill`] has succeeded.
//!
//! # fork
//! The lists and the lock lie on a page that is zeroed in a forked child (MADV_WIPEONFORK). So a
//! child never waits for a lock that another thread of its parent held. The parent's blocks stay
//! readable in the child. If the child frees one of them, the block goes to the child's lists.
//!
//! # Limits
//! Freed small blocks stay in the list of their size class and are never returned to the kernel. A
//! block cannot be aligned to more than a page.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use usring_sys::mapping::{self, PAGE};
use usring_sys::{Errno, SystemCall, futex, memory_reserve};
use usring_uapi::general as linux;

/// Bytes of the largest block that the allocator cuts off a larger mapping. A larger block is a
/// mapping of its own.
const LARGEST: usize = 32 * 1024;
/// Bytes of the reserve, which are more than any one call of the program allocates.
const RESERVE: usize = 8 << 20;
/// Bytes requested from the kernel at a time.
const REGION: usize = 128 * 1024;
/// Number of size classes. Their sizes are 16, 32, 48, 64, 96, 128 … 32768 bytes. From 32 on, there
/// are two classes for each power of two. (24 is no size, because a block of 24 bytes would leave
/// the next block unaligned.)
const CLASSES: usize = 22;
/// Alignment of every block.
const ALIGNED: usize = 16;

/// The free lists and their lock, alone on a page that is zeroed in a forked child.
#[repr(C)]
struct Lists {
    /// State of the lock on the free lists. 0: free; 1: locked; 2: locked, and another thread
    /// waits.
    lock: AtomicU32,
    /// Start of the unused part of the current region.
    next: usize,
    /// End of the current region.
    end: usize,
    free: [*mut Block; CLASSES],
}

#[repr(C)]
struct Block {
    next: *mut Block,
}

pub struct Allocator {
    lists: AtomicPtr<Lists>,
    reserve: Reserve,
}

/// A reserve of mapped memory, for the time when the kernel has no more memory. Its fields change
/// under the lock of the free lists. A forked child has a copy of the reserve.
struct Reserve {
    start: AtomicUsize,
    /// Number of bytes of the reserve that are left; 0 while the reserve is being filled.
    left: AtomicUsize,
}

impl Reserve {
    /// Cuts pages off the end of the reserve. From then on, the pages no longer belong to the
    /// reserve. Returns null if too few pages are left.
    #[cold]
    fn take(&self, length: usize) -> *mut u8 {
        let length = length.next_multiple_of(PAGE);
        let Some(left) = self.left.load(Ordering::Relaxed).checked_sub(length) else { return null_mut() };
        memory_reserve::begin();
        self.left.store(left, Ordering::Relaxed);
        (self.start.load(Ordering::Relaxed) + left) as *mut u8
    }

    /// Fills the reserve. Returns whether the reserve is full afterwards.
    fn fill(&self) -> bool {
        let left = self.left.swap(0, Ordering::Relaxed);
        let filled = match left {
            RESERVE => Ok(self.start.load(Ordering::Relaxed)),
            0 => mapping::offered_pages(RESERVE),
            _ => mapping::resize(self.start.load(Ordering::Relaxed), left, RESERVE),
        };
        if let Ok(start) = filled {
            self.start.store(start, Ordering::Relaxed);
            memory_reserve::end();
        }
        self.left.store(if filled.is_ok() { RESERVE } else { left }, Ordering::Relaxed);
        filled.is_ok()
    }
}

const _: () = assert!(size_of::<Lists>() <= PAGE);

/// Returns the smallest class whose blocks hold `size` bytes.
const fn class_of(size: usize) -> usize {
    if size <= 16 {
        return 0;
    }
    if size <= 32 {
        return 1;
    }
    // `upper` is the smallest power of two that is not below `size`. The next smaller class has
    // blocks of three quarters of `upper`, which may be large enough, too.
    let power = usize::BITS - (size - 1).leading_zeros();
    let upper = 1usize << power;
    let index = 1 + 2 * (power as usize - 5);
    if size <= upper / 4 * 3 { index - 1 } else { index }
}

const fn size_of_class(class: usize) -> usize {
    match class {
        0 => 16,
        1 => 32,
        _ => {
            let power = 5 + class / 2;
            if class.is_multiple_of(2) { (1 << power) / 4 * 3 } else { 1 << power }
        }
    }
}

const _: () = {
    assert!(size_of_class(CLASSES - 1) == LARGEST);
    let mut size = 1;
    while size <= LARGEST {
        let class = class_of(size);
        assert!(class < CLASSES && size_of_class(class) >= size);
        assert!(class == 0 || size_of_class(class - 1) < size);
        size += 1;
    }
};

/// Returns the size of the block that a layout gets. If the layout's alignment is above
/// [`ALIGNED`], the size is rounded up to a power of two. A block whose size is a power of two is
/// aligned to its size (up to a page).
fn rounded(layout: Layout) -> usize {
    if layout.align() <= ALIGNED { layout.size() } else { layout.size().max(layout.align()).next_power_of_two() }
}

impl Allocator {
    pub const fn new() -> Self {
        let reserve = Reserve { start: AtomicUsize::new(0), left: AtomicUsize::new(0) };
        Allocator { lists: AtomicPtr::new(null_mut()), reserve }
    }

    /// Returns the page with the free lists and their lock. Makes it on first use. Returns null if
    /// there is no memory for it.
    fn lists(&self) -> *mut Lists {
        let lists = self.lists.load(Ordering::Acquire);
        if !lists.is_null() {
            return lists;
        }
        let Ok(page) = mapping::private_pages(PAGE) else { return null_mut() };
        let advice = u64::from(linux::MADV_WIPEONFORK);
        // Before Linux 4.14, this madvise(2) fails. A child then inherits the free lists, and
        // perhaps a lock that no thread of the child releases.
        let _ = SystemCall::new(linux::__NR_madvise, [page as u64, PAGE as u64, advice, 0, 0]).run();
        match self.lists.compare_exchange(null_mut(), page as *mut Lists, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => page as *mut Lists,
            Err(first) => {
                let _ = mapping::unmap(page, PAGE);
                first
            }
        }
    }

    /// Keeps a reserve from now on.
    ///
    /// Errors: `ENOMEM`.
    pub fn keep_reserve(&self) -> Result<(), Errno> {
        if self.refill() { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Fills the reserve; returns whether it is full.
    pub fn refill(&self) -> bool {
        self.locked(|_| self.reserve.fill()).unwrap_or(false)
    }

    /// Returns pages from the kernel. If the kernel has no memory, returns pages from the reserve.
    fn pages(&self, length: usize) -> *mut u8 {
        match mapping::private_pages(length) {
            Ok(address) => address as *mut u8,
            Err(_) => self.locked(|_| self.reserve.take(length)).unwrap_or(null_mut()),
        }
    }

    /// Runs `work` on the free lists, with their lock held. `None`: there is no memory for the
    /// lists.
    fn locked<T>(&self, work: impl FnOnce(&mut Lists) -> T) -> Option<T> {
        let lists = self.lists();
        if lists.is_null() {
            return None;
        }
        // SAFETY: 1. The page is mapped, aligned, and never unmapped. At first, and in a forked
        // child, its bytes are zero, which means unlocked empty lists. 2. While the lock is held,
        // no other thread accesses the other fields.
        unsafe {
            let lock = &(*lists).lock;
            acquire(lock);
            let result = work(&mut *lists);
            if lock.swap(0, Ordering::Release) == 2 {
                futex::wake(lock, 1);
            }
            Some(result)
        }
    }
}

fn acquire(lock: &AtomicU32) {
    for _ in 0..100 {
        if lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        core::hint::spin_loop();
    }
    while lock.swap(2, Ordering::Acquire) != 0 {
        let _ = futex::wait(lock, 2, None);
    }
}

impl Lists {
    fn take(&mut self, class: usize, reserve: &Reserve) -> *mut u8 {
        let block = self.free[class];
        if block.is_null() {
            return self.carve(size_of_class(class), reserve);
        }
        // SAFETY: a block on the free list belongs to the allocator, is unused, and holds the link
        // to the next block.
        self.free[class] = unsafe { (*block).next };
        block.cast()
    }

    fn give(&mut self, class: usize, block: *mut Block) {
        // SAFETY: the caller frees the block, so no other code uses it. It has room for a link.
        unsafe { (*block).next = self.free[class] };
        self.free[class] = block;
    }

    /// Cuts a new block off the allocator's unused memory from the last mmap(2). A block whose size
    /// is a power of two is aligned to that size (up to a page).
    fn carve(&mut self, size: usize, reserve: &Reserve) -> *mut u8 {
        let alignment = if size.is_power_of_two() { size.min(PAGE) } else { ALIGNED };
        let start = self.next.next_multiple_of(alignment);
        if self.next == 0 || start + size > self.end {
            let region = match mapping::private_pages(REGION) {
                Ok(region) => region,
                Err(_) => reserve.take(REGION) as usize,
            };
            if region == 0 {
                return null_mut();
            }
            self.next = region + size;
            self.end = region + REGION;
            return region as *mut u8;
        }
        self.next = start + size;
        start as *mut u8
    }
}

// SAFETY: 1. A block has one owner from its allocation (`take` or a new mapping) until it is freed
// (`give` or the end of its mapping). 2. It has the requested size and alignment.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = rounded(layout);
        if layout.align() > PAGE {
            null_mut()
        } else if size > LARGEST {
            self.pages(size)
        } else {
            self.locked(|lists| lists.take(class_of(size), &self.reserve)).unwrap_or(null_mut())
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let size = rounded(layout);
        if size > LARGEST {
            let _ = mapping::unmap(block as usize, size.next_multiple_of(PAGE));
        } else {
            self.locked(|lists| lists.give(class_of(size), block.cast()));
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees the layout, as for `alloc`.
        let block = unsafe { self.alloc(layout) };
        // A block of more than `LARGEST` bytes is a mapping of its own, whose pages the kernel has
        // zeroed.
        if !block.is_null() && rounded(layout) <= LARGEST {
            // SAFETY: `alloc` has just returned a block of at least this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the new size and this alignment form a valid layout.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let (old_size, size) = (rounded(layout), rounded(new));
        if old_size > LARGEST && size > LARGEST {
            let length = |size: usize| size.next_multiple_of(PAGE);
            if let Ok(address) = mapping::resize(block as usize, length(old_size), length(size)) {
                return address as *mut u8;
            }
        }
        if old_size <= LARGEST && size <= LARGEST && class_of(old_size) == class_of(size) {
            return block;
        }
        // SAFETY: the new block is as large as requested. Both blocks are at least as long as the
        // copied bytes. The caller gives up the old block.
        unsafe {
            let fresh = self.alloc(new);
            if !fresh.is_null() {
                fresh.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            fresh
        }
    }
}

// SAFETY: the lists are only touched under their lock.
unsafe impl Sync for Allocator {}
