//! Memory whose pages usring itself evicts and brings back. The program uses the memory through a
//! [`Window`]. The pager (the swap code that moves the pages) uses it through a [`PagedMemory`].
//!
//! There are two kinds:
//! - *anonymous*: private pages. [`crate::userfault`] fills and protects them.
//! - *aliased*: a memfd, mapped twice. The program's view permits no access to evicted pages. The
//!   pager reads and writes the pages through the second view (the *contents' view*).
//!
//! # Guard markers, and when the kernel removes them
//! A guard marker (MADV_GUARD_INSTALL) stays when the file's page below it is freed
//! (FALLOC_FL_PUNCH_HOLE), with one exception. Linux (6.18) first unmaps the hole, then frees page
//! by page. If a page is mapped again in between, Linux unmaps it once more, in all views and *with
//! its markers*. The next access through the program's view then gets a page of zeroes instead of a
//! signal.
//!
//! No thread reads a page that is being freed. But a read fault on another page also maps up to 15
//! neighbours, whatever madvise(2) has set. So the pager never reads the contents' view where the
//! read could fault. It first maps the pages there by write faults, which map no neighbours
//! ([`PagedMemory::prepare_reading`]). In the program's view every page that is not resident has a
//! marker, and the kernel maps no page with a marker.
//!
//! # Forked children
//! A forked child gets neither view (MADV_DONTFORK). Otherwise it would find zeroes in place of an
//! evicted anonymous page. It would also share the pages of a file with its parent, instead of
//! having copies. The child has the memory only if the pager passes it on:
//! - *anonymous*: the kernel copies the pages that are present ([`PagedMemory::set_inherited`]).
//!   The child's own pager has to bring back the evicted ones.
//! - *aliased*: the pager copies the pages ([`PagedMemory::copy`]), and the child maps the copy
//!   ([`PagedMemory::inherit_file`]).

use crate::descriptor::OwnedDescriptor;
use crate::mapping::{PAGE, Source, map_aligned, map_closed_over, map_where, memory_file, unmap};
use crate::per_process::PerProcess;
use crate::{Errno, SystemCall, wait, width};
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// Alignment of both views, in bytes. A read fault also maps neighbouring pages, within an aligned
/// window that is smaller than this (fault_around_bytes). So in the contents' view one read fault
/// maps only pages of one cluster (pages that the pager evicts together). This matters because
/// another thread may be evicting the next cluster meanwhile.
///
/// Such reads can fault although [`PagedMemory::prepare_reading`] has mapped the pages: the kernel
/// may have unmapped some of them since then, to swap them itself.
const ALIGNED: usize = 2 << 20;

/// If the kernel refuses a call for lack of memory: the maximum number of attempts, and the pause
/// between two attempts in nanoseconds.
const MOST_ATTEMPTS: u32 = 100;
const PAUSE: u64 = 1_000_000;

/// A value whose address identifies this process.
static PROCESS: PerProcess<u64> = PerProcess::new();

/// Memory whose pages usring evicts, with the pager's operations on it.
#[derive(Debug)]
pub struct PagedMemory {
    address: usize,
    length: usize,
    /// For aliased memory: the address of the contents' view, and the memfd.
    alias: Option<(usize, OwnedDescriptor)>,
    process: &'static u64,
}

/// The program's view of a [`PagedMemory`], which has only one window. An access to it may raise a
/// signal. The signal's handler calls the pager, which brings the page back.
#[derive(Debug)]
pub struct Window {
    memory: Arc<PagedMemory>,
}

impl Window {
    pub fn memory(&self) -> &Arc<PagedMemory> {
        &self.memory
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: 1. The range is mapped while `memory` lives, and any bytes are valid `u8`. 2.
        // There is one window, so only a mutable borrow of it can write. The pager moves the bytes
        // and never changes them.
        unsafe { core::slice::from_raw_parts(self.memory.address as *const u8, self.memory.length) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: 1. The range is mapped while `memory` lives, and any bytes are valid `u8`. 2.
        // There is one window, and `&mut self` excludes other references into it.
        unsafe { core::slice::from_raw_parts_mut(self.memory.address as *mut u8, self.memory.length) }
    }
}

const ANONYMOUS: u32 = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_NORESERVE;
const OF_FILE: u32 = linux::MAP_SHARED | linux::MAP_NORESERVE;

fn map_memory(length: usize, at: Option<usize>, flags: u32, source: Option<Source>) -> Result<usize, Errno> {
    match at {
        Some(address) if !address.is_multiple_of(ALIGNED) => Err(Errno::EINVAL),
        Some(address) => map_where(address, length, flags, source),
        None => map_aligned(length, ALIGNED, flags, source),
    }
}

fn new_file(length: usize) -> Result<OwnedDescriptor, Errno> {
    memory_file(c"usring-swap", length as u64)
}

impl PagedMemory {
    /// Maps private pages. They begin at the address `at`; `None`: the kernel chooses the address.
    pub fn anonymous(length: usize, at: Option<usize>) -> Result<Window, Errno> {
        let process = PROCESS.get_or_make(|| 0);
        let address = map_memory(length, at, ANONYMOUS, None)?;
        let memory = PagedMemory { address, length, alias: None, process };
        memory.keep_to_process(address, length)?;
        Ok(Window { memory: Arc::new(memory) })
    }

