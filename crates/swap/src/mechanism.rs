//! How a page is put in front of the program and taken away again: what differs
//! between the ways that a kernel and a sandbox leave open. Everything else (who
//! may do so, when, with which content) is the pager's.
//!
//! | mechanism | memory | a page that is out | needs |
//! |---|---|---|---|
//! | [`Kind::UserFault`] | anonymous | is missing: SIGBUS in the thread | userfaultfd for user mode (Linux 5.11), as any user |
//! | [`Kind::Guard`] | file, seen twice | has a guard marker: SIGSEGV | guard regions on files (Linux 6.15), as any user, also in Docker's default profile |
//! | [`Kind::Protect`] | file, seen twice | may not be touched: SIGSEGV | nothing, but a mapping of the kernel's for each part, so units are large |
//! | [`Kind::Thread`] | anonymous | is missing: its thread waits for a thread of ours | userfaultfd for kernel mode, a privilege |
//!
//! The first keeps written pages apart from clean ones; the two with files write
//! every page that they evict.

mod aliased;
mod anonymous;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use usring_sys::Errno;
use usring_sys::descriptor::OwnedDescriptor;
use usring_sys::mapping::PAGE;
use usring_sys::page_fault::Cause;
use usring_sys::paged_memory::Window;
use usring_sys::userfault::UserFault;

/// Offsets and lengths are whole units within the memory.
///
/// The caller has the pages to itself, and is inside their cluster's gate or has
/// claimed it.
pub trait Mechanism: Send + Sync {
    /// So many bytes from the start can be touched from now on, and are out as far as they could
    /// not before. What it takes to keep them closed is taken for no more than these. It never
    /// becomes less; one thread at a time calls this.
    fn extend(&self, _length: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether a page can be kept from being written to: otherwise none is ever clean.
    fn tracks_writes(&self) -> bool;

    /// Puts pages in place that are out.
    fn fill(&self, offset: usize, content: &[u8], protected: bool) -> Result<(), Errno>;

    /// Puts a page in place that was never touched.
    fn fill_zero(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Lets a resident page be written to, and touched at all.
    fn open(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// A page that should be resident was not found by its toucher. Either it
    /// has come meanwhile, or somebody threw it away behind our back: then it
    /// holds zeroes from now on, and the answer is `true`.
    fn mend(&self, offset: usize, length: usize) -> Result<bool, Errno>;

    /// Ends writes to resident pages. What is out within the range stays out.
    fn close(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Lets us read what resident pages of one cluster hold that were closed.
    fn prepare_reading(&self, _offset: usize, _length: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Frees the memory of pages that were closed or are clean.
    fn discard(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Something of the kernel's was put in place of pages: frees what is left of their memory.
    fn leave(&self, _offset: usize, _length: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Puts pages back in that place, all of them out.
    fn reclaim(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Whether a child that is forked now has the resident pages of these parts. All gates are
    /// shut. `EOPNOTSUPP`: it cannot have them.
    fn hand_down(&self, parts: &[Range<usize>], handed_down: bool) -> Result<(), Errno> {
        let _ = (parts, handed_down);
        Err(Errno::EOPNOTSUPP)
    }

    /// Whether the kernel copies nothing for a forked child: what is resident is to be copied before.
    fn copies_resident(&self) -> bool {
        false
    }

    /// Closes pages that were taken, and copies what is resident, for a child that is forked next. All gates are shut; the
    /// caller opens the pages when the child has been forked, or this has failed.
    fn copy(&self, resident: &Resident) -> Result<OwnedDescriptor, Errno> {
        let _ = resident;
        Err(Errno::EOPNOTSUPP)
    }

    /// In that child: the memory, in which what is resident can be written to; of a copy if there is one.
    fn inherit(&self, parts: &[Range<usize>], copy: Option<Copied>) -> Result<Prepared, Errno> {
        let _ = (parts, copy);
        Err(Errno::EOPNOTSUPP)
    }

    /// In that child, which does not inherit: nothing is mapped in those parts any more.
    fn renounce(&self, parts: &[Range<usize>]) -> Result<(), Errno> {
        let _ = parts;
        Ok(())
    }
}

/// What is in memory when the process forks, as offsets of whole pages.
#[derive(Debug, Default)]
pub struct Resident {
    /// Pages that the caller has taken: nobody uses them until the process has forked.
    pub taken: Vec<Range<usize>>,
    /// The same with what lies between two of them and is not in memory: few ranges, and long ones.
    pub spans: Vec<Range<usize>>,
    /// Pages that system calls use. They may be written to, and stay open.
    pub pinned: Vec<Range<usize>>,
}

impl Resident {
    pub fn pages(&self) -> impl Iterator<Item = &Range<usize>> {
        self.taken.iter().chain(&self.pinned)
    }
}

/// A file of memory with what was resident.
pub struct Copied {
    pub file: OwnedDescriptor,
    pub resident: Resident,
}

/// In the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    UserFault,
    Guard,
    Protect,
    /// Only where it is asked for: it is the slowest, and the only one in which
    /// a system call can touch a page that is out.
    Thread,
}

impl Kind {
    /// Those that are chosen without being asked for.
    pub const BY_ITSELF: [Kind; 3] = [Kind::UserFault, Kind::Guard, Kind::Protect];
    pub const ALL: [Kind; 4] = [Kind::UserFault, Kind::Guard, Kind::Protect, Kind::Thread];

    /// By which it is known outside.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::UserFault => "userfault",
            Kind::Guard => "guard",
            Kind::Protect => "mprotect",
            Kind::Thread => "compat",
        }
    }

    /// How the kernel tells a thread that it has touched what is out; anything else it
    /// may say of the memory is not our doing.
    pub fn cause(self) -> Option<Cause> {
        match self {
            Kind::UserFault => Some(Cause::Missing),
            Kind::Guard => Some(Cause::Unmapped),
            Kind::Protect => Some(Cause::Forbidden),
            Kind::Thread => None,
        }
    }

    pub fn of_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes that come and go together, in a region of this length.
    pub fn unit(self, length: usize) -> usize {
        match self {
            Kind::Protect => (length / MOST_PARTS).next_power_of_two().max(LEAST_PROTECTED),
            Kind::UserFault | Kind::Guard | Kind::Thread => PAGE,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Linux allows 65,530 mappings (vm.max_map_count); each part of a region whose
/// neighbour is in another state is one.
const MOST_PARTS: usize = 30_000;
const LEAST_PROTECTED: usize = 64 << 10;

/// Memory with its mechanism.
pub struct Prepared {
    pub window: Window,
    pub mechanism: Box<dyn Mechanism>,
    /// Whose events the handler thread reads.
    pub events: Option<Arc<UserFault>>,
}

/// Memory of this length, a multiple of the unit, all of it out once it is extended to that
/// ([`Mechanism::extend`]); at this address if one is given.
///
/// Errors: what the kernel or a sandbox answers where it cannot be.
pub fn prepare(kind: Kind, length: usize, at: Option<usize>) -> Result<Prepared, Errno> {
    match kind {
        Kind::UserFault | Kind::Thread => anonymous::prepare(kind, length, at),
        Kind::Guard | Kind::Protect => aliased::prepare(kind, length, at),
    }
}

/// Whether it works here: tried on two pages.
pub fn probe(kind: Kind) -> Result<(), Errno> {
    prepare(kind, 2 * kind.unit(0), None).map(drop)
}
