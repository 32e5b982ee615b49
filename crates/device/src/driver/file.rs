//! A device whose blocks are in a file or on a block device, by way of the kernel's AIO. A batch of
//! requests costs one system call, and a poll costs none. The device works on every file system,
//! without privilege, and where io_uring is forbidden.
//!
//! # When a submission takes time
//! AIO is asynchronous for direct transfers (O_DIRECT). But Linux does some work within
//! io_submit(2):
//!
//! - It reads a file's block map that is not in memory.
//! - It allocates blocks for a write into a hole. On ext4 that takes 1 µs more than a write to
//!   written blocks; the transfer itself stays asynchronous.
//! - It waits while the disk's queue is full.
//! - It waits for the whole of a write that makes the file longer. So the file has its full size
//!   from the start.
//! - tmpfs, which has O_DIRECT since Linux 6.6, copies within the call.
//!
//! Without O_DIRECT, io_submit(2) would make the whole transfer, so a buffered file has no AIO
//! context. A read that the page cache can serve is served immediately. Every other request goes to
//! a worker. If no AIO context can be made (`aio-max-nr`, a sandbox), workers serve all requests,
//! also those for a direct file.
//!
//! # Changes to the file
//! - A removed or renamed file stays the device.
//! - If the file becomes shorter, reads beyond its end fail with `EIO`.
//! - A limit on file sizes (RLIMIT_FSIZE) and a full file system affect writes as they affect the
//!   program's own writes.

mod kernel_files;
mod queue;

pub use kernel_files::KernelFiles;

use crate::driver::{Driver, LONGEST_TRANSFER, MOST_SEGMENTS, QueueOptions, QueuePair};
use crate::geometry::{ANY_NUMBER, Features, Geometry};
use crate::request::{DeviceRequest, Operation};
use crate::spec::{self, Layer, Opening, OptionRow, ValueKind};
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::sync::Arc;
use queue::{AioQueue, DeviceTarget, InlineQueue, Target};
use usring_sys::descriptor::HeldDescriptor;
use usring_sys::file::{self, Direct, FileKind, Measure};
use usring_sys::mapping::{Mapping, PAGE};
use usring_sys::plain::IoVector;
use usring_sys::{Errno, eventfd, width};
use usring_uapi::general as linux;

pub static KIND: spec::DeviceKind = spec::DeviceKind {
    name: "file",
    options: &[
        OptionRow { name: "path", value: ValueKind::Path, required: true },
        OptionRow { name: "size", value: ValueKind::Size, required: false },
        OptionRow { name: "create", value: ValueKind::Switch, required: false },
        OptionRow { name: "direct", value: ValueKind::Switch, required: false },
        OptionRow { name: "read-only", value: ValueKind::Switch, required: false },
    ],
    check,
    open: Opening::Device(|layer, _| Ok(Box::new(FileDriver::open(&FileOptions::of(layer)?)?))),
};

/// Options of a file device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    pub path: CString,
    /// Size of the device in bytes. If the file is longer, the device is the start of the file.
    /// `None`: as many whole blocks as the file has.
    pub size: Option<u64>,
    /// Whether to create a missing file, and to lengthen a file that is shorter than `size`.
    pub create: bool,
    /// Whether to bypass the page cache. `None`: bypass it if the file system can.
    pub direct: Option<bool>,
    pub read_only: bool,
}

fn check(layer: &Layer) -> Result<(), &'static str> {
    match (layer.switch("create"), layer.size("size")) {
        (Some(true), None) => Err("create=on needs size=, the size of a new file"),
        (Some(true), Some(_)) if layer.switch("read-only") == Some(true) => {
            Err("create=on and read-only=on exclude each other")
        }
        _ => spec::check_size(layer),
    }
}

impl FileOptions {
    fn of(layer: &Layer) -> Result<FileOptions, Errno> {
        let path = CString::new(layer.text("path").unwrap_or_default()).map_err(|_| Errno::EINVAL)?;
        let read_only = layer.switch("read-only") == Some(true);
        let create = layer.switch("create") == Some(true);
        Ok(FileOptions { path, size: layer.size("size"), create, direct: layer.switch("direct"), read_only })
    }
}

