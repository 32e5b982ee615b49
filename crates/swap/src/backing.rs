//! Opens the backing store that the user's text (SPEC) describes. Checks that no other process
//! swaps to the store, and that the store holds no data that its owner may still want.
//!
//! A file, a block device or a vhost-user back end begins with a header of usring (`SIGNATURE`), in
//! front of the first slot. A store with the header belongs to usring, even if the run that wrote
//! the header was killed. A store that reads as zeroes is free, such as a file made by truncate(1)
//! or fallocate(1). Any other store is refused unless the SPEC has `overwrite=on`. A store in
//! memory (`ram`) is new each time and has no header.
//!
//! | store | examined for data | kept from other processes by |
//! |---|---|---|
//! | regular file | all of its data; holes are skipped | F_OFD_SETLK |
//! | block device | its first and its last MiB | O_EXCL, which a mounted device refuses |
//! | back end | its first and its last MiB | the launcher, which lends it to one process |
//!
//! The file of a store is examined before usring opens a device on the file. Opening the device may
//! make the file longer.

use crate::store_queue::{StoreQueue, Waiting};
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::sync::Arc;
use core::fmt;
use usring_device::{Device, Geometry, PolicyWord, Spec, Supply};
use usring_sys::descriptor::HeldDescriptor;
use usring_sys::file::{self, FileKind};
use usring_sys::paged_memory::Bounce;
use usring_sys::plain::IoVector;
use usring_sys::{Errno, user_memory, width};
use usring_uapi::general::{O_CREAT, O_EXCL, O_RDWR};

/// First bytes of a store's header. The header's other bytes are zeroes.
const SIGNATURE: &[u8] = b"usring swap store, version 1\n";
/// Length of the header in bytes. If the device's block is larger, the header is one block long.
const HEADER: u32 = 4096;
/// `KERNEL_SWAP`: the signatures by which Linux recognises its swap space. `KERNEL_SWAP_AT`: the
/// offset at which mkswap(8) writes the signature.
const KERNEL_SWAP_AT: usize = 4086;
const KERNEL_SWAP: [&[u8]; 2] = [b"SWAPSPACE2", b"SWAP-SPACE"];

/// If a store cannot report its holes, as a block device: how many bytes are examined at its start,
/// and how many at its end.
const EXAMINED_AT_EACH_END: u64 = 1 << 20;
/// Bytes per read when a store is examined.
const CHUNK: usize = 256 << 10;

/// The reason why a store cannot hold swapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An error of the kernel or the device.
    Failed(Errno),
    /// Another process swaps to the store.
    InUse,
    /// The store is a block device that is mounted, or that another program has opened exclusively.
    Mounted,
    ReadOnly,
    /// The device does not return the data that was written to it. The device `null` is an example.
    KeepsNothing,
    /// The store is swap space of the kernel.
    KernelSwap,
    /// At this offset, the store holds data that usring did not write.
    HoldsData(u64),
    /// The store has fewer bytes than are needed.
    TooSmall {
        needed: u64,
        found: u64,
    },
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Refusal::Failed(error)
    }
}

impl Refusal {
    /// Returns the errno that the C interface reports.
    pub fn errno(self) -> Errno {
        match self {
            Refusal::Failed(error) => error,
            Refusal::InUse | Refusal::Mounted => Errno::EBUSY,
            Refusal::ReadOnly => Errno::EROFS,
            Refusal::KeepsNothing => Errno::ENODATA,
            Refusal::KernelSwap | Refusal::HoldsData(_) => Errno::EEXIST,
            Refusal::TooSmall { .. } => Errno::ENOSPC,
        }
    }

    /// Formats the refusal as a message for the user. `store` is the store's name in the message.
    pub fn message<'a>(&self, store: &'a dyn fmt::Display) -> impl fmt::Display + 'a {
        Sentence(*self, store)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, store: &dyn fmt::Display) -> fmt::Result {
        match self {
            Refusal::Failed(error) => write!(f, "{store} cannot be used ({error})"),
            Refusal::InUse => write!(f, "{store} is in use by another process"),
            Refusal::Mounted => {
                write!(f, "{store} is mounted or in use; swapped memory needs a device for itself")
            }
            Refusal::ReadOnly => write!(f, "{store} is read-only; swapped memory needs a store that can be written to"),
            Refusal::KeepsNothing => {
                write!(f, "{store} keeps no data, so swapped memory would be lost; use file: or ram:")
            }
            Refusal::KernelSwap => write!(
                f,
                "{store} is swap space of the kernel (mkswap); to use it anyway, run swapoff and add overwrite=on"
            ),
            Refusal::HoldsData(byte) => write!(
                f,
                "{store} holds data that usring did not write (at byte {byte}); use another store, or add overwrite=on \
                 to lose the data"
            ),
            Refusal::TooSmall { needed, found } => write!(
                f,
                "{store} holds {found} bytes, but {needed} are needed: the rest of the memory would stay resident, \
                 above the limit"
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &"the backing store")
    }
}

impl core::error::Error for Refusal {}

