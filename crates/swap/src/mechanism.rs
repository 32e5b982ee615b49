//! Mechanisms: how a page is mapped for the program, and how it is unmapped again. Kernels and
//! sandboxes differ in the mechanisms that they allow. The pager decides everything else: which
//! thread acts, when, and with which content. A page is *absent* if it has no memory, because it
//! was never touched or because it was evicted.
//!
//! | mechanism | memory | an absent page | needs |
//! |---|---|---|---|
//! | [`MechanismKind::UserFault`] | anonymous | is missing: SIGBUS in the touching thread | userfaultfd for user mode (Linux 5.11), as any user |
//! | [`MechanismKind::Guard`] | file with two mappings | has a guard marker: SIGSEGV | guard regions on files (Linux 6.15), as any user, also in Docker's default profile |
//! | [`MechanismKind::Protect`] | file with two mappings | has no access: SIGSEGV | up to one kernel mapping for each unit, so units are large |
//! | [`MechanismKind::Thread`] | anonymous | is missing: the touching thread waits for the pager thread | userfaultfd for kernel mode, a privilege |
//!
//! With userfaultfd, the pager distinguishes clean pages from dirty ones. On a memory file every
//! resident page counts as dirty, so every evicted page is written.

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

/// The operations of a mechanism on a region's mapping. Offsets and lengths are multiples of the
/// region's unit ([`MechanismKind::unit`]).
///
/// A thread that calls one of these functions for pages owns these pages ([`crate::page`]). It is
/// also inside the gate of their cluster, or has claimed the cluster.
pub trait Mechanism: Send + Sync {
    /// Makes the first `length` bytes of the region usable. Each page that becomes usable is
    /// absent, so a touch is a fault that the pager serves. The mechanism allocates page tables
    /// only for usable pages. The usable length never shrinks. Only one thread at a time may call
    /// this function.
    fn extend(&self, _length: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Returns whether a resident page can be write-protected. If not, every resident page counts
    /// as dirty.
    fn tracks_writes(&self) -> bool;

    /// Maps absent pages with the content `content`. `protected`: whether the pages are
    /// write-protected then.
    fn fill(&self, offset: usize, content: &[u8], protected: bool) -> Result<(), Errno>;

    /// Maps absent pages that hold zeroes.
    fn fill_zero(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Makes resident pages readable and writable.
    fn open(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Handles a fault on a page whose state is resident although the kernel reports it missing.
    /// Returns `true` if the program had dropped the page by a call that usring did not see. The
    /// page then holds zeroes. Returns `false` if the page is mapped with its content.
    fn mend(&self, offset: usize, length: usize) -> Result<bool, Errno>;

    /// Closes pages: write-protects the resident pages of a range. A mechanism that cannot
    /// write-protect removes all access. Absent pages stay absent.
    fn close(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Makes resident pages of one cluster readable for the pager. The caller has closed the pages
    /// ([`Mechanism::close`]).
    fn prepare_reading(&self, _offset: usize, _length: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Frees the memory of pages that the caller has closed ([`Mechanism::close`]). The pages are
    /// absent afterwards.
    fn discard(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Frees memory of the region that belonged to pages which were released to the kernel. At the
    /// addresses of these pages, other memory is mapped by now.
    fn leave(&self, _offset: usize, _length: usize) -> Result<(), Errno> {
        Ok(())
    }

    /// Maps the region's memory again at the addresses of pages that were released to the kernel.
    /// The pages are absent afterwards.
    fn reclaim(&self, offset: usize, length: usize) -> Result<(), Errno>;

    /// Sets whether a forked child inherits the resident pages of `parts`. To switch this on, the
    /// caller has shut all gates. Errors: `EOPNOTSUPP` if the mechanism cannot let a child inherit
    /// pages.
    fn set_inherited(&self, parts: &[Range<usize>], inherited: bool) -> Result<(), Errno> {
        let _ = (parts, inherited);
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns whether the parent itself has to copy resident pages before a fork. If not, the
    /// kernel copies them at the fork.
    fn copies_resident(&self) -> bool {
        false
    }

    /// Copies the resident pages to a memory file for the child of the next fork. First closes the
    /// pages in `resident.taken` ([`Mechanism::close`]). The caller has shut all gates. The caller
    /// opens the closed pages again after the fork, or if this function fails.
    fn copy(&self, resident: &Resident) -> Result<OwnedDescriptor, Errno> {
        let _ = resident;
        Err(Errno::EOPNOTSUPP)
    }

    /// Called in the forked child. Returns the memory that the child has inherited, with its
    /// resident pages writable. If the parent has copied these pages, their content comes from
    /// `copy`.
    fn inherit(&self, parts: &[Range<usize>], copy: Option<Copied>) -> Result<Prepared, Errno> {
        let _ = (parts, copy);
        Err(Errno::EOPNOTSUPP)
    }

    /// Unmaps `parts` of the region in a forked child that gets no copy of the region's memory.
    fn unmap_in_child(&self, parts: &[Range<usize>]) -> Result<(), Errno> {
        let _ = parts;
        Ok(())
    }
}

/// The resident pages of a process that forks, as ranges of offsets.
#[derive(Debug, Default)]
pub struct Resident {
    /// Pages that the forking thread owns. No other thread changes them until the fork is done.
    pub taken: Vec<Range<usize>>,
    /// The ranges of `taken`, joined if only absent pages lie between them. One system call closes
    /// a span, so fewer spans need fewer system calls.
    pub spans: Vec<Range<usize>>,
    /// Pages that system calls have pinned. They stay writable.
    pub pinned: Vec<Range<usize>>,
}

impl Resident {
    pub fn pages(&self) -> impl Iterator<Item = &Range<usize>> {
        self.taken.iter().chain(&self.pinned)
    }
}

/// The parent's copy of its resident pages, for a forked child.
pub struct Copied {
    pub file: OwnedDescriptor,
    pub resident: Resident,
}

/// How a region maps a page, and how it detects a touch of an absent page. The mechanisms are
/// listed in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MechanismKind {
    UserFault,
    Guard,
    Protect,
    /// The slowest mechanism, so it is used only on request. Only with this mechanism can a system
    /// call touch an absent page.
    Thread,
}

impl MechanismKind {
    /// The mechanisms that a region tries, in this order, unless its user chooses a mechanism.
    pub const BY_ITSELF: [MechanismKind; 3] = [MechanismKind::UserFault, MechanismKind::Guard, MechanismKind::Protect];
    pub const ALL: [MechanismKind; 4] =
        [MechanismKind::UserFault, MechanismKind::Guard, MechanismKind::Protect, MechanismKind::Thread];

    /// Returns the name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            MechanismKind::UserFault => "userfault",
            MechanismKind::Guard => "guard",
            MechanismKind::Protect => "mprotect",
            MechanismKind::Thread => "compat",
        }
    }

    /// Returns the cause that the kernel reports for a fault on an absent page. The pager serves no
    /// fault with another cause. `None` for `Thread`: a touch then causes an event for the pager
    /// thread, and no signal.
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

    /// Returns the unit, in bytes, of a region of `length` bytes. All pages of a unit are paged in
    /// together, and evicted together.
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

/// Maximum number of units of a region with the mechanism `mprotect`. Neighbouring units with equal
/// access share a mapping of the kernel, and Linux allows 65,530 mappings (vm.max_map_count).
const MOST_PARTS: usize = 30_000;
const LEAST_PROTECTED: usize = 64 << 10;

/// Memory that a mechanism has mapped for a region, together with that mechanism.
pub struct Prepared {
    pub window: Window,
    pub mechanism: Box<dyn Mechanism>,
    /// The userfaultfd whose events the pager thread reads. `None` if there is no pager thread.
    pub events: Option<Arc<UserFault>>,
}

/// Maps `length` bytes, a multiple of the unit, at the address `at`; `None`: at an address that the
/// kernel chooses. [`Mechanism::extend`] then makes the pages usable. Usable pages are absent at
/// first.
///
/// Errors: those of the kernel or the sandbox.
pub fn prepare(kind: MechanismKind, length: usize, at: Option<usize>) -> Result<Prepared, Errno> {
    match kind {
        MechanismKind::UserFault | MechanismKind::Thread => anonymous::prepare(kind, length, at),
        MechanismKind::Guard | MechanismKind::Protect => aliased::prepare(kind, length, at),
    }
}

/// Tests a mechanism on two units of memory. Errors: those of the kernel or the sandbox.
pub fn probe(kind: MechanismKind) -> Result<(), Errno> {
    prepare(kind, 2 * kind.unit(0), None).map(drop)
}
