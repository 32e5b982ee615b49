//! Anonymous memory whose missing and write-protected pages userfaultfd(2) tells of.

use super::{Kind, Mechanism, Prepared};
use alloc::boxed::Box;
use alloc::sync::Arc;
use usring_sys::Errno;
use usring_sys::mapping::PAGE;
use usring_sys::paged_memory::PagedMemory;
use usring_sys::userfault::{Telling, UserFault};

struct Anonymous {
    memory: Arc<PagedMemory>,
    fault: Arc<UserFault>,
}

pub fn prepare(kind: Kind, length: usize, at: Option<usize>) -> Result<Prepared, Errno> {
    let events = kind == Kind::Thread;
    let fault = Arc::new(UserFault::open(if events { Telling::Events } else { Telling::Signal })?);
    let window = PagedMemory::anonymous(length, at)?;
    let memory = window.memory().clone();
    fault.register(memory.address(), length)?;
    let mechanism = Box::new(Anonymous { memory, fault: fault.clone() });
    Ok(Prepared { window, mechanism, events: events.then_some(fault) })
}

impl Anonymous {
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

    /// What was thrown away behind our back would be a fault of who reads it, who has the
    /// page. Zeroes are what it holds.
    fn prepare_reading(&self, offset: usize, length: usize) -> Result<(), Errno> {
        let mut absent = self.memory.absent(offset, length)?;
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
}