struct Sentence<'a>(Refusal, &'a dyn fmt::Display);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, self.1)
    }
}

/// The purpose for which a store is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To swap to the store.
    Swapping,
    /// The launcher tests whether a store can be used, before a process swaps to it.
    Trial,
}

/// An open store.
pub struct Backing {
    pub device: Arc<Device>,
    /// The polling policy of the device. `None` if the program opened the device itself and passed
    /// it to the region's builder.
    pub policy: Option<PolicyWord>,
    /// The store's open file or block device; `None` if the store has no path. While it is open, no
    /// other process can swap to the store: the file is locked, or the device was opened with
    /// O_EXCL.
    pub claim: Option<HeldDescriptor>,
    /// Bytes before the first slot, which hold the header.
    pub header: u64,
}

impl Backing {
    /// Opens a store and claims it for this process. Writes the header if the store does not have
    /// it yet.
    pub fn open(spec: &Spec, supply: Box<dyn Supply>) -> Result<Self, Refusal> {
        Self::open_for(Purpose::Swapping, spec, supply)
    }

    /// Returns the number of bytes after the header, which are divided into slots.
    pub fn capacity(&self) -> u64 {
        self.device.geometry().size.saturating_sub(self.header)
    }

    fn open_for(purpose: Purpose, spec: &Spec, supply: Box<dyn Supply>) -> Result<Self, Refusal> {
        let overwrite = spec.overwrites();
        let mut found = None;
        let mut claim = None;
        if let Some(path) = spec.device().text("path") {
            let creates = spec.device().switch("create") == Some(true);
            let mut file = StoreFile::open(path, creates, purpose)?;
            found = Some(examine(&mut file, overwrite)?);
            claim = file.claim;
        }
        let driver = spec.open(supply)?;
        let geometry = driver.geometry();
        if geometry.features.read_only {
            return Err(Refusal::ReadOnly);
        }
        if geometry.features.forgets {
            return Err(Refusal::KeepsNothing);
        }
        let policy = PolicyWord::leaked(spec.policy());
        let device = Arc::new(Device::new(driver, policy, true));
        let mut backing = Backing { device, policy: Some(policy), claim, header: 0 };
        if spec.device().kind() != "ram" {
            backing.header = u64::from(geometry.block.max(HEADER));
            backing.mark(found, overwrite, purpose)?;
        }
        Ok(backing)
    }

    /// Writes the header to the start of the store, unless the store has it. `found`: the result of
    /// an earlier examination of the store's file. `None`: this function examines the store through
    /// the device. `overwrite`: a store with other data is accepted, too.
    fn mark(&self, found: Option<Content>, overwrite: bool, purpose: Purpose) -> Result<(), Refusal> {
        let size = self.device.geometry().size;
        if size < self.header {
            return Err(Refusal::TooSmall { needed: self.header, found: size });
        }
        let queue = StoreQueue::new(&self.device, CHUNK)?;
        let mut content = DeviceContent { device: &self.device, queue };
        let found = found.map_or_else(|| examine(&mut content, overwrite), Ok)?;
        if found == Content::Ours {
            return Ok(());
        }
        content.write_header(self.header)?;
        // A device may discard all data that is written to it, as the device `null` does. So the
        // launcher's trial reads the header back.
        if purpose == Purpose::Trial && !content.read(0, width::size(self.header))?.starts_with(SIGNATURE) {
            return Err(Refusal::KeepsNothing);
        }
        Ok(())
    }
}

/// Tests a store before a run. Opens the store as the process that will swap to it does, but does
/// not keep other processes from using it. Writes the header, which that process then finds.
/// Returns the device's geometry, and the number of bytes after the header (for the slots).
pub fn try_out(spec: &Spec, supply: Box<dyn Supply>) -> Result<(Geometry, u64), Refusal> {
    let backing = Backing::open_for(Purpose::Trial, spec, supply)?;
    Ok((*backing.device.geometry(), backing.capacity()))
}

/// Kinds of content that allow usring to use a store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The store begins with usring's header.
    Ours,
    /// The store holds zeroes, or data that may be overwritten.
    Free,
}

/// A store whose content can be examined.
trait Examined {
    fn size(&self) -> u64;

    /// Reads up to `length` bytes from `offset` on. Returns fewer bytes at the end of the store.
    fn read(&mut self, offset: u64, length: usize) -> Result<&[u8], Errno>;

    /// Returns the offset of the first data at or after `offset`; `None` if only a hole follows.
    /// Error: `EINVAL` if the store cannot report its holes.
    fn next_data(&self, offset: u64) -> Result<Option<u64>, Errno>;
}

/// Determines from a store's content whether usring may use the store.
///
/// Errors: [`Refusal::KernelSwap`] or [`Refusal::HoldsData`], unless `overwrite` is set; errors of
/// reading the store.
fn examine(store: &mut impl Examined, overwrite: bool) -> Result<Content, Refusal> {
    let start = store.read(0, HEADER as usize)?;
    if start.starts_with(SIGNATURE) {
        return Ok(Content::Ours);
    }
    if overwrite {
        return Ok(Content::Free);
    }
    if start.get(KERNEL_SWAP_AT..).is_some_and(|end| KERNEL_SWAP.contains(&end)) {
        return Err(Refusal::KernelSwap);
    }
    match first_data(store)? {
        Some(byte) => Err(Refusal::HoldsData(byte)),
        None => Ok(Content::Free),
    }
}