/// The device's file, opened once per process.
pub struct FileDriver {
    file: Arc<HeldDescriptor>,
    kind: FileKind,
    direct: bool,
    geometry: Geometry,
}

const SECTOR: u32 = 512;

impl FileDriver {
    /// Opens the file.
    ///
    /// Errors:
    /// - those of open(2);
    /// - `EINVAL` if the file is neither regular nor a block device;
    /// - `EINVAL` if the size is zero, or not a multiple of the block;
    /// - `EINVAL` for `direct`, if the file system has no direct transfers;
    /// - `ENOSPC` if the file is smaller than the requested size, and `create` is not set or the
    ///   file is a block device.
    pub fn open(options: &FileOptions) -> Result<FileDriver, Errno> {
        let access = if options.read_only { linux::O_RDONLY } else { linux::O_RDWR };
        let access = if options.create { access | linux::O_CREAT } else { access };
        let (file, measure, direct) = open_file(options, access)?;
        let (block, alignment) = match direct {
            Some((memory, offset)) => (offset.max(SECTOR), memory.max(1)),
            None => (SECTOR, 1),
        };
        let size = options.size.unwrap_or(measure.size - measure.size % u64::from(block));
        if size == 0 || !size.is_multiple_of(u64::from(block)) {
            return Err(Errno::EINVAL);
        }
        // The size was checked before this. So a size that is refused does not change the file.
        if size > measure.size {
            lengthen(file.number(), size, &measure, options.create)?;
        }
        let features = Features {
            polls: true,
            flush: true,
            discard: !options.read_only && file::can_discard(file.number(), &file::measure(file.number())?),
            write_zeroes: !options.read_only,
            read_only: options.read_only,
            forgets: false,
            // With AIO, the kernel keeps using a request's memory after the call. Without AIO, each
            // transfer is a system call of usring's own, which pins swapped memory while it runs.
            kernel_holds_memory: direct.is_some(),
        };
        let transfer = LONGEST_TRANSFER - LONGEST_TRANSFER % block;
        let geometry =
            Geometry { size, block, alignment, transfer, segments: MOST_SEGMENTS, queues: ANY_NUMBER, features };
        Ok(FileDriver { file: Arc::new(file), kind: measure.kind, direct: direct.is_some(), geometry })
    }

    fn zero(&self, offset: u64, length: u64) -> Result<(), Errno> {
        match file::zero(self.file.number(), self.kind, offset, length) {
            Err(Errno::EOPNOTSUPP) => self.write_zeroes(offset, length),
            other => other,
        }
    }

    /// Writes zeroes, for a file system that can neither zero a range nor punch a hole.
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let zeroes = Mapping::shared((self.geometry.block as usize).max(1 << 17))?;
        let mut done = 0;
        while done < length {
            let part = (length - done).min(zeroes.length() as u64);
            let segment = IoVector { base: zeroes.address() as u64, length: part };
            match file::write_at(self.file.number(), offset + done, &[segment], 0)? {
                0 => return Err(Errno::EIO),
                written => done += u64::from(written),
            }
        }
        Ok(())
    }
}

impl Driver for FileDriver {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn QueuePair>, Errno> {
        let interrupt = match options.interrupts {
            true => Some(eventfd::create()?.into_private()?),
            false => None,
        };
        let file = Arc::clone(&self.file);
        if !self.direct {
            return InlineQueue::open(file, options.depth, interrupt, true).map(|queue| Box::new(queue) as _);
        }
        match AioQueue::context(options.depth) {
            Ok(context) => {
                let target = Target::Device(DeviceTarget::new(file, &self.geometry));
                Ok(Box::new(AioQueue::open(context, target, options.depth, interrupt)?))
            }
            // Without AIO the device works, but slower.
            Err(_) => InlineQueue::open(file, options.depth, interrupt, false).map(|queue| Box::new(queue) as _),
        }
    }

