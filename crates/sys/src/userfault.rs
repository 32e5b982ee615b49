//! userfaultfd(2): the kernel reports accesses to pages that are missing or write-protected, and
//! installs pages on request.

use crate::descriptor::OwnedDescriptor;
use crate::{Errno, SystemCall, width};
use linux_raw_sys::general as linux;
use linux_raw_sys::ioctl;

/// How the kernel reports a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultReport {
    /// The kernel sends SIGBUS to the faulting thread, or lets its system call return EFAULT.
    Signal,
    /// The kernel queues an event to read. The faulting thread waits, even if it faulted in a
    /// system call. Needs a privilege (vm.unprivileged_userfaultfd, CAP_SYS_PTRACE, or
    /// /dev/userfaultfd).
    Events,
}

/// An access that faulted, as an event of the userfaultfd reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    pub address: usize,
    pub write: bool,
    /// Whether the page is present and write-protected.
    pub present: bool,
}

#[derive(Debug)]
pub struct UserFault {
    descriptor: OwnedDescriptor,
}

impl UserFault {
    /// Opens a userfaultfd. Errors: `EPERM` or `ENOSYS` if the kernel or a sandbox refuses it;
    /// `EINVAL` if a feature is missing (write protection: Linux 5.7).
    pub fn open(report: FaultReport) -> Result<Self, Errno> {
        let descriptor = match report {
            FaultReport::Signal => create(linux::UFFD_USER_MODE_ONLY)?,
            FaultReport::Events => create(0).or_else(|error| create_by_device().map_err(|_| error))?,
        };
        let fault = UserFault { descriptor: descriptor.into_private()? };
        let signal = if report == FaultReport::Signal { linux::UFFD_FEATURE_SIGBUS } else { 0 };
        let features = u64::from(signal | linux::UFFD_FEATURE_PAGEFAULT_FLAG_WP);
        let mut api = linux::uffdio_api { api: u64::from(linux::UFFD_API), features, ioctls: 0 };
        fault.control(ioctl::UFFDIO_API, &raw mut api as u64)?;
        Ok(fault)
    }

    pub fn number(&self) -> i32 {
        self.descriptor.number()
    }

    fn control(&self, request: u32, argument: u64) -> Result<(), Errno> {
        let arguments = [width::word(self.number()), u64::from(request), argument, 0, 0];
        loop {
            match SystemCall::new(linux::__NR_ioctl, arguments).run() {
                // EAGAIN: another thread is changing the address space.
                Err(Errno::EAGAIN) => crate::processor::yield_now(),
                other => return other.map(drop),
            }
        }
    }

