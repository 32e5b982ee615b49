//! The mechanisms `Guard` and `Protect`, on a memory file with two mappings: the program's and the
//! pager's.
//!
//! - The program has no access to an absent page, because of a guard marker or the page protection.
//!   Such a page is *closed*.
//! - The pager writes content through its own mapping before it opens the page in the program's
//!   mapping. So no thread sees a page that is only partly filled.
//! - The kernel may add a page of the file to the pager's mapping while it frees that page. It then
//!   also removes the page's guard marker from the program's mapping. `usring_sys::paged_memory`
//!   explains how the pager avoids this when it reads. A test there shows how markers are lost.
//! - A forked child gets a file of its own: otherwise parent and child would share one file. The
//!   parent copies the resident pages into the child's file. The resident pages are closed until
//!   the fork, so that the child's memory is a snapshot of one moment. The exception is a page that
//!   a system call of another thread has pinned.

use super::{Copied, Mechanism, MechanismKind, Prepared, Resident};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::mapping::PAGE;
use usring_sys::paged_memory::PagedMemory;
use usring_sys::{Errno, UserAddress, user_memory};

struct Aliased {
    memory: Arc<PagedMemory>,
    guards: bool,
    /// Length in bytes of the first part of the memory, in which absent pages have guard markers.
    /// The rest of the memory is mapped without access. If the rest had guard markers, they would
    /// need page tables: one page for each 2 MiB.
    extent: AtomicUsize,
}

/// Bytes that one page table covers.
const TABLE: usize = 2 << 20;

pub fn prepare(kind: MechanismKind, length: usize, at: Option<usize>) -> Result<Prepared, Errno> {
    let window = PagedMemory::aliased(length, at)?;
    let memory = window.memory().clone();
    memory.set_permitted(0, length, false)?;
    let mechanism = Aliased { memory, guards: kind == MechanismKind::Guard, extent: AtomicUsize::new(0) };
    mechanism.extend(PAGE)?;
    mechanism.check()?;
    Ok(Prepared { window, mechanism: Box::new(mechanism), events: None })
}

impl Aliased {
    /// Checks that a closed page cannot be read, even after its memory was freed. The check is
    /// needed because of sandboxes. Some sandboxes accept the system calls that close a page, but
    /// do nothing.
    fn check(&self) -> Result<(), Errno> {
        user_memory::install_fault_handler();
        self.memory.discard(0, PAGE)?;
        let first = UserAddress(self.memory.address() as u64);
        match user_memory::read::<u64>(first) {
            Err(Errno::EFAULT) => Ok(()),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Makes the resident pages of `parts` accessible, in a forked child. The child has just mapped
    /// these parts without access.
    fn show(&self, parts: &[Range<usize>], resident: &Resident) -> Result<(), Errno> {
        let extent = if self.guards { self.extent.load(Ordering::Relaxed) } else { 0 };
        for part in parts.iter().filter(|part| part.start < extent) {
            let length = part.end.min(extent) - part.start;
            self.memory.guard(part.start, length)?;
            self.memory.set_permitted(part.start, length, true)?;
        }
        resident.pages().try_for_each(|run| self.open(run.start, run.len()))
    }
}

impl Mechanism for Aliased {
    fn extend(&self, length: usize) -> Result<(), Errno> {
        let before = self.extent.load(Ordering::Relaxed);
        let length = length.next_multiple_of(TABLE).min(self.memory.length());
        if !self.guards || length <= before {
            return Ok(());
        }
        // The guard markers are set before the mapping becomes accessible. So a touch always meets
        // a guard marker or a mapping without access.
        self.memory.guard(before, length - before)?;
        self.memory.set_permitted(before, length - before, true)?;
        self.extent.store(length, Ordering::Relaxed);
        Ok(())
    }

    fn tracks_writes(&self) -> bool {
        false
    }

    fn fill(&self, offset: usize, content: &[u8], _: bool) -> Result<(), Errno> {
        self.memory.fill(offset, content);
        self.open(offset, content.len())
    }

    /// Makes absent pages accessible to the program. They read as zeroes, because the memory file
    /// has a hole there.
    fn fill_zero(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.open(offset, length)
    }

    fn open(&self, offset: usize, length: usize) -> Result<(), Errno> {
        if self.guards { self.memory.unguard(offset, length) } else { self.memory.set_permitted(offset, length, true) }
    }

    /// Makes the page accessible and returns `false`. The memory file still has the content, even
    /// if the program dropped the page from its mapping.
    fn mend(&self, offset: usize, length: usize) -> Result<bool, Errno> {
        self.open(offset, length).map(|()| false)
    }

    fn close(&self, offset: usize, length: usize) -> Result<(), Errno> {
        if self.guards { self.memory.guard(offset, length) } else { self.memory.set_permitted(offset, length, false) }
    }

    /// Adds the pages to the pager's own mapping before the pager reads them. Otherwise the read
    /// would fault, and the fault could remove guard markers. `Protect` has no markers to lose.
    fn prepare_reading(&self, offset: usize, length: usize) -> Result<(), Errno> {
        if self.guards { self.memory.prepare_reading(offset, length) } else { Ok(()) }
    }

    fn discard(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.memory.discard(offset, length)
    }

    /// Frees the memory of pages that were released to the kernel. Until then the memory file holds
    /// their content, so this function punches a hole into the file.
    fn leave(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.memory.discard(offset, length)
    }

    fn reclaim(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.memory.reclaim(offset, length)?;
        self.close(offset, length)?;
        if self.guards { self.memory.set_permitted(offset, length, true) } else { Ok(()) }
    }
    fn copies_resident(&self) -> bool {
        true
    }

    /// Does nothing: a child never inherits the mapping.
    fn set_inherited(&self, _: &[Range<usize>], _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn copy(&self, resident: &Resident) -> Result<OwnedDescriptor, Errno> {
        let file = self.memory.file_for_copy()?;
        resident.spans.iter().try_for_each(|span| self.close(span.start, span.len()))?;
        resident.pages().try_for_each(|run| self.memory.copy(run.start, run.len(), &file))?;
        Ok(file)
    }

    fn inherit(&self, parts: &[Range<usize>], copy: Option<Copied>) -> Result<Prepared, Errno> {
        let Copied { file, resident } = copy.ok_or(Errno::EINVAL)?;
        let window = self.memory.inherit_file(file, parts)?;
        let memory = window.memory().clone();
        // The region's memory is leaked. A drop would unmap the region's whole address range, with
        // the addresses between the parts. Those addresses no longer belong to the region.
        core::mem::forget(memory.clone());
        let extent = AtomicUsize::new(self.extent.load(Ordering::Relaxed));
        let mechanism = Aliased { memory, guards: self.guards, extent };
        mechanism.show(parts, &resident)?;
        Ok(Prepared { window, mechanism: Box::new(mechanism), events: None })
    }

    fn unmap_in_child(&self, parts: &[Range<usize>]) -> Result<(), Errno> {
        let unmapped = parts.iter().map(|part| self.memory.unmap_in_child(part.start, part.len()));
        unmapped.fold(Ok(()), Result::and)
    }
}
