//! File descriptors of our own, kept out of the way of the program's.

use crate::{Errno, SystemCall};
use core::sync::atomic::{AtomicI32, Ordering};
use linux_raw_sys::general as linux;

/// Descriptors from here on are looked at by the trap filter, and only ring
/// descriptors and our own live there (a program rarely has 600 files open,
/// and `select` still takes numbers below 1024).
pub const RESERVED_BASE: i32 = 600;

/// Where our private duplicates start; above the rings' own numbers where the
/// process's limit leaves room.
static PRIVATE_BASE: AtomicI32 = AtomicI32::new(0);

fn private_base() -> i32 {
    let base = PRIVATE_BASE.load(Ordering::Relaxed);
    if base != 0 {
        return base;
    }
    let base = match soft_limit() {
        Ok(limit) if limit > 2048 => 1024,
        Ok(limit) if limit > 900 => 800,
        Ok(limit) if limit > RESERVED_BASE as u64 => RESERVED_BASE,
        _ => 3,
    };
    PRIVATE_BASE.store(base, Ordering::Relaxed);
    base
}

fn soft_limit() -> Result<u64, Errno> {
    let mut limit = [0u64; 2];
    let address = &raw mut limit as u64;
    SystemCall::new(linux::__NR_prlimit64, [0, u64::from(linux::RLIMIT_NOFILE), 0, address, 0]).run()?;
    Ok(limit[0])
}

/// A descriptor that this process owns and nobody else closes.
#[derive(Debug)]
pub struct OwnedDescriptor(i32);

impl OwnedDescriptor {
    /// Takes over a number that was just handed out by the kernel.
    pub fn from_raw(number: i32) -> Self {
        debug_assert!(number >= 0);
        OwnedDescriptor(number)
    }

    pub fn number(&self) -> i32 {
        self.0
    }

    /// Gives the number up without closing it.
    pub fn into_raw(self) -> i32 {
        let number = self.0;
        core::mem::forget(self);
        number
    }

    /// Moves the descriptor to the private range.
    pub fn into_private(self) -> Result<Self, Errno> {
        duplicate_private(self.0)
    }

    /// Closes it and tells what close(2) said.
    pub fn close(self) -> Result<(), Errno> {
        close(self.into_raw())
    }
}

impl Drop for OwnedDescriptor {
    fn drop(&mut self) {
        let _ = close(self.0);
    }
}

/// close(2), past our own filter.
pub fn close(number: i32) -> Result<(), Errno> {
    // Linux frees the number even when close answers EINTR: never twice.
    SystemCall::new(linux::__NR_close, [number as u64, 0, 0, 0, 0]).run_once().map(drop)
}

/// A private duplicate of the program's descriptor, closed on exec.
pub fn duplicate_private(number: i32) -> Result<OwnedDescriptor, Errno> {
    duplicate_from(number, private_base())
}

/// The lowest free duplicate at or above `lowest`, closed on exec.
pub fn duplicate_from(number: i32, lowest: i32) -> Result<OwnedDescriptor, Errno> {
    let arguments = [number as u64, u64::from(linux::F_DUPFD_CLOEXEC), lowest as u64, 0, 0];
    SystemCall::new(linux::__NR_fcntl, arguments).run().map(|new| OwnedDescriptor(new as i32))
}

/// fcntl(F_GETFL).
pub fn status_flags(number: i32) -> Result<u32, Errno> {
    let arguments = [number as u64, u64::from(linux::F_GETFL), 0, 0, 0];
    SystemCall::new(linux::__NR_fcntl, arguments).run().map(|flags| flags as u32)
}

/// What fstat(2) tells of a file, as far as the engine asks.
#[derive(Clone, Copy, Debug)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
    mode: u32,
}

impl FileIdentity {
    pub fn is_regular(&self) -> bool {
        self.mode & linux::S_IFMT == linux::S_IFREG
    }

    pub fn is_block_device(&self) -> bool {
        self.mode & linux::S_IFMT == linux::S_IFBLK
    }
}

/// fstat(2).
pub fn identity(number: i32) -> Result<FileIdentity, Errno> {
    let mut buffer = core::mem::MaybeUninit::<linux::stat>::zeroed();
    let address = buffer.as_mut_ptr() as u64;
    SystemCall::new(linux::__NR_fstat, [number as u64, address, 0, 0, 0]).run()?;
    // SAFETY: `stat` is plain numbers, zeroed above and filled by the kernel.
    let stat = unsafe { buffer.assume_init() };
    Ok(FileIdentity { device: stat.st_dev, inode: stat.st_ino, mode: stat.st_mode })
}
