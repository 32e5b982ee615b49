//! Memory whose pages come and go by our own hand: the range that a program
//! sees ([`Window`]), and what a pager does behind it ([`PagedMemory`]).
//!
//! Two kinds:
//! - *anonymous*: private pages; what fills and protects them is
//!   [`crate::userfault`];
//! - *aliased*: a file of memory, mapped twice. The program's view is closed
//!   where a page is out; through the other, contents are read and written.
//!
//! # Guard markers, and what takes them away
//! A guard marker outlives that its file's page is freed (FALLOC_FL_PUNCH_HOLE), but not
//! always: Linux (6.18) first unmaps the hole, then frees page by page, and a page that is
//! mapped again by then is unmapped once more, in all views, *with its markers*. Whoever
//! touches the program's view next gets a fresh page of zeroes instead of a
//! signal. Nobody reads a page that is being freed, but a read fault on another maps up to
//! 15 neighbours along, whatever was advised. So the contents' view is never read
//! where it could fault: pages come into it by write faults, which map no
//! neighbours ([`PagedMemory::prepare_reading`]). In the program's view all pages
//! that are not resident have a marker, and those are left alone.
//!
//! Neither is a forked child's (MADV_DONTFORK): the child would find zeroes
//! where a page is out, or, of a file, share what is meant to be a copy. It finds
//! nothing instead, unless the pager hands the memory down: of anonymous pages the kernel copies those that
//! are there ([`PagedMemory::hand_down`]), and what is not there the child's own pager has to bring; of a file
//! the pager copies them ([`PagedMemory::copy`]), and the child maps the copy ([`PagedMemory::inherit_file`]).

use crate::descriptor::OwnedDescriptor;
use crate::mapping::{PAGE, Source, map_aligned, map_closed_over, map_where, memory_file, unmap};
use crate::per_process::PerProcess;
use crate::{Errno, SystemCall, wait};
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as linux;

/// Memory starts at a multiple of this, in both views. The windows in which Linux
/// maps pages around a read fault (fault_around_bytes) are so aligned and smaller: those of
/// the contents' view stay within one cluster of a pager, and so with its evictor. A
/// second line behind [`PagedMemory::prepare_reading`], for pages that the kernel has
/// taken out of that view in between, to swap them by itself.
const ALIGNED: usize = 2 << 20;

/// How often, and after how long, the kernel is asked again for what it has no memory.
const PATIENCE: u32 = 100;
const PAUSE: u64 = 1_000_000;

/// A value whose address stands for this process.
static PROCESS: PerProcess<u64> = PerProcess::new();

/// The pager's side.
#[derive(Debug)]
pub struct PagedMemory {
    address: usize,
    length: usize,
    /// Where the other view lies, and the file.
    alias: Option<(usize, OwnedDescriptor)>,
    process: &'static u64,
}

/// The program's side: there is one of each memory, which borrows as a slice
/// does. Touching it may raise a signal that the pager serves, as memory that is
/// a file's may.
#[derive(Debug)]
pub struct Window {
    memory: Arc<PagedMemory>,
}