/// Returns the offset of the first byte that is not 0. `None` if no such byte is found. If the
/// store cannot report its holes, only its first and its last MiB are read.
fn first_data(store: &mut impl Examined) -> Result<Option<u64>, Errno> {
    let size = store.size();
    let knows_holes = store.next_data(0).is_ok();
    let mut offset = 0;
    while offset < size {
        if knows_holes {
            match store.next_data(offset)? {
                Some(data) => offset = data,
                None => return Ok(None),
            }
        } else if (EXAMINED_AT_EACH_END..size.saturating_sub(EXAMINED_AT_EACH_END)).contains(&offset) {
            offset = size - EXAMINED_AT_EACH_END;
        }
        let bytes = store.read(offset, CHUNK)?;
        if let Some(position) = bytes.iter().position(|byte| *byte != 0) {
            return Ok(Some(offset + position as u64));
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        offset += bytes.len() as u64;
    }
    Ok(None)
}

/// A store with a path: a file or a block device.
struct StoreFile {
    claim: Option<HeldDescriptor>,
    number: i32,
    size: u64,
    buffer: Bounce,
}

impl StoreFile {
    /// Opens the store's file. If `creates` is set, creates a missing file. A new file is empty at
    /// first, and becomes longer when a device is opened on it.
    fn open(path: &str, creates: bool, purpose: Purpose) -> Result<Self, Refusal> {
        let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
        let opened = match file::open(&path, if creates { O_RDWR | O_CREAT } else { O_RDWR }) {
            // The kernel may refuse to open a mounted device for writing.
            Err(Errno::EBUSY) => return Err(Refusal::Mounted),
            other => other?,
        };
        let measure = file::measure(opened.number())?;
        match (measure.kind, purpose) {
            (FileKind::Other, _) => Err(Refusal::Failed(Errno::EINVAL)),
            (FileKind::Regular, Purpose::Trial) => Self::of(opened, measure.size),
            (FileKind::Regular, Purpose::Swapping) => match file::claim(opened.number()) {
                Ok(()) => Self::of(opened, measure.size),
                Err(Errno::EAGAIN) => Err(Refusal::InUse),
                Err(error) => Err(error.into()),
            },
            (FileKind::BlockDevice, _) => match file::open(&path, O_RDWR | O_EXCL) {
                Ok(alone) => Self::of(alone, measure.size),
                Err(Errno::EBUSY) => Self::of(opened, measure.size)?.check_user(purpose),
                Err(error) => Err(error.into()),
            },
        }
    }

    fn of(opened: HeldDescriptor, size: u64) -> Result<Self, Refusal> {
        Ok(StoreFile { number: opened.number(), claim: Some(opened), size, buffer: Bounce::new(CHUNK)? })
    }

    /// Decides whether usring may use a block device although it could not open the device with
    /// O_EXCL. If the device has usring's header, another process swaps to it. Otherwise a file
    /// system on the device is mounted, or another program uses the device.
    ///
    /// Errors: [`Refusal::Mounted`] for a device without the header; [`Refusal::InUse`] for a
    /// device with the header, unless the purpose is a trial.
    fn check_user(mut self, purpose: Purpose) -> Result<Self, Refusal> {
        let is_ours = self.read(0, HEADER as usize)?.starts_with(SIGNATURE);
        match (is_ours, purpose) {
            (false, _) => Err(Refusal::Mounted),
            (true, Purpose::Swapping) => Err(Refusal::InUse),
            (true, Purpose::Trial) => Ok(self),
        }
    }
}

impl Examined for StoreFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<&[u8], Errno> {
        let segment = IoVector { base: self.buffer.address() as u64, length: length as u64 };
        let read = file::read_at(self.number, offset, &[segment], 0)?;
        Ok(self.buffer.bytes(read as usize))
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>, Errno> {
        file::next_data(self.number, offset)
    }
}

/// A store that can be read only through its device.
struct DeviceContent<'a> {
    device: &'a Device,
    queue: StoreQueue,
}

impl DeviceContent<'_> {
    fn write_header(&mut self, length: u64) -> Result<(), Errno> {
        let page = Bounce::new(width::size(length))?;
        let address = page.address() as u64;
        user_memory::copy_out(usring_sys::UserAddress(address), SIGNATURE)?;
        self.queue.write(self.device, 0, &mut [IoVector { base: address, length }])
    }
}

impl Examined for DeviceContent<'_> {
    fn size(&self) -> u64 {
        self.device.geometry().size
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<&[u8], Errno> {
        let length = width::size((length as u64).min(self.size() - offset));
        self.queue.read(self.device, offset, length, Waiting::Asleep)
    }

    fn next_data(&self, _: u64) -> Result<Option<u64>, Errno> {
        Err(Errno::EINVAL)
    }
}
