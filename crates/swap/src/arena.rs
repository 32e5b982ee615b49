//! An allocator for the memory of a swap region. Its metadata lies outside the region. So an
//! allocation or a free never reads a page back from the backing store.
//!
//! - Blocks of up to half a page have eight sizes, all powers of two. All blocks in a page of small
//!   blocks have one size. A freed small block is reused only for its size.
//! - Larger blocks are whole pages. Freed pages are discarded: they take neither memory nor slots
//!   of the backing store, and hold zeroes when they are allocated again.

use crate::region::SwapRegion;
use core::ops::Range;
use usring_sys::Errno;
use usring_sys::mutex::Mutex;
use usring_sys::page_array::PageArray;
use usring_sys::sync::{AtomicU32, AtomicU64, Ordering};
use usring_sys::width;

/// Number of sizes of small blocks (size classes).
const CLASSES: usize = 8;
/// Number of blocks of the smallest size class in a page.
const MOST_BLOCKS: usize = 256;
const WORDS: usize = MOST_BLOCKS / 64;

/// The two highest bits of a page's entry. `RUN`: the first page of a block of whole pages.
/// `SMALL`: a page of small blocks. 0: no block starts in the page.
const KIND: u32 = 3 << 30;
const RUN: u32 = 1 << 30;
const SMALL: u32 = 2 << 30;

/// Memory of a region, handed out in blocks.
pub struct Arena {
    region: SwapRegion,
    page: usize,
    pages: usize,
    /// Protects the allocator's metadata. Not locked while pages are discarded.
    state: Mutex<State>,
    /// One bit for each page, set if the page is allocated.
    used: PageArray<AtomicU64>,
    /// An entry for each page. The two highest bits are the page's kind ([`KIND`]). The other bits
    /// are the block's number of pages (`RUN`), or the size class of the page's blocks (`SMALL`).
    entries: PageArray<AtomicU32>,
    /// For each page of small blocks: one bit for each block, set if the block is allocated.
    blocks: PageArray<AtomicU64>,
    /// Links of eight lists, one for each size class. A list has the pages of its class in which a
    /// small block is free. A page's entry here is the number of the next page in its list, plus
    /// one; 0 at the end of the list.
    links: PageArray<AtomicU32>,
}

struct State {
    /// The page at which the next search for several pages begins.
    next: usize,
    /// For each size class: the first page of its list in [`Arena::links`], plus one. 0 if no page
    /// of the class has a free block.
    partial: [u32; CLASSES],
}

impl Arena {
    /// Makes an allocator on a region. Errors: `ENOMEM`; `EINVAL` for a region with too many pages.
    pub fn new(region: SwapRegion) -> Result<Self, Errno> {
        let page = region.page_size();
        let pages = region.size() / page;
        if pages >= KIND as usize >> 2 {
            return Err(Errno::EINVAL);
        }
        Ok(Arena {
            page,
            pages,
            state: Mutex::new(State { next: 0, partial: [0; CLASSES] }),
            used: PageArray::new(pages.div_ceil(64))?,
            entries: PageArray::new(pages)?,
            blocks: PageArray::new(pages * WORDS)?,
            links: PageArray::new(pages)?,
            region,
        })
    }

    pub fn region(&self) -> &SwapRegion {
        &self.region
    }

