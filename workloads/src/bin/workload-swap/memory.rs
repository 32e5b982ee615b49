//! The kinds of memory that the benchmark can measure. Pages are evicted and read back by a region
//! of usring, by a pager, or by the kernel.

use super::umap::Umap;
use super::{Shape, kernel};
use std::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use usring::swap::{Mechanism, SwapRegion};
use workloads::options::Options;

pub const PAGE: usize = 4096;

/// Smallest limit that a swap region of usring accepts, in bytes.
const LEAST: usize = 64 * PAGE;

pub trait Memory: Sync {
    fn start(&self) -> *mut u8;

    /// Evicts all pages but a few. Then raises the limit, so that all pages can be resident again.
    fn evict_all(&self) -> Result<(), String>;

    /// Returns whether an evicted page still has its content when it is resident again.
    fn keeps_content(&self) -> bool {
        true
    }
}

/// Makes the memory that the options select. It is never freed.
pub fn make(options: &Options, shape: &Shape) -> Result<&'static dyn Memory, String> {
    let path: PathBuf = options.value("path")?;
    match options.value::<String>("by")?.as_str() {
        "region" => Ok(Box::leak(Box::new(region(options, shape)?))),
        "umap" => Umap::make(&path, shape.size, if shape.once { 2 * shape.size } else { shape.limit }),
        "anonymous" => Ok(Box::leak(Box::new(Plain::anonymous(shape, Eviction::ToSwap)?))),
        "first-touch" => Ok(Box::leak(Box::new(Plain::anonymous(shape, Eviction::Discarded)?))),
        "mapping" => Ok(Box::leak(Box::new(Plain::of_file(&path, shape)?))),
        other => Err(format!("--by cannot be {other}")),
    }
}

struct Region {
    region: SwapRegion,
    size: usize,
}

fn region(options: &Options, shape: &Shape) -> Result<Region, String> {
    let text: String = options.value("backing")?;
    let failed = |error: std::io::Error| format!("no region: {error}");
    let limit = if shape.once { LEAST } else { shape.limit };
    let builder = SwapRegion::builder().size(shape.size).limit(limit).backing(&text).map_err(failed)?;
    let name: String = options.value("mechanism")?;
    let builder = match (Mechanism::of_name(&name), name.is_empty()) {
        (Some(mechanism), _) => builder.mechanism(mechanism),
        (None, true) => builder,
        (None, false) => return Err(format!("--mechanism cannot be {name}")),
    };
    let region = builder.build().map_err(failed)?;
    Ok(Region { region, size: shape.size })
}

impl Memory for Region {
    fn start(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    fn evict_all(&self) -> Result<(), String> {
        let failed = |error| format!("the limit cannot be set: {error}");
        self.region.set_limit(LEAST).map_err(failed)?;
        self.region.set_limit(2 * self.size).map_err(failed)
    }
}

/// How `evict_all` evicts the pages of [`Plain`] memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Eviction {
    ToSwap,
    Discarded,
}

/// Ordinary memory, which the kernel manages.
struct Plain {
    start: *mut u8,
    size: usize,
    eviction: Eviction,
}

// SAFETY: the fields are plain data. Threads that share the memory access it only by atomics.
unsafe impl Sync for Plain {}

impl Plain {
    fn anonymous(shape: &Shape, eviction: Eviction) -> Result<Plain, String> {
        let memory = Plain::map(shape.size, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, eviction)?;
        // SAFETY: the call only gives advice about a mapping of this program's.
        unsafe { libc::madvise(memory.start.cast::<c_void>(), shape.size, libc::MADV_NOHUGEPAGE) };
        Ok(memory)
    }

    fn of_file(path: &PathBuf, shape: &Shape) -> Result<Plain, String> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        kernel::forget_cached(&file);
        // The workload expects zeroes in a page that it has not written to yet.
        zero(&file, shape.size)?;
        let memory = Plain::map(shape.size, libc::MAP_SHARED, file.as_raw_fd(), Eviction::ToSwap)?;
        // Without this advice, each fault would also read the neighbouring pages, and so evict
        // other pages.
        // SAFETY: the call only gives advice about a mapping of this program's.
        unsafe { libc::madvise(memory.start.cast::<c_void>(), shape.size, libc::MADV_RANDOM) };
        Ok(memory)
    }

    fn map(size: usize, flags: i32, file: i32, eviction: Eviction) -> Result<Plain, String> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the call makes a new mapping, which is never unmapped.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().to_string());
        }
        Ok(Plain { start: start.cast(), size, eviction })
    }
}

/// Fills the file with zeroes and syncs it, so that reads find no hole.
fn zero(file: &std::fs::File, size: usize) -> Result<(), String> {
    use std::os::unix::fs::FileExt;
    let zeroes = vec![0u8; 1 << 20];
    let mut write = (0..size).step_by(1 << 20).map(|at| file.write_all_at(&zeroes, at as u64));
    write.try_for_each(|done| done.map_err(|error| error.to_string()))?;
    file.sync_data().map_err(|error| error.to_string())
}

impl Memory for Plain {
    fn start(&self) -> *mut u8 {
        self.start
    }

    fn evict_all(&self) -> Result<(), String> {
        let advice = match self.eviction {
            Eviction::ToSwap => libc::MADV_PAGEOUT,
            Eviction::Discarded => libc::MADV_DONTNEED,
        };
        // SAFETY: the call affects only a mapping of this program's, which no thread uses now.
        match unsafe { libc::madvise(self.start.cast::<c_void>(), self.size, advice) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().to_string()),
        }
    }

    fn keeps_content(&self) -> bool {
        self.eviction == Eviction::ToSwap
    }
}