impl Window {
    pub fn memory(&self) -> &Arc<PagedMemory> {
        &self.memory
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: 1. The range is mapped while the memory lives, and any bytes
        // are bytes. 2. There is one window, so who writes has it mutably; the
        // pager changes where the bytes are and never what they are.
        unsafe { core::slice::from_raw_parts(self.memory.address as *const u8, self.memory.length) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only way to write.
        unsafe { core::slice::from_raw_parts_mut(self.memory.address as *mut u8, self.memory.length) }
    }
}

const ANONYMOUS: u32 = linux::MAP_PRIVATE | linux::MAP_ANONYMOUS | linux::MAP_NORESERVE;
const OF_FILE: u32 = linux::MAP_SHARED | linux::MAP_NORESERVE;

fn place(length: usize, at: Option<usize>, flags: u32, source: Option<Source>) -> Result<usize, Errno> {
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
    /// Private pages, at this address if one is given.
    pub fn anonymous(length: usize, at: Option<usize>) -> Result<Window, Errno> {
        let process = PROCESS.get_or_make(|| 0);
        let address = place(length, at, ANONYMOUS, None)?;
        let memory = PagedMemory { address, length, alias: None, process };
        memory.keep_to_process(address, length)?;
        Ok(Window { memory: Arc::new(memory) })
    }

    /// A file of memory, seen twice; the program's view is at this address if one is given.
    pub fn aliased(length: usize, at: Option<usize>) -> Result<Window, Errno> {
        let process = PROCESS.get_or_make(|| 0);
        let file = new_file(length)?;
        let alias = map_aligned(length, ALIGNED, OF_FILE, Some((file.number(), 0)))?;
        let address = match place(length, at, OF_FILE, Some((file.number(), 0))) {
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

    /// Whether a child that is forked now finds in a part what pages are there, and zeroes
    /// where none are. Of anonymous memory only.
    pub fn hand_down(&self, offset: usize, length: usize, handed_down: bool) -> Result<(), Errno> {
        self.check(offset, length);
        assert!(self.alias.is_none(), "a child would share the file");
        let advice = if handed_down { linux::MADV_DOFORK } else { linux::MADV_DONTFORK };
        self.advise(self.address + offset, length, advice)
    }

    /// In the child: what was handed down, as its own.
    pub fn inherit(&self) -> Window {
        assert!(self.alias.is_none(), "of a file nothing is handed down");
        let process = PROCESS.get_or_make(|| 0);
        let memory = PagedMemory { address: self.address, length: self.length, alias: None, process };
        Window { memory: Arc::new(memory) }
    }

    /// A file of memory like this one's, in which nothing is yet.
    pub fn file_for_copy(&self) -> Result<OwnedDescriptor, Errno> {
        new_file(self.length)
    }

    /// Copies what resident pages of aliased memory hold to the same place of another file. Nobody frees a page
    /// meanwhile: where the contents' view is read it may fault, and map neighbours (see this file's head).
    pub fn copy(&self, offset: usize, length: usize, to: &OwnedDescriptor) -> Result<(), Errno> {
        let content = self.content(offset, length);
        let mut done = 0;
        while done < length {
            let (from, at) = (content + done, offset + done);
            let arguments = [to.number() as u64, from as u64, (length - done) as u64, at as u64, 0];
            match SystemCall::new(linux::__NR_pwrite64, arguments).run()? {
                0 => return Err(Errno::ENOMEM),
                written => done += written as usize,
            }
        }
        Ok(())
    }

    /// In the child: these parts of a file that is a copy, where the parent's were. Nobody may touch them before
    /// they are permitted. Where it fails, some may be there already ([`PagedMemory::renounce`]).
    pub fn inherit_file(&self, file: OwnedDescriptor, parts: &[Range<usize>]) -> Result<Window, Errno> {
        let process = PROCESS.get_or_make(|| 0);
        let alias = map_aligned(self.length, ALIGNED, OF_FILE, Some((file.number(), 0)))?;
        let memory = PagedMemory { address: self.address, length: self.length, alias: Some((alias, file)), process };
        let kept = memory.keep_to_process(alias, self.length);
        let mapped = kept.and_then(|()| parts.iter().try_for_each(|part| memory.reclaim(part.start, part.len())));
        if let Err(error) = mapped {
            // It would unmap what lies between the parts, which is not its.
            core::mem::forget(memory);
            return Err(error);
        }
        Ok(Window { memory: Arc::new(memory) })
    }

    /// In the child: what was handed down of a part is not there any more.
    pub fn renounce(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        unmap(self.address + offset, length)
    }

    /// Not a forked child's, and not in huge pages, which would be memory for pages that are
    /// out. (A kernel without huge pages has nothing to advise.)
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

    /// Whether this process made it; a forked child has nothing at its address.
    pub fn is_ours(&self) -> bool {
        PROCESS.get().is_some_and(|process| core::ptr::eq(process, self.process))
    }

    /// Maps resident pages of aliased memory where [`PagedMemory::content`] is. Reading them
    /// unmapped would cost other pages their guard markers (see this file's head).
    ///
    /// Errors: `ENOMEM`, `EFAULT` where a page cannot be mapped; `EINVAL` before Linux 5.14.
    pub fn prepare_reading(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        let Some((alias, _)) = &self.alias else { return Ok(()) };
        self.advise(alias + offset, length, linux::MADV_POPULATE_WRITE)
    }

    /// Which pages of up to 64 are not in memory, a bit each: those the kernel has swapped out
    /// by itself are among them.
    pub fn absent(&self, offset: usize, length: usize) -> Result<u64, Errno> {
        self.check(offset, length);
        let mut resident = [0u8; 64];
        let pages = length / PAGE;
        assert!(pages <= resident.len());
        let arguments = [(self.address + offset) as u64, length as u64, resident.as_mut_ptr() as u64, 0, 0];
        SystemCall::new(linux::__NR_mincore, arguments).run()?;
        let absent = resident[..pages].iter().enumerate().filter(|(_, resident)| **resident & 1 == 0);
        Ok(absent.fold(0, |bits, (page, _)| bits | 1 << page))
    }

    /// Where the contents can be read at any time, while they are resident.
    pub fn content(&self, offset: usize, length: usize) -> usize {
        self.check(offset, length);
        self.alias.as_ref().map_or(self.address, |(alias, _)| *alias) + offset
    }

    fn check(&self, offset: usize, length: usize) {
        let within = offset.checked_add(length).is_some_and(|end| end <= self.length);
        assert!(within, "{length} bytes at {offset} of {}", self.length);
    }

    fn advise(&self, address: usize, length: usize, advice: u32) -> Result<(), Errno> {
        let arguments = [address as u64, length as u64, u64::from(advice), 0, 0];
        for _ in 0..PATIENCE {
            match SystemCall::new(linux::__NR_madvise, arguments).run() {
                // It has no memory now, or no mapping left ever.
                Err(Errno::EAGAIN) => drop(wait::nanosleep(PAUSE)),
                other => return other.map(drop),
            }
        }
        Err(Errno::ENOMEM)
    }

    /// Closes a part of the program's view by guard markers: touches raise
    /// SIGSEGV from now on. Errors: `EINVAL` where Linux has none (before 6.15).
    pub fn guard(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        self.advise(self.address + offset, length, linux::MADV_GUARD_INSTALL)
    }

    /// Opens it again.
    pub fn unguard(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        self.advise(self.address + offset, length, linux::MADV_GUARD_REMOVE)
    }

    /// Closes or opens a part of the program's view by its protection, which
    /// costs the kernel a mapping for each part.
    pub fn permit(&self, offset: usize, length: usize, permitted: bool) -> Result<(), Errno> {
        self.check(offset, length);
        let protection = if permitted { u64::from(linux::PROT_READ | linux::PROT_WRITE) } else { 0 };
        let arguments = [(self.address + offset) as u64, length as u64, protection, 0, 0];
        SystemCall::new(linux::__NR_mprotect, arguments).run().map(drop)
    }

    /// Gives the pages of a part back to the system; nobody touches it.
    pub fn discard(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        let Some((_, file)) = &self.alias else {
            let address = self.address + offset;
            return match self.advise(address, length, linux::MADV_DONTNEED) {
                // The program has locked all its memory.
                Err(Errno::EINVAL) => self.advise(address, length, linux::MADV_DONTNEED_LOCKED),
                answer => answer,
            };
        };
        let mode = u64::from(linux::FALLOC_FL_PUNCH_HOLE | linux::FALLOC_FL_KEEP_SIZE);
        let arguments = [file.number() as u64, mode, offset as u64, length as u64, 0];
        SystemCall::new(linux::__NR_fallocate, arguments).run().map(drop)
    }

    /// Writes contents behind the program's view. Of aliased memory only.
    pub fn fill(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let (alias, _) = self.alias.as_ref().expect("memory with a second view");
        // SAFETY: 1. In range, and mapped. 2. Its user calls this for pages that
        // nobody else touches: they are closed in the program's view, and the
        // pager has them to itself. No reference into the alias exists.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), (alias + offset) as *mut u8, from.len()) };
    }

    /// Moves private pages from elsewhere into the program's view of a part, for good.
    pub fn replace(&self, offset: usize, length: usize, pages: usize) -> Result<(), Errno> {
        self.check(offset, length);
        let flags = u64::from(linux::MREMAP_MAYMOVE | linux::MREMAP_FIXED);
        let arguments = [pages as u64, length as u64, length as u64, flags, (self.address + offset) as u64];
        SystemCall::new(linux::__NR_mremap, arguments).run().map(drop)
    }

    /// Puts the program's view of a part back in place of what was moved there; nobody may touch
    /// it before it is permitted.
    pub fn reclaim(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.check(offset, length);
        let address = self.address + offset;
        match &self.alias {
            None => map_closed_over(address, length, ANONYMOUS, None)?,
            Some((_, file)) => map_closed_over(address, length, OF_FILE, Some((file.number(), offset)))?,
        }
        self.keep_to_process(address, length)
    }

    /// Whether a resident part holds zeroes alone.
    pub fn is_zero(&self, offset: usize, length: usize) -> bool {
        let start = self.content(offset, length);
        assert!(start.is_multiple_of(8) && length.is_multiple_of(PAGE));
        (0..length / 8).all(|index| {
            // SAFETY: in range, mapped, and aligned; nobody writes to it now, and
            // if somebody did, these are atomics.
            unsafe { &*((start + 8 * index) as *const AtomicU64) }.load(Ordering::Relaxed) == 0
        })
    }
}

impl Drop for PagedMemory {
    fn drop(&mut self) {
        // Whatever lies there in a child is not this.
        if !self.is_ours() {
            return;
        }
        let _ = unmap(self.address, self.length);
        if let Some((alias, _)) = &self.alias {
            let _ = unmap(*alias, self.length);
        }
    }
}

/// Pages of a pager's own, through which contents go.
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

    /// # Panics
    /// If it is shorter.
    pub fn bytes(&self, length: usize) -> &[u8] {
        assert!(length <= self.length);
        // SAFETY: ours alone until `drop`; a device writes to it only while
        // its user, who has it mutably, waits for that.
        unsafe { core::slice::from_raw_parts(self.address as *const u8, length) }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let _ = unmap(self.address, self.length);
    }
}