    /// Returns whether an address lies in the arena.
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.region.as_ptr() as usize) < self.region.size()
    }

    fn size_of_class(&self, class: usize) -> usize {
        (self.page / MOST_BLOCKS) << class
    }

    /// Allocates a block. Returns the block's address, and whether the block is known to hold
    /// zeroes. `None` if the region has no room, or if the alignment is larger than a page.
    pub fn allocate(&self, size: usize, alignment: usize) -> Option<(usize, bool)> {
        if alignment > self.page {
            return None;
        }
        let start = self.region.as_ptr() as usize;
        let wanted = size.max(alignment).max(1);
        let class = (0..CLASSES).find(|class| self.size_of_class(*class) >= wanted);
        match class {
            Some(class) => self.allocate_small(class).map(|offset| (start + offset, false)),
            None => self.allocate_pages(size.div_ceil(self.page)).map(|page| (start + page * self.page, true)),
        }
    }

    fn allocate_small(&self, class: usize) -> Option<usize> {
        let mut state = self.state.lock();
        let page = match state.partial[class] {
            0 => {
                let page = self.take_pages(&mut state, 1)?;
                self.entries[page].store(SMALL | width::count(class), Ordering::Relaxed);
                self.links[page].store(0, Ordering::Relaxed);
                state.partial[class] = width::count(page) + 1;
                page
            }
            page => page as usize - 1,
        };
        let count = MOST_BLOCKS >> class;
        let words = &self.blocks[page * WORDS..(page + 1) * WORDS];
        let free = |index: &usize| words[index / 64].load(Ordering::Relaxed) & 1 << (index % 64) == 0;
        let index = (0..count).find(free)?;
        words[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        if !(index + 1..count).any(|index| free(&index)) {
            state.partial[class] = self.links[page].load(Ordering::Relaxed);
        }
        Some(page * self.page + index * self.size_of_class(class))
    }

    fn allocate_pages(&self, count: usize) -> Option<usize> {
        let mut state = self.state.lock();
        let page = self.take_pages(&mut state, count)?;
        self.entries[page].store(RUN | width::count(count), Ordering::Relaxed);
        Some(page)
    }

    fn take_pages(&self, state: &mut State, count: usize) -> Option<usize> {
        if count > self.pages {
            return None;
        }
        // Most single pages are for small blocks. The search for a single page begins at the
        // region's start, so these pages stay together.
        let from_next = if count == 1 { None } else { self.find(state.next..self.pages, count) };
        let first = from_next.or_else(|| self.find(0..self.pages, count))?;
        for page in first..first + count {
            self.used[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
        if count > 1 {
            state.next = first + count;
        }
        Some(first)
    }

    /// Returns the first of `count` adjacent free pages in a range. `None` if there are no such
    /// pages.
    fn find(&self, within: Range<usize>, count: usize) -> Option<usize> {
        let (mut page, mut found) = (within.start, 0);
        while page < within.end {
            let word = self.used[page / 64].load(Ordering::Relaxed);
            if page.is_multiple_of(64) && word == u64::MAX {
                found = 0;
                page += 64;
                continue;
            }
            found = if word & 1 << (page % 64) == 0 { found + 1 } else { 0 };
            page += 1;
            if found == count {
                return Some(page - count);
            }
        }
        None
    }

    /// Returns the size of the block at an address, which is at least the size that was requested.
    ///
    /// # Panics
    /// If no block starts at the address.
    pub fn size_of(&self, address: usize) -> usize {
        let (page, _) = self.locate(address);
        let entry = self.entries[page].load(Ordering::Relaxed);
        match entry & KIND {
            RUN => (entry & !KIND) as usize * self.page,
            _ => self.size_of_class((entry & !KIND) as usize),
        }
    }

    /// Returns the page in which a block starts, and the block's index in that page.
    fn locate(&self, address: usize) -> (usize, usize) {
        assert!(self.contains(address), "{address:#x} is not a block of this arena");
        let offset = address - self.region.as_ptr() as usize;
        let (page, within) = (offset / self.page, offset % self.page);
        let entry = self.entries[page].load(Ordering::Relaxed);
        let index = match entry & KIND {
            RUN => {
                assert!(within == 0, "{address:#x} is within a block");
                0
            }
            SMALL => {
                let size = self.size_of_class((entry & !KIND) as usize);
                assert!(within.is_multiple_of(size), "{address:#x} is within a block");
                within / size
            }
            _ => panic!("{address:#x} is not a block, or was freed before"),
        };
        (page, index)
    }

    /// Frees a block.
    ///
    /// # Panics
    /// If no block starts at the address.
    pub fn free(&self, address: usize) {
        let (page, index) = self.locate(address);
        let entry = self.entries[page].load(Ordering::Relaxed);
        if entry & KIND == SMALL {
            return self.free_small(page, index, (entry & !KIND) as usize);
        }
        let count = (entry & !KIND) as usize;
        self.entries[page].store(0, Ordering::Relaxed);
        // The pages become free for allocations only after they are discarded. If a system call has
        // pinned one of them, the discard fails, and the pages of this block are never allocated
        // again.
        if self.region.discard_shared(page * self.page..(page + count) * self.page).is_ok() {
            let _state = self.state.lock();
            for page in page..page + count {
                self.used[page / 64].fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
            }
        }
    }

    fn free_small(&self, page: usize, index: usize, class: usize) {
        let mut state = self.state.lock();
        let words = &self.blocks[page * WORDS..(page + 1) * WORDS];
        let count = MOST_BLOCKS >> class;
        let was_full = (0..count).all(|index| words[index / 64].load(Ordering::Relaxed) & 1 << (index % 64) != 0);
        let before = words[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
        assert!(before & 1 << (index % 64) != 0, "a block was freed twice");
        if was_full {
            self.links[page].store(state.partial[class], Ordering::Relaxed);
            state.partial[class] = width::count(page) + 1;
        }
    }
}