    /// Maps a new memfd twice. The program's view begins at the address `at`; `None`: the kernel
    /// chooses the address.
    pub fn aliased(length: usize, at: Option<usize>) -> Result<Window, Errno> {
        let process = PROCESS.get_or_make(|| 0);
        let file = new_file(length)?;
        let alias = map_aligned(length, ALIGNED, OF_FILE, Some((file.number(), 0)))?;
        let address = match map_memory(length, at, OF_FILE, Some((file.number(), 0))) {
            Ok(address) => address,
            Err(error) => {
                let _ = unmap(alias, length);
                return Err(error);
            }
        };
        let memory = PagedMemory { address, length, alias: Some((alias, file)), process };
        for view in [address, alias] {
            memory.keep_to_process(view, length)?;
        }
        Ok(Window { memory: Arc::new(memory) })
    }

    /// Sets whether a child gets a copy of a part of the memory, if it is forked from now on. The
    /// copy has the resident pages, and zeroes in place of the other pages. Only for anonymous
    /// memory.
    pub fn set_inherited(&self, offset: usize, length: usize, inherited: bool) -> Result<(), Errno> {
        self.check(offset, length);
        assert!(self.alias.is_none(), "a child would share the file");
        let advice = if inherited { linux::MADV_DOFORK } else { linux::MADV_DONTFORK };
        self.advise(self.address + offset, length, advice)
    }

    /// Makes the window of the anonymous memory that a forked child has inherited. Called in the
    /// child.
    pub fn inherit(&self) -> Window {
        assert!(self.alias.is_none(), "a child does not inherit memory of a file");
        let process = PROCESS.get_or_make(|| 0);
        let memory = PagedMemory { address: self.address, length: self.length, alias: None, process };
        Window { memory: Arc::new(memory) }
    }

    /// Makes a memfd of zeroes with the length of this memory.
    pub fn file_for_copy(&self) -> Result<OwnedDescriptor, Errno> {
        new_file(self.length)
    }

    /// Copies the content of resident pages of aliased memory to their offsets in another file. No
    /// thread may free a page meanwhile: the read of the contents' view may fault, and then maps
    /// neighbouring pages, too (see the head of this file).
    pub fn copy(&self, offset: usize, length: usize, to: &OwnedDescriptor) -> Result<(), Errno> {
        let content = self.readable_address(offset, length);
        let mut done = 0;
        while done < length {
            let (from, at) = (content + done, offset + done);
            let arguments = [width::word(to.number()), from as u64, (length - done) as u64, at as u64, 0];
            match SystemCall::new(linux::__NR_pwrite64, arguments).run()? {
                0 => return Err(Errno::ENOMEM),
                written => done += width::size(written),
            }
        }
        Ok(())
    }

    /// Called in a forked child: maps `parts` of `file` at the parent's addresses. `file` is a copy
    /// that the parent made ([`PagedMemory::copy`]). The parts permit no access until the child's
    /// pager calls [`PagedMemory::set_permitted`]. After an error some parts may be mapped already;
    /// the caller unmaps them by [`PagedMemory::unmap_in_child`].
    pub fn inherit_file(&self, file: OwnedDescriptor, parts: &[Range<usize>]) -> Result<Window, Errno> {
        let process = PROCESS.get_or_make(|| 0);
        let alias = map_aligned(self.length, ALIGNED, OF_FILE, Some((file.number(), 0)))?;
        let memory = PagedMemory { address: self.address, length: self.length, alias: Some((alias, file)), process };
        let kept = memory.keep_to_process(alias, self.length);
        let mapped = kept.and_then(|()| parts.iter().try_for_each(|part| memory.reclaim(part.start, part.len())));
        if let Err(error) = mapped {
            // The drop of `memory` would unmap its whole address range. Between the parts, other
            // mappings may lie in that range.
            core::mem::forget(memory);
            return Err(error);
        }
        Ok(Window { memory: Arc::new(memory) })
    }

