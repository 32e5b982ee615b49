//! The mechanisms `UserFault` and `Thread`, on anonymous memory. userfaultfd(2) reports touches of
//! missing pages and of write-protected pages.

use super::{Copied, Mechanism, MechanismKind, Prepared};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;
use usring_sys::Errno;
use usring_sys::mapping::PAGE;
use usring_sys::paged_memory::PagedMemory;
use usring_sys::userfault::{FaultReport, UserFault};

struct Anonymous {
    memory: Arc<PagedMemory>,
    fault: Arc<UserFault>,
    /// Whether the pager thread reads the events of `fault`.
    events: bool,
}

pub fn prepare(kind: MechanismKind, length: usize, at: Option<usize>) -> Result<Prepared, Errno> {
    let events = kind == MechanismKind::Thread;
    let fault = Arc::new(UserFault::open(if events { FaultReport::Events } else { FaultReport::Signal })?);
    let window = PagedMemory::anonymous(length, at)?;
    let memory = window.memory().clone();
    fault.register(memory.address(), length)?;
    let mechanism = Box::new(Anonymous { memory, fault: fault.clone(), events });
    Ok(Prepared { window, mechanism, events: events.then_some(fault) })
}

impl Anonymous {
    /// Registers the inherited memory for faults on missing pages. Called in a forked child.
    fn take_over(&self, parts: &[Range<usize>]) -> Result<UserFault, Errno> {
        let fault = UserFault::open(FaultReport::Signal)?;
        for part in parts {
            fault.register(self.at(part.start), part.len())?;
            self.memory.set_inherited(part.start, part.len(), false)?;
        }
        Ok(fault)
    }

    fn at(&self, offset: usize) -> usize {
        self.memory.address() + offset
    }
}

impl Mechanism for Anonymous {
    fn tracks_writes(&self) -> bool {
        true
    }

    fn fill(&self, offset: usize, content: &[u8], protected: bool) -> Result<(), Errno> {
        self.fault.copy(self.at(offset), content, protected)
    }

    fn fill_zero(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.fault.zero(self.at(offset), length)
    }

    fn open(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.fault.protect(self.at(offset), length, false)
    }

    fn mend(&self, offset: usize, length: usize) -> Result<bool, Errno> {
        match self.fault.zero(self.at(offset), length) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn close(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.fault.protect(self.at(offset), length, true)
    }

    /// Maps zeroes in place of pages that the program itself dropped. If this thread read such a
    /// page, it would fault. It would then wait for the page's owner, which is this thread itself.
    fn prepare_reading(&self, offset: usize, length: usize) -> Result<(), Errno> {
        let mut absent = self.memory.absent_pages(offset, length)?;
        while absent != 0 {
            let page = absent.trailing_zeros() as usize;
            let offset = offset + page * PAGE;
            if self.mend(offset, PAGE)? {
                self.close(offset, PAGE)?;
            }
            absent &= absent - 1;
        }
        Ok(())
    }

    fn discard(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.memory.discard(offset, length)
    }

    fn set_inherited(&self, parts: &[Range<usize>], inherited: bool) -> Result<(), Errno> {
        // A region with a pager thread is not inherited. The child would need a pager thread of its
        // own before its first touch of the region's memory.
        if self.events {
            return Err(Errno::EOPNOTSUPP);
        }
        // Continues after an error, so that the call takes effect on as many parts as possible.
        let done = parts.iter().map(|part| self.memory.set_inherited(part.start, part.len(), inherited));
        done.fold(Ok(()), Result::and)
    }

    /// Registers for faults the memory that the kernel has copied to the child. The kernel does not
    /// copy the registration. Without a registration, missing pages would read as zeroes.
    fn inherit(&self, parts: &[Range<usize>], _: Option<Copied>) -> Result<Prepared, Errno> {
        let fault = Arc::new(self.take_over(parts)?);
        let window = self.memory.inherit();
        let memory = window.memory().clone();
        // The memory is leaked, so that its registration for faults stays even if no pager is made.
        // A touch of a missing page must then raise SIGBUS; it must not find zeroes.
        core::mem::forget((memory.clone(), fault.clone()));
        let mechanism = Box::new(Anonymous { memory, fault, events: false });
        Ok(Prepared { window, mechanism, events: None })
    }

    fn unmap_in_child(&self, parts: &[Range<usize>]) -> Result<(), Errno> {
        // Continues after an error, so that as many parts as possible are unmapped.
        let unmapped = parts.iter().map(|part| self.memory.unmap_in_child(part.start, part.len()));
        unmapped.fold(Ok(()), Result::and)
    }

    fn reclaim(&self, offset: usize, length: usize) -> Result<(), Errno> {
        self.memory.reclaim(offset, length)?;
        self.fault.register(self.at(offset), length)?;
        self.memory.set_permitted(offset, length, true)
    }
}
