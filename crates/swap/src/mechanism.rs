//! Mechanisms: how a page is mapped for the program and taken away again. Kernels and sandboxes
//! allow different ways. Everything else (which thread, when, which content) is the pager's work. A
//! page is *absent* if it has no memory: it was never touched, or it was evicted.
//!
//! | mechanism | memory | an absent page | needs |
//! |---|---|---|---|
//! | [`MechanismKind::UserFault`] | anonymous | is missing: SIGBUS in the touching thread | userfaultfd for user mode (Linux 5.11), as any user |
//! | [`MechanismKind::Guard`] | file with two mappings | has a guard marker: SIGSEGV | guard regions on files (Linux 6.15), as any user, also in Docker's default profile |
//! | [`MechanismKind::Protect`] | file with two mappings | has no access: SIGSEGV | one kernel mapping for each part, so units are large |
//! | [`MechanismKind::Thread`] | anonymous | is missing: the touching thread waits for the pager thread | userfaultfd for kernel mode, a privilege |
//!
//! With userfaultfd, the pager distinguishes clean pages from dirty ones. With a file, every
//! evicted page is written.

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

/// The operations on a region's mapping. Offsets and lengths are whole units within the memory.
///
/// The caller has taken the pages, and is inside their cluster's gate or has claimed it.
pub trait Mechanism: Send + Sync {
    /// Makes the first `length` bytes usable. Pages that were not usable before are then absent: a
    /// touch is a fault that the pager serves. Page tables are allocated only for usable pages. The
    /// length never shrinks. For one thread at a time.
    fn extend(&self, _length: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Returns whether resident pages can be write-protected. If not, no page is ever clean.
    fn tracks_writes(&self) -> bool;

    /// Maps absent pages with this content.
    fn fill(&self, offset: usize, content: &[u8], protected: bool) -> Result<(), Errno>;

    /// Maps pages that were never touched; they hold zeroes.
    fn fill_zero(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Makes resident pages readable and writable.
    fn open(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Handles a fault on a missing page that should be resident. `false`: another thread has
    /// mapped the page meanwhile. `true`: the program had dropped the page by a call that usring
    /// did not see, and the page now holds zeroes.
    fn mend(&self, offset: usize, length: usize) -> Result<bool, Errno>;

    /// Write-protects the resident pages of a range. A mechanism that cannot do so takes all access
    /// away. Absent pages stay absent.
    fn close(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Makes write-protected resident pages of one cluster readable for the pager.
    fn prepare_reading(&self, _offset: usize, _length: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Frees the memory of write-protected pages.
    fn discard(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Frees the region's memory of pages in whose place the kernel's memory is mapped now.
    fn leave(&self, _offset: usize, _length: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Maps the region's memory again in place of the kernel's; all pages are absent.
    fn reclaim(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Sets whether a forked child inherits the resident pages of these parts. All gates are shut.
    /// Errors: `EOPNOTSUPP` if a child cannot inherit them.
    fn set_inherited(&self, parts: &[Range<usize>], inherited: bool) -> Result<(), Errno> {
        let _ = (parts, inherited);
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns whether the parent has to copy resident pages before a fork, because the kernel does
    /// not.
    fn copies_resident(&self) -> bool {
        false
    }

    /// Write-protects the pages that were taken, and copies the resident pages for a child that is
    /// forked next. All gates are shut. The caller opens the pages after the fork, or if this
    /// function fails.
    fn copy(&self, resident: &Resident) -> Result<OwnedDescriptor, Errno> {
        let _ = resident;
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns, in the forked child, the memory with its resident pages writable, from the copy if
    /// there is one.
    fn inherit(&self, parts: &[Range<usize>], copy: Option<Copied>) -> Result<Prepared, Errno> {
        let _ = (parts, copy);
        Err(Errno::EOPNOTSUPP)
    }

    /// In a child without a copy: unmaps these parts.
    fn renounce(&self, parts: &[Range<usize>]) -> Result<(), Errno> {
        let _ = parts;
        Ok(())
    }
}

/// The resident pages when the process forks, as offsets of whole pages.
#[derive(Debug, Default)]
pub struct Resident {
    /// Pages that the caller has taken: no thread uses them until the process has forked.
    pub taken: Vec<Range<usize>>,
    /// The taken pages together with absent pages between them: few and long ranges.
    pub spans: Vec<Range<usize>>,
    /// Pages that system calls have pinned. They stay writable.
    pub pinned: Vec<Range<usize>>,
}

impl Resident {
    pub fn pages(&self) -> impl Iterator<Item = &Range<usize>> {
        self.taken.iter().chain(&self.pinned)
    }
}

/// A memory file with a copy of the resident pages.
pub struct Copied {
    pub file: OwnedDescriptor,
    pub resident: Resident,
}

/// The mechanisms, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MechanismKind {
    UserFault,
    Guard,
    Protect,
    /// Used only on request: the slowest mechanism, and the only one with which a system call can
    /// touch an absent page.
    Thread,
}

impl MechanismKind {
    /// The mechanisms that are tried by default.
    pub const BY_ITSELF: [MechanismKind; 3] = [MechanismKind::UserFault, MechanismKind::Guard, MechanismKind::Protect];
    pub const ALL: [MechanismKind; 4] =
        [MechanismKind::UserFault, MechanismKind::Guard, MechanismKind::Protect, MechanismKind::Thread];

    /// Returns the name for users.
    pub const fn name(self) -> &'static str {
        match self {
            MechanismKind::UserFault => "userfault",
            MechanismKind::Guard => "guard",
            MechanismKind::Protect => "mprotect",
            MechanismKind::Thread => "compat",
        }
    }

    /// Returns the cause of a fault on an absent page. A fault with another cause is not the
    /// region's.
    pub fn cause(self) -> Option<Cause> {
        match self {
            MechanismKind::UserFault => Some(Cause::Missing),
            MechanismKind::Guard => Some(Cause::Unmapped),
            MechanismKind::Protect => Some(Cause::Forbidden),
            MechanismKind::Thread => None,
        }
    }

    pub fn of_name(name: &str) -> Option<MechanismKind> {
        MechanismKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the unit (bytes brought in and evicted together) in a region of this length.
    pub fn unit(self, length: usize) -> usize {
        match self {
            MechanismKind::Protect => (length / MOST_PARTS).next_power_of_two().max(LEAST_PROTECTED),
            MechanismKind::UserFault | MechanismKind::Guard | MechanismKind::Thread => PAGE,
        }
    }
}

impl fmt::Display for MechanismKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Most parts of a region. Linux allows 65,530 mappings (vm.max_map_count), and each run of units
/// with equal access is a mapping.
const MOST_PARTS: usize = 30_000;
const LEAST_PROTECTED: usize = 64 << 10;

/// Memory with its mechanism.
pub struct Prepared {
    pub window: Window,
    pub mechanism: Box<dyn Mechanism>,
    /// The userfaultfd whose events the pager thread reads, if there is one.
    pub events: Option<Arc<UserFault>>,
}

/// Makes memory of this length, a multiple of the unit, at address `at` if there is one. All of its
/// pages are absent once [`Mechanism::extend`] has made them usable.
///
/// Errors: those of the kernel or the sandbox.
pub fn prepare(kind: MechanismKind, length: usize, at: Option<usize>) -> Result<Prepared, Errno> {
    match kind {
        MechanismKind::UserFault | MechanismKind::Thread => anonymous::prepare(kind, length, at),
        MechanismKind::Guard | MechanismKind::Protect => aliased::prepare(kind, length, at),
    }
}

/// Tries a mechanism on two pages. Errors: those of the kernel or the sandbox.
pub fn probe(kind: MechanismKind) -> Result<(), Errno> {
    prepare(kind, 2 * kind.unit(0), None).map(drop)
}