    /// Unmaps a part that the child has inherited.
    pub fn unmap_in_child(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        unmap(self.address + offset, length)
    }

    /// Makes forked children not inherit a range, and keeps huge pages out of it. (A huge page
    /// would allocate memory for evicted pages, too. A kernel without huge pages refuses this
    /// advice, which does no harm.)
    fn keep_to_process(&self, address: usize, length: usize) -> Result<(), Errno> {
        self.advise(address, length, linux::MADV_DONTFORK)?;
        let _ = self.advise(address, length, linux::MADV_NOHUGEPAGE);
        Ok(())
    }

    pub fn address(&self) -> usize {
        self.address
    }

    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns whether this process mapped the memory. `false` in a forked child, where the
    /// addresses are not mapped.
    pub fn is_ours(&self) -> bool {
        PROCESS.get().is_some_and(|process| core::ptr::eq(process, self.process))
    }

    /// Maps resident pages of aliased memory in the contents' view, before the pager reads them
    /// there ([`PagedMemory::readable_address`]). A read of a page that is not mapped in this view
    /// could remove the guard markers of other pages (see the head of this file).
    ///
    /// Errors: `ENOMEM`, `EFAULT` if a page cannot be mapped; `EINVAL` before Linux 5.14.
    pub fn prepare_reading(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        let Some((alias, _)) = &self.alias else { return Ok(()) };
        self.advise(alias + offset, length, linux::MADV_POPULATE_WRITE)
    }

    /// Returns which of up to 64 pages are not in memory, by mincore(2). Bit n stands for the nth
    /// page from `offset` on, counted from 0. A page that the kernel itself has swapped out counts
    /// as absent.
    pub fn absent_pages(&self, offset: usize, length: usize) -> Result<u64, Errno> {
        self.check(offset, length);
        let mut resident = [0u8; 64];
        let pages = length / PAGE;
        assert!(pages <= resident.len());
        let arguments = [(self.address + offset) as u64, length as u64, resident.as_mut_ptr() as u64, 0, 0];
        SystemCall::new(linux::__NR_mincore, arguments).run()?;
        let absent = resident[..pages].iter().enumerate().filter(|(_, resident)| **resident & 1 == 0);
        Ok(absent.fold(0, |bits, (page, _)| bits | 1 << page))
    }

    /// Returns the address at which the pager can read a resident part of the memory. For aliased
    /// memory, the address lies in the contents' view (the pager's own mapping).
    pub fn readable_address(&self, offset: usize, length: usize) -> usize {
        self.check(offset, length);
        self.alias.as_ref().map_or(self.address, |(alias, _)| *alias) + offset
    }

    fn check(&self, offset: usize, length: usize) {
        let within = offset.checked_add(length).is_some_and(|end| end <= self.length);
        assert!(within, "{length} bytes at {offset} of {}", self.length);
    }

    fn advise(&self, address: usize, length: usize, advice: u32) -> Result<(), Errno> {
        let arguments = [address as u64, length as u64, u64::from(advice), 0, 0];
        for _ in 0..MOST_ATTEMPTS {
            match SystemCall::new(linux::__NR_madvise, arguments).run() {
                // The kernel has no memory now, or the process has reached its limit of mappings.
                Err(Errno::EAGAIN) => drop(wait::nanosleep(PAUSE)),
                other => return other.map(drop),
            }
        }
        Err(Errno::ENOMEM)
    }

    /// Installs guard markers on a part of the program's view. Each access to the part then raises
    /// SIGSEGV. Errors: `EINVAL` if the kernel has no guard markers for this memory (before Linux
    /// 6.15).
    pub fn guard(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        self.advise(self.address + offset, length, linux::MADV_GUARD_INSTALL)
    }

    /// Removes the guard markers from a part of the program's view.
    pub fn unguard(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        self.advise(self.address + offset, length, linux::MADV_GUARD_REMOVE)
    }

