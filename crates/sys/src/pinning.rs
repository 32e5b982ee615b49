//! Decides which memory of the program the kernel would refuse to pin for a ring.
//!
//! Linux pins registered buffers, buffer rings and rings of IORING_SETUP_NO_MMAP for long-term
//! writing (`FOLL_WRITE | FOLL_LONGTERM`). It answers `EFAULT` for secret memory, and for a shared
//! writable mapping of a file system that tracks written pages. usring pins nothing, but returns
//! `EFAULT` where the kernel certainly would.

use crate::process_maps::{Area, Maps};
use crate::{Errno, SystemCall, UserAddress, width};
use alloc::ffi::CString;
use core::mem::MaybeUninit;
use core::ops::Range;
use linux_raw_sys::general as linux;

/// File systems that write dirty pages back although they have no block device of their own.
const WRITE_BACK: [u32; 8] = [
    linux::BTRFS_SUPER_MAGIC,
    linux::BCACHEFS_SUPER_MAGIC,
    linux::NFS_SUPER_MAGIC,
    linux::V9FS_MAGIC,
    linux::FUSE_SUPER_MAGIC,
    linux::CEPH_SUPER_MAGIC,
    linux::CIFS_SUPER_MAGIC,
    linux::SMB2_SUPER_MAGIC,
];

/// Name of a mapping of memfd_secret(2) in /proc/self/maps.
const SECRET: &[u8] = b"/secretmem (deleted)";

/// Checks the memory of one registration or setup. Opens the list of mappings (/proc/self/maps)
/// once, and queries each mapping once.
#[derive(Default)]
pub struct PinCheck {
    /// The list of mappings. Outer `None`: not opened yet. Inner `None`: it cannot be opened.
    maps: Option<Option<Maps>>,
    /// Addresses of the last queried mapping that the kernel would agree to pin.
    good: Range<usize>,
}

impl PinCheck {
    /// Checks a range of memory that can be read and written. Accepts a mapping whose file cannot
    /// be determined.
    ///
    /// Error: `EFAULT` if the kernel would not pin a part of the range.
    pub fn check(&mut self, address: UserAddress, length: usize) -> Result<(), Errno> {
        let mut at = width::size(address.0);
        let end = at.saturating_add(length);
        while at < end {
            if !self.good.contains(&at) {
                let Some(maps) = self.maps.get_or_insert_with(Maps::open) else { return Ok(()) };
                let Some(area) = maps.area_of(at) else { return Ok(()) };
                if refuses_pins(maps, &area) {
                    return Err(Errno::EFAULT);
                }
                self.good = area.range;
            }
            at = self.good.end;
        }
        Ok(())
    }
}

fn refuses_pins(maps: &Maps, area: &Area) -> bool {
    if !area.is_shared || area.inode == 0 {
        return false;
    }
    // A major number other than 0 means that the file system has a block device of its own, and
    // writes dirty pages back to it.
    if area.device.0 != 0 {
        return true;
    }
    let Some(name) = maps.name_of(area.range.start) else { return false };
    if name == SECRET {
        return true;
    }
    // The name of a memfd or of a deleted file is no path to that file, so such a mapping is
    // accepted.
    name.first() == Some(&b'/') && CString::new(name).is_ok_and(|path| is_written_back(&path, area.inode))
}

/// Returns whether the kernel writes back dirty pages of the file at `path`. `false` if the file's
/// inode number is not `inode`.
fn is_written_back(path: &CString, inode: u64) -> bool {
    let Some(file) = describe(path) else { return false };
    if file.stx_ino != inode {
        return false;
    }
    if u32::from(file.stx_mode) & linux::S_IFMT == linux::S_IFBLK {
        return true;
    }
    match file_system(path) {
        // On overlayfs, the file lies on another file system below. If that file system has a disk,
        // it reports an alignment for O_DIRECT. If it is tmpfs, it reports none.
        Some(linux::OVERLAYFS_SUPER_MAGIC) => file.stx_mask & linux::STATX_DIOALIGN != 0,
        Some(kind) => WRITE_BACK.contains(&kind),
        None => false,
    }
}

fn describe(path: &CString) -> Option<linux::statx> {
    let mut buffer = MaybeUninit::<linux::statx>::zeroed();
    let mask = u64::from(linux::STATX_BASIC_STATS | linux::STATX_DIOALIGN);
    let flags = u64::from(linux::AT_NO_AUTOMOUNT);
    let arguments = [width::word(linux::AT_FDCWD), path.as_ptr() as u64, flags, mask, buffer.as_mut_ptr() as u64];
    SystemCall::new(linux::__NR_statx, arguments).run().ok()?;
    // SAFETY: `statx` is plain numbers, zeroed above and filled by the kernel.
    Some(unsafe { buffer.assume_init() })
}

/// Returns the magic number (`f_type`) of the file system on which a path lies.
fn file_system(path: &CString) -> Option<u32> {
    // The first word is `f_type`.
    let mut statfs = [0u64; size_of::<linux::statfs>() / size_of::<u64>()];
    let arguments = [path.as_ptr() as u64, statfs.as_mut_ptr() as u64, 0, 0, 0];
    SystemCall::new(linux::__NR_statfs, arguments).run().ok()?;
    Some(width::low(statfs[0]))
}