    fn keep_after_fork(&self, keep: &mut dyn FnMut(i32)) -> bool {
        keep(self.file.number());
        true
    }

    fn execute(&self, request: &DeviceRequest) -> Result<u32, Errno> {
        let number = self.file.number();
        let changes = !matches!(request.operation, Operation::Read | Operation::Flush);
        if changes && self.geometry.features.read_only {
            return Err(Errno::EPERM);
        }
        let bytes = match request.operation {
            Operation::Read => match file::read_at(number, request.offset, request.segments, 0)? {
                // The file has become shorter than the device.
                0 if request.length != 0 => return Err(Errno::EIO),
                bytes => bytes,
            },
            Operation::Write => file::write_at(number, request.offset, request.segments, durability(request))?,
            Operation::Flush => file::synchronise(number).map(|()| 0)?,
            Operation::Discard => file::discard(number, self.kind, request.offset, request.length).map(|()| 0)?,
            Operation::WriteZeroes => self.zero(request.offset, request.length).map(|()| 0)?,
        };
        if request.durable && request.operation == Operation::WriteZeroes {
            file::synchronise(number)?;
        }
        Ok(bytes)
    }
}

/// Returns the `RWF_*` flags of a write.
#[inline]
fn durability(request: &DeviceRequest) -> u32 {
    if request.durable { linux::RWF_DSYNC } else { 0 }
}

/// Required alignment of memory and of file offsets for direct transfers, in bytes.
type Alignment = (u32, u32);

/// Opens the file. Also returns the alignment of direct transfers; `None` if the file is buffered.
fn open_file(options: &FileOptions, access: u32) -> Result<(HeldDescriptor, Measure, Option<Alignment>), Errno> {
    if options.direct != Some(false) {
        match file::open(&options.path, access | linux::O_DIRECT) {
            Ok(file) => {
                let measure = measured(&file)?;
                if let Some(alignment) = direct_alignment(&file, &measure) {
                    return Ok((file, measure, Some(alignment)));
                }
            }
            // The file system has no direct transfers.
            Err(Errno::EINVAL) => {}
            Err(error) => return Err(error),
        }
        if options.direct == Some(true) {
            return Err(Errno::EINVAL);
        }
    }
    let file = file::open(&options.path, access)?;
    let measure = measured(&file)?;
    Ok((file, measure, None))
}

fn measured(file: &HeldDescriptor) -> Result<Measure, Errno> {
    let measure = file::measure(file.number())?;
    if measure.kind == FileKind::Other { Err(Errno::EINVAL) } else { Ok(measure) }
}

/// Returns the alignment that the file system reports. If it reports none, returns the smallest
/// alignment with which a read succeeds. `None` if the file has no direct transfers.
fn direct_alignment(file: &HeldDescriptor, measure: &Measure) -> Option<Alignment> {
    match measure.direct {
        Direct::Refused => None,
        Direct::Aligned { memory, offset } => Some((memory, offset)),
        Direct::Unknown => {
            let memory = Mapping::shared(PAGE).ok()?;
            let passes = |block: u32| {
                let segment = IoVector { base: memory.address() as u64, length: u64::from(block) };
                file::read_at(file.number(), u64::from(block), &[segment], 0).is_ok()
            };
            [SECTOR, width::count(PAGE)].into_iter().find(|block| passes(*block)).map(|block| (block, block))
        }
    }
}

/// Makes a file as long as the device, so that no later write has to make the file longer. Such a
/// write would be synchronous. Errors: `ENOSPC` for a block device, or if `create` is not set; the
/// errors of ftruncate(2).
fn lengthen(number: i32, size: u64, measure: &Measure, create: bool) -> Result<(), Errno> {
    if measure.kind == FileKind::BlockDevice || !create {
        return Err(Errno::ENOSPC);
    }
    file::resize(number, size)
}
