//! Baseline: the kernel's own swap, if the process may configure it.
//! 1. The program makes a swap area, and a memory cgroup. The cgroup's limit is `--limit` (with
//!    `--visits once`, twice the memory's size) plus [`OVERHEAD`].
//! 2. A child process of this program runs in the cgroup and does the work.
//! 3. After the child has ended, the parent removes the cgroup and the swap area.
//!
//! Meanwhile the swap area serves the whole system: the kernel may also put other processes' pages
//! there.

use super::Shape;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use workloads::control_group::ControlGroup;
use workloads::options::Options;

/// Bytes added to the cgroup's limit, for the process's memory beside the measured pages, and for
/// the kernel's memory for the process.
const OVERHEAD: usize = 4 << 20;

/// Seconds until an alarm ends the child. The child must end before a test's time limit kills the
/// parent, because only the parent can remove the swap area.
const ALARM_SECONDS: u32 = 25;

/// If the kernel is to manage the memory, runs the workload in a child process, and then returns
/// `true`. Returns `false` in that child, and if the memory is of another kind: then the caller
/// runs the workload.
pub fn starts_another(options: &Options, shape: &Shape) -> Result<bool, String> {
    let group: String = options.value("group")?;
    if !group.is_empty() {
        // This process is the child that runs the workload.
        // SAFETY: alarm(2) takes no address. The alarm ends this process if the process hangs.
        unsafe { libc::alarm(ALARM_SECONDS) };
        return ControlGroup::enter(Path::new(&group)).map(|()| false);
    }
    let path: PathBuf = options.value("path")?;
    let (by, area) = match options.value::<String>("by")?.as_str() {
        "kernel-file" => ("anonymous", Some(Area::in_file(&path)?)),
        "kernel-zram" => ("anonymous", Some(Area::in_zram(2 * shape.size)?)),
        "mapped-file" => ("mapping", None),
        _ => return Ok(false),
    };
    let one_by_one = if area.is_some() { Some(PageCluster::set_to_one_page()?) } else { None };
    let limit = if shape.once { 2 * shape.size } else { shape.limit };
    let group = ControlGroup::make(limit + OVERHEAD)?;
    let ourselves = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(ourselves);
    command.args(["--by", by, "--group"]).arg(group.members()).arg("--path").arg(&path);
    for name in ["threads", "size", "limit", "visits", "verify", "milliseconds"] {
        command.args([format!("--{name}"), options.value(name)?]);
    }
    let ended = command.status().map_err(|error| error.to_string());
    drop((group, area, one_by_one));
    if ended?.success() { Ok(true) } else { Err("the process that does the work has failed".into()) }
}

/// Drops a file's pages from the page cache.
pub fn forget_cached(file: &File) {
    // SAFETY: the call only gives advice about a file of this program's.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A swap area that the kernel uses. Dropping it calls swapoff(2).
struct Area {
    path: PathBuf,
    /// The number of the zram device, if this program has made one.
    zram: Option<u32>,
}

/// Switches the kernel's swap readahead off until the value is dropped. With random accesses
/// readahead only costs time.
struct PageCluster(String);

impl PageCluster {
    const PATH: &'static str = "/proc/sys/vm/page-cluster";

    fn set_to_one_page() -> Result<PageCluster, String> {
        let before = read(Path::new(Self::PATH))?;
        write(Path::new(Self::PATH), "0")?;
        Ok(PageCluster(before))
    }
}

impl Drop for PageCluster {
    fn drop(&mut self) {
        let _ = write(Path::new(Self::PATH), &self.0);
    }
}

/// Flags of swapon(2): the highest priority, so that the kernel uses this area before all others.
const HIGHEST_PRIORITY: i32 = 0x8000 | 0x7fff;

impl Area {
    fn in_file(path: &Path) -> Result<Area, String> {
        Area { path: path.into(), zram: None }.swap_on()
    }

    fn in_zram(size: usize) -> Result<Area, String> {
        let number = read(Path::new("/sys/class/zram-control/hot_add")).map_err(|why| format!("no zram: {why}"))?;
        let number = number.trim().parse().map_err(|_| "no zram: it has no number")?;
        let area = Area { path: format!("/dev/zram{number}").into(), zram: Some(number) };
        write(Path::new(&format!("/sys/block/zram{number}/disksize")), &size.to_string())?;
        area.swap_on()
    }

    /// Writes a swap header, as mkswap(8) does, and calls swapon(2).
    fn swap_on(self) -> Result<Area, String> {
        const VERSION: u32 = 1;
        let failed = |error| format!("{}: {error}", self.path.display());
        let file = File::options().read(true).write(true).open(&self.path).map_err(failed)?;
        let size = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0)).map_err(failed)?;
        let mut header = [0u8; 4096];
        header[1024..1028].copy_from_slice(&VERSION.to_ne_bytes());
        header[1028..1032].copy_from_slice(&((size / 4096 - 1) as u32).to_ne_bytes());
        header[4086..].copy_from_slice(b"SWAPSPACE2");
        file.write_all_at(&header, 0).and_then(|()| file.sync_all()).map_err(failed)?;
        drop(file);
        let name = self.name();
        // SAFETY: the name ends with NUL and lives through the call.
        match unsafe { libc::swapon(name.as_ptr(), HIGHEST_PRIORITY) } {
            0 => Ok(self),
            _ => Err(format!("no swap of the kernel's: {}", std::io::Error::last_os_error())),
        }
    }

    fn name(&self) -> CString {
        CString::new(self.path.as_os_str().as_bytes()).unwrap_or_default()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the name ends with NUL and lives through the call. The kernel refuses an area
        // that is not in use.
        unsafe { libc::swapoff(self.name().as_ptr()) };
        if let Some(number) = self.zram {
            let _ = fs::write(format!("/sys/block/zram{number}/reset"), "1");
            let _ = fs::write("/sys/class/zram-control/hot_remove", number.to_string());
        }
    }
}
