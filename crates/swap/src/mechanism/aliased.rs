//! A file of memory seen twice: the program's view is closed where a page is
//! out, by guard markers or by protection. Contents are written through the other
//! view before the program's is opened, so no thread sees half of a page.
//!
//! Guard markers stay when the file's pages are freed, if nothing maps a page
//! through the other view just then. `usring_sys::paged_memory` says why, and how its
//! reads keep from it; before they did, 3 of 100 short runs lost increments (seen by
//! a test of its own there).
//!
//! A forked child has a file of its own, into which what is resident is copied when it is forked: two processes
//! would share the one. No page of it can be written to while it is copied and until the child has been forked, so that the child finds
//! all memory as it was at one moment; but for pages that a system call of another thread uses.

use super::{Copied, Kind, Mechanism, Prepared, Resident};
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
    /// Bytes from the start that have markers. What lies behind may not be touched at all: a
    /// marker is an entry of a page table, which is a page of the kernel's for 2 MiB.
    extent: AtomicUsize,
}

/// What a page table is for.
const TABLE: usize = 2 << 20;

pub fn prepare(kind: Kind, length: usize, at: Option<usize>) -> Result<Prepared, Errno> {
    let window = PagedMemory::aliased(length, at)?;
    let memory = window.memory().clone();
    memory.permit(0, length, false)?;
    let mechanism = Aliased { memory, guards: kind == Kind::Guard, extent: AtomicUsize::new(0) };
    mechanism.extend(PAGE)?;
    mechanism.check()?;
    Ok(Prepared { window, mechanism: Box::new(mechanism), events: None })
}

impl Aliased {
    /// A kernel that only nods (one of a sandbox) is found out here, before
    /// anybody relies on it: what is closed cannot be read, also after its
    /// memory was given back.
    fn check(&self) -> Result<(), Errno> {
        user_memory::install_fault_handler();
        self.memory.discard(0, PAGE)?;
        let first = UserAddress(self.memory.address() as u64);
        match user_memory::read::<u64>(first) {
            Err(Errno::EFAULT) => Ok(()),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Opens what is resident of parts that are mapped anew, and may not be touched at all yet.
    fn show(&self, parts: &[Range<usize>], resident: &Resident) -> Result<(), Errno> {
        let extent = if self.guards { self.extent.load(Ordering::Relaxed) } else { 0 };
        for part in parts.iter().filter(|part| part.start < extent) {
            let length = part.end.min(extent) - part.start;
            self.memory.guard(part.start, length)?;
            self.memory.permit(part.start, length, true)?;
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
        // Markers first: there is no moment at which a touch finds neither.
        self.memory.guard(before, length - before)?;
        self.memory.permit(before, length - before, true)?;
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

    /// The file has a hole there.
    fn fill_zero(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.open(offset, length)
    }

    fn open(&self, offset: usize, length: usize) -> Result<(), Errno> {
        if self.guards { self.memory.unguard(offset, length) } else { self.memory.permit(offset, length, true) }
    }

    /// What is thrown away behind our back, the file still has.
    fn mend(&self, offset: usize, length: usize) -> Result<bool, Errno> {
        self.open(offset, length).map(|()| false)
    }

    fn close(&self, offset: usize, length: usize) -> Result<(), Errno> {
        if self.guards { self.memory.guard(offset, length) } else { self.memory.permit(offset, length, false) }
    }

    /// Protection is the mapping's and cannot be lost; kernels that have guard markers for
    /// files know how to do this.
    fn prepare_reading(&self, offset: usize, length: usize) -> Result<(), Errno> {
        if self.guards { self.memory.prepare_reading(offset, length) } else { Ok(()) }
    }

    fn discard(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.memory.discard(offset, length)
    }

    /// The file still has it.
    fn leave(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.memory.discard(offset, length)
    }

    fn reclaim(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.memory.reclaim(offset, length)?;
        self.close(offset, length)?;
        if self.guards { self.memory.permit(offset, length, true) } else { Ok(()) }
    }
    fn copies_resident(&self) -> bool {
        true
    }

    /// The child finds nothing in any case.
    fn hand_down(&self, _: &[Range<usize>], _: bool) -> Result<(), Errno> {
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
        // Where no pager comes of it: it would unmap what lies between the parts, which is not its.
        core::mem::forget(memory.clone());
        let extent = AtomicUsize::new(self.extent.load(Ordering::Relaxed));
        let mechanism = Aliased { memory, guards: self.guards, extent };
        mechanism.show(parts, &resident)?;
        Ok(Prepared { window, mechanism: Box::new(mechanism), events: None })
    }

    fn renounce(&self, parts: &[Range<usize>]) -> Result<(), Errno> {
        let renounced = parts.iter().map(|part| self.memory.renounce(part.start, part.len()));
        renounced.fold(Ok(()), Result::and)
    }
}