    /// Makes the kernel report accesses to missing and write-protected pages of the range from now
    /// on.
    pub fn register(&self, start: usize, length: usize) -> Result<(), Errno> {
        let mode = u64::from(linux::UFFDIO_REGISTER_MODE_MISSING | linux::UFFDIO_REGISTER_MODE_WP);
        let mut register = linux::uffdio_register { range: range(start, length), mode, ioctls: 0 };
        self.control(ioctl::UFFDIO_REGISTER, &raw mut register as u64)?;
        let needed = 1 << linux::_UFFDIO_COPY | 1 << linux::_UFFDIO_ZEROPAGE | 1 << linux::_UFFDIO_WRITEPROTECT;
        if register.ioctls & needed == needed { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Installs pages with the content of `from`, in place of missing pages. `protected`: whether
    /// the new pages are write-protected.
    ///
    /// Errors: `EEXIST` at a page that is present; `ENOMEM`.
    pub fn copy(&self, to: usize, from: &[u8], protected: bool) -> Result<(), Errno> {
        let mode = if protected { u64::from(linux::UFFDIO_COPY_MODE_WP) } else { 0 };
        let mut done = 0;
        while done < from.len() {
            let (dst, src) = ((to + done) as u64, from[done..].as_ptr() as u64);
            let mut copy = linux::uffdio_copy { dst, src, len: (from.len() - done) as u64, mode, copy: 0 };
            let answer = SystemCall::new(
                linux::__NR_ioctl,
                [width::word(self.number()), u64::from(ioctl::UFFDIO_COPY), &raw mut copy as u64, 0, 0],
            )
            .run();
            match answer {
                Ok(_) => return Ok(()),
                Err(Errno::EAGAIN) => done += usize::try_from(copy.copy).unwrap_or(0),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Installs pages of zeroes in place of missing pages. Errors: `EEXIST` at a page that is
    /// present; `ENOMEM`.
    pub fn zero(&self, start: usize, length: usize) -> Result<(), Errno> {
        let mut zero = linux::uffdio_zeropage { range: range(start, length), mode: 0, zeropage: 0 };
        self.control(ioctl::UFFDIO_ZEROPAGE, &raw mut zero as u64)
    }

    /// Write-protects the present pages of a range, or removes the protection.
    pub fn protect(&self, start: usize, length: usize, protected: bool) -> Result<(), Errno> {
        // Bit 0 is UFFDIO_WRITEPROTECT_MODE_WP.
        let mode = u64::from(protected);
        let mut protect = linux::uffdio_writeprotect { range: range(start, length), mode };
        self.control(ioctl::UFFDIO_WRITEPROTECT, &raw mut protect as u64)
    }

    /// Wakes the threads that wait for pages of a range; they retry their access.
    pub fn wake(&self, start: usize, length: usize) {
        let mut range = range(start, length);
        let _ = self.control(ioctl::UFFDIO_WAKE, &raw mut range as u64);
    }

    /// Makes accesses to missing pages of the range raise SIGBUS. Errors: `EINVAL` before Linux
    /// 6.6.
    pub fn poison(&self, start: usize, length: usize) -> Result<(), Errno> {
        /// `_IOWR(0xAA, _UFFDIO_POISON, struct uffdio_poison)`.
        const POISON: u32 = 0xc020_aa00 | linux::_UFFDIO_POISON;
        let mut poison = linux::uffdio_poison { range: range(start, length), mode: 0, updated: 0 };
        self.control(POISON, &raw mut poison as u64)
    }

    /// Returns the next event, if there is one.
    pub fn read(&self) -> Option<FaultEvent> {
        // `struct uffd_msg`: event, then flags and address of a page fault.
        let mut message = [0u64; 4];
        let arguments = [width::word(self.number()), message.as_mut_ptr() as u64, size_of_val(&message) as u64, 0, 0];
        SystemCall::new(linux::__NR_read, arguments).run().ok()?;
        let [event, flags, address, _] = message;
        let has = |flag: u32| flags & u64::from(flag) != 0;
        let present = has(linux::UFFD_PAGEFAULT_FLAG_WP);
        let write = has(linux::UFFD_PAGEFAULT_FLAG_WRITE) || present;
        let touch = FaultEvent { address: width::size(address), write, present };
        (width::byte(event) == width::byte(linux::UFFD_EVENT_PAGEFAULT.into())).then_some(touch)
    }
}

fn range(start: usize, length: usize) -> linux::uffdio_range {
    linux::uffdio_range { start: start as u64, len: length as u64 }
}

fn create(flags: u32) -> Result<OwnedDescriptor, Errno> {
    let flags = u64::from(flags | linux::O_CLOEXEC | linux::O_NONBLOCK);
    let number = SystemCall::new(linux::__NR_userfaultfd, [flags, 0, 0, 0, 0]).run()?;
    Ok(OwnedDescriptor::from_raw(width::int(number)))
}

/// Opens a userfaultfd through the device /dev/userfaultfd. This needs only the permission to open
/// the device.
fn create_by_device() -> Result<OwnedDescriptor, Errno> {
    /// `_IO(0xAA, 0)`.
    const NEW: u64 = 0xaa00;
    let device = crate::file::open(c"/dev/userfaultfd", linux::O_RDWR)?;
    let flags = u64::from(linux::O_CLOEXEC | linux::O_NONBLOCK);
    let number = SystemCall::new(linux::__NR_ioctl, [width::word(device.number()), NEW, flags, 0, 0]).run()?;
    Ok(OwnedDescriptor::from_raw(width::int(number)))
}