    /// Permits or forbids all access to a part of the program's view by mprotect(2). If
    /// neighbouring parts have different protections, they are separate mappings, whose number the
    /// kernel limits.
    pub fn set_permitted(&self, offset: usize, length: usize, permitted: bool) -> Result<(), Errno> {
        self.check(offset, length);
        let protection = if permitted { u64::from(linux::PROT_READ | linux::PROT_WRITE) } else { 0 };
        let arguments = [(self.address + offset) as u64, length as u64, protection, 0, 0];
        SystemCall::new(linux::__NR_mprotect, arguments).run().map(drop)
    }

    /// Frees the pages of a part of the memory. No thread may access them meanwhile.
    pub fn discard(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        let Some((_, file)) = &self.alias else {
            let address = self.address + offset;
            return match self.advise(address, length, linux::MADV_DONTNEED) {
                // EINVAL: the program has locked its memory (mlockall(2)).
                Err(Errno::EINVAL) => self.advise(address, length, linux::MADV_DONTNEED_LOCKED),
                answer => answer,
            };
        };
        let mode = u64::from(linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE);
        let arguments = [width::word(file.number()), mode, offset as u64, length as u64, 0];
        SystemCall::new(linux::__NR_fallocate, arguments).run().map(drop)
    }

    /// Writes `from` to the pages at `offset` of aliased memory, through the contents' view (the
    /// pager's own mapping).
    pub fn fill(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let (alias, _) = self.alias.as_ref().expect("aliased memory has a second view");
        // SAFETY: 1. The target is in range, and mapped. 2. The caller fills only pages to which
        // the program's view permits no access, and only one thread of the pager uses them. 3. No
        // reference into the contents' view exists.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), (alias + offset) as *mut u8, from.len()) };
    }

    /// Moves private pages from the address `pages` to a part of the program's view, by mremap(2).
    pub fn replace(&self, offset: usize, length: usize, pages: usize) -> Result<(), Errno> {
        self.check(offset, length);
        let flags = u64::from(linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED);
        let arguments = [pages as u64, length as u64, length as u64, flags, (self.address + offset) as u64];
        SystemCall::new(linux::__NR_mremap, arguments).run().map(drop)
    }

    /// Maps a part of the program's view again, in place of any memory that is mapped there. The
    /// part permits no access until [`PagedMemory::set_permitted`] permits it.
    pub fn reclaim(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        let address = self.address + offset;
        match &self.alias {
            None => map_closed_over(address, length, ANONYMOUS, None)?,
            Some((_, file)) => map_closed_over(address, length, OF_FILE, Some((file.number(), offset)))?,
        }
        self.keep_to_process(address, length)
    }

    /// Returns whether all bytes of a resident part of the memory are zero.
    pub fn is_zero(&self, offset: usize, length: usize) -> bool {
        let start = self.readable_address(offset, length);
        assert!(start.is_multiple_of(8) && length.is_multiple_of(PAGE));
        (0..length / 8).all(|index| {
            // SAFETY: the word is in range, mapped, and aligned. The load is atomic, so another
            // thread may write the word concurrently.
            unsafe { &*((start + 8 * index) as *const AtomicU64) }.load(Ordering::Relaxed) == 0
        })
    }
}

impl Drop for PagedMemory {
    fn drop(&mut self) {
        // In a forked child, other mappings may lie at these addresses, so nothing is unmapped.
        if !self.is_ours() {
            return;
        }
        let _ = unmap(self.address, self.length);
        if let Some((alias, _)) = &self.alias {
            let _ = unmap(*alias, self.length);
        }
    }
}

/// A bounce buffer: private pages through which the pager transfers pages of the program to and
/// from a device.
#[derive(Debug)]
pub struct Bounce {
    address: usize,
    length: usize,
}

impl Bounce {
    pub fn new(length: usize) -> Result<Self, Errno> {
        let length = length.next_multiple_of(PAGE);
        Ok(Bounce { address: crate::mapping::private_pages(length)?, length })
    }

    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the first `length` bytes of the bounce buffer.
    ///
    /// # Panics
    /// If the buffer is shorter than `length`.
    pub fn bytes(&self, length: usize) -> &[u8] {
        assert!(length <= self.length);
        // SAFETY: 1. The pages are mapped until `drop`, and only this value uses them. 2. A device
        // writes to them only during a transfer. The thread that makes the transfer borrows the
        // buffer's owner mutably until the transfer is over, so no slice of this function exists
        // meanwhile.
        unsafe { core::slice::from_raw_parts(self.address as *const u8, length) }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let _ = unmap(self.address, self.length);
    }
}
