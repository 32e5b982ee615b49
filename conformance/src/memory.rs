//! Memory for the cases: zeroed structures, pages that a case can make inaccessible, and pages that
//! are missing until a case supplies them.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns a structure of the kernel or of libc whose fields are all zero.
pub fn zeroed<T: Copy>() -> T {
    // SAFETY: the callers use only structures of io_uring and libc. These consist of integers,
    // arrays and unions, for which zero is a valid value.
    unsafe { std::mem::zeroed() }
}

/// Anonymous pages. When this object is dropped, they are unmapped.
pub struct Pages {
    pub address: *mut u8,
    pub length: usize,
}

pub const PAGE: usize = 4096;

/// The address of the next mapping. Addresses far from the end of the address space are chosen, so
/// that a range of several GiB may begin at any page.
static PLACE: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);

impl Pages {
    pub fn new(pages: usize) -> Pages {
        let length = pages * PAGE;
        // SAFETY: the mapping is new and anonymous, and replaces no other mapping.
        let address = unsafe {
            libc::mmap(
                PLACE.fetch_add(length + PAGE, Ordering::Relaxed) as *mut c_void,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(address != libc::MAP_FAILED, "no memory");
        Pages { address: address.cast(), length }
    }

    /// Makes the last page inaccessible.
    pub fn forbid_last(&self) {
        self.protect_last(libc::PROT_NONE);
    }

    /// Changes the last page's protection.
    pub fn protect_last(&self, protection: i32) {
        self.protect(self.length - PAGE, protection);
    }

    /// Changes the protection of the page at `offset`.
    pub fn protect(&self, offset: usize, protection: i32) {
        assert!(offset < self.length);
        // SAFETY: the page belongs to this object. After this call, only cases that test bad
        // addresses use the page.
        let answer = unsafe { libc::mprotect(self.address.add(offset).cast(), PAGE, protection) };
        assert_eq!(answer, 0);
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pages belong to this object. They are readable and writable, unless the case
        // has changed their protection.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.length) }
    }

    pub fn at(&self, offset: usize) -> u64 {
        self.address as u64 + offset as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` has made the mapping, and nothing uses it any more.
        unsafe { libc::munmap(self.address.cast::<c_void>(), self.length) };
    }
}

/// A page that is missing until this process supplies it, by userfaultfd(2). A thread that accesses
/// the page sleeps until then. `is_missed` reports whether a thread has accessed it.
pub struct MissingPage {
    page: Pages,
    faults: OwnedFd,
}

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
const UFFD_API: u64 = 0xaa;
const REGISTER_MODE_MISSING: u64 = 1;

impl MissingPage {
    /// Makes a missing page. Returns `None` if this process may not use userfaultfd(2).
    pub fn new() -> Option<MissingPage> {
        // SAFETY: the call touches no memory.
        let number = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if number < 0 {
            return None;
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let faults = unsafe { OwnedFd::from_raw_fd(number as i32) };
        let missing = MissingPage { page: Pages::new(1), faults };
        missing.control(UFFDIO_API, [UFFD_API, 0, 0, 0]);
        missing.control(UFFDIO_REGISTER, [missing.address(), PAGE as u64, REGISTER_MODE_MISSING, 0]);
        Some(missing)
    }

    fn control(&self, request: u64, mut argument: [u64; 4]) {
        // SAFETY: the argument of each request has at most four words, which live until ioctl(2)
        // returns.
        let answer = unsafe { libc::ioctl(self.faults.as_raw_fd(), request, argument.as_mut_ptr()) };
        assert_eq!(answer, 0, "userfaultfd: {}", std::io::Error::last_os_error());
    }

    pub fn address(&self) -> u64 {
        self.page.at(0)
    }

    /// Waits up to 30 seconds until a thread accesses the page. Returns `false` if no thread has.
    pub fn is_missed(&self) -> bool {
        let mut one = libc::pollfd { fd: self.faults.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one element.
        unsafe { libc::poll(&raw mut one, 1, 30_000) == 1 && one.revents == libc::POLLIN }
    }

    /// Supplies the page, filled with zeroes. This wakes the threads that have accessed it.
    pub fn supply(&self) {
        self.control(UFFDIO_ZEROPAGE, [self.address(), PAGE as u64, 0, 0]);
    }
}

/// An address at which no memory is mapped.
pub const BAD: u64 = 0x10;

/// An address in the kernel's half of the address space. No program can access it.
pub const KERNEL_HALF: u64 = 0xffff_8000_0000_0000;
